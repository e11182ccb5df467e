"""Host calls between native programs, as one function that is written for the graph."""

from __future__ import annotations

import torch
from torch import Tensor

import tilewright as tw
from tests.driver.ordinary_table import halved


def _between(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = halved((x @ w).t())  # a view, which is no contiguous tensor
    z = halved(y + 1)
    return z.t() * x.shape[0], y


def test_views_and_sizes_cross_host_calls() -> None:
    w = torch.randn(5, 5)
    fast = tw.compile(_between, dynamic=True)
    for rows in (3, 7, 3):
        x = torch.randn(rows, 5)
        for got, right in zip(fast(x, w), _between(x, w), strict=True):
            torch.testing.assert_close(got, right)
            assert got.stride() == right.stride()
    assert all(u._staged is not None for u in fast.units)


def test_an_error_of_a_host_call_leaves_the_next_call_right() -> None:
    def f(x: Tensor, a: Tensor) -> Tensor:
        return torch.linalg.solve(a * 2, x + 1).relu()

    fast, x, a = tw.compile(f), torch.ones(8, 8), torch.eye(8)
    fast(x, a)
    try:
        fast(x, torch.zeros(8, 8))
    except torch.linalg.LinAlgError:
        pass
    else:
        raise AssertionError("a singular matrix was not refused")
    torch.testing.assert_close(fast(x, a), f(x, a))


def test_a_long_cumulative_sum_is_as_good_as_eager() -> None:
    x = torch.rand(16, 5000)
    got, exact = tw.compile(lambda x: x.cumsum(1), x)(x), x.double().cumsum(1)
    own = (x.cumsum(1).double() - exact).abs().max()
    ulp = torch.finfo(torch.float32).eps * 2048  # of the largest value
    assert (got.double() - exact).abs().max() <= 2 * own + 4 * ulp


def test_rows_are_added_where_an_index_says() -> None:
    def f(x: Tensor, i: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        wide = i[:, None].expand_as(x)
        return out.index_add(0, i, x), out.scatter_reduce(0, wide, x, "amax")

    given = torch.randn(40, 19), torch.randint(0, 7, (40,)), torch.randn(7, 19)
    for got, right in zip(tw.compile(f)(*given), f(*given), strict=True):
        torch.testing.assert_close(got, right)
