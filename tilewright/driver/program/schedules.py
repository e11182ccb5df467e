"""Schedules that a user puts in place of the default ones, by the names of kernels.

`tw.explain(fast)` names every kernel and prints its trace; an edited trace comes back as
`tw.compile(f, schedules={"k_…": trace})`. A trace may begin by requesting operands in another
layout (Relayout of an input): the graph then stores them so, weights once, and the rest of the
trace schedules the kernel that reads them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from tilewright.base.errors import TilewrightError
from tilewright.base.events import Log
from tilewright.driver.program.options import Options
from tilewright.graph.cluster import Cluster, Fused
from tilewright.graph.fold import split_weights
from tilewright.graph.fuse import fuse
from tilewright.graph.memory import Plan, plan
from tilewright.graph.packed_inputs import laid_out, unfolded
from tilewright.ir.maps import Map
from tilewright.ir.node import Graph, Node, input, node
from tilewright.ir.rewrite import subgraphs
from tilewright.ir.target import Target
from tilewright.kernel.group import Group, build_group
from tilewright.kernel.nest import Nest, start
from tilewright.kernel.step import Trace, apply, parse_trace
from tilewright.kernel.steps.relayout import Relayout
from tilewright.kernel.text import group_text
from tilewright.kernel.widen import widened
from tilewright.ops.layout import Unrelayout


def symbol_of(group: Group) -> str:
    """A kernel's name: what it computes decides it, so it is the same in every process."""
    return symbol_of_text(group_text(group))


def symbol_of_text(text: str) -> str:
    return f"k_{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def by_first_use(c: Cluster) -> Cluster:
    """Inputs in the order in which the nodes read them, so that equal layers are one kernel."""
    own = set(c.inputs)
    used = dict.fromkeys(x for n in c.nodes for x in n.inputs if x in own)
    return replace(c, inputs=tuple(used | dict.fromkeys(c.inputs)))


@dataclass(frozen=True)
class Numbers:
    """What kernels may do to numbers: the order of sums, and 16-bit results between operators."""

    precision: str = "reassociate"
    round_between: bool = True


def group_of(c: Cluster, p: Plan, numbers: Numbers, outputs: tuple[Node, ...] = ()) -> Group:
    """The group of a cluster; `outputs` are those the plan knows, where the cluster has others."""
    known = dict(zip(c.outputs, outputs or c.outputs, strict=True))
    place = {o: p.in_place[k] for o, k in known.items() if k in p.in_place}
    group = build_group("kernel", c.nodes, c.inputs, c.outputs, place, c.roles)
    group = group if numbers.round_between else widened(group)
    return replace(group, precision=numbers.precision)


