"""Cutting a translated graph into native segments between host calls.

A host call needs some nodes computed, and gives inputs to others. Each node has a level: the number
of host calls it waits for, in a row. Segment L computes the nodes of level L that are needed
outside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from tilewright import ops
from tilewright.capture.torch.captured import Captured, Filled, HostCall, Returned, Segment, Slot
from tilewright.capture.torch.layout import contiguous, dense, from_memory, memory_shape
from tilewright.capture.torch.operands import Operand
from tilewright.graph.specialise import graph_symbols
from tilewright.ir import dim as D
from tilewright.ir.dim import Int
from tilewright.ir.node import Graph, Input, Node, Place, input, node, rebuild, topological
from tilewright.ir.slots import Buffer, Check, Number, Restrided, SymbolicInt, View
from tilewright.ir.types import TensorType


@dataclass(frozen=True)
class PendingHost:
    """A host call whose arguments still are nodes."""

    call: HostCall
    label: str
    operands: tuple[Node, ...]
    binds: frozenset[str]  # names of dims that its result gives values to
    ordered: bool


@dataclass(frozen=True)
class PendingNumber:
    """In the arguments of a pending host call: a Python number that a 0-d tensor holds."""

    node: Node
    type: type


@dataclass
class Wanted:
    """A node whose value is used outside the segments, and the buffer it goes to."""

    value: Node
    buffer: Buffer


def cut(
    name: str,
    hosts: Sequence[PendingHost],
    wanted: Sequence[Wanted],
    places: Mapping[Node, frozenset[Place]],
    derived: Mapping[str, frozenset[str]],
    checks: Mapping[Node, Check] | None = None,
) -> tuple[Segment | HostCall, ...]:
    """`derived`: symbols and slots that are computed from symbols, by name, and from which.
    `checks` are tested as soon as they are computed: before later host calls run."""
    checks = checks or {}
    if not hosts:
        jobs = [(w.value, w.buffer) for w in wanted]
        return (_segment(name, jobs, {}, places, checks),) if wanted or checks else ()
    levels = _Levels(hosts, derived)
    slots: dict[Node, str] = {}
    laid_out: dict[Operand, str] = {}

    def slot(n: Node | Operand) -> str:
        if isinstance(n, Operand):
            return laid_out.setdefault(replace(n, gaps=None), f"w{len(laid_out)}")
        if isinstance(n.op, Input):
            return n.op.label
        return slots.setdefault(n, f"v{len(slots)}")

    roots = [x for h in hosts for x in h.operands] + [w.value for w in wanted] + list(checks)
    calls = [_resolved(h.call, slot) for h in hosts]
    for n in topological(roots):
        for x in n.inputs:
            if levels.of(x) < levels.of(n) and not levels.free(x):
                slot(x)
    out: list[Segment | HostCall] = []
    top = max((levels.of(x) for x in roots), default=0)
    last = max(top, max(levels.host.values(), default=0))
    for level in range(last + 1):
        crossing = {n: s for n, s in slots.items() if levels.of(n) < level and not levels.free(n)}
        jobs = [(n, _buffer(s, n)) for n, s in slots.items() if levels.of(n) == level]
        jobs += [(x.node, x.buffer(s)) for x, s in laid_out.items() if levels.of(x.node) == level]
        jobs += [(w.value, w.buffer) for w in wanted if levels.of(w.value) == level]
        due = {n: c for n, c in checks.items() if levels.of(n) == level}
        if jobs or due:
            out.append(_segment(f"{name}.{level}", jobs, crossing, places, due))
        due_calls = zip(hosts, calls, strict=True)
        out += [call for h, call in due_calls if levels.host[h.label] == level]
    return tuple(out)


class _Levels:
    def __init__(self, hosts: Sequence[PendingHost], derived: Mapping[str, frozenset[str]]) -> None:
        self._derived = derived
        self.host: dict[str, int] = {}
        self._slots: dict[str, int] = {}
        self._dims: dict[str, int] = {}
        self._memo: dict[Node, int] = {}
        self._free: dict[Node, bool] = {}
        latest = 0
        for h in hosts:
            level = max((self.of(x) for x in h.operands), default=0)
            # Opaque operands and inputs come from slots: after the host call that fills them, same
            # level is enough.
            level = max(
                level, *(self._slot_level(s) for s in slots_in((h.call.args, h.call.kwargs))), 0
            )
            level = max(
                level, *(self._symbol(s) for s in _symbols_in((h.call.args, h.call.kwargs))), 0
            )
            if h.ordered:
                level = latest = max(level, latest)
            self.host[h.label] = level
            for r in filled(h.call.returned):
                self._slots[r.slot] = level
            for s in h.binds:
                self._dims[s] = max(level + 1, self._dims.get(s, 0))

    def _slot_level(self, slot: str) -> int:
        return self._slots.get(slot, self._symbol(slot))

    def _symbol(self, name: str) -> int:
        """The first level at which the value of a symbol is known."""
        return max(self._dims.get(s, 0) for s in self._derived.get(name, (name,)))

    def of(self, n: Node) -> int:
        found = self._memo.get(n)
        if found is None:
            for x in topological((n,)):
                if x not in self._memo:
                    self._memo[x] = self._compute(x)
            found = self._memo[n]
        return found

    def _compute(self, n: Node) -> int:
        level = max((self._memo[x] for x in n.inputs), default=0)
        if isinstance(n.op, Input) and n.op.label in self._slots:
            level = self._slots[n.op.label] + 1
        elif isinstance(n.op, Input) and n.op.label in self._derived:
            level = self._symbol(n.op.label)
        if self._dims:
            for s in _dims_of(n):
                level = max(level, self._symbol(s))
        return level

    def free(self, n: Node) -> bool:
        """Is it cheaper to compute the node again than to pass it on: a view of an input, or a
        constant?
        """
        found = self._free.get(n)
        if found is None:
            found = isinstance(n.op, Input) or not n.inputs
            found = found or (n.op.view and all(self.free(x) for x in n.inputs))
            self._free[n] = found
        return found


def _dims_of(n: Node) -> set[str]:
    out: set[str] = set()

    def visit(v: Any) -> None:
        if isinstance(v, Int):
            out.update(s.name for s in D.symbols(v))
        elif isinstance(v, (tuple, list)):
            for e in v:
                visit(e)
        elif isinstance(v, TensorType):
            visit(v.shape)

    visit(n.type if isinstance(n.type, TensorType) else n.type.items)
    if not isinstance(n.op, Input):
        visit([getattr(n.op, f.name) for f in fields(n.op)])
    return out


def filled(returned: Returned) -> Iterator[Filled]:
    """The results of a host call that go to slots."""
    if isinstance(returned, Filled):
        yield returned
    elif isinstance(returned, tuple):
        for r in returned:
            yield from filled(r)


def slots_in(tree: Any) -> list[str]:
    if isinstance(tree, Slot):
        return [tree.label]
    if isinstance(tree, (Number, View, Restrided)):
        return [tree.slot]
    if isinstance(tree, dict):
        return [s for v in tree.values() for s in slots_in(v)]
    if isinstance(tree, (tuple, list)):
        return [s for v in tree for s in slots_in(v)]
    return []


def used_symbols(captured: Captured) -> set[str]:
    """Names of the symbols whose values a call needs."""
    found: set[str] = set()
    for s in captured.steps:
        if isinstance(s, HostCall):
            found.update(_symbols_in((s.args, s.kwargs)))
        else:
            found.update(graph_symbols(s.graph))
            dims = [d for b in s.buffers for d in (*b.shape, *b.stride)]
            found.update(x.name for d in dims for x in D.symbols(d))
    found.update(_symbols_in(captured.results))
    for s in captured.scalars:
        if not s.slot.startswith("dim:"):  # of those some are not used
            found.update(x.name for d in s.dims.values() for x in D.symbols(d))
    return found


def _symbols_in(tree: Any) -> list[str]:
    if isinstance(tree, dict):
        return [s for v in tree.values() for s in _symbols_in(v)]
    if isinstance(tree, (tuple, list)):
        return [s for v in tree for s in _symbols_in(v)]
    dims: list[Any] = []
    if isinstance(tree, SymbolicInt):
        dims = [tree.value]
    elif isinstance(tree, View):
        dims = [*tree.shape, *tree.stride, tree.offset, *(tree.base or ())]
    elif isinstance(tree, Restrided):
        dims = [*tree.shape, *tree.stride, tree.offset]
    return [s.name for d in dims for s in D.symbols(d)]


def _buffer(slot: str, n: Node) -> Buffer:
    return Buffer(slot, n.dtype, n.shape, contiguous(n.shape))


def _resolved(call: HostCall, slot: Any) -> HostCall:
    """The call with slots in place of nodes."""

    def visit(x: Any) -> Any:
        if isinstance(x, PendingNumber):
            return Number(slot(x.node), x.type)
        if isinstance(x, Operand) and x.gaps is not None:
            return Restrided(slot(x), x.shape, x.gaps)
        if isinstance(x, (Node, Operand)):
            return Slot(slot(x))
        if isinstance(x, (tuple, list)):
            return type(x)(visit(e) for e in x)
        if isinstance(x, dict):
            return {k: visit(v) for k, v in x.items()}
        return x

    args = tuple(visit(a) for a in call.args)
    return replace(call, args=args, kwargs={k: visit(v) for k, v in call.kwargs.items()})


def _segment(
    name: str,
    jobs: Sequence[tuple[Node, Buffer]],
    crossing: Mapping[Node, str],
    places: Mapping[Node, frozenset[Place]],
    checks: Mapping[Node, Check],
) -> Segment:
    new: dict[Node, Node] = {}
    for n in _walk([*(n for n, _ in jobs), *checks], crossing):
        if n in crossing:
            new[n] = input(crossing[n], n.ttype)
        elif all(new[x] is x for x in n.inputs):
            new[n] = n
        else:
            new[n] = node(n.op, *(new[x] for x in n.inputs))
    moved = {new[n]: p for n, p in places.items() if n in new}
    outputs = (*(new[n] for n, _ in jobs), *watched([new[n] for n in checks]))
    read = [x for x in topological(outputs) if isinstance(x.op, Input)]
    # Weights first: a call gets their addresses together.
    inputs = tuple(sorted(read, key=lambda x: x.op.role != "weight"))  # type: ignore[attr-defined]
    buffers = tuple(b for _, b in jobs)
    return Segment(Graph(name, inputs, outputs, moved), buffers, tuple(checks.values()))


def watched(found: list[Node]) -> tuple[Node, ...]:
    """One integer that is 0 where all of these are, then these, which the caller is told."""
    every = found
    while len(every) > 1:
        pairs = zip(every[::2], every[1::2], strict=False)
        every = [ops.bitwise_or(a, b) for a, b in pairs] + every[len(every) // 2 * 2 :]
    return (every[0], *map(ops.told, found)) if found else ()


def _walk(roots: Sequence[Node], stop: Mapping[Node, str]) -> list[Node]:
    """Topological order that does not go below the nodes in `stop`."""
    seen: dict[Node, None] = {}
    stack: list[tuple[Node, bool]] = [(r, False) for r in reversed(roots)]
    while stack:
        n, done = stack.pop()
        if n in seen:
            continue
        if done or n in stop:
            seen[n] = None
            continue
        stack.append((n, True))
        stack.extend((x, False) for x in reversed(n.inputs) if x not in seen)
    return list(seen)


def as_they_lie(segment: Segment, announced: Mapping[str, torch.Tensor]) -> Segment:
    """The segment with results of host calls read in the order of their memory, as torch announced
    them by slot: libraries for matrices store columns, and a copy would take as long as a small
    program."""
    laid: dict[str, tuple[int, ...]] = {}
    memory: dict[Node, tuple[Node, Node]] = {}  # and what it is
    for n in segment.graph.inputs:
        assert isinstance(n.op, Input)
        v = announced.get(n.op.label)
        sizes = [] if v is None else [*v.shape, *v.stride()]
        if v is None or v.dim() != n.rank or any(type(d) is not int for d in sizes):
            continue
        how = dense(n.shape, v.stride())
        if how is not None and not how.broadcast and [*how.order] != sorted(how.order):
            shape = memory_shape(n.shape, how)
            lies = input(n.op.label, TensorType(n.dtype, shape), n.op.role)
            memory[n] = lies, from_memory(lies, n.shape, how)
            laid[n.op.label] = v.stride()
    if not laid:
        return segment
    graph = rebuild(segment.graph, lambda n: memory[n][1] if n in memory else n)
    inputs = tuple(memory[n][0] if n in memory else n for n in segment.graph.inputs)
    made = Graph(graph.name, inputs, graph.outputs, graph.places)
    return replace(segment, graph=made, laid=laid)
