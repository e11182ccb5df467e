"""Transposed convolutions with strides: the results of each phase by a convolution of their own.

A transposed convolution of stride s is a plain one of an image with s - 1 zeros between neighbours:
along each axis one in s of its products is of a number. Results whose positions are equal modulo s
meet the same taps, every s-th one, so each such phase is a plain convolution of the image as it is.
Gradients of strided convolutions with respect to their images are transposed convolutions. Where
results have few channels, as images of colours, those of all phases are channels of one
convolution: they fill vectors together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import product
from math import prod

from tilewright.base.events import Log
from tilewright.ir.dim import Dim
from tilewright.ir.node import Graph, Node, rebuild
from tilewright.ir.passes import Pass
from tilewright.ir.positions import static
from tilewright.ops.conv_gradients import ConvBackwardInput
from tilewright.ops.conv_parts import pad_space
from tilewright.ops.convolution import Conv, conv_valid, swap_weight, zero_insert
from tilewright.ops.elementwise import add
from tilewright.ops.views import pad, permute, reshape, slice


@dataclass(frozen=True)
class Phases(Pass, before=("Decompose",), regions=True):
    """Transposed convolutions with strides become plain ones, one for each phase of results."""

    most: int = 16  # phases: each is a kernel
    # Channels of a product: with fewer that are summed, the zeros cost little; with fewer results,
    # all phases are one product
    least: int = 16

    def apply(self, program: Graph, log: Log) -> Graph:
        def change(n: Node) -> Node:
            made = n
            if isinstance(n.op, ConvBackwardInput) and not n.op.transposed:
                made = n.op.compose(*n.inputs)
            if not isinstance(made.op, Conv) or not self._suits(made):
                return n
            log.add("layout", f"{n!r} by phases of stride {made.op.stride}", detail=True)
            columns = made.inputs[1].shape[1]
            few = isinstance(columns, int) and columns < self.least
            return _at_once(made, self.least) if few else _by_phases(made)

        return rebuild(program, change)

    def _suits(self, n: Node) -> bool:
        op = n.op
        assert isinstance(op, Conv)
        if not op.transposed or op.groups != 1 or any(d != 1 for d in op.dilation):
            return False
        x, w = n.inputs
        sizes = (*x.shape[2:], *w.shape[2:], *n.shape[2:], *op.output_padding)
        if not all(isinstance(d, int) for d in sizes) or n.dtype.is_int:
            return False
        taps = prod(static(w.shape[2:]))
        few = isinstance(w.shape[0], int) and w.shape[0] < self.least
        return 1 < prod(op.stride) <= self.most and taps > 1 and not few


@dataclass(frozen=True)
class Phase:
    """Along one axis: every `stride`-th tap from `first`; results from `at`, `stride` apart, of an
    image with `before` and `after` more pixels (fewer, if negative)."""

    first: int
    at: int
    count: int
    before: int
    after: int


def phases(size: int, kernel: int, stride: int, padding: int, out: int) -> list[Phase]:
    """Pixel i and tap k add to the result at i * stride + k - padding. Phases without a tap, or
    without a result, are left out: results there are 0."""
    found = []
    for first in range(min(stride, kernel)):
        taps = -(-(kernel - first) // stride)
        start = max(0, -(-(padding - first) // stride))
        stop = (out - 1 + padding - first) // stride  # the last one
        if stop >= start:
            at = start * stride + first - padding
            edges = taps - 1 - start, stop - (size - 1)
            found.append(Phase(first, at, stop - start + 1, *edges))
    return found


def _by_phases(n: Node) -> Node:
    op = n.op
    assert isinstance(op, Conv)
    x, w = n.inputs
    each = [
        phases(a, k, s, p, b)
        for a, k, s, p, b in zip(
            static(x.shape[2:]),
            static(w.shape[2:]),
            op.stride,
            op.padding,
            static(n.shape[2:]),
            strict=True,
        )
    ]
    ones = (1,) * len(op.stride)
    parts = []
    for chosen in product(*each):
        taps = w
        for k, (phase, s) in enumerate(zip(chosen, op.stride, strict=True)):
            taps = slice(taps, 2 + k, phase.first, None, s)
        image = pad_space(x, [c.before for c in chosen], [c.after for c in chosen])
        y = conv_valid(image, swap_weight(taps, 1), ones, ones, 1, op.wide)
        spread = zero_insert(y, op.stride)
        lo = [c.at for c in chosen]
        hi: list[Dim] = [
            b - a - c for a, b, c in zip(lo, n.shape[2:], spread.shape[2:], strict=True)
        ]
        parts.append(pad_space(spread, lo, hi))
    return reduce(add, parts)


def _at_once(n: Node, least: int) -> Node:
    """All phases by one convolution. The result at o, where o + padding = q * stride + f, is the
    sum over t of pixel q - t times tap f + t * stride: f is part of the channel, and results of all
    q and f lie in the order of o. At least so many channels, some of zeros, fill a vector."""
    op = n.op
    assert isinstance(op, Conv)
    x, w = n.inputs
    sizes, kernel, out = (static(v.shape[2:]) for v in (x, w, n))
    rank, stride = len(kernel), op.stride
    taps = [-(-k // s) for k, s in zip(kernel, stride, strict=True)]
    first = [p // s for p, s in zip(op.padding, stride, strict=True)]
    last = [(b - 1 + p) // s for b, p, s in zip(out, op.padding, stride, strict=True)]
    more = [t * s - k for t, s, k in zip(taps, stride, kernel, strict=True)]
    split = [d for pair in zip(taps, stride, strict=True) for d in pair]
    outer, inner = list(range(2, 2 + 2 * rank, 2)), list(range(3, 3 + 2 * rank, 2))
    w = reshape(pad_space(w, [0] * rank, more), (*w.shape[:2], *split))
    w = permute(w, (0, 1, *inner, *outer))
    columns = static(w.shape[1:2])[0] * prod(stride)
    w = reshape(w, (w.shape[0], columns, *taps))
    w = pad(w, [0] * w.rank, (0, max(0, least - columns), *([0] * rank)))
    before = [t - 1 - a for t, a in zip(taps, first, strict=True)]
    after = [b - (size - 1) for b, size in zip(last, sizes, strict=True)]
    ones = (1,) * rank
    y = conv_valid(pad_space(x, before, after), swap_weight(w, 1), ones, ones, 1, op.wide)
    count = y.shape[2:]
    y = slice(y, 1, 0, columns, 1)
    y = reshape(y, (y.shape[0], n.shape[1], *stride, *count))
    pairs = [k for f in range(2, 2 + rank) for k in (f + rank, f)]
    y = permute(y, (0, 1, *pairs))
    y = reshape(y, (*n.shape[:2], *(c * s for c, s in zip(count, stride, strict=True))))
    for k, (p, s, b) in enumerate(zip(op.padding, stride, out, strict=True)):
        y = slice(y, 2 + k, p % s, p % s + b, 1)
    return y
