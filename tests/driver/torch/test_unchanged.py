"""Calls of a module that nobody changed: whatever guards would notice, the quick check notices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tilewright as tw
from tilewright.driver.torch import unchanged
from tilewright.driver.torch.api import Compiled
from tilewright.driver.torch.unchanged import counts_changes

# From Python 3.13 on dictionaries do not count their changes: then there is no quick check, and the
# guards look at everything in every call. test_without_counts tests that way everywhere.
counted = pytest.mark.skipif(not counts_changes(), reason="dictionaries count no changes here")


class Settings:
    """An object beside the module, and a list in it."""

    def __init__(self) -> None:
        self.scale, self.parts = 2.0, [1.0, 3.0]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.settings, self.names = Settings(), {"bias": 1.5}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x)) * self.settings.scale + self.settings.parts[1]
        return self.last(y) + self.names["bias"]


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    torch.manual_seed(0)
    with torch.no_grad():
        fast = tw.compile(Net().eval())
        for _ in range(3):
            fast(torch.ones(2, 4))
    return fast


def set_scale(net: Net) -> None:
    net.settings.scale = 3.0


def set_part(net: Net) -> None:
    net.settings.parts[1] = -1.0


def set_name(net: Net) -> None:
    net.names["bias"] = 0.5


def transpose(net: Net) -> None:
    net.first.weight.data = net.first.weight.data.t()


def replace_weight(net: Net) -> None:
    net.last.weight = nn.Parameter(torch.randn(4, 4), requires_grad=False)


def replace_part(net: Net) -> None:
    net.last = nn.Linear(4, 4)


def drop_bias(net: Net) -> None:
    net.last.register_parameter("bias", None)


def widen(net: Net) -> None:
    net.last.weight.data = net.last.weight.data.double()


CHANGES = (set_scale, set_part, set_name, transpose, replace_weight, replace_part, drop_bias, widen)


def quick(fast: Compiled, x: torch.Tensor) -> bool:
    seen: dict[str, Any] = {"function": fast.original, "args": (x,), "kwargs": {}}
    return any(fits(seen) for fits, _ in fast._quick.values())


@counted
def test_nothing_changed(compiled: Compiled) -> None:
    x = torch.randn(2, 4)
    with torch.no_grad():
        assert quick(compiled, x) and quick(compiled, x.clone())
        torch.testing.assert_close(compiled(x), compiled.original(x))
        assert not quick(compiled, torch.randn(3, 4)) and not quick(compiled, x.double())
    assert not quick(compiled, x), "gradients were not computed"


@counted
@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_changes_are_noticed(compiled: Compiled, change: Callable[[Net], None]) -> None:
    net, x = compiled.original, torch.ones(2, 4)
    assert isinstance(net, Net)
    own, inside = dict(vars(net)), [dict(m._parameters) for m in net.modules()]
    kept = [p.data for p in net.parameters()]
    scale, parts, names = net.settings.scale, list(net.settings.parts), dict(net.names)
    modules, weights = dict(net._modules), list(net.parameters())
    with torch.no_grad():
        change(net)
        assert not quick(compiled, x)
        # As it was; that is noticed too, so all guards look, and then it is known again.
        net._modules.update(modules)
        for m, parameters in zip(net.modules(), inside, strict=True):
            m._parameters.update(parameters)
        for p, data in zip(weights, kept, strict=True):
            p.data = data
        net.settings.scale, net.settings.parts[:] = scale, parts
        net.names.update(names)
        assert own.keys() == vars(net).keys()
        compiled._misses = 0
        torch.testing.assert_close(compiled(x), net(x))
        assert quick(compiled, x)


def test_a_changed_module_gives_its_own_results() -> None:
    torch.manual_seed(1)
    x = torch.randn(2, 4)
    with torch.no_grad():
        net = Net().eval()
        fast = tw.compile(net)
        for change in (None, replace_weight, transpose, None):
            if change is not None:
                change(net)
            for _ in range(3):
                torch.testing.assert_close(fast(x), net(x))


def test_without_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where dictionaries do not count, nothing is skipped, and changes are noticed all the same."""
    monkeypatch.setattr(unchanged, "counts_changes", lambda: False)
    torch.manual_seed(2)
    x = torch.randn(2, 4)
    with torch.no_grad():
        net = Net().eval()
        fast = tw.compile(net)
        for change in (None, set_scale, replace_weight):
            if change is not None:
                change(net)
            for _ in range(2):
                torch.testing.assert_close(fast(x), net(x))
    assert not fast._quick
