"""Results that are parts of one value: they share its memory, as in eager."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.capture.running import session
from tilewright.ir.slots import Restrided, View


def _shared(results: tuple[Tensor, ...]) -> list[tuple[Any, ...]]:
    """Where results lie, and the first of them in the same storage."""
    starts = [x.untyped_storage().data_ptr() for x in results]
    return [
        (starts.index(s), x.storage_offset(), x.stride(), x.shape)
        for s, x in zip(starts, results, strict=True)
    ]


def _same(function: Any, *args: Tensor) -> Any:
    """As in eager, and so are all results after one of them is changed."""
    torch._dynamo.reset()
    made = session()
    with torch.no_grad():
        ours = torch.compile(function, backend=made.backend)(*args)
        eager = function(*args)
        assert _shared(ours) == _shared(eager)
        for a, b in zip(ours, eager, strict=True):
            torch.testing.assert_close(a, b)
        ours[0].mul_(3)
        eager[0].mul_(3)
        for a, b in zip(ours, eager, strict=True):
            torch.testing.assert_close(a, b)
    (unit,) = made.units
    return unit.captured


def test_columns_of_one_value() -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        y = x.exp()
        return y[:, 0], y.mean(0), y[:, 1:], y.t()[2]

    captured = _same(f, torch.randn(20, 5))
    assert sum(isinstance(r, View) for r in captured.results) == 3
    (segment,) = captured.segments
    assert {b.shape for b in segment.buffers} == {(20, 5), (5,)}


def test_chunks_of_a_large_value_are_not_copied() -> None:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return (x @ w).relu().chunk(3, -1)

    captured = _same(f, torch.randn(64, 32), torch.randn(32, 192))
    assert [b.shape for b in captured.segments[0].buffers] == [(64, 192)]


def test_a_small_part_of_a_large_value_is_computed_alone() -> None:
    def f(x: Tensor) -> Tensor:
        return x.exp()[:, 3]

    x = torch.randn(100, 100)
    torch._dynamo.reset()
    made = session()
    with torch.no_grad():
        ours = torch.compile(f, backend=made.backend)(x)
    torch.testing.assert_close(ours, f(x))
    assert ours.stride() == f(x).stride()
    (result,) = made.units[0].captured.results
    assert isinstance(result, Restrided)


@pytest.mark.parametrize("least", [2, 40])
def test_random_parts(least: int) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(6):
        rows, columns = draw.randrange(least, 2 * least + 4), draw.randrange(3, 60)
        kinds = [draw.randrange(7) for _ in range(draw.randrange(1, 5))]
        first, step = draw.randrange(columns - 1), draw.randrange(1, 4)

        def f(x: Tensor, kinds: Any = kinds, first: int = first, step: int = step) -> Any:
            y = x.sin().t().contiguous().t() if step == 3 else x.sin()
            every = (
                y[:, first::step],
                y[first % x.shape[0]],
                y.t(),
                y[:, first],
                y[1:],
                y.view(torch.int32)[:, 1:],
                y.sum(1),
            )
            return tuple(every[k] for k in kinds)

        _several(f, torch.randn(rows, columns))


def _several(f: Any, x: Tensor) -> None:
    torch._dynamo.reset()
    with torch.no_grad():
        ours, eager = torch.compile(f, backend="tilewright")(x), f(x)
    for a, b in zip(ours, eager, strict=True):
        assert a.stride() == b.stride() and a.dtype is b.dtype
        torch.testing.assert_close(a.view(torch.float32), b.view(torch.float32))


def test_gradients_of_parts() -> None:
    def f(x: Tensor) -> Tensor:
        a, b, c = x.sin().chunk(3, 1)
        return (a * b.exp() + c).sum()

    x = torch.randn(4, 9, requires_grad=True)
    torch._dynamo.reset()
    (ours,) = torch.autograd.grad(torch.compile(f, backend="tilewright")(x), x)
    (eager,) = torch.autograd.grad(f(x), x)
    torch.testing.assert_close(ours, eager)
