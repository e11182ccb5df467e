"""Operators that share an operand, as one operator on all that they do not share.

A rule relates what it matches; which operators belong together is seen from what they share. Where
an equality says that `f(x, a)` beside `f(x, b)` is `f(x, a beside b)`, any number of them are
slices of one: of two by the equality, of more because it holds again of one more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tilewright.ir.dim import Dim
from tilewright.ir.node import Node, node
from tilewright.ops.views import Concat, Slice
from tilewright.superopt.applied import fits, ranked, sizes_of
from tilewright.superopt.classes import Classes
from tilewright.superopt.terms import Equality, Leaf, Term, Tree
from tilewright.superopt.vocabulary import Instance

MOST = 16  # operators that become one


@dataclass(frozen=True)
class Merge:
    """An equality of that form: which of the two operands is shared, and its leaves."""

    equality: Equality
    operator: str
    at: int
    shared: Leaf
    first: Leaf
    second: Leaf

    @staticmethod
    def of(e: Equality) -> Merge | None:
        match e.left, e.right:
            case (
                Term(Instance("concat"), (Term(f, (Leaf() as a, Leaf() as b)), Term(g, others))),
                Term(h, operands),
            ) if f == g == h and len(others) == 2 and len(e.leaves) == 3:
                for at, (shared, own) in enumerate(((a, b), (b, a))):
                    second, together = others[1 - at], operands[1 - at]
                    alike = others[at] == shared == operands[at] and isinstance(second, Leaf)
                    match together:
                        case Term(Instance("concat"), parts) if alike and parts == (own, second):
                            assert isinstance(second, Leaf)
                            return Merge(e, f.name, at, shared, own, second)
        return None

    def apply(self, members: list[Node]) -> list[tuple[Node, Node]]:
        """Each of the operators with the slice that it equals; none where the equality does not
        hold of their ranks."""
        first, parts = members[0], [m.inputs[1 - self.at] for m in members]
        bound = {self.shared: first.inputs[self.at], self.first: parts[0], self.second: parts[1]}
        e = ranked(self.equality, tuple(bound[x].rank - len(x.kind) for x in self.equality.leaves))
        sizes = sizes_of(e, {x.name: n for x, n in bound.items()}) if e is not None else None
        if e is None or sizes is None:
            return []
        beside, whole = e.left, e.right
        assert isinstance(beside, Term) and isinstance(whole, Term)
        if not fits(beside.operands[0], iter((first,)), sizes):
            return []
        operands = [node(Concat(_axis(whole.operands[1 - self.at])), *parts)]
        operands.insert(self.at, first.inputs[self.at])
        made, axis = node(first.op, *operands), _axis(beside)
        out: list[tuple[Node, Node]] = []
        start: Dim = 0
        for m in members:
            stop = start + m.shape[axis]
            out.append((m, node(Slice(axis, start, stop), made)))
            start = stop
        return out


def _axis(t: Tree) -> int:
    assert isinstance(t, Term)
    return dict(t.instance.attributes)["axis"]


def merges(found: Iterable[Equality]) -> list[Merge]:
    return [m for e in found if (m := Merge.of(e)) is not None]


def merged(
    classes: Classes, rules: Iterable[Merge], constant: set[Node]
) -> Iterator[tuple[Node, Node]]:
    """Operators and the slices that they equal, of all families whose other operands are known
    before the program runs: those are put together once."""
    by_name: dict[str, list[Merge]] = {}
    for r in rules:
        by_name.setdefault(r.operator, []).append(r)
    families: dict[tuple[Merge, Node, object], dict[Node, Node]] = {}
    for leader in classes:
        for m in classes.members(leader):
            for rule in by_name.get(m.op.name, ()):
                shared, own = m.inputs[rule.at], m.inputs[1 - rule.at]
                if own in constant and shared not in constant:
                    key = rule, shared, (m.op, own.rank, own.dtype)
                    families.setdefault(key, {}).setdefault(own, m)
    for (rule, _, _), found in families.items():
        members = list(found.values())
        if 2 <= len(members) <= MOST:
            yield from rule.apply(members)
