"""A program as one sum of products of its inputs' elements, at a position of its result.

Such a program is a polynomial at each position. `Sums` has what decides which one: the conditions
on positions, and the index functions by which inputs are read. `values` computes it modulo a prime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid, Unsupported
from tilewright.base.traverse import operands_first
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import (
    Const,
    Fn,
    Index,
    Load,
    Reduce,
    Value,
    const,
    extent,
    make_reduce,
    rewrite,
    walk,
)
from tilewright.ir.interpret import Evaluator
from tilewright.ir.node import Input, Node, node, topological
from tilewright.ir.node import input as input_node
from tilewright.ir.positions import static
from tilewright.ir.types import TensorType, i64
from tilewright.rewrites.proofs.element import Elements

PRIME = (1 << 31) - 1  # products of two remainders fit 64 bits
# Numbers that are computed at a time: positions times elements of a sum.
MOST = 1 << 20

_LINEAR = ("add", "sub", "neg", "cast")
_COMPARED = ("lt", "le", "gt", "ge", "eq", "ne", "and", "or", "xor", "not")


@dataclass(frozen=True, eq=False)
class Sums:
    """The element of a result at a position, whose coordinates have the names `at`."""

    at: tuple[str, ...]
    shape: tuple[int, ...]
    value: Value

    @cached_property
    def _parts(self) -> tuple[list[Value], list[Load]]:
        conditions: dict[Value, None] = {}
        reads: dict[Load, None] = {}
        stack, seen = [self.value], set()
        while stack:
            v = stack.pop()
            if v in seen:
                continue
            seen.add(v)
            if isinstance(v, Load):
                if any(True for i in v.index for _ in D.data_values(i)):
                    raise Unsupported("it reads where data says")
                reads[v] = None
            elif isinstance(v, Fn) and v.name == "select":
                _of_positions(v.args[0])
                conditions[v.args[0]] = None
                stack += v.args[1:]
            elif isinstance(v, Fn) and (v.name in _LINEAR or v.name == "mul"):
                stack += v.args
            elif isinstance(v, Reduce) and v.combine == "add":
                if not all(isinstance(extent(a), int) for a in v.axes):
                    raise Unsupported("how long a sum is depends on where it is")
                stack += v.args
            elif not isinstance(v, Const):
                what = v.name if isinstance(v, Fn) else type(v).__name__.lower()
                raise Unsupported(f"{what} is no sum of products")
        return list(conditions), list(reads)

    @property
    def conditions(self) -> list[Value]:
        """On positions of the result and of sums: what each product is, or whether it is there."""
        return self._parts[0]

    @property
    def reads(self) -> list[Load]:
        return self._parts[1]

    @cached_property
    def degree(self) -> int:
        """The most elements of inputs in one product."""
        found: dict[Value, int] = {}
        for v in operands_first(self.value, lambda x: x.args, found):
            below = [found[x] for x in v.args]
            together = isinstance(v, Fn) and v.name == "mul"
            found[v] = int(isinstance(v, Load)) + (
                sum(below) if together else max(below, default=0)
            )
        return found[self.value]

    @cached_property
    def terms(self) -> int:
        """Elements of the longest sum."""
        sums = (v for v in walk(self.value) if isinstance(v, Reduce))
        return max((prod(static([extent(a) for a in v.axes])) for v in sums), default=1)

    def values(self, memory: Mapping[str, np.ndarray], positions: np.ndarray) -> np.ndarray:
        """At each row of positions, modulo the prime; `memory` has remainders, by input."""
        step = max(1, MOST // self.terms)
        out = np.empty(len(positions), np.int64)
        for k in range(0, len(positions), step):
            some = positions[k : k + step]
            grid = {name: some[:, j] for j, name in enumerate(self.at)}
            out[k : k + step] = _Remainders(memory, {}, grid)(self.value)
        return out


def _of_positions(condition: Value) -> None:
    for v in walk(condition):
        if not (isinstance(v, (Const, Index)) or (isinstance(v, Fn) and v.name in _COMPARED)):
            raise Unsupported("a condition depends on more than positions")


class _Remainders(Evaluator):
    """Whole numbers modulo the prime: products are below 2^62, and a sum of 2^32 is below 2^63."""

    def _eval(self, x: Any) -> Any:
        found, v = super()._eval(x), x[0]
        if isinstance(v, Reduce) or (isinstance(v, Fn) and not v.dtype.is_bool):
            return found % PRIME
        return found


def sums_of(programs: Sequence[Node]) -> list[Sums]:
    """Programs over the same inputs; Unsupported where one is no sum of products."""
    return _without_channels([_element(n) for n in programs])


@lru_cache(maxsize=16)
def _element(program: Node) -> Sums:
    whole: dict[Node, Node] = {}
    for n in topological((program,)):
        if isinstance(n.op, Input):
            whole[n] = input_node(n.op.label, TensorType(i64, static(n.shape)))
        elif not n.inputs:
            raise Unsupported(f"{n.op.name} is a leaf, and not an input")
        else:
            try:
                whole[n] = node(n.op, *(whole[x] for x in n.inputs))
            except Invalid:  # it is not defined on whole numbers
                raise Unsupported(f"{n.op.name} is no sum of products") from None
        if not isinstance(n.type, TensorType):
            raise Unsupported(f"{n.op.name} has several results")
        if not n.dtype.is_float or whole[n].dtype is not i64:
            raise Unsupported(f"{n.op.name} computes {n.dtype.name}: numbers are only floats here")
    shape = static(program.shape)
    names = tuple(f"@{k}" for k in range(len(shape)))
    index = [D.var(name, d) for name, d in zip(names, shape, strict=True)]
    value = Elements().at(whole[program], index)
    return Sums(names, shape, rewrite(value, on_reduce=_if_any))


def _if_any(r: Reduce) -> Value:
    """0, where all products of a sum have a factor 0, such as what is read beyond all edges."""
    nothing: dict[Value, bool] = {}
    for v in operands_first(r.body, lambda x: x.args, nothing):
        if isinstance(v, Fn) and v.name == "mul":
            nothing[v] = any(nothing[x] for x in v.args)
        elif isinstance(v, Fn) and v.name == "select":
            nothing[v] = all(nothing[x] for x in v.args[1:])
        elif isinstance(v, Fn) and v.name in _LINEAR:
            nothing[v] = all(nothing[x] for x in v.args)
        else:
            nothing[v] = isinstance(v, Const) and v.value == 0
    return const(0, r.dtype) if nothing[r.body] else r


def drawn(
    programs: Sequence[Node], sums: Sequence[Sums], rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Random remainders for all inputs of programs, as far as they are read."""
    read: dict[str, np.ndarray] = {}
    for n in topological(programs):
        if isinstance(n.op, Input):
            read[n.op.label] = np.array(static(n.shape), int)
    for name, shape in read.items():
        of_it = [r.index for x in sums for r in x.reads if r.source == name]
        for k in range(len(shape)):
            if all(isinstance(i[k], int) and i[k] == 0 for i in of_it):
                shape[k] = min(shape[k], 1)
    return {name: rng.integers(0, PRIME, shape) for name, shape in read.items()}


