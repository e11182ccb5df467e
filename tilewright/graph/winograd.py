"""Winograd: 3x3 convolutions of images with channels last as products of transformed tiles.

Taken where an estimate says that it is faster: fewer multiplications against more bytes. Weights
that are constant are transformed once. Those that change, as in training, are transformed at each
call and take tiles of 2 only: tiles of 4 have a larger error, which gradients of norms amplify.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.events import Log
from tilewright.graph.channels import order_of
from tilewright.graph.classify import guess
from tilewright.graph.pack import rebuild_knowing
from tilewright.ir import dim as D
from tilewright.ir.node import Graph, Node
from tilewright.ir.passes import Pass, of_target
from tilewright.ir.positions import Shape
from tilewright.ir.register_tile import register_tile
from tilewright.ir.types import f32
from tilewright.ops.arranged import Arranged
from tilewright.ops.convolution import ConvValid
from tilewright.ops.views import pad, reshape
from tilewright.ops.winograd import (
    POINTS,
    TAPS,
    winograd_input,
    winograd_output,
    winograd_products,
    winograd_weight,
)

CHANGING = 2  # the tile of weights that change


@dataclass(frozen=True)
class Winograd(Pass, needs=("ChannelsLast",), rounds=True, regions=True):
    """3x3 convolutions become products of transformed tiles, where an estimate says that it is
    faster."""

    flops: int = of_target(16, lambda t: t.flops_per_cycle)
    # Transformed tiles are stored by one kernel and read by the next: they stream.
    moved: int = of_target(7, lambda t: t.memory_bandwidth)  # bytes of a cycle
    # Rows of a register tile: fewer tiles than this waste multipliers.
    rows: int = of_target(6, lambda t: register_tile(t, f32).rows)
    least: int = 16  # channels: with fewer the transforms are most of the work

    def apply(self, program: Graph, log: Log) -> Graph:
        def change(n: Node, constant: set[Node]) -> Node:
            size = self.size_for(n, constant)
            if size is None:
                return n
            log.add("layout", f"{n!r} by Winograd tiles of {size}x{size}", detail=True)
            return _by_tiles(n, size)

        return rebuild_knowing(program, change)

    def size_for(self, n: Node, constant: set[Node]) -> int | None:
        """The tile with the least estimated time, or None where the direct form has it."""
        found = _sizes(n)
        if found is None:
            return None
        cycles = self.cycles(*found, constant=n.inputs[1] in constant)
        return min(cycles, key=cycles.__getitem__)

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

        def cycles(multiplies: int, size: int) -> float:
            return 2 * multiplies / self.flops + size * f32.bytes / self.moved

        filters = channels * columns
        weights = TAPS * TAPS * filters
        pixels = batch * height * width
        found: dict[int | None, float] = {None: cycles(pixels * weights, weights)}
        if min(channels, columns) < self.least:
            return found
        for m in POINTS if constant else (CHANGING,):
            points = (m + TAPS - 1) ** 2
            tiles = batch * -(-height // m) * -(-width // m)
            rows = max(tiles, self.rows)
            # Points are written and read, on both sides of the products.
            moved = points * (filters + 2 * tiles * (channels + columns))
            if not constant:  # taps are read, points written
                moved += weights + points * filters
            # What the transforms add up: about two operations per point on either side.
            work = points * tiles * (channels + columns)
            found[m] = cycles(points * rows * filters + work, moved)
        return found


Sizes = tuple[int, int, int, int, int]


def _sizes(n: Node) -> Sizes | None:
    """Batch, height, width, channels and columns of a plain 3x3 convolution; usual ones where a
    call decides them."""
    op = n.op
    if not isinstance(op, Arranged) or not isinstance(op.op, ConvValid) or n.dtype is not f32:
        return None
    x, w = n.inputs
    last = order_of(4)
    if n.rank != 4 or op.operands != ((last, (0, 1, 2, 3))) or op.result != last:
        return None
    return _usual_sizes(op.op, w, (*n.shape[:3], x.shape[3], n.shape[3]))


def sizes_before_layout(n: Node) -> Sizes | None:
    """The same of one whose channels are not last yet."""
    if not isinstance(n.op, ConvValid) or n.rank != 4 or n.dtype is not f32:
        return None
    x, w = n.inputs
    return _usual_sizes(n.op, w, (n.shape[0], *n.shape[2:], x.shape[1], n.shape[1]))


def _usual_sizes(op: ConvValid, w: Node, shape: Shape) -> Sizes | None:
    plain = op.stride == op.dilation == (1, 1) and op.groups == 1
    if not plain or w.shape[2:] != (TAPS, TAPS):
        return None
    if not all(isinstance(d, int) for d in shape[3:]):
        return None
    batch, height, width, channels, columns = map(guess, shape)
    if min(batch, height, width, channels, columns) == 0:
        return None
    return batch, height, width, channels, columns


def _by_tiles(n: Node, m: int) -> Node:
    x, w = n.inputs
    batch, height, width, columns = n.shape
    channels = w.shape[1]
    assert isinstance(channels, int)
    rows, cols = D.ceildiv(height, m), D.ceildiv(width, m)
    after = (0, rows * m - height, cols * m - width, 0)
    tiles = winograd_input(pad(x, (0, 0, 0, 0), after), m)
    t = m + TAPS - 1
    points = reshape(tiles, (t * t, batch * rows * cols, channels))
    weight = reshape(winograd_weight(w, m), (t * t, channels, columns))
    # Two chains take a quarter of the error away and cost 2 to 7 % of a convolution; one chain of
    # tiles of 4 has nearly twice the error of the direct sum.
    sums = winograd_products(points, weight, -(-channels // 2))
    products = reshape(sums, (t, t, batch, rows, cols, columns))
    return winograd_output(products, m, height, width)
