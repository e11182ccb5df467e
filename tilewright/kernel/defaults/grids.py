"""Default schedules of a GPU: blocks, threads and vectors of 16 bytes.

Shapes: maps (a flat walk through memory), matrix products (grid_products.py; of windows of images:
grid_convolutions.py), rows (a block for each, in registers between one read and one write of it)
and everything else, stage by stage in launches of its own, where each thread computes one result.
"""

from __future__ import annotations

from math import prod

from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.ir.expr import extent, loads
from tilewright.ir.target import Target
from tilewright.ir.value_text import value_text
from tilewright.kernel.axis import moved
from tilewright.kernel.defaults import grid_rows_ahead as ahead
from tilewright.kernel.defaults.choices import Choices
from tilewright.kernel.defaults.grid_chains import schedule_chain
from tilewright.kernel.defaults.grid_columns import schedule_columns
from tilewright.kernel.defaults.grid_convolutions import schedule_convolution
from tilewright.kernel.defaults.grid_few_sums import schedule_few_sums
from tilewright.kernel.defaults.grid_lanes import aligned_lanes, vector_lanes
from tilewright.kernel.defaults.grid_library import call_library
from tilewright.kernel.defaults.grid_product_chains import schedule_products
from tilewright.kernel.defaults.grid_products import schedule_product
from tilewright.kernel.defaults.grid_row_blocks import (
    schedule_early_row_blocks,
    schedule_row_blocks,
)
from tilewright.kernel.defaults.grid_stages import THREADS, flat, plain, stage_by_stage
from tilewright.kernel.defaults.grid_streams import schedule_streams
from tilewright.kernel.defaults.grid_totals import before_totals, schedule_ends
from tilewright.kernel.defaults.grid_windows import schedule_windows
from tilewright.kernel.defaults.inlining import inline_maps
from tilewright.kernel.defaults.maps import collapse, fuse_outer
from tilewright.kernel.defaults.rows import common_prefix
from tilewright.kernel.defaults.scheduler import Scheduler, contiguous, store_reads
from tilewright.kernel.group import Group, Stage
from tilewright.kernel.nest import Loop, Nest, Store
from tilewright.kernel.nest import walk as walk_nest
from tilewright.kernel.step import Step, Trace
from tilewright.kernel.steps.align import Align
from tilewright.kernel.steps.barrier import Synchronise
from tilewright.kernel.steps.bind import Bind
from tilewright.kernel.steps.cache_read import CacheRead
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.compute_inline import ComputeInline
from tilewright.kernel.steps.compute_with import ComputeWith
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.materialise import Materialise
from tilewright.kernel.steps.pragma import MOST_RESIDENT, Pragma
from tilewright.kernel.steps.relayout import Relayout
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize

FEWEST = 128  # threads of a block that has short rows
# Elements of a row that a thread has: few enough for registers, enough loads at a time. Of single
# elements, which take as many loads, twice as many (measured on an H200).
SHARE = 16
LARGEST_SHARE = 24
# The same of rows that are only read: sums over threads are most of what is left to do for them,
# and no results take registers.
READ_SHARE = 32
BESIDE_ENDS = 4  # vectors of a thread, at least, of rows that have single elements at both ends
# Threads of a multiprocessor, 56 registers each, where such rows read several arguments besides.
ENDS_THREADS: int = 1152
# Products of a row with a matrix, which is read once: a warp for each result, so many in a block,
# and so many vectors of each that are on their way at a time.
WARP = 32
WARPS: int = 4
BESIDE: int = 16
# Where warps make the row themselves: results of a warp at most.
MOST_ROWS = 16
# Blocks on a multiprocessor, between which registers are divided. Left to itself (0) the assembler
# takes few, so that many blocks fit: then two loads are on their way instead of eight. Rows that
# warps make themselves take more.
RESIDENT: int = 4
ROW_RESIDENT = 2


def grid_schedule(group: Group, target: Target, choices: Choices) -> tuple[Trace, Nest]:
    """The trace and the nest it leads to."""
    if choices.library:
        return _with_library(group, target)
    for shape in _TILED if choices.tile else _SHAPES:
        s = Scheduler(group, target, choices)
        try:
            if shape(s):
                return tuple(s.trace), s.nest
        except Refused:  # a shape that does not fit; the next one starts again
            continue
    if choices.tile:
        raise Refused(f"{group.name} has no other tile")
    s = Scheduler(group, target, choices)
    stage_by_stage(s)
    return tuple(s.trace), s.nest


