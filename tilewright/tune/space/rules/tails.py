"""Tails of loops that sizes do not divide: peeled where there is one."""

from __future__ import annotations

from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.tensorize import Tensorize
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize
from tilewright.tune.space.decision import Open
from tilewright.tune.space.draft import WRITTEN_OUT, Draft, Item
from tilewright.tune.space.space import Condition, OpenStep


def open_tails(draft: Draft) -> None:
    """A loop may have no tail by another size, or may get one: both are only attempted. The tail of
    a loop is peeled before anything inside is written out."""
    peeled = {i.step.loop for i in draft.items if isinstance(i.step, Peel)}
    for item in list(draft.items):
        if isinstance(item.step, Peel):
            draft.attempt(item)
        elif isinstance(item.step, Split):
            inner, outer = draft.kinds(f"{item.step.loop}.1"), f"{item.step.loop}.0"
            opened = dict(item.opened.arguments).get("factor")
            if inner & WRITTEN_OUT and outer not in peeled and isinstance(opened, Open):
                other = Condition(opened.names[0], item.step.factor, equal=False)
                draft.before(_kinds(draft, item), [OpenStep.of(Peel(outer), True).under(other)])


def _kinds(draft: Draft, split: Item) -> Item:
    """The first step after a split that says what loops are."""
    later = draft.items[draft.items.index(split) + 1 :]
    return next(i for i in later if isinstance(i.step, (Unroll, Vectorize, Tensorize)))
