"""Convolutions of single pixels as products of matrices, in the order that images have.

A filter of one pixel multiplies the channels of each pixel by the same matrix:

    y[n,o,p] = sum(w[o,c] * x[n,c,p])

With pixels as columns, vectors run along them as they lie. Where no convolution of larger windows
is around, which would have channels innermost, nothing needs to be turned. (In long rows of such
convolutions channels are innermost all the same: products copy each image that they multiply.)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tilewright.graph.classify import contraction, facts
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import extent
from tilewright.ir.node import Node, node
from tilewright.ir.positions import Shape, product
from tilewright.ir.types import TensorType, f32, f64
from tilewright.ops.arranged import Order, inverse
from tilewright.ops.linear import matmul
from tilewright.ops.views import Permute, reshape

# Pixels that fill vectors; of fewer, channels do.
FEWEST = 16


def needs_no_turning(
    values: set[Node], users: Mapping[Node, Sequence[Node]], results: Collection[Node], last: Order
) -> bool:
    """Are these images around convolutions of single pixels alone, where products cost less?

    Channels last costs a copy of each image that comes or goes in another order, products one of
    each image that they multiply. What comes or goes with channels last says that it stays so.
    """
    convolutions = [n for n in values if facts(n).kind == "contract"]
    if not convolutions or not all(map(is_pixel_product, convolutions)):
        return False
    given = {x for n in values for x in n.inputs if x not in values and _has_pixels(x, n.rank)}
    taken = {n for n in values if n in results or not values.issuperset(users[n])}
    after = {u for n in taken for u in users[n] if u not in values}
    if any(isinstance(x.op, Permute) and x.op.perm == inverse(last) for x in given):
        return False
    if any(isinstance(u.op, Permute) and u.op.perm == last for u in after):
        return False
    multiplied = {n.inputs[c.left] for n in convolutions if (c := contraction(n)) is not None}
    return len(multiplied) < len(given) + len(taken)


def _has_pixels(x: Node, rank: int) -> bool:
    return isinstance(x.type, TensorType) and x.rank == rank and product(x.shape[2:]) != 1


def is_pixel_product(n: Node) -> bool:
    """Does it multiply each pixel's channels by one matrix, and is that all?"""
    c, f = contraction(n), facts(n)
    if c is None or f.reduce is None or n.rank < 3 or c.lane != 1 or n.dtype not in (f32, f64):
        return False
    image, matrix = (n.inputs[k] for k in (c.left, c.right))
    if len(f.accesses) != 2 or image.dtype is not n.dtype or image.rank != n.rank:
        return False
    if D.bounds(product(n.shape[2:]))[0] < FEWEST or matrix.rank < 2:
        return False
    of, out = {a.operand: a.index for a in f.accesses}, f.outputs[0].axes
    # Windows of one pixel have axes of their own, with one element each.
    single: dict[Sym, Dim] = {s: 0 for s in f.reduce.axes if extent(s) == 1}
    deep = [s for s in f.reduce.axes if s not in single]
    if len(deep) != 1:
        return False
    channel = D.as_int(deep[0])
    read = [D.substitute(i, single) for i in of[c.left]]
    own = [D.substitute(i, single) for i in of[c.right]]
    pixels = list(map(D.as_int, out[2:]))
    none = [0] * (matrix.rank - 2)
    wanted = [D.as_int(out[0]), channel, *pixels], [D.as_int(out[1]), channel, *none]
    return (read, own) == wanted


class FlatPixels:
    """Values with all pixels along one axis: products, and the elementwise work around them, which
    then is part of the same loops."""

    def __init__(self) -> None:
        self.flat: dict[Node, Node] = {}

    def add(self, n: Node, operands: Sequence[Node]) -> bool:
        """A node over such operands; False where it is something else that has its own axes."""
        f = facts(n)
        if f.kind == "contract":
            c = contraction(n)
            assert c is not None
            w = operands[c.right]
            image = self.of(n.inputs[c.left], operands[c.left])
            self.flat[n] = matmul(reshape(w, w.shape[:2]), image)
            return True
        if not (n.op.elementwise and f.pointwise) or not any(x in self.flat for x in n.inputs):
            return False
        ins = [_flattened(x, n.shape) for x in operands]
        ins = [self.flat.get(x, y) for x, y in zip(n.inputs, ins, strict=True)]
        if not all(ins):
            return False
        self.flat[n] = node(n.op, *(x for x in ins if x is not None))
        return True

    def of(self, n: Node, operand: Node) -> Node:
        return self.flat.get(n) or reshape(operand, flat_shape(n.shape))

    def back(self, n: Node) -> Node:
        return reshape(self.flat[n], n.shape)


def flat_shape(shape: Shape) -> Shape:
    return (*shape[:2], product(shape[2:]))


def _flattened(x: Node, of: Shape) -> Node | None:
    """An operand of elementwise work, if it has all pixels or none."""
    if x.rank < len(of) - 1:  # (it may have channels, and no pixels)
        return x if x.rank == 0 else None
    pixels = x.shape[-(len(of) - 2) :]
    every = all(map(D.known_eq, pixels, of[2:]))
    none = all(D.known_eq(d, 1) for d in pixels)
    if not every and not none:
        return None
    return reshape(x, (*x.shape[: -len(pixels)], product(pixels)))
