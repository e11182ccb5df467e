"""Divide a graph where shapes depend on a size that only data decides: what comes before computes
the size, what comes after is a program of its own, with the size as a symbol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.graph.specialise import node_symbols
from tilewright.ir.dim import Dim
from tilewright.ir.node import Graph, Input, Node, input, node, topological
from tilewright.ir.types import TensorType


@dataclass(frozen=True)
class Cut:
    """A size that is a symbol in shapes, and whose number is the value of `count`; `most` is how
    large it may be. `size` is what shapes have: the symbol, or the number where it was known."""

    symbol: str
    count: Node
    size: Dim
    most: Dim | None  # None: nothing says it


@dataclass(frozen=True)
class Part:
    """A piece of a graph. Its inputs and outputs are values of nodes of the whole: `reads` and
    `gives` say which."""

    graph: Graph
    reads: tuple[Node, ...]
    gives: tuple[Node, ...]


def divide(graph: Graph, cuts: Sequence[Cut]) -> tuple[Part, ...]:
    """The parts of a graph in the order in which they run; what weights alone decide is computed in
    each that reads it. Every part gives what later ones read, the outputs and the counts that are
    known then; a part that would give nothing is left out."""
    wanted = [*graph.outputs, *(c.count for c in cuts)]
    level = _levels(graph.outputs, cuts)
    free = _free(level)
    later: set[Node] = set(wanted)
    for n, own in level.items():
        later |= {x for x in n.inputs if level[x] < own and x not in free}
    parts = []
    for depth in range(max(level.values(), default=0) + 1):
        gives = [n for n, own in level.items() if own == depth and n in later]
        if depth:  # inputs are there already, unless an output is one
            gives = [n for n in gives if not isinstance(n.op, Input)]
        else:
            outputs = set(graph.outputs)
            gives = [n for n in gives if not isinstance(n.op, Input) or n in outputs]
        if gives:
            parts.append(_part(graph, gives, depth, level, free))
    return tuple(parts)


def _levels(outputs: Sequence[Node], cuts: Sequence[Cut]) -> dict[Node, int]:
    """How many parts have to run before a node can be computed."""
    level: dict[Node, int] = {}
    after: dict[str, int] = {}

    def reach(roots: Sequence[Node]) -> int:
        for n in topological(roots, stop=level):
            known = (after.get(s.name, 0) for s in node_symbols(n))
            level[n] = max((*known, *(level[x] for x in n.inputs)), default=0)
        return max(level[r] for r in roots)

    for c in cuts:
        after[c.symbol] = reach((c.count,)) + 1
    if outputs:
        reach(outputs)
    return level


def _free(level: Mapping[Node, int]) -> set[Node]:
    """Nodes that depend on weights and constants alone."""
    free: set[Node] = set()
    for n in topological(level):
        own = n.op.role == "weight" if isinstance(n.op, Input) else True
        if own and all(x in free for x in n.inputs):
            free.add(n)
    return free


def _part(
    graph: Graph, gives: Sequence[Node], depth: int, level: Mapping[Node, int], free: set[Node]
) -> Part:
    known = {
        n for n, own in level.items() if (own < depth and n not in free) or isinstance(n.op, Input)
    }
    new: dict[Node, Node] = {}
    reads: list[Node] = []

    def read(x: Node) -> Node:
        if x not in new:
            assert isinstance(x.type, TensorType)
            own = isinstance(x.op, Input)
            new[x] = x if own else input(f"v{depth}_{len(reads)}", x.type)
            reads.append(x)
        return new[x]

    for n in topological(gives, stop=known):
        new[n] = node(n.op, *[read(x) if x in known else new[x] for x in n.inputs])
    outputs = tuple(read(n) if n in known else new[n] for n in gives)
    # Weights come first, as in the whole graph.
    order = {n: k for k, n in enumerate(graph.inputs)}
    reads.sort(key=lambda x: order.get(x, len(order)))
    places = {new[n]: found for n, found in graph.places.items() if n in new}
    return Part(
        Graph(graph.name, tuple(new[x] for x in reads), outputs, places), tuple(reads), tuple(gives)
    )
