"""Products of batches keep the axes of their batch, unless all multiply the same matrix.

Frontends flatten all batch axes into one for a batched product and restore them right after. What
comes between two such products (a mask, a softmax) has the axes, so the products should too.

Where one matrix serves the whole batch (a linear layer), the rows of all of it are rows of one
product: register tiles are filled whatever the sizes are, and the matrix is packed once.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import ops
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node
from tilewright.ir.pattern import Guard, Match, Rule, Var, guard, make, op
from tilewright.ir.positions import product
from tilewright.ops.shapes import broadcast_shapes
from tilewright.ops.views import Permute
from tilewright.rewrites.subject import Maker

x, y = Var("x"), Var("y")


def _batch(shape: Sequence[Dim], last: Sequence[Dim]) -> tuple[Dim, ...] | None:
    """The axes before the last ones; None where the shape ends otherwise."""
    count = len(shape) - len(last)
    same = count > 1 and all(map(D.known_eq, shape[count:], last))
    return tuple(shape[:count]) if same else None


def _of_several(shape: Sequence[Dim]) -> list[Dim]:
    return [d for d in shape if d != 1]


def _both_batches(m: Match) -> tuple[Dim, ...] | None:
    """The axes that are flattened into one in both operands, up to those of one element; None where
    these differ, or any other changes."""
    (_, i, j), k = m.root.shape, m.root.inputs[0].shape[2]
    ends = (m.x.shape, (i, k)), (m.y.shape, (k, j))
    for of in (tuple, _of_several):
        a, b = (_batch(of(shape), of(last)) for shape, last in ends)
        if a is not None and b is not None and len(a) == len(b) and all(map(D.known_eq, a, b)):
            return a
    return None


@guard("only batch axes are flattened")
def _only_batches(m: Match) -> bool:
    return m.root.rank == 3 and _both_batches(m) is not None


def _left_out(before: Sequence[Dim], after: Sequence[Dim]) -> list[int] | None:
    """The axes of one element that a reshape leaves out; None where it does anything else."""
    found, met = [], 0
    for k, d in enumerate(before):
        if met < len(after) and D.known_eq(d, after[met]):
            met += 1
        elif D.known_eq(d, 1):
            found.append(k)
        else:
            return None
    return found if met == len(after) else None


def _reshaped(x: Node, shape: Sequence[Dim]) -> Node:
    """Axes of one element that are permuted and left out then, as of an einsum, are left out
    first: what is permuted is what lies in memory."""
    gone = _left_out(x.shape, shape)
    if not gone or not isinstance(x.op, Permute):
        return ops.reshape(x, tuple(shape))
    (whole,) = x.inputs
    axes = [a for k, a in enumerate(x.op.perm) if k not in gone]
    kept = sorted(axes)
    fewer = ops.reshape(whole, tuple(whole.shape[k] for k in kept))
    return ops.permute(fewer, tuple(map(kept.index, axes)))


def _with_axes(m: Match) -> Node:
    batch = _both_batches(m)
    assert batch is not None
    (_, i, j), k = m.root.shape, m.root.inputs[0].shape[2]
    x, y = _reshaped(m.x, (*batch, i, k)), _reshaped(m.y, (*batch, k, j))
    return ops.reshape(ops.matmul(x, y), m.root.shape)


def _flattened(m: Maker) -> Node:
    batch = tuple(m.dim(lo=2) for _ in range(m.whole(2, 3)))
    i, j, k = m.dim(), m.dim(), m.dim()
    flat = product(batch)
    rows: tuple[Dim, ...] = (i,)
    if m.coin():  # a row of each, without an axis of its own
        i, rows = 1, ()
    first = m.rng.choice([(), (1,)])
    a = make("reshape", m.tensor("x", (*first, *batch, *rows, k)), shape=(flat, i, k))
    y: Node
    if m.coin():  # with an axis of one element, which is permuted
        n = len(batch)
        y = make("permute", m.tensor("y", (*batch, j, 1, k)), perm=(*range(n), n + 2, n, n + 1))
    else:
        y = m.tensor("y", (*batch, k, j))
    b = make("reshape", y, shape=(flat, k, j))
    return make("matmul", a, b)


def _reads_the_same(m: Match) -> bool:
    """Has the left operand all the batch axes along which the right one is repeated?"""
    before, after = m.y.shape, m.root.inputs[1].shape
    if len(before) < 2 or not all(map(D.known_eq, before[-2:], after[-2:])):
        return False
    shape = broadcast_shapes(m.x.shape[:-2], before[:-2], what="matmul")
    return len(shape) == m.root.rank - 2 and all(map(D.known_eq, shape, m.root.shape))


def _repeated(m: Maker) -> Node:
    b, i, j, k = m.dim(), m.dim(), m.dim(), m.dim()
    own = m.rng.choice([(), (1,)])
    y = make("expand", m.tensor("y", (*own, k, j)), shape=(b, k, j))
    return make("matmul", m.tensor("x", (b, i, k)), y)


def _one_product(m: Match) -> Node:
    rows = product(m.x.shape[:-1])
    made = ops.matmul(ops.reshape(m.x, (rows, m.x.shape[-1])), m.y)
    return ops.reshape(made, m.root.shape)


def _one_matrix(m: Maker) -> Node:
    i, j, k = m.dim(), m.dim(), m.dim()
    x = m.tensor("x", (*m.shape(m.whole(1, 2)), i, k))
    return make("matmul", x, m.tensor("y", (k, j)))


RULES = (
    Rule(
        "matmul-of-repeated",
        op.matmul(x, op.expand(y)),
        lambda m: ops.matmul(m.x, m.y),
        Guard("the left operand has the batch axes itself", _reads_the_same),
        subject=_repeated,
    ),
    Rule(
        "matmul-of-one-matrix",
        op.matmul(x, y),
        _one_product,
        Guard("the right operand is one matrix", lambda m: m.x.rank > 2 and m.y.rank == 2),
        subject=_one_matrix,
    ),
    Rule(
        "matmul-of-batches",
        op.matmul(op.reshape(x), op.reshape(y)),
        _with_axes,
        _only_batches,
        subject=_flattened,
    ),
)
