"""Whether loops are written out: those that the schedule writes out, and the innermost that it does
not, several iterations at a time."""

from __future__ import annotations

from tilewright.kernel.nest import Loop, walk
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll
from tilewright.tune.space.decision import Open
from tilewright.tune.space.draft import WRITTEN_OUT, Draft, trips
from tilewright.tune.space.space import Condition, OpenStep

AT_A_TIME = (1, 2, 4, 8, 16)


def open_unrolling(draft: Draft) -> None:
    loops = [x for x, _ in walk(draft.last.body) if isinstance(x, Loop)]
    for x in loops:
        inside = [y.kind for y, _ in walk(x.body) if isinstance(y, Loop)]
        if x.kind != "serial" or any(k not in WRITTEN_OUT for k in inside):
            continue
        values = [n for n in AT_A_TIME if n <= trips(draft.last, x.name)]
        if len(values) < 2 or any(d.name == _named(draft, x.name) for d in draft.decisions):
            continue
        name = draft.decide(f"unroll_{x.name}", values, 1, True)
        more = Condition(name, 1, equal=False)
        split = OpenStep(Split, (("loop", x.name), ("factor", Open((name,)))), (more,), True)
        # What sizes do not divide has a tail, without which nothing could be written out.
        peel = OpenStep.of(Peel(f"{x.name}.0"), True).under(more)
        unroll = OpenStep(Unroll, (("loop", f"{x.name}.1"),), (more,), True)
        draft.after(None, [split, peel, unroll])


def _named(draft: Draft, loop: str) -> str:
    return draft.prefix + "unroll_" + "".join(c if c.isalnum() else "_" for c in loop)
