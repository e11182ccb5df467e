"""Rows and columns: all of one row in one iteration, or of a block of short rows; reductions as
partial results over lanes."""

from __future__ import annotations

from math import prod

from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.ir.dim import Int
from tilewright.ir.expr import Load
from tilewright.kernel.axis import moved
from tilewright.kernel.defaults.cascades import cascade, cascades, fuse_reduced
from tilewright.kernel.defaults.cases import cases_in_row
from tilewright.kernel.defaults.long_columns import sum_pieces
from tilewright.kernel.defaults.maps import must_divide, schedule_alone
from tilewright.kernel.defaults.result_tiles import tile_results
from tilewright.kernel.defaults.scheduler import (
    PIECE,
    USUAL,
    Scheduler,
    accesses,
    affine,
    can_fuse,
    contiguous,
    cost,
    lanes_and_rest,
    lanes_for,
    points,
    store_reads,
    vector_loop,
    work_per_point,
)
from tilewright.kernel.defaults.short_columns import schedule_short_columns
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.group import Stage
from tilewright.kernel.nest import Loop, Path, Store, sources
from tilewright.kernel.nest import walk as walk_nest
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.compute_with import ComputeWith
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.vectorize import MAX_LANES, Vectorize


def schedule_rows(s: Scheduler, inner: list[Stage], outs: list[Stage]) -> None:
    """Everything of one row in one iteration of the host output's outer loops."""
    host = max(outs, key=lambda x: len(x.axes)).name
    prefix = common_prefix(s, inner, outs, host)
    columns = all(st.is_reduce for st in inner) and prefix == len(s.path(host)) > 0
    if columns and _short_windows(s, inner) and _tiled(s, inner, outs):
        return
    if columns and sum_pieces(s, inner):
        for st in inner:
            reduction_lanes(s, st.name)
        for o in outs:
            schedule_alone(s, o.name)
        return
    if prefix == 0 or (columns and _apart(s, inner)):
        sums = [st for st in inner if st.is_reduce]
        parts = s.apart([st.name for st in sums])
        for st in sums:
            reduction_lanes(parts.get(st.name, s), st.name)
        s.join(parts)
        results = {p.name for o in outs for p in s.path(o.name)}
        for st in reversed([st for st in inner if not st.is_reduce]):
            _stored_map(s, st.name, results)
        for o in outs:
            schedule_alone(s, o.name)
        return
    if _are_columns(s, inner, outs) and _share_loops(s, outs):
        if not schedule_short_columns(s, inner[0].name, outs[-1].name):
            _columns(s, inner[0].name, outs[-1].name)
        return
    if _short_sums(s, inner, outs, prefix) and _tiled(s, inner, outs):
        return
    if _has_costly_numbers(s, inner, outs, prefix) and _in_blocks(s, inner, outs, prefix):
        return
    for o in outs:
        for j in range(prefix - 1):
            first, second, *_ = s.path(o.name)
            if not s.attempt(Fuse(first.name, second.name, f"{o.name}.o{j}")):
                break
    at = _together(s, inner, outs, host, 0)
    row = 1
    for st in inner:
        row += work_per_point(s, st.name) * points(s, st.name)
        if st.is_reduce:
            reduction_lanes(s, st.name)
        else:
            inner_lanes(s, st.name)
    for o in outs:
        row += work_per_point(s, o.name) * points(s, o.name)
        inner_lanes(s, o.name)
    if s.loops(at):
        s.parallel(at, row)


def _apart(s: Scheduler, inner: list[Stage]) -> bool:
    """Are these several sums of columns, which no loops are around?"""
    last = [s.axes(st.name)[0][-1].var for st in inner]
    beside = [contiguous(s, s.store(st.name), v) for st, v in zip(inner, last, strict=True)]
    return len(inner) > 1 and any(beside)


