"""Equalities as rules of the compiler's graphs, in both directions.

An equality is found with tensors of some shapes. A graph has others: more axes in front, vectors
that are added to every row, full tensors in the place of scalars. So the equality is written for the
shapes at hand, with axes counted from the end, and proved for them, once for each way in which their
sizes agree. Then operators match by name, and their attributes must be those of the equality.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import isfinite
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node, node, topological
from tilewright.ir.pattern import Apply, Match, Pattern, Rule, Var, filled_value
from tilewright.ir.types import TupleType
from tilewright.rewrites.proofs.equality import nodes_equal
from tilewright.superopt.blocks import Kind, Sizes
from tilewright.superopt.terms import Equality, Leaf, Term, Tree, kind_of, leaves
from tilewright.superopt.vocabulary import Bound, Instance


def rules_of(e: Equality, name: str) -> list[Rule]:
    """From left to right and back, where a side has all leaves of the other."""
    sides = ((e.left, e.right, name), (e.right, e.left, f"{name}, back"))
    return [
        Rule(called, _pattern(a), _Direction(e, back).apply, changes="rounding", dtypes="f")
        for back, (a, b, called) in enumerate(sides)
        if isinstance(a, Term) and set(leaves(b)) <= set(leaves(a))
    ]


def _pattern(t: Tree) -> Pattern:
    if isinstance(t, Leaf):
        return Var(t.name)
    return Apply(t.instance.name, tuple(map(_pattern, t.operands)))


@dataclass(frozen=True)
class _Direction:
    equality: Equality
    back: int

    @cached_property
    def _moves(self) -> bool:
        """Does every element stay the same number, moved only?"""
        sides = self.equality.nodes(Sizes.symbolic(self.equality.symbols))
        return nodes_equal(*sides, "bits")

    def apply(self, m: Match) -> Node | None:
        bound = {x.name: m.bindings[x.name] for x in self.equality.leaves}
        dtype = m.root.dtype
        if not dtype.is_float or any(n.dtype is not dtype for n in bound.values()):
            return None
        # What is rounded to 16 bits on its way could leave their range on another one.
        if dtype.bits < 32 and not self._moves:
            return None
        if any((v := filled_value(n)) is not None and not isfinite(v) for n in bound.values()):
            return None
        found = fitted(self.equality, bound)
        if found is None:
            return None
        e, sizes = found
        old, new = (e.right, e.left) if self.back else (e.left, e.right)
        if not fits(old, iter(m.nodes), sizes):
            return None
        return _built(new, bound, sizes)


def fitted(e: Equality, bound: Mapping[str, Node]) -> tuple[Equality, Sizes] | None:
    """The equality as it is of these tensors, and their sizes; None where it does not hold."""
    if any(x.positive and not _never_negative(bound[x.name]) for x in e.leaves):
        return None
    sizes = _sizes_of(e, bound)
    if sizes is not None:
        return e, sizes
    names: dict[Dim, str] = {}
    kinds: list[Kind] = []
    for x in e.leaves:
        shape = bound[x.name].shape
        kinds.append(tuple(_block(d, names) for d in shape))
    made = at_kinds(e, tuple(kinds))
    return None if made is None else (made, Sizes({name: d for d, name in names.items()}))


def _block(d: Dim, names: dict[Dim, str]) -> int | str:
    """Axes of one element are repeated; others are alike where their sizes are."""
    return d if isinstance(d, int) and d <= 1 else names.setdefault(d, f"n{len(names)}")


def _sizes_of(e: Equality, bound: Mapping[str, Node]) -> Sizes | None:
    """What the names of sizes stand for; None where a tensor is not of its leaf's kind."""
    named: dict[str, Dim] = {}
    for x in e.leaves:
        n = bound[x.name]
        if n.rank != len(x.kind):
            return None
        for block, d in zip(x.kind, n.shape, strict=True):
            want = named.setdefault(block, d) if isinstance(block, str) else block
            if isinstance(want, tuple) or not D.known_eq(want, d):
                return None
    return Sizes(named)


def _never_negative(n: Node) -> bool:
    value = filled_value(n)
    return value is not None and value >= 0


def _kinds(t: Term) -> list[Kind]:
    return [k for x in t.operands if (k := kind_of(x)) is not None]


def fits(t: Tree, matched: Iterator[Node], sizes: Sizes) -> bool:
    """Have the operators that matched, the root first, the attributes of the term's?"""
    if isinstance(t, Leaf):
        return True
    n = next(matched)
    try:
        same = n.op == t.instance.op(sizes, _kinds(t))
    except Invalid:
        return False
    return same and all(fits(x, matched, sizes) for x in t.operands)


def _built(t: Tree, bound: dict[str, Node], sizes: Sizes) -> Node:
    if isinstance(t, Leaf):
        return bound[t.name]
    operands = (_built(x, bound, sizes) for x in t.operands)
    return node(t.instance.op(sizes, _kinds(t)), *operands)


@cache
def at_kinds(e: Equality, kinds: tuple[Kind, ...]) -> Equality | None:
    """The equality over leaves of these kinds; None where it has no meaning then, or is not
    proved."""
    table = {x: replace(x, kind=k) for x, k in zip(e.leaves, kinds, strict=True)}
    try:
        made = Equality(_over(e.left, table), _over(e.right, table))
        found = kind_of(made.left), kind_of(made.right)
        if None in found or found[0] != found[1] or _has_several(made):
            return None
        return made if made.is_proved() else None
    except Invalid:
        return None


def _over(t: Tree, table: Mapping[Leaf, Leaf]) -> Tree:
    """The tree over other leaves. Axes that an operator names are counted from the end."""
    if isinstance(t, Leaf):
        return table[t]
    operands = tuple(_over(x, table) for x in t.operands)
    old, new = kind_of(t.operands[0]), kind_of(operands[0])
    if old is None or new is None:
        raise Invalid(f"{t} has no meaning of these operands")
    return Term(_shifted(t.instance, len(new) - len(old)), operands)


def _shifted(x: Instance, more: int) -> Instance:
    """The operator on a first operand with more axes in front."""
    if not more or not x.attributes:
        return x
    if more < 0:
        raise Invalid(f"{x.name} names axes that are not there")
    return Instance(x.name, tuple((k, _moved(k, v, more)) for k, v in x.attributes))


def _moved(name: str, value: Any, more: int) -> Any:
    if isinstance(value, Bound):
        return replace(value, axis=value.axis + more)
    match name:
        case "axis":
            return value + more
        case "axes":
            return tuple(k + more for k in value)
        case "perm":
            return (*range(more), *(k + more for k in value))
        case "lo" | "hi":
            return (*(0,) * more, *value)
        case "keepdims":
            return value
    raise Invalid(f"{name} has no meaning with more axes")


def _has_several(e: Equality) -> bool:
    """Has one of its operators several results?"""
    nodes = topological(e.nodes(Sizes.symbolic(e.symbols)))
    return any(isinstance(n.type, TupleType) for n in nodes)
