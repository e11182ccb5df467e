"""Programs as trees of operators over leaves, apart from the space they were found in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from tilewright.base.errors import Invalid
from tilewright.ir.node import Node, input, item, node
from tilewright.ir.types import DType, TupleType, f32, f64, i64
from tilewright.rewrites.proofs.equality import nodes_equal
from tilewright.superopt.blocks import Block, Formula, Kind, Marks, Sizes, names
from tilewright.superopt.enumerate import Programs, Space
from tilewright.superopt.vocabulary import Instance


@dataclass(frozen=True)
class Leaf:
    """Any tensor of a kind, any without negative elements, or whole numbers of 0 to below a
    size, which are indices."""

    name: str
    kind: Kind
    positive: bool = False
    below: Block | None = None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Term:
    """An operator on terms."""

    instance: Instance
    operands: tuple[Tree, ...]

    @cached_property
    def text(self) -> str:
        attributes = (
            f"{k}={v!r}" if isinstance(v, str) else f"{k}={v}" for k, v in self.instance.attributes
        )
        return f"{self.instance.name}({', '.join((*map(str, self.operands), *attributes))})"

    def __str__(self) -> str:
        return self.text


Tree = Leaf | Term


def leaves(t: Tree) -> Iterator[Leaf]:
    """Every leaf, as often as it is used, from left to right."""
    if isinstance(t, Leaf):
        yield t
    else:
        for x in t.operands:
            yield from leaves(x)


def operators(t: Tree, seen: set[Tree] | None = None) -> int:
    """How many there are, a shared part counted once."""
    seen = set() if seen is None else seen
    if isinstance(t, Leaf) or t in seen:
        return 0
    seen.add(t)
    return 1 + sum(operators(x, seen) for x in t.operands)


def occurrences(t: Tree) -> int:
    """How many operators there are, a shared part counted as often as it is used."""
    return 0 if isinstance(t, Leaf) else 1 + sum(map(occurrences, t.operands))


def renamed(t: Tree, table: dict[Leaf, Tree]) -> Tree:
    if isinstance(t, Leaf):
        return table.get(t, t)
    return Term(t.instance, tuple(renamed(x, table) for x in t.operands))


def ordered(t: Tree) -> Tree:
    """Operands of commutative operators in the order of their texts."""
    if isinstance(t, Leaf):
        return t
    operands = tuple(map(ordered, t.operands))
    return Term(
        t.instance, tuple(sorted(operands, key=str)) if t.instance.commutative else operands
    )


@lru_cache(maxsize=1 << 16)
def kind_of(t: Tree) -> Kind | None:
    """The kind of a term; None where its operators' operands do not fit."""
    if isinstance(t, Leaf):
        return t.kind
    kinds = [kind_of(x) for x in t.operands]
    known = [k for k in kinds if k is not None]
    if len(known) < len(kinds):
        return None
    try:
        return t.instance.kind(_MARKS, known)
    except (Invalid, ValueError):
        return None


_MARKS = Marks()


def as_node(t: Tree, sizes: Sizes, dtype: DType = f32) -> Node:
    if isinstance(t, Leaf):
        return input(t.name, sizes.type(t.kind, dtype if t.below is None else i64))
    kinds = [k for x in t.operands if (k := kind_of(x)) is not None]
    op = t.instance.of_dtype(dtype).op(sizes, kinds)
    made = node(op, *(as_node(x, sizes, dtype) for x in t.operands))
    return item(made, 0) if isinstance(made.type, TupleType) else made


@dataclass(frozen=True)
class Equality:
    """Two programs of one value: of the larger one it is the left side."""

    left: Tree
    right: Tree

    def __str__(self) -> str:
        """As `text.parse_equality` reads it."""
        where = ", ".join(map(_declared, self.leaves))
        return f"{self.left} == {self.right} where {where}"

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        return tuple(dict.fromkeys((*leaves(self.left), *leaves(self.right))))

    @cached_property
    def symbols(self) -> list[str]:
        """Names of sizes."""
        blocks = {b for x in self.leaves for b in (*x.kind, x.below) if b is not None}
        formulas = {f for side in (self.left, self.right) for f in _formulas(side)}
        return sorted(
            {n for b in blocks for n in names(b)} | {n for f in formulas for n in f.names}
        )

    @property
    def positive(self) -> frozenset[str]:
        """Names of the leaves that are never negative."""
        return frozenset(x.name for x in self.leaves if x.positive)

    @property
    def is_rule(self) -> bool:
        """Can one side be written for the other: has a side all leaves of the other, and some?"""
        left, right = set(leaves(self.left)), set(leaves(self.right))
        return len(self.leaves) > 0 and (left <= right or right <= left)

    def is_proved(self) -> bool:
        """Do both sides have one normal form over the reals, for all sizes?"""
        sides = self.nodes(Sizes.symbolic(self.symbols), f64)
        return nodes_equal(*sides, "reals", self.positive)

    def nodes(self, sizes: Sizes, dtype: DType = f32) -> tuple[Node, Node]:
        return as_node(self.left, sizes, dtype), as_node(self.right, sizes, dtype)

    def canonical(self) -> Equality:
        """The same with leaves named by their order, the smaller text of both directions."""
        found = (_named(*sides) for sides in ((self.left, self.right), (self.right, self.left)))
        return min(found, key=lambda e: (-operators(e.left), operators(e.right), str(e)))


def _declared(x: Leaf) -> str:
    bound = " >= 0" if x.positive else "" if x.below is None else f" < {_block(x.below)}"
    return f"{x.name}: {_block(x.kind, '[]')}{bound}"


def _formulas(t: Tree) -> Iterator[Formula]:
    if isinstance(t, Term):
        yield from (v for _, v in t.instance.attributes if isinstance(v, Formula))
        for x in t.operands:
            yield from _formulas(x)


def _block(b: Block | Kind, around: str = "()") -> str:
    return f"{around[0]}{', '.join(map(_block, b))}{around[1]}" if isinstance(b, tuple) else str(b)


def _named(left: Tree, right: Tree) -> Equality:
    table: dict[Leaf, Tree] = {}
    counts: dict[str, int] = {}
    for side in (left, right):
        for x in leaves(side):
            if x not in table:
                letter = x.name.rstrip("0123456789")
                counts[letter] = counts.get(letter, 0) + 1
                table[x] = replace(x, name=f"{letter}{counts[letter]}")
    return Equality(ordered(renamed(left, table)), ordered(renamed(right, table)))


class Trees:
    """Programs of a space as trees."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self._known: dict[int, Tree] = {
            n: Leaf(name, kind, name in space.vocabulary.positive)
            for n, (name, kind) in enumerate(space.vocabulary.leaves)
        }

    def of(self, number: int) -> Tree:
        if number not in self._known:
            self._known[number] = self.at(self.space.programs, number)
        return self._known[number]

    def at(self, programs: Programs, k: int) -> Term:
        """The program at a place of some."""
        operands = (int(x[k]) for x in (programs.first, programs.second))
        instance = self.space.instances[programs.instance[k]]
        return Term(instance, tuple(self.of(n) for n in operands if n >= 0))


def equalities(space: Space) -> Iterator[Equality]:
    """What was found, each once up to the names of leaves."""
    trees = Trees(space)
    seen: set[Equality] = set()
    for e in space.equalities:
        for k, n in enumerate(e.equal_to):
            left, right = trees.at(e.programs, k), trees.of(int(n))
            if left == right:
                continue
            found = Equality(left, right).canonical()
            if found not in seen:
                seen.add(found)
                yield found
