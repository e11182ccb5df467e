"""Covariances and correlations stay in the graph, with torch's numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import tilewright as tw
from tilewright.capture.torch.statistics import correlation, covariance

INPUTS = {
    "rows": lambda: torch.randn(4, 9),
    "one row": lambda: torch.randn(9),
    "too few columns": lambda: torch.randn(3, 1),
    "one number": lambda: torch.randn(()),
    "complex": lambda: torch.randn(3, 4, dtype=torch.complex64),
    "whole numbers": lambda: torch.randint(0, 9, (3, 5)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", INPUTS)
def test_what_stands_for_them(name: str) -> None:
    x = INPUTS[name]()
    torch.testing.assert_close(covariance(x), torch.cov(x), equal_nan=True)
    torch.testing.assert_close(correlation(x), torch.corrcoef(x), equal_nan=True)
    few = covariance(x, correction=0)
    torch.testing.assert_close(few, torch.cov(x, correction=0), equal_nan=True)


def test_they_stay_in_the_graph() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cov(x, correction=0).relu(), torch.corrcoef(x) * 2

    torch._dynamo.reset()
    fast = torch.compile(f, backend="tilewright")
    x = torch.randn(4, 9)
    for got, right in zip(fast(x), f(x), strict=True):
        torch.testing.assert_close(got, right)
    assert not tw.explain(fast).graph_breaks


def test_weights_are_left_to_torch() -> None:
    x, often = torch.randn(4, 9), torch.randint(1, 4, (9,))
    f = lambda x: torch.cov(x, fweights=often) + 1  # noqa: E731
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(f, backend="tilewright")(x), f(x))


def test_a_divergence_of_kinds_that_nobody_asked_for_before() -> None:
    """Torch looks in a table then, in a way that Dynamo does not follow."""
    from torch.distributions import Beta, Normal, kl

    class Shifted(Normal): ...

    kinds = (Shifted, Normal), (Beta, Beta)
    for pair in kinds:
        kl._KL_MEMOIZE.pop(pair, None)

    def f(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        first = kl.kl_divergence(Shifted(a, b), Normal(b, 1.0))
        return first, kl.kl_divergence(p=Beta(b, b + 1), q=Beta(b + 2, b))

    torch._dynamo.reset()
    a, b = torch.randn(9), torch.rand(9) + 0.5
    found = torch.compile(f, backend="tilewright", fullgraph=True)(a, b)
    for got, right in zip(found, f(a, b), strict=True):
        torch.testing.assert_close(got, right)


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e6])
def test_variances_of_large_numbers_that_lie_close_together(offset: float) -> None:
    """Of rows, columns, images, windows and all elements; with their mean, from the same sums."""

    def f(x: Tensor) -> list[Tensor]:
        every = x.var(-1), x.var(1), x.std(), x[0].unfold(0, 9, 2).std(-1)
        return [*every, *torch.var_mean(x, 1, keepdim=True), *torch.std_mean(x, (0, 2))]

    x = torch.randn(3, 40, 70, generator=torch.Generator().manual_seed(0)) + offset
    torch._dynamo.reset()
    found = torch.compile(f, backend="tilewright", options={"strict": True})(x)
    for got, exact in zip(found, f(x.double()), strict=True):
        torch.testing.assert_close(got.double(), exact, rtol=4e-6, atol=4e-6 if offset else 1e-7)


def test_variances_of_infinities_and_of_one() -> None:
    f = lambda x: (x.var(1), x.std(1, correction=0))  # noqa: E731
    x = torch.tensor([[1.0, torch.inf, 2], [torch.nan, 1, 2], [-torch.inf, torch.inf, 0]])
    torch._dynamo.reset()
    fast = torch.compile(f, backend="tilewright")
    for y in (x, x[:, :1], torch.ones(3, 4)):
        for got, right in zip(fast(y), f(y), strict=True):
            torch.testing.assert_close(got, right, equal_nan=True)