def _together(s: Scheduler, inner: list[Stage], outs: list[Stage], host: str, depth: int) -> str:
    """All stages inside the host's loop of this depth, whose name it gives."""
    names = [o.name for o in outs]
    # From the last output back, each with what it alone reads: no nest on the way reads ahead of
    # its producer. The one output moves to those that share loops already, not the other way round:
    # what has moved is never rewritten again.
    for later, earlier in zip(names[:0:-1], names[-2::-1], strict=True):
        for st in reversed(inner):
            if st.name in sources(s.path(later)[0]):
                s.attempt(ComputeAt(st.name, s.path(later)[depth].name))
        # Without sums, outputs of one shape share all loops, and what they compute alike.
        path = s.path(later)
        deep = not any(st.is_reduce for st in inner) and len(s.path(earlier)) == len(path)
        if not deep or not s.attempt(ComputeWith(earlier, path[-1].name)):
            s.attempt(ComputeWith(earlier, path[depth].name))
    at = s.path(host)[depth].name
    for st in reversed(inner):
        s.attempt(ComputeAt(st.name, at))
    return at


# Rows of a block: whole vectors of numbers on every target.
BLOCK = 16


def _has_costly_numbers(s: Scheduler, inner: list[Stage], outs: list[Stage], prefix: int) -> bool:
    """Are rows short, of numbers of which one takes long, such as the logarithm of a sum? A vector
    of it for several rows takes no longer."""
    stages = [*inner, *outs]
    if s.target.grid is not None or s.choices.lanes is not None:
        return False
    rest = [_own_points(s, st, prefix) for st in stages]
    host = max(outs, key=lambda x: len(x.axes))
    extent = s.path(host.name)[prefix - 1].extent
    return (
        isinstance(extent, int)
        and extent >= BLOCK
        and max(rest) <= SHORT
        and any(st.is_reduce for st in inner)
        and any(n == 1 and cost(s.store(st.name).value) for n, st in zip(rest, stages, strict=True))
    )


def _own_points(s: Scheduler, stage: Stage, prefix: int) -> int:
    """How many numbers of a row a stage goes through; very many where that is not known."""
    extents = [p.extent for p in s.path(stage.name)[prefix:]]
    return prod(e if isinstance(e, int) else SHORT + 1 for e in extents)


def _in_blocks(s: Scheduler, inner: list[Stage], outs: list[Stage], prefix: int) -> bool:
    """A block of rows at a time, each stage with loops of its own: lanes run along rows where a
    row has one number, and else along the row. False, and no step, where that is refused."""
    before = s.nest, list(s.trace)
    host = max(outs, key=lambda x: len(x.axes)).name
    ones = [st for st in (*inner, *outs) if _own_points(s, st, prefix) == 1]
    try:
        for o in outs:
            s.do(Split(s.path(o.name)[prefix - 1].name, BLOCK))
        at = _together(s, inner, outs, host, prefix - 1)
        if any(s.path(st.name)[prefix - 1].name != at for st in (*inner, *outs)):
            raise Refused("not all is computed in blocks")
    except Refused:
        s.nest, s.trace[:] = before
        return False
    work = sum(work_per_point(s, st.name) * points(s, st.name) for st in (*inner, *outs))
    for st in (*inner, *outs):
        if st.is_reduce:
            reduction_lanes(s, st.name)
        elif st not in ones:
            inner_lanes(s, st.name)
    top, *around = [p.name for p in s.path(host)[:prefix]]
    along = {s.path(st.name)[prefix].name: lanes_for(s, st.name) for st in ones}
    s.attempt(Peel(at))
    for st in (*inner, *outs):
        if st.is_reduce:
            _init_lanes(s, st.name, BLOCK)
    for x, lanes in along.items():
        vector_loop(s, x, lanes)
    for j, x in enumerate(around):
        into = f"{host}.o{j}"
        if not s.attempt(Fuse(top, x, into)):
            break
        top = into
    s.parallel(top, work)
    return True


def _stored_map(s: Scheduler, stage: str, results: set[str]) -> None:
    """A map that is stored since several places of a sum read it: a piece of it with each piece of
    the sum, or else by loops of its own. Loops of `results` would compute it again and again."""
    readers = [q.name for q in s.nest.body if isinstance(q, Loop) and stage in sources(q)]
    one = len(readers) == 1 and readers[0] not in results
    if one and s.attempt(ComputeAt(stage, readers[0])):
        inner_lanes(s, stage)
    else:
        schedule_alone(s, stage)


# Numbers of a reduction that are too few for partial results of their own.
SHORT = 64
# Numbers that are enough for a vector of their own.
FEW = 4