@dataclass(frozen=True)
class Schedules:
    """Traces by the name of a kernel, and what kernels may do to numbers."""

    traces: Mapping[str, Trace]
    numbers: Numbers = Numbers()

    @staticmethod
    def of(options: Options) -> Schedules:
        numbers = Numbers(options.precision, options.round_between)
        return Schedules.parse(options.schedules, numbers)

    @staticmethod
    def parse(given: Mapping[str, str], numbers: Numbers) -> Schedules:
        traces: dict[str, Trace] = {}
        for name, text in given.items():
            try:
                traces[name] = parse_trace(text)
            except TilewrightError as wrong:
                wrong.where = f"the schedule for {name}"
                raise
        return Schedules(traces, numbers)

    def __bool__(self) -> bool:
        return bool(self.traces)

    def with_layouts(self, graph: Graph, fold: bool, target: Target, log: Log) -> Graph:
        """The graph in which operands are stored as traces request them."""
        waiting = {name: t for name, t in self.traces.items() if _asking(t)}
        while waiting:
            kernels = kernels_of(graph, fold, self.numbers, target)
            found = next((k for k in kernels if symbol_of(k[1]) in waiting), None)
            if found is None:
                return graph  # this program has no such kernel; another one may
            c, group, back = found
            name = symbol_of(group)
            nest = self.applied(name, group, _asking(waiting.pop(name)))
            for x, b in zip(c.inputs, group.inputs, strict=True):
                layout = nest.buffer(b.name).packed_as
                if layout is not None:
                    graph = laid_out(graph, {back[n] for n in c.nodes}, back[x], layout.map)
                    log.add(
                        "pack",
                        f"{name} has {b.name} laid out as {layout.map}, as its schedule requests",
                    )
        return graph

    def applied(self, name: str, group: Group, trace: Trace) -> Nest:
        """The nest of a user's trace; errors name that schedule."""
        try:
            return apply(start(group), trace)
        except TilewrightError as wrong:
            wrong.where = f"the schedule for {name}"
            raise

    def kernel_of(self, c: Cluster, p: Plan) -> tuple[Cluster, Group]:
        """The group of a cluster with its inputs in order. Where the user's trace requested
        what the cluster now reads through a map, it is the group that the trace was written for."""
        mapped = [n for n in c.nodes if isinstance(n.op, Unrelayout) and n.inputs[0] in c.inputs]
        asking = any(map(_asking, self.traces.values()))
        for count in range(len(mapped), 0, -1) if asking else ():
            for some in combinations(mapped, count):
                plain, stored = _without_maps(c, some)
                group = group_of(plain, p, self.numbers, c.outputs)
                trace = _asking(self.traces.get(symbol_of(group), ()))
                nest = self.applied(symbol_of(group), group, trace)
                layouts = [nest.buffer(b.name).packed_as for b in group.inputs]
                maps = [stored[x][1] if x in stored else None for x in plain.inputs]
                if [a and a.map for a in layouts] == maps:
                    given = (stored[x][0] if x in stored else x for x in plain.inputs)
                    return replace(plain, inputs=tuple(given)), group
        return c, group_of(c, p, self.numbers)


def _asking(trace: Trace) -> Trace:
    """The layouts that a trace requests before it does anything else."""
    count = next((k for k, s in enumerate(trace) if not isinstance(s, Relayout)), len(trace))
    return trace[:count]


def _without_maps(
    c: Cluster, maps: Collection[Node]
) -> tuple[Cluster, dict[Node, tuple[Node, Map]]]:
    """The cluster with plain inputs for some that it reads through maps; what is stored for them,
    and how it is laid out."""
    new: dict[Node, Node] = {}
    stored: dict[Node, tuple[Node, Map]] = {}
    for n in c.nodes:
        if n in maps and isinstance(n.op, Unrelayout):
            new[n] = input(f"asked{len(stored)}", n.ttype)
            stored[new[n]] = n.inputs[0], n.op.map
        else:
            ins = tuple(new.get(x, x) for x in n.inputs)
            new[n] = n if ins == n.inputs else node(n.op, *ins)
    nodes = tuple(m for m in (new[n] for n in c.nodes) if m not in stored)
    outputs = tuple(new.get(o, o) for o in c.outputs)
    used = {x for n in nodes for x in n.inputs}
    inputs = (*stored, *(x for x in c.inputs if x in used))
    roles = tuple((role, new[n]) for role, n in c.roles)
    plain = replace(c, nodes=nodes, inputs=inputs, outputs=outputs, roles=roles)
    return by_first_use(plain), stored


def kernels_of(
    graph: Graph, fold: bool, numbers: Numbers, target: Target
) -> Iterator[tuple[Cluster, Group, dict[Node, Node]]]:
    """The kernels that the graph will have, with its own nodes for those of the clusters."""
    if fold:
        prologue, main = split_weights(graph)
        back = unfolded(main, prologue)
    else:
        main, back = graph, {n: n for n in graph.nodes()}
    fused: Fused = fuse(main, target, Log())
    p = plan(fused)
    for c in fused.clusters:
        empty = any(o.ttype.size == 0 for o in c.outputs)
        if empty or any(subgraphs(n.op) for n in c.nodes):
            continue
        c = by_first_use(c)
        yield c, group_of(c, p, numbers), back
