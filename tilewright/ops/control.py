"""Control flow: `cond` runs one of two graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.ir.node import Constant, Graph, Item, Node, Op, input, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.types import TensorType, TupleType, b1, bf16, f32
from tilewright.ops import elementwise as ew
from tilewright.ops import samples as S
from tilewright.ops.reductions import sum
from tilewright.ops.views import expand


def _types(nodes: Sequence[Node]) -> tuple[TensorType, ...]:
    return tuple(n.ttype for n in nodes)


@operator
class Cond(Op):
    """`then` of the operands where the predicate holds, else `other`: one branch runs, not both."""

    then: Graph
    other: Graph

    def infer(self, predicate: TensorType, *operands: TensorType) -> TupleType:
        if predicate != TensorType(b1, ()):
            raise Invalid(f"cond: the predicate is {predicate!r}", hint="it is one boolean, bool[]")
        for which, graph in (("then", self.then), ("other", self.other)):
            if _types(graph.inputs) != operands:
                raise Invalid(
                    f"cond: branch {which} takes {_types(graph.inputs)}, it is given {operands}"
                )
        outputs = _types(self.then.outputs)
        if _types(self.other.outputs) != outputs:
            raise Invalid(
                f"cond: the branches give {outputs} and {_types(self.other.outputs)}",
                hint="both branches return tensors of the same shapes and dtypes",
            )
        return TupleType(outputs)

    def interpret(self, args: list[Any], run: Callable[[Graph, list[Any]], list[Any]]) -> Any:
        predicate, *operands = args
        return tuple(run(self.then if bool(predicate) else self.other, operands))

    def reference(self, predicate: np.ndarray, *operands: np.ndarray) -> tuple[np.ndarray, ...]:
        return by_references(self.then if predicate.item() else self.other, operands)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (f32, bf16):
            x = input("a", TensorType(dtype, (3, 5)))
            y = input("b", TensorType(dtype, (5,)))
            then = Graph("then", (x, y), (ew.add(x, y), sum(x, (0,))))
            other = Graph("other", (x, y), (ew.neg(x), y))
            for flag in (True, False):
                taken = np.array(flag)
                yield S.case(cls(then, other), taken, S.normal(3, 5), S.normal(5), dtype=dtype)
        a = input("a", TensorType(f32, ()))
        nested = Graph("nested", (a,), (ew.mul(a, a),))
        same = Graph("same", (a,), (a,))
        yield S.case(cls(nested, same), np.array(False), S.normal())
        z = input("z", TensorType(f32, (0, 2)))
        empty = Graph("empty", (z,), (expand(sum(z, (0,), True), (4, 2)),))
        yield S.case(cls(empty, empty), np.array(True), S.normal(0, 2))


def by_references(graph: Graph, args: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The graph computed by its operators' references alone."""
    env: dict[Node, Any] = dict(zip(graph.inputs, args, strict=True))
    for n in graph.nodes():
        if n in env:
            continue
        if isinstance(n.op, Constant):
            env[n] = n.op.literal.array
        elif isinstance(n.op, Item):
            env[n] = env[n.inputs[0]][n.op.k]
        else:
            env[n] = n.op.reference(*(env[x] for x in n.inputs))  # type: ignore[attr-defined]
    return tuple(env[o] for o in graph.outputs)


def cond(predicate: Node, then: Graph, other: Graph, operands: Sequence[Node]) -> Node:
    """A tuple: the outputs of `then` or of `other` applied to the operands."""
    return node(Cond(then, other), predicate, *operands)