def _with_totals(s: Scheduler) -> bool:
    """Whatever else a kernel does, and reductions of all its results by the last of its blocks."""
    start = s.nest
    for again in (True, False):
        head = before_totals(s.group, again)
        if head is None:
            return False
        s.nest, s.trace[:] = start, []
        try:
            for step in grid_schedule(head, s.target, s.choices)[0]:
                s.do(step)
            schedule_ends(s, head)
            return True
        except Refused:
            continue
    return False


def _with_library(group: Group, target: Target) -> tuple[Trace, Nest]:
    """A library is called for the sum of products; Refused where it computes no such thing."""
    s = Scheduler(group, target)
    rest = call_library(s)
    for step in grid_schedule(rest, target, Choices())[0] if rest is not None else ():
        s.do(step)
    return tuple(s.trace), s.nest


# ---- maps


def _maps(s: Scheduler) -> bool:
    stages = inline_maps(s)
    outs = [x for x in stages if s.group.buffer(x.name).scope == "out"]
    if len(outs) != len(stages) or any(not x.is_map for x in stages):
        return False
    names = [x.name for x in outs]
    host = names[0]
    if all(len(s.path(n)) == len(s.path(host)) for n in names):
        collapse(s, names)
    for name in names[1:]:
        if not (s.path(host) and s.attempt(ComputeWith(name, s.path(host)[-1].name))):
            _map_alone(s, name)
    _map_alone(s, host)
    return True


def _map_alone(s: Scheduler, stage: str) -> None:
    """A stage's own loops as vectors, threads and blocks."""
    path = s.path(stage)
    if not path:
        return
    fuse_outer(s, [stage], len(path) - 1)
    path = s.path(stage)
    if len(path) > 2:
        names = [p.name for p in path]
        plain(s, names, stage, names)
        return
    last = path[-1]
    lanes = vector_lanes(s, [stage], last.var)
    over = last.name
    if lanes > 1:
        s.do(Split(over, lanes))
        s.do(Vectorize(f"{over}.1", masked=not _divides(lanes, last.extent)))
        over = f"{over}.0"
    if len(path) == 2:
        s.do(Fuse(path[0].name, over, f"{stage}.v"))
        over = f"{stage}.v"
    flat(s, over, THREADS)


def _divides(k: int, extent: D.Dim) -> bool:
    return D.known_eq(D.mod(extent, k), 0)


# ---- rows


def _stored_once(s: Scheduler) -> bool:
    """Rows that have one result each, which one thread of the row stores."""
    return _rows(s, once=True)


def _read_ahead(s: Scheduler) -> bool:
    return ahead.AHEAD > 0 and _rows(s, once=True, walks=True)


def _rows(s: Scheduler, once: bool = False, walks: bool = False) -> bool:
    """A block for every row, or for a few short ones: what is read of it is read once, all else is
    in registers."""
    stages = inline_maps(s)
    outs = [x for x in stages if s.group.buffer(x.name).scope == "out"]
    inner = [x for x in stages if x not in outs]
    if not inner or any(x.ordered for x in stages):
        return False
    host = max(outs, key=lambda x: len(x.axes)).name
    prefix = common_prefix(s, inner, outs, host)
    sums = [x for x in inner if x.is_reduce]
    if prefix == 0 or not sums or any(len(x.raxes) != 1 for x in sums):
        return False
    loops = [s.path(x.name)[-1] for x in sums]
    width = loops[0].extent
    if any(not D.known_eq(p.extent, width) for p in loops):
        return False
    if not all(contiguous(s, s.store(x.name), p.var) for x, p in zip(sums, loops, strict=True)):
        return False
    small = isinstance(width, int) and width <= LARGEST_SHARE * _most_threads(s)
    if not small:
        # The row does not fit registers: it is read again, and what it is made into is made again.
        for x in [x for x in inner if x.is_map and len(x.axes) > prefix]:
            s.do(ComputeInline(x.name))
            inner.remove(x)
    copies = _copies(s, [*inner, *outs], prefix, width) if small else []
    early = [m for x in outs for m in _selected(s, x.name)] if once else []
    names = [x.name for x in outs]
    brought = ahead.bring(s, copies) if walks else []
    return _block_per_row(s, host, names, inner, copies, brought, early, prefix, width, once)