# ---- sums over channels


Place = tuple[str, int]  # an axis of an input


def _without_channels(sums: list[Sums]) -> list[Sums]:
    """The same programs with one channel, where that says as much.

    Let an axis of inputs be read in all programs by nothing but the index of a sum over all of it.
    Then each program is a sum of one polynomial, moved along that axis. Of different channels no
    product is the same, so programs agree where those polynomials do.
    """
    places: dict[Sym, set[Place]] = {}
    at: dict[Place, set[Dim]] = {}
    barred: set[Sym] = set()
    axes = {a: r for x in sums for r in walk(x.value) if isinstance(r, Reduce) for a in r.axes}
    for x in sums:
        for c in x.conditions:
            barred |= c.symbols()
        for read in x.reads:
            for k, i in enumerate(read.index):
                place = str(read.source), k
                at.setdefault(place, set()).add(i)
                for s in D.symbols(i):
                    places.setdefault(s, set()).add(place)
                    if not D.is_sym(i):
                        barred.add(s)
    once: set[Sym] = set()
    for s, mine in places.items():
        indices = {i for p in mine for i in at[p]}
        if s not in axes or not all(D.is_sym(i) for i in indices):
            continue
        like = {D.the_sym(i) for i in indices}
        alike = all(places[t] == mine and extent(t) == extent(s) for t in like)
        if alike and like <= axes.keys() and like.isdisjoint(barred):
            inputs = {name for name, _ in mine}
            if all(_reads_one(axes[t].body, inputs) for t in like):
                once |= like
    return [Sums(x.at, x.shape, _at_first(x.value, once)) for x in sums]


def _reads_one(body: Value, inputs: set[str]) -> bool:
    """Has each product of a sum an element of these inputs?"""
    found: dict[Value, bool] = {}
    for v in operands_first(body, lambda x: x.args, found):
        if isinstance(v, Const):
            found[v] = v.value == 0
        elif isinstance(v, Load):
            found[v] = v.source in inputs
        elif isinstance(v, Fn) and v.name == "mul":
            found[v] = any(found[x] for x in v.args)
        else:
            choice = isinstance(v, Fn) and v.name == "select"
            found[v] = all(found[x] for x in (v.args[1:] if choice else v.args))
    return found[body]


def _at_first(v: Value, once: set[Sym]) -> Value:
    """Without sums over some axes: at the first position of each."""

    def one(r: Reduce) -> Value:
        left = tuple(a for a in r.axes if a not in once)
        if len(left) == len(r.axes):
            return r
        body = r.body.substitute(dict.fromkeys(once.intersection(r.axes), 0))
        return make_reduce(r.combine, left, body) if left else body

    return rewrite(v, on_reduce=one) if once else v
