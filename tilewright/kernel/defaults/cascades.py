"""The loops of one reduction: which of them are one walk through memory, and how a long sum is cut
into sums of sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.ir.dim import Sym
from tilewright.ir.expr import Index, Load, walk
from tilewright.kernel.axis import moved
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
# Of each axis of unknown length so many make one sum with a piece of the last such axis.
ROWS = 4


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
        last = made[-1] if made else stage
        data, red = s.axes(last)
        names, found = [p.name for p in data], [p.name for p in red]
        if _any_unknown(s, red):
            parts = sums_of_any_number(s, last, found, lanes, names, placed)
        else:
            part = cascade(s, last, found, lanes, names, placed)
            parts = [] if part is None else [part]
        if not parts:
            return made
        made += parts


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
    if _any_unknown(s, [loops[name] for name in red]):
        parts = sums_of_any_number(s, stage, red, lanes, data, placed)
        return parts[-1] if parts else None
    extents = [int(D.bounds(loops[name].extent)[1]) for name in red]
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


def _any_unknown(s: Scheduler, loops: Sequence[Loop]) -> bool:
    return any(_unknown(s, p) for p in loops)


def _unknown(s: Scheduler, loop: Loop) -> bool:
    """Does only the call say how many numbers it goes through, of which there may be many? Blocks
    of equal size do not fit these: the last one has fewer."""
    e, dims = loop.extent, set(s.nest.dims)
    most = D.bounds(e)[1]
    return most == D.INF or (most > CHAIN and bool(D.symbols(e)) and D.symbols(e) <= dims)


def sums_of_any_number(
    s: Scheduler,
    stage: str,
    red: list[str],
    lanes: int,
    data: Sequence[str] = (),
    placed: bool = True,
) -> list[str]:
    """The stages of inner sums where only the call says how many numbers there are; none, and no
    step, where that is refused. Chains are of known length, and there are two levels of them
    (one, where a constant bounds their number):

        for k.0.0:                       # one iteration up to 16,384 numbers for each lane
          m = 0
          for k.0.1 in 128:
            c = 0
            for k.1 in 128*lanes: c += x[…]
            m += c
          t += m

    so there is one partial result of each level at a time, and none needs memory of a size that
    only the call knows; but those that threads share, where nothing is around them."""
    before = s.nest, list(s.trace)
    try:
        made = _Unknown(s, stage, red, lanes, list(data)).run(placed)
    except Refused:
        made = []
    if not made:
        s.nest, s.trace[:] = before
    return made


@dataclass
class _Unknown:
    s: Scheduler
    stage: str
    red: list[str]
    lanes: int
    data: list[str]

    def run(self, placed: bool) -> list[str]:
        s, stage = self.s, self.stage
        alone = not self.data and s.path(stage)[0].name == self.red[0]
        if not rounds(s.store(stage)):
            # Whatever the order of an exact one, threads may share it.
            if not alone or len(self.red) > 1:
                return []
            s.do(Split(self.red[0], SHARED))
            s.do(RFactor(stage, (f"{self.red[0]}.0",), f"{stage}c"))
            return [f"{stage}c"]
        kept = self._blocks()
        part, middle = f"{stage}c", f"{stage}m"
        s.do(RFactor(stage, tuple(kept), part, exact=True))
        made = [part]
        if any(D.bounds(p.extent)[1] > CHAIN for p in s.reduced(stage)):
            s.do(Split(kept[0], CHAIN))
            s.do(RFactor(stage, (f"{kept[0]}.0",), middle, exact=True))
            made = [middle, part]
        if self.data:
            # One partial result at a time is one of all columns, where lanes run over these.
            self._inside(stage, self.data[-1])
            for inner in made[:-1]:
                self._inside(inner, moved(self.data[-1], inner))
        if placed and (self.data or not alone):
            for inner, outer in zip(made, [stage, *made], strict=False):
                s.do(ComputeAt(inner, s.reduced(outer)[-1].name))
        return made

    def _inside(self, stage: str, columns: str) -> None:
        others = [p.name for p in self.s.own(stage) if p.name != columns]
        self.s.do(Reorder((*others, columns)))

    def _blocks(self) -> list[str]:
        """Each loop of unknown length is split; the outer loops of these."""
        s = self.s
        bounds = {p.name: D.bounds(p.extent)[1] for p in s.path(self.stage)}
        unknown = {p.name for p in s.path(self.stage) if _unknown(s, p)}
        *others, last = [x for x in self.red if x in unknown]
        sizes = (max(1, int(bounds[x])) for x in self.red if x not in unknown)
        known = ROWS ** len(others) * prod(sizes)
        for x in others:
            s.do(Split(x, ROWS))
        lanes = self.lanes if last == self.red[-1] else 1
        piece = max(1, CHAIN * self.lanes // known // lanes) * lanes
        if not others and bounds[last] <= piece:
            raise Refused(f"{last} is one piece")
        s.do(Split(last, piece))
        return [f"{x}.0" for x in (*others, last)]


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
