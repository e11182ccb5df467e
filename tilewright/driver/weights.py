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
        """True the first time and after every change."""
        weights = self._pick(args)
        ids = list(map(id, weights))
        try:
            versions = list(map(_version, weights))
        except RuntimeError:
            return True  # inference tensors have no version counter: what they hold is never known
        if versions == self._versions and ids == self._ids and self._steps == STEPS.count:
            return False
        self._ids, self._versions, self._steps = ids, versions, STEPS.count
        self._held = (weights, [w.detach() for w in weights])
        return True
