"""Which of the loops around a tile is outside: what stays in a cache, and what streams."""

from __future__ import annotations

from itertools import permutations

from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.parallel import Parallel
from tilewright.kernel.steps.reorder import Reorder
from tilewright.tune.space.decision import Open
from tilewright.tune.space.draft import WRITTEN_OUT, Draft

# Loops whose order is open: more have too many orders to be worth it.
MOST = 4


def open_orders(draft: Draft) -> None:
    for k, item in enumerate(draft.items):
        if not isinstance(item.step, Reorder):
            continue
        order = item.step.order
        written_out = [bool(draft.kinds(x)) and draft.kinds(x) <= WRITTEN_OUT for x in order]
        free = written_out.index(True) if True in written_out else len(order)
        first = max(0, free - MOST)
        values = [(*order[:first], *p, *order[free:]) for p in permutations(order[first:free])]
        if len(values) > 1:
            name = draft.decide(f"order_{order[-1]}", values, order)
            draft.open(item, order=name)
            # What follows means a place in the order, whichever loop is there.
            places = {x: Open((name,), at=at) for at, x in enumerate(order[first:free], first)}
            for later in draft.items[k + 1 :]:
                if isinstance(later.step, (Fuse, Parallel, ComputeAt)):
                    draft.rename(later, places)
