"""Never stale: noticing that a weight changed before a value derived from it is used again.

An in-place edit bumps a tensor's version counter; a new tensor is another object; `.data = …`
changes the address, which the program itself looks at; fused optimizers bump no counter, so a
global hook counts optimizer steps. Edits behind torch's back (`.data` in place, numpy views) need
`tw.refresh`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook


class Steps:
    """How many optimizer steps this process has taken."""

    def __init__(self) -> None:
        self.count = 0
        register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, *_: Any) -> None:
        self.count += 1


STEPS = Steps()
_version = attrgetter("_version")


class WeightWatch:
    """Tells whether the weights at some positions of a call's arguments are not what they were."""

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
        # While these live, no other tensor can get their id, nor their memory another owner.
        self._held: tuple[Any, ...] = ()

    def changed(self, args: Sequence[Any]) -> bool:
        """Other tensors, or edited ones? True the first time and once after every change."""
        ids = list(map(id, self._pick(args)))
        if ids == self._ids and not self.edited(args):
            return False
        self.hold(args)
        self._ids = ids
        return True

    def edited(self, args: Sequence[Any]) -> bool:
        """The same for tensors that are known to be the same objects."""
        try:
            versions = list(map(_version, self._pick(args)))
        except RuntimeError:
            return True  # inference tensors have no version counter: what they hold is never known
        return versions != self._versions or self._steps != STEPS.count

    def hold(self, args: Sequence[Any]) -> None:
        """These are the weights from now on."""
        weights = self._pick(args)
        self._held = weights, [w.detach() for w in weights]
        if not any(w.is_inference() for w in weights):
            self._versions = list(map(_version, weights))
        self._steps = STEPS.count