def _selected(s: Scheduler, out: str) -> list[str]:
    """What a result reads of an argument at a place that is read itself, as stages: such reads wait
    for each other, so they begin with the row instead of after its sums."""
    made: list[str] = []
    for r in store_reads(s.store(out)):
        data = any(True for i in r.index for _ in D.data_values(i))
        into = f"{out}_at{len(made)}"
        if data and s.nest.buffer(str(r.source)).scope == "in":
            if s.attempt(Materialise(out, value_text(r), into)):
                made.append(into)
    return made


def _most_threads(s: Scheduler) -> int:
    assert s.target.grid is not None
    return s.target.grid.block_threads


def _copies(s: Scheduler, stages: list[Stage], prefix: int, width: D.Dim) -> list[str]:
    """Copies of inputs that several stages read along the row, element by element."""
    readers: dict[str, list[str]] = {}
    for x in stages:
        path, store = s.path(x.name), s.store(x.name)
        for r in store_reads(store):
            b = s.nest.buffer(str(r.source))
            if b.scope != "in" or len(r.index) != prefix + 1 or len(path) <= prefix:
                continue
            last = path[-1]
            column = D.is_sym(r.index[-1]) and D.the_sym(r.index[-1]) is last.var
            if column and D.known_eq(last.extent, width) and D.known_eq(b.shape[-1], width):
                readers.setdefault(b.name, [])
                readers[b.name] += [x.name] if x.name not in readers[b.name] else []
    made: list[str] = []
    for name, found in readers.items():
        into = f"{name}_row"
        if len(found) > 1 and s.attempt(CacheRead(name, tuple(found), into)):
            made.append(into)
    return made


def _block_per_row(
    s: Scheduler,
    host: str,
    outs: list[str],
    inner: list[Stage],
    copies: list[str],
    brought: list[str],
    early: list[str],
    prefix: int,
    width: D.Dim,
    once: bool,
) -> bool:
    for o in outs:
        for j in range(prefix - 1):
            p = s.path(o)
            s.do(Fuse(p[0].name, p[1].name, f"{o}.o{j}"))
    at = s.path(host)[0].name
    placed: set[str] = set()
    for o in outs:
        if o != host:
            if not s.attempt(ComputeWith(o, at)):
                # What only this output reads stands between the two: it goes into its loop first.
                own = {o}
                for x in (*(x.name for x in reversed(inner)), *copies):
                    if x not in placed and _readers(s, x) <= {x, *own}:
                        s.do(ComputeAt(x, s.path(o)[0].name))
                        own.add(x)
                placed |= own
                s.do(ComputeWith(o, at))
            at = s.path(host)[0].name
    sums = [x.name for x in inner if x.is_reduce]
    streamed = not copies and len(sums) == len(inner) and _streamed(s, sums, outs, width)
    if once and any(len(s.path(x)) != 1 for x in outs):
        return False
    if once:
        s.do(Split(at, 1))
        at = f"{at}.0"
    for name in [*early, *(x.name for x in reversed(inner)), *copies, *brought]:
        if name not in placed:
            s.do(ComputeAt(name, at))
    along = [*brought, *copies, *(x.name for x in inner), *outs]
    columns = {x: p for x in along if (p := _column(s, x, at, width)) is not None}
    lanes = vector_lanes(s, list(columns), *(p.var for p in columns.values()))
    unrolled = isinstance(width, int) and width <= LARGEST_SHARE * _most_threads(s)
    share = READ_SHARE if once else SHARE
    threads = WARP if streamed else _threads(s, width, lanes, share, at)
    crowded = 0  # threads of a multiprocessor that there have to be registers for
    if unrolled and not streamed and not brought:
        assert isinstance(width, int)
        row = s.loops(at)[0].var
        wide = aligned_lanes(s, list(columns), row, width, *(p.var for p in columns.values()))
        by = _threads(s, width - wide, wide, max(share, BESIDE_ENDS * wide), at)
        align = Align(tuple(p.name for p in columns.values()), at, wide, by)
        besides = _besides(s, list(columns), row)
        if wide > lanes and s.attempt(align):
            lanes, threads = wide, by
            crowded = ENDS_THREADS if besides > 1 and wide > SHARE // BESIDE_ENDS else 0
    for x, p in columns.items():
        if streamed:
            _stream(s, x, p.name, lanes)
        elif x in sums:
            _sum(s, x, p.name, lanes, threads, unrolled)
        else:
            _spread(s, p.name, lanes, threads, unrolled)
    if once:
        s.do(Bind(f"{at.removesuffix('.0')}.1", "thread.x"))
    if isinstance(width, int):
        for x in (*copies, *(x.name for x in inner if x.name in columns and x.name not in sums)):
            _in_registers(s, x, lanes, threads)
    rows = _rows_together(s, at, WARPS * WARP if streamed else FEWEST, threads)
    if brought:
        ahead.walk_rows(s, at, brought, lanes, threads, rows)
        return True
    several = (Split(at, rows), Bind(f"{at}.0", "block.x"), Bind(f"{at}.1", "thread.y"))
    together = rows > 1 and _all(s, *several, Synchronise())
    if not together:
        s.do(Bind(at, "block.x"))
        s.do(Synchronise())
    resident = RESIDENT if streamed else crowded // (threads * (rows if together else 1))
    if 0 < resident <= MOST_RESIDENT:
        s.do(Pragma(f"{at}.0" if together else at, "resident", resident))
    return True


