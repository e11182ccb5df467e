"""Layer normalisation, forward and backward, as a function that torch can differentiate.

Forward a row is one tile: read once, its mean and variance taken where it lies, written once. The
variance is the mean of squared differences, not a difference of means of squares, which would lose
all digits of a row that is far from zero.

Backward there are two different sums. With n columns, xhat = (x - mean) / deviation and g = dy * w,

    dx = (g - mean(g) - xhat * mean(g * xhat)) / deviation          within a row
    dw = sum of dy * xhat,   db = sum of dy                         over all rows

The second kind crosses programs. Locks or atomics would make the result depend on who comes first;
here a program takes a group of rows, keeps the sums of its group in two tiles and writes them to a
line of its own. A second kernel adds the lines. The same bits come out on any number of threads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

import tilewright as tw
import tilewright.language as tl
from examples.tiles.measuring import Case, Verdict, curve, judge, moved

GROUP = 64  # rows whose sums one program keeps: few lines to add, enough programs for all threads
COLUMNS = 128  # of the partial sums that one program adds


@tw.jit
def forward_kernel(x, w, b, out, mean, rstd, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < n
    values = tl.load(x + row * n + at, mask=inside, other=0.0).to(tl.float32)
    middle = tl.sum(values, axis=0) / n
    off = tl.where(inside, values - middle, 0.0)
    scale = 1 / tl.sqrt(tl.sum(off * off, axis=0) / n + eps)
    weights = tl.load(w + at, mask=inside)
    shifts = tl.load(b + at, mask=inside)
    tl.store(out + row * n + at, off * scale * weights + shifts, mask=inside)
    tl.store(mean + row, middle)
    tl.store(rstd + row, scale)


@tw.jit
def backward_kernel(
    dy, x, w, mean, rstd, dx, dw, db, rows, n, GROUP: tl.constexpr, BLOCK: tl.constexpr
):
    group = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < n
    weights = tl.load(w + at, mask=inside, other=0.0).to(tl.float32)
    dw_sums = tl.zeros((BLOCK,), tl.float32)
    db_sums = tl.zeros((BLOCK,), tl.float32)
    for row in range(group * GROUP, tl.minimum(group * GROUP + GROUP, rows)):
        given = tl.load(dy + row * n + at, mask=inside, other=0.0).to(tl.float32)
        values = tl.load(x + row * n + at, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(rstd + row)
        # Out of the row `given` is 0, and with it every sum that this takes part in.
        normal = (values - tl.load(mean + row)) * scale
        grown = given * weights
        along = tl.sum(grown * normal, axis=0) / n
        level = tl.sum(grown, axis=0) / n
        tl.store(dx + row * n + at, (grown - level - normal * along) * scale, mask=inside)
        dw_sums += given * normal
        db_sums += given
    tl.store(dw + group * n + at, dw_sums, mask=inside)
    tl.store(db + group * n + at, db_sums, mask=inside)


@tw.jit
def add_lines_kernel(dw_lines, db_lines, dw, db, lines, n, COLUMNS: tl.constexpr):
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = at < n
    dw_sum = tl.zeros((COLUMNS,), tl.float32)
    db_sum = tl.zeros((COLUMNS,), tl.float32)
    for line in range(lines):
        dw_sum += tl.load(dw_lines + line * n + at, mask=inside, other=0.0)
        db_sum += tl.load(db_lines + line * n + at, mask=inside, other=0.0)
    tl.store(dw + at, dw_sum, mask=inside)
    tl.store(db + at, db_sum, mask=inside)


def forward(
    x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The result, and what the way back needs of it: a mean and a scale per row."""
    rows, n = x.shape
    out = torch.empty_like(x)
    mean, rstd = torch.empty(rows), torch.empty(rows)
    block = tw.next_power_of_2(n)
    forward_kernel[(rows,)](x, w, b, out, mean, rstd, n, eps, BLOCK=block)
    return out, mean, rstd


