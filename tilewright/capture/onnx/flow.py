"""Control flow of models: If, Loop, Scan and SequenceMap.

A body is translated over inputs of its own for what its operator gives it. What else it uses of the
values around it becomes further operands, so that it is a graph by itself. Loops become native ones
(`ops.scan`, `ops.while_loop`). Where values have other types in each round, such as sequences that
grow, the rounds are written out; their number has to be known then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import onnx

from tilewright import ops
from tilewright.base.errors import Unsupported
from tilewright.capture.onnx.context import Check, Checks, Value
from tilewright.capture.onnx.elements import Narrow
from tilewright.capture.onnx.known import Known, NeedsSizes, NeedsValue
from tilewright.graph.divide import Cut
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Int
from tilewright.ir.node import Graph, Input, Node, constant, input, node, topological
from tilewright.ir.operator import outputs_of
from tilewright.ir.types import TensorType, b1, i64

NAMES = ("If", "Loop", "Scan", "SequenceMap")
MOST_ROUNDS = 1000  # that are written out


@dataclass(frozen=True)
class Scope:
    """What a body sees: the values around it, attributes of the function that it is in, opsets."""

    env: Mapping[str, Value]
    outer: Mapping[str, Any]
    versions: Mapping[str, int]
    depth: int


class Walk(Protocol):
    """Who translates nodes."""

    facts: Known
    checks: Checks
    cuts: list[Cut]
    inside: int  # bodies of loops and branches around what is translated

    def counted_size(self, where: str, count: Node) -> Dim: ...

    def body(
        self, body: onnx.GraphProto, given: Mapping[str, Value], scope: Scope
    ) -> list[Value]: ...


def translated_flow(
    name: str,
    opset: int,
    attributes: Mapping[str, Any],
    operands: Sequence[Value],
    walk: Walk,
    scope: Scope,
) -> list[Value]:
    """The results of an operator of control flow."""
    flow = _Flow(name, attributes, list(operands), walk, scope)
    if name == "If":
        return flow.branch()
    if name == "Loop":
        return flow.loop()
    if name == "SequenceMap":
        return flow.each()
    return flow.scan() if opset >= 9 else flow.batched_scan()


@dataclass
class _Flow:
    name: str
    attributes: Mapping[str, Any]
    operands: list[Value]
    walk: Walk
    scope: Scope

    def refuse(self, why: str) -> Unsupported:
        return Unsupported(f"{self.name}: {why}")

    def fresh(self, t: TensorType) -> Node:
        """An input of a body, of which there is no other."""
        self.walk.facts.inner += 1
        return input(f"inner{self.walk.facts.inner}", t)

    def tensors(self, values: Sequence[Value]) -> list[Node]:
        found = [x.node if isinstance(x, Narrow) else x for x in values]
        if not all(isinstance(x, Node) for x in found):
            raise self.refuse("a body gives or takes a value that is no tensor")
        return [x for x in found if isinstance(x, Node)]

    def translated(
        self, name: str, given: Sequence[Value]
    ) -> tuple[list[Value], dict[Node, Check]]:
        """The results of a body, and what it checks."""
        body: onnx.GraphProto = self.attributes[name]
        if len(body.input) != len(given):
            raise self.refuse(f"its body takes {len(body.input)} values, it is given {len(given)}")
        before, cuts = dict(self.walk.checks.found), len(self.walk.cuts)
        named = {v.name: x for v, x in zip(body.input, given, strict=True)}
        self.walk.inside += 1
        try:
            out = self.walk.body(body, named, self.scope)
        finally:
            self.walk.inside -= 1
        if len(self.walk.cuts) > cuts:
            del self.walk.cuts[cuts:]
            raise self.refuse("a result inside of it has a size that only data decides")
        found = self.walk.checks.found
        own = {n: c for n, c in found.items() if n not in before}
        self.walk.checks.found = before
        return out, own

    # ---- graphs by themselves

    def closed(self, name: str, inputs: Sequence[Node], outputs: Sequence[Node]) -> _Closed:
        """Nodes over inputs of a body and values around it, and which of these they read."""
        around = {x for v in self.scope.env.values() for x in _nodes(v)}
        stop = {x for x in around if x.inputs or isinstance(x.op, Input)} | set(inputs)
        made = topological(tuple(outputs), stop=stop)
        read = [*outputs, *(x for n in made for x in n.inputs)]
        taken = (x for x in read if x in stop or isinstance(x.op, Input))
        captured = [x for x in dict.fromkeys(taken) if x not in inputs]
        return _Closed(name, tuple(inputs), tuple(outputs), captured)

    # ---- branches

    def branch(self) -> list[Value]:
        (condition,) = self.operands
        facts = self.walk.facts
        if not isinstance(condition, Node):
            raise self.refuse("its condition is no tensor")
        if facts.decided(condition):
            taken = bool(facts.numbers(condition).reshape(-1)[0])
            return self.walk.body(self.attributes[_BRANCHES[not taken]], {}, self.scope)
        sides = [self.translated(name, ()) for name in _BRANCHES]
        values = sides[0][0]
        checks = [c for _, own in sides for c in own.values()]
        made: list[_Closed] = []
        for k, (found, _) in enumerate(sides):
            # What a branch checks is one more result of it, and 0 where the other one runs.
            told = [v if j == k else ops.number(0, i64) for j in range(2) for v in sides[j][1]]
            made.append(self.closed(_BRANCHES[k], (), [*self.tensors(found), *told]))
        types = [[o.ttype for o in c.outputs] for c in made]
        if types[0] != types[1] or [*map(_element, sides[0][0])] != [*map(_element, sides[1][0])]:
            raise self.refuse(
                f"the condition depends on data, and the branches give {types[0]} and {types[1]}"
            )
        captured = [*dict.fromkeys(x for c in made for x in c.captured)]
        then, other = (c.graph(captured) for c in made)
        predicate = ops.reshape(ops.cast(condition, b1), ())
        results = outputs_of(ops.cond(predicate, then, other, captured))
        count = len(values)
        self.walk.checks.found.update(zip(results[count:], checks, strict=True))
        return _wrapped(results[:count], values)

    # ---- loops

    def loop(self) -> list[Value]:
        body: onnx.GraphProto = self.attributes["body"]
        carried = len(body.input) - 2
        self.operands += [None] * (carried + 2 - len(self.operands))
        trip, condition, *first = self.operands
        stacked = len(body.output) - 1 - carried
        facts = self.walk.facts
        count: Dim | None = None
        # Inside of a body no size may depend on data: the number of rounds has to be known.
        wanted = stacked and self.walk.inside
        if isinstance(trip, Node) and (wanted or facts.constant(trip)):
            count = _dim(facts.array(trip).reshape(-1)[0])
        more: Node | bool = True
        if isinstance(condition, Node):
            more = condition
            if facts.decided(condition):
                more = bool(facts.numbers(condition).reshape(-1)[0])
        if more is False:
            count = 0
        try:
            if all(isinstance(x, (Node, Narrow)) for x in first):
                return self.rounds(first, trip, count, more)
            reason = self.refuse("a sequence or an optional changes from round to round")
        except (NeedsValue, NeedsSizes):
            raise
        except Unsupported as error:
            reason = error
        if isinstance(trip, Node) and count is None and facts.decided(trip):
            count = _dim(facts.array(trip).reshape(-1)[0])
        if not isinstance(count, int) or count > MOST_ROUNDS or not isinstance(more, bool):
            raise reason
        try:
            return self.written_out(first, count)
        except (NeedsValue, NeedsSizes):
            raise
        except Unsupported:
            raise reason from None

    def rounds(
        self, first: Sequence[Value], trip: Value, count: Dim | None, more: Node | bool
    ) -> list[Value]:
        """A native loop; Unsupported where a value's type changes, or a size depends on data."""
        tensors = self.tensors(first)
        k, flag = self.fresh(TensorType(i64, ())), self.fresh(TensorType(b1, ()))
        seen = [self.fresh(x.ttype) for x in tensors]
        given = [k, flag, *_wrapped(seen, first)]
        found, checks = self.translated("body", given)
        values = found[1:]
        going, *outputs = self.tensors(found)
        self.want_same(seen, outputs[: len(seen)], values[: len(seen)], first)
        going = ops.reshape(ops.cast(going, b1), ())
        facts = self.walk.facts
        endless = going is flag
        if not endless and facts.constant(going):
            endless = bool(facts.numbers(going))
            count = count if endless or count is None else D.minimum(count, 1)
            endless = endless or count is not None
        if endless and count is not None and isinstance(more, bool):
            steps = ops.iota(count, 0, 1, i64)
            made = self.scanned(tensors, seen, [steps], [k], outputs, checks, count, captured=flag)
            return _wrapped(made, values)
        last = ops.reshape(ops.cast(trip, i64), ()) if isinstance(trip, Node) else None
        flow = (k, flag, going)
        if len(outputs) == len(seen):
            _, made = self.repeated(tensors, seen, flow, outputs, checks, last, more)
            return _wrapped(made, values)
        # How many rounds there are decides how large the stacked results are: where a condition
        # says that, a first loop counts them, and a second one, of as many, stacks.
        if endless and last is not None and more is True:
            turns = ops.maximum(last, ops.number(0, i64))
        else:
            turns, _ = self.repeated(tensors, seen, flow, outputs[: len(seen)], {}, last, more)
        length = self.walk.counted_size(self.name, turns)
        steps = ops.iota(length, 0, 1, i64)
        made = self.scanned(tensors, seen, [steps], [k], outputs, checks, length, captured=flag)
        return _wrapped(made, values)

    def want_same(
        self,
        seen: Sequence[Node],
        made: Sequence[Node],
        values: Sequence[Value],
        first: Sequence[Value],
    ) -> None:
        """Every round gives what the next one takes."""
        for a, b, x, y in zip(seen, made, values, first, strict=True):
            if a.ttype != b.ttype or _element(x) != _element(y):
                raise self.refuse(f"a round makes {b.ttype!r} of {a.ttype!r}")

    def scanned(
        self,
        first: Sequence[Node],
        seen: Sequence[Node],
        sliced: Sequence[Node],
        slices: Sequence[Node],
        outputs: Sequence[Node],
        checks: Mapping[Node, Check],
        length: Dim,
        reverse: Sequence[bool] = (),
        captured: Node | None = None,
    ) -> list[Node]:
        """The results of a scan. What rounds check is carried: the first that is not 0 stays."""
        states = len(seen)
        told = [self.fresh(TensorType(i64, ())) for _ in checks]
        kept = [_first_told(a, v) for a, v in zip(told, checks, strict=True)]
        inputs = [*seen, *told, *slices]
        made = [*outputs[:states], *kept, *outputs[states:]]
        if captured is not None:  # the condition, which is true in every round
            made = _replaced(made, {captured: ops.full((), True, b1)})
        closed = self.closed("body", inputs, made)
        zeros = [ops.full((), 0, i64) for _ in told]
        graph = closed.graph(closed.captured)
        n = ops.scan(graph, [*first, *zeros], sliced, closed.captured, length, reverse)
        results = outputs_of(n)
        found = results[states : states + len(told)]
        self.walk.checks.found.update(zip(found, checks.values(), strict=True))
        return [*results[:states], *results[states + len(told) :]]

    def repeated(
        self,
        first: Sequence[Node],
        seen: Sequence[Node],
        flow: tuple[Node, Node, Node],
        outputs: Sequence[Node],
        checks: Mapping[Node, Check],
        last: Node | None,
        more: Node | bool,
    ) -> tuple[Node, list[Node]]:
        """The number of rounds of a loop with a condition, and its results: the number and whether
        to go on are carried too."""
        k, flag, going = flow
        told = [self.fresh(TensorType(i64, ())) for _ in checks]
        kept = [_first_told(a, v) for a, v in zip(told, checks, strict=True)]
        inputs = [k, flag, *seen, *told]
        again = flag if last is None else ops.logical_and(flag, ops.lt(k, last))
        body = self.closed("body", inputs, [ops.add(k, ops.number(1, i64)), going, *outputs, *kept])
        around = [last] if last is not None else []
        condition = _Closed("condition", tuple(inputs), (again,), around)
        captured = [*dict.fromkeys((*body.captured, *condition.captured))]
        start = ops.full((), more, b1) if isinstance(more, bool) else more
        start = ops.reshape(ops.cast(start, b1), ())
        zeros = [ops.full((), 0, i64) for _ in told]
        begin = [ops.full((), 0, i64), start, *first, *zeros]
        n = ops.while_loop(condition.graph(captured), body.graph(captured), begin, captured)
        rounds, _, *results = outputs_of(n)
        count = len(seen)
        self.walk.checks.found.update(zip(results[count:], checks.values(), strict=True))
        return rounds, results[:count]

    def written_out(self, first: Sequence[Value], count: int) -> list[Value]:
        """A round after the other. Whether there is another one has to be known."""
        body: onnx.GraphProto = self.attributes["body"]
        values = list(first)
        stacked: list[list[Value]] = [[] for _ in body.output[1 + len(first) :]]
        more: Value = ops.full((), True, b1)
        for k in range(count):
            named = zip(body.input, [constant(k, i64), more, *values], strict=True)
            more, *found = self.walk.body(body, {v.name: x for v, x in named}, self.scope)
            values = found[: len(first)]
            for one, made in zip(stacked, found[len(first) :], strict=True):
                one.append(made)
            if not isinstance(more, Node) or not self.walk.facts.decided(more):
                raise self.refuse("the number of its rounds depends on data")
            if not self.walk.facts.numbers(more).reshape(-1)[0]:
                break
        if not all(stacked):
            raise self.refuse("a result of no rounds has no type")
        whole = [ops.stack(self.tensors(one), 0) for one in stacked]
        return [*values, *(_wrapped([w], one[:1])[0] for w, one in zip(whole, stacked))]

    def scan(self) -> list[Value]:
        count = self.attributes["num_scan_inputs"]
        states = len(self.operands) - count
        return self.scan_of(self.operands[:states], self.operands[states:])

    def scan_of(self, first: Sequence[Value], given: Sequence[Value]) -> list[Value]:
        tensors, sliced = self.tensors(first), self.tensors(given)
        stacked = len(self.attributes["body"].output) - len(first)
        axes = self.axes("scan_input_axes", [x.rank for x in sliced])
        moved = [_moved(x, a, 0) for x, a in zip(sliced, axes, strict=True)]
        if not moved:
            raise self.refuse("it goes through no operand")
        length = moved[0].shape[0]
        seen = [self.fresh(x.ttype) for x in tensors]
        slices = [self.fresh(TensorType(x.dtype, x.shape[1:])) for x in moved]
        inputs = [*_wrapped(seen, first), *_wrapped(slices, given)]
        values, checks = self.translated("body", inputs)
        outputs = self.tensors(values)
        self.want_same(seen, outputs[: len(seen)], values[: len(seen)], first)
        directions = "directions" if "directions" in self.attributes else "scan_input_directions"
        back = self.attributes.get(directions, [0] * len(sliced))
        back = [*back, *self.attributes.get("scan_output_directions", [0] * stacked)]
        reverse = [bool(b) for b in back]
        made = self.scanned(tensors, seen, moved, slices, outputs, checks, length, reverse)
        out_axes = self.axes("scan_output_axes", [x.rank for x in made[len(seen) :]])
        placed = [_moved(x, 0, a) for x, a in zip(made[len(seen) :], out_axes, strict=True)]
        return _wrapped([*made[: len(seen)], *placed], values)

    def axes(self, name: str, ranks: Sequence[int]) -> list[int]:
        given = self.attributes.get(name, [0] * len(ranks))
        if len(given) != len(ranks) or any(not -r <= a < r for a, r in zip(given, ranks)):
            raise self.refuse(f"{name} {list(given)} do not fit operands of {list(ranks)} axes")
        return [a % r for a, r in zip(given, ranks, strict=True)]

    def batched_scan(self) -> list[Value]:
        """Of opset 8: each text of a batch by itself."""
        lengths, *operands = self.operands
        if lengths is not None:
            raise self.refuse("lengths of sequences in opset 8 are not translated")
        count = self.attributes["num_scan_inputs"]
        states = len(operands) - count
        whole = self.tensors(operands)
        slices = [self.fresh(TensorType(x.dtype, x.shape[1:])) for x in whole]
        before = dict(self.walk.checks.found)
        given = _wrapped(slices, operands)
        values = self.scan_of(given[:states], given[states:])
        checks = {n: c for n, c in self.walk.checks.found.items() if n not in before}
        self.walk.checks.found = before
        made = self.tensors(values)
        found = self.scanned((), (), whole, slices, made, checks, whole[0].shape[0])
        return _wrapped(found, values)

    def each(self) -> list[Value]:
        """SequenceMap: the body of each element, whose number is known."""
        sequence, *more = self.operands
        if not isinstance(sequence, list):
            raise self.refuse("its first operand is no sequence")
        body: onnx.GraphProto = self.attributes["body"]
        out: list[list[Value]] = [[] for _ in body.output]
        for k, x in enumerate(sequence):
            given = [x, *(y[k] if isinstance(y, list) else y for y in more)]
            named = {v.name: y for v, y in zip(body.input, given, strict=True)}
            made = self.walk.body(body, named, self.scope)
            for one, value in zip(out, made, strict=True):
                one.append(value)
        return list(out)


