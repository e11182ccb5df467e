"""Sizes that change from call to call: compiles in the foreground, total time, speed over static.

    python -m tests.driver.changing_shapes                         # bert resnet generate lengths
    python -m tests.driver.changing_shapes bert --small --calls 50 # two narrow layers
    python -m tests.driver.changing_shapes bert --no-peer --sizes 6 --json shapes.json

bert draws lengths of 1 … 512 and batches of 1 … 32, resnet thirty sizes of images, lengths 1 …
2,048 in random order; generate makes tokens with a cache that grows (`--static`: a static one).
All caches on disk are empty at the start. Of each case the table has the compiles that calls waited
for, the seconds of all calls with them, and the same of Inductor with `dynamic=True` where there is
a g++. Then the program of all sizes, without others made for some, takes turns with programs that
are compiled for one size, at a few of the sizes; the ratio is of medians. `generate` has seconds
of the first run and the median of those after it, which take turns, and whether the tokens are
eager's.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch._dynamo
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import tilewright as tw
from tilewright.base.machine import usable_cores
from tilewright.bench.measure import busy, geometric_mean, interleaved, ratio
from tilewright.runtime import pool

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Case:
    """A module, and the inputs of its calls."""

    module: nn.Module
    calls: Sequence[Inputs]


@dataclass
class Found:
    """What was measured of one case. Ratios above one say that ours is faster."""

    name: str
    calls: int
    compiles: int = 0  # that a call waited for
    meanwhile: int = 0  # programs of some sizes, compiled while calls went on
    seconds: float = 0.0  # of all calls, with compiles
    peer_seconds: float | None = None
    peer_compiles: int | None = None
    over_static: float | None = None  # speed of the program of all sizes over that of one
    each: dict[str, float] = field(default_factory=dict)  # by sizes
    first: float | None = None  # seconds of the first run of `generate`
    peer_first: float | None = None
    again: float | None = None  # of a run after it
    peer_again: float | None = None
    right: bool | None = None


CASES: dict[str, Callable[[bool, int, random.Random], Case]] = {}


def case(make: Callable[[bool, int, random.Random], Case]) -> Callable[..., Case]:
    CASES[make.__name__] = make
    return make


@case
def bert(small: bool, calls: int, draw: random.Random) -> Case:
    import transformers as hf

    from tilewright.bench.models import Picked, tokens

    sizes = {"num_hidden_layers": 2, "vocab_size": 1000} if small else {}
    if small:
        sizes |= {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4}
    inner = hf.BertModel(hf.BertConfig(**sizes)).eval()
    module = Picked(inner, ("input_ids",), ("last_hidden_state", "pooler_output"))
    longest, most = (128, 8) if small else (512, 32)
    shapes = [(draw.randint(1, most), draw.randint(1, longest)) for _ in range(calls)]
    return Case(module, [(tokens(inner.config.vocab_size, *s),) for s in shapes])


@case
def resnet(small: bool, calls: int, draw: random.Random) -> Case:
    import transformers as hf

    from tilewright.bench.models import Picked, image, randomize_batch_norm

    sizes: dict[str, Any] = {"embedding_size": 32, "hidden_sizes": [64, 128], "depths": [2, 2]}
    config = hf.ResNetConfig(layer_type="bottleneck", **(sizes if small else {}))
    inner = randomize_batch_norm(hf.ResNetForImageClassification(config)).eval()
    sides = [(48 if small else 96) + 8 * k for k in range(30)]
    chosen = [draw.choice(sides) for _ in range(calls)] if calls > 30 else sides[:calls]
    return Case(Picked(inner, ("pixel_values",), ("logits",)), [(image(n),) for n in chosen])


class _Layer(nn.Module):
    """A layer of attention over all positions before each, and a gated product after it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm, self.last = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.all, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        split = self.all(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = split.unbind()
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.last(x))))


@case
def lengths(small: bool, calls: int, draw: random.Random) -> Case:
    width, most = (64, 256) if small else (256, 2048)
    module = nn.Sequential(_Layer(width, 4), _Layer(width, 4)).eval()
    chosen = [1, most, *(draw.randint(1, most) for _ in range(calls - 2))]
    draw.shuffle(chosen)
    return Case(module, [(torch.randn(1, n, width),) for n in chosen])


