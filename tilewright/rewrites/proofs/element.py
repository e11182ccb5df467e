"""A graph as one value: the element of a node at a symbolic index, over elements of the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, product
from math import prod

from tilewright.base.errors import Unsupported
from tilewright.ir import dim as D
from tilewright.ir.combine import identity
from tilewright.ir.dim import Dim, Int, Sym
from tilewright.ir.expr import (
    Load,
    Reduce,
    Tensor,
    Value,
    const,
    extent,
    fn,
    load,
    make_reduce,
    rewrite,
    select,
)
from tilewright.ir.node import Constant, Input, Item, Node
from tilewright.ir.operator import definition, expand, is_composed
from tilewright.ir.pattern import filled_value
from tilewright.ops.control import Cond
from tilewright.rewrites.control import inline

_fresh = count()


def fresh(size: Dim) -> Int:
    """An index over `size` values, under a name that nothing else has."""
    return D.var(f"_{next(_fresh)}", size)


class Elements:
    """Composes definitions. Inputs, and constants of more than one number, are read by a name that
    is their own: one instance serves both sides of a comparison. Reductions of up to `written_out`
    terms are the operations on these, in order."""

    def __init__(self, written_out: int = 1) -> None:
        self.written_out = written_out
        self.names: dict[Node, str] = {}
        self.branches: dict[Node, tuple[tuple[Node, ...], tuple[Node, ...]]] = {}

    def at(self, n: Node, index: Sequence[Dim]) -> Value:
        """The element of n at an index."""
        op = n.op
        if isinstance(op, Input):
            return load(self._name(n, op.label), index, n.dtype)
        if isinstance(op, Constant):
            value = filled_value(n)
            if value is None:
                return load(self._name(n, "constant"), index, n.dtype)
            return const(value, n.dtype)
        maker, k = (n.inputs[0], op.k) if isinstance(op, Item) else (n, 0)
        if maker.op.random:
            raise Unsupported(f"{maker.op.name} is random: it has no normal form")
        if isinstance(maker.op, Cond):
            return self._branch(maker, k, index)
        if is_composed(maker.op):
            return self.at(expand(n), index)
        if hasattr(maker.op, "interpret"):
            raise Unsupported(f"{maker.op.name} has no normal form")
        places, outs = definition(maker.op, tuple(x.ttype for x in maker.inputs))
        return self._defined(outs[k], index, dict(zip(places, maker.inputs, strict=True)))

    def _name(self, n: Node, label: str) -> str:
        if n not in self.names:
            taken = set(self.names.values())
            self.names[n] = label if label not in taken else f"{label}#{len(taken)}"
        return self.names[n]

    def _branch(self, n: Node, k: int, index: Sequence[Dim]) -> Value:
        """Control flow is a choice between what its branches compute."""
        assert isinstance(n.op, Cond)
        if n not in self.branches:
            graphs = (n.op.then, n.op.other)
            then, other = (inline(g, n.inputs[1:]) for g in graphs)
            self.branches[n] = then, other
        then, other = self.branches[n]
        return select(self.at(n.inputs[0], ()), self.at(then[k], index), self.at(other[k], index))

    def _defined(self, t: Tensor, index: Sequence[Dim], inputs: dict[Tensor, Node]) -> Value:
        if t in inputs:
            return self.at(inputs[t], index)
        if t.kind != "compute" or t.body is None:
            raise Unsupported(f"a {t.kind} has no normal form")

        def read(x: Load) -> Value:
            assert isinstance(x.source, Tensor)
            return self._defined(x.source, x.index, inputs)

        table = dict(zip(t.axes, index, strict=True))
        return rewrite(renamed(t.body, self.written_out), table, on_load=read)


def renamed(v: Value, written_out: int = 1) -> Value:
    """Reductions with fresh index names, so that substitution captures no variable, and without
    axes of one element; those of few terms written out."""
    return rewrite(v, on_reduce=lambda r: _renamed(r, written_out))


def _renamed(r: Reduce, written_out: int) -> Value:
    sizes = [extent(a) for a in r.axes]
    if isinstance(r.combine, str) and all(isinstance(n, int) for n in sizes):
        known = [int(D.bounds(n)[0]) for n in sizes]
        if prod(known) <= written_out:
            return _in_order(r, known)
    table: dict[Sym, Dim] = {}
    for a in r.axes:
        size = D.substitute(extent(a), table)
        table[a] = 0 if D.known_eq(size, 1) else fresh(size)
    axes = tuple(D.the_sym(table[a]) for a in r.axes if isinstance(table[a], Int))
    body = r.body.substitute(table)
    if axes or not isinstance(r.combine, str):
        return make_reduce(r.combine, axes, body)
    # It starts from the neutral element: +0 and -0 are +0.
    return fn(r.combine, identity(r.combine, r.dtype), body)


def _in_order(r: Reduce, sizes: Sequence[int]) -> Value:
    """One term after the other, from the neutral element."""
    assert isinstance(r.combine, str)
    total: Value = identity(r.combine, r.dtype)
    for places in product(*map(range, sizes)):
        total = fn(r.combine, total, r.body.substitute(dict(zip(r.axes, places, strict=True))))
    return total
