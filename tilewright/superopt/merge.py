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

MOST = 16  # operators that become one


@dataclass(frozen=True)
class Merge:
    """An equality of that form, and which of the two operands is shared."""

    equality: Equality
    shared: int

    @staticmethod
    def of(e: Equality) -> Merge | None:
        match e.left, e.right:
            case (
                Term(operands=(Term(operands=(Leaf() as x, Leaf() as y)) as f, Term() as g)) as c,
                Term(operands=operands),
            ) if c.instance.name == "concat" and f.instance == g.instance == e.right.instance:
                for k, shared in enumerate((x, y)):
                    other = operands[1 - k]
                    if (
                        operands[k] == shared == g.operands[k]
                        and isinstance(other, Term)
                        and other.instance.name == "concat"
                        and other.operands == (f.operands[1 - k], g.operands[1 - k])
                        and len(set(e.leaves)) == 3
                    ):
                        return Merge(e, k)
        return None

    def apply(self, members: list[Node]) -> list[tuple[Node, Node]]:
        """Each of the operators with the slice that it equals; none where the equality does not
        hold of their ranks."""
        first = members[0]
        f, parts = self._term(), [m.inputs[1 - self.shared] for m in members]
        leaf = {f.operands[self.shared]: first.inputs[self.shared]}
        leaf[f.operands[1 - self.shared]] = parts[0]
        leaf[self._other()] = parts[1]
        ranks = (leaf[x].rank - len(x.kind) for x in self.equality.leaves)
        e = ranked(self.equality, tuple(ranks))
        if e is None:
            return []
        sizes = sizes_of(e, {x.name: n for x, n in leaf.items()})
        if sizes is None:
            return []
        outside, inside = e.left, e.right
        assert isinstance(outside, Term) and isinstance(inside, Term)
        own, joined = outside.operands[0], inside.operands[1 - self.shared]
        if not fits(own, iter((first,)), sizes):
            return []
        together = node(Concat(_axis(joined)), *parts)
        operands = [first.inputs[self.shared], together]
        whole = node(first.op, *(operands if self.shared == 0 else operands[::-1]))
        axis = _axis(outside)
        start: Dim = 0
        out: list[tuple[Node, Node]] = []
        for m in members:
            stop = start + m.shape[axis]
            out.append((m, node(Slice(axis, start, stop), whole)))
            start = stop
        return out

    def _term(self) -> Term:
        assert isinstance(self.equality.left, Term)
        f = self.equality.left.operands[0]
        assert isinstance(f, Term)
        return f

    def _other(self) -> Tree:
        assert isinstance(self.equality.left, Term)
        g = self.equality.left.operands[1]
        assert isinstance(g, Term)
        return g.operands[1 - self.shared]


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
        by_name.setdefault(r._term().instance.name, []).append(r)
    families: dict[tuple[Merge, Node, object], dict[Node, Node]] = {}
    for leader in classes:
        for m in classes.members(leader):
            for rule in by_name.get(m.op.name, ()):
                shared, own = m.inputs[rule.shared], m.inputs[1 - rule.shared]
                if own in constant and shared not in constant:
                    key = rule, shared, (m.op, own.rank, own.dtype)
                    families.setdefault(key, {}).setdefault(own, m)
    for (rule, _, _), found in families.items():
        members = list(found.values())
        if 2 <= len(members) <= MOST:
            yield from rule.apply(members)
