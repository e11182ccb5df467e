"""Layouts that a schedule requests: an operand of some nodes is stored as they read it.

As in graph/pack.py, `x` becomes `unrelayout{map}(relayout{map}(x))` there: equal by definition, the
relayout is stored, and over constants it folds away into what runs once.
"""

from __future__ import annotations

from collections.abc import Collection

from tilewright.ir.maps import Map
from tilewright.ir.node import Graph, Node, node
from tilewright.ops.layout import relayout, unrelayout


def laid_out(graph: Graph, users: Collection[Node], x: Node, by: Map) -> Graph:
    """The graph in which `users` read x as the map lays it out; others read it as it is."""
    new: dict[Node, Node] = {}
    for n in graph.nodes():
        ins = tuple(
            unrelayout(relayout(new[i], by), by, i.shape) if i is x and n in users else new[i]
            for i in n.inputs
        )
        new[n] = n if ins == n.inputs else node(n.op, *ins)
    return graph.with_outputs((new[o] for o in graph.outputs), new)


def unfolded(main: Graph, prologue: Graph) -> dict[Node, Node]:
    """Nodes of the main graph that `split_weights` made, as nodes of the graph it was given."""
    folded = main.inputs[len(main.inputs) - len(prologue.outputs) :]
    back: dict[Node, Node] = dict(zip(folded, prologue.outputs, strict=True))
    for n in main.nodes():
        if n not in back:
            ins = tuple(back[x] for x in n.inputs)
            back[n] = n if ins == n.inputs else node(n.op, *ins)
    return back
