"""How drivers compare: with a reference of ours in float64, and gradients by torch's autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensors = Sequence[torch.Tensor]

# What a result of this type may be off by: relative, and absolute for values around one.
TOLERANCE = {
    torch.float64: (1e-6, 1e-6),
    torch.float32: (1e-4, 1e-4),
    torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (4e-2, 4e-2),
}


def close(got: torch.Tensor, wanted: torch.Tensor, factor: float = 1.0) -> None:
    """A result is the reference, but for the rounding of its type."""
    assert got.shape == wanted.shape, f"{tuple(got.shape)} for {tuple(wanted.shape)}"
    if not got.dtype.is_floating_point:
        assert torch.equal(got, wanted.to(got.dtype)), "integers differ"
        return
    rtol, atol = TOLERANCE.get(got.dtype, (0.15, 0.15))  # the rest are floats of 8 bits
    torch.testing.assert_close(
        got.detach().double(),
        wanted.detach().double(),
        rtol=factor * rtol,
        atol=factor * atol,
        equal_nan=True,
    )


def same(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Every element is equal: what is only moved or counted."""
    assert got.shape == wanted.shape, f"{tuple(got.shape)} for {tuple(wanted.shape)}"
    assert torch.equal(got, wanted.to(got.dtype)), f"{(got != wanted).sum()} elements differ"


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def compare_gradients(
    ours: Callable[..., Any], reference: Callable[..., Any], inputs: Tensors, factor: float = 1.0
) -> None:
    """Results of two functions and their gradients to all inputs; the reference is in float64."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    wide = [x.detach().double().requires_grad_() for x in inputs]
    # A function may write into what it is given, so leaves are copied on the way.
    got, wanted = ours(*(x.clone() for x in leaves)), reference(*wide)
    close(got, wanted, factor)
    slope = randn(*got.shape, seed=7)
    got.backward(slope.to(got.dtype).clone())  # some write their gradient over it
    wanted.backward(slope.double())
    for a, b in zip(leaves, wide, strict=True):
        assert a.grad is not None and b.grad is not None
        close(a.grad, b.grad, factor)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float | None = None,
    causal: bool = False,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Softmax attention over (…, length, width) in float64; the last query sees the last key."""
    q, k, v = q.double(), k.double(), v.double()
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias.double()
    if causal:
        rows, columns = scores.shape[-2:]
        seen = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)
        scores = scores.masked_fill(~seen, -torch.inf)
    return torch.softmax(scores, -1) @ v


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, pairs: bool) -> torch.Tensor:
    """Rotary embedding of (…, width): neighbours are pairs, or elements half the width apart."""
    x, cos, sin = x.double(), cos.double(), sin.double()
    if pairs:
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.double()


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """Rows times the matrix of 1 and -1, of which all rows are at right angles."""
    h = torch.ones(1, 1, dtype=torch.float64)
    while h.shape[0] < x.shape[-1]:
        h = torch.cat((torch.cat((h, h), 1), torch.cat((h, -h), 1)), 0)
    return x.double() @ h / x.shape[-1] ** 0.5
