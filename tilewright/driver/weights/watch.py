"""Never stale: noticing that a weight changed before a value derived from it is used again.

An in-place edit bumps a tensor's version counter; a new tensor is another object; `.data = …`
changes the address, which the program itself compares; fused optimizers bump no counter, so a
global hook counts optimizer steps. Edits behind torch's back (`.data` in place, numpy views) need
`tw.refresh`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch._C import DisableTorchFunctionSubclass
from torch.optim.optimizer import register_optimizer_step_post_hook

from tilewright.driver.weights.given_up import given_up
from tilewright.runtime.shared import Weight


class Steps:
    """A number that changes with the optimizer steps of this process."""

    def __init__(self) -> None:
        self._count = 0
        self._latest: list[Any] = []
        self._counted = self._latest
        register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, *_: Any) -> None:
        # Dynamo captures this with a step, and would guard what is read here: nothing is.
        self._latest = []

    @property
    def count(self) -> int:
        latest = self._latest
        if latest is not self._counted:
            self._counted = latest
            self._count += 1
        return self._count


STEPS = Steps()
_version = attrgetter("_version")


# One object for all programs, so that all notice when a weight's memory is given back.
_weights: WeakValueDictionary[Any, Weight] = WeakValueDictionary()


def known(x: torch.Tensor) -> Weight:
    """A weight and its current content: programs of the same module share what they derive from
    it."""
    gone = given_up(x)
    if gone is not None:
        return gone.weight
    with DisableTorchFunctionSubclass():
        if x.is_inference():  # it has no version counter: changes of its content go unnoticed
            return Weight(object(), x)
        key = id(x), x.data_ptr(), x._version, STEPS.count
        found = _weights.get(key)
        if found is None:
            # While these live, no other tensor can get its id, nor its memory another owner.
            found = _weights.setdefault(key, Weight(key, (x, x.untyped_storage())))
        return found


def address(x: torch.Tensor) -> int:
    """Where its elements are; 0 where it has no memory."""
    with DisableTorchFunctionSubclass():
        return x.data_ptr()


class WeightWatch:
    """The weights at some positions of a call's arguments, in the form that programs take."""

    def __init__(self, positions: Sequence[int]) -> None:
        self._pick: Callable[[Any], tuple[Any, ...]]
        if len(positions) == 1:
            (only,) = positions
            self._pick = lambda args: (args[only],)
        else:
            self._pick = itemgetter(*positions)
        self._ids: list[int] = []
        self._versions: list[int] = []
        self._steps = -1
        self._known: list[Weight] = []

    def __call__(self, args: Sequence[Any]) -> list[Weight]:
        """The same objects as long as no weight is replaced or edited."""
        weights = self._pick(args)
        ids = list(map(id, weights))
        with DisableTorchFunctionSubclass():
            if ids != self._ids or self._edited(weights):
                self._known = list(map(known, weights))
                if not any(map(torch.is_inference, weights)):
                    self._versions = list(map(_version, weights))
                self._steps = STEPS.count
                self._ids = ids
        return self._known

    def _edited(self, weights: tuple[Any, ...]) -> bool:
        try:
            versions = list(map(_version, weights))
        except RuntimeError:
            return True  # inference tensors have no version counter
        return versions != self._versions or self._steps != STEPS.count
