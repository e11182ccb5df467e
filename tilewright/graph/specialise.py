"""Specialise: a symbolic graph for given sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Int, Sym
from tilewright.ir.node import Graph, Node, Op, node
from tilewright.ir.rewrite import subgraphs
from tilewright.ir.text import attributes, symbols_of
from tilewright.ir.types import TensorType, TupleType, Type


def graph_symbols(graph: Graph) -> dict[str, Sym]:
    """Every symbol of the graph by name, those inside branches too."""
    found: dict[str, Sym] = {}
    for n in graph.nodes():
        for s in node_symbols(n):
            found.setdefault(s.name, s)
    return found


def node_symbols(n: Node) -> Iterator[Sym]:
    """The symbols of a node: in its type, in its attributes and inside its branches."""
    if not subgraphs(n.op):
        yield from _own_symbols(type(n.op), n.op, n.type)
        return
    yield from symbols_of(n.type)
    for _, x in attributes(n.op):
        yield from graph_symbols(x).values() if isinstance(x, Graph) else symbols_of(x)


@lru_cache(4096)
def _own_symbols(_: type[Op], op: Op, t: Type) -> tuple[Sym, ...]:
    """Of an operator and its result: layers that are alike ask for the same ones."""
    return (*symbols_of(t), *(s for _, x in attributes(op) for s in symbols_of(x)))


def specialise(graph: Graph, dims: Mapping[str, int]) -> Graph:
    """The graph with the named symbols replaced by numbers; inputs change type, not name."""
    syms = graph_symbols(graph)
    for name, value in dims.items():
        if name in syms:
            _check(syms[name], value, dims)
    table = {s: dims[name] for name, s in syms.items() if name in dims}
    return _replace(graph, table) if table else graph


def _check(s: Sym, value: int, dims: Mapping[str, int]) -> None:
    lo = D.evaluate(s.lo, dims) if _known(s.lo, dims) else None
    hi = D.evaluate(s.hi, dims) if s.hi is not None and _known(s.hi, dims) else None
    if (lo is not None and value < lo) or (hi is not None and value > hi):
        raise Invalid(
            f"{s.name} = {value} is outside {s.lo}..{'' if s.hi is None else s.hi}",
            hint="the program was captured for sizes in this range; capture it again",
        )
    if value % s.multiple:
        raise Invalid(
            f"{s.name} = {value} is not a multiple of {s.multiple}",
            hint="the program was captured for multiples only; capture it again",
        )


def _known(x: Dim, dims: Mapping[str, int]) -> bool:
    return all(s.name in dims for s in D.symbols(x))


def _replace(graph: Graph, table: Mapping[Sym, int]) -> Graph:
    new: dict[Node, Node] = {}
    places = {}
    for n in graph.nodes():
        ins = tuple(new[x] for x in n.inputs)
        op = _in_op(n.op, table)
        new[n] = n if op is n.op and ins == n.inputs else node(op, *ins)
        if n in graph.places:
            places[new[n]] = places.get(new[n], frozenset()) | graph.places[n]
    inputs = tuple(new[n] for n in graph.inputs)
    return Graph(graph.name, inputs, tuple(new[o] for o in graph.outputs), places)


def _in_op(op: Op, table: Mapping[Sym, int]) -> Op:
    changed = {}
    for name, x in attributes(op):
        y = _in_value(x, table)
        if y is not x:
            changed[name] = y
    return dataclasses.replace(op, **changed) if changed else op


def _in_value(x: Any, table: Mapping[Sym, int]) -> Any:
    """An attribute with symbols replaced; the same object where nothing changes."""
    if isinstance(x, Int):
        return D.substitute(x, table)
    if isinstance(x, tuple):
        new = tuple(_in_value(y, table) for y in x)
        return x if all(a is b for a, b in zip(new, x, strict=True)) else new
    if isinstance(x, TensorType):
        shape = _in_value(x.shape, table)
        return x if shape is x.shape else TensorType(x.dtype, shape)
    if isinstance(x, TupleType):
        items = _in_value(x.items, table)
        return x if items is x.items else TupleType(items)
    if isinstance(x, Graph):
        new = _replace(x, table)
        return x if new == x else new
    return x