_BRANCHES = ("then_branch", "else_branch")


@dataclass(frozen=True)
class _Closed:
    """A body, and the values around it that it reads."""

    name: str
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    captured: list[Node]

    def graph(self, captured: Sequence[Node]) -> Graph:
        """With these values as its last inputs."""
        seen = [input(f"outer{k}", x.ttype) for k, x in enumerate(captured)]
        made = _replaced(self.outputs, dict(zip(captured, seen, strict=True)))
        return Graph(self.name, (*self.inputs, *seen), tuple(made))


def _replaced(outputs: Sequence[Node], table: Mapping[Node, Node]) -> list[Node]:
    new = dict(table)
    for n in topological(tuple(outputs), stop=table):
        ins = tuple(new[x] for x in n.inputs)
        new[n] = n if ins == n.inputs else node(n.op, *ins)
    return [new[o] for o in outputs]


def _nodes(v: Value) -> list[Node]:
    if isinstance(v, list):
        return [x for y in v for x in _nodes(y)]
    if isinstance(v, Narrow):
        return [v.node]
    return [v] if isinstance(v, Node) else []


def _element(x: Value) -> int | None:
    """The element type of a tensor that has no dtype."""
    return x.element if isinstance(x, Narrow) else None


def _wrapped(tensors: Sequence[Node], like: Sequence[Value]) -> list[Value]:
    """Tensors with the element types of others."""
    pairs = zip(tensors, like, strict=True)
    return [Narrow(x, y.element) if isinstance(y, Narrow) else x for x, y in pairs]


def _first_told(so_far: Node, value: Node) -> Node:
    return ops.where(ops.ne(so_far, ops.number(0, i64)), so_far, value)


def _moved(x: Node, axis: int, to: int) -> Node:
    """With one axis at another place."""
    if axis == to:
        return x
    order = [k for k in range(x.rank) if k != axis]
    order.insert(to, axis)
    return ops.permute(x, tuple(order))


def _dim(x: Any) -> Dim:
    return x if isinstance(x, Int) else max(0, int(x))
