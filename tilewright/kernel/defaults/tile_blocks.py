"""Convolutions by Winograd's tiles, a block of tiles at a time.

Tiles of an image are transformed to points, multiplied with weights there, and transformed back. A
block of tiles passes through all three: its points are scratch that stays in the cache. Tiles of
all images are one row, so that blocks are as long whatever the images' sizes are; where only a call
says how many tiles there are, blocks are shorter than their scratch if threads share work better
so. Pixels of a tile are made together, and those that are inside of the image are written.

    for block:                                   # threads share blocks
      points[a,b,tile,c] = …x…                   # all points of a tile are straight-line code
      sums[a,b,tile,o] = points[a,b,tile,·] · w[a,b,·,o]        # in register tiles
      for tile:
        pixels[i,j,o] = …sums[·,·,tile,o]…       # all pixels of a tile are straight-line code
        y = …pixels…
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.ir.expr import Load, extent
from tilewright.ir.register_tile import Block, RegisterTile, block_of_tiles, least_of_block
from tilewright.kernel.defaults.cases import cases_in_block
from tilewright.kernel.defaults.chains import moved_stage
from tilewright.kernel.defaults.contractions import find_tile, is_contraction
from tilewright.kernel.defaults.scheduler import (
    Scheduler,
    lanes_for,
    store_reads,
    vector_loop,
)
from tilewright.kernel.defaults.tiles import Tile, fill_tile, place_tile
from tilewright.kernel.group import Group, Stage
from tilewright.kernel.steps.cache_write import CacheWrite
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.compute_inline import ComputeInline
from tilewright.kernel.steps.compute_with import ComputeWith
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.fuse_axes import FuseAxes
from tilewright.kernel.steps.pad import Pad
from tilewright.kernel.steps.parallel import Parallel
from tilewright.kernel.steps.reorder import Reorder
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
    points, sums = tiles.points.name, tiles.products.name
    # Results that need no sums may come before these, so all go to the loops of the last one.
    *others, out = (x.name for x in tiles.outs)
    pixels, m = _pixels(s, tiles), tiles.size
    _inline(s, tiles, pixels)
    if pixels in (*others, out):
        cached = f"{pixels}c"
        s.do(CacheWrite(pixels, cached))
        pixels = cached
    for other in reversed(others):  # those that others read come last
        if not s.attempt(ComputeWith(other, s.path(out)[-1].name)):
            return False
    into = f"{sums}c"
    s.do(CacheWrite(sums, into))
    for k in (1, 2):  # tiles at the edges have pixels that are not written
        s.do(Pad(pixels, k, m))
    for x in (points, sums, into):
        s.do(FuseAxes(x, 2, 3))
    axes = tiles.products.axes
    acc = moved_stage(s, replace(tiles.products, axes=(*axes[:3], axes[5])), into)
    t = find_tile(s, acc, sums) if is_contraction(s, acc) else None
    if t is None or (t.row, t.col) != (2, 3):
        return False
    channels, all_tiles = s.path(out)[-1].name, _tile_loop(s, out, m)
    known = isinstance(s.loops(all_tiles)[0].extent, int)
    by = _block(s, tiles, t)
    # Tiles are apart, and so are blocks of them: of these that is not seen where only a call says
    # how large they are.
    s.do(Parallel(all_tiles))
    s.do(ComputeAt(pixels, all_tiles))
    s.do(Split(all_tiles, by.tiles, parts=0 if known else s.target.cores))
    block, tile = f"{all_tiles}.0", f"{all_tiles}.1"
    for name in (sums, into, points):
        s.do(ComputeAt(name, block, exact=True))
    t = replace(t, axes=["i0", "i1", "p", "i5"], rows=by.rows, around=False)
    if not all(s.loops(t.names[k]) for k in (t.row, t.col)):
        return False
    placed = place_tile(s, t)
    if not (cases_in_block(s, points, block) and cases_in_block(s, pixels, tile)):
        return False
    vector_loop(s, channels, lanes_for(s, out))
    fill_tile(s, placed)
    return True


def _reads(s: Scheduler, stage: str) -> list[Load]:
    return store_reads(s.store(stage))


def _pixels(s: Scheduler, tiles: _Tiles) -> str:
    """The stage that makes pixels of the sums."""
    found = [x.name for x in s.group.stages if x.is_map]
    return next(x for x in found if any(r.source == tiles.products.name for r in _reads(s, x)))


def _inline(s: Scheduler, tiles: _Tiles, pixels: str) -> None:
    """Maps become part of what reads them, but for the points and pixels."""
    kept = (tiles.points.name, pixels)
    for st in s.group.stages:
        if st.is_map and st.name not in kept and s.group.buffer(st.name).scope == "local":
            s.do(ComputeInline(st.name))


def _tile_loop(s: Scheduler, out: str, size: int) -> str:
    """The loop over all tiles, around those over the pixels of one."""
    image, rows, columns, channels = (q.name for q in s.path(out))
    for x in (rows, columns):
        s.do(Split(x, size))
    pixels = f"{rows}.1", f"{columns}.1"
    s.do(Reorder((image, f"{rows}.0", f"{columns}.0", *pixels, channels)))
    s.do(Fuse(image, f"{rows}.0", f"{out}.q0"))
    s.do(Fuse(f"{out}.q0", f"{columns}.0", f"{out}.q"))
    return f"{out}.q"


def _block(s: Scheduler, tiles: _Tiles, t: Tile) -> Block:
    """Tiles of a block: what is between takes half of the second cache."""
    points, sums = (s.nest.buffer(x.name) for x in (tiles.points, tiles.products))
    channels, results = (int(D.bounds(b.shape[-1])[1]) for b in (points, sums))
    of_each = (tiles.size + TAPS - 1) ** 2 * sums.dtype.bytes
    least = least_of_block(of_each * channels * results, s.target.l2)
    each, tile = of_each * (channels + results), RegisterTile(t.rows, t.lanes, t.rows, t.most)
    count, room = sums.shape[2], s.target.l2 // 2
    return block_of_tiles(room, each, count, s.target.cores, least, tile)
