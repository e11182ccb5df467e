"""Chains: a contraction, work on its rows, and a contraction of what that gives (attention).

A block of rows passes through all of it: its scores are a scratch that stays in the cache, the rows
are worked on there, and the second contraction reads them from there. Both contractions have the
register tiles that they would have alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from tilewright.ir import dim as D
from tilewright.ir.dim import Sym
from tilewright.ir.expr import Index, Load, Value
from tilewright.ir.expr import walk as walk_value
from tilewright.kernel.defaults.contractions import (
    find_tile,
    is_contraction,
)
from tilewright.kernel.defaults.rows import inner_lanes, reduction_lanes
from tilewright.kernel.defaults.scheduler import Scheduler, cost, store_reads, vector_loop
from tilewright.kernel.defaults.tiles import Placed, Tile, fill_tile, place_tile
from tilewright.kernel.group import Group, Stage, readers
from tilewright.kernel.nest import Store, own_loops
from tilewright.kernel.nest import walk as walk_nest
from tilewright.kernel.steps.cache_write import CacheWrite
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.compute_inline import ComputeInline
from tilewright.kernel.steps.compute_with import ComputeWith
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.parallel import Parallel
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.trim import Trim

# A scratch takes this part of the second cache, and no more than what lies on the stack.
SHARE = 4
# Rows of a block: enough for what is read again for each block, few enough for the threads.
BLOCK_ROWS = 72
# The same where a call may have any number of rows: a part of usual numbers, with no rest.
ANY_ROWS = 64
# Keys that blocks of rows are made for where a call may have any number of them.
USUAL_KEYS = 512
# Lanes of the maps between: enough independent chains of operations to hide the latency of long
# ones (measured).
LANES = 16


@dataclass
class _Chain:
    scores: Stage  # the first contraction
    host: str | None  # the map that reads the scores, as it is stored; None: they are read as such
    weights: str  # what the second contraction multiplies, row by row
    sums: Stage  # the second contraction
    end: Stage | None = None  # a reduction over parts of the rows that reads those sums


def find_chain(g: Group) -> _Chain | None:
    """The two contractions of a chain and what is stored between them, if a group is one."""
    scores, weights, sums = (g.role(x) for x in ("scores", "weights", "sums"))
    if scores is None or weights is None or sums is None:
        return None
    host = _epilogue(g, scores.name, weights.name)
    return _Chain(scores, host, weights.name, sums, g.role("end"))


def _parts_first(st: Stage) -> tuple[Sym, ...]:
    """Its axes, parts of the rows right outside of these."""
    return (*st.axes[:-2], *st.raxes, *st.axes[-2:])


def _epilogue(g: Group, name: str, last: str) -> str | None:
    """The last of the maps that read one another, and the first one the stage, element by element
    and alone."""
    host: str | None = None
    while name != last:
        found = readers(g, name)
        if len(found) != 1 or not found[0].is_map or g.buffer(found[0].name).scope != "local":
            break
        (reader,) = found
        here = tuple(map(D.as_int, reader.axes))
        plain = [x for x in _loads(reader.value) if x.source == name]
        if len(plain) != 1 or not _same_place(plain[0].index, here, g.buffer(name).shape):
            break
        host = name = reader.name
    return host


def _loads(v: Value) -> Iterator[Load]:
    return (x for x in walk_value(v) if isinstance(x, Load))


def _same_place(a: tuple[D.Dim, ...], b: tuple[D.Dim, ...], shape: tuple[D.Dim, ...]) -> bool:
    return len(a) == len(b) and all(
        D.known_eq(x, y) or d == 1 for x, y, d in zip(a, b, shape, strict=True)
    )


def schedule_chain(s: Scheduler, chain: _Chain) -> bool:
    """All stages of a block of rows in one iteration. False where a tile does not fit."""
    stages = _inlined(s, chain)
    outs = [x for x in stages if s.group.buffer(x.name).scope == "out"]
    acc, host = chain.scores, chain.host
    if host is None:
        # The scores are read as they are: their sums get a stage of their own.
        into = f"{acc.name}c"
        s.do(CacheWrite(acc.name, into))
        host, acc = acc.name, moved_stage(s, acc, into)
    if not all(is_contraction(s, st) for st in (acc, chain.sums)):
        return False
    end = chain.end
    if end is not None:
        s.do(Reorder(tuple(x.name for x in _parts_first(end))))
    reader = outs[0].name if end is None else end.name
    first, second = find_tile(s, acc, host), find_tile(s, chain.sums, reader)
    if first is None or second is None or first.row == first.col:
        return False
    for other in outs[1:]:
        if end is not None or not s.attempt(ComputeWith(other.name, second.names[-1])):
            return False
    many, keys = (s.nest.buffer(host).shape[k] for k in (first.row, first.col))
    if not isinstance(many, int) and not (first.large or second.large or second.group):
        # Blocks of whole tiles of both products, and as few cases of rows that are left over.
        second.rows = second.most = min(second.rows, first.rows)
    rows = D.bounds(many)[1]
    # Of an unknown number there is memory for as many as a call has, and blocks suit a usual one.
    keys = keys if isinstance(keys, int) else min(D.bounds(keys)[1], USUAL_KEYS)
    size = keys * s.nest.buffer(host).dtype.bytes
    # At least one tile: fusion has made sure that its rows are not too long.
    most = min(s.target.l2 // SHARE, s.target.stack) // max(1, size)
    most = max(first.rows, min(most, _rows_of_a_thread(s, second, rows)))
    if second.row >= len(second.names) - 1:
        return False
    if isinstance(many, int):
        block = block_rows(rows, first.rows, most)
    else:
        block = whole_tiles(first.rows, min(most, ANY_ROWS))
    if s.choices.block is not None:
        block = min(rows, most, s.choices.block)
    between = [x for x in stages if x not in (*outs, chain.scores, chain.sums, end)]
    if chain.host is None:
        between.insert(0, chain.scores)
    if end is None:
        _schedule(s, first, second, between, block)
    else:
        _schedule_parts(s, first, second, between, block, outs[0].name)
    return True


def _rows_of_a_thread(s: Scheduler, t: Tile, rows: int) -> int:
    """Of each matrix, such that every thread has some."""
    around = (x for k, x in enumerate(t.names) if k not in (t.row, t.col))
    matrices = prod(D.bounds(s.loops(x)[0].extent)[1] for x in around)
    return rows // -(-s.target.cores // max(1, matrices))


def block_rows(rows: int, tile: int, most: int) -> int:
    """Rows of a block: a part of them all that fills tiles, about BLOCK_ROWS, at most `most`;
    otherwise whole tiles, and what is left at the end is a block of its own."""
    if rows <= min(most, BLOCK_ROWS):
        return rows
    parts = [d for d in range(tile, most + 1) if rows % d == 0]
    few = [d for d in parts if d <= BLOCK_ROWS] or parts[:1]
    wasted = {d: -(-d // tile) * tile / d for d in few}
    best = min(wasted.values(), default=2)
    if best > 1.15:
        return whole_tiles(tile, most)
    return max(d for d in few if wasted[d] <= best + 0.02)


def whole_tiles(tile: int, most: int) -> int:
    return max(tile, min(most, BLOCK_ROWS) // tile * tile)


def _inlined(s: Scheduler, chain: _Chain) -> list[Stage]:
    """Maps become part of what reads them, but for what the contractions write and read."""
    stages: list[Stage] = []
    for st in s.group.stages:
        if st.is_map and s.group.buffer(st.name).scope == "local":
            value = s.store(st.name).value
            stored = st.name in (chain.host, chain.weights)
            if not stored and not (cost(value) and _read_often(s, st.name)):
                if s.attempt(ComputeInline(st.name)):
                    continue
        stages.append(st)
    return stages


def _read_often(s: Scheduler, name: str) -> bool:
    stores = [x for x, _ in walk_nest(s.nest.body) if isinstance(x, Store)]
    return sum(any(r.source == name for r in store_reads(x)) for x in stores) > 1


def moved_stage(s: Scheduler, st: Stage, into: str) -> Stage:
    """The stage that CacheWrite has made of another one."""
    path = s.path(into)
    axes = tuple(q.var for q in path[: len(st.axes)])
    raxes = tuple(q.var for q in path[len(st.axes) :])
    where = tuple(map(D.as_int, axes))
    return replace(st, name=into, axes=axes, raxes=raxes, where=where, value=s.store(into).value)


def _schedule(s: Scheduler, first: Tile, second: Tile, between: list[Stage], block: int) -> None:
    m = second.names[second.row]
    outer = [x for k, x in enumerate(second.names) if k not in (second.row, second.col)]
    rows = s.loops(m)[0].extent
    if rows != block or not outer:
        s.do(Split(m, block))
        outer.append(f"{m}.0")
        m = second.names[second.row] = f"{m}.1"
    s.do(Reorder((*outer, m, second.names[second.col])))
    even = isinstance(rows, int) and rows % block == 0
    # Threads first: every piece still writes its rows in one place. The loop over ragged blocks is
    # taken apart in the end, and those around it are shared.
    at = outer[-1]
    if even:
        at = _threads(s, outer, second.host)
    elif len(outer) > 1:
        _threads(s, outer[:-1], second.host)
    first.around = second.around = False
    placed = _block(s, first, second, between, at, even)
    if not even and s.attempt(Peel(at)) and len(outer) == 1:
        _threads(s, outer, second.host)
    for p in placed:
        fill_tile(s, p)


def _schedule_parts(
    s: Scheduler, first: Tile, second: Tile, between: list[Stage], block: int, out: str
) -> None:
    """Running results of a block of rows, to which its parts are added one after the other."""
    *outer, m, n = (q.name for q in s.path(out))
    s.do(Split(m, block))
    outer, m = [*outer, f"{m}.0"], f"{m}.1"
    s.do(Reorder((*outer, m, n)))
    rows = s.loops(m)[0].extent
    even = isinstance(rows, int)
    at = outer[-1]
    if even:
        at = _threads(s, outer, out)
    elif len(outer) > 1:
        _threads(s, outer[:-1], out)
    s.do(ComputeAt(second.host, at))
    parts = next(p.name for p in s.reduced(second.host) if p.name in second.names)
    first.around = second.around = False
    placed = _block(s, first, second, between, parts, even)
    if not even and s.attempt(Peel(at)) and len(outer) == 1:
        _threads(s, outer, out)
    for p in placed:
        fill_tile(s, p)
    vector_loop(s, n, LANES)
    first_values = f"{second.host}.init.i{len(s.nest.buffer(second.host).shape) - 1}"
    vector_loop(s, first_values, LANES)


def _block(
    s: Scheduler, first: Tile, second: Tile, between: list[Stage], at: str, even: bool
) -> tuple[Placed, Placed]:
    """All stages of a block of rows at a loop."""
    # Ragged blocks: sums go right to the tiles, since a stage that was shrunk cannot move again.
    sums = None if even else place_tile(s, second)
    if sums is None:
        s.do(ComputeAt(second.acc, at))
    for st in reversed(between):
        s.do(ComputeAt(st.name, at))
    if even:
        s.do(ComputeAt(first.acc, at))
    if _positions(s):
        s.attempt(Trim(at))  # blocks of which nothing is seen
    sums = sums or place_tile(s, second)
    _trim_sums(s, sums)
    _row_by_row(s, [st for st in between if st.name != first.host])
    # Readers are placed before what they read: then it is known which part of that is needed.
    for st in between:
        if st.is_reduce and st.name != first.host:
            reduction_lanes(s, st.name)
            for name in (f"{st.name}p", st.name):
                _trim(s, name, even)
    for st in reversed(between):
        if not st.is_reduce and st.name != first.host:
            inner_lanes(s, st.name, LANES)
            _trim(s, st.name, even)
    scores = place_tile(s, first)
    if _positions(s):
        s.attempt(Trim(f"{scores.n}.0"))
    return scores, sums


def _threads(s: Scheduler, outer: list[str], host: str) -> str:
    """Threads over loops, as far as they become one; the innermost of what they then are."""
    left = list(outer)
    while len(left) > 1:
        into = f"{host}.q{len(outer) - len(left)}"
        if not s.attempt(Fuse(left[0], left[1], into)):
            break
        left[:2] = [into]
    s.attempt(Parallel(left[0]))
    return left[-1]


def _row_by_row(s: Scheduler, stages: list[Stage]) -> None:
    """Reductions of a row right before the map that needs them: the row is still in the cache."""
    for k, st in enumerate(stages):
        if st.is_reduce or not (own := s.own(st.name)):
            continue
        for other in stages[:k]:
            if other.is_reduce:
                s.attempt(ComputeAt(other.name, own[0].name))


def _trim(s: Scheduler, stage: str, even: bool) -> None:
    """Loops of a stage only where they matter, which positions decide, or the end of the rows."""
    if even and not _positions(s):
        return
    # Not the last loops alone: those of what a tail was peeled off come before it.
    found = [(x, p) for x, p in walk_nest(s.nest.body) if isinstance(x, Store)]
    loops = [q for x, p in found if x.stage == stage for q in own_loops(p, stage)]
    for name in dict.fromkeys(q.name for q in loops if q.kind == "serial"):
        s.attempt(Trim(name))


def _trim_sums(s: Scheduler, t: Placed) -> None:
    """The reduction of a tile, as far as one of its rows needs it."""
    inmost = t.blocks or t.tile.acc
    red = [q.name for q in s.reduced(inmost)]
    own = [f"{inmost}.{t.tile.axes[k]}" for k in (t.tile.row, t.tile.col)]
    order = (*red, *(x for x in own if s.loops(x)))
    if _positions(s) and (len(order) < 2 or s.attempt(Reorder(order))):
        for name in red:
            s.attempt(Trim(name))
        # Parts of it that nothing is left of: scores that only these read are not computed.
        for q in s.reduced(t.tile.acc) if t.blocks is not None else ():
            s.attempt(Trim(q.name))


def _positions(s: Scheduler) -> bool:
    """Does a value depend on its position? Nothing else can be left out."""
    return any(isinstance(v, Index) for st in s.group.stages for v in walk_value(st.value))
