"""Products of one row, and a step of a language model as one kernel, on a GPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

import tilewright as tw
from tests.gpu.decode import FULL, TINY, Size, example
from tests.gpu.model_checks import SHORT, judged, model
from tests.gpu.phase_times import replay_of, rows, whole
from tests.gpu.timing import host_seconds, medians
from tilewright.runtime.cuda.program import CudaProgram

Found = dict[str, Any]
# (columns, depth): of the bar, of the layers of a model of a billion weights, of its head.
VECTORS = ((16384, 4096), (4096, 16384), (3072, 2048), (2048, 8192), (32000, 2048))


def _copied(size: int) -> float:
    """Bytes a second of a large copy."""
    a = torch.empty(size, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    return 2 * size / medians({"copy": [lambda: b.copy_(a)]}, 20)["copy"]


def one_row(columns: int, depth: int) -> Found:
    """A row times a matrix in bf16 beside torch, the matrices too many for the cache."""
    count = max(2, 2**28 // (columns * depth * 2))
    weights = [torch.randn(columns, depth, dtype=torch.bfloat16).cuda() for _ in range(count)]
    x = torch.randn(1, depth, dtype=torch.bfloat16).cuda()
    wide = F.linear(x.double(), weights[0].double())
    contenders: dict[str, list[Callable[[], object]]] = {
        "torch": [lambda w=w: F.linear(x, w) for w in weights]
    }
    fast = tw.compile(lambda x, w: F.linear(x, w), choose="default")
    worst = judged(fast(x, weights[0]), wide, F.linear(x, weights[0]))
    # It begins with another matrix: it does not find in the cache what torch has read.
    contenders["ours"] = [lambda w=w: fast(x, w) for w in weights[-1:] + weights[:-1]]
    t = medians(contenders, 40)
    moved, ours = columns * depth * 2, t["ours"]
    return {
        "us": ours * 1e6,
        "gbs": moved / ours / 1e9,
        "of_copy": moved / ours / _copied(2**29),
        "eager": t["torch"] / ours,
        "error": worst,
        "facts": ", ".join(f"{k}: {v * 1e6:.1f} us" for k, v in t.items()),
    }


def step(s: Size, dtype: torch.dtype, timed: bool) -> Found:
    """A step as one kernel, as a CUDA graph of the same kernels, which overlap, and of plain ones:
    right, then timed."""
    net, inputs = example(s, dtype, "cuda")
    token, at, keys, values = inputs
    others = ((token + 1) % s.words, at // 2, keys.flip(2).contiguous(), values)
    one = tw.compile(net, one_kernel=True)
    graphs = {name: tw.compile(net, choose=name) for name in ("early", "default")}
    found: Found = {"error": 0.0}
    wide = copy.deepcopy(net).double()
    with torch.no_grad():
        for given in (inputs, others, inputs, others, inputs):
            eager = net(*given)
            exact = wide(*(x.double() if x.is_floating_point() else x for x in given))
            for f in (one, *graphs.values()):
                found["error"] = max(found["error"], judged(f(*given), exact, eager))
        del wide
        (made,) = one.units[0].programs
        assert isinstance(made, CudaProgram) and made.tasks is not None, made.not_one_kernel
        found["facts"] = f"{made.tasks.facts}, {made.tasks.resident} blocks"
        if timed:
            found |= _times(s, net, one, graphs, made, [inputs, others])
    return found


def _times(
    s: Size,
    net: Any,
    one: Any,
    graphs: dict[str, Any],
    made: CudaProgram,
    given: list[tuple[Any, ...]],
) -> Found:
    assert made.tasks is not None
    moved = 2 * (s.weights + 2 * s.layers * s.groups * s.keys * s.head)

    def calls(f: Any) -> list[Callable[[], object]]:
        return [lambda x=x: f(*x) for x in given]

    measured = tw.compile(net)  # libraries too, where they are faster
    contenders = {"one kernel": one, "measured": measured, "eager": net}
    contenders |= {f"graph, {name}": f for name, f in graphs.items()}
    t = medians({name: calls(f) for name, f in contenders.items()}, 20)
    host = host_seconds(lambda: one(*given[0]), 50)
    for blocks in range(1, made.tasks.facts.blocks):
        t[f"{blocks} blocks"] = _with_blocks(made, calls(one), blocks)
    shown = ", ".join(f"{k}: {v * 1e6:.0f} us" for k, v in t.items())
    return {
        "us": t["one kernel"] * 1e6,
        "gbs": moved / t["one kernel"] / 1e9,
        "of_copy": moved / t["one kernel"] / _copied(2**29),
        "eager": t["eager"] / t["one kernel"],
        "host_us": host * 1e6,
        "facts": f"{shown}; {made.tasks.facts}",
    }


def _with_blocks(made: CudaProgram, calls: list[Callable[[], object]], blocks: int) -> float:
    """Seconds of a call with so many blocks a multiprocessor."""
    assert made.tasks is not None
    made.tasks.blocks = made.tasks.resident // made.tasks.facts.blocks * blocks
    made.trim()
    try:
        return medians({"": calls}, 20)[""]
    finally:
        made.tasks.blocks = made.tasks.resident
        made.trim()


def by_kernel(s: Size, dtype: torch.dtype) -> Found:
    """The kernels of a step one by one: as launches of a CUDA graph, and as phases in turn."""
    net, inputs = example(s, dtype, "cuda")
    one = tw.compile(net, one_kernel=True)
    with torch.no_grad():
        got, want = (one(*inputs), one(*inputs))[1], net(*inputs)
        off = max(
            float((x - y).abs().max() / y.abs().max()) for x, y in zip(got, want, strict=True)
        )
        assert off < 0.05, f"results differ by {off:.2f} of the largest"
    (made,) = one.units[0].programs
    assert isinstance(made, CudaProgram) and made.tasks is not None, made.not_one_kernel
    names = {k.symbol: k.name for k in made.kernels}
    found = list(rows(made, names))
    t = whole(made)
    total = {
        "one kernel": t["one kernel"],
        "graph": t["graph"],
        "launched": sum(r.count * r.launch for r in found),
        "in turn": sum(r.count * r.phase for r in found),
        "floor": sum(r.count * r.moved for r in found) / _copied(2**29),
    }
    shown = ", ".join(f"{k} {v * 1e6:.0f} us" for k, v in total.items())
    found.sort(key=lambda r: -r.count * r.launch)
    phases = len(replay_of(made).launches)
    lines = "".join(f"\n  {r}" for r in found)
    shown += f"; {made.tasks.facts}, {phases} phases"
    return {"us": t["one kernel"] * 1e6, "error": off, "facts": f"{shown}{lines}"}


def decode_checks() -> Iterator[tuple[str, Callable[[], Found]]]:
    for columns, depth in VECTORS:
        yield f"one row {depth}x{columns} bf16", lambda c=columns, d=depth: one_row(c, d)
    for tiny, d in ((True, torch.float32), (True, torch.bfloat16), (False, torch.bfloat16)):
        size, short = "tiny" if tiny else "model", SHORT[d]
        title = f"{size} llama_decode1 {short} as one kernel"
        yield title, lambda t=tiny, d=d: model("llama_decode1", t, d, False, one_kernel=True)
    yield "decode tiny f32", lambda: step(TINY, torch.float32, False)
    yield "decode tiny bf16", lambda: step(TINY, torch.bfloat16, False)
    yield "decode 1b bf16", lambda: step(FULL, torch.bfloat16, True)
    yield "decode by kernel 1b bf16", lambda: by_kernel(FULL, torch.bfloat16)
