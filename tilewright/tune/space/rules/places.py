"""Where a stage is computed: in which of the loops around what reads it."""

from __future__ import annotations

from dataclasses import replace

from tilewright.kernel.nest import find
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.tune.space.decision import Open
from tilewright.tune.space.draft import Draft, Item


def open_places(draft: Draft) -> None:
    for item in draft.items:
        if not isinstance(item.step, ComputeAt):
            continue
        step, at = item.step, dict(item.opened.arguments)["at"]
        if isinstance(at, Open) and isinstance(at.at, int):  # a place in an order that is open
            if not at.at:
                continue
            name = draft.decide(f"place_{step.stage}", range(at.at + 1), at.at, True)
            draft.open(item, at=replace(at, at=name))
        else:
            values = _places(item, step)
            if len(values) < 2:
                continue
            name = draft.decide(f"place_{step.stage}", values, step.at)
            draft.open(item, at=name)
        draft.tested[name] = {}  # further out, there may be more than registers hold


def _places(item: Item, step: ComputeAt) -> list[str]:
    """The loop itself and those around it; a stage is never moved outwards later."""
    found = find(item.nest, step.at)
    return [] if not found else [*(x.name for x in found[0][1]), step.at]
