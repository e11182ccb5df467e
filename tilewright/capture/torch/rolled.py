"""Steps that Dynamo wrote out one after the other, as one scan again.

A loop of Python over a sequence is captured step by step, and whatever follows takes as many times
as long. Here equal steps (`equal_steps.py`) that only compute become one
`torch.ops.higher_order.scan`, which has gradients, and which stacks what is read of each step.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import torch
import torch.fx
from torch._higher_order_ops.scan import scan_op
from torch._subclasses.fake_tensor import FakeTensor
from torch.amp.autocast_mode import _enter_autocast
from torch.fx import Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tilewright.capture.torch.equal_steps import Calls, Chain, Slice, chains_of, in_order, value_of
from tilewright.capture.torch.first_states import first_states

_JOINS = {torch.stack: True, torch.cat: False, torch.concat: False, torch.concatenate: False}


def rolled(gm: torch.fx.GraphModule) -> torch.fx.GraphModule | None:
    """The graph with scans in the place of long chains of equal steps; None where there are
    none."""
    autocast = torch.is_autocast_enabled() or torch.is_autocast_enabled("cpu")
    if autocast or gm.graph.find_nodes(op="call_function", target=_enter_autocast):
        return None
    made: torch.fx.GraphModule | None = None
    while True:  # steps of a second loop may read results of the first, which are slices then
        calls = Calls(in_order(made or gm))
        found = [c for c in chains_of(calls) if _is_pure(c) and _hands_on_tensors(c)]
        if not found:
            return made
        made = _Writer(made or gm, calls, found).whole()


# ---- whether steps only compute


class _Watch(TorchDispatchMode):
    """Notices what changes tensors that were there before, and what draws random numbers."""

    def __init__(self, given: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.given = {_storage(x) for x in given}
        self.pure = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.pure = False
        for x in _changed(func._schema, args, kwargs or {}):
            self.pure = self.pure and _storage(x) not in self.given
        return func(*args, **(kwargs or {}))


def _changed(schema: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The operands that an operator writes into."""
    written = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
    named = [kwargs.get(a.name) for a in schema.arguments[len(args) :]]
    found = [x for x, w in zip((*args, *named), written, strict=True) if w]
    return [x for x in pytree.tree_leaves(found) if isinstance(x, torch.Tensor)]


