"""The exponential of matrices: a Taylor polynomial of A / 2^s, squared s times."""

from __future__ import annotations

import math

from tilewright import ops
from tilewright.capture.torch.aten_special import double
from tilewright.capture.torch.context import Context, parts
from tilewright.capture.torch.registry import Untranslated, aten
from tilewright.ir import dim as D
from tilewright.ir.node import Graph, Node, input
from tilewright.ir.types import TensorType, f32, f64

DEGREE, BLOCK = 18, 4
# Up to this norm the polynomial is as good as the dtype.
LARGEST = {f32: 3.0, f64: 1.09}


def _taylor(a: Node, identity: Node) -> Node:
    """Σ A^k / k! by blocks of four powers: seven products for a degree of 18."""
    powers = [identity, a]
    for _ in range(BLOCK - 1):
        powers.append(ops.matmul(powers[-1], a))
    out: Node | None = None
    for start in reversed(range(0, DEGREE + 1, BLOCK)):
        block: Node | None = None
        for k in range(min(BLOCK, DEGREE + 1 - start)):
            factor = ops.full((), 1 / math.factorial(start + k), a.dtype)
            term = ops.mul(powers[k], factor)
            block = term if block is None else ops.add(block, term)
        assert block is not None
        out = block if out is None else ops.add(ops.matmul(out, powers[BLOCK]), block)
    assert out is not None
    return out


@aten("linalg_matrix_exp.default")
def matrix_exp(c: Context, a: Node) -> Node:
    if a.dtype not in LARGEST:
        raise Untranslated(f"of {a.dtype} it has no native form")
    if any(D.known_eq(d, 0) for d in a.shape):
        return a
    if D.known_eq(a.shape[-1], 1):
        return ops.exp(a)
    n, batch = a.shape[-1], a.shape[:-2]
    rows = ops.reshape(ops.iota(n), (n, 1))
    identity = ops.expand(ops.cast(ops.eq(rows, ops.iota(n)), a.dtype), a.shape)
    norm = ops.amax(ops.sum(ops.abs(a), (a.rank - 2,)), (a.rank - 2,))
    finite = ops.isfinite(norm)
    ratio = ops.div(ops.cast(norm, f64), double(LARGEST[a.dtype]))
    needed = ops.ceil(ops.log2(ops.maximum(ratio, double(1))))
    # A matrix without a norm is left as it is: its exponential has no numbers either way.
    halvings = ops.where(finite, needed, double(0))
    scale = ops.cast(ops.exp2(ops.neg(halvings)), a.dtype)
    small = ops.mul(a, ops.reshape(scale, (*batch, 1, 1)))
    most = ops.amax(halvings, tuple(range(len(batch)))) if batch else halvings
    names = {
        "k": TensorType(f64, ()),
        "x": a.ttype,
        "halvings": TensorType(f64, batch),
        "most": TensorType(f64, ()),
    }
    k, x, each, last = inputs = tuple(input(name, t) for name, t in names.items())
    more = Graph("condition", inputs, (ops.lt(k, last),))
    again = ops.reshape(ops.lt(k, each), (*batch, 1, 1))
    squared = ops.where(again, ops.matmul(x, x), x)
    body = Graph("body", inputs, (ops.add(k, double(1)), squared))
    start = double(0), _taylor(small, identity)
    return parts(ops.while_loop(more, body, start, (halvings, most)))[1]
