"""Rules that follow from others as the compiler applies them: for any shapes, not only those that
an equality was found with. What follows is left out, so that a search tries fewer rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tilewright.ir.node import Input, Node, topological
from tilewright.ir.pattern import Rule, make
from tilewright.superopt.applied import rules_of
from tilewright.superopt.blocks import Sizes
from tilewright.superopt.classes import Classes
from tilewright.superopt.derive import order
from tilewright.superopt.pieces import substituted
from tilewright.superopt.saturate import Budget, saturate
from tilewright.superopt.terms import Equality

# Sizes of axes, all different; two of them add up to none of the others.
PRIMES = (11, 13, 17, 19, 23, 29, 37, 41, 43, 53, 59, 61, 67, 71, 73, 79)
BUDGET = Budget(seconds=60.0, members=300, rounds=3)

Progress = Callable[[Iterable[Equality], str], Iterable[Equality]]


def follows(e: Equality, rules: Sequence[Rule]) -> bool:
    """Do rules lead from one side to the other, in a few rounds?"""
    sides = _sides(e)
    classes = Classes(sides)
    saturate(classes, rules, BUDGET)
    return classes.leader(sides[0]) is classes.leader(sides[1])


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
    known: Sequence[Equality] = (),
    progress: Progress = lambda found, what: found,
) -> list[Equality]:
    """Those that do not follow from the others and from what is known, the smallest first."""
    kept: list[Equality] = []
    rules = {e: rules_of(e, str(e)) for e in (*found, *known)}

    def without(e: Equality) -> list[Rule]:
        others = (x for x in kept if x is not e)
        return [r for x in (*known, *others) for r in rules[x]]

    for e in progress(sorted(found, key=order), "shortened"):
        if not follows(e, without(e)):
            kept.append(e)
    for e in progress(kept[::-1], "shortened again"):
        if follows(e, without(e)):
            kept.remove(e)
    return kept
