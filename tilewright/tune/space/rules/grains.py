"""How much work a thread takes at a time, and whether threads share it at all."""

from __future__ import annotations

from tilewright.kernel.steps.parallel import Parallel
from tilewright.tune.space.draft import Draft, trips

# Pieces for each thread: fewer leave one waiting for another, more cost calls.
PIECES = (1, 2, 4, 8, 16, 32, 64, 128)


def open_grains(draft: Draft) -> None:
    for item in draft.items:
        if not isinstance(item.step, Parallel):
            continue
        extent, cores = trips(item.nest, item.step.loop), max(1, draft.target.cores)
        values = {max(1, -(-extent // (cores * n))) for n in PIECES} | {1}
        if len(values | {item.step.grain}) > 1:
            name = draft.decide(f"grain_{item.step.loop}", values, item.step.grain, True)
            draft.open(item, grain=name)
        shared = draft.decide(f"threads_{item.step.loop}", (False, True), True)
        draft.optional(item, shared)
