"""One step of a loop, as Dynamo captured it, in the place of all: a scan in Dynamo's graph."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.fx
from torch._higher_order_ops.scan import scan_op
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node

from tilewright.capture.torch.first_states import first_states
from tilewright.capture.torch.pure_calls import computed, is_detached, is_set_whole, storage_of
from tilewright.capture.torch.slices import Slice, size_of, slice_of, taken, value_of, viewed
from tilewright.capture.torch.step_number import Numbers, Unfit

STACKED = "results_of_all_steps"  # a key in the meta of a node


class Step:
    """The calls of one step. `first`: what stands for each carried value in them, and what that is
    before the loop."""

    def __init__(
        self, output: Any, before: set[Node], numbers: Numbers, first: dict[Node, Node]
    ) -> None:
        self.output, self.tracer, self.numbers, self.first = (
            output,
            output.current_tracer,
            numbers,
            first,
        )
        self.new = [n for n in self.tracer.graph.nodes if n not in before]
        inner = ("call_function", "call_method")
        self.calls = [
            n for n in self.new if n.op in inner and n not in first and n not in numbers.nodes
        ]
        if any(n.op not in (*inner, "placeholder", "get_attr") for n in self.new):
            raise Unfit("a step calls a module")
        self.own = set(self.calls)
        self.slices: dict[Node, Slice] = {}
        self.written: dict[Node, Slice] = {}
        for n in self.calls:
            self._find_slice(n)
        found = computed([n for n in self.calls if n not in self.written], numbers.nodes)
        if found is None:
            raise Unfit("a step does more than compute its results")
        self.values, self.read = found
        self._check_written()

    def _find_slice(self, n: Node) -> None:
        """What a call takes or sets at the number of the step."""
        if not any(x in self.numbers.nodes for x in n.all_input_nodes):
            return
        if n.target not in (operator.getitem, operator.setitem) or len(n.args) < 2:
            raise Unfit("the number of a step is an operand")
        source, given = n.args[:2]
        if any(x in self.numbers.nodes for x in (source, *n.args[2:])):
            raise Unfit("the number of a step is an operand")
        if source in self.own or source in self.first or not isinstance(source, Node):
            raise Unfit("what is indexed by the number of a step is computed by the step")
        entries = given if isinstance(given, tuple) else (given,)
        moves: dict[int, int] = {}
        place = 1
        for x in entries:
            parts = (x.start, x.stop, x.step) if isinstance(x, slice) else (x,)
            found = [self.numbers.nodes.get(p) if isinstance(p, Node) else None for p in parts]
            moves |= {place + k: f.by for k, f in enumerate(found) if f is not None}
            if len(parts) == 3 and found[0] is not None and found[1] is not None:
                ends = [f.at(k) for f in found[:2] if f for k in (0, self.numbers.count - 1)]
                if min(ends) < 0 <= max(ends):
                    raise Unfit("slices of steps are counted from both ends")
            place += len(parts)
        index = torch.fx.node.map_arg(given, self._number)
        s = slice_of(source, index, moves)
        value = value_of(source)
        if s is None or type(value) is not FakeTensor:
            raise Unfit("the number of a step is a part of an index of another kind")
        # Of an unknown size torch assumes what each step alone would, that it is large enough.
        size, first = size_of(value, s.axis), s.first
        if size is None and first < 0:
            raise Unfit("slices of steps are counted from an end that is not known")
        low, high = s.places(self.numbers.count, size or 0)
        if low < 0 or not bool(value.shape[s.axis] >= high):
            raise Unfit("slices of steps are not within a tensor")
        (self.slices if n.target is operator.getitem else self.written)[n] = s

    def _number(self, n: Node) -> int:
        if n not in self.numbers.nodes:
            raise Unfit("the number of a step is a part of an index of another kind")
        return self.numbers.nodes[n].start

    def _check_written(self) -> None:
        read = [*self.read, *(value_of(x) for x in self.first.values())]
        for n, s in self.written.items():
            others = [o.source for m, o in self.written.items() if m is not n]
            made = n.args[2]
            if made not in self.own:
                raise Unfit("what a step sets is not computed by it")
            if not is_set_whole(n, s.source, others, read):
                raise Unfit("a tensor is read and set by steps, or in another shape", first=True)

    def require_own(self, shown: Iterable[Node]) -> None:
        """What is seen of steps after the loop shares no memory with anything else."""
        taken_up = {storage_of(x) for x in self.read}
        for n in shown:
            x = self.values[n]
            if not isinstance(x, torch.Tensor) or not x.is_contiguous():
                raise Unfit("a result of steps is not contiguous", last=True)
            if storage_of(x) in taken_up:
                raise Unfit("a result of steps shares memory with something else", last=True)
            taken_up.add(storage_of(x))

    def captured(self) -> list[Node]:
        """What all steps read alike."""
        found: dict[Node, None] = {}
        for n in self.calls:
            skipped = self.slices.get(n) or self.written.get(n)
            if skipped is None:
                found |= dict.fromkeys(n.all_input_nodes)
        return [x for x in found if x not in self.own]

    # ---- what takes its place

    def write(
        self, carried: dict[Node, Node], shown: Sequence[Node]
    ) -> tuple[dict[Node, Node], dict[Node, Node]]:
        """(what all steps gave of each value that is shown, carried values after the last step, by
        what stands for them). `carried`: what each is after a step."""
        call, count = self._call, self.numbers.count
        body = torch.fx.Graph()
        seen: dict[Node, Node] = {}
        for k, n in enumerate(carried):
            seen[n] = body.placeholder(f"carried{k}")
        wholes: dict[Slice, Node] = {}
        for s in self.slices.values():
            if s not in wholes:
                wholes[s] = body.placeholder(f"slice{len(wholes)}")
        if not wholes:  # a scan goes through something, at least numbers that nothing reads
            body.placeholder("number")
        # Carried ones that no step changes are what they were before the loop.
        same = {n: self.first[n] for n in self.first if n not in carried}
        known = {*self.own, *carried}
        outside = [x for x in (*self.captured(), *carried.values(), *shown) if x not in known]
        rest = list(dict.fromkeys(same.get(x, x) for x in outside))
        if not all(type(value_of(x)) is FakeTensor for x in rest):
            raise Unfit("steps read something that is not a tensor")
        for k, x in enumerate(rest):
            seen[x] = body.placeholder(f"captured{k}")
        seen |= {n: seen[x] for n, x in same.items() if x in seen}
        for n in self.calls:
            if n in self.slices:
                seen[n] = taken(body, self.slices[n], wholes[self.slices[n]])
            elif n not in self.written:
                seen[n] = body.node_copy(n, lambda x: seen[x])
        made = [seen[n] for n in (*carried.values(), *shown)]
        # Results of a scan are tensors of their own.
        body.output(tuple(body.call_method("clone", (x,)) for x in made))

        xs = [self._whole(s) for s in wholes]
        if not xs:
            device = value_of(next(iter(carried))).device
            xs = [call(torch.zeros, count, device=device)]
        states = [self.first[n] for n in carried]
        first = call(first_states, states, (*xs, *rest))
        inits = [call(operator.getitem, first, k) for k in range(len(states))]
        name = self.output.install_subgraph("steps_of_a_loop", torch.fx.GraphModule({}, body))
        graph = self.tracer.create_node("get_attr", name, (), {})
        scan = call(scan_op, graph, inits, xs, tuple(rest))
        scan.meta |= {k: v for k, v in self.calls[0].meta.items() if k != "example_value"}
        parts = [call(operator.getitem, scan, k) for k in range(len(made))]
        for k, x in enumerate((*carried.values(), *shown)):
            if is_detached(value_of(x)):
                parts[k] = call("detach", parts[k])
        stacks = dict(zip(shown, parts[len(carried) :], strict=True))
        for part in stacks.values():
            part.meta[STACKED] = count
        for n, s in self.written.items():
            made_of: Any = n.args[2]
            values = call("flip", stacks[made_of], 0) if s.step < 0 else stacks[made_of]
            where = viewed(call, s.source, s, s.axis, count, self._size(s))
            call(operator.setitem, where, (slice(None), *s.rest), values)
        return stacks, dict(zip(carried, parts, strict=False))

    def erase(self) -> None:
        for n in reversed(self.new):
            if n.op not in ("placeholder", "get_attr"):
                self.tracer.remove_node(n)

    def _whole(self, s: Slice) -> Node:
        """What a scan goes through to take such slices: along axis 0."""
        x = viewed(self._call, s.source, s, s.axis, self.numbers.count, self._size(s))
        return self._call("flip", x, 0) if s.step < 0 else x

    def _size(self, s: Slice) -> int:
        return size_of(value_of(s.source), s.axis) or 0

    def _call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        kind = "call_method" if isinstance(target, str) else "call_function"
        return self.tracer.create_node(kind, target, args, kwargs)
