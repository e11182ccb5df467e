"""Any operator with its axes in another order: an image's channels last, say.

`permute(conv(permute(x), w))` says the same with three operators. As one, the result's index and
the order of the sum follow how the operands lie, and fusion and schedules read a definition only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tilewright.base.errors import require
from tilewright.ir import dim as D
from tilewright.ir import expr as E
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Load, Reduce, Tensor, Value
from tilewright.ir.extremes import guess
from tilewright.ir.node import Node, Op, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.positions import linear_index
from tilewright.ir.types import TensorType
from tilewright.ops.convolution import ConvValid
from tilewright.ops.samples import case, normal
from tilewright.ops.windows import WindowMax

Order = tuple[int, ...]  # axis k of what is stored is axis order[k] of what the operator means


def inverse(order: Order) -> Order:
    return tuple(order.index(k) for k in range(len(order)))


def reordered(x: Sequence[Any], order: Order) -> tuple[Any, ...]:
    return tuple(x[k] for k in order)


@operator
class Arranged(Op):
    """`op` of operands that are stored with their axes in other orders; its result is, too."""

    op: Op
    operands: tuple[Order, ...]
    result: Order

    def infer(self, *types: TensorType) -> TensorType:
        require(
            len(types) == len(self.operands)
            and all(sorted(o) == list(range(t.rank)) for o, t in zip(self.operands, types)),
            f"arranged: the orders {self.operands} do not fit {', '.join(map(repr, types))}",
        )
        out = self.op.infer(*self._meant(types))
        require(
            isinstance(out, TensorType) and sorted(self.result) == list(range(out.rank)),
            f"arranged: the order {self.result} does not fit the result {out!r}",
        )
        assert isinstance(out, TensorType)
        return TensorType(out.dtype, reordered(out.shape, self.result))

    def _meant(self, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return tuple(
            TensorType(t.dtype, reordered(t.shape, inverse(o)))
            for t, o in zip(types, self.operands, strict=True)
        )

    def compute(self, *xs: Tensor) -> Tensor:
        meant = self._meant([TensorType(x.dtype, x.shape) for x in xs])
        ins = tuple(E.placeholder(t.shape, t.dtype, f"m{k}") for k, t in enumerate(meant))
        build: Any = getattr(self.op, "compute", None)
        require(build is not None, f"arranged: {self.op.name} is not defined by index functions")
        inner: Tensor = build(*ins)
        stored = dict(zip(ins, zip(xs, self.operands, strict=True), strict=True))

        def moved(v: Load) -> Value:
            found = stored.get(v.source) if isinstance(v.source, Tensor) else None
            require(found is not None, f"arranged: {self.op.name} has more than one stage")
            assert found is not None
            x, order = found
            return x[reordered(v.index, order)]

        def body(*i: Dim) -> Value:
            assert inner.body is not None
            table = dict(zip(inner.axes, reordered(i, inverse(self.result)), strict=True))
            return E.rewrite(inner.body, table, moved, in_order)

        return E.compute(reordered(inner.shape, self.result), body, inner.dtype)

    def reference(self, *xs: np.ndarray) -> np.ndarray:
        meant = [x.transpose(inverse(o)) for x, o in zip(xs, self.operands, strict=True)]
        run: Any = self.op
        return np.ascontiguousarray(run.reference(*meant).transpose(self.result))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        last = (0, 2, 3, 1)
        conv = cls(ConvValid((2, 1), (1, 1), 1), (last, (0, 1, 2, 3)), last)
        yield case(conv, normal(1, 7, 6, 3), normal(4, 3, 3, 2))
        grouped = cls(ConvValid((1, 1), (1, 1), 2), (last, (0, 1, 2, 3)), (0, 1, 2, 3))
        yield case(grouped, normal(2, 4, 5, 4), normal(4, 2, 1, 3))
        pool = cls(WindowMax((3, 2), (2, 2), (1, 0), (1, 1), (4, 3)), (last,), last)
        yield case(pool, normal(2, 7, 6, 3))


def in_order(r: Reduce) -> Value:
    """A sum whose innermost axis is the one along which its first operand lies. Rows of an image
    are far apart, however long they are."""
    load = next(E.loads(r.body), None)
    if len(r.axes) < 2 or load is None or not isinstance(load.source, Tensor):
        return r
    wide = max(E.loads(r.body), key=lambda v: len({s for i in v.index for s in D.symbols(i)}))
    assert isinstance(wide.source, Tensor)
    at = linear_index(wide.index, wide.source.shape)

    def step(axis: Sym) -> int:
        c = D.coefficient(at, axis)
        return 0 if c is None else -guess(c)

    axes = sorted(r.axes, key=step)
    fresh = [D.var(a.name, E.extent(b)) for a, b in zip(r.axes, axes, strict=True)]
    # Through names of their own: old and new ones overlap.
    apart = [D.var(f"?{a.name}", E.extent(a)) for a in axes]
    body = r.body.substitute(dict(zip(axes, apart, strict=True)))
    body = body.substitute({D.the_sym(a): b for a, b in zip(apart, fresh, strict=True)})
    return E.make_reduce(r.combine, tuple(map(D.the_sym, fresh)), body)


def arranged(op: Op, operands: Sequence[Order], result: Order, *inputs: Node) -> Node:
    return node(Arranged(op, tuple(operands), result), *inputs)


def unarranged(op: Op) -> Op:
    """The operator, in whatever order its axes are stored."""
    return op.op if isinstance(op, Arranged) else op
