"""Whether a map is computed where it is read, again for each reader, or once before them, in one of
the loops around them."""

from __future__ import annotations

from tilewright.base.errors import Refused
from tilewright.kernel.axis import is_below
from tilewright.kernel.defaults.scheduler import cost, store_reads
from tilewright.kernel.nest import Loop, Store, walk
from tilewright.kernel.step import Step
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.compute_inline import ComputeInline
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.vectorize import Vectorize
from tilewright.tune.space.decision import Open
from tilewright.tune.space.draft import Draft, Item
from tilewright.tune.space.space import Condition, OpenStep

# Loops around readers that a map may be computed in, from outside.
MOST_PLACES = 3


def open_inlining(draft: Draft) -> None:
    for item in list(draft.items):
        if isinstance(item.step, ComputeAt):
            _inline(draft, item.step.stage)
        elif isinstance(item.step, ComputeInline) and _worth(draft, item.step.stage):
            _keep(draft, item, item.step.stage)


def _inline(draft: Draft, stage: str) -> None:
    """A map that the schedule computes in a loop may be inlined instead."""
    first = next((i for i in draft.items if not isinstance(i.step, ComputeInline)), None)
    step = ComputeInline(stage)
    if first is None or not _accepted(first, step):
        return
    name = draft.decide(f"inline_{stage}", (False, True), False)
    for item in draft.items:
        if _mentions(item, stage):
            item.opened = item.opened.under(Condition(name, False))
    draft.before(first, [OpenStep.of(step).under(Condition(name, True))])


def _accepted(item: Item, step: Step) -> bool:
    try:
        step.apply(item.nest)
    except Refused:
        return False
    return True


def _mentions(item: Item, stage: str) -> bool:
    def of(x: object) -> bool:
        if isinstance(x, tuple):
            return any(map(of, x))
        return isinstance(x, str) and (x == stage or is_below(x, stage))

    return any(of(x) for _, x in item.opened.arguments)


def _worth(draft: Draft, stage: str) -> bool:
    """Is a stage costly, or read at several points of its readers?"""
    nest = draft.items[0].nest
    stores = [s for s, _ in walk(nest.body) if isinstance(s, Store)]
    own = [s for s in stores if s.stage == stage]
    if len(own) != 1 or not own[0].index:
        return False
    reads = {r.index for s in stores for r in store_reads(s) if r.source == stage}
    return (len(reads) > 1 and bool(own[0].value.sources)) or cost(own[0].value) > 0


def _keep(draft: Draft, item: Item, stage: str) -> None:
    """A map that the schedule inlines may be computed in a loop around what reads it."""
    filled = draft.filled()
    if filled is None:
        return
    loops = dict.fromkeys(
        x.name for x, path in walk(filled.nest.body) if isinstance(x, Loop) and len(path) < 3
    )
    rank = len(draft.items[0].nest.buffer(stage).shape)
    places = ["", *list(loops)[:MOST_PLACES]]
    if len(places) < 2:
        return
    name = draft.decide(f"keep_{stage}", places, "")
    item.opened = item.opened.under(Condition(name, ""))
    kept = Condition(name, "", equal=False)
    lanes = f"{stage}.i{rank - 1}"
    place = OpenStep(ComputeAt, (("stage", stage), ("at", Open((name,)))), (kept,))
    split = OpenStep.of(Split(lanes, draft.target.lanes(32)), True).under(kept)
    draft.before(filled, [place, split, OpenStep.of(Vectorize(f"{lanes}.1"), True).under(kept)])
