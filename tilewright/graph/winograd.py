"""Winograd: 3x3 convolutions of images with channels last as products of transformed tiles.

Taken where an estimate says that it is faster: fewer multiplications against more bytes. Weights
that are constant are transformed once. Those that change, as in training, are transformed at each
call and take tiles of 2 only: tiles of 4 have a larger error, which gradients of norms amplify.
Gradients of weights are sums over all pixels, which are products of transformed tiles as well:
of a fourth of the terms, in short chains.

Points are many: between kernels they would stream through memory. Where a block of tiles is enough
work for what it reads of the weights, fusion makes one kernel of all three steps
(`tile_blocks.py`), and points of a block stay in the cache; how many images there are, and how
large, may be decided by a call. Otherwise all tiles are rows of the same matrices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.base.events import Log
from tilewright.graph.channels import order_of, unpermuted
from tilewright.graph.classify import guess
from tilewright.graph.pack import rebuild_knowing
from tilewright.ir import dim as D
from tilewright.ir.node import Graph, Node
from tilewright.ir.passes import Pass, of_target
from tilewright.ir.positions import Shape
from tilewright.ir.register_tile import (
    block_of_tiles,
    least_of_block,
    register_tile,
    rows_of_block,
    shares_of_blocks,
)
from tilewright.ir.types import f32
from tilewright.ops.arranged import Arranged, reordered
from tilewright.ops.conv_gradients import ConvWeightValid
from tilewright.ops.convolution import ConvValid
from tilewright.ops.views import Flip, Pad, Permute, flip, pad, permute, reshape
from tilewright.ops.winograd import (
    POINTS,
    TAPS,
    winograd_gradient,
    winograd_input,
    winograd_output,
    winograd_products,
    winograd_sums,
    winograd_taps,
    winograd_weight,
)

CHANGING = 2  # the tile of weights that change, and of their gradients
LONGEST = 64  # tiles that one chain of a gradient's sum adds up


@dataclass(frozen=True)
class Winograd(Pass, needs=("ChannelsLast",), rounds=True, regions=True):
    """3x3 convolutions become products of transformed tiles, where an estimate says that it is
    faster."""

    flops: int = of_target(16, lambda t: t.flops_per_cycle)
    # Transformed tiles that are stored by one kernel and read by the next stream.
    moved: int = of_target(7, lambda t: t.memory_bandwidth)  # bytes of a cycle
    # Those of a block stay in the second cache; weights that it has no room for are in the third.
    cache: int = of_target(1 << 20, lambda t: t.l2)
    near: int = of_target(24, lambda t: t.l2_bandwidth)
    far: int = of_target(10, lambda t: t.l3_bandwidth)
    cores: int = of_target(1, lambda t: t.cores)
    lanes: int = of_target(4, lambda t: t.lanes(f32.bits))
    # Rows of a register tile: fewer tiles than this waste multipliers.
    rows: int = of_target(6, lambda t: register_tile(t, f32).rows)
    least: int = 16  # channels: with fewer the transforms are most of the work

    def apply(self, program: Graph, log: Log) -> Graph:
        def change(n: Node, constant: set[Node]) -> Node:
            size = self.size_for(n, constant)
            if size is None:
                return n
            log.add("layout", f"{n!r} by Winograd tiles of {size}x{size}", detail=True)
            static = all(x.ttype.is_static for x in (n, *n.inputs))
            if _is_gradient(n):
                sizes = _gradient_sizes(n)
                blocks = static and sizes is not None and self.sums_of_blocks(size, *sizes)
                return _weight_by_tiles(n, size, blocks)
            sizes = _sizes(n)
            blocks = sizes is not None and self.blocks(size, *sizes)
            return _by_tiles(n, size, blocks)

        return rebuild_knowing(program, change)

    def size_for(self, n: Node, constant: set[Node]) -> int | None:
        """The tile with the least estimated time, or None where the direct form has it."""
        if _is_gradient(n):
            sizes = _gradient_sizes(n)
            cycles = {} if sizes is None else self.gradient_cycles(*sizes)
        else:
            sizes = _sizes(n)
            given = n.inputs[1] in constant if len(n.inputs) == 2 else False
            cycles = {} if sizes is None else self.cycles(*sizes, constant=given)
        return min(cycles, key=cycles.__getitem__, default=None)

    def cycles(
        self,
        batch: int,
        height: int,
        width: int,
        channels: int,
        columns: int,
        *,
        constant: bool = True,
    ) -> dict[int | None, float]:
        """Estimated for each size of tiles that the weights, constant or not, may take; None: for
        the direct form."""

        filters = channels * columns
        weights = TAPS * TAPS * filters
        pixels = batch * height * width
        found: dict[int | None, float] = {None: self._time(pixels * weights, weights)}
        if min(channels, columns) < self.least:
            return found
        for m in POINTS if constant else (CHANGING,):
            found[m] = min(self._tiles(m, batch, height, width, channels, columns))
            if not constant:  # taps are read, points written
                found[m] += self._time(0, weights + (m + TAPS - 1) ** 2 * filters)
        return found

    def blocks(self, m: int, *sizes: int) -> bool:
        """Is one kernel that takes a block of tiles at a time from pixels to pixels estimated to be
        faster than kernels of all tiles?"""
        whole, blocks = self._tiles(m, *sizes)
        return blocks < whole

    def _tiles(
        self, m: int, batch: int, height: int, width: int, channels: int, columns: int
    ) -> tuple[float, float]:
        """Cycles of all tiles at a time, and of blocks of tiles."""
        filters, images = channels * columns, channels + columns
        points, pixels = (m + TAPS - 1) ** 2, batch * height * width
        tiles = batch * -(-height // m) * -(-width // m)
        # What the transforms add up: about two operations per point on either side.
        work = points * tiles * images
        # Points are written and read, on both sides of the products.
        between, rows = 2 * work, max(tiles, self.rows)
        whole = self._time(points * rows * filters + work, between + points * filters)
        each = points * images * f32.bytes
        least = least_of_block(points * filters * f32.bytes, self.cache)
        block = block_of_tiles(self.cache // 2, each, tiles, self.cores, least).tiles
        if block < least:  # too few to read all weights for
            return whole, math.inf
        again = points * filters * -(-tiles // block)
        keeps = points * filters * f32.bytes <= self.cache // 2
        blocks = self._time(points * tiles * filters + work, pixels * images + points * filters)
        blocks += between * f32.bytes / self.near
        blocks += again * f32.bytes / (self.near if keeps else self.far)
        return whole, blocks

    def gradient_cycles(
        self, batch: int, height: int, width: int, channels: int, columns: int
    ) -> dict[int | None, float]:
        """The same for the gradient of such a convolution's weights."""
        filters = channels * columns
        weights, images = TAPS * TAPS * filters, channels + columns
        pixels = batch * height * width
        found: dict[int | None, float] = {
            None: self._time(pixels * weights, pixels * images + weights)
        }
        if min(channels, columns) < self.least or channels % self.lanes:
            return found
        found[CHANGING] = min(self._sums(CHANGING, batch, height, width, channels, columns))
        return found

    def sums_of_blocks(self, m: int, *sizes: int) -> bool:
        """Is one kernel that goes through blocks of tiles estimated to be about as fast as kernels
        of all tiles? It stores no points."""
        whole, blocks = self._sums(m, *sizes)
        return blocks < 1.1 * whole

    def _sums(
        self, m: int, batch: int, height: int, width: int, channels: int, columns: int
    ) -> tuple[float, float]:
        """Cycles of all tiles at a time, and of blocks of tiles."""
        filters, images = channels * columns, channels + columns
        points, across = (m + TAPS - 1) ** 2, -(-width // m)
        rows = -(-height // m)
        tiles = batch * rows * across
        sums, taps = points * filters, TAPS * TAPS * filters
        pixels = batch * height * width * images
        block = rows_of_block(LONGEST, across, rows, batch, self.cores) * across
        # Points are written and read, of both and of the result; the transforms add some up, with
        # half of the units that multiply and add.
        between, work = 2 * points * tiles * images, 2 * m * points * tiles * images
        multiplies = points * tiles * filters + work
        whole = self._time(multiplies, pixels + between + taps)
        level = self.near if sums * f32.bytes <= self.cache // 2 else self.far
        blocks = self._time(multiplies, pixels + 2 * sums + taps)
        blocks += between * f32.bytes / self.near
        blocks += 2 * sums * (tiles / block) * f32.bytes / level
        shared = shares_of_blocks(tiles // block, self.cores) >= self.cores
        return whole, blocks if shared else math.inf

    def _time(self, multiplies: int, elements: int) -> float:
        """Cycles of so many multiplications and elements that are moved."""
        return 2 * multiplies / self.flops + elements * f32.bytes / self.moved


Sizes = tuple[int, int, int, int, int]


def _sizes(n: Node) -> Sizes | None:
    """Batch, height, width, channels and columns of a plain 3x3 convolution; usual ones where a
    call decides them."""
    op = n.op
    if not isinstance(op, Arranged) or not isinstance(op.op, ConvValid) or not _all_single(n):
        return None
    x, w = n.inputs
    last = order_of(4)
    if n.rank != 4 or op.operands != ((last, (0, 1, 2, 3))) or op.result != last:
        return None
    return _usual_sizes(op.op, w, (*n.shape[:3], x.shape[3], n.shape[3]))


def sizes_before_layout(n: Node) -> Sizes | None:
    """The same of one whose channels are not last yet."""
    if not isinstance(n.op, ConvValid) or n.rank != 4 or not _all_single(n):
        return None
    x, w = n.inputs
    return _usual_sizes(n.op, w, (n.shape[0], *n.shape[2:], x.shape[1], n.shape[1]))


def _all_single(n: Node) -> bool:
    """Are operands and results float32? Sums of narrower ones are, too, but not their operands."""
    return all(x.dtype is f32 for x in (n, *n.inputs))


def _is_gradient(n: Node) -> bool:
    return isinstance(n.op, ConvWeightValid)


def _gradient_sizes(n: Node) -> Sizes | None:
    """The same of the gradient of such a convolution's weights."""
    assert isinstance(n.op, ConvWeightValid)
    if n.rank != 4 or not _all_single(n):
        return None
    grad, x = n.inputs
    if _channels_last(grad) is None or _channels_last(x) is None:
        return None
    rows, columns = (D.known_eq(x.shape[k], grad.shape[k] + TAPS - 1) for k in (2, 3))
    if not (rows and columns and D.known_eq(x.shape[0], grad.shape[0])):
        return None
    return _usual_sizes(n.op, n, (grad.shape[0], *grad.shape[2:], x.shape[1], grad.shape[1]))


def _usual_sizes(op: ConvValid | ConvWeightValid, w: Node, shape: Shape) -> Sizes | None:
    plain = op.stride == op.dilation == (1, 1) and op.groups == 1
    if not plain or w.shape[2:] != (TAPS, TAPS):
        return None
    if not all(isinstance(d, int) for d in shape[3:]):
        return None
    batch, height, width, channels, columns = map(guess, shape)
    if min(batch, height, width, channels, columns) == 0:
        return None
    return batch, height, width, channels, columns


def _by_tiles(n: Node, m: int, blocks: bool) -> Node:
    x, w = n.inputs
    batch, height, width, columns = n.shape
    channels = w.shape[1]
    assert isinstance(channels, int)
    rows, cols = D.ceildiv(height, m), D.ceildiv(width, m)
    after = (0, rows * m - height, cols * m - width, 0)
    points = winograd_input(pad(x, (0, 0, 0, 0), after), m)
    weight = _weight_points(w, m)
    t = m + TAPS - 1
    if not blocks:
        points = reshape(points, (t * t, batch * rows * cols, channels))
        weight = reshape(weight, (t * t, channels, columns))
    # Two chains take a quarter of the error away and cost 2 to 7 % of a convolution; one chain of
    # tiles of 4 has nearly twice the error of the direct sum.
    sums = winograd_products(points, weight, -(-channels // 2))
    if not blocks:
        sums = reshape(sums, (t, t, batch, rows, cols, columns))
    return winograd_output(sums, m, height, width)


def _weight_points(w: Node, m: int) -> Node:
    """A weight at the points, results last. Its channels are transformed in the order in which they
    lie: of a gradient, whose weight is turned, results are last then."""
    moved = isinstance(w.op, Flip) and w.op.axes == (2, 3)
    turned = w.inputs[0] if moved else w
    if isinstance(turned.op, Permute) and turned.op.perm == (1, 0, 2, 3):
        plain = turned.inputs[0]
        return winograd_weight(flip(plain, (2, 3)) if moved else plain, m)
    return permute(winograd_weight(w, m), (0, 1, 3, 2))


def _weight_by_tiles(n: Node, m: int, blocks: bool) -> Node:
    grad, x = map(_channels_last, n.inputs)
    assert grad is not None and x is not None
    batch, height, width, results = grad.shape
    channels = x.shape[3]
    rows, cols = D.ceildiv(height, m), D.ceildiv(width, m)
    after = (0, rows * m - height, cols * m - width, 0)
    t, tiles = m + TAPS - 1, batch * rows * cols
    changes = winograd_gradient(pad(grad, (0, 0, 0, 0), after), m)
    points = winograd_input(pad(x, (0, 0, 0, 0), after), m)
    if blocks:
        return winograd_taps(winograd_sums(changes, points, LONGEST), m)
    a = reshape(changes, (t * t, tiles, results))
    b = reshape(points, (t * t, tiles, channels))
    sums = winograd_sums(a, b, LONGEST)
    return winograd_taps(reshape(sums, (t, t, results, channels)), m)


def _channels_last(x: Node) -> Node | None:
    """Images with channels last, if they lie so, perhaps inside of zeros."""
    order = order_of(x.rank)
    if isinstance(x.op, Pad):
        inner = _channels_last(x.inputs[0])
        lo, hi = (reordered(d, order) for d in (x.op.lo, x.op.hi))
        return None if inner is None else pad(inner, lo, hi, x.op.value)
    plain, left = unpermuted(x, order)
    return plain if left == tuple(range(x.rank)) else None
