"""A graph in pieces that a search can afford, cut where few values cross.

A model repeats its layers: pieces that do the same are one graph, which is searched once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir.node import Graph, Input, Node, input, node, topological
from tilewright.ir.types import TensorType
from tilewright.superopt.classes import Classes
from tilewright.superopt.seconds import constant_classes


@dataclass(frozen=True)
class Piece:
    """A part as a graph of its own, what its inputs stand for, and what it computes."""

    graph: Graph
    bound: tuple[Node, ...]
    outputs: tuple[Node, ...]


def pieces(graph: Graph, most: int) -> list[Piece]:
    """Parts of about so many operators at most, in an order in which they can be computed. What
    depends on weights alone is not counted: it is part of each piece that needs it."""
    constant = constant_classes(Classes(graph.outputs))
    order = [n for n in topological(graph.outputs) if n.inputs and n not in constant]
    last = {x: k for k, n in enumerate(order) for x in n.inputs}
    last |= dict.fromkeys(graph.outputs, len(order))
    found: list[Piece] = []
    start = 0
    while start < len(order):
        end = _cut(order, start, most, last)
        found.append(_piece(order[start:end], end, last, constant))
        start = end
    return found


def _cut(order: Sequence[Node], start: int, most: int, last: Mapping[Node, int]) -> int:
    """Where a piece ends: where fewest values cross, as late as that allows. What has several
    results stays with those who take them."""
    first, latest = start + most // 2, start + most
    if len(order) <= latest:
        return len(order)
    counts: dict[int, int] = {}
    for end in range(first, len(order) + 1):
        crossing = [n for n in order[:end] if last[n] >= end]
        if all(isinstance(n.type, TensorType) for n in crossing):
            counts[end] = len(crossing)
        if counts and end >= latest:
            break
    return min(counts, key=lambda end: (counts[end], -end))


def _piece(part: Sequence[Node], end: int, last: Mapping[Node, int], constant: set[Node]) -> Piece:
    inside = set(part) | constant
    before = dict.fromkeys(x for n in part for x in n.inputs if x not in inside)
    weights = (n for n in topological(part, stop=before) if isinstance(n.op, Input))
    outside = (*before, *weights)
    table = {
        x: input(f"p{k}", x.ttype, "weight" if x in constant else "arg")
        for k, x in enumerate(outside)
    }
    outputs = tuple(n for n in part if last[n] >= end)
    graph = Graph("piece", tuple(table.values()), substituted(outputs, table))
    return Piece(graph, outside, outputs)


def substituted(roots: Iterable[Node], table: Mapping[Node, Node]) -> tuple[Node, ...]:
    """The roots with other nodes in the places of some."""
    roots, made = tuple(roots), dict(table)
    stack = list(roots)
    while stack:
        n = stack[-1]
        missing = [x for x in n.inputs if x not in made] if n not in made else []
        if missing:
            stack += missing
            continue
        stack.pop()
        if n not in made:
            made[n] = node(n.op, *(made[x] for x in n.inputs)) if n.inputs else n
    return tuple(made[r] for r in roots)


def rewritten(roots: Iterable[Node], table: Mapping[Node, Node]) -> tuple[Node, ...]:
    """The roots with other nodes in the places of some, below those others too."""
    roots, made = tuple(roots), dict[Node, Node]()
    stack = list(roots)
    while stack:
        n = stack[-1]
        new = table.get(n, n)
        missing = [x for x in new.inputs if x not in made] if n not in made else []
        if missing:
            stack += missing
            continue
        stack.pop()
        if n not in made:
            made[n] = node(new.op, *(made[x] for x in new.inputs)) if new.inputs else new
    return tuple(made[r] for r in roots)
