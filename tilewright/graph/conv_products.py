"""Convolutions as matrix products, where instructions multiply whole tiles: on GPUs.

`conv(pad(x), w)` of images with channels last becomes `reshape(patches(x) @ w')`. The rows of the
first operand are windows; they are gathered when a kernel brings a tile of them to shared memory
(kernel/defaults/grid_convolutions.py), never stored. The second operand is made once. The gradient
of the weight is a product with the same windows, `transpose(grad) @ patches(x)`: a sum over all of
them.
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
from tilewright.ir.positions import Shape, product
from tilewright.ir.types import f32
from tilewright.ops.arranged import Arranged, Order, reordered
from tilewright.ops.conv_gradients import ConvWeightValid
from tilewright.ops.conv_parts import Ints
from tilewright.ops.convolution import ConvValid
from tilewright.ops.layout import Relayout, relayout
from tilewright.ops.linear import matmul
from tilewright.ops.patches import patches
from tilewright.ops.views import Pad, Permute, pad, permute, reshape, slice
from tilewright.ops.wide_matmul import wide_matmul

# Neighbouring channels are copied together, so many at least.
TOGETHER = 4


@dataclass(frozen=True)
class ConvProducts(
    Pass, needs=("ChannelsLast",), before=("SinkReshapes",), rounds=True, regions=True
):
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
        kind = op.op if isinstance(op, Arranged) else op
        if not isinstance(kind, (ConvValid, ConvWeightValid)) or kind.groups != 1:
            return None
        known = all(isinstance(d, int) for x in (n, *n.inputs) for d in x.shape)
        if not known or n.inputs[0].dtype.name not in self.dtypes:
            return None
        if isinstance(op, ConvWeightValid):
            return self.weight_product(n, op)
        if not isinstance(op, Arranged) or not isinstance(op.op, ConvValid):
            return None
        last = order_of(n.rank)
        if op.operands != (last, tuple(range(n.rank))) or op.result != last:
            return None
        x, w = n.inputs
        rows, taps = product(n.shape[:-1]), product(w.shape[2:])
        if self.is_small(rows, n.shape[-1], taps * w.shape[1]):
            return None
        base, order, before = _image(x)
        windows = Windows(n.shape[:-1], w.shape[2:], op.op.stride, op.op.dilation, before)
        a, channels = self.rows_of(base, order, windows)
        b = _weight(w, channels, a.shape[-1])
        turned = permute(b, (1, 0))
        out = wide_matmul(a, turned, f32) if op.op.wide else matmul(a, turned)
        return reshape(out, n.shape)

    def weight_product(self, n: Node, op: ConvWeightValid) -> Node | None:
        """The gradient of a weight: windows are summed up, each times its gradient."""
        grad, x = n.inputs
        last = order_of(grad.rank)
        base, order, before = _image(permute(x, last))
        windows = Windows(
            (grad.shape[0], *grad.shape[2:]), op.kernel, op.stride, op.dilation, before
        )
        count, results, own = product(windows.shape), n.shape[0], n.shape[1]
        if self.is_small(count, results, product(op.kernel) * own):
            return None
        b, channels = self.rows_of(base, order, windows)
        g = _stored(*_turned(permute(grad, last)))
        out = matmul(permute(reshape(g, (count, results)), (1, 0)), b)
        taps = product(op.kernel) * channels
        out = slice(out, 1, 0, taps) if taps != b.shape[-1] else out
        out = reshape(out, (results, *op.kernel, channels))
        out = slice(out, n.rank - 1, 0, own) if channels != own else out
        return permute(out, (0, n.rank - 1, *range(1, n.rank - 1)))

    def is_small(self, *sizes: Dim) -> bool:
        return any(isinstance(d, int) and d < self.least for d in sizes)

    def rows_of(self, base: Node, order: Order, w: Windows) -> tuple[Node, Dim]:
        """The windows of an image, a value with its axes in an order, as rows; and the channels
        of each tap."""
        shape = reordered(base.shape, order)
        channels = shape[-1]
        assert isinstance(channels, int)
        single = all(k == 1 for k in w.kernel) and not any(w.before)
        single = single and all(s == 1 for s in w.stride) and shape[:-1] == w.shape
        more = 0 if single else -channels % TOGETHER
        if more:
            x = permute(base, order) if order != tuple(range(base.rank)) else base
            x = pad(x, (0,) * x.rank, (*(0,) * (x.rank - 1), more))
        else:
            x = _stored(base, order)
        if single:
            return reshape(x, (product(w.shape), channels)), channels
        deep = product(w.kernel) * (channels + more)
        assert isinstance(deep, int)
        columns = -(-deep // self.deep) * self.deep
        a = patches(x, w.shape[1:], w.kernel, w.stride, w.dilation, w.before, columns)
        return a, channels + more


@dataclass(frozen=True)
class Windows:
    """Of images: how many there are (of each image, along each axis), and what each reads."""

    shape: Shape
    kernel: Shape
    stride: Ints
    dilation: Ints
    before: Ints


def _stored(base: Node, order: Order) -> Node:
    """A value with its axes in an order. Tiles read it again and again: where that is another one,
    it is stored so."""
    same = order == tuple(range(base.rank))
    return base if same else relayout(base, Map.permutation(order))


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


def _image(x: Node) -> tuple[Node, Order, Ints]:
    """Of images with channels last: the value of which they are only another order of axes, without
    the zeros around it; that order; how many zeros are before it."""
    base, order = _turned(x)
    op, own = base.op, tuple(range(x.rank))
    if isinstance(op, Arranged) and op.operands == (op.result,):
        op, own = op.op, op.result
    if isinstance(op, Pad) and repr(op.value) in ("0", "0.0", "False"):
        lo, hi = (reordered(reordered(d, own), order) for d in (op.lo, op.hi))
        before = tuple(d for d in lo[1:-1] if isinstance(d, int))
        if len(before) == x.rank - 2 and not any((lo[0], hi[0], lo[-1], hi[-1])):
            inner, more = _turned(base.inputs[0])
            return inner, reordered(more, order), before
    return base, order, (0,) * (x.rank - 2)


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
