"""Equalities as rules of the compiler's graphs, in both directions.

An equality is found with tensors of some shapes. A graph has others: more axes in front, vectors
that are added to every row, full tensors in the place of scalars. So the equality is written for
the shapes at hand, with axes counted from the end, and with the strides and paddings at hand, and
proved for them, once for each way in which sizes agree. Then operators match by name, and their
other attributes must be those of the equality.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from math import isfinite
from typing import Any

from tilewright.base.errors import Invalid, Unsupported
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Item, Node, item, node, topological
from tilewright.ir.operator import OPERATORS
from tilewright.ir.pattern import Apply, Filled, Match, Pattern, Rest, Rule, Var, filled_value
from tilewright.ir.types import TupleType
from tilewright.rewrites.proofs.equality import nodes_equal
from tilewright.superopt.blocks import Block, Kind, Made, Sizes, Times
from tilewright.superopt.blocks import names as names_of
from tilewright.superopt.points import refuted
from tilewright.superopt.terms import Equality, Leaf, Term, Tree, as_node, kind_of, leaves
from tilewright.superopt.vocabulary import Bound, Instance, Reshaped

# Attributes that an equality found with one value may hold of with others.
GROUPS = "groups"
SETTINGS = ("stride", "padding", "dilation", "kernel", "divisor", "lo", "hi", GROUPS)

BACK = ", back"  # after the name of a rule from right to left

Setting = tuple[str, Any]  # an attribute and the value that an equality has
Settings = tuple[tuple[Setting, Any], ...]  # and another value in its place


def rules_of(e: Equality, name: str) -> list[Rule]:
    """From left to right and back, where a side has all leaves of the other."""
    sides = ((e.left, e.right, name), (e.right, e.left, f"{name}{BACK}"))
    several = _with_several(e)
    return [
        Rule(
            called,
            _pattern(a, several),
            _Direction(e, back).apply,
            changes="rounding",
            dtypes="f",
            at=_along_its_axes(a),
        )
        for back, (a, b, called) in enumerate(sides)
        if isinstance(a, Term) and a.operands and set(leaves(b)) <= set(leaves(a))
    ]


def of_several(rule: Rule) -> Rule | None:
    """A rule of two tensors put together, for more: it is applied to neighbours as long as it holds
    of them. Tensors may be put together in any order of pairs."""
    match rule.left:
        case Apply("concat", (Apply(one), Apply(other))) if one == other:
            pass
        case _:
            return None

    def folded(m: Match) -> Node | None:
        if len(m.parts) < 3:
            return None
        out = list(m.parts[:1])
        for n in m.parts[1:]:
            found = rule.apply(node(m.root.op, out[-1], n))
            out[-1:] = (out[-1], n) if found is None else found[:1]
        if len(out) == len(m.parts):
            return None
        return node(m.root.op, *out) if len(out) > 1 else out[0]

    several = Apply("concat", (Rest("parts"),))
    return replace(rule, name=f"{rule.name}, of several", left=several, right=folded)


def _along_its_axes(t: Term) -> Callable[[Node], bool] | None:
    """Has an operator the axes of the term's, counted from the end?"""
    named = [(k, v) for k, v in t.instance.attributes if k in ("axis", "axes", "perm")]
    kind = kind_of(t.operands[0]) if named else None
    if kind is None or t.instance.name == Item.name:
        return None

    def along(n: Node) -> bool:
        more = n.inputs[0].rank - len(kind)
        return more >= 0 and all(getattr(n.op, k) == _moved(k, v, more) for k, v in named)

    return along


def _pattern(t: Tree, several: set[str]) -> Pattern:
    if isinstance(t, Leaf):
        return Var(t.name)
    if not t.operands:
        return Filled(dict(t.instance.attributes)["value"])
    made = Apply(t.instance.name, tuple(_pattern(x, several) for x in t.operands))
    return Apply(Item.name, (made,)) if t.instance.name in several else made


def _with_several(e: Equality) -> set[str]:
    """Operators with several results, of which equalities mean the first."""
    nodes = topological(e.nodes(Sizes.symbolic(e.symbols)))
    return {n.op.name for n in nodes if isinstance(n.type, TupleType)}


@dataclass(frozen=True)
class _Direction:
    equality: Equality
    back: int

    def apply(self, m: Match) -> Node | None:
        bound = {x.name: m.bindings[x.name] for x in self.equality.leaves}
        found = holding(self.equality, self.back, m.nodes, bound)
        if found is None:
            return None
        e, sizes = found
        old, new = (e.right, e.left) if self.back else (e.left, e.right)
        if not fits(old, iter(m.nodes), sizes):
            return None
        return _built(new, bound, sizes)


