"""Control flow: a branch whose predicate is known is what it computes."""

from __future__ import annotations

from typing import Any

from tilewright import ops
from tilewright.ir.node import Graph, Node, item, node
from tilewright.ir.pattern import Attr, Match, Rest, Rule, Var, filled_value, guard, make, op
from tilewright.ir.types import b1
from tilewright.rewrites.subject import Maker

c, args = Var("c"), Rest("args")


@guard("the predicate is known")
def known(m: Match) -> bool:
    return filled_value(m.c) is not None


def inline(graph: Graph, operands: tuple[Node, ...]) -> tuple[Node, ...]:
    """The outputs of the graph applied to operands."""
    new = dict(zip(graph.inputs, operands, strict=True))
    for n in graph.nodes():
        if n not in new:
            new[n] = node(n.op, *(new[x] for x in n.inputs))
    return tuple(new[o] for o in graph.outputs)


def _taken(m: Match) -> Node:
    branch = m.op(1).then if filled_value(m.c) else m.op(1).other
    return inline(branch, m.args)[m.k]


def _branches(m: Maker) -> Node:
    n = m.tensor("x")

    def body(name: str, build: Any) -> Graph:
        local = m.tensor("a", n.shape)
        return Graph(name, (local,), (build(local), ops.add(local, local)))

    then, other = body("then", lambda a: ops.mul(a, a)), body("other", ops.neg)
    predicate = make("full", shape=(), value=m.coin(), dtype=b1)
    return item(make("cond", predicate, n, then=then, other=other), m.whole(0, 1))


RULES = (
    Rule(
        "cond-known",
        op.item(op.cond(c, args), k=Attr("k")),
        _taken,
        known,
        subject=_branches,
        dtypes="fi",
    ),
)
