"""The cheapest graph among all that classes of equal nodes stand for.

A node that several others use is paid once, so the choice is a whole: an integer program
(`solver.py`). Members are chosen so that every class that is used has one, and no way leads back to
it. Programs are kept small: what is free is chosen first, a member that costs no less than another
one and needs all that the other one does is left out, and what is needed through one class alone is
a program of its own (`regions.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import combinations
from math import inf

from tilewright.ir.node import Node, node
from tilewright.superopt.classes import Classes
from tilewright.superopt.regions import Options, regions
from tilewright.superopt.solver import solved

MOST = 1e300  # that a tree may cost: what is shared doubles it, again and again
NEEDS = 6  # classes that a member needs which is compared with those that need fewer

Cost = Callable[[Node], float]
"""Of one operator on its operands; infinite where it cannot be taken."""


@dataclass(frozen=True)
class Choice:
    """Roots rebuilt from the members chosen, what they cost together, whether less is known to be
    impossible, whether a clock ended it; by the leaders of their classes the members."""

    roots: tuple[Node, ...]
    cost: float
    best: bool
    late: bool
    members: Mapping[Node, Node]


def cheapest(
    classes: Classes,
    roots: Sequence[Node],
    cost: Cost,
    seconds: float = 60.0,
    gap: float = 1e-3,
    choices: int = 200,
    free: AbstractSet[Node] = frozenset(),
) -> Choice:
    """By integer programming; begins with the choice that pays for each use of a shared node. At
    most so many parts of the space of choices are looked at; seconds are a last resort. Each class
    that is `free` has a member that needs such classes alone: one of these is taken."""
    until = time.monotonic() + seconds
    leaders = [classes.leader(r) for r in roots]
    costs = _reachable(classes, leaders, cost, free)
    options = _options(classes, costs, free)
    by_tree = _by_trees(classes, _kept(classes, costs, options))
    taken, prices = dict(by_tree), dict(costs)
    best, late = True, False
    for region in regions([r for r in leaders if r not in free], options):
        left = max(until - time.monotonic(), 0.0)
        found = solved(region, prices, by_tree, left, gap, choices)
        best, late = best and found.best, late or found.late
        taken |= found.members
        prices |= dict.fromkeys(region.roots, found.cost)
    made, members = _rebuilt(leaders, taken), taken
    start = _rebuilt(leaders, by_tree)
    total, shared = (
        sum(costs[some[n]] for n in which.chosen)
        for which, some in ((made, taken), (start, by_tree))
    )
    if shared <= total:
        made, members, total = start, by_tree, shared
    used = {n: members[n] for n in made.chosen}
    return Choice(made.roots, total, best, late, used)


def _reachable(
    classes: Classes, leaders: Iterable[Node], cost: Cost, free: AbstractSet[Node]
) -> dict[Node, float]:
    """Costs of all members below the roots that can be taken."""
    costs: dict[Node, float] = {}
    stack, seen = list(leaders), set(leaders)
    while stack:
        c = stack.pop()
        for m in classes.members(c):
            if c in free and any(x not in free for x in m.inputs):
                continue
            costs[m] = cost(m)
            for x in m.inputs:
                if x not in seen:
                    seen.add(x)
                    stack.append(x)
    return {m: c for m, c in costs.items() if c != inf}


def _options(classes: Classes, costs: dict[Node, float], free: AbstractSet[Node]) -> Options:
    """Members that may be better than others of their class. One that costs as much as another, or
    more, and needs all that the other one needs is not; nor is one that nothing can compute."""
    known = _by_trees(classes, costs)
    options: Options = {}
    for m in costs:
        home = classes.leader(m)
        if home not in free and all(x in known for x in m.inputs):
            needs = tuple(x for x in dict.fromkeys(m.inputs) if x not in free)
            options.setdefault(home, {})[m] = needs
    return {c: _better(ms, costs) for c, ms in options.items()}


def _better(
    members: dict[Node, tuple[Node, ...]], costs: dict[Node, float]
) -> dict[Node, tuple[Node, ...]]:
    best: dict[frozenset[Node], Node] = {}
    for m, needs in members.items():
        other = best.setdefault(frozenset(needs), m)
        if costs[m] < costs[other]:
            best[frozenset(needs)] = m

    def is_best(m: Node) -> bool:
        needs = members[m]
        if best[frozenset(needs)] is not m:
            return False
        some = (x for k in range(len(needs)) for x in combinations(needs, k))
        fewer = (best.get(frozenset(x)) for x in some if len(needs) <= NEEDS)
        return not any(other is not None and costs[other] <= costs[m] for other in fewer)

    return {m: needs for m, needs in members.items() if is_best(m)}


def _kept(classes: Classes, costs: dict[Node, float], options: Options) -> dict[Node, float]:
    """Costs without those of members that are no options, where there are options."""
    homes = ((m, classes.leader(m)) for m in costs)
    return {m: costs[m] for m, home in homes if home not in options or m in options[home]}


def _by_trees(classes: Classes, costs: dict[Node, float]) -> dict[Node, Node]:
    """For each class the member whose tree is cheapest."""
    users: dict[Node, list[Node]] = {}
    for m in costs:
        for x in dict.fromkeys(m.inputs):
            users.setdefault(x, []).append(m)
    total: dict[Node, float] = {}
    chosen: dict[Node, Node] = {}
    work = [m for m in costs if not m.inputs]
    while work:
        later: dict[Node, None] = {}
        for m in work:
            home = classes.leader(m)
            if any(x not in chosen for x in m.inputs):
                continue
            sum_ = min(costs[m] + sum(total[x] for x in m.inputs), MOST)
            # Less, by more than rounding: no way leads back to a class.
            if home not in chosen or sum_ < total[home] * (1 - 1e-12):
                total[home], chosen[home] = sum_, m
                later |= dict.fromkeys(users.get(home, ()))
        work = list(later)
    return chosen


@dataclass(frozen=True)
class _Rebuilt:
    roots: tuple[Node, ...]
    chosen: dict[Node, Node]  # by the leaders of the classes used, operands first


def _rebuilt(leaders: Sequence[Node], members: Mapping[Node, Node]) -> _Rebuilt:
    made: dict[Node, Node] = {}
    for root in leaders:
        stack = [root]
        while stack:
            n = stack[-1]
            missing = [x for x in members[n].inputs if x not in made]
            if n in made or not missing:
                stack.pop()
                if n not in made:
                    m = members[n]
                    made[n] = node(m.op, *(made[x] for x in m.inputs)) if m.inputs else m
            else:
                stack += missing
    return _Rebuilt(tuple(made[r] for r in leaders), made)