@cache
def _moves(e: Equality) -> bool:
    """Does every element stay the same number, moved only?"""
    return nodes_equal(*e.nodes(Sizes.symbolic(e.symbols)), "bits")


def holding(
    e: Equality, back: int, matched: Sequence[Node], bound: Mapping[str, Node]
) -> tuple[Equality, Sizes] | None:
    """What `fitted` gives, where floats can follow: of one dtype, and finite."""
    dtype = matched[0].dtype
    if not dtype.is_float or any(n.dtype is not dtype for n in bound.values()):
        return None
    # What is rounded to 16 bits on its way could leave their range on another one.
    if dtype.bits < 32 and not _moves(e):
        return None
    if any((v := filled_value(n)) is not None and not isfinite(v) for n in bound.values()):
        return None
    return fitted(e, back, matched, bound)


def fitted(
    e: Equality, back: int, matched: Sequence[Node], bound: Mapping[str, Node]
) -> tuple[Equality, Sizes] | None:
    """The equality as it is of these tensors and of the operators that its left side (or, `back`,
    its right side) matched, and the tensors' sizes; None where it does not hold."""
    if any(x.positive and not _never_negative(bound[x.name]) for x in e.leaves):
        return None
    settings: dict[Setting, Any] = {}
    if not _set(e.right if back else e.left, iter(matched), settings):
        return None
    others = tuple((k, v) for k, v in settings.items() if k[1] != v)
    parts: dict[str, Dim] = {}
    if any(isinstance(b, Times) for x in e.leaves for b in x.kind):
        _part_sizes(e.right if back else e.left, iter(matched), parts)
    sizes = None if others else _sizes_of(e, bound, parts)
    if sizes is not None:
        return e, sizes
    names: dict[Dim, str] = {}
    if any(name == GROUPS for (name, _), _ in others):  # how channels divide decides: by numbers
        kinds = tuple(bound[x.name].shape for x in e.leaves)
        if not all(isinstance(d, int) for k in kinds for d in k):
            return None
    else:
        kinds = tuple(_kind_at(x, bound[x.name], names, parts) for x in e.leaves)
    made = at_kinds(e, kinds, others)
    return None if made is None else (made, Sizes({name: d for d, name in names.items()}))


def _set(t: Tree, matched: Iterator[Node], settings: dict[Setting, Any]) -> bool:
    """Notes what operators have in the places of the term's settings. Where the term has the same
    twice, so must they."""
    if isinstance(t, Leaf) or not t.operands:
        return True
    n = _main(matched)
    if n is None:
        return False
    for name, value in _with_groups(t.instance):
        if name in SETTINGS:
            got = getattr(n.op, name)
            if settings.setdefault((name, value), got) != got:
                return False
    return all(_set(x, matched, settings) for x in t.operands)


@cache
def _with_groups(x: Instance) -> tuple[Setting, ...]:
    """Its attributes; where it could have groups and names none, all channels are one."""
    one = ((GROUPS, 1),) if any(f.name == GROUPS for f in fields(OPERATORS[x.name])) else ()
    return x.attributes if GROUPS in dict(x.attributes) else x.attributes + one


def _main(matched: Iterator[Node]) -> Node | None:
    """The next operator; of one with several results only the first counts."""
    n = next(matched)
    if isinstance(n.op, Item):
        return None if n.op.k else next(matched)
    return n


def _part_sizes(t: Tree, matched: Iterator[Node], parts: dict[str, Dim]) -> bool:
    """Notes what names of sizes stand for by the results of operators that matched: where an axis
    is two, its own size does not say it."""
    if isinstance(t, Leaf) or not t.operands:
        return True
    n, kind = _main(matched), kind_of(t)
    if n is None or kind is None:
        return False
    for b, d in zip(kind[::-1], n.shape[::-1]):
        if isinstance(b, str):
            parts.setdefault(b, d)
    return all(_part_sizes(x, matched, parts) for x in t.operands)


