"""Operators that share an operand, as one operator on all that they do not share.

A rule relates what it matches; which operators belong together is seen from what they share. Where
an equality says that `f(x, a)` beside `f(x, b)` is `f(x, a beside b)`, any number of them are
slices of one: of two by the equality, of more because it holds again of one more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir.dim import Dim
from tilewright.ir.node import Node, node
from tilewright.ops.views import Concat, Slice
from tilewright.superopt.applied import fits, fitted
from tilewright.superopt.classes import Because, Classes
from tilewright.superopt.terms import Equality, Leaf, Term, Tree, kind_of
from tilewright.superopt.vocabulary import Instance

MOST = 16  # operators that become one

Merged = tuple[Node, Node, Because]
"""An operator, the slice that it equals, and why."""


@dataclass(frozen=True)
class Merge:
    """An equality of that form: which of the two operands is shared, and its leaves. What is done
    element by element is not merged: it becomes part of other kernels."""

    name: str
    equality: Equality
    operator: str
    at: int
    shared: Leaf
    first: Leaf
    second: Leaf

    @staticmethod
    def of(name: str, e: Equality) -> Merge | None:
        match e.left, e.right:
            case (
                Term(Instance("concat"), (Term(f, (Leaf() as a, Leaf() as b)), Term(g, others))),
                Term(h, operands),
            ) if f == g == h and len(others) == 2 and len(e.leaves) == 3 and not f.elementwise:
                for at, (shared, own) in enumerate(((a, b), (b, a))):
                    second, together = others[1 - at], operands[1 - at]
                    alike = others[at] == shared == operands[at] and isinstance(second, Leaf)
                    match together:
                        case Term(Instance("concat"), parts) if alike and parts == (own, second):
                            assert isinstance(second, Leaf)
                            return Merge(name, e, f.name, at, shared, own, second)
        return None

    def beside(self, own: Node) -> tuple[Dim, ...]:
        """The sizes of an operand that others beside it must have too."""
        assert isinstance(self.equality.right, Term)
        joined = self.equality.right.operands[1 - self.at]
        axis = _axis(joined) - len(self.first.kind) + own.rank
        return tuple(d for k, d in enumerate(own.shape) if k != axis)

    def _axis_of(self, n: Node) -> int:
        """Where results like this one are put together."""
        left = kind_of(self.equality.left)
        assert left is not None
        return _axis(self.equality.left) - len(left) + n.rank

    def apply(self, members: list[Node]) -> list[tuple[Node, Node]]:
        """Each of the operators with the slice that it equals; none where the equality does not
        hold of their ranks."""
        first, parts = members[0], [m.inputs[1 - self.at] for m in members]
        bound = {self.shared: first.inputs[self.at], self.first: parts[0], self.second: parts[1]}
        joined = node(Concat(self._axis_of(first)), *members[:2])
        matched = (joined, *members[:2])
        found = fitted(self.equality, 0, matched, {x.name: n for x, n in bound.items()})
        if found is None:
            return []
        e, sizes = found
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


def merges(found: Mapping[str, Equality]) -> list[Merge]:
    sought = (Merge.of(f"{name}, of several", e) for name, e in found.items())
    return [m for m in sought if m is not None]


def merged(classes: Classes, rules: Iterable[Merge], constant: set[Node]) -> Iterator[Merged]:
    """Operators, the slices that they equal, and why, of all families whose other operands are
    known before the program runs: those are put together once."""
    for rule, members in _families(classes, rules, constant, known=False):
        yield from _several(rule, members)


def merged_by_weights(
    classes: Classes, rules: Iterable[Merge], constant: set[Node]
) -> Iterator[tuple[Merged, ...]]:
    """The same of each family whose shared operand is known, as the weights of a network in each of
    its steps: they are read once. What needs the result of another is not put together with it. And
    of families that have the same weights: these are put together alike, and stay in caches."""
    rules = list(rules)
    for rule, members in _families(classes, rules, constant, known=True):
        for apart in _apart(classes, members, 1 - rule.at):
            if found := tuple(_several(rule, apart)):
                yield found
    order = {n: k for k, n in enumerate(classes)}
    alike: dict[tuple[Merge, tuple[Node, ...]], list[list[Node]]] = {}
    for rule, members in _families(classes, rules, constant, known=False):
        members.sort(key=lambda m, at=1 - rule.at: order[m.inputs[at]])
        weights = tuple(m.inputs[1 - rule.at] for m in members)
        alike.setdefault((rule, weights), []).append(members)
    for (rule, _), families in alike.items():
        if len(families) > 1:
            steps = [tuple(_several(rule, members)) for members in families]
            yield tuple(x for step in steps for x in step)


def _families(
    classes: Classes, rules: Iterable[Merge], constant: set[Node], known: bool
) -> Iterator[tuple[Merge, list[Node]]]:
    """Operators that share an operand, and may become one by a rule. Of what they share and what
    each has alone, one is known before the program runs."""
    by_name: dict[str, list[Merge]] = {}
    for r in rules:
        by_name.setdefault(r.operator, []).append(r)
    families: dict[tuple[Merge, Node, object], dict[Node, Node]] = {}
    for leader in classes:
        for m in classes.members(leader):
            for rule in by_name.get(m.op.name, ()):
                shared, own = m.inputs[rule.at], m.inputs[1 - rule.at]
                if (shared in constant, own in constant) == (known, not known):
                    alike = m.op, own.dtype, rule.beside(own)
                    families.setdefault((rule, shared, alike), {}).setdefault(own, m)
    for (rule, _, _), found in families.items():
        if len(found) > 1:
            yield rule, list(found.values())


def _several(rule: Merge, members: Sequence[Node]) -> Iterator[Merged]:
    for k in range(0, len(members) - 1, MOST):
        if len(some := members[k : k + MOST]) > 1:
            why = Because(rule.name)
            yield from ((n, part, why) for n, part in rule.apply(list(some)))


def _apart(classes: Classes, members: Sequence[Node], at: int) -> list[list[Node]]:
    """Groups of operators of which none needs the result of another, by that operand."""
    homes = {classes.leader(m) for m in members}
    out: list[tuple[set[Node], list[Node]]] = []
    for m in members:
        needed = homes & _below(classes, m.inputs[at])
        for results, group in out:
            # Members come in the order in which they can be computed.
            if not results & needed:
                results.add(classes.leader(m))
                group.append(m)
                break
        else:
            out.append(({classes.leader(m)}, [m]))
    return [group for _, group in out]


def _below(classes: Classes, n: Node) -> set[Node]:
    """The classes that a value may be computed of, its own among them."""
    found = {classes.leader(n)}
    stack = list(found)
    while stack:
        operands = {x for m in classes.members(stack.pop()) for x in m.inputs} - found
        found |= operands
        stack += operands
    return found