def _storage(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata


def _is_pure(chain: Chain) -> bool:
    """Does a step do nothing but compute its results?"""
    own: dict[Node, Any] = {}
    outside: list[Any] = []

    def given(n: Node) -> Any:
        if n not in own:
            outside.extend(
                x for x in pytree.tree_leaves(value_of(n)) if isinstance(x, torch.Tensor)
            )
            return value_of(n)
        return own[n]

    nodes = [n for j, n in enumerate(chain.nodes(1)) if j not in chain.written]
    if not all(value_of(chain.nodes(1)[at]).is_contiguous() for at in chain.carried):
        return False
    for n in nodes:
        leaves = pytree.tree_leaves(value_of(n))
        if not leaves or not all(type(x) is FakeTensor for x in leaves):
            return False
        if isinstance(n.target, torch._ops.HigherOrderOperator) or n.kwargs.get("out") is not None:
            return False
    for x in {x for n in nodes for x in n.all_input_nodes} - {*nodes}:
        given(x)
    if not outside or not all(isinstance(x, FakeTensor) for x in outside):
        return False
    if not all(_is_set_whole(chain, j, outside) for j in chain.written):
        return False
    watch = _Watch(outside)
    try:
        with torch.no_grad(), outside[0].fake_mode, watch:
            for n in nodes:
                args, kwargs = torch.fx.node.map_arg((n.args, n.kwargs), given)
                if isinstance(n.target, str):
                    own[n] = getattr(args[0], n.target)(*args[1:], **kwargs)
                else:
                    own[n] = n.target(*args, **kwargs)
    except Exception:  # then it is left as it is
        return False
    return watch.pure


def _is_set_whole(chain: Chain, j: int, read: Sequence[torch.Tensor]) -> bool:
    """Do steps set slices of a tensor that none of them reads, to values of the same shape?"""
    n = chain.nodes(1)[j]
    index: Any = n.args[1]
    target, made = value_of(chain.written[j].source), n.args[2]
    if type(target) is not FakeTensor or not isinstance(made, Node):
        return False
    others = [value_of(s.source) for k, s in chain.written.items() if k != j]
    if _storage(target) in map(_storage, (*read, *others)):
        return False
    with target.fake_mode:
        return target[index].shape == value_of(made).shape


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
                seen[n] = _rest(body, chain.slices[j], wholes[chain.slices[j]])
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
            self._call(operator.setitem, where, (slice(None), *_index(s)), values)
        return torch.fx.GraphModule(self.gm, body)

    def _whole(self, s: Slice, steps: int) -> Node:
        """What a scan goes through to take such slices: along axis 0."""
        source, axis = s.source, s.axis
        if source.target in (torch.unbind, "unbind") and isinstance(source.args[0], Node):
            dim: Any = source.args[1] if len(source.args) > 1 else source.kwargs.get("dim", 0)
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
        """All slices along axis 0, in the order of memory."""
        x = self._value(source)
        low, high = s.places(steps, value_of(source).shape[axis])
        if s.width is not None:
            x = self._call("narrow", x, axis, low, high - low)
            x = self._call("unflatten", x, axis, (steps, s.width))
        x = self._call("movedim", x, axis, 0) if axis else x
        if s.width is None:
            x = self._call(operator.getitem, x, slice(low, high, abs(s.step)))
        return x

    def _value(self, n: Node) -> Node:
        """What takes the place of a value outside of the steps."""
        chain = self.chain_of.get(n)
        if chain is None:
            return self.new[n]
        if n not in self.new:
            step, at = chain.place(n)
            last = self.last.get((chain.start, at)) if step == chain.count - 1 else None
            if last is None:
                last = self._call(operator.getitem, self.stacked[chain.start, at], step)
                last.meta = dict(n.meta)
            self.new[n] = last
        return self.new[n]

    def _joined(self, n: Node) -> Node | None:
        """Results of many steps that are joined, from what the scan stacks; None for another
        call."""
        if n.op != "call_function" or n.target not in _JOINS or not n.args:
            return None
        items, stacks = n.args[0], _JOINS[n.target]
        dim = n.args[1] if len(n.args) > 1 else n.kwargs.get("dim", 0)
        if not isinstance(items, (list, tuple)) or type(dim) is not int or "out" in n.kwargs:
            return None
        runs, value = list(self._in_turn(items)), value_of(n)
        if len(runs) == len(items) or not value.is_contiguous():
            return None
        dim = dim + value.dim() if dim < 0 else dim
        parts = []
        for run in runs:
            if len(run) == 1:
                x = self._value(run[0])
                parts.append(self._call("unsqueeze", x, dim) if stacks else x)
                continue
            chain = self.chain_of[run[0]]
            (first, at), (last, _) = chain.place(run[0]), chain.place(run[-1])
            whole = self.stacked[chain.start, at]
            low, high = min(first, last), max(first, last) + 1
            if high - low < chain.count:
                whole = self._call(operator.getitem, whole, slice(low, high))
            whole = self._call("flip", whole, 0) if last < first else whole
            whole = self._call("movedim", whole, 0, dim) if dim else whole
            parts.append(whole if stacks else self._call("flatten", whole, dim, dim + 1))
        if len(parts) == 1:  # a tensor of its own, as eager gives
            made = self._call("clone", parts[0], memory_format=torch.contiguous_format)
        else:
            made = self._call(torch.cat, parts, dim)
        made.meta = dict(n.meta)
        return made

    def _in_turn(self, items: Sequence[Any]) -> Iterator[list[Any]]:
        """The items, in lists of those that one call gives in steps that follow each other."""
        run: list[Any] = []
        by = 0
        for x in items:
            if run and self._follows(run[-1], x, by):
                by = self._follows(run[-1], x, by)
                run.append(x)
                continue
            if run:
                yield run
            run, by = [x], 0
        if run:
            yield run

    def _follows(self, x: Node, y: Node, by: int) -> int:
        """1 or -1 where y is of the step after that of x, or before; else 0."""
        chain = self.chain_of.get(x)
        if chain is None or self.chain_of.get(y) is not chain:
            return 0
        (a, at), (b, other) = chain.place(x), chain.place(y)
        return b - a if at == other and b - a in ((by,) if by else (1, -1)) else 0


def _rest(body: torch.fx.Graph, s: Slice, seen: Node) -> Node:
    """What a step takes of its slice."""
    index = _index(s)
    if all(x is Ellipsis or x == slice(None) for x in index):
        return seen
    return body.call_function(operator.getitem, (seen, index))


def _index(s: Slice) -> tuple[Any, ...]:
    """The index without the entry that moves: of a slice."""
    return *s.index[: s.at], *(() if s.width is None else (slice(None),)), *s.index[s.at + 1 :]
