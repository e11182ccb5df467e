"""One kernel for clusters that differ in nothing but sizes: weights of every layer are packed the
same way. Such a kernel takes its sizes as arguments.

The sizes of inputs become symbols, the same one where they are equal in all clusters, and the
operators say what follows for everything else. What comes out for the sizes of each cluster is
compared with the cluster itself: where it is another one, each has a kernel of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

from tilewright.base.errors import TilewrightError
from tilewright.graph.cluster import Cluster
from tilewright.graph.specialise import specialise
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Graph, Node, input, node
from tilewright.ir.text import attributes
from tilewright.ir.types import TensorType


@dataclass(frozen=True)
class AnySize:
    """A cluster of symbolic sizes, and what the symbols are for one that it stands for."""

    cluster: Cluster
    sizes: Mapping[str, int]


def for_any_size(clusters: Sequence[Cluster]) -> dict[Cluster, AnySize]:
    """The clusters that have a kernel in common with others of other sizes."""
    alike: dict[Hashable, list[Cluster]] = {}
    for c in clusters:
        form = _form(c)
        if form is not None:
            alike.setdefault(form, []).append(c)
    out: dict[Cluster, AnySize] = {}
    for some in alike.values():
        rows = [_numbers(c) for c in some]
        if len(set(rows)) > 1:
            out |= _joined(some, rows)
    return out


_SIZE = object()  # in the place of a number


def _form(c: Cluster) -> Hashable | None:
    """What clusters have in common that differ in sizes only; None where one is no constant. A
    size of one is no other size: an axis of it is read again and again."""
    number = {n: k for k, n in enumerate((*c.inputs, *c.nodes))}
    if not all(isinstance(d, int) for n in c.inputs for d in n.ttype.shape):
        return None
    return (
        tuple((n.dtype, tuple(_plain(d) for d in n.ttype.shape)) for n in c.inputs),
        tuple(
            (type(n.op), *(_plain(x) for _, x in attributes(n.op)), *(number[x] for x in n.inputs))
            for n in c.nodes
        ),
        tuple(number[o] for o in c.outputs),
    )


def _plain(x: Any) -> Any:
    """An attribute without its sizes."""
    if isinstance(x, tuple):
        return tuple(map(_plain, x))
    return _SIZE if _is_size(x) else x


def _is_size(x: Any) -> bool:
    return type(x) is int and x > 1


def _numbers(c: Cluster) -> tuple[int, ...]:
    """The sizes, in the order of the form: those of inputs, then attributes."""
    shapes = [d for n in c.inputs for d in n.ttype.shape]
    found = [x for n in c.nodes for _, a in attributes(n.op) for x in _flat(a)]
    return tuple(x for x in (*shapes, *found) if isinstance(x, int) and _is_size(x))


def _flat(x: Any) -> Iterator[Any]:
    if isinstance(x, tuple):
        for y in x:
            yield from _flat(y)
    else:
        yield x


def _joined(some: list[Cluster], rows: list[tuple[int, ...]]) -> dict[Cluster, AnySize]:
    columns = list(zip(*rows, strict=True))
    first, shapes = some[0], sum(map(_is_size, _input_sizes(some[0])))
    names: dict[tuple[int, ...], str] = {}
    for column in columns[:shapes]:
        if len(set(column)) > 1:
            names.setdefault(column, f"n{len(names)}")
    known: list[Dim] = []
    for column in columns:
        if len(set(column)) == 1:
            known.append(column[0])
        elif column in names:
            # What divides all of them is no part of the symbol: vectors then leave no rest over.
            common = gcd(*column)
            known.append(common * D.sym(names[column], 1 if common > 1 else 2))
        else:
            return {}  # it depends on others in a way that no operator expresses
    try:
        general = _rebuilt(first, iter(known))
        out: dict[Cluster, AnySize] = {}
        done: dict[tuple[int, ...], AnySize] = {}
        for k, c in enumerate(some):
            if rows[k] not in done:
                sizes = {name: column[k] // gcd(*column) for column, name in names.items()}
                own = _graph(_rebuilt(c, iter(rows[k])))
                if specialise(_graph(general), sizes).outputs != own.outputs:
                    return {}
                done[rows[k]] = AnySize(general, sizes)
            out[c] = done[rows[k]]
    except TilewrightError:  # an operator that takes constant sizes only
        return {}
    return out


def _input_sizes(c: Cluster) -> list[Any]:
    return [d for n in c.inputs for d in n.ttype.shape]


def _rebuilt(c: Cluster, sizes: Iterator[Dim]) -> Cluster:
    """The cluster with other sizes, from inputs of its own on."""
    new: dict[Node, Node] = {}
    for k, n in enumerate(c.inputs):
        shape = tuple(_given(d, sizes) for d in n.ttype.shape)
        new[n] = input(f"x{k}", TensorType(n.dtype, shape))
    for n in c.nodes:
        changed = {name: _given(x, sizes) for name, x in attributes(n.op)}
        new[n] = node(dataclasses.replace(n.op, **changed), *(new[x] for x in n.inputs))
    nodes, inputs, outputs = (tuple(new[n] for n in ns) for ns in (c.nodes, c.inputs, c.outputs))
    anchor = None if c.anchor is None else new[c.anchor]
    return Cluster(nodes, inputs, outputs, c.kind, anchor)


def _given(x: Any, sizes: Iterator[Dim]) -> Any:
    """An attribute with the next sizes in it."""
    if isinstance(x, tuple):
        return tuple(_given(y, sizes) for y in x)
    return next(sizes) if _is_size(x) else x


def _graph(c: Cluster) -> Graph:
    return Graph("cluster", c.inputs, c.outputs)
