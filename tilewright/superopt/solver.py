"""A choice among members of classes as an integer program, solved by HiGHS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from tilewright.base.errors import Unsupported
from tilewright.ir.node import Node
from tilewright.superopt.regions import Region

CYCLES = 100  # times that a choice may lead in circles, before none is given


@dataclass(frozen=True)
class Solved:
    """The members that were chosen, by the leaders of their classes, and their cost: infinite where
    there is no choice. Whether less is known to be impossible, and whether a clock ended it."""

    members: Mapping[Node, Node]
    cost: float
    best: bool
    late: bool


def solved(
    region: Region,
    prices: Mapping[Node, float],
    start: Mapping[Node, Node],
    seconds: float,
    gap: float,
    choices: int,
) -> Solved:
    """The cheapest choice by the prices of members and of closed classes. It begins with a choice
    for all classes, if that is one for these."""
    program = _Program(region, prices)
    found = {c: m for c, ms in region.options.items() for m in ms}
    best, late = True, False
    if len(found) < len(program.members):
        found, best, late = program.solved(start, seconds, gap, choices)
    used = program.used(found)
    if used is None:
        return Solved({}, inf, best, late)
    closed = {y for c, m in used.items() for y in region.options[c][m]} & set(region.closed)
    closed |= set(region.roots) & set(region.closed)
    cost = sum(prices[m] for m in used.values()) + sum(prices[c] for c in closed)
    return Solved(used, cost, best, late)


def _highs() -> Any:
    try:
        import highspy
    except ImportError:
        raise Unsupported(
            "choosing among equal graphs needs highspy", hint="pip install 'tilewright[superopt]'"
        ) from None
    return highspy


class _Program:
    """Whether a member is taken, and whether its class is. A class that is taken has one member,
    so a class is needed by all members of another one together."""

    def __init__(self, region: Region, prices: Mapping[Node, float]) -> None:
        self.region, self.prices = region, prices
        self.members = [(c, m) for c, ms in region.options.items() for m in ms]
        classes = (*region.options, *region.closed)
        self.of_class = {c: len(self.members) + k for k, c in enumerate(classes)}
        # Members of one class that need another one.
        self.needing: dict[tuple[Node, Node], list[int]] = {}
        for k, (c, m) in enumerate(self.members):
            for y in region.options[c][m]:
                self.needing.setdefault((c, y), []).append(k)

    def solved(
        self, start: Mapping[Node, Node], seconds: float, gap: float, choices: int
    ) -> tuple[Mapping[Node, Node], bool, bool]:
        """Members, as many as are needed, whether less is impossible, and whether it is late."""
        highspy = _highs()
        h = highspy.Highs()
        h.setOptionValue("output_flag", False)
        h.setOptionValue("time_limit", float(seconds))
        h.setOptionValue("mip_rel_gap", gap)
        h.setOptionValue("mip_max_nodes", choices)
        h.setOptionValue("threads", 1)  # the same choice on every machine
        self._state(h, highspy)
        begun, known = self.used(start), highspy.HighsModelStatus
        late = False
        for _ in range(CYCLES):
            if begun is not None:
                self._begin(h, highspy, begun)
            h.run()
            status = h.getModelStatus()
            late = status == known.kTimeLimit
            if h.getInfo().primal_solution_status != 2:  # none was found in time
                break
            values = h.getSolution().col_value
            taken = {c: m for k, (c, m) in enumerate(self.members) if values[k] > 0.5}
            cycles = self._cycles(taken)
            if not cycles:
                return taken, status == known.kOptimal, late
            if late:
                break
            for cycle in cycles:
                self._forbid(h, cycle)
        return start, False, late

    def _state(self, h: Any, highspy: Any) -> None:
        m, count = len(self.members), len(self.members) + len(self.of_class)
        cost = np.zeros(count)
        for k, (_, n) in enumerate(self.members):
            cost[k] = self.prices[n]
        lower, upper = np.zeros(count), np.ones(count)
        for c in self.region.closed:
            if self.prices[c] == inf:  # nothing computes it
                upper[self.of_class[c]] = 0
            else:
                cost[self.of_class[c]] = self.prices[c]
        for r in self.region.roots:
            lower[self.of_class[r]] = 1
        h.addVars(count, lower, upper)
        columns = np.arange(count, dtype=np.int32)
        h.changeColsCost(count, columns, cost / (cost.max() or 1.0))
        # A class is taken in the measure of its members: those alone are whole numbers.
        h.changeColsIntegrality(m, columns[:m], np.full(m, highspy.HighsVarType.kInteger))
        inside: dict[Node, list[int]] = {c: [] for c in self.region.options}
        for k, (c, _) in enumerate(self.members):
            inside[c].append(k)
        for c, ks in inside.items():
            _row(h, 0.0, 0.0, {**dict.fromkeys(ks, 1.0), self.of_class[c]: -1.0})
        for (c, y), ks in self.needing.items():
            _row(h, 0.0, inf, {self.of_class[y]: 1.0, **dict.fromkeys(ks, -1.0)})
            if (y, c) in self.needing and self.of_class[c] < self.of_class[y]:
                self._forbid(h, (c, y))

    def _forbid(self, h: Any, cycle: Sequence[Node]) -> None:
        """Not every class of a circle needs the next one."""
        ways = zip(cycle, (*cycle[1:], cycle[0]), strict=True)
        ks = [k for way in ways for k in self.needing[way]]
        _row(h, -inf, len(cycle) - 1.0, dict.fromkeys(ks, 1.0))

    def _begin(self, h: Any, highspy: Any, used: Mapping[Node, Node]) -> None:
        """A choice that is known as the solution to begin with."""
        values = np.zeros(len(self.members) + len(self.of_class))
        for k, (c, m) in enumerate(self.members):
            if used.get(c) is m:
                values[k] = values[self.of_class[c]] = 1
                for y in self.region.options[c][m]:
                    values[self.of_class[y]] = 1
        solution = highspy.HighsSolution()
        solution.col_value = list(values)
        h.setSolution(solution)

    def used(self, chosen: Mapping[Node, Node]) -> dict[Node, Node] | None:
        """What is needed of a choice; None where it lacks something or leads in circles."""
        used: dict[Node, Node] = {}
        stack = list(self.region.roots)
        while stack:
            c = stack.pop()
            if c in self.region.options and c not in used:
                m = chosen.get(c)
                if m is None or m not in self.region.options[c]:
                    return None
                used[c] = m
                stack += self.region.options[c][m]
        return None if self._cycles(used) else used

    def _cycles(self, taken: Mapping[Node, Node]) -> list[tuple[Node, ...]]:
        """Circles in a choice, which share no class."""
        options = self.region.options
        below = {c: [y for y in options[c][m] if y in taken] for c, m in taken.items()}
        done: set[Node] = set()
        found: list[tuple[Node, ...]] = []
        for root in below:
            way = {root: iter(below[root])} if root not in done else {}
            while way:
                c = next(reversed(way))
                y = next((y for y in way[c] if y not in done), None)
                if y is None:
                    done.add(c)
                    del way[c]
                elif y not in way:
                    way[y] = iter(below[y])
                else:
                    names = list(way)
                    found.append(tuple(names[names.index(y) :]))
                    done.update(way)
                    break
        return found


def _row(h: Any, low: float, high: float, entries: Mapping[int, float]) -> None:
    at = np.fromiter(entries, np.int32)
    h.addRow(low, high, len(at), at, np.fromiter(entries.values(), np.float64))