def backward(
    dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, n = x.shape
    groups = tw.cdiv(rows, GROUP)
    dx = torch.empty_like(x)
    dw_lines, db_lines = torch.empty(groups, n), torch.empty(groups, n)
    dw, db = torch.empty_like(w), torch.empty_like(w)
    backward_kernel[(groups,)](
        dy,
        x,
        w,
        mean,
        rstd,
        dx,
        dw_lines,
        db_lines,
        rows,
        n,
        GROUP=GROUP,
        BLOCK=tw.next_power_of_2(n),
    )
    add_lines_kernel[(tw.cdiv(n, COLUMNS),)](dw_lines, db_lines, dw, db, groups, n, COLUMNS=COLUMNS)
    return dx, dw, db


class LayerNorm(torch.autograd.Function):
    """`LayerNorm.apply(x, weight, bias, eps)` over the last axis."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, eps: float):
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        out, mean, rstd = forward(rows, w, b, eps)
        ctx.save_for_backward(rows, w, mean, rstd)
        return out.view(x.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, w, mean, rstd = ctx.saved_tensors
        (dy,) = grads
        dx, dw, db = backward(dy.reshape(x.shape).contiguous(), x, w, mean, rstd)
        return dx.view(dy.shape), dw, db, None


def layer_norm(
    x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, eps: float = 1e-5
) -> torch.Tensor:
    return LayerNorm.apply(x, w, b, eps)  # type: ignore[return-value]


def reference(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b, 1e-5)


def check(quick: bool) -> list[Verdict]:
    found = []
    for shape in ((2, 67, 200), (300, 256)):
        n = shape[-1]
        x = 2 * torch.randn(shape) + 3
        w, b, dy = torch.rand(n) + 0.5, torch.randn(n), torch.randn(shape)
        results = []
        for f, dtype in (
            (layer_norm, torch.float32),
            (reference, torch.float32),
            (reference, torch.float64),
        ):
            given = tuple(t.to(dtype).clone().requires_grad_() for t in (x, w, b))
            out = f(given[0], given[1], given[2])
            results.append((out, *torch.autograd.grad(out, given, dy.to(dtype))))
        for what, *three in zip(("out", "dx", "dw", "db"), *results, strict=True):
            ours, peer, exact = (t.detach() for t in three)
            found.append(judge(f"layernorm {'x'.join(map(str, shape))}: {what}", ours, peer, exact))
    return found


def inputs(rows: int, n: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(rows, n), torch.rand(n) + 0.5, torch.randn(n), torch.randn(rows, n)


def forward_case(n: int, rows: int = 4096) -> Case:
    x, w, b, _ = inputs(rows, n)
    return moved(
        f"layernorm {rows}x{n}",
        lambda: forward(x, w, b, 1e-5),
        lambda: torch.native_layer_norm(x, [n], w, b, 1e-5),
        x,
        x,
    )


def backward_case(n: int, rows: int = 4096) -> Case:
    x, w, b, dy = inputs(rows, n)
    _, mean, rstd = forward(x, w, b, 1e-5)
    peer_mean, peer_rstd = (t.view(rows, 1) for t in (mean, rstd))
    return moved(
        f"layernorm backward {rows}x{n}",
        lambda: backward(dy, x, w, mean, rstd),
        lambda: torch.ops.aten.native_layer_norm_backward(
            dy, x, [n], peer_mean, peer_rstd, w, b, [True, True, True]
        ),
        dy,
        x,
        x,
    )


def cases(quick: bool) -> list[Case]:
    if quick:
        return [forward_case(128, 192), backward_case(128, 192)]
    return [forward_case(1024).ought(1.1), backward_case(1024).ought(1.0)]


def plot(quick: bool, rounds: int) -> tw.testing.Mark:
    sizes = (64, 100) if quick else (256, 512, 781, 1024, 2048, 4096)
    rows = 64 if quick else 4096
    label = f"columns ({rows} rows), forward and backward"

    def both(n: int) -> Case:
        there, back = forward_case(n, rows), backward_case(n, rows)
        return Case(
            "layernorm",
            lambda: (there.ours(), back.ours()),
            lambda: (there.peer(), back.peer()),
            there.work + back.work,
            there.unit,
        )

    return curve("layernorm", "columns", sizes, label, both, rounds)
