"""Sums and products of several operands, in the orders that lead somewhere.

A sum of n operands is a tree in very many ways, and a search that has them all sees little else. So
the equality that says so is no rule among others. A sum is a form, the operands of all its trees,
and two of them are put together where that is of use: where some rule has something to say about
the two alone, where they are added elsewhere too, where both are known before the program runs, or
where what they give is smaller than the sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import combinations, pairwise, product

from tilewright.ir.node import Node, node
from tilewright.ir.operator import OPERATORS
from tilewright.superopt.applied import holding
from tilewright.superopt.classes import Because, Classes, Pair
from tilewright.superopt.terms import Equality, Leaf, Term, Tree

OPERANDS = 10  # of a form
FORMS = 24  # of a class
PAIRS = 300  # of operands that rules are asked about in a round

Useful = Callable[[Node], bool]
"""Is there a rule about this sum of two?"""


@dataclass(frozen=True)
class Regrouping:
    """An equality of that kind: `f(f(x, y), z) == f(f(x, z), y)` of an operator whose operands may
    be swapped."""

    name: str
    equality: Equality
    operator: str

    @property
    def label(self) -> str:
        return f"{self.name}, of several"

    @staticmethod
    def of(name: str, e: Equality) -> Regrouping | None:
        match e.left, e.right:
            case Term(f), Term(g) if f == g and not f.attributes and OPERATORS[f.name].commutative:
                sides = [_of_three(t) for t in (e.left, e.right)]
                if None not in sides and sides[0] != sides[1] and len(e.leaves) == 3:
                    return Regrouping(name, e, f.name)
        return None

    def holds(self, terms: Sequence[Node]) -> bool:
        """Of operands in any order, by their types."""
        op, first = OPERATORS[self.operator](), terms[0]
        for second, third in pairwise(terms[1:]):
            inner = node(op, first, second)
            leaves = (x.name for x in self.equality.leaves)
            bound = dict(zip(leaves, (first, second, third), strict=True))
            if holding(self.equality, 0, (node(op, inner, third), inner), bound) is None:
                return False
            first = inner
        return True


def _of_three(t: Tree) -> tuple[frozenset[Leaf], Leaf] | None:
    """The inner operands and the outer one of `f(f(x, y), z)`."""
    match t:
        case Term(f, (Term(g, (Leaf() as x, Leaf() as y)), Leaf() as z)) if f == g:
            return frozenset((x, y)), z
        case Term(f, (Leaf() as z, Term(g, (Leaf() as x, Leaf() as y)))) if f == g:
            return frozenset((x, y)), z
    return None


def regroupings(found: Mapping[str, Equality]) -> dict[str, Regrouping]:
    """Those among equalities, by their names."""
    sought = ((name, Regrouping.of(name, e)) for name, e in found.items())
    return {name: r for name, r in sought if r is not None}


@dataclass(frozen=True)
class _Form:
    """Operands, and the members of classes that these were found in."""

    terms: tuple[Node, ...]
    taken: tuple[Pair, ...] = ()


class Regrouper:
    """Finds orders of one operator's operands, round by round: two operands that nothing was said
    about are looked at again when their classes change."""

    def __init__(self, rule: Regrouping) -> None:
        self.rule = rule
        self._asked: set[Pair] = set()
        self._useful: set[Pair] = set()
        self._seen: set[object] = set()
        self._holding: dict[tuple[Node, ...], bool] = {}

    def found(
        self,
        classes: Classes,
        near: AbstractSet[Node],
        known: AbstractSet[Node],
        full: AbstractSet[Node],
        useful: Useful,
    ) -> Iterator[tuple[Node, Node, Because]]:
        """Members, what they equal, and why. What is `known` is not looked into, and what is `full`
        gets no members; classes that changed are `near`."""
        name, op = self.rule.operator, OPERATORS[self.rule.operator]()
        forms, order = _Forms(classes, name, known), {c: k for k, c in enumerate(classes)}
        asked: set[Pair] = set()  # in this round

        def together(a: Node, b: Node, whole: Node) -> bool:
            pair = a, b
            again = pair not in self._asked or a in near or b in near
            if pair in self._useful or pair in asked or not again or len(asked) >= PAIRS:
                return pair in self._useful
            asked.add(pair)
            self._asked.add(pair)
            sum_ = node(op, a, b)
            elsewhere = classes.find(sum_)
            shared = elsewhere is not None and not forms.inside(elsewhere)
            if shared or sum_.shape != whole.shape or useful(sum_):
                self._useful.add(pair)
            return pair in self._useful

        def chain(terms: Sequence[Node]) -> Node:
            out = terms[0]
            for n in terms[1:]:
                out = node(op, out, n)
            return out

        for leader in classes:
            if leader in full or forms.inside(leader):
                continue
            members = [m for m in classes.members(leader) if m.op.name == name]
            for root, form in ((m, form) for m in members for form in forms.of_member(m)):
                terms = tuple(sorted(form.terms, key=order.__getitem__))
                new = self._is_new(leader, terms)
                if not (new or any(n in near for n in terms)) or not self._holds(terms):
                    continue
                because = Because(self.rule.label, form.taken)
                weights = [n for n in terms if n in known]
                rest = [n for n in terms if n not in known]
                # Those that are known are one number for each element, whatever else is done.
                last = [chain(weights)] if weights else []
                if len(weights) > 1 and new:
                    yield root, chain(rest + last), because
                if len(rest) + len(last) < 3:
                    continue
                for k, j in combinations(range(len(rest)), 2):
                    pair = rest[k], rest[j]
                    if together(*pair, leader) and self._is_new(leader, terms, pair):
                        others = (n for at, n in enumerate(rest) if at not in (k, j))
                        yield root, chain([*pair, *others, *last]), because

    def _is_new(self, *key: object) -> bool:
        before = len(self._seen)
        self._seen.add(key)
        return len(self._seen) > before

    def _holds(self, terms: tuple[Node, ...]) -> bool:
        if terms not in self._holding:
            self._holding[terms] = len(terms) > 2 and self.rule.holds(terms)
        return self._holding[terms]


class _Forms:
    """The operands of all trees of one operator, by classes."""

    def __init__(self, classes: Classes, operator: str, known: AbstractSet[Node]) -> None:
        self._classes, self._operator, self._known = classes, operator, known
        self._of: dict[Node, list[_Form]] = {}

    def inside(self, leader: Node) -> bool:
        """Is it only a part of larger sums? These have its operands too."""
        readers = list(self._classes.readers(leader))
        parts = all(m.op.name == self._operator for m in readers)
        return parts and bool(readers) and leader not in self._classes.roots

    def of_member(self, m: Node) -> list[_Form]:
        out: dict[frozenset[tuple[Node, int]], _Form] = {}
        for one, other in product(*map(self._of_class, m.inputs)):
            terms = one.terms + other.terms
            if len(terms) <= OPERANDS and len(out) < FORMS:
                key = frozenset(Counter(terms).items())
                out.setdefault(key, _Form(terms, one.taken + other.taken))
        return list(out.values())

    def _of_class(self, c: Node) -> list[_Form]:
        if c in self._of:
            return self._of[c]
        alone = [_Form((c,))]
        self._of[c] = alone  # a class that is computed of itself
        if c in self._known:
            return alone
        members = self._classes.members(c)
        out: list[_Form] = []
        for m in members:
            if m.op.name == self._operator:
                pair = ((c, m),) if m is not c else ()
                out += (_Form(f.terms, pair + f.taken) for f in self.of_member(m))
        if any(m.op.name != self._operator for m in members):
            out += alone
        self._of[c] = out[:FORMS] or alone
        return self._of[c]
