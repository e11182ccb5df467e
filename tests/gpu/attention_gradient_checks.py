"""Gradients of attention on a GPU: right, and timed beside torch's own kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.nn.attention import sdpa_kernel

from tests.gpu.attention_checks import BACKENDS, Case, Found, Variant
from tests.gpu.attention_checks import CASES as FORWARD
from tests.gpu.model_checks import judged
from tests.gpu.timing import medians
from tests.graph.build import arg
from tilewright import ops
from tilewright.driver.program import default_passes
from tilewright.driver.program.grid_run import GridProgram
from tilewright.graph import grid_key_blocks
from tilewright.graph.grid_key_blocks import GridKeyBlocks
from tilewright.ir.node import Graph, Node
from tilewright.ir.operator import outputs_of
from tilewright.ir.types import bf16, f32
from tilewright.kernel.defaults import grid_chains

CASES = (*FORWARD[:6], Case(16, 12, 128, 64))
# Are gradients of queries added up in any order?
ATOMIC = any(isinstance(p, GridKeyBlocks) and p.atomic for p in default_passes.GPU)


def _given(c: Case) -> tuple[Node, Node, Node]:
    q = (c.batch, c.heads, c.rows, c.width)
    k = (c.batch, c.shared or c.heads, c.keys or c.rows, c.width)
    q_, k_, v_ = (arg(x, *shape, dtype=bf16) for x, shape in zip("qkv", (q, k, k), strict=True))
    return q_, k_, v_


def forward(c: Case) -> Graph:
    given = _given(c)
    pair = ops.attention_forward(*given, causal=c.causal, scale=c.width**-0.5)
    return Graph("forward", given, outputs_of(pair))


def backward(c: Case) -> Graph:
    q, k, v = _given(c)
    grad, out = (arg(x, *q.shape, dtype=bf16) for x in ("grad", "out"))
    total = arg("total", *q.shape[:-1], dtype=f32)
    given = (grad, q, k, v, out, total)
    found = outputs_of(ops.attention_backward(*given, causal=c.causal, scale=c.width**-0.5))
    return Graph("backward", given, found)


Call = Callable[[], tuple[torch.Tensor, ...]]


def _eager(c: Case, x: list[torch.Tensor], grad: torch.Tensor) -> Call:
    """A call that computes the gradients of a forward pass that has been."""
    with torch.enable_grad():
        given = [t.detach().requires_grad_() for t in x]
        out = c(*given)

    def call() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(out, given, grad.to(out.dtype), retain_graph=True)

    return call


def gradients(c: Case) -> Found:
    """Right by float64 (float32 where that takes too much memory), then timed beside torch."""
    x = c.inputs()
    ahead, back = GridProgram(forward(c)), GridProgram(backward(c))
    out, total = ahead(*x)
    grad = torch.randn_like(out)
    given = (grad, *x, out, total)
    got = back(*given)
    large = c.batch * c.heads * c.rows * (c.keys or c.rows) > 2**28
    exact = _eager(c, [t.float() if large else t.double() for t in x], grad)()
    error = judged(
        [out, *got], [c(*(t.float() for t in x)), *exact], [c(*x), *_eager(c, x, grad)()]
    )
    same = [torch.equal(a, b) for a, b in zip(got, back(*given), strict=True)]
    assert all(same[1:]) and (same[0] or ATOMIC), "two runs differ"
    del exact
    contenders: dict[str, list[Callable[[], object]]] = {"ours": [lambda: back(*given)]}
    for name, backend in BACKENDS.items():
        try:
            with sdpa_kernel(backend):
                peer = _eager(c, x, grad)
                peer()
        except RuntimeError:  # which backends take which shapes is torch's own matter
            continue
        contenders[name] = [peer]
    contenders["forward"] = [lambda: ahead(*x)]
    t = medians(contenders, 12)
    best = min((s for name, s in t.items() if name in BACKENDS), default=t["ours"])
    beside = ", ".join(f"{name} {s * 1e6:.1f} us" for name, s in t.items())
    rate = 2.5 * c.work / t["ours"] * 1e-12
    return {
        "us": t["ours"] * 1e6,
        "eager": best / t["ours"],
        "error": error,
        "facts": f"{len(back.kernels)} kernels, {rate:.0f} TFLOP/s of five products; {beside}",
    }


def compiled(c: Case) -> Found:
    """Both passes by torch.compile, of heads that lie side by side."""

    def f(*x: torch.Tensor) -> torch.Tensor:
        return c(*(t.unflatten(-1, (c.heads, c.width)).transpose(1, 2) for t in x)).transpose(1, 2)

    fast = torch.compile(f, backend="tilewright", dynamic=False, options={"strict": True})
    x = [torch.randn(c.batch, c.rows, c.heads * c.width, device="cuda").bfloat16() for _ in "qkv"]
    results = []
    grad = torch.randn(c.batch, c.rows, c.heads, c.width, device="cuda").bfloat16()
    with torch.enable_grad():
        for g, kind in ((fast, torch.bfloat16), (f, torch.float64), (f, torch.bfloat16)):
            given = [t.to(kind, copy=True).requires_grad_() for t in x]
            out = g(*given)
            found = torch.autograd.grad(out, given, grad.to(kind))
            results.append([out.detach().contiguous(), *found])
    return {"error": judged(*results)}


VARIANTS = (Variant(), Variant(atomic=True))


def variant(c: Case, v: Variant) -> Found:
    """The gradients by another schedule: right, with the same bits every time unless they are
    added up in any order, and timed."""
    x = c.inputs()
    whole = [t.repeat_interleave(c.heads // t.shape[1], 1) for t in x]
    ahead = torch.ops.aten._scaled_dot_product_flash_attention(*whole, 0.0, c.causal)
    out, total = ahead[:2]
    grad = torch.randn_like(out)
    made, given = v.program(backward(c)), (grad, *x, out, total)
    got, want = made(*given), _eager(c, x, grad)()
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, atol=0.03, rtol=0.03)
    same = [torch.equal(a, b) for a, b in zip(got, made(*given), strict=True)]
    assert all(same[1:]) and (same[0] or v.atomic), "runs differ"
    calls: dict[str, list[Callable[[], object]]] = {"ours": [lambda: made(*given)]}
    with sdpa_kernel(BACKENDS["cudnn"]):
        peer = _eager(c, x, grad)
    calls["cudnn"] = [peer]
    t = medians(calls, 10)
    beside = ", ".join(f"{name} {s * 1e6:.1f} us" for name, s in t.items())
    return {"us": t["ours"] * 1e6, "eager": t["cudnn"] / t["ours"], "facts": beside}


def few_rows() -> Found:
    """Into how many parts keys are taken, and how many blocks of them are ahead."""
    c = Case(8, 32, 1, 128, keys=8192, shared=8)
    sets = [c.inputs() for _ in range(3)]
    given = _given(c)
    made = Graph("few", given, (ops.attention(*given, scale=c.width**-0.5),))
    want = c(*sets[0])
    calls: dict[str, list[Callable[[], object]]] = {}
    before = grid_key_blocks.RESIDENT, grid_chains.AHEAD
    try:
        for resident, ahead in ((2, 1), (4, 1), (8, 1), (2, 2), (1, 2), (2, 3)):
            grid_key_blocks.RESIDENT, grid_chains.AHEAD = resident, ahead
            f = GridProgram(made)
            torch.testing.assert_close(f(*sets[0])[0], want, atol=0.02, rtol=0.02)
            calls[f"{resident} blocks, {ahead} ahead"] = [lambda f=f, x=x: f(*x) for x in sets]
    finally:
        grid_key_blocks.RESIDENT, grid_chains.AHEAD = before
    times = medians(calls, 15)
    return {"facts": "; ".join(f"{name}: {s * 1e6:.1f} us" for name, s in times.items())}


def attention_gradient_checks() -> Iterator[tuple[str, Callable[[], Found]]]:
    for c in CASES:
        yield f"gradients of {c.title}", lambda c=c: gradients(c)
    for c in (Case(2, 4, 200, 64, causal=True), Case(2, 4, 256, 128, causal=True)):
        yield f"gradients by torch.compile of {c.title}", lambda c=c: compiled(c)
    for c in CASES[1:5]:
        # One kernel is for heads 128 wide.
        for v in (x for x in VARIANTS if not x.atomic or c.width > 64):
            yield f"variant {v} of gradients of {c.title}", lambda c=c, v=v: variant(c, v)
    yield "variants of attention with few rows", few_rows
