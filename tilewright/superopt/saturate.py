"""Equality saturation: all rules everywhere, in rounds, until nothing is new or a budget ends."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tilewright.ir.node import Node
from tilewright.ir.pattern import Apply, Match, Pattern, Rule, Var
from tilewright.ir.rewrite import RuleSet
from tilewright.superopt.classes import Because, Classes, Pair
from tilewright.superopt.regroup import Regrouper, Regrouping


@dataclass(frozen=True)
class Budget:
    """What a search may use. Counts end it, so that it finds the same each time; seconds are a last
    resort. A rule that matches too often in one round rests in the next."""

    seconds: float = 60.0
    members: int = 20_000  # beside those of the graph itself
    rounds: int = 12
    matches: int = 2_000
    alike: int = 64  # members of a class: of a larger one no more are made
    choices: int = 200  # parts of the space of choices that a solver looks at
    graphs: int = 400  # that are taken out of a queue
    worse: float = 1.05  # than the best one: what costs more joins no queue


BUDGET = Budget()


@dataclass(frozen=True)
class Saturated:
    """How a saturation ended, and how often each rule found something new."""

    ended: str  # "saturated", "enough", "rounds", "members" or "seconds"
    rounds: int
    applied: Counter[str]


def depth(p: Pattern) -> int:
    """Operators on the longest way from the root of a pattern."""
    return 1 + max(map(depth, p.args), default=0) if isinstance(p, Apply) else 0


def saturate(
    classes: Classes,
    rules: Sequence[Rule],
    budget: Budget = BUDGET,
    free: Callable[[Classes], set[Node]] = lambda _: set(),
    orders: Sequence[Regrouping] = (),
    enough: Callable[[Classes], bool] = lambda _: False,
) -> Saturated:
    """Joins both sides of every match. The order of rules and nodes alone decides what is found
    within members and rounds; seconds are a last resort. What is `free` however it is computed is
    rewritten only by rules that leave an operator out; others see it below what is not free. Of
    operators that have `orders`, operands are taken in those in which rules match. No round follows
    one after which there is `enough`."""
    table = RuleSet.of(rules)
    regroupers = [Regrouper(r) for r in orders]
    far = max((depth(r.left) for r in rules), default=1)
    until, most = time.monotonic() + budget.seconds, len(classes) + budget.members
    applied: Counter[str] = Counter()
    resting: dict[str, int] = {}  # until which round
    owed: dict[str, set[Node]] = {}  # members that a rule that rests has not seen
    seen = {r.name: _Seen() for r in rules}
    for k in range(budget.rounds):
        near = _within(classes, far)
        left: dict[str, set[Node]] = {}
        found: list[tuple[Node, Node, Because]] = []
        counts: Counter[str] = Counter()
        late, for_free = False, free(classes)
        full = for_free | {c for c in classes if len(classes.members(c)) > budget.alike}
        for leader in classes:
            for n in classes.members(leader):
                for rule in table.by_root.get(n.op.name, ()):
                    if leader not in near and n not in owed.get(rule.name, ()):
                        continue
                    if leader in full and not isinstance(rule.right, Var):
                        continue
                    if counts[rule.name] >= budget.matches:
                        resting[rule.name] = k + 2
                    if resting.get(rule.name, 0) > k:
                        left.setdefault(rule.name, set()).add(n)
                        continue
                    for out, m in rule.everywhere(n, classes.members, seen[rule.name].add):
                        found.append((m.root, out, Because(rule.label, _taken(classes, m))))
                        counts[rule.name] += 1
            if late := time.monotonic() > until:
                break
        for regrouper in regroupers:
            says = partial(_says, table, classes)
            found += regrouper.found(classes, near, for_free, full, says)
        classes.changed.clear()
        for root, out, why in found:
            classes.add(out)
            if classes.join(root, out, why):
                applied[why.rule] += 1
            if len(classes) > most:
                break
        classes.settle()
        if late or len(classes) > most:
            return Saturated("seconds" if late else "members", k + 1, applied)
        if enough(classes):
            return Saturated("enough", k + 1, applied)
        owed = left
        if not classes.changed and not owed:
            return Saturated("saturated", k + 1, applied)
    return Saturated("rounds", budget.rounds, applied)


def _says(table: RuleSet, classes: Classes, n: Node) -> bool:
    """Does a rule make something else of a node?"""
    rules = table.by_root.get(n.op.name, ())
    return any(True for rule in rules for _ in rule.everywhere(n, classes.members))


class _Seen:
    """Matches of a rule that were tried: operators, and what variables stand for."""

    def __init__(self) -> None:
        self._known: set[object] = set()

    def add(self, m: Match) -> bool:
        """Is it new?"""
        key, before = (m.nodes, *m.bindings.values()), len(self._known)
        self._known.add(key)
        return len(self._known) > before


def _taken(classes: Classes, m: Match) -> tuple[Pair, ...]:
    """Operands of what a rule matched, each with the member of its class that was taken."""
    leaders = [classes.leader(n) for n in m.nodes]
    out: list[Pair] = []
    for k, n in enumerate(m.nodes[1:], 1):
        if n is not leaders[k]:
            operands = (x for earlier in m.nodes[:k] for x in earlier.inputs)
            out.append((next(x for x in operands if classes.leader(x) is leaders[k]), n))
    for rest in m.bindings.values():
        if isinstance(rest, tuple):  # operands of any number
            several = [n for n in rest if isinstance(n, Node)]
            out += ((x, n) for n in several if (x := classes.leader(n)) is not n)
    return tuple(out)


def _within(classes: Classes, far: int) -> set[Node]:
    """Classes from which one that changed can be seen by a pattern."""
    near = {classes.leader(n) for n in classes.changed}
    edge = near
    for _ in range(far):
        edge = {u for n in edge for u in classes.users(n)} - near
        near |= edge
    return near