def _timed(run: Callable[..., Any], calls: Sequence[Inputs]) -> float:
    began = time.perf_counter()
    for inputs in calls:
        run(*inputs)
    return time.perf_counter() - began


def _compiles(fast: Any) -> tuple[int, int]:
    """Programs that calls waited for, and those made meanwhile."""
    return fast.log.counts["compile"], fast.log.counts["specialised"]


def _peer(function: Callable[..., Any]) -> Any:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    return torch.compile(function, dynamic=True)


def _count_graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def measured(name: str, given: argparse.Namespace) -> Found:
    draw = random.Random(given.seed)
    torch.manual_seed(given.seed)
    made = CASES[name](given.small, given.calls, draw)
    found = Found(name, len(made.calls))
    dynamic = None if given.automatic else True
    with torch.no_grad():
        fast = tw.compile(made.module, dynamic=dynamic, **_options(given))
        found.seconds = _timed(fast, made.calls)
        found.compiles, found.meanwhile = _compiles(fast)
        found.right = all(_is_right(made.module, fast, x) for x in made.calls[:3])
        del fast
        if given.peer:
            peer = _peer(made.module)
            found.peer_seconds = _timed(peer, made.calls)
            found.peer_compiles = _count_graphs()
        _over_static(made, given, found)
    return found


def _over_static(made: Case, given: argparse.Namespace, found: Found) -> None:
    torch._dynamo.reset()
    chosen = {str([tuple(x.shape) for x in inputs]): inputs for inputs in made.calls}
    general = tw.compile(made.module, dynamic=True, specialise_after=0)
    general(*max(made.calls, key=lambda inputs: sum(x.numel() for x in inputs)))
    for shape, inputs in list(chosen.items())[: given.sizes]:
        torch._dynamo.reset()
        static = tw.compile(made.module, *inputs, dynamic=False)
        runs = {"one": partial(static, *inputs), "all": partial(general, *inputs)}
        times = interleaved(runs, given.rounds)
        found.each[shape] = ratio(times["one"], times["all"])
    if found.each:
        found.over_static = geometric_mean(list(found.each.values()))


def _is_right(module: nn.Module, fast: Any, inputs: Inputs) -> bool:
    """Within twice eager's own error from float64 and four units of the largest value."""
    got, eager = _listed(fast(*inputs)), _listed(module(*inputs))
    exact = _listed(module.double()(*(x.double() if x.is_floating_point() else x for x in inputs)))
    module.float()
    for g, e, x in zip(got, eager, exact, strict=True):
        ulp = torch.finfo(torch.float32).eps * x.abs().max().item()
        if (g - x).abs().max() > 2 * (e - x).abs().max() + 4 * ulp:
            return False
    return True


def _listed(x: Any) -> list[Tensor]:
    return [x] if isinstance(x, Tensor) else list(x)


def generated(given: argparse.Namespace) -> Found:
    """Greedy tokens of a small model with a cache."""
    import transformers as hf

    config = hf.LlamaConfig(
        hidden_size=256 if given.small else 1024,
        intermediate_size=704 if given.small else 2816,
        num_hidden_layers=2 if given.small else 8,
        num_attention_heads=4 if given.small else 16,
        num_key_value_heads=2 if given.small else 4,
        vocab_size=1000 if given.small else 32000,
    )
    torch.manual_seed(given.seed)
    model = hf.LlamaForCausalLM(config).eval()
    ids = torch.randint(3, config.vocab_size, (1, 16))
    wanted = min(given.calls, 256)
    how: dict[str, Any] = {"max_new_tokens": wanted, "do_sample": False, "pad_token_id": 0}
    how |= {"min_new_tokens": wanted, "attention_mask": torch.ones_like(ids)}
    if given.static:
        how |= {"cache_implementation": "static", "disable_compile": True}

    def run() -> tuple[Tensor, float]:
        began = time.perf_counter()
        out = model.generate(ids, **how)
        return out, time.perf_counter() - began

    found = Found("generate", wanted)
    eager, _ = run()
    plain = model.forward
    fast = model.forward = tw.compile(plain, dynamic=None, **_options(given))
    tokens, found.first = run()
    found.right = torch.equal(tokens, eager)
    ways = [fast]
    if given.peer:
        torch._dynamo.utils.counters.clear()
        peer = model.forward = torch.compile(plain)
        _, found.peer_first = run()
        found.peer_compiles = _count_graphs()
        ways.append(peer)
    later: list[list[float]] = [[] for _ in ways]
    for number in range(given.rounds):
        for k in range(len(ways)):
            k = (k + number) % len(ways)
            model.forward = ways[k]
            later[k].append(run()[1])
    found.again, *others = map(median, later)
    found.peer_again = others[0] if others else None
    found.compiles, found.meanwhile = _compiles(fast)
    found.seconds = found.first + found.again
    model.forward = plain
    return found