def _short_sums(s: Scheduler, inner: list[Stage], outs: list[Stage], prefix: int) -> bool:
    """Is this one reduction of a few numbers for each result, with no lanes along them: a window of
    an image, or a short row? Several outputs of one shape may be computed of each."""
    if len(inner) != 1 or not inner[0].is_reduce:
        return False
    if len({len(o.axes) for o in outs}) > 1:
        return False
    path, red = s.path(outs[-1].name), s.reduced(inner[0].name)
    extents = [p.extent if isinstance(p.extent, int) else SHORT + 1 for p in red]
    wide = [p for p in path if p.extent != 1]
    if prefix < len(path) or not extents or prod(extents) > SHORT or not wide:
        return False
    most = lanes_for(s, inner[0].name)
    few = extents[-1] <= most or not contiguous(s, s.store(inner[0].name), red[-1].var)
    # Of an axis that the call knows what is left of a vector is one under a mask.
    return few and D.bounds(wide[-1].extent)[1] >= most // 2


def _short_windows(s: Scheduler, inner: list[Stage]) -> bool:
    """Are these several sums of a few numbers for each result, the later ones of the earlier, such
    as a deviation from a mean, of windows that begin next to each other?"""
    for st in inner:
        data, red = s.axes(st.name)
        wide = [p for p in data if p.extent != 1]
        extents = [p.extent if isinstance(p.extent, int) else SHORT + 1 for p in red]
        if prod(extents) > SHORT or not wide or not contiguous(s, s.store(st.name), wide[-1].var):
            return False
        if D.bounds(wide[-1].extent)[1] < lanes_for(s, st.name) // 2:
            return False
    return len(inner) > 1


def _tiled(s: Scheduler, inner: list[Stage], outs: list[Stage]) -> bool:
    """Lanes along the last axis of the results; False, and no step, where that is refused."""
    before, host = (s.nest, list(s.trace)), outs[-1]
    wide = [k for k, p in enumerate(s.path(host.name)) if p.extent != 1]
    if not _share_loops(s, outs):
        return False
    try:
        tile_results(s, inner, host, wide[-1], wide[-2] if len(wide) > 1 else None)
    except Refused:
        s.nest, s.trace[:] = before
        return False
    return True


def short_columns(s: Scheduler, inner: list[Stage], outs: list[Stage]) -> bool:
    """False, and no step, where the stages are not one reduction before a short axis."""
    before = s.nest, list(s.trace)
    if _are_columns(s, inner, outs) and _share_loops(s, outs):
        if schedule_short_columns(s, inner[0].name, outs[-1].name):
            return True
        s.nest, s.trace[:] = before
    return False


def _are_columns(s: Scheduler, inner: list[Stage], outs: list[Stage]) -> bool:
    """Is this one reduction whose results lie next to each other, as what it reads does? Several
    outputs may be computed of each, such as a mean and a running one."""
    host = s.path(outs[-1].name)
    if not host or not _lane_axis(s, inner):
        return False
    alike = all(len(s.path(o.name)) == len(host) for o in outs)
    return alike and common_prefix(s, inner, outs, outs[-1].name) == len(host)


def _share_loops(s: Scheduler, outs: list[Stage]) -> bool:
    """All outputs in the loops of the last one; False, and no step, where that is refused."""
    before = s.nest, list(s.trace)
    for later, earlier in zip(outs[:0:-1], outs[-2::-1], strict=True):
        if not s.attempt(ComputeWith(earlier.name, s.path(later.name)[-1].name)):
            s.nest, s.trace[:] = before
            return False
    return True


def _columns(s: Scheduler, stage: str, host: str) -> None:
    """A reduction whose results lie next to each other: a vector of results per iteration."""
    for j in range(len(s.path(host)) - 1):  # threads share no loop of one iteration
        first, second, *_ = s.path(host)
        if first.extent != 1 or not s.attempt(Fuse(first.name, second.name, f"{host}.u{j}")):
            break
    path = s.path(host)
    last, e = path[-1].name, path[-1].extent
    lanes = _side_by_side(s, stage, path)
    ragged = not (isinstance(e, int) and e % lanes == 0)
    # Sums of sums are placed while loops are whole: those of a last block that is not full vary.
    inner = cascades(s, stage, placed=False) if ragged else []
    s.do(Split(last, lanes))
    s.do(ComputeAt(stage, f"{last}.0"))
    for outer, part in zip([stage, *inner], inner, strict=False):
        s.attempt(ComputeAt(part, s.reduced(outer)[-1].name))
    deepest = inner[-1] if inner else stage
    work = work_per_point(s, deepest) * points(s, deepest)
    if not ragged:
        inner = cascades(s, stage)
    parts = [*inner, stage]
    if ragged:
        s.attempt(Peel(f"{last}.0"))
    for part in parts:
        reduction_lanes(s, part, lanes)
    lanes_and_rest(s, f"{last}.1")
    for j in range(len(path) - 2):
        if j and j == len(path) - 3 and must_divide(s, host):
            break
        s.attempt(Fuse(s.path(host)[0].name, s.path(host)[1].name, f"{host}.o{j}"))
    top = f"{last}.0" if len(path) == 1 else s.path(host)[0].name
    if s.loops(top):
        s.parallel(top, work if len(path) == 1 else work * 4)


