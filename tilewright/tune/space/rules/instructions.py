"""Which instruction computes a tile: all of the target's that the nest accepts."""

from __future__ import annotations

from dataclasses import replace

from tilewright.base.errors import Refused
from tilewright.kernel.intrinsic import INTRINSICS
from tilewright.kernel.steps.tensorize import Tensorize
from tilewright.tune.space.draft import Draft, Item


def open_instructions(draft: Draft) -> None:
    for item in draft.items:
        if isinstance(item.step, Tensorize):
            step = item.step
            family = step.instruction.split(".")[0]
            names = [n for n in INTRINSICS if n.split(".")[0] == family]
            values = [n for n in names if n == step.instruction or _accepted(item, step, n)]
            if len(values) > 1:
                name = draft.decide(f"instruction_{step.loop}", values, step.instruction)
                draft.open(item, instruction=name)


def _accepted(item: Item, step: Tensorize, instruction: str) -> bool:
    try:
        replace(step, instruction=instruction).apply(item.nest)
    except Refused:
        return False
    return True
