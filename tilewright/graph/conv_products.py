"""Convolutions as matrix products, where instructions multiply whole tiles: on GPUs.

`conv(pad(x), w)` of images with channels last becomes `reshape(patches(x) @ w')`. The rows of the
first operand are windows; they are gathered when a kernel brings a tile of them to shared memory
(kernel/defaults/grid_convolutions.py), never stored. The second operand is made once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.base.events import Log
from tilewright.graph.channels import multiplied, order_of
from tilewright.ir.dim import Dim
from tilewright.ir.maps import Map
from tilewright.ir.node import Graph, Node, rebuild
from tilewright.ir.passes import Pass, of_target
from tilewright.ir.positions import product
from tilewright.ir.types import f32
from tilewright.ops.arranged import Arranged, Order, reordered
from tilewright.ops.conv_parts import Ints
from tilewright.ops.convolution import ConvValid
from tilewright.ops.layout import Relayout, relayout
from tilewright.ops.linear import matmul
from tilewright.ops.patches import patches
from tilewright.ops.views import Pad, Permute, pad, permute, reshape
from tilewright.ops.wide_matmul import wide_matmul

# Neighbouring channels are copied together, so many at least.
TOGETHER = 4


@dataclass(frozen=True)
class ConvProducts(Pass, needs=("ChannelsLast",), before=("SinkReshapes",), rounds=True):
    """Convolutions become matrix products of their windows, where instructions multiply
    matrices."""

    dtypes: tuple[str, ...] = of_target(("bf16", "f16"), multiplied)
    least: int = 16  # rows, columns and products of a sum: with fewer, tiles are mostly empty
    deep: int = 64  # elements of a sum that are brought at a time

    def apply(self, program: Graph, log: Log) -> Graph:
        def change(n: Node) -> Node:
            found = self.product_of(n)
            if found is None:
                return n
            log.add("layout", f"{n!r} as a product of windows", detail=True)
            return found

        return rebuild(program, change)

    def product_of(self, n: Node) -> Node | None:
        """The same as a product, or None where it is no convolution that becomes one."""
        op = n.op
        if not isinstance(op, Arranged) or not isinstance(op.op, ConvValid) or op.op.groups != 1:
            return None
        last = order_of(n.rank)
        if op.operands != (last, tuple(range(n.rank))) or op.result != last:
            return None
        x, w = n.inputs
        known = all(isinstance(d, int) for d in (*n.shape, *x.shape, *w.shape))
        if not known or x.dtype.name not in self.dtypes:
            return None
        rows, taps = product(n.shape[:-1]), product(w.shape[2:])
        sizes = (rows, n.shape[-1], taps * w.shape[1])
        if any(isinstance(d, int) and d < self.least for d in sizes):
            return None
        x, before = _unpadded(x)
        a, channels = self.rows_of(x, n, w, op.op, before)
        b = _weight(w, channels, a.shape[-1])
        turned = permute(b, (1, 0))
        out = wide_matmul(a, turned, f32) if op.op.wide else matmul(a, turned)
        return reshape(out, n.shape)

    def rows_of(self, x: Node, n: Node, w: Node, op: ConvValid, before: Ints) -> tuple[Node, Dim]:
        """The windows as rows, and the channels of each tap."""
        kernel, windows = w.shape[2:], n.shape[1:-1]
        base, order = _turned(x)
        channels = x.shape[-1]
        assert isinstance(channels, int)
        single = all(k == 1 for k in kernel) and not any(before)
        single = single and all(s == 1 for s in op.stride) and x.shape[:-1] == n.shape[:-1]
        more = 0 if single else -channels % TOGETHER
        if more:
            x = permute(base, order) if order != tuple(range(x.rank)) else base
            x = pad(x, (0,) * x.rank, (*(0,) * (x.rank - 1), more))
        elif order != tuple(range(x.rank)):
            # Tiles read it again and again: channels are stored side by side.
            x = relayout(base, Map.permutation(order))
        else:
            x = base
        if single:
            return reshape(x, (product(n.shape[:-1]), channels)), channels
        deep = product(kernel) * (channels + more)
        assert isinstance(deep, int)
        columns = -(-deep // self.deep) * self.deep
        a = patches(x, windows, kernel, op.stride, op.dilation, before, columns)
        return a, channels + more


def _turned(x: Node) -> tuple[Node, Order]:
    """The value of which x is only another order of axes, and that order."""
    order: Order = tuple(range(x.rank))
    while True:
        if isinstance(x.op, Permute):
            order = reordered(x.op.perm, order)
        elif isinstance(x.op, Relayout) and x.op.map == Map.permutation(order_of(x.rank)):
            order = reordered(order_of(x.rank), order)
        else:
            return x, order
        x = x.inputs[0]


def _unpadded(x: Node) -> tuple[Node, Ints]:
    """The image without the zeros around it, and how many of them are before it."""
    none = (0,) * (x.rank - 2)
    op, order = x.op, tuple(range(x.rank))
    if isinstance(op, Arranged) and op.operands == (op.result,):
        op, order = op.op, op.result
    if not isinstance(op, Pad) or repr(op.value) not in ("0", "0.0", "False"):
        return x, none
    lo, hi = reordered(op.lo, order), reordered(op.hi, order)
    before = tuple(d for d in lo[1:-1] if isinstance(d, int))
    if len(before) < len(none) or any((lo[0], hi[0], lo[-1], hi[-1])):
        return x, none
    return x.inputs[0], before


def _weight(w: Node, channels: Dim, columns: Dim) -> Node:
    """The filters as rows, in the order of the columns of windows."""
    rows, own, *kernel = w.shape
    taps = product(kernel)
    last = (0, *range(2, w.rank), 1)
    if own == channels and taps * own == columns:
        moved = w if taps == 1 else relayout(w, Map.permutation(last))
        return reshape(moved, (rows, columns))
    more: Sequence[Dim] = (0, channels - own, *(0,) * len(kernel))
    moved = permute(pad(w, (0,) * w.rank, more), last)
    flat = reshape(moved, (rows, taps * channels))
    return pad(flat, (0, 0), (0, columns - taps * channels))