def _side_by_side(s: Scheduler, stage: str, path: list[Loop]) -> int:
    """Lanes of a block of columns: as many partial results as half of the registers hold, since a
    row of a block is all that lies next to each other; fewer where threads would have no share."""
    lanes = lanes_for(s, stage)
    if cost(s.store(stage).value) or s.choices.lanes is not None:
        return lanes
    size = s.nest.buffer(stage).dtype.bits
    most = max(lanes, s.target.lanes(max(size, 32)) * (s.target.vector_registers // 2))
    most = min(most, MAX_LANES)
    extent = path[-1].extent
    others = 1
    for p in path[:-1]:
        others *= p.extent if isinstance(p.extent, int) else USUAL
    while (
        isinstance(extent, int)
        and 2 * lanes <= most
        and extent % (2 * lanes) == 0
        and others * (extent // (2 * lanes)) >= 4 * s.target.cores
    ):
        lanes *= 2
    return lanes


def common_prefix(s: Scheduler, inner: list[Stage], outs: list[Stage], host: str) -> int:
    """How many leading loops of the host index every internal stage in the same way."""
    path = s.path(host)
    deepest = len(path)
    internal = {st.name for st in inner}
    for x, p in walk_nest(s.nest.body):
        for r in store_reads(x) if isinstance(x, Store) else ():
            if r.source in internal:
                deepest = min(deepest, _common(r, p))
    for o in outs:
        if o.name != host:
            other = s.path(o.name)
            same = 0
            while same < min(len(other), len(path)) and D.known_eq(
                other[same].extent, path[same].extent
            ):
                same += 1
            deepest = min(deepest, same)
    return deepest


def _common(r: Load, path: Path) -> int:
    """How many leading loops around a read are its leading indices."""
    common = 0
    for k, i in enumerate(r.index):
        var = path[k].var if k < len(path) else None
        own = D.is_sym(i) and D.the_sym(i) is var
        if var is None or not (own or (i == 0 and path[k].extent == 1)):
            break
        common += 1
    return common


def _lane_axis(s: Scheduler, inner: list[Stage]) -> bool:
    """Is the host's last axis the contiguous one in what the (single) reduction reads?"""
    if len(inner) != 1 or not inner[0].is_reduce or not inner[0].axes:
        return False
    st = s.store(inner[0].name)
    last = inner[0].axes[-1]
    found = False
    for b, idx in accesses(s, st)[1:]:
        c = D.coefficient(linear_index(b, idx), last)
        if c is None or (isinstance(c, int) and c not in (0, 1)) or isinstance(c, Int):
            return False
        found = found or c == 1
    return found


def inner_lanes(s: Scheduler, stage: str, lanes: int = 0) -> None:
    """Lanes for the innermost loop of a stage inside a row; as many as suit it where none are
    given."""
    path = s.path(stage)
    own = s.own(stage)
    if not own or own[-1] is path[0] or cases_in_row(s, stage):
        return
    names = _collapse_own(s, stage, s.own(stage))  # cases may have divided loops
    loop = names[-1]
    vector_loop(s, loop, lanes or lanes_for(s, stage))


def _collapse_own(s: Scheduler, stage: str, own: list[Loop]) -> list[str]:
    names = [p.name for p in own]
    count = 0
    while len(names) >= 2:
        path = {p.name: p for p in s.path(stage)}
        o, i = path[names[-2]], path[names[-1]]
        if (
            len(o.body) != 1
            or o is s.path(stage)[0]
            or not can_fuse(s, s.store(stage), o.var, i.var)
        ):
            break
        into = f"{stage}.g{count}"
        if not s.attempt(Fuse(o.name, i.name, into)):
            break
        count += 1
        names = [*names[:-2], into]
    return names


def reduction_lanes(s: Scheduler, stage: str, lanes: int = 0) -> None:
    """Partial results over lanes where the contiguous axis is reduced; else lanes over data. As
    many lanes as suit it where none are given."""
    data, red = s.axes(stage)
    if not red:
        return
    lanes = lanes or lanes_for(s, stage)
    if data and contiguous(s, s.store(stage), data[-1].var) and _extent_at_least(s, data[-1], 4):
        for part in cascades(s, stage):
            reduction_lanes(s, part, lanes)
        data, red = s.axes(stage)
        # Lanes over data: the reduction loops go outside the last data loop.
        order = tuple(p.name for p in (*data[:-1], *red, data[-1]))
        if [p.name for p in s.path(stage) if p.name in order] != list(order):
            s.attempt(Reorder(order))
        vector_loop(s, data[-1].name, lanes)
        _init_lanes(s, stage, lanes)
        return
    names = fuse_reduced(s, stage, red)
    loop = next(q for q in s.path(stage) if q.name == names[-1])
    # A number after the other takes longer than gathering a vector of them.
    if not affine(s, s.store(stage), loop.var):
        part = cascade(s, stage, names, 1)
        if part is not None:  # what is left of the loops may still be long
            reduction_lanes(s, part, lanes)
        return
    if isinstance(loop.extent, int) and loop.extent <= lanes:
        part = cascade(s, stage, names, 1)  # the loops around it may be long
        if part is not None:
            reduction_lanes(s, part, lanes)
        elif loop.extent >= FEW and contiguous(s, s.store(stage), loop.var):
            s.attempt(Vectorize(loop.name))  # one vector, whose lanes are added up
        return
    lanes = _chains(s, stage, loop, lanes)
    part = cascade(s, stage, names, lanes)
    if part is not None:
        reduction_lanes(s, part, lanes)
        top = s.path(part)[0]
        if top.axis.stage == part:  # nothing around it: threads share its pieces
            s.parallel(top.name, PIECE)
        return
    if not s.attempt(Split(loop.name, lanes)):
        return
    part = f"{stage}p"
    if not s.attempt(RFactor(stage, (f"{loop.name}.1",), part)):
        return
    pieces = moved(loop.name, part)
    host = data[-1].name if data else None
    if host and s.loops(host):
        s.attempt(ComputeAt(part, host))
    s.attempt(Peel(f"{pieces}.0"))
    for name in (f"{pieces}.1", f"{loop.name}.1"):
        if s.loops(name):
            lanes_and_rest(s, name)
    width = len(s.nest.buffer(part).shape) - 1
    if s.loops(f"{part}.init.i{width}"):
        s.attempt(Vectorize(f"{part}.init.i{width}"))


CHAINS = 4  # vectors of partial results: an addition waits for the one before it


def _chains(s: Scheduler, stage: str, loop: Loop, lanes: int) -> int:
    """Lanes of a long sum of what is read: several vectors, since each waits for its own last
    result. What is computed first takes longer than that."""
    if s.choices.lanes is not None or cost(s.store(stage).value):
        return lanes
    one = s.target.lanes(max(s.nest.buffer(stage).dtype.bits, 32))
    wide = min(CHAINS * one, MAX_LANES)
    long = isinstance(loop.extent, int) and loop.extent % wide == 0 and loop.extent >= 4 * wide
    return max(lanes, wide) if long else lanes


def _init_lanes(s: Scheduler, stage: str, lanes: int) -> None:
    """Lanes where sums begin, along the last axis that has several."""
    shape = s.nest.buffer(s.store(stage).buffer).shape
    for k in range(len(shape) - 1, -1, -1):
        if shape[k] != 1:
            if s.loops(init := f"{stage}.init.i{k}"):
                vector_loop(s, init, lanes)
            return


def _extent_at_least(s: Scheduler, p: Loop, n: int) -> bool:
    """Of a loop, or of the copies that peeling made of it: the rest of one may be short."""
    return any(not isinstance(x.extent, int) or x.extent >= n for x in s.loops(p.name))
