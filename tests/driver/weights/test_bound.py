"""The native look at weights and the one in Python see the same changes."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import pytest
import torch

from tilewright.driver.weights import bound as bound_weights
from tilewright.driver.weights.bound import BoundWeights, differ_slowly, find_places
from tilewright.runtime.shared import Weight


class Counting:
    """A program that counts how often it was bound and derived anew."""

    weights = (0, 2)
    kept = (1,)

    def __init__(self) -> None:
        self.binds = self.refreshes = 0
        self.derived: object = None
        self._keys: list[Hashable] = []

    def bind(self, addresses: Sequence[int], weights: Sequence[Weight] | None = None) -> Any:
        self.binds += 1
        keys = [w.key for w in weights or ()]
        if keys != self._keys or self.derived is None:
            self.refreshes += 1
            self.derived = object()
            self._keys = keys
        return list(addresses)


def edit(w: list[torch.Tensor]) -> None:
    w[2].data.add_(0)  # behind torch's back: not seen
    with torch.no_grad():
        w[2].add_(1)


def edit_often(w: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for _ in range(1000):
            w[0].add_(1)


def replace(w: list[torch.Tensor]) -> None:
    w[1] = torch.nn.Parameter(w[1].detach())


def move(w: list[torch.Tensor]) -> None:
    w[0].data = w[0].detach().clone()


def shift(w: list[torch.Tensor]) -> None:
    w[2].data = w[2].detach()[1:]


CHANGES = [edit, edit_often, replace, move, shift]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("native", [True, False])
def test_every_change_is_seen_once(
    change: Callable, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(bound_weights, "_differ", lambda: differ_slowly)
    program = Counting()
    weights: list[torch.Tensor] = [torch.nn.Parameter(torch.ones(5)) for _ in range(3)]
    bind = BoundWeights(program, 3)
    first = bind(tuple(weights))
    assert bind(tuple(weights)) is first
    change(weights)
    second = bind(tuple(weights))
    assert second == [w.data_ptr() for w in weights]
    assert bind(tuple(weights)) is second
    # From the one that is replaced nothing is derived.
    assert (program.binds, program.refreshes) == (2, 1 if change is replace else 2)


def test_an_edit_of_a_weight_from_which_nothing_is_derived_is_not_a_change() -> None:
    program = Counting()
    weights = tuple(torch.nn.Parameter(torch.ones(5)) for _ in range(3))
    bind = BoundWeights(program, 3)
    bind(weights)
    with torch.no_grad():
        weights[1].add_(1)
    bind(weights)
    assert program.refreshes == 1


def test_inference_tensors_are_never_known() -> None:
    program = Counting()
    with torch.inference_mode():
        weights = tuple(torch.ones(5) for _ in range(3))
    bind = BoundWeights(program, 3)
    bind(weights)
    bind(weights)
    assert program.refreshes == 2


def test_freed_memory_is_no_binding() -> None:
    weights = tuple(torch.nn.Parameter(torch.ones(5)) for _ in range(3))
    bind = BoundWeights(Counting(), 3)
    assert bind(weights) is not None
    weights[1].untyped_storage().resize_(0)
    assert bind(weights) is None


def test_refreshing_the_program_binds_anew() -> None:
    program = Counting()
    weights = tuple(torch.nn.Parameter(torch.ones(5)) for _ in range(3))
    bind = BoundWeights(program, 3)
    first = bind(weights)
    program.derived = None
    assert bind(weights) is not first


def test_torch_is_laid_out_as_the_native_look_needs_it() -> None:
    assert find_places() is not None


def test_an_unclear_look_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the answer stays: code that goes by another one would read somewhere else."""
    known = find_places()
    answers = iter([None, None, known, None])
    monkeypatch.setattr(bound_weights, "_places", lambda: next(answers))
    find_places.cache_clear()
    assert find_places() is known and find_places() is known
