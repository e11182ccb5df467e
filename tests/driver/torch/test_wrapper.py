"""Calls that AOTAutograd's wrapper has nothing to do for: arguments changed in place, results that
are arguments or views of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tilewright.driver.torch.call import Unit

Function = Callable[..., Any]


class Spread:
    """Counts graphs that are called without AOTAutograd's wrapper."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        made = Unit.spread

        def spread(unit: Unit) -> Callable[..., list[Any]]:
            self.count += 1
            return made(unit)

        monkeypatch.setattr(Unit, "spread", spread)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spread]:
    torch._dynamo.reset()
    yield Spread(monkeypatch)


def _seen(results: Any, arguments: tuple[Tensor, ...], before: list[int]) -> list[Any]:
    """What a caller sees of a call: values, layouts, who shares memory with whom, versions."""
    starts = [x.untyped_storage().data_ptr() for x in arguments]
    seen: list[Any] = []
    for x in results if isinstance(results, tuple) else (results,):
        start = x.untyped_storage().data_ptr()
        shared = starts.index(start) if start in starts else None
        same = [k for k, y in enumerate(arguments) if y is x]
        place = x.storage_offset() if shared is not None else 0
        seen.append((x.tolist(), x.stride(), place, shared, same, x.requires_grad))
    changed = [x._version > old for x, old in zip(arguments, before, strict=True)]
    return [seen, [x.tolist() for x in arguments], changed]


def _agree(function: Function, *arguments: Tensor, calls: int = 3) -> None:
    ours = torch.compile(function, backend="tilewright")
    mine = tuple(x.detach().clone().requires_grad_(x.requires_grad) for x in arguments)
    theirs = tuple(x.detach().clone().requires_grad_(x.requires_grad) for x in arguments)
    for _ in range(calls):
        found = _seen(ours(*mine), mine, [x._version for x in mine])
        assert _seen(function(*theirs), theirs, [x._version for x in theirs]) == found


def _average(shadow: Tensor, x: Tensor) -> Tensor:
    return shadow.mul_(0.5).add_(x, alpha=0.5)


def _both(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    x.add_(1)
    y.mul_(x)
    return y, x * y, x


def _views(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x.t(), y, x[0], x.unfold(1, 2, 1), y[:, None].expand(4, 3, 6), x - y


@pytest.mark.parametrize("function", [_average, _both, _views])
@torch.no_grad()
def test_as_eager_without_the_wrapper(bare: Spread, function: Function) -> None:
    _agree(function, torch.randn(4, 6), torch.randn(4, 6))
    assert bare.count == 1


@torch.no_grad()
def test_random_changes_and_views(bare: Spread) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(6):
        shape = draw.randrange(1, 6), draw.randrange(2, 7)
        steps = [draw.randrange(5) for _ in range(draw.randrange(1, 5))]
        last = draw.randrange(5)

        def f(x: Tensor, y: Tensor, steps: list[int] = steps, last: int = last) -> Any:
            for s in steps:
                if s == 0:
                    x.mul_(0.5)
                elif s == 1:
                    y.add_(x)
                elif s == 2:
                    x[:, 1:].sub_(1)
                elif s == 3:
                    y.copy_(x.flip(1))
                else:
                    x = x.clone()
            return [x, y[:, 1:], (x, y), (x.t(), x + y), (y, y[0], x.relu())][last]

        _agree(f, torch.randint(-8, 9, shape).float(), torch.randint(-8, 9, shape).float())


def test_with_gradients_switched_on(bare: Spread) -> None:
    """Arguments that have none need nothing of the wrapper; views of one that has do."""

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.add_(1), y[1:]

    _agree(f, torch.randn(3, 2), torch.randn(3, 2))
    assert bare.count == 1

    def detached(w: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad():
            x.add_(w)
            return x[1:]

    _agree(detached, torch.randn(3, 2, requires_grad=True), torch.randn(3, 2))
    assert bare.count == 1


@torch.inference_mode()
def test_in_inference_mode() -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    mine = x.clone()
    assert torch.compile(_average, backend="tilewright")(mine, y) is mine
    torch.testing.assert_close(mine, (x + y) / 2)


def test_a_change_is_seen_by_a_gradient_that_needs_the_old_values(bare: Spread) -> None:
    x, w = torch.randn(3), torch.randn(3, requires_grad=True)
    total = (x * w).sum()
    with torch.no_grad():
        torch.compile(_average, backend="tilewright")(x, torch.ones(3))
    assert bare.count == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


@torch.no_grad()
def test_two_views_of_one_tensor(bare: Spread) -> None:
    """Arguments that lie on top of each other are the wrapper's concern."""

    def f(x: Tensor, y: Tensor) -> Tensor:
        x.add_(y * 0.5)
        return x + y

    ours = torch.compile(f, backend="tilewright")
    a, b = torch.arange(7.0), torch.arange(7.0)
    for _ in range(2):
        assert ours(a[:5], a[2:]).equal(f(b[:5], b[2:])) and a.equal(b)
    assert bare.count == 0


@torch.no_grad()
def test_a_parameter_that_is_changed() -> None:
    class Shadow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4))
            self.register_buffer("steps", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.get_buffer("steps").add_(1)
            return self.weight.mul_(0.5).add_(x)

    mine, theirs = Shadow(), Shadow()
    ours = torch.compile(mine, backend="tilewright")
    for _ in range(3):
        x = torch.randn(4)
        assert ours(x) is mine.weight
        theirs(x)
    assert mine.weight.equal(theirs.weight) and mine.get_buffer("steps").item() == 3
