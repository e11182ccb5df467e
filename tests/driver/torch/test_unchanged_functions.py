"""Calls of a function that is as it was, without Dynamo's code: what it reads is watched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tilewright as tw
from tests.seeds import every_run
from tilewright.driver.torch.api import Compiled
from tilewright.driver.torch.unchanged import counts_changes

SHIFT = 0.25

pytestmark = pytest.mark.skipif(not counts_changes(), reason="dictionaries count no changes here")


class Slotted:
    __slots__ = ("of_slot",)


class Settings(Slotted):
    """Some attributes are in a dictionary, and some are not."""

    def __init__(self) -> None:
        self.by, self.of_slot = 3.0, 0.5


class Sizes(tuple[int, ...]):
    factor: float


class Read:
    """What the function below reads, and the function."""

    def __init__(self) -> None:
        table, scale, settings, layer = (
            torch.randn(4),
            2.0,
            Settings(),
            nn.Linear(4, 4),
        )
        self.settings, self.layer = settings, layer
        self.sizes = sizes = Sizes((1, 2))
        sizes.factor = 1.0
        self.failed = failed = ValueError(0.5)

        def f(x: Tensor, power: float = 1.5) -> Tensor:
            shift = SHIFT * power + settings.of_slot * sizes.factor + failed.args[0]
            shift = shift * (2 if table.requires_grad else 3)
            return layer(x) * scale + table * settings.by + shift

        def change(**new: Any) -> None:
            nonlocal table, scale
            table, scale = new.get("table", table), new.get("scale", scale)

        self.f, self.change = f, change
        self.table: Callable[[], Tensor] = lambda: table

    def in_place(self, x: Tensor) -> None:
        x.mul_(3)

    def reshape(self) -> None:
        self.layer.weight.data = torch.randn(4, 4).t()


def _quick(fast: Compiled) -> bool:
    return bool(fast._quick)


CHANGES: dict[str, Callable[[Read, pytest.MonkeyPatch], None]] = {
    "a cell": lambda r, m: r.change(scale=-1.0),
    "a cell with a tensor": lambda r, m: r.change(table=torch.randn(4)),
    "a tensor in place": lambda r, m: r.in_place(r.table()),
    "a tensor of another form": lambda r, m: r.change(table=torch.randn(2, 4)),
    "an object": lambda r, m: setattr(r.settings, "by", 5.0),
    "a slot of an object": lambda r, m: setattr(r.settings, "of_slot", 5.0),
    "an attribute of a tuple": lambda r, m: setattr(r.sizes, "factor", 5.0),
    "what an error was given": lambda r, m: setattr(r.failed, "args", (5.0,)),
    "whether a tensor asks for a gradient": lambda r, m: setattr(r.table(), "requires_grad", True),
    "a global": lambda r, m: m.setitem(globals(), "SHIFT", -2.0),
    "a default": lambda r, m: m.setattr(r.f, "__defaults__", (7.0,)),
    "the code": lambda r, m: m.setattr(r.f, "__code__", _like(r.f)),
    "a weight": lambda r, m: setattr(r.layer, "weight", nn.Parameter(torch.randn(4, 4))),
    "a weight's memory": lambda r, m: r.reshape(),
    "a weight in place": lambda r, m: r.in_place(r.layer.bias),
}


def _like(f: Any) -> Any:
    return f.__code__.replace(co_consts=tuple(x for x in f.__code__.co_consts), co_firstlineno=1)


@every_run(0, 4, 5, 6, 8, 13)
@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    read, x = Read(), torch.randn(2, 4)
    fast = tw.compile(read.f)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(x), read.f(x))
        assert _quick(fast), "it is watched"
        CHANGES[name](read, monkeypatch)
        for _ in range(3):
            torch.testing.assert_close(fast(x), read.f(x))


def test_other_arguments() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return x * 2 + y

    fast, x = tw.compile(f), torch.randn(4)
    for y in (torch.randn(4), torch.randn(4), x, torch.randn(3, 4), torch.randn(4).double()):
        for _ in range(2):
            torch.testing.assert_close(fast(x, y), f(x, y))


def test_gradients_are_computed_where_they_are_wanted() -> None:
    def f(x: Tensor) -> Tensor:
        return (x * 3).tanh()

    fast, x = tw.compile(f), torch.randn(4)
    for _ in range(3):
        torch.testing.assert_close(fast(x), f(x))
    assert _quick(fast), "no tensor but the arguments: their need of gradients is looked at"
    y = torch.randn(4, requires_grad=True)
    for _ in range(3):
        (got,) = torch.autograd.grad(fast(y).sum(), y)
        (right,) = torch.autograd.grad(f(y).sum(), y)
        torch.testing.assert_close(got, right)
    with torch.no_grad():
        assert not fast(y).requires_grad
    table = torch.randn(4)
    own = tw.compile(lambda x: x * table)
    for wants in (False, True, False):
        table.requires_grad_(wants)
        assert own(x).requires_grad is wants


@every_run(0)
@pytest.mark.parametrize("name", ["grad", "factor"])
def test_what_a_tensor_refers_to(name: str) -> None:
    table: Any = torch.randn(4)
    setattr(table, name, torch.randn(4))

    def f(x: Tensor) -> Tensor:
        return x * table + getattr(table, name)

    fast, x = tw.compile(f), torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(3):
            for _ in range(3):
                torch.testing.assert_close(fast(x), f(x))
            setattr(table, name, torch.randn(4))


def test_host_calls_and_changed_arguments() -> None:
    def f(a: Tensor, b: Tensor) -> dict[str, Any]:
        b.add_(1)
        return {"x": torch.linalg.solve(a, b), "b": b}

    fast, a = tw.compile(f), torch.eye(3) * 2
    for _ in range(4):
        b = torch.randn(3, 2)
        c = b.clone()
        got, right = fast(a, b), f(a, c)
        torch.testing.assert_close(got, right)
        torch.testing.assert_close(b, c)
        assert got["b"] is b
