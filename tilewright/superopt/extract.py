"""The cheapest graph among all that classes of equal nodes stand for.

A node that several others use is paid once, so the choice is a whole: an integer program, solved by
HiGHS. Members are chosen so that every class that is used has one, and operands come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.base.errors import Unsupported
from tilewright.ir.node import Node, node
from tilewright.superopt.classes import Classes

MOST = 1e300  # that a tree may cost: what is shared doubles it, again and again

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
    choices: int = 2_000,
) -> Choice:
    """By integer programming; begins with the choice that pays for each use of a shared node. At
    most so many parts of the space of choices are looked at; seconds are a last resort."""
    leaders = [classes.leader(r) for r in roots]
    costs = _reachable(classes, leaders, cost)
    by_tree = _by_trees(classes, costs)
    start = _rebuilt(leaders, by_tree)
    shared = sum(costs[by_tree[n]] for n in start.chosen)
    program = _Program(classes, leaders, costs, start.chosen, by_tree)
    found = program.solved(seconds, gap, choices)
    if found.members is None or found.cost >= shared:
        made, members, total = start, by_tree, shared
    else:
        members, total = found.members, found.cost
        made = _rebuilt(leaders, members)
    used = {n: members[n] for n in made.chosen}
    return Choice(made.roots, total, found.best, found.late, used)


def _reachable(classes: Classes, leaders: Iterable[Node], cost: Cost) -> dict[Node, float]:
    """Costs of all members below the roots that can be taken."""
    costs: dict[Node, float] = {}
    stack, seen = list(leaders), set(leaders)
    while stack:
        for m in classes.members(stack.pop()):
            costs[m] = cost(m)
            for x in m.inputs:
                if x not in seen:
                    seen.add(x)
                    stack.append(x)
    return {m: c for m, c in costs.items() if c != float("inf")}


def _by_trees(classes: Classes, costs: dict[Node, float]) -> dict[Node, Node]:
    """For each class the member whose tree is cheapest."""
    users: dict[Node, list[Node]] = {}
    missing: dict[Node, int] = {}
    for m in costs:
        operands = dict.fromkeys(m.inputs)
        missing[m] = len(operands)
        for x in operands:
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


def _rebuilt(leaders: Sequence[Node], members: dict[Node, Node]) -> _Rebuilt:
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


def _highs() -> Any:
    try:
        import highspy
    except ImportError:
        raise Unsupported(
            "choosing among equal graphs needs highspy", hint="pip install 'tilewright[superopt]'"
        ) from None
    return highspy


@dataclass(frozen=True)
class _Solved:
    """The members that were chosen, if any, and what is in `Choice`."""

    members: dict[Node, Node] | None
    cost: float
    best: bool
    late: bool


class _Program:
    """Whether a member is taken, whether its class is, and where the class is in an order."""

    def __init__(
        self,
        classes: Classes,
        roots: Sequence[Node],
        costs: dict[Node, float],
        start: Iterable[Node],
        by_tree: dict[Node, Node],
    ) -> None:
        # A member can be taken where all of its operands can.
        self.members = [m for m in costs if all(x in by_tree for x in m.inputs)]
        self.classes = list(dict.fromkeys(map(classes.leader, self.members)))
        self.home = [classes.leader(m) for m in self.members]
        self.roots, self.costs = roots, costs
        self.start, self.by_tree = list(start), by_tree
        self.of_member = {m: k for k, m in enumerate(self.members)}
        count = len(self.members)
        self.of_class = {c: count + k for k, c in enumerate(self.classes)}
        self.of_order = {c: count + len(self.classes) + k for k, c in enumerate(self.classes)}

    def solved(self, seconds: float, gap: float, choices: int) -> _Solved:
        highspy = _highs()
        h = highspy.Highs()
        h.setOptionValue("output_flag", False)
        h.setOptionValue("time_limit", float(seconds))
        h.setOptionValue("mip_rel_gap", gap)
        h.setOptionValue("mip_max_nodes", choices)
        h.setOptionValue("threads", 1)  # the same choice on every machine
        m, c = len(self.members), len(self.classes)
        scale = max((x for x in self.costs.values()), default=1.0) or 1.0
        objective = np.array([self.costs[x] / scale for x in self.members] + [0.0] * (2 * c))
        upper = np.array([1.0] * (m + c) + [float(c)] * c)
        lower = np.zeros(m + 2 * c)
        for r in self.roots:
            lower[self.of_class[r]] = 1
        h.addVars(m + 2 * c, lower, upper)
        columns = np.arange(m + 2 * c, dtype=np.int32)
        h.changeColsCost(len(columns), columns, objective)
        # A class is taken in the measure of its members: those alone are whole numbers.
        whole = np.full(m, highspy.HighsVarType.kInteger)
        h.changeColsIntegrality(m, columns[:m], whole)
        inf = highspy.kHighsInf

        def row(low: float, entries: dict[int, float]) -> None:
            at = np.fromiter(entries, np.int32)
            h.addRow(low, inf, len(at), at, np.fromiter(entries.values(), np.float64))

        inside: dict[Node, list[int]] = {}
        for k, home in enumerate(self.home):
            inside.setdefault(home, []).append(k)
        for home, ks in inside.items():
            row(0.0, {**dict.fromkeys(ks, 1.0), self.of_class[home]: -1.0})
        cyclic = self._cyclic()
        for k, x in enumerate(self.members):
            for y in dict.fromkeys(x.inputs):
                row(0.0, {self.of_class[y]: 1.0, k: -1.0})
                if self.home[k] in cyclic and cyclic[self.home[k]] == cyclic.get(y):
                    # order(home) >= order(operand) + 1 where the member is taken
                    before, after = self.of_order[y], self.of_order[self.home[k]]
                    if before == after:
                        h.changeColBounds(k, 0.0, 0.0)
                    else:
                        row(-float(c), {after: 1.0, before: -1.0, k: -float(c + 1)})
        self._begin(h, highspy)
        h.run()
        info, solution = h.getInfo(), h.getSolution()
        status, known = h.getModelStatus(), highspy.HighsModelStatus
        late, best = status == known.kTimeLimit, status == known.kOptimal
        if info.primal_solution_status != 2:  # none was found in time
            return _Solved(None, float("inf"), False, late)
        taken: dict[Node, Node] = {}
        for k, x in enumerate(self.members):
            if solution.col_value[k] > 0.5:
                taken.setdefault(self.home[k], x)
        used = _rebuilt(self.roots, taken).chosen
        return _Solved(taken, sum(self.costs[taken[n]] for n in used), best, late)

    def _begin(self, h: Any, highspy: Any) -> None:
        """The choice by trees as the solution to begin with."""
        values = np.zeros(len(self.members) + 2 * len(self.classes))
        for k, n in enumerate(self.start):
            values[self.of_member[self.by_tree[n]]] = values[self.of_class[n]] = 1
            values[self.of_order[n]] = k
        solution = highspy.HighsSolution()
        solution.col_value = list(values)
        h.setSolution(solution)

    def _cyclic(self) -> dict[Node, int]:
        """Classes from which members lead back, by the number of their component: only these need
        an order."""
        below: dict[Node, dict[Node, None]] = {c: {} for c in self.classes}
        for k, x in enumerate(self.members):
            below[self.home[k]] |= dict.fromkeys(x.inputs)
        return components(below)


def components(below: dict[Node, dict[Node, None]]) -> dict[Node, int]:
    """Strongly connected components with more than one node or with an edge to itself."""
    index: dict[Node, int] = {}
    low: dict[Node, int] = {}
    on: dict[Node, None] = {}
    out: dict[Node, int] = {}
    for root in below:
        if root in index:
            continue
        index[root] = low[root] = len(index)
        on[root] = None
        stack = [(root, iter(below[root]))]
        while stack:
            n, edges = stack[-1]
            for x in edges:
                if x not in index:
                    index[x] = low[x] = len(index)
                    on[x] = None
                    stack.append((x, iter(below[x])))
                    break
                if x in on:
                    low[n] = min(low[n], index[x])
            else:
                stack.pop()
                if stack:
                    low[stack[-1][0]] = min(low[stack[-1][0]], low[n])
                if low[n] == index[n]:
                    part = []
                    while not part or part[-1] is not n:
                        part.append(on.popitem()[0])
                    if len(part) > 1 or n in below[n]:
                        number = len(out)
                        out |= dict.fromkeys(part, number)
    return out
