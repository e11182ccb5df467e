"""From a packed weight back to the weight: as a graph of its own, or for its other readers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright import ops
from tilewright.base.events import Log
from tilewright.ir.node import Graph, Input, Node, input, node
from tilewright.ir.passes import Pass
from tilewright.ops.layout import Relayout
from tilewright.ops.views import Permute, Reshape


def rearranged(value: Node) -> tuple[Node, tuple[Node, ...]]:
    """What `value` is made of, and the nodes that only move it, the last one first."""
    n, moves = value, []
    while isinstance(n.op, (Relayout, Permute, Reshape)):
        moves.append(n)
        (n,) = n.inputs
    return n, tuple(moves)


def undone(moves: Sequence[Node], packed: Node) -> Node:
    """What the moves made `packed` of."""
    x = packed
    for n in moves:
        shape = n.inputs[0].shape
        if isinstance(n.op, Relayout):
            x = ops.unrelayout(x, n.op.map, shape)
        elif isinstance(n.op, Permute):
            x = ops.permute(x, tuple(int(k) for k in np.argsort(n.op.perm)))
        else:
            x = ops.reshape(x, shape)
    return x


def inverse(value: Node) -> Graph | None:
    """From a derived value back to the one weight that it is a rearrangement of."""
    source, moves = rearranged(value)
    if not isinstance(source.op, Input):
        return None
    packed = input("packed", value.ttype)
    return Graph("unpacked", (packed,), (undone(moves, packed),))


def conversion(old: Node, new: Node) -> Graph | None:
    """From one derived value to another that has the same elements in another order."""
    (source, moves), (wanted, moves_to) = rearranged(old), rearranged(new)
    if source is not wanted:
        return None
    packed = input("packed", old.ttype)
    x = undone(moves, packed)
    for n in reversed(moves_to):
        x = node(n.op, x)
    return Graph("repacked", (packed,), (x,))


@dataclass(frozen=True)
class ReadPacked(Pass, needs=("PackOperands",), after=("Simplify",), regions=True):
    """Weights that are packed for one reader are read packed by all. Nothing needs the originals:
    an embedding that is also the last layer's weight is then stored once."""

    def apply(self, program: Graph, log: Log) -> Graph:
        return _read_packed(program)


def _read_packed(graph: Graph) -> Graph:
    ways: dict[Node, tuple[Node, Node]] = {}
    for n in graph.nodes():
        if isinstance(n.op, Relayout):
            source, moves = rearranged(n)
            if isinstance(source.op, Input) and source.op.role == "weight":
                ways.setdefault(source, (n, undone(moves, n)))
    packing = {*ways, *(n for value, _ in ways.values() for n in rearranged(value)[1])}
    new: dict[Node, Node] = {}
    for n in graph.nodes():
        if n in packing:
            new[n] = n  # on the way from a weight to its packed form
            continue
        ins = tuple(ways[x][1] if x in ways else new[x] for x in n.inputs)
        new[n] = n if ins == n.inputs else node(n.op, *ins)
    outputs = (ways[o][1] if o in ways else new[o] for o in graph.outputs)
    return graph.with_outputs(outputs, new)
