"""Host calls between native programs, as one function that is written for the graph."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

import tilewright as tw
from tests.driver.ordinary_table import halved
from tilewright.driver.torch.staged import only_differentiates


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


@torch.library.custom_op("tilewright_staged::tripled", mutates_args=())
def tripled(x: Tensor) -> Tensor:
    return x * 3


@tripled.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


tripled.register_autograd(lambda ctx, grad: grad * 3)


@torch.library.custom_op("tilewright_staged::add_one", mutates_args=("x",))
def add_one(x: Tensor) -> None:
    x.add_(1)


@pytest.mark.parametrize("gradients", [False, True])
def test_custom_operators_without_gradients_do_not_pass_autograd(gradients: bool) -> None:
    def f(x: Tensor) -> Tensor:
        return tripled(x + 1).relu()

    assert only_differentiates(torch.ops.tilewright_staged.tripled.default)
    assert not only_differentiates(torch.ops.aten.sin.default)
    fast, x = torch.compile(f, backend="tilewright"), torch.randn(5)
    with torch.set_grad_enabled(gradients):
        torch.testing.assert_close(fast(x), f(x))
    y, z = (x.clone().requires_grad_() for _ in range(2))
    fast(y).sum().backward()
    f(z).sum().backward()
    torch.testing.assert_close(y.grad, z.grad)
    with torch.no_grad():
        torch.testing.assert_close(fast(y), f(y))


def test_custom_operators_that_change_an_argument_are_counted() -> None:
    def f(x: Tensor) -> Tensor:
        add_one(x)
        return x * 2

    fast, x = torch.compile(f, backend="tilewright"), torch.zeros(4)
    with torch.no_grad():
        fast(x)
        before = x._version
        torch.testing.assert_close(fast(x), torch.full((4,), 4.0))
    assert x._version > before and x.tolist() == [2.0] * 4


def test_what_autograd_does_otherwise_stays() -> None:
    @torch.library.custom_op("tilewright_staged::scaled", mutates_args=())
    def scaled(x: Tensor) -> Tensor:
        return x * 5

    scaled.register_fake(torch.empty_like)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that a kernel is replaced
        library = torch.library.Library("tilewright_staged", "FRAGMENT")
        library.impl("scaled", lambda x: x * 7, "AutogradCPU")
    assert not only_differentiates(torch.ops.tilewright_staged.scaled.default)
    x = torch.randn(3)
    with torch.no_grad():
        fast = torch.compile(lambda x: scaled(x) + 1, backend="tilewright")
        torch.testing.assert_close(fast(x), x * 7 + 1)
