"""A program as one sum of products of its inputs' elements, at a position of its result.

Such a program is a polynomial at each position. `Sums` has what decides which one: the conditions
on positions, and the index functions by which inputs are read. `values` computes it modulo a prime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from tilewright.base.errors import Unsupported
from tilewright.base.traverse import operands_first
from tilewright.ir import dim as D
from tilewright.ir.expr import Const, Fn, Index, Load, Reduce, Value, extent, walk
from tilewright.ir.interpret import Evaluator
from tilewright.ir.node import Input, Node, node, topological
from tilewright.ir.node import input as input_node
from tilewright.ir.positions import static
from tilewright.ir.types import TensorType, TupleType, i64
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
            found[v] = int(isinstance(v, Load)) + (sum(below) if together else max(below, default=0))
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
    whole: dict[Node, Node] = {}
    for n in topological(programs):
        if isinstance(n.op, Input):
            whole[n] = input_node(n.op.label, TensorType(i64, static(n.shape)))
        elif not n.inputs:
            raise Unsupported(f"{n.op.name} is a leaf, and not an input")
        else:
            whole[n] = node(n.op, *(whole[x] for x in n.inputs))
    elements = Elements()
    out = []
    for n in programs:
        if isinstance(n.type, TupleType):
            raise Unsupported("it has several results")
        shape = static(n.shape)
        index = [D.var(f"@{k}", d) for k, d in enumerate(shape)]
        # An axis of one element is no symbol: its index is 0.
        out.append(Sums(tuple(f"@{k}" for k in range(len(shape))), shape, elements.at(whole[n], index)))
    return out


def drawn(programs: Sequence[Node], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random remainders for all inputs of programs."""
    inputs = [n for n in topological(programs) if isinstance(n.op, Input)]
    return {n.op.label: rng.integers(0, PRIME, static(n.shape)) for n in inputs}
