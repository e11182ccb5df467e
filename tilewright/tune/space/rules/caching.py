"""Whether what a stage reads is copied next to each other first, in which loop, and in which order
of its axes: a copy costs a pass, and saves strides and lines of which only a part is used.

Results need no rule of their own: a group computes a reduction before its result is stored, and
the place of that is where it stays meanwhile.
"""

from __future__ import annotations

from itertools import permutations

from tilewright.base.errors import Refused
from tilewright.kernel.defaults.scheduler import store_reads
from tilewright.kernel.nest import Loop, Nest, Store, walk
from tilewright.kernel.steps.cache_read import CacheRead
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.compute_inline import ComputeInline
from tilewright.kernel.steps.permute import Permute
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.vectorize import Vectorize
from tilewright.tune.space.decision import Open
from tilewright.tune.space.draft import Draft
from tilewright.tune.space.space import Condition, OpenStep

# Loops that a copy may be made in, from outside; and axes whose order is open.
MOST_PLACES = 4
MOST_AXES = 3


def open_caching(draft: Draft) -> None:
    first = next((i for i in draft.items if not isinstance(i.step, ComputeInline)), None)
    filled = draft.filled()
    if first is None or filled is None:
        return
    for stage, buffer in _operands(first.nest):
        into = f"{buffer}_{stage}"
        copy = CacheRead(buffer, stage, into)
        try:
            copy.apply(first.nest)
        except Refused:
            continue
        loops = [p.name for p in _around(filled.nest, stage)][:MOST_PLACES]
        if not loops:
            continue
        name = draft.decide(f"copy_{into}", ("", *loops), "")
        made = Condition(name, "", equal=False)
        draft.before(first, [OpenStep.of(copy).under(made)])
        rank = len(first.nest.buffer(buffer).shape)
        last = f"{into}.i{rank - 1}"
        steps = _placed(into, name, loops)
        if 1 < rank <= MOST_AXES:
            same = tuple(range(rank))
            order = draft.decide(f"layout_{into}", permutations(same), same)
            draft.tested[order] = {name: loops[0]}  # an instruction takes some only
            other = Condition(order, same, equal=False)
            arguments = (("buffer", into), ("order", Open((order,))))
            steps.append(OpenStep(Permute, arguments, (made, other)))
        steps.append(OpenStep.of(Split(last, draft.target.lanes(32)), True).under(made))
        steps.append(OpenStep.of(Vectorize(f"{last}.1"), True).under(made))
        draft.before(filled, steps)


def _placed(copy: str, name: str, loops: list[str]) -> list[OpenStep]:
    """A copy is made in the loop that was decided on, or in the nearest one around it that has all
    readers: where these are depends on other decisions. Once it is inside it never moves out."""
    out: list[OpenStep] = []
    for k in reversed(range(len(loops))):
        further_out = [Condition(name, x, equal=False) for x in ("", *loops[:k])]
        out.append(OpenStep.of(ComputeAt(copy, loops[k]), True).under(*further_out))
    return out


def _operands(nest: Nest) -> list[tuple[str, str]]:
    """Reductions, or where there are none results, and the inputs that they read."""
    stores = [(s, p) for s, p in walk(nest.body) if isinstance(s, Store)]
    sums = [s for s, _ in stores if s.combine is not None] or [s for s, _ in stores]
    inputs = {b.name for b in nest.buffers if b.scope == "in" and len(b.shape) > 1}
    found = [(s.stage, r.source) for s in sums for r in store_reads(s) if r.source in inputs]
    return list(dict.fromkeys((stage, str(source)) for stage, source in found))


def _around(nest: Nest, stage: str) -> list[Loop]:
    found = [p for s, p in walk(nest.body) if isinstance(s, Store) and s.stage == stage]
    return list(found[-1]) if found else []
