"""Long sums of a GPU over everything but neighbouring results: of the columns of a matrix, such as
gradients of biases and statistics of channels.

A block sums up a piece of all rows and some columns, which its threads read in whole vectors; those
that have the same columns then combine what they have. The last block of those columns adds up the
pieces and does what follows to the results, or a second launch where that is faster: its blocks
have fewer columns each.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.kernel.axis import moved
from tilewright.kernel.defaults.grid_lanes import vector_lanes
from tilewright.kernel.defaults.grid_products import same_places
from tilewright.kernel.defaults.grid_totals import pays
from tilewright.kernel.defaults.inlining import inline_maps
from tilewright.kernel.defaults.scheduler import Scheduler
from tilewright.kernel.group import Stage
from tilewright.kernel.steps.barrier import Synchronise
from tilewright.kernel.steps.bind import Bind
from tilewright.kernel.steps.cache_write import CacheWrite
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.compute_inline import ComputeInline
from tilewright.kernel.steps.compute_with import ComputeWith
from tilewright.kernel.steps.finish_last import FinishLast
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.relayout import Relayout
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize

THREADS = 256  # of a block
# Vectors of a thread that are on their way at a time, the preferred number first.
BESIDE = (8, 7, 6, 5, 4)
BLOCKS = 2  # of a multiprocessor: as many pieces, with those of columns
SHORTEST = 256  # rows: fewer are summed up by one thread
LINE = 64  # neighbouring columns of a block, at least, where it has fewer than it could


def schedule_columns(s: Scheduler) -> bool:
    """Takes a group of long sums of the same columns, and maps of their results."""
    stages = inline_maps(s)
    sums = [x for x in stages if x.is_reduce]
    outs = [x for x in stages if s.group.buffer(x.name).scope == "out"]
    if not sums or s.group.precision == "strict" or any(not _is_plain(x) for x in stages):
        return False
    for x in stages:
        if x not in sums and x not in outs:
            s.do(ComputeInline(x.name))
    maps = [x for x in outs if x not in sums]
    if maps and not same_places(s, sums[0], maps, *sums[1:]):
        return False
    known = [_sizes(s, x.name) for x in sums]
    if known[0] is None or any(x != known[0] for x in known):
        return False
    columns, rows = known[0]
    own: list[str] = []  # what computes the sums, where one of them is a result
    for x in sums:
        into = f"{x.name}_c" if x in outs else x.name
        if x in outs:
            s.do(CacheWrite(x.name, into))
        own.append(into)
    loops = {x: _fused(s, x) for x in own}
    tile, last = _tile(s, own, loops, columns, rows)
    _pieces(s, own, loops, tile)
    assert s.target.grid is not None
    ends = (tile.across, tile.lanes) if last else (_power(columns, s.target.grid.warp), 1)
    _results(s, own, [x.name for x in outs], *ends)
    if last:
        s.do(FinishLast(s.path(f"{own[0]}_p")[0].name, f"{own[0]}_n"))
    s.do(Synchronise())
    return True


def _is_plain(x: Stage) -> bool:
    return not x.ordered and (x.combine is None or isinstance(x.combine, str))


def _sizes(s: Scheduler, stage: str) -> tuple[int, int] | None:
    """Columns and rows of a sum; None where neighbouring results do not read neighbours, or where
    it is not worth pieces."""
    data, reduced = s.axes(stage)
    own = [p for p in data if p.extent != 1]
    known = [p.extent for p in (*own, *reduced) if isinstance(p.extent, int)]
    if not own or len(known) != len(own) + len(reduced):
        return None
    columns, rows = prod(known[: len(own)]), prod(known[len(own) :])
    if rows < SHORTEST or vector_lanes(s, [stage], own[-1].var) == 1:
        return None
    return columns, rows


def _fused(s: Scheduler, stage: str) -> tuple[str, str]:
    """One loop over columns and one over rows."""
    made: list[str] = []
    data, reduced = s.axes(stage)
    for loops, letter in ((data, "d"), (reduced, "q")):
        flat = loops[0].name
        for k, inner in enumerate(loops[1:]):
            s.do(Fuse(flat, inner.name, f"{stage}.{letter}{k}"))
            flat = f"{stage}.{letter}{k}"
        made.append(flat)
    return made[0], made[1]


@dataclass(frozen=True)
class _Tile:
    """What a block has: threads along columns, lanes of each, rows of a piece; and how many blocks
    there are along columns and rows."""

    across: int
    lanes: int
    piece: int
    blocks: int
    pieces: int


def _tile(
    s: Scheduler, sums: list[str], loops: dict[str, tuple[str, str]], columns: int, rows: int
) -> tuple[_Tile, bool]:
    """The tiles of blocks, and whether the last of those with the same columns adds up the pieces.
    It has to read fewer of them where blocks have fewer columns, but still whole lines."""
    assert s.target.grid is not None
    lanes = min(vector_lanes(s, [x], s.loops(loops[x][0])[0].var) for x in sums)
    while columns % lanes:
        lanes //= 2
    most = _power(columns // lanes, s.target.grid.warp)
    found = [_tiled(s, a, lanes, columns, rows) for a in (most, most // 2) if a * lanes >= LINE]
    found = found or [_tiled(s, most, lanes, columns, rows)]
    if rows <= found[0].piece:
        raise Refused(f"{sums[0]} has too few rows for several blocks")
    item = sum(s.nest.buffer(x).dtype.bytes for x in sums)
    for tile in found if not s.choices.early else ():
        if rows > tile.piece and pays(tile.pieces * columns * item, tile.blocks):
            return tile, True
    return found[0], False


def _tiled(s: Scheduler, across: int, lanes: int, columns: int, rows: int) -> _Tile:
    assert s.target.grid is not None
    deep, blocks = THREADS // across, columns // lanes // across
    piece = deep * _turns(rows, deep, BLOCKS * s.target.grid.multiprocessors // blocks)
    return _Tile(across, lanes, piece, blocks, -(-rows // piece))


def _pieces(s: Scheduler, sums: list[str], loops: dict[str, tuple[str, str]], tile: _Tile) -> None:
    """Sums of pieces of the rows."""
    for x in sums:
        s.do(Split(loops[x][1], tile.piece))
        s.do(RFactor(x, (f"{loops[x][1]}.0",), f"{x}_p"))
        s.do(Relayout(f"{x}_p", "n, p -> p, n"))
        s.do(CacheWrite(f"{x}_p", f"{x}_o"))
    _hosted(s, {f"{x}_p": [f"{x}_o"] for x in sums}, tile.across, tile.lanes)


def _turns(rows: int, deep: int, pieces: int) -> int:
    """Rows of a piece that each thread has: enough for loads that are on their way together, and
    so many that all pieces are alike, if there is such a number."""
    least = max(BESIDE[-1], -(-rows // (deep * max(pieces, 1))))
    even = (k for k in range(least, 2 * least) if rows % (deep * k) == 0)
    return next(even, least)


def _power(size: int, most: int) -> int:
    """The largest power of two up to a number that divides a size."""
    return min(most, size & -size)


def _hosted(s: Scheduler, hosts: dict[str, list[str]], across: int, lanes: int) -> None:
    """Blocks of columns of what reads some sums, with these: rows are dealt out to threads, which
    then combine what they have. Several stages share the blocks."""
    first, *others = hosts
    inner = {x: s.path(x)[-1].name for x in hosts}
    for x, sums in hosts.items():
        s.do(Split(inner[x], across * lanes))
        for y in reversed(sums):
            s.do(ComputeAt(y, f"{inner[x]}.0"))
    for x in others:
        s.do(ComputeWith(x, f"{inner[first]}.0"))
    for x, sums in hosts.items():
        for y in sums:
            _shared(s, y, THREADS // across, lanes)
        threads = f"{inner[x]}.1"
        if lanes > 1:
            s.do(Split(threads, lanes))
            s.do(Vectorize(f"{threads}.1"))
            threads = f"{threads}.0"
        s.do(Split(threads, 1))  # one thread of those that have a result stores it
        s.do(Bind(f"{threads}.0", "thread.x"))
        s.do(Bind(f"{threads}.1", "thread.y"))
    outer = s.path(first)[0].name
    if outer != f"{inner[first]}.0":
        s.do(Bind(outer, "block.y"))
    s.do(Bind(f"{inner[first]}.0", "block.x"))


def _shared(s: Scheduler, stage: str, deep: int, lanes: int) -> None:
    data, (summed,) = s.axes(stage)
    d, r = next(p.name for p in data if p.extent != 1), summed.name
    s.do(Split(r, deep))
    own, part = f"{r}.1", f"{stage}q"
    s.do(RFactor(stage, (own,), part))
    column, mine, turns = (moved(x, part) for x in (d, own, f"{r}.0"))
    first = D.the_sym(s.first_store(part).index[0]).name
    last = next(D.the_sym(i).name for i in s.first_store(stage).index if D.is_sym(i))
    rank = len(s.nest.buffer(stage).shape)
    names = [f"n{k}" for k in range(rank)]
    if lanes > 1:
        for x in (d, column, first, last):
            s.do(Split(x, lanes))
        own_places = [*names[:-1], f"{names[-1]}//{lanes}", f"{names[-1]}%{lanes}"]
        s.do(Relayout(stage, f"{', '.join(names)} -> {', '.join(own_places)}"))
        s.do(Relayout(part, f"n, t -> n//{lanes}, n%{lanes}, t"))
    inner = [".0"] if lanes > 1 else [""]
    wide = [f"{column}.1"] if lanes > 1 else []
    s.do(Reorder((turns, f"{column}{inner[0]}", mine, *wide)))
    if s.loops(turns):
        _together(s, turns)
    if lanes > 1:
        s.do(Reorder((f"{d}.1", f"{d}.0", own)))
        s.do(Reorder((f"{first}.1", f"{first}.0")))
        s.do(Reorder((f"{last}.1", f"{last}.0")))
        s.do(Vectorize(f"{column}.1"))
        for x in (d, first, last):
            s.do(Unroll(f"{x}.1"))
    for x in (column, d, first, last):
        s.do(Bind(f"{x}{inner[0]}", "thread.x"))
    for x in (mine, own, D.the_sym(s.first_store(part).index[-1]).name):
        s.do(Bind(x, "thread.y"))


def _together(s: Scheduler, turns: str) -> None:
    """Some iterations of a loop are written out, so that their loads are on their way together."""
    count = s.loops(turns)[0].extent
    beside = next((k for k in BESIDE if isinstance(count, int) and count % k == 0), BESIDE[-1])
    if count != beside:
        s.do(Split(turns, beside))
        turns = f"{turns}.1"
    if s.loops(turns):
        s.do(Unroll(turns, not isinstance(s.loops(turns)[0].extent, int)))


def _results(s: Scheduler, sums: list[str], outs: list[str], across: int, lanes: int) -> None:
    """Sums of the pieces, and what follows, by blocks of their own."""
    for x in outs:
        path = s.path(x)
        flat = path[0].name
        for k, inner in enumerate(path[1:]):
            s.do(Fuse(flat, inner.name, f"{x}.w{k}"))
            flat = f"{x}.w{k}"
    (at,) = (p.name for p in s.path(outs[0]))
    for x in outs[1:]:
        s.do(ComputeWith(x, at))
    _hosted(s, {outs[0]: sums}, across, lanes)
