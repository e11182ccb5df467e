"""The loops of one reduction: which of them are one walk through memory, and how a long sum is cut
into sums of sums."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.ir import dim as D
from tilewright.ir.dim import Sym
from tilewright.ir.expr import Index, Load, walk
from tilewright.kernel.defaults.scheduler import PIECE, Scheduler, accesses, affine_pair
from tilewright.kernel.dependence import rounds
from tilewright.kernel.nest import Loop, Store
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.split import Split

SHARED = 2 * PIECE  # numbers of an exact reduction that are worth a thread of their own
CHAIN = 128  # numbers added one after the other before the rounding of their sum shows


def fuse_reduced(s: Scheduler, stage: str, red: list[Loop]) -> list[str]:
    """The reduced loops, the innermost ones that are one walk through memory as one loop."""
    names = [p.name for p in red]
    count = 0
    while len(names) >= 2:
        p = {q.name: q for q in s.path(stage)}
        o, i = p[names[-2]], p[names[-1]]
        together = 1 in (o.extent, i.extent) or can_fuse_reads(s, s.store(stage), o.var, i.var)
        if not together or not s.attempt(Fuse(o.name, i.name, f"{stage}.k{count}")):
            break
        names = [*names[:-2], f"{stage}.k{count}"]
        count += 1
    return names


def can_fuse_reads(s: Scheduler, st: Store, outer: Sym, inner: Sym) -> bool:
    for v in walk(st.value):
        if isinstance(v, Index) and D.symbols(v.dim) & {outer, inner}:
            return False
        if isinstance(v, Load) and any(True for i in v.index for _ in D.data_values(i)):
            return False
    return all(affine_pair(b, i, outer, inner) for b, i in accesses(s, st)[1:])


def cascades(s: Scheduler, stage: str, lanes: int = 1, placed: bool = True) -> list[str]:
    """The stages of inner sums, each of the one before it, where lanes run over results."""
    made: list[str] = []
    while True:
        data, red = s.axes(made[-1] if made else stage)
        names = [p.name for p in data]
        found = [p.name for p in red]
        part = cascade(s, made[-1] if made else stage, found, lanes, names, placed)
        if part is None:
            return made
        made.append(part)


def cascade(
    s: Scheduler,
    stage: str,
    red: list[str],
    lanes: int,
    data: Sequence[str] = (),
    placed: bool = True,
) -> str | None:
    """Sums of many floats are sums of sums: what rounding costs grows with the length of a chain,
    and libraries have none this long. The stage of the inner sums, where it is made; it stands
    where the outer ones are added, or before them all where nothing is around them or it is not to
    be placed yet."""
    loops = {p.name: p for p in s.path(stage)}
    extents = [e for name in red if isinstance(e := loops[name].extent, int)]
    if len(extents) < len(red):
        return None  # no place for a number of partial sums that is not known
    total = prod(extents)
    # Whatever the order of an exact one, threads may share it, where nothing is around it.
    if not rounds(s.store(stage)) and (data or s.path(stage)[0].name != red[0]):
        return None
    pieces = pieces_of(s, stage, total, lanes)
    if pieces < 2:
        return None
    outer = red[0]
    factor = cut(extents[0], pieces, lanes if len(red) == 1 else 1)
    if factor > 1:
        if not s.attempt(Split(outer, factor)):
            return None
        outer = f"{outer}.0"
    part = f"{stage}c"
    if not s.attempt(RFactor(stage, (outer,), part)):
        return None
    if data:
        s.attempt(Reorder((*data[:-1], outer, data[-1])))
    if placed and (s.path(stage)[0].name != outer or data):
        s.attempt(ComputeAt(part, outer))
    return part


def pieces_of(s: Scheduler, stage: str, total: int, lanes: int) -> int:
    """Into how many partial results a reduction of so many numbers is cut; 1 where it is not."""
    if not rounds(s.store(stage)):
        return total // SHARED if total >= 2 * SHARED else 1
    if total <= CHAIN * lanes:
        return 1
    # With n/m numbers in each of m sums the error is about √m (outside) and √n/m (inside).
    chain = total // lanes
    return max(round((2 * chain**0.5) ** (2 / 3)), min(128, -(-chain // CHAIN)))


def cut(extent: int, pieces: int, lanes: int) -> int:
    """About so many pieces, of whole vectors; of one size, if there is such a size nearby."""
    size = -(-extent // pieces)
    near = [k for k in range(max(1, size // 2), 2 * size) if extent % k == 0 and k % lanes == 0]
    return min(near, key=lambda k: abs(k - size)) if near else -(-size // lanes) * lanes
