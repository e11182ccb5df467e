"""A search by backtracking: graphs in a queue, the cheapest first.

Each graph that is taken out is changed by every rule wherever it matches. What that gives joins the
queue unless it costs clearly more than the best graph so far, so a way may lead through graphs that
are a little worse. Unlike saturation it needs no solver, and sees one graph at a time.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tilewright.ir.node import Node, topological
from tilewright.ir.pattern import Rule, itself
from tilewright.ir.rewrite import RuleSet
from tilewright.superopt.classes import Because, Classes
from tilewright.superopt.merge import Merge, Merged, merged
from tilewright.superopt.pieces import substituted
from tilewright.superopt.saturate import Budget
from tilewright.superopt.seconds import Seconds, is_known

Roots = tuple[Node, ...]
Step = tuple[Merged, ...]
"""Nodes, what takes their places at once, and why."""


@dataclass(frozen=True)
class Walked:
    """The cheapest graph, the steps that lead to it, how the search ended, how many operators were
    seen, and how often each rule gave a graph that was kept."""

    roots: Roots
    steps: tuple[Step, ...]
    ended: str  # "nothing left", "graphs", "members" or "seconds"
    members: int
    applied: Counter[str]

    def classes(self, given: Iterable[Node]) -> Classes:
        """What the steps say is equal."""
        classes = Classes(given)
        for step in self.steps:
            for n, other, why in step:
                classes.add(n), classes.add(other)
                classes.join(n, other, why)
            classes.settle()
        return classes


def walk(
    roots: Roots,
    rules: Sequence[Rule],
    merges: Sequence[Merge],
    cost: Seconds,
    budget: Budget,
) -> Walked:
    """Counts decide what is found; seconds are a last resort."""
    steps, prices = _Steps(RuleSet.of(rules), merges), _Prices(cost)
    until, most = time.monotonic() + budget.seconds, len(topological(roots)) + budget.members
    came: dict[Roots, tuple[Roots, Step]] = {}
    seen, best, least = {roots}, roots, prices.total(roots)
    queue = [(least, 0, roots)]
    applied: Counter[str] = Counter()
    ended, looked = "nothing left", 0
    while queue and ended == "nothing left":
        price, _, graph = heapq.heappop(queue)
        if price > budget.worse * least:
            break
        looked += 1
        for step in steps.of(graph, prices.constant):
            made = substituted(graph, {n: other for n, other, _ in step})
            if made in seen:
                continue
            seen.add(made)
            price = prices.total(made)
            if price < budget.worse * least:
                came[made] = graph, step
                applied[step[0][2].rule] += 1
                heapq.heappush(queue, (price, len(seen), made))
            if price < least:
                best, least = made, price
            if len(prices.known) > most or time.monotonic() > until:
                ended = "members" if len(prices.known) > most else "seconds"
                break
        if looked >= budget.graphs and queue:
            ended = "graphs"
    taken: list[Step] = []
    graph = best
    while graph in came:
        graph, step = came[graph]
        taken.append(step)
    return Walked(best, tuple(reversed(taken)), ended, len(prices.known), applied)


@dataclass
class _Prices:
    """What operators cost, each looked at once."""

    cost: Seconds
    known: dict[Node, float] = field(default_factory=dict)

    @property
    def constant(self) -> set[Node]:
        return self.cost.constant

    def total(self, roots: Roots) -> float:
        return sum(map(self._of, topological(roots)))

    def _of(self, n: Node) -> float:
        found = self.known.get(n)
        if found is None:
            if is_known(n) or (n.inputs and self.constant.issuperset(n.inputs)):
                self.constant.add(n)
            found = self.known[n] = self.cost(n)
        return found


@dataclass
class _Steps:
    """What rules make of nodes, each looked at once, and what operators that share an operand
    become together."""

    table: RuleSet
    merges: Sequence[Merge]
    known: dict[Node, tuple[Step, ...]] = field(default_factory=dict)

    def of(self, roots: Roots, constant: set[Node]) -> Iterator[Step]:
        found: dict[Node, list[Merged]] = {}
        for n, part, why in merged(Classes(roots), self.merges, constant):
            found.setdefault(part.inputs[0], []).append((n, part, why))
        yield from map(tuple, found.values())
        for n in topological(roots):
            if n not in self.known:
                self.known[n] = tuple(self._at(n))
            yield from self.known[n]

    def _at(self, n: Node) -> Iterator[Step]:
        for rule in self.table.by_root.get(n.op.name, ()):
            for out, _ in rule.everywhere(n, itself):
                yield ((n, out, Because(rule.label)),)
