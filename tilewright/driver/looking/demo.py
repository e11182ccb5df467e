"""`tilewright demo`: a real model with random weights, compiled, checked and compared with
eager."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tilewright.base import knobs
from tilewright.base.errors import Invalid, MissingExtra
from tilewright.driver.api import torch_side
from tilewright.driver.looking.explain import bytes_text
from tilewright.driver.looking.shown import Shown
from tilewright.driver.looking.tables import new_table

_COMPARE = "tilewright.driver.looking.compare"
ROUNDS = 11


@dataclass(frozen=True)
class Model:
    """A model of transformers: what it is, and how to build it with its inputs."""

    about: str
    build: Callable[[Any, Any], tuple[Any, tuple[Any, ...]]]


def _bert(torch: Any, hf: Any) -> tuple[Any, tuple[Any, ...]]:
    inner = hf.BertModel(hf.BertConfig()).eval()
    ids = torch.randint(3, inner.config.vocab_size, (1, 128))
    return _picked(torch, inner, "input_ids", "last_hidden_state"), (ids,)


def _resnet(kind: str, **sizes: Any) -> Callable[[Any, Any], tuple[Any, tuple[Any, ...]]]:
    def build(torch: Any, hf: Any) -> tuple[Any, tuple[Any, ...]]:
        config = hf.ResNetConfig(layer_type=kind, num_labels=1000, **sizes)
        inner = hf.ResNetForImageClassification(config).eval()
        for part in inner.modules():
            if isinstance(part, torch.nn.BatchNorm2d):
                # Fresh statistics are 0 and 1, with which folding could do nothing wrong.
                torch.nn.init.normal_(part.running_mean, std=0.1)
                torch.nn.init.uniform_(part.running_var, 0.5, 1.5)
        return _picked(torch, inner, "pixel_values", "logits"), (torch.randn(1, 3, 224, 224),)

    return build


def _tiny(torch: Any, hf: Any) -> tuple[Any, tuple[Any, ...]]:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = hf.BertConfig(intermediate_size=128, vocab_size=1000, **sizes)
    inner = hf.BertModel(config).eval()
    ids = torch.randint(3, 1000, (1, 32))
    return _picked(torch, inner, "input_ids", "last_hidden_state"), (ids,)


MODELS = {
    "bert": Model("BERT-base, 128 tokens", _bert),
    "resnet18": Model(
        "ResNet-18, one image of 224 x 224",
        _resnet("basic", depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512]),
    ),
    "resnet50": Model("ResNet-50, one image of 224 x 224", _resnet("bottleneck")),
    "tiny": Model("a BERT of two small layers, 32 tokens", _tiny),
}
DEFAULT = "resnet18"


def _picked(torch: Any, inner: Any, argument: str, result: str) -> Any:
    """The model as a module from one tensor to one tensor."""

    class Picked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            return getattr(self.inner(**{argument: x}), result)

    return Picked().eval()


def demo(name: str = DEFAULT, rounds: int = ROUNDS, out: Shown | None = None) -> bool:
    """Show what compiling brings for a real model; False where the result is not right."""
    out = out or Shown()
    if name not in MODELS:
        raise Invalid(f"there is no demo model {name!r}", hint=f"known are {', '.join(MODELS)}")
    for package in ("torch", "transformers"):
        if find_spec(package) is None:
            raise MissingExtra("demo", f"tilewright demo ({package})")
    chosen = MODELS[name]
    out.say(f"{chosen.about}, random weights, float32, inference", style="bold")
    torch, hf, compare = torch_side("torch", "demo"), *_late()
    torch.manual_seed(0)
    with out.step("building the model"):
        module, inputs = chosen.build(torch, hf)
    # Cold means cold: nothing that an earlier run left behind is used.
    with (
        tempfile.TemporaryDirectory(prefix="tilewright-demo-") as empty,
        knobs.cache_dir.override(Path(empty)),
    ):
        found = compare.compare(module, inputs, strict=True, rounds=rounds, step=out.step)
    out.put(model=name, about=chosen.about)
    _show(found, out)
    return found.error.right


def _late() -> tuple[Any, Any]:
    return torch_side("transformers", "demo"), torch_side(_COMPARE, "demo")


def _show(c: Any, out: Shown) -> None:
    """What `compare.compare` found."""
    programs = c.explanation.programs
    arena = sum(p.arena if isinstance(p.arena, int) else 0 for p in programs)
    once, calls = sum(p.once for p in programs), sum(p.calls for p in programs)
    distinct, folded = len(c.explanation.kernels) - once, sum(p.folded_bytes for p in programs)
    memory, fallbacks = arena + c.result_bytes, len(c.explanation.fallbacks)
    out.put(
        compile_seconds=c.compile_seconds,
        compile_seconds_without_capture=c.own_seconds,
        seconds={"eager": c.eager, "tilewright": c.ours},
        speedup=c.speedup,
        bytes={"eager": c.eager_peak, "tilewright": memory, "folded_weights": folded},
        error={"eager": c.error.eager, "tilewright": c.error.ours},
        kernels={"distinct": distinct, "calls": calls, "once": once},
        fallbacks=fallbacks,
        right=c.error.right,
    )
    whole = f"{c.compile_seconds:.1f} s ({c.own_seconds:.1f} s without capture)"
    rows = [
        ("cold compile", "", whole),
        ("time per call", milliseconds(c.eager), milliseconds(c.ours)),
        ("speedup", "1.00×", f"{c.speedup:.2f}×"),
        ("memory of a call", bytes_text(c.eager_peak), bytes_text(memory)),
        ("folded and packed weights", "", bytes_text(folded)),
        ("largest error", f"{c.error.eager:.2e}", f"{c.error.ours:.2e}"),
        ("kernels", "", f"{distinct} distinct, {calls} calls per run"),
        ("kernels that pack weights, once", "", str(once)),
        ("fallbacks to eager", "", str(fallbacks)),
    ]
    table = new_table("", "eager", "tilewright")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    out.text("")
    out.draw(table)
    verdict(c.error, out)


def verdict(error: Any, out: Shown) -> None:
    """Right or wrong, in one line."""
    if error.right:
        out.say("right: the error against float64 is at most twice eager's own + 4 ulp", "green")
    else:
        out.say(f"wrong: {error.problem}", "bold red")


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.1f} µs"
