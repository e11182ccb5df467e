"""Steps that Dynamo wrote out one after the other, as one scan again.

A loop of Python over a sequence is captured step by step, and whatever follows takes as many times
as long. Here equal steps (`equal_steps.py`) that only compute become one
`torch.ops.higher_order.scan`, which has gradients, and which stacks what is read of each step.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import count
from typing import Any

import torch
import torch.fx
from torch._higher_order_ops.scan import scan_op
from torch.amp.autocast_mode import _enter_autocast
from torch.fx import Node

from tilewright.capture.torch.equal_steps import Calls, Chain, chains_of, in_order
from tilewright.capture.torch.first_states import first_states
from tilewright.capture.torch.joined_steps import joined
from tilewright.capture.torch.pure_calls import computed, is_detached, is_set_whole, storage_of
from tilewright.capture.torch.slices import Slice, taken, value_of, viewed


def rolled(gm: torch.fx.GraphModule) -> torch.fx.GraphModule | None:
    """The graph with scans in the place of long chains of equal steps; None where there are
    none."""
    autocast = torch.is_autocast_enabled() or torch.is_autocast_enabled("cpu")
    if autocast or gm.graph.find_nodes(op="call_function", target=_enter_autocast):
        return None
    made: torch.fx.GraphModule | None = None
    while True:  # steps of a second loop may read results of the first, which are slices then
        calls = Calls(in_order(made or gm))
        found = [c for c in chains_of(calls) if _hands_on_tensors(c) and _is_pure(c)]
        if not found:
            return made
        made = _Writer(made or gm, calls, found).whole()


# ---- whether steps only compute


def _is_pure(chain: Chain) -> bool:
    """Does a step do nothing but compute its results?"""
    if not all(value_of(chain.nodes(1)[at]).is_contiguous() for at in chain.carried):
        return False
    found = computed([n for j, n in enumerate(chain.nodes(1)) if j not in chain.written])
    if found is None:
        return False
    values, read = found
    # What is seen of steps shares no memory with anything else: a scan copies it.
    taken_up = {storage_of(x) for x in read}
    last = chain.nodes(chain.count - 1)
    ends = [at for at in chain.carried if not all(map(chain.has, last[at].users))]
    for at in dict.fromkeys((*_read(chain), *ends)):
        x = values.get(chain.nodes(1)[at])
        if not isinstance(x, torch.Tensor) or storage_of(x) in taken_up:
            return False
        taken_up.add(storage_of(x))
    read = [*read, *map(value_of, chain.carried.values())]
    for j, s in chain.written.items():
        others = [o.source for k, o in chain.written.items() if k != j]
        if not is_set_whole(chain.nodes(1)[j], s.source, others, read):
            return False
    return True


def _read(chain: Chain) -> list[int]:
    """Calls of a step whose results something behind the chain reads, other than the last of a
    carried value."""
    found = {chain.set_to(j): None for j in chain.written}
    for k in range(chain.count):
        for at, n in enumerate(chain.nodes(k)):
            last = k == chain.count - 1 and at in chain.carried
            if not last and at not in found and not all(map(chain.has, n.users)):
                found[at] = None
    return list(found)


def _hands_on_tensors(chain: Chain) -> bool:
    """A scan stacks tensors: what follows may read items of a tuple, not the tuple."""
    second = chain.nodes(1)
    return all(isinstance(value_of(second[at]), torch.Tensor) for at in _read(chain))


# ---- what takes their place


class _Writer:
    """The graph again, with a scan for each chain."""

    def __init__(self, gm: torch.fx.GraphModule, calls: Calls, chains: Sequence[Chain]) -> None:
        self.gm, self.calls = gm, calls
        self.graph = torch.fx.Graph()
        self.new: dict[Node, Node] = {}
        self.stacked: dict[tuple[int, int], Node] = {}  # by chain and position in a step
        self.last: dict[tuple[int, int], Node] = {}  # carried values after the last step
        self.chain_of = {c.calls.nodes[k]: c for c in chains for k in range(c.start, c.stop)}

    def whole(self) -> torch.fx.GraphModule:
        bodies: dict[str, torch.fx.GraphModule] = {}
        (output,) = self.gm.graph.find_nodes(op="output")
        for n in (*self.calls.nodes, output):
            chain = self.chain_of.get(n)
            if chain is None:
                self.new[n] = self._joined(n) or self.graph.node_copy(n, self._value)
                if (place := getattr(n, "_dynamo_source", None)) is not None:
                    setattr(self.new[n], "_dynamo_source", place)  # noqa: B010
            elif n is chain.nodes(0)[0]:
                names = (f"rolled_steps_{k}" for k in count())
                name = next(x for x in names if x not in bodies and not hasattr(self.gm, x))
                bodies[name] = self._scan(chain, name)
        for name, body in bodies.items():
            self.gm.add_submodule(name, body)
        made = torch.fx.GraphModule(self.gm, self.graph)
        for name in bodies:
            self.gm.delete_submodule(name)
        for name, value in self.gm.__dict__.items():
            made.__dict__.setdefault(name, value)
        made.meta.update(self.gm.meta)
        return made

    def _call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        if isinstance(target, str):
            return self.graph.call_method(target, args, kwargs)
        return self.graph.call_function(target, args, kwargs)

    def _scan(self, chain: Chain, name: str) -> torch.fx.GraphModule:
        """The call of a scan; its body."""
        body = torch.fx.Graph()
        seen: dict[Node, Node] = {}
        second = chain.nodes(1)
        for at in chain.carried:
            seen[chain.nodes(0)[at]] = body.placeholder(f"carried{at}")
        wholes: dict[Slice, Node] = {}
        for s in chain.slices.values():
            if s not in wholes:
                wholes[s] = body.placeholder(f"slice{len(wholes)}")
        if not wholes:  # a scan goes through something, at least numbers that nothing reads
            body.placeholder("number")
        for k, x in enumerate(chain.captured):
            seen[x] = body.placeholder(f"captured{k}")
        for j, n in enumerate(second):
            if j in chain.written:
                continue
            if j in chain.slices:
                seen[n] = taken(body, chain.slices[j], wholes[chain.slices[j]])
                seen[n].meta = dict(n.meta)
            else:
                seen[n] = body.node_copy(n, lambda x: seen[x])
        read = _read(chain)
        made = [seen[second[at]] for at in (*chain.carried, *read)]
        # Results of a scan are tensors of their own.
        body.output(tuple(body.call_method("clone", (x,)) for x in made))
        xs = [self._whole(s, chain.count) for s in wholes]
        if not xs:
            device = value_of(second[next(iter(chain.carried))]).device
            xs = [self._call(torch.zeros, chain.count, device=device)]
        rest = tuple(self._value(x) for x in chain.captured)
        states = [self._value(x) for x in chain.carried.values()]
        first = self._call(first_states, states, (*xs, *rest))
        inits = [self._call(operator.getitem, first, k) for k in range(len(states))]
        call = self._call(scan_op, self.graph.get_attr(name), inits, xs, rest)
        call.meta = {k: v for k, v in second[0].meta.items() if k != "example_value"}
        results = [self._call(operator.getitem, call, k) for k in range(len(made))]
        for k, at in enumerate((*chain.carried, *read)):
            if is_detached(value_of(second[at])):
                results[k] = self._call("detach", results[k])
        for k, at in enumerate(chain.carried):
            self.last[chain.start, at] = results[k]
            results[k].meta["example_value"] = value_of(second[at])
        for k, at in enumerate(read, len(chain.carried)):
            self.stacked[chain.start, at] = results[k]
            value = value_of(second[at])
            with value.fake_mode:
                whole = value.new_empty((chain.count, *value.shape))
            results[k].meta["example_value"] = whole
        for j, s in chain.written.items():
            values = self.stacked[chain.start, chain.set_to(j)]
            values = self._call("flip", values, 0) if s.step < 0 else values
            where = self._view(s.source, s, s.axis, chain.count)
            self._call(operator.setitem, where, (slice(None), *s.rest), values)
        return torch.fx.GraphModule(self.gm, body)

    def _whole(self, s: Slice, steps: int) -> Node:
        """What a scan goes through to take such slices: along axis 0."""
        source, axis = s.source, s.axis
        if source.target in (torch.unbind, "unbind") and isinstance(source.args[0], Node):
            named = source.kwargs.get("dim", source.kwargs.get("axis", 0))
            dim: Any = source.args[1] if len(source.args) > 1 else named
            source = source.args[0]
            axis = dim % value_of(source).dim()
        if isinstance(value_of(source), torch.Tensor):
            x = self._view(source, s, axis, steps)
        else:
            low, high = s.places(steps, len(value_of(source)))
            items = range(low, high, abs(s.step))
            x = self._value(source)
            x = self._call(torch.stack, [self._call(operator.getitem, x, k) for k in items])
        return self._call("flip", x, 0) if s.step < 0 else x

    def _view(self, source: Node, s: Slice, axis: int, steps: int) -> Node:
        size = value_of(source).shape[axis]
        return viewed(self._call, self._value(source), s, axis, steps, size)

    def _value(self, n: Node) -> Node:
        """What takes the place of a value outside of the steps."""
        chain = self.chain_of.get(n)
        if chain is None:
            return self.new[n]
        if n not in self.new:
            step, at = chain.place(n)
            last = self.last.get((chain.start, at)) if step == chain.count - 1 else None
            if last is None or (chain.start, at) in self.stacked:
                last = self._call(operator.getitem, self.stacked[chain.start, at], step)
                last.meta = dict(n.meta)
            self.new[n] = last
        return self.new[n]

    def _joined(self, n: Node) -> Node | None:
        """Results of many steps that are joined, from what the scan stacks; None for another
        call."""

        def place(x: Any) -> tuple[tuple[int, int], int] | None:
            chain = self.chain_of.get(x) if isinstance(x, Node) else None
            if chain is None:
                return None
            step, at = chain.place(x)
            return (chain.start, at), step

        def whole(run: Sequence[Node]) -> tuple[Node, int, int, int]:
            chain = self.chain_of[run[0]]
            (first, at), (last, _) = chain.place(run[0]), chain.place(run[-1])
            return self.stacked[chain.start, at], first, last, chain.count

        return joined(n, place, self._value, whole, self._call)
