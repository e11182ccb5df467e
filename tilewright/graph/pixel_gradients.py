"""The weight's gradient of a convolution of single pixels, as a product of matrices.

Each pixel adds the products of its channels, all pixels of all images alike:

    dw[o,c] = sum(grad[p,o] * x[p,c])

With channels last both operands are matrices as they lie, and products know how to store matrices
that are summed over rows: as a convolution, one of them would be read in steps of whole pixels,
which share few places of a cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.events import Log
from tilewright.graph.channels import order_of, unpermuted
from tilewright.graph.classify import guess
from tilewright.ir import dim as D
from tilewright.ir.node import Graph, Node, rebuild
from tilewright.ir.passes import Pass
from tilewright.ir.positions import product
from tilewright.ops.conv_gradients import ConvWeightValid
from tilewright.ops.linear import matmul
from tilewright.ops.views import permute, reshape, slice


@dataclass(frozen=True)
class PixelGradients(
    Pass, needs=("ChannelsLast",), before=("PackOperands",), rounds=True, regions=True
):
    """Gradients of weights of single pixels become matrix products, where channels are last."""

    # The right operand is copied more quickly, so the wider one is that, and the result is turned:
    # so many elements of an operand that move to the right pay for one of the result.
    turned: int = 4

    def apply(self, program: Graph, log: Log) -> Graph:
        def change(n: Node) -> Node:
            found = self.product_of(n)
            if found is None:
                return n
            log.add("layout", f"{n!r} as a product of all pixels", detail=True)
            return found

        return rebuild(program, change)

    def product_of(self, n: Node) -> Node | None:
        """The same as a product, or None where it is no such gradient."""
        op = n.op
        if not isinstance(op, ConvWeightValid) or op.groups != 1:
            return None
        grad, x = map(_channels_last, n.inputs)
        if grad is None or x is None or any(k != 1 for k in op.kernel):
            return None
        if not D.known_eq(grad.shape[0], x.shape[0]):
            return None
        for k, step in enumerate(op.stride, 1):
            x = slice(x, k, 0, (grad.shape[k] - 1) * step + 1, step)
        pixels = product(grad.shape[:-1])
        a, b = (reshape(i, (pixels, i.shape[-1])) for i in (grad, x))
        whole = all(step == 1 for step in op.stride)  # what is left out makes other copies slow
        if whole and self.wider(a, b):
            return reshape(permute(_over_rows(b, a), (1, 0)), n.shape)
        return reshape(_over_rows(a, b), n.shape)

    def wider(self, a: Node, b: Node) -> bool:
        """Is the left operand so much wider that it should be the right one?"""
        rows, results, channels = guess(a.shape[0]), guess(a.shape[1]), guess(b.shape[1])
        return rows * (results - channels) > self.turned * results * channels


def _over_rows(a: Node, b: Node) -> Node:
    """The products of all columns of both, summed over rows."""
    return matmul(permute(a, (1, 0)), b)


def _channels_last(x: Node) -> Node | None:
    """Images as they lie, if that is with channels last."""
    plain, order = unpermuted(x, order_of(x.rank))
    return plain if order == tuple(range(x.rank)) else None