def _besides(s: Scheduler, stages: list[str], row: D.Sym) -> int:
    """How many arguments are read along rows that are the same for all rows."""
    found: set[str] = set()
    for x in stages:
        for r in store_reads(s.store(x)):
            along = r.index and row not in set().union(*(D.symbols(i) for i in r.index))
            if along and s.nest.buffer(str(r.source)).scope == "in":
                found.add(str(r.source))
    return len(found)


def _readers(s: Scheduler, buffer: str) -> set[str]:
    """Stages that use a buffer, the one that fills it among them."""
    found = [x for x, _ in walk_nest(s.nest.body) if isinstance(x, Store)]
    reads = {x.stage for x in found if any(r.source == buffer for r in store_reads(x))}
    return reads | {x.stage for x in found if x.buffer == buffer}


def _all(s: Scheduler, *steps: Step) -> bool:
    """Takes these steps, or none of them."""
    before = s.nest, list(s.trace)
    if all(map(s.attempt, steps)):
        return True
    s.nest, s.trace[:] = before
    return False


def _rows_together(s: Scheduler, at: str, fewest: int, threads: int) -> int:
    """Short rows share a block, so that a multiprocessor has enough threads; all blocks have as
    many, since threads of a block come to their sums together."""
    rows, extent = max(1, fewest // threads), s.loops(at)[0].extent
    while rows > 1 and not _divides(rows, extent):
        rows //= 2
    return rows


def _column(s: Scheduler, stage: str, at: str, width: D.Dim) -> Loop | None:
    """The loop of a stage along the row."""
    own = [p for p in s.path(stage) if p.name != at and p.extent != 1]
    if not own:
        return None
    if len(own) > 1 or not D.known_eq(own[0].extent, width):
        raise Refused(f"{stage} has other loops than one along the row")
    return own[0]


def _threads(s: Scheduler, width: D.Dim, lanes: int, share: int, at: str) -> int:
    """Threads of a row: so many that each has a share for its registers. A short row has a part of
    a warp, if other rows fill the rest of it."""
    if not isinstance(width, int):
        return THREADS
    share = max(share if lanes > 1 else 2 * share, lanes)
    threads = 32
    while threads < _most_threads(s) and threads * share < width:
        threads *= 2
    while threads > 1 and threads // 2 * share >= width:
        threads //= 2
    # Fewer threads with larger shares, where those leave fewer places without an element.
    fewer = threads // 2
    if fewer and _places(width, lanes, fewer) <= min(fewer * LARGEST_SHARE, width + width // 8):
        if _places(width, lanes, threads) > width + width // 8:
            threads = fewer
    return threads if _divides(max(1, 32 // threads), s.loops(at)[0].extent) else 32


def _places(width: int, lanes: int, threads: int) -> int:
    """Elements of a row, rounded up to whole turns of its threads."""
    return -(-width // (threads * lanes)) * threads * lanes


def _split(s: Scheduler, loop: str, lanes: int, threads: int) -> tuple[str, str, str | None]:
    """(turns, threads, lanes) of a loop along the row."""
    vectors, lane = loop, None
    if not s.loops(loop):  # Align has done it
        return f"{loop}.0.0", f"{loop}.0.1", f"{loop}.1"
    if lanes > 1:
        s.do(Split(loop, lanes))
        vectors, lane = f"{loop}.0", f"{loop}.1"
    s.do(Split(vectors, threads))
    return f"{vectors}.0", f"{vectors}.1", lane


def _finish(s: Scheduler, turns: str, threads: str, lane: str | None, unrolled: bool) -> None:
    if s.loops(threads):
        s.do(Bind(threads, "thread.x"))
    if unrolled and s.loops(turns):
        s.do(Unroll(turns))
    if lane is not None and s.loops(lane):
        s.do(Vectorize(lane))


def _spread(s: Scheduler, loop: str, lanes: int, threads: int, unrolled: bool) -> None:
    _finish(s, *_split(s, loop, lanes, threads), unrolled)


def _sum(s: Scheduler, stage: str, loop: str, lanes: int, threads: int, unrolled: bool) -> None:
    """A partial result for every thread, then one of all threads."""
    turns, own, lane = _split(s, loop, lanes, threads)
    part = f"{stage}p"
    s.do(RFactor(stage, (own,), part))
    axis = len(s.nest.buffer(part).shape) - 1
    s.do(Bind(f"{part}.init.i{axis}", "thread.x"))
    mine = [x if x is None else moved(x, part) for x in (turns, own, lane)]
    assert mine[0] is not None and mine[1] is not None
    _finish(s, mine[0], mine[1], mine[2], unrolled)
    s.do(Bind(own, "thread.x"))


def _streamed(s: Scheduler, sums: list[str], outs: list[str], width: D.Dim) -> bool:
    """Are these products of rows of a matrix, each read once, with something much smaller?"""
    if not isinstance(width, int) or any(len(s.path(x)) != 1 for x in outs):
        return False
    for x in sums:
        path = [p for p in s.path(x) if p.extent != 1]
        reads = [r for r in store_reads(s.store(x)) if str(r.source) != x]
        moving = [[p for p in path if any(p.var in D.symbols(i) for i in r.index)] for r in reads]
        lanes = vector_lanes(s, [x], path[-1].var)
        if len(reads) != 2 or lanes == 1 or width % (WARP * lanes):
            return False
        if sorted(map(len, moving)) != [1, len(path)] or len(path) < 2:
            return False
    return True


def _stream(s: Scheduler, stage: str, loop: str, lanes: int, beside: int = 0) -> None:
    """A sum by one warp; some vectors of a thread are on their way at a time."""
    turns, own, lane = _split(s, loop, lanes, WARP)
    part = f"{stage}p"
    s.do(RFactor(stage, (own,), part))
    axis = len(s.nest.buffer(part).shape) - 1
    s.do(Bind(f"{part}.init.i{axis}", "thread.x"))
    again = moved(turns, part)
    count = s.loops(again)[0].extent if s.loops(again) else 1
    beside = beside or next((k for k in (BESIDE, 6, 5, 4, 3, 2) if _divides(k, count)), 1)
    if count != beside:
        s.do(Split(again, beside))
        again = f"{again}.1"
    s.do(Bind(moved(own, part), "thread.x"))
    if s.loops(again):
        s.attempt(Unroll(again))
    if lane is not None and s.loops(moved(lane, part)):
        s.do(Vectorize(moved(lane, part)))
    s.do(Bind(own, "thread.x"))


def _in_registers(s: Scheduler, buffer: str, lanes: int, threads: int) -> None:
    """A row laid out so that one axis is the thread: each has memory for its own part only."""
    shape = s.nest.buffer(buffer).shape
    if not shape or prod(1 if isinstance(d, int) else 0 for d in shape) == 0:
        return
    axes = [f"i{k}" for k in range(len(shape))]
    c = axes[-1]
    places = [*axes[:-1], f"{c}//{threads * lanes}", f"{c}//{lanes}%{threads}", f"{c}%{lanes}"]
    if lanes == 1:
        places = [*axes[:-1], f"{c}//{threads}", f"{c}%{threads}"]
    s.do(Relayout(buffer, f"{', '.join(axes)} -> {', '.join(places)}"))


# ---- products of a row that each warp makes for itself


def _made_row(s: Scheduler) -> bool:
    """Products of one row with the rows of matrices, where the row is made in the kernel: a warp
    makes it in its registers, then multiplies some rows of the matrices."""
    stages = s.group.stages
    outs = [x for x in stages if s.group.buffer(x.name).scope == "out"]
    products = [x for x in stages if x.is_reduce and any(extent(a) != 1 for a in x.axes)]
    if len(outs) != 1 or not products or any(x.ordered or len(x.raxes) > 1 for x in stages):
        return False
    made = {_row_of(s, x) for x in products}
    row = made.pop()
    if row is None or made:
        return False
    for x in stages:
        if x.is_map and x.name != row and x not in outs:
            s.do(ComputeInline(x.name))
    host = outs[0].name
    while len(path := s.path(host)) > 1:
        s.do(Fuse(path[0].name, path[1].name, f"{host}.o{len(path)}"))
    at = path[0].name
    s.do(Split(at, 1))  # one lane of the warp stores a result
    turns = _rows_of_a_warp(s, path[0].extent)
    s.do(Split(f"{at}.0", turns))
    for x in reversed(products):
        s.do(ComputeAt(x.name, f"{at}.0.1"))
    before = [x.name for x in stages if x.is_reduce and x not in products]
    for name in (row, *reversed(before)):
        s.do(ComputeAt(name, f"{at}.0.0"))
    loops = {x: s.path(x)[-1] for x in (row, *before, *(x.name for x in products))}
    lanes = vector_lanes(s, list(loops), *(p.var for p in loops.values()))
    depth = loops[row].extent
    if not isinstance(depth, int) or depth % (WARP * lanes):
        return False
    for x in before:
        _sum(s, x, loops[x].name, lanes, WARP, True)
    _spread(s, loops[row].name, lanes, WARP, True)
    for x in products:
        _stream(s, x.name, loops[x.name].name, lanes, depth // (WARP * lanes))
    _in_registers(s, row, lanes, WARP)
    s.do(Bind(f"{at}.1", "thread.x"))
    warps = _rows_together(s, f"{at}.0.0", WARPS * WARP, WARP)
    s.do(Split(f"{at}.0.0", warps))
    s.do(Bind(f"{at}.0.0.0", "block.x"))
    s.do(Bind(f"{at}.0.0.1", "thread.y"))
    s.do(Pragma(f"{at}.0.0.0", "resident", ROW_RESIDENT))
    s.do(Synchronise())
    return True


def _row_of(s: Scheduler, product: Stage) -> str | None:
    """The stage of the group that a product multiplies a matrix with, if it is one row."""
    found = [x for x in loads(product.value) if str(x.source) != product.name]
    moving = {a for a in product.axes if extent(a) != 1}
    rows = {str(x.source) for x in found if not moving & x.symbols()}
    if len(rows) != 1:
        return None
    (name,) = rows
    local = s.group.buffer(name).scope == "local"
    return name if local and any(x.name == name and x.is_map for x in s.group.stages) else None


def _rows_of_a_warp(s: Scheduler, rows: D.Dim) -> int:
    """How many results a warp computes: few turns of all blocks that run at a time, and of these
    choices the most, since the row is made once for all of them."""
    assert s.target.grid is not None
    if not isinstance(rows, int):
        return 1
    beside = ROW_RESIDENT * s.target.grid.multiprocessors * WARPS
    choices = [k for k in range(1, MOST_ROWS + 1) if rows % (k * WARPS) == 0] or [1]
    return min(choices, key=lambda k: (-(-rows // (k * beside)) * k, -k))


# In more than one way.
_TILED = (schedule_chain, schedule_products, schedule_convolution, schedule_product)
# Tried in turn; what none of them takes is scheduled stage by stage.
_SHAPES = (
    _with_totals,
    schedule_chain,
    schedule_products,
    schedule_streams,
    _made_row,
    schedule_early_row_blocks,
    schedule_row_blocks,
    _maps,
    schedule_convolution,
    schedule_product,
    _read_ahead,
    _stored_once,
    _rows,
    schedule_windows,
    schedule_few_sums,
    schedule_columns,
)
