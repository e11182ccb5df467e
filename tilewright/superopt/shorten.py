"""Rules that follow from others as the compiler applies them: for any shapes, not only those that
an equality was found with. What follows is left out, so that a search tries fewer rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

from tilewright.ir.node import Input, Node, topological
from tilewright.ir.operator import OPERATORS
from tilewright.ir.pattern import Apply, Rule, Var, make
from tilewright.superopt.applied import rules_of
from tilewright.superopt.blocks import Sizes
from tilewright.superopt.classes import Classes
from tilewright.superopt.pieces import substituted
from tilewright.superopt.saturate import Budget, saturate
from tilewright.superopt.terms import Equality, Leaf, Tree, occurrences

# Sizes of axes, all different; two of them add up to none of the others.
PRIMES = (11, 13, 17, 19, 23, 29, 37, 41, 43, 53, 59, 61, 67, 71, 73, 79)
# One step; what most that follows needs; and what is asked of the few that are left.
ONE, FEW, MANY = (
    Budget(seconds=600.0, members=n, rounds=r) for n, r in ((300, 1), (300, 3), (2000, 6))
)

Progress = Callable[[Iterable[Equality], str], Iterable[Equality]]


class LeftOut(dict[Equality, str]):
    """Equalities that a stage could not treat, and why. One of them does not end the others."""

    @contextmanager
    def where_it_fails(self, e: Equality, stage: str) -> Iterator[None]:
        try:
            yield
        except Exception as why:
            self[e] = f"{stage}: {why or type(why).__name__}"


def order(e: Equality) -> tuple[object, ...]:
    """Small equalities first, then general ones: of many leaves, of many axes."""
    sizes = occurrences(e.left), occurrences(e.right)
    return sum(sizes), max(sizes), -len(e.leaves), -sum(len(x.kind) for x in e.leaves), str(e)


def gains(e: Equality) -> bool:
    """Can one side cost less than the other? Not where both have the same operators on operands of
    the same types, each made of the same leaves, so that none could be computed earlier."""
    left, right = (_work(n) for n in e.nodes(Sizes.symbolic(e.symbols)))
    return left != right


def _work(root: Node) -> Counter[object]:
    below: dict[Node, frozenset[Node]] = {}
    found: Counter[object] = Counter()
    for n in topological((root,)):
        below[n] = frozenset((n,)).union(*(below[x] for x in n.inputs))
        if n.inputs:
            types = Counter(x.type for x in n.inputs)
            found[
                n.op, frozenset(types.items()), frozenset(x for x in below[n] if not x.inputs)
            ] += 1
    return found


def follows(e: Equality, rules: Sequence[Rule], budget: Budget = FEW) -> bool:
    """Do rules lead from one side to the other?"""
    return _derived(e, rules, budget) is not None


def _derived(e: Equality, rules: Sequence[Rule], budget: Budget) -> set[str] | None:
    """The names of rules that lead from one side to the other; None where they do not."""
    left, right = _sides(e)
    classes = Classes((left, right))

    def equal(classes: Classes) -> bool:
        return classes.leader(left) is classes.leader(right)

    saturate(classes, (*_swaps(), *rules), budget, enough=equal)
    if not equal(classes):
        return None
    return {step.rule for step in classes.why([(left, right)])}


@cache
def _laws(e: Equality) -> frozenset[str]:
    """Both sides as operators alone, without attributes and leaves."""
    return frozenset(map(_operators, (e.left, e.right)))


def _operators(t: Tree) -> str:
    if isinstance(t, Leaf):
        return "."
    parts = map(_operators, t.operands)
    listed = ",".join(sorted(parts) if t.instance.commutative else parts)
    return f"{t.instance.name}({listed})"


@cache
def _swaps() -> tuple[Rule, ...]:
    """Operands of commutative operators may change places."""
    names = [name for name, x in OPERATORS.items() if x.commutative]
    both = Var("a"), Var("b")
    return tuple(Rule(f"{x} commutes", Apply(x, both), Apply(x, both[::-1])) for x in names)


def _sides(e: Equality) -> tuple[Node, ...]:
    """Both sides over tensors of some sizes; what is never negative is a number."""
    sides = e.nodes(Sizes(dict(zip(e.symbols, PRIMES, strict=False))))
    numbers: dict[Node, Node] = {}
    for n in topological(sides):
        if isinstance(n.op, Input) and n.op.label in e.positive:
            numbers[n] = make("full", shape=n.shape, value=0.5, dtype=n.dtype)
    return substituted(sides, numbers)


def shortened(
    found: Sequence[Equality],
    known: Sequence[Rule] = (),
    progress: Progress = lambda found, what: found,
    failed: LeftOut | None = None,
) -> list[Equality]:
    """Those that do not follow from the others and from what is known, the smallest first. One that
    gains nothing is left out too, unless one that gains follows from it; and one that cannot be
    treated, which is noted."""
    failed = LeftOut() if failed is None else failed
    kept: list[Equality] = []
    rules: dict[Equality, list[Rule]] = {}
    for e in found:
        with failed.where_it_fails(e, "rule of graphs"):
            rules[e] = rules_of(e, str(e))
    of = {r.label: e for e, directions in rules.items() for r in directions}
    by: dict[Equality, list[Equality]] = {}  # from which one that is left out follows

    def left_out(e: Equality, budget: Budget) -> bool:
        others = [x for x in kept if x is not e]
        # Most that follows is the same law with other settings, which one step finds.
        alike = [r for x in others if _laws(x) == _laws(e) for r in rules[x]]
        names = _derived(e, alike, ONE) if alike else None
        if names is None:
            names = _derived(e, (*known, *(r for x in others for r in rules[x])), budget)
        if names is not None:
            by[e] = [of[x] for x in names if x in of]
        return names is not None

    for e in progress(sorted(rules, key=order), "shortened"):
        with failed.where_it_fails(e, "what it follows from"):
            if not left_out(e, FEW):
                kept.append(e)
    for e in progress(kept[::-1], "shortened again"):
        with failed.where_it_fails(e, "what it follows from"):
            if left_out(e, MANY):
                kept.remove(e)
    needed: set[Equality] = set()
    work: list[Equality] = []
    for e in rules:
        with failed.where_it_fails(e, "what it gains"):
            if gains(e):
                work.append(e)
    while work:
        e = work.pop()
        if e not in needed:
            needed.add(e)
            work += by.get(e, ())
    return [e for e in kept if e in needed and e not in failed]
