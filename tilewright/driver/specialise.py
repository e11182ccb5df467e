"""A symbolic graph with numbers for its dims: the same nodes, static."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tilewright import ops
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Int, Sym
from tilewright.ir.node import Graph, Input, Literal, Node, Op, node
from tilewright.ir.types import TensorType


def specialise(graph: Graph, dims: Mapping[str, int], numbers: Mapping[str, float] | None = None) -> Graph:  # fmt: skip
    """Replace symbols by their values, and scalar inputs named in `numbers` by constants."""
    table: dict[Sym, Dim] = {
        s: dims[s.name] for n in graph.nodes() for s in _symbols(n) if s.name in dims
    }
    known = numbers or {}
    new: dict[Node, Node] = {}
    for n in graph.nodes():
        if isinstance(n.op, Input) and n.op.label in known:
            new[n] = ops.full((), known[n.op.label], n.dtype)
        else:
            new[n] = node(_replace(n.op, table), *(new[x] for x in n.inputs))
    places = {new[n]: p for n, p in graph.places.items() if n in new}
    inputs = tuple(new[n] for n in graph.inputs if isinstance(new[n].op, Input))
    return Graph(graph.name, inputs, tuple(new[o] for o in graph.outputs), places)


def symbols_of(graph: Graph) -> tuple[str, ...]:
    """Names of the dims a graph depends on, sorted."""
    return tuple(sorted({s.name for n in graph.nodes() for s in _symbols(n)}))


def _symbols(n: Node) -> set[Sym]:
    out: set[Sym] = set()

    def visit(v: Any) -> None:
        if isinstance(v, Int):
            out.update(D.symbols(v))
        elif isinstance(v, (tuple, list)):
            for e in v:
                visit(e)
        elif isinstance(v, TensorType):
            visit(v.shape)
        elif isinstance(v, Graph):
            for m in v.nodes():
                out.update(_symbols(m))

    for f in dataclasses.fields(n.op):
        visit(getattr(n.op, f.name))
    return out


def _replace(op: Op, table: Mapping[Sym, Dim]) -> Op:
    def visit(v: Any) -> Any:
        if isinstance(v, Int):
            return D.substitute(v, table)
        if isinstance(v, tuple):
            return tuple(visit(e) for e in v)
        if isinstance(v, TensorType):
            return TensorType(v.dtype, visit(v.shape))
        if isinstance(v, Graph):
            return specialise(v, {s.name: int(x) for s, x in table.items() if isinstance(x, int)})
        return v

    if isinstance(op, Literal):
        return op
    changes = {}
    for f in dataclasses.fields(op):
        old = getattr(op, f.name)
        new = visit(old)
        if new is not old and new != old:
            changes[f.name] = new
    return dataclasses.replace(op, **changes) if changes else op
