"""Equalities as rules of the compiler's graphs, in both directions.

An equality is found with tensors of some rank; a graph has others, with more axes in front. So the
equality is written for the ranks at hand, with axes counted from the end, and proved for them, once
for each. Then operators match by name, and their attributes must be those of the equality.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node, node, topological
from tilewright.ir.pattern import Apply, Match, Pattern, Rule, Var, filled_value
from tilewright.ir.types import TupleType
from tilewright.superopt.blocks import Kind, Sizes
from tilewright.superopt.terms import Equality, Leaf, Term, Tree, kind_of, leaves
from tilewright.superopt.vocabulary import Bound, Instance

Ranks = tuple[int, ...]  # axes in front of each leaf of an equality


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

    def apply(self, m: Match) -> Node | None:
        bound = {x.name: m.bindings[x.name] for x in self.equality.leaves}
        dtype = m.root.dtype
        if not dtype.is_float or any(n.dtype is not dtype for n in bound.values()):
            return None
        ranks = (bound[x.name].rank - len(x.kind) for x in self.equality.leaves)
        e = ranked(self.equality, tuple(ranks))
        if e is None:
            return None
        sizes = sizes_of(e, bound)
        old, new = (e.right, e.left) if self.back else (e.left, e.right)
        if sizes is None or not fits(old, iter(m.nodes), sizes):
            return None
        return _built(new, bound, sizes)


def sizes_of(e: Equality, bound: dict[str, Node]) -> Sizes | None:
    """What the names of sizes stand for; None where a tensor is not of its leaf's kind."""
    named: dict[str, Dim] = {}
    for x in e.leaves:
        n = bound[x.name]
        if x.positive and not _never_negative(n):
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
def ranked(e: Equality, ranks: Ranks) -> Equality | None:
    """The equality with so many axes in front of its leaves; None where it has no meaning then, or
    is not proved."""
    in_front = dict(zip(e.leaves, ranks, strict=True))
    if any(r < 0 or (r and not x.kind) for x, r in in_front.items()):
        return None
    try:
        made = Equality(*(_with_axes(side, in_front)[0] for side in (e.left, e.right)))
    except Invalid:
        return None
    kinds = kind_of(made.left), kind_of(made.right)
    if None in kinds or kinds[0] != kinds[1] or _has_several(made):
        return None
    return made if not any(ranks) or made.is_proved() else None


def _with_axes(t: Tree, in_front: dict[Leaf, int]) -> tuple[Tree, int]:
    """The tree over leaves with more axes, and how many more it has."""
    if isinstance(t, Leaf):
        more = in_front[t]
        return replace(t, kind=(*(f"in front {more - k}" for k in range(more)), *t.kind)), more
    done = [_with_axes(x, in_front) for x in t.operands]
    instance = _shifted(t.instance, done[0][1])
    return Term(instance, tuple(x for x, _ in done)), max(more for _, more in done)


def _shifted(x: Instance, more: int) -> Instance:
    """The operator on a first operand with more axes in front."""
    if not more:
        return x
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
