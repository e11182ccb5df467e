"""From a packed weight back to the weight: as a graph of its own, or for whoever else reads it."""

from __future__ import annotations

import numpy as np

from tilewright import ops
from tilewright.ir.node import Graph, Input, Node, input, node
from tilewright.ops.layout import Relayout
from tilewright.ops.views import Permute, Reshape


def inverse(value: Node) -> Graph | None:
    """From a derived value back to the one weight that it is a rearrangement of."""
    packed = input("packed", value.ttype)
    found = unpacked(value, packed)
    return None if found is None else Graph("unpacked", (packed,), (found[1],))


def unpacked(value: Node, packed: Node) -> tuple[Node, Node] | None:
    """The input that `value` rearranges, and the same read from where `packed` holds `value`."""
    n, back = value, packed
    while not isinstance(n.op, Input):
        if len(n.inputs) != 1:
            return None
        (below,) = n.inputs
        if isinstance(n.op, Relayout):
            back = ops.unrelayout(back, n.op.map, below.shape)
        elif isinstance(n.op, Permute):
            back = ops.permute(back, tuple(int(k) for k in np.argsort(n.op.perm)))
        elif isinstance(n.op, Reshape):
            back = ops.reshape(back, below.shape)
        else:
            return None
        n = below
    return n, back


def read_packed(graph: Graph) -> Graph:
    """Weights that are packed for one reader are read packed by all: nobody needs the originals.

    An embedding that is also the last layer's weight is then held once.
    """
    ways: dict[Node, tuple[Node, Node]] = {}
    for n in graph.nodes():
        found = unpacked(n, n) if isinstance(n.op, Relayout) else None
        if found is not None and isinstance(found[0].op, Input) and found[0].op.role == "weight":
            ways.setdefault(found[0], (n, found[1]))
    kept = {n for value, _ in ways.values() for n in _chain(value)}
    new: dict[Node, Node] = {}
    for n in graph.nodes():
        if n in kept:
            new[n] = n  # on the way from a weight to its packed form
            continue
        ins = tuple(ways[x][1] if x in ways else new[x] for x in n.inputs)
        new[n] = n if ins == n.inputs else node(n.op, *ins)
    outputs = (ways[o][1] if o in ways else new[o] for o in graph.outputs)
    return graph.with_outputs(outputs, new)


def _chain(value: Node) -> list[Node]:
    found = [value]
    while found[-1].inputs:
        found.append(found[-1].inputs[0])
    return found
