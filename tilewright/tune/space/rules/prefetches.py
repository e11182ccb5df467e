"""Whether memory is asked for ahead of its use, and how far ahead."""

from __future__ import annotations

from tilewright.kernel.steps.prefetch import Prefetch
from tilewright.tune.space.draft import Draft

DISTANCES = (1, 2, 4, 8)
LEVELS = (1, 2)


def open_prefetches(draft: Draft) -> None:
    for item in draft.items:
        if isinstance(item.step, Prefetch):
            step, what = item.step, f"{item.step.buffer}_{item.step.loop}"
            distance = draft.decide(f"ahead_{what}", DISTANCES, step.distance, True)
            level = draft.decide(f"level_{what}", LEVELS, step.level, True)
            draft.open(item, distance=distance, level=level)
            draft.optional(item, draft.decide(f"prefetch_{what}", (False, True), True))
            draft.attempt(item)
