"""Special functions at the ends of their ranges, and where one way to compute them ends."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

INTERPRETED: Any = {"strict": True, "executor": "interpreter"}


def test_agree_with_double_precision() -> None:
    def f(a: Tensor, x: Tensor, s: Tensor, q: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        special = torch.special
        return (
            special.gammainc(a, x),
            special.gammaincc(a, x),
            special.zeta(s, q),
            special.hermite_polynomial_h(q, n),
            special.laguerre_polynomial_l(q, n),
            special.legendre_polynomial_p(q, n),
        )

    inf, edges = math.inf, torch.tensor([0.001, 0.5, 1.0, 8.0, 31.9, 32.0, 60.0, 1e4])
    a = torch.cat([edges.repeat_interleave(3), torch.tensor([0.0, 0.0, 1.0, inf, 2.0, inf, -1.0])])
    near = torch.tensor([0.7, 1.0, 1.3]).repeat(len(edges))
    x = torch.cat([a[: len(near)] * near, torch.tensor([0.0, 1.0, 0.0, 2.0, inf, inf, 1.0])])
    s = torch.tensor([1.0, 0.5, 2.0, 3.0, 2.0, 3.0, 4.0, 2.5, 2.0, 1.5, 6.0])
    q = torch.tensor([1.0, 1.0, -3.0, -3.5, -3.5, -0.5, -10.2, -1.5, 0.0, 0.01, 1e3])
    n = torch.tensor([0.0, 1.0, 2.0, -1.0, 5.0, 3.0, 4.0, 7.0, 9.0, 2.0, 1.0])
    torch._dynamo.reset()
    found = torch.compile(f, backend="tilewright", options=INTERPRETED)(a, x, s, q, n)
    for want, ours in zip(f(*(v.double() for v in (a, x, s, q, n))), found, strict=True):
        torch.testing.assert_close(ours, want.float(), rtol=2e-6, atol=1e-30, equal_nan=True)


def test_exponential_of_matrices() -> None:
    """Each is squared as often as it needs; one of them not at all."""
    a = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0))
    a = a * torch.tensor([0.1, 1.0, 4.0]).reshape(3, 1, 1)
    torch._dynamo.reset()
    fast = torch.compile(torch.matrix_exp, backend="tilewright", options=INTERPRETED)
    want = torch.matrix_exp(a.double())
    size = want.abs().amax((1, 2), keepdim=True)
    torch.testing.assert_close(fast(a).double() / size, want / size, rtol=0, atol=2e-6)