def _kind_at(x: Leaf, n: Node, names: dict[Dim, str], parts: Mapping[str, Dim]) -> Kind:
    """Axes of one element are repeated, and windows stay numbers; others are alike where their
    sizes are."""
    own = (*("" for _ in range(n.rank - len(x.kind))), *x.kind[max(0, len(x.kind) - n.rank) :])

    def block(b: Block, d: Dim) -> Block:
        if isinstance(d, int) and (d <= 1 or isinstance(b, int)):
            return d
        if isinstance(b, Times) and names_of(b) <= set(parts):
            first, second = (Sizes(parts).of(y) for y in (b.first, b.second))
            if D.known_eq(first * second, d):
                return Times.of(block(b.first, first), block(b.second, second))
        return names.setdefault(d, f"n{len(names)}")

    return tuple(block(b, d) for b, d in zip(own, n.shape, strict=True))


def _sizes_of(e: Equality, bound: Mapping[str, Node], parts: Mapping[str, Dim]) -> Sizes | None:
    """What the names of sizes stand for; None where a tensor is not of its leaf's kind."""
    named: dict[str, Dim] = dict(parts)
    for x in e.leaves:
        n = bound[x.name]
        if n.rank != len(x.kind):
            return None
        for block, d in zip(x.kind, n.shape, strict=True):
            if isinstance(block, str):
                named.setdefault(block, d)
            if isinstance(block, (tuple, Made)) or not names_of(block) <= set(named):
                return None
            if not D.known_eq(Sizes(named).of(block), d):
                return None
    return Sizes(named)


def _never_negative(n: Node) -> bool:
    value = filled_value(n)
    return value is not None and value >= 0


def _kinds(t: Term) -> list[Kind]:
    return [k for x in t.operands if (k := kind_of(x)) is not None]


def fits(t: Tree, matched: Iterator[Node], sizes: Sizes) -> bool:
    """Have the operators that matched, the root first, the attributes of the term's?"""
    if isinstance(t, Leaf) or not t.operands:
        return True
    n = _main(matched)
    if n is None:
        return False
    try:
        same = n.op == t.instance.op(sizes, _kinds(t))
    except Invalid:
        return False
    return same and all(fits(x, matched, sizes) for x in t.operands)


def _built(t: Tree, bound: dict[str, Node], sizes: Sizes) -> Node:
    if isinstance(t, Leaf):
        return bound[t.name]
    operands = (_built(x, bound, sizes) for x in t.operands)
    dtype = next(n.dtype for n in bound.values())
    made = node(t.instance.of_dtype(dtype).op(sizes, _kinds(t)), *operands)
    return item(made, 0) if isinstance(made.type, TupleType) else made


@cache
def at_kinds(e: Equality, kinds: tuple[Kind, ...], settings: Settings = ()) -> Equality | None:
    """The equality over leaves of these kinds, with other settings; None where it has no meaning
    then, or is not proved, as where it is too large for a normal form."""
    table = {x: replace(x, kind=k) for x, k in zip(e.leaves, kinds, strict=True)}
    others, sizes = dict(settings), Sizes.symbolic(sorted({b for k in kinds for b in named(k)}))
    try:
        made = Equality(*(_over(side, table, others, sizes) for side in (e.left, e.right)))
        left, right = made.nodes(sizes)
        if left.type != right.type or refuted(made):
            return None
        return made if made.is_proved() else None
    except (Invalid, Unsupported):
        return None


def named(kind: Kind) -> set[str]:
    return {name for block in kind for name in names_of(block)}


def _over(
    t: Tree, table: Mapping[Leaf, Leaf], settings: Mapping[Setting, Any], sizes: Sizes
) -> Tree:
    """The tree over other leaves. Axes that an operator names are counted from the end."""
    if isinstance(t, Leaf):
        return table[t]
    if not t.operands:
        return t
    operands = tuple(_over(x, table, settings, sizes) for x in t.operands)
    old = kind_of(t.operands[0])
    if old is None:
        raise Invalid(f"{t.operands[0]} has no kind")
    more = as_node(operands[0], sizes).rank - len(old)
    given = _with_groups(t.instance) if (GROUPS, 1) in settings else t.instance.attributes
    attributes = tuple((k, settings.get((k, v), v)) for k, v in given)
    return Term(_shifted(Instance(t.instance.name, attributes), more), operands)


def _shifted(x: Instance, more: int) -> Instance:
    """The operator on a first operand with more axes in front."""
    if not more or not x.attributes:
        return x
    if more < 0:
        raise Invalid(f"{x.name} names axes that are not there")
    return Instance(x.name, tuple((k, _moved(k, v, more)) for k, v in x.attributes))


def _moved(name: str, value: Any, more: int) -> Any:
    if isinstance(value, (Bound, Reshaped)):
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
