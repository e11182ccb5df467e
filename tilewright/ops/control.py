"""Control flow: operators over graphs.

`cond` runs one of two graphs, `while_loop` one as long as another says so, `scan` one for each
slice of its operands. Graphs inside see nothing but their inputs: what they use of the graph around
them is an operand too, behind those that the loop itself changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid, Unsupported
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Constant, Graph, Item, Node, Op, input, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.positions import may_equal
from tilewright.ir.types import TensorType, TupleType, b1, bf16, f32, i64
from tilewright.ops import elementwise as ew
from tilewright.ops import samples as S
from tilewright.ops.linear import matmul
from tilewright.ops.reductions import sum
from tilewright.ops.views import expand

Run = Callable[[Graph, list[Any]], list[Any]]  # how an interpreter runs a graph
# Rounds of a loop that an interpreter runs: on other numbers than the user's it may have no end.
MOST_ROUNDS = 10_000


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

    def interpret(self, args: list[Any], run: Run, sizes: Mapping[str, int]) -> Any:
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


@operator
class WhileLoop(Op):
    """`body` of the carried values, over and over, as long as `condition` of them holds. The first
    operands are the carried values, which the body gives new ones for; others stay the same."""

    condition: Graph
    body: Graph

    def infer(self, *operands: TensorType) -> TupleType:
        for which, graph in (("condition", self.condition), ("body", self.body)):
            if _types(graph.inputs) != operands:
                raise Invalid(
                    f"while: the {which} takes {_types(graph.inputs)}, it is given {operands}"
                )
        if _types(self.condition.outputs) != (TensorType(b1, ()),):
            raise Invalid(
                f"while: the condition gives {_types(self.condition.outputs)}",
                hint="it gives one boolean, bool[]",
            )
        carried = _types(self.body.outputs)
        _want_carried("while", operands[: len(carried)], carried)
        return TupleType(carried)

    def interpret(self, args: list[Any], run: Run, sizes: Mapping[str, int]) -> Any:
        return self._rounds(args, run)

    def reference(self, *operands: np.ndarray) -> tuple[np.ndarray, ...]:
        return self._rounds(operands, by_references)

    def _rounds(self, args: Sequence[Any], run: Callable[..., Any]) -> tuple[Any, ...]:
        count = len(self.body.outputs)
        carried, rest = list(args[:count]), list(args[count:])
        for _ in range(MOST_ROUNDS):
            (more,) = run(self.condition, [*carried, *rest])
            if not bool(more):
                return tuple(carried)
            carried = list(run(self.body, [*carried, *rest]))
        raise Unsupported(f"while: interpreters run at most {MOST_ROUNDS} rounds of a loop")

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        k, x = input("k", TensorType(i64, ())), input("x", TensorType(f32, (3, 4)))
        w, last = input("w", TensorType(f32, (4, 4))), input("last", TensorType(i64, ()))
        inputs = (k, x, w, last)
        more = Graph("more", inputs, (ew.lt(k, last),))
        step = Graph("step", inputs, (ew.add(k, 1), ew.tanh(matmul(x, w))))
        for rounds in (0, 1, 4, 5):
            counts = np.array(0, np.int64), np.array(rounds, np.int64)
            yield S.case(cls(more, step), counts[0], S.normal(3, 4), S.normal(4, 4), counts[1])
        # Two values that change places.
        a, b = input("a", TensorType(f32, ())), input("b", TensorType(f32, ()))
        swap = Graph("swap", (a, b), (b, ew.sub(a, 1.0)))
        positive = Graph("positive", (a, b), (ew.gt(a, 0.0),))
        yield S.case(cls(positive, swap), np.array(3.5, "f4"), np.array(2.25, "f4"))


@operator
class Scan(Op):
    """`body` once for each of `length` positions. Its operands are `carried` values, for which the
    body gives new ones; `sliced` ones, of which it sees one slice along axis 0 at a time; and
    others, which stay the same. What else the body gives is stacked along axis 0. `reverse` says of
    each sliced operand, then of each stacked result, whether it is gone through from the end."""

    body: Graph
    length: Dim
    carried: int
    sliced: int
    reverse: tuple[bool, ...]

    def infer(self, *operands: TensorType) -> TupleType:
        last = self.carried + self.sliced
        given, stacked = _types(self.body.outputs), _types(self.body.outputs)[self.carried :]
        if not 0 <= self.carried <= len(given) or len(operands) < last:
            raise Invalid(f"scan: {self.carried} values cannot be carried by {self.body.name}")
        if len(self.reverse) != self.sliced + len(stacked):
            raise Invalid(
                f"scan: {len(self.reverse)} directions for {self.sliced} sliced operands and "
                f"{len(stacked)} stacked results"
            )
        for t in operands[self.carried : last]:
            if not t.shape or not may_equal(t.shape[0], self.length):
                raise Invalid(f"scan: {t!r} has no {self.length} slices along axis 0")
        slices = tuple(TensorType(t.dtype, t.shape[1:]) for t in operands[self.carried : last])
        seen = (*operands[: self.carried], *slices, *operands[last:])
        if _types(self.body.inputs) != seen:
            raise Invalid(f"scan: the body takes {_types(self.body.inputs)}, it is given {seen}")
        _want_carried("scan", operands[: self.carried], given[: self.carried])
        whole = (TensorType(t.dtype, (self.length, *t.shape)) for t in stacked)
        return TupleType((*given[: self.carried], *whole))

    def interpret(self, args: list[Any], run: Run, sizes: Mapping[str, int]) -> Any:
        def empty(t: TensorType) -> np.ndarray:
            return np.zeros([int(D.evaluate(d, sizes)) for d in t.shape], t.dtype.numpy)

        return self._rounds(args, run, int(D.evaluate(self.length, sizes)), empty)

    def reference(self, *operands: np.ndarray) -> tuple[np.ndarray, ...]:
        given = operands[self.carried :][: self.sliced]
        length = len(given[0]) if given else D.evaluate(self.length, {})

        def empty(t: TensorType) -> np.ndarray:
            return np.zeros([int(D.evaluate(d, {})) for d in t.shape], t.dtype.numpy)

        return self._rounds(operands, by_references, int(length), empty)

    def _rounds(
        self,
        args: Sequence[Any],
        run: Callable[..., Any],
        length: int,
        empty: Callable[[TensorType], np.ndarray],
    ) -> tuple[Any, ...]:
        last = self.carried + self.sliced
        carried, sliced, rest = args[: self.carried], args[self.carried : last], args[last:]
        stacked: list[list[Any]] = [[] for _ in self.body.outputs[self.carried :]]
        for k in range(length):
            places = [length - 1 - k if back else k for back in self.reverse[: self.sliced]]
            slices = [x[at] for x, at in zip(sliced, places, strict=True)]
            found = list(run(self.body, [*carried, *slices, *rest]))
            carried = found[: self.carried]
            for one, made in zip(stacked, found[self.carried :], strict=True):
                one.append(made)
        out = list(carried)
        for k, one in enumerate(stacked):
            made = one[::-1] if self.reverse[self.sliced + k] else one
            slice_type = self.body.outputs[self.carried + k].ttype
            none = TensorType(slice_type.dtype, (0, *slice_type.shape))
            out.append(np.stack(made) if made else empty(none))
        return tuple(out)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        # A recurrent network: the state is carried, stacked, and multiplied by what stays the same.
        h, x = input("h", TensorType(f32, (2, 3))), input("x", TensorType(f32, (2, 3)))
        w = input("w", TensorType(f32, (3, 3)))
        state = ew.tanh(ew.add(matmul(h, w), matmul(x, w)))
        cell = Graph("cell", (h, x, w), (state, state, ew.neg(x)))
        for length in (0, 1, 4, 5):
            operands = S.normal(2, 3), S.normal(length, 2, 3), S.normal(3, 3)
            for back in (False, True):
                yield S.case(cls(cell, length, 1, 1, (back, False, back)), *operands)
        y = input("y", TensorType(bf16, (7,)))
        each = Graph("each", (y,), (ew.mul(y, y), sum(y, (0,))))
        yield S.case(cls(each, 3, 0, 1, (False, False, True)), S.normal(3, 7), dtype=bf16)
        # Nothing is sliced or stacked, and two values change places.
        a, b = input("a", TensorType(f32, ())), input("b", TensorType(f32, (4,)))
        c = input("c", TensorType(f32, (4,)))
        turn = Graph("turn", (a, b, c), (ew.add(a, 1.0), c, ew.mul(b, a)))
        yield S.case(cls(turn, 3, 3, 0, ()), S.normal(), S.normal(4), S.normal(4))


def _want_carried(what: str, first: Sequence[TensorType], given: Sequence[TensorType]) -> None:
    """A loop's values have the same types in every round."""
    for k, (a, b) in enumerate(zip(first, given, strict=True)):
        if a != b:
            raise Invalid(
                f"{what}: carried value {k} is {a!r} at first, and the body makes {b!r} of it",
                hint="every round gives the shapes and dtypes that it is given",
            )


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


def while_loop(
    condition: Graph, body: Graph, carried: Sequence[Node], captured: Sequence[Node] = ()
) -> Node:
    """A tuple: the carried values after the last round. Both graphs take the carried values, then
    what is captured."""
    return node(WhileLoop(condition, body), *carried, *captured)


def scan(
    body: Graph,
    carried: Sequence[Node],
    sliced: Sequence[Node],
    captured: Sequence[Node] = (),
    length: Dim | None = None,
    reverse: Sequence[bool] = (),
) -> Node:
    """A tuple: the carried values after the last round, then what the body gave beside them in all
    rounds. The body takes carried values, slices, then what is captured."""
    if length is None:
        if not sliced:
            raise Invalid("scan: without sliced operands it needs a length")
        length = sliced[0].shape[0]
    flags = len(sliced) + len(body.outputs) - len(carried)
    directions = tuple(reverse) or (False,) * flags
    op = Scan(body, length, len(carried), len(sliced), directions)
    return node(op, *carried, *sliced, *captured)