def _options(given: argparse.Namespace) -> dict[str, Any]:
    return {} if given.after is None else {"specialise_after": given.after}


def table(found: Sequence[Found]) -> Table:
    out = Table(title="sizes that change", title_justify="left")
    for c in (
        "case",
        "calls",
        "right",
        "compiles",
        "meanwhile",
        "seconds",
        "Inductor",
        "of static",
    ):
        out.add_column(c, justify="left" if c == "case" else "right")
    for f in found:
        static = "" if f.over_static is None else f"{f.over_static:.2f}"
        peer = "" if f.peer_seconds is None else f"{f.peer_seconds:.1f} ({f.peer_compiles})"
        counts = str(f.calls), str(f.right), str(f.compiles), str(f.meanwhile)
        out.add_row(f.name, *counts, f"{f.seconds:.1f}", peer, static)
        for shape, x in f.each.items():
            out.add_row(f"  {shape}", *[""] * 6, f"{x:.2f}")
        if f.first is not None and f.again is not None:
            other = "" if f.peer_first is None else f"{f.peer_first:.1f}"
            out.add_row("  first run", *[""] * 4, f"{f.first:.1f}", other, "")
            other = "" if f.peer_again is None else f"{f.peer_again:.2f}"
            out.add_row("  after it", *[""] * 4, f"{f.again:.2f}", other, "")
    return out


def main() -> None:
    names = [*CASES, "generate"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("cases", nargs="*", help=f"some of {', '.join(names)}")
    parser.add_argument("--calls", type=int, default=500, help="tokens of generate: at most 256")
    parser.add_argument("--small", action="store_true", help="two narrow layers")
    parser.add_argument("--sizes", type=int, default=4, help="compared with static programs")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--after", type=int, help="specialise_after of ours")
    parser.add_argument("--automatic", action="store_true", help="dynamic=None: as sizes change")
    parser.add_argument("--static", action="store_true", help="generate with a static cache")
    parser.add_argument("--no-peer", dest="peer", action="store_false", help="without Inductor")
    parser.add_argument("--json", type=Path, help="write every number to this file")
    given = parser.parse_args()
    unknown = [x for x in given.cases if x not in names]
    if unknown:
        parser.error(f"no case is called {unknown[0]}; there are {', '.join(names)}")
    console = Console()
    if (why := busy()) is not None:
        console.print(why)
    if given.peer and shutil.which("g++") is None:
        console.print("there is no g++: Inductor is left out")
        given.peer = False
    pool.set_threads(given.threads)
    torch.set_num_threads(given.threads)
    found: list[Found] = []
    for name in given.cases or names:
        with tempfile.TemporaryDirectory() as empty:
            os.environ["TILEWRIGHT_CACHE_DIR"] = str(Path(empty, "ours"))
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(empty, "inductor"))
            found.append(generated(given) if name == "generate" else measured(name, given))
        torch._dynamo.reset()
        gc.collect()
    console.print(table(found))
    if given.json:
        given.json.write_text(json.dumps([asdict(f) for f in found], indent=1))


if __name__ == "__main__":
    main()
