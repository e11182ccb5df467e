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
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.expr import extent
from tilewright.ir.register_tile import register_tile, rows_of_block, shares_of_blocks
from tilewright.kernel.defaults.cases import cases_in_block
from tilewright.kernel.defaults.scheduler import Scheduler, vector_loop
from tilewright.kernel.defaults.tiles import Placed, Tile, fill_tile
from tilewright.kernel.group import Group, Stage
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.compute_inline import ComputeInline
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.parallel import Parallel
from tilewright.kernel.steps.permute import Permute
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.split import Split


@dataclass
class _Sums:
    points: Stage
    changes: Stage
    products: Stage
    out: Stage


def find_sums(g: Group) -> _Sums | None:
    """The stages of such a gradient, if a group is one."""
    points, changes, products = (g.role(x) for x in ("points", "changes", "products"))
    outs = [x for x in g.stages if g.buffer(x.name).scope == "out"]
    if points is None or changes is None or products is None or len(outs) != 1:
        return None
    return _Sums(points, changes, products, outs[0])


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
    t = Tile(own, "", ["", ""], ["i2", "i3"], 0, 1, tall, lanes, wide // lanes)
    fill_tile(s, Placed(t, "", "", [], (f"{o}.0", ""), False, part, tall, wide))
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
