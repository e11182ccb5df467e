"""Graphs that go past AOTAutograd: which do, and that they compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn

import tilewright as tw
from tilewright.base import knobs
from tilewright.driver.torch.backend import Session

Function = Callable[[torch.Tensor], Any]


def changed_inside(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    y.mul_(2)
    y[0] = 3.0
    return y


def changed_argument(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


def filled(x: torch.Tensor) -> torch.Tensor:
    return torch.add(x, 1, out=torch.empty_like(x))


def two_views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 2
    return y, y.t(), y[1:], y.view(-1)


def mixed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = F.softmax(F.gelu(x) @ x.t(), -1)
    return y.sum(0), torch.where(y > 0.2, y, y.new_zeros(()))


def residual(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    z = y.sum()
    y += x
    y *= 2
    return F.relu(y, inplace=True).view(-1) + z


def seen_by_a_view(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    z = y[1]
    y += x
    return y + z


def seen_by_a_part(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    parts = y.chunk(3)
    y -= 1
    return y * parts[2]


def of_a_part(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    z = y[1:]
    z += 1
    return y


def of_another_dtype(x: torch.Tensor) -> torch.Tensor:
    y = x.half()
    y += x
    return y


def read_after(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    z = y
    z += 1
    return y * x


def twice(x: torch.Tensor) -> list[torch.Tensor]:
    y = x.exp()
    return [y, y]


PLAIN: dict[str, Function] = {
    "mixed": mixed,
    "a sum in place": residual,
    "a logical and": lambda x: torch.where((x > 0) & (x < 1), x + 0.5, 0.0),
    "views of one result": two_views,
    "one result twice": twice,
    "no operand": lambda x: x.new_ones(3, 2),
    "random": lambda x: torch.rand_like(x) + x,
    "a number": lambda x: (x + 1, x.shape[0]),
}
OTHERS: dict[str, Function] = {
    "changed inside": changed_inside,
    "changed argument": changed_argument,
    "filled": filled,
    "view of the argument": lambda x: x.t(),
    "part of the argument": lambda x: (x[1:], x + 1),
    "of the argument's memory": lambda x: F.relu(x.view(-1), inplace=True) + 1,
    "seen by a view": seen_by_a_view,
    "seen by a part": seen_by_a_part,
    "of a part": of_a_part,
    "another name": read_after,
    "of another dtype": of_another_dtype,
}


@pytest.mark.parametrize("name", [*PLAIN, *OTHERS])
def test_which_are_plain(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f, called = {**PLAIN, **OTHERS}[name], []
    by_aot = Session._by_aot

    def watched(*args: Any) -> Any:
        called.append(True)
        return by_aot(*args)

    monkeypatch.setattr(Session, "_by_aot", watched)
    x = torch.randn(3, 3)

    def run() -> tuple[Any, torch.Tensor]:
        torch._dynamo.reset()
        torch.manual_seed(1)
        own = x.clone()
        return tw.compile(f)(own), own

    got, mine = run()
    assert bool(called) == (name in OTHERS)
    with knobs.plain_capture.override(False):
        want, theirs = run()
    torch.testing.assert_close((got, mine), (want, theirs), rtol=0, atol=0)
    own, other = _tensors(got), _tensors(want)
    for a, b in zip(own, other, strict=True):
        assert a.stride() == b.stride() and a.storage_offset() == b.storage_offset()
    assert _sharing(own) == _sharing(other), "results share memory where they did"


def test_gradients_are_not_plain() -> None:
    net = nn.Linear(4, 4)
    fast = tw.compile(net)
    x = torch.randn(2, 4)
    fast(x).sum().backward()
    mine = [p.grad for p in net.parameters()]
    net.zero_grad()
    net(x).sum().backward()
    torch.testing.assert_close(mine, [p.grad for p in net.parameters()])


def test_gradients_that_are_computed_inside() -> None:
    net = nn.Linear(4, 4)

    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return net(x).square().sum()

    fast, x = tw.compile(f), torch.randn(2, 4)
    with torch.no_grad():
        mine = torch.autograd.grad(fast(x), net.weight)
        right = torch.autograd.grad(f(x), net.weight)
    torch.testing.assert_close(mine, right)


def test_weights_are_weights() -> None:
    """Values that are derived from parameters are derived once."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(32, 4))
    with torch.no_grad():
        fast = tw.compile(net.eval(), strict=True)
        x = torch.randn(1, 3, 4, 4)
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)
        (unit,) = fast.units
        assert sum(a.weight for a in unit.captured.arguments) >= 6
        assert unit.programs[0].weights


def test_autocast_is_left_to_aot() -> None:
    net, x = nn.Linear(4, 4).eval(), torch.randn(2, 4)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        got, want = tw.compile(net)(x), net(x)
    assert got.dtype is want.dtype is torch.bfloat16


def _tensors(x: Any) -> list[torch.Tensor]:
    return [x] if isinstance(x, torch.Tensor) else [y for y in x if isinstance(y, torch.Tensor)]


def _sharing(tensors: list[torch.Tensor]) -> list[list[bool]]:
    places = [x.untyped_storage().data_ptr() for x in tensors]
    return [[a == b for a in places] for b in places]
