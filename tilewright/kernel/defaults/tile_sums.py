"""Gradients of convolutions' weights by Winograd's tiles, a block of tiles at a time.

Tiles of an image and of a result's gradient are transformed to points, multiplied there and added
up over all tiles; the sums are transformed to taps. Points of a block of tiles are scratch that
stays in the cache, and so do sums at all points. Threads share blocks, each with sums of its own.

    for thread:
      for block:
        changes[a,b,tile,o] = …dy…               # all points of a tile are straight-line code
        points[a,b,tile,c] = …x…
        own[thread,a,b,o,c] += changes[a,b,·,o] · points[a,b,·,c]      # in register tiles
    y = …sum(own, thread)…                       # all taps are straight-line code

Where results and channels are so many that no cache holds the sums of all, tiles are few: points of
all tiles are there, and the kernel goes through blocks of results and channels instead.

    for block:                                   # threads share blocks
      sums[point,o,c] = changes[point,o,·] · points[point,·,c]         # in register tiles
      y = …sums…
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.expr import extent
from tilewright.ir.register_tile import register_tile, rows_of_block, shares_of_blocks
from tilewright.kernel.defaults.cases import cases_in_block
from tilewright.kernel.defaults.chains import moved_stage
from tilewright.kernel.defaults.contractions import find_tile, is_contraction
from tilewright.kernel.defaults.scheduler import Scheduler, vector_loop
from tilewright.kernel.defaults.tiles import Tile, fill_sums, fill_tile, lanes_of_tile, place_tile
from tilewright.kernel.group import Group, Stage
from tilewright.kernel.steps.cache_write import CacheWrite
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.compute_inline import ComputeInline
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.parallel import Parallel
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.permute import Permute
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll


@dataclass
class _Sums:
    points: Stage
    changes: Stage
    products: Stage
    out: Stage


@dataclass
class _Taps:
    products: Stage
    out: Stage


def find_sums(g: Group) -> _Sums | None:
    """The stages of such a gradient, if a group is one."""
    points, changes, products = (g.role(x) for x in ("points", "changes", "products"))
    outs = [x for x in g.stages if g.buffer(x.name).scope == "out"]
    if points is None or changes is None or products is None or len(outs) != 1:
        return None
    return _Sums(points, changes, products, outs[0])


def find_taps(g: Group) -> _Taps | None:
    """The stages of a gradient whose points are there, if a group is one."""
    products = g.role("products")
    outs = [x for x in g.stages if g.buffer(x.name).scope == "out"]
    if products is None or g.role("points") is not None or len(outs) != 1:
        return None
    return _Taps(products, outs[0])


def schedule_taps(s: Scheduler, taps: _Taps) -> bool:
    """Products and taps of a block of results and channels in one iteration."""
    sums, out = taps.products.name, taps.out.name
    for st in s.group.stages:
        if st.is_map and s.group.buffer(st.name).scope == "local":
            s.do(ComputeInline(st.name))
    into = f"{sums}c"
    s.do(CacheWrite(sums, into))
    acc = moved_stage(s, taps.products, into)
    t = find_tile(s, acc, sums) if is_contraction(s, acc) else None
    if t is None or (t.row, t.col) != (1, 2):
        return False
    rows, wide, t = _block_of_taps(s, taps, t)
    results, channels, *_ = (q.name for q in s.path(out))
    s.do(Split(results, rows))
    s.do(Split(channels, wide))
    s.do(Reorder((f"{results}.0", f"{channels}.0", f"{results}.1", f"{channels}.1")))
    at = f"{out}.q"
    s.do(Fuse(f"{results}.0", f"{channels}.0", at))
    s.do(ComputeAt(sums, at))
    s.do(ComputeAt(into, at))
    if not all(s.loops(t.names[k]) for k in (t.row, t.col)):
        return False
    placed = place_tile(s, replace(t, around=False))
    if not cases_in_block(s, out, at):
        return False
    fill_tile(s, placed)
    s.parallel(at, 1 << 30)
    return True


def _block_of_taps(s: Scheduler, taps: _Taps, t: Tile) -> tuple[int, int, Tile]:
    """Results and channels of a block, whose sums at all points take half of the second cache; and
    tiles that divide its channels."""
    points, results, channels = (extent(x) for x in taps.products.axes)
    assert isinstance(points, int) and isinstance(results, int) and isinstance(channels, int)
    buffer = s.nest.buffer(taps.products.name)
    wide = _whole(channels, 4, t.lanes)
    width = _whole(wide, t.vectors, t.lanes)
    tall = register_tile(s.target, buffer.dtype, width).rows
    each, times = points * wide * buffer.dtype.bytes, channels // wide
    rows = rows_of_block(s.target.l2 // 2, each, results, times, s.target.cores, tall)
    # Of a number without divisors all are one block: single rows are no tiles.
    rows = rows if rows >= min(tall, results) else results
    return rows, wide, replace(t, vectors=width // t.lanes, rows=tall)


def _whole(columns: int, vectors: int, lanes: int) -> int:
    """As many vectors, at most, as divide columns."""
    return next((k * lanes for k in range(vectors, 1, -1) if columns % (k * lanes) == 0), lanes)


def schedule_sums(s: Scheduler, sums: _Sums) -> bool:
    """All stages of a block of tiles in one iteration, of each thread's part of them."""
    points, changes, acc = sums.points.name, sums.changes.name, sums.products.name
    for st in s.group.stages:
        kept = st in (sums.points, sums.changes)
        if st.is_map and not kept and s.group.buffer(st.name).scope == "local":
            s.do(ComputeInline(st.name))
    batch, rows, across = (extent(x) for x in sums.products.raxes)
    assert isinstance(batch, int) and isinstance(rows, int) and isinstance(across, int)
    block = rows_of_block(sums.products.chain, across, rows, batch, s.target.cores)
    first, second, _ = (q.name for q in s.reduced(acc))
    if block < rows:
        s.do(Split(second, block))
        s.do(Fuse(first, f"{second}.0", f"{acc}.k"))
        around, second = f"{acc}.k", f"{second}.1"
    else:
        around = first
    blocks = batch * rows // block
    shares = shares_of_blocks(blocks, s.target.cores)
    own, threads = acc, []
    if shares > 1:
        s.do(Split(around, blocks // shares))
        own = f"{acc}g"
        s.do(RFactor(acc, (f"{around}.0",), own))
        loop = around.split(".", 1)[1]
        threads, around = [f"{own}.{loop}.0"], f"{own}.{loop}.1"
        s.do(Permute(own, (4, 0, 1, 2, 3)))
    part = f"{acc}b"
    s.do(RFactor(own, (around,), part))
    dtype = s.nest.buffer(acc).dtype
    results, channels = (extent(x) for x in sums.products.axes[2:])
    assert isinstance(results, int) and isinstance(channels, int)
    lanes = s.target.lanes(dtype.bits)
    tile = register_tile(s.target, dtype)
    tile = register_tile(s.target, dtype, min(tile.columns, -(-channels // lanes) * lanes))
    wide = max((k for k in range(lanes, tile.columns + 1, lanes) if channels % k == 0), default=0)
    if not wide:
        return False
    tall = -(-results // -(-results // tile.rows))
    a, b, o, c = (f"{own}.i{k}" for k in range(4))
    s.do(Split(o, tall))
    s.do(Split(c, wide))
    s.do(Reorder((*threads, around, a, b, f"{c}.0", f"{o}.0", f"{o}.1", f"{c}.1")))
    s.do(ComputeAt(part, f"{o}.0"))
    for name in (points, changes):
        s.do(ComputeAt(name, around))
        if not cases_in_block(s, name, around):
            return False
    for x in (f"{own}.init.i2", f"{own}.init.i3"):
        s.do(Split(x, tall if x.endswith("i2") else wide))
    for x in (f"{o}.0", f"{own}.init.i2.0"):
        s.attempt(Peel(x))
    fill_sums(s, part, [f"{part}.i2", f"{part}.i3"], lanes)
    for row, column in ((f"{o}.1", f"{c}.1"), (f"{own}.init.i2.1", f"{own}.init.i3.1")):
        s.do(Unroll(row))
        lanes_of_tile(s, column, lanes)
    return _finish(s, sums, threads)


def _finish(s: Scheduler, sums: _Sums, threads: list[str]) -> bool:
    """Sums of all threads become taps, for one result after the other."""
    acc, out = sums.products.name, sums.out.name
    top = s.path(out)[0].name
    for x in threads:
        s.do(Parallel(x))
    if threads:
        s.do(ComputeAt(acc, top))
        data, red = s.axes(acc)
        s.do(Reorder((*(q.name for q in data[:-1]), *(q.name for q in red), data[-1].name)))
        for name in (f"{acc}.init.i3", data[-1].name):
            vector_loop(s, name, 4 * s.target.lanes(32))
    if not cases_in_block(s, out, top):
        return False
    s.parallel(top, 1 << 14)
    return True
