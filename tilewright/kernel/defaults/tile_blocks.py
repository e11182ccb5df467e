"""Convolutions by Winograd's tiles, a block of tiles at a time.

Tiles of an image are transformed to points, multiplied with weights there, and transformed back. A
block of rows of tiles passes through all three: its points are scratch that stays in the cache.

    for block:                                   # threads share blocks
      points[a,b,tile,c] = …x…                   # all points of a tile are straight-line code
      sums[a,b,tile,o] = points[a,b,tile,·] · w[a,b,·,o]        # in register tiles
      y = …sums…                                 # all pixels of a tile are straight-line code
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tilewright.ir import dim as D
from tilewright.ir.expr import Load, extent
from tilewright.ir.register_tile import BLOCK_TILES, dividing_rows, rows_of_block
from tilewright.kernel.defaults.cases import cases_in_block
from tilewright.kernel.defaults.chains import moved_stage
from tilewright.kernel.defaults.contractions import find_tile, is_contraction
from tilewright.kernel.defaults.scheduler import Scheduler, store_reads
from tilewright.kernel.defaults.tiles import fill_tile, place_tile
from tilewright.kernel.group import Group, Stage
from tilewright.kernel.steps.cache_write import CacheWrite
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.compute_inline import ComputeInline
from tilewright.kernel.steps.compute_with import ComputeWith
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.fuse_axes import FuseAxes
from tilewright.kernel.steps.split import Split
from tilewright.ops.winograd import TAPS


@dataclass
class _Tiles:
    points: Stage
    products: Stage
    outs: list[Stage]

    @property
    def size(self) -> int:
        """Pixels of a tile along an axis of the image."""
        points = extent(self.products.axes[0])
        assert isinstance(points, int)
        return points - TAPS + 1


def find_tiles(g: Group) -> _Tiles | None:
    """The stages of a convolution by tiles, if a group is one."""
    points, products = g.role("points"), g.role("products")
    outs = [x for x in g.stages if g.buffer(x.name).scope == "out"]
    if points is None or products is None or g.role("changes") is not None:
        return None
    return _Tiles(points, products, outs)


def schedule_tiles(s: Scheduler, tiles: _Tiles) -> bool:
    """All stages of a block of tiles in one iteration. False where a register tile does not fit."""
    _inline(s, tiles)
    points, sums = tiles.points.name, tiles.products.name
    outs = [x.name for x in tiles.outs]
    pixels = [x for x in outs if any(r.source == sums for r in _reads(s, x))]
    # Results that need no sums may come before these, so they go to the loops of one that does.
    out = pixels[0]
    for other in outs:
        if other != out and not s.attempt(ComputeWith(other, s.path(out)[-1].name)):
            return False
    into = f"{sums}c"
    s.do(CacheWrite(sums, into))
    acc = moved_stage(s, tiles.products, into)
    if not is_contraction(s, acc):
        return False
    t = find_tile(s, acc, sums)
    if t is None or (t.row, t.col) != (4, 5):
        return False
    image, rows = (q.name for q in s.path(out)[:2])
    block = _block(s, tiles)
    if block * tiles.size < D.bounds(s.loops(rows)[0].extent)[1]:
        s.do(Split(rows, block * tiles.size))
        at = f"{out}.q"
        s.do(Fuse(image, f"{rows}.0", at))
    else:
        at = image
    # First: that blocks write pixels of their own is not seen any more once the last one, with
    # fewer rows than others, is divided into tiles.
    s.parallel(at, 1 << 30)
    for name in (sums, into, points):
        s.do(ComputeAt(name, at))
    # Rows of tiles in a block become one, so that they fill register tiles.
    names, axes = t.names[:2], t.axes[:2]
    if s.loops(t.names[3]):
        s.do(FuseAxes(into, 3))
        s.do(Fuse(t.names[3], t.names[4], f"{sums}.p"))
        names, axes = [*names, f"{sums}.p"], [*axes, "p"]
    else:
        names, axes = [*names, t.names[4]], [*axes, t.axes[4]]
    if not s.loops(names[2]):
        return False
    tall = dividing_rows(t.rows, t.most, s.loops(names[2])[0].extent)
    names, axes = [*names, t.names[5]], [*axes, t.axes[5]]
    t = replace(t, names=names, axes=axes, row=2, col=3, rows=tall, around=False)
    placed = place_tile(s, t)
    if not (cases_in_block(s, points, at) and cases_in_block(s, out, at)):
        return False
    fill_tile(s, placed)
    return True


def _reads(s: Scheduler, stage: str) -> list[Load]:
    return store_reads(s.store(stage))


def _inline(s: Scheduler, tiles: _Tiles) -> None:
    """Maps become part of what reads them, but for the points."""
    for st in s.group.stages:
        if st.is_map and st is not tiles.points and s.group.buffer(st.name).scope == "local":
            s.do(ComputeInline(st.name))


def _block(s: Scheduler, tiles: _Tiles) -> int:
    """Rows of tiles in a block: what is between takes half of the second cache."""
    points, sums = (s.nest.buffer(x.name) for x in (tiles.points, tiles.products))
    images, rows, across = sums.shape[2:5]
    assert isinstance(images, int) and isinstance(rows, int) and isinstance(across, int)
    each = 0
    for b in (points, sums):
        one = prod(d for k, d in enumerate(b.shape) if k not in (2, 3) and isinstance(d, int))
        each += one * b.dtype.bytes
    least = -(-BLOCK_TILES // across)
    return rows_of_block(s.target.l2 // 2, each, rows, images, s.target.cores, least)
