"""The search: all graphs equal to one by the rules, and the cheapest of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from tilewright import rewrites
from tilewright.ir.node import Graph, topological
from tilewright.ir.pattern import Rule
from tilewright.ir.target import Target
from tilewright.superopt.applied import rules_of
from tilewright.superopt.classes import Classes
from tilewright.superopt.extract import cheapest
from tilewright.superopt.merge import Merge, merged, merges
from tilewright.superopt.records import FOLDER, read
from tilewright.superopt.saturate import Budget, saturate
from tilewright.superopt.seconds import Seconds, constant_classes
from tilewright.superopt.terms import Equality


@cache
def mined_rules() -> tuple[Equality, ...]:
    """The rules of all files that come with the compiler."""
    return tuple(dict.fromkeys(e for path in sorted(FOLDER.glob("*.json")) for e in read(path)))


@cache
def searched_rules() -> tuple[Rule, ...]:
    """Mined rules in both directions, and those written by hand."""
    mined = (r for k, e in enumerate(mined_rules()) for r in rules_of(e, f"mined {k}"))
    by_hand = (r for rs in rewrites.rules("rounding").by_root.values() for r in rs)
    return (*mined, *by_hand)


@cache
def searched_merges() -> tuple[Merge, ...]:
    return tuple(merges(mined_rules()))


@dataclass(frozen=True)
class Found:
    """The graph that was chosen, what both cost by the estimate, and how the search went."""

    graph: Graph
    before: float
    after: float
    best: bool
    ended: str
    members: int
    applied: Counter[str]


def search(
    graph: Graph, target: Target, budget: Budget, rules: Sequence[Rule] | None = None
) -> Found:
    """The cheapest graph equal to this one that was found within the budget."""
    classes = Classes(graph.outputs)
    for n in graph.inputs:
        classes.add(n)
    found = saturate(classes, searched_rules() if rules is None else rules, budget)
    # Twice: what was merged may be merged with others by what rules make of it.
    for n, other in [*merged(classes, list(searched_merges()), constant_classes(classes))]:
        classes.join(classes.add(other), n)
    classes.settle()
    cost = Seconds(target, constant_classes(classes))
    chosen = cheapest(classes, graph.outputs, cost, budget.seconds)
    before = sum(_of_graph(graph, target))
    after = Graph(graph.name, graph.inputs, chosen.roots)
    cost_after = sum(_of_graph(after, target))
    return Found(after, before, cost_after, chosen.best, found.ended, len(classes), found.applied)


def _of_graph(graph: Graph, target: Target) -> list[float]:
    classes = Classes(graph.outputs)
    cost = Seconds(target, constant_classes(classes))
    return [cost(n) for n in topological(graph.outputs)]
