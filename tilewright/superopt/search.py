"""The search: all graphs equal to one by the rules, and the cheapest of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from tilewright import rewrites
from tilewright.ir.node import Graph, Node, topological
from tilewright.ir.pattern import Rule
from tilewright.ir.target import Target
from tilewright.rewrites.proofs.equality import nodes_equal
from tilewright.superopt.applied import rules_of
from tilewright.superopt.blocks import Sizes
from tilewright.superopt.classes import Classes, Proved
from tilewright.superopt.extract import cheapest
from tilewright.superopt.merge import Merge, merged, merges
from tilewright.superopt.pieces import pieces, substituted
from tilewright.superopt.records import FOLDER, read
from tilewright.superopt.saturate import Budget, saturate
from tilewright.superopt.seconds import Seconds, constant_classes
from tilewright.superopt.terms import Equality, leaves

_OUT_OF_RANGE = frozenset(("exp", "exp2", "expm1"))


@cache
def mined_rules() -> dict[str, Equality]:
    """The rules of all files that come with the compiler, by the file and their place in it."""
    files = sorted(FOLDER.glob("*.json"))
    return {f"{path.stem}-{k}": e for path in files for k, e in enumerate(read(path))}


@cache
def searched_rules() -> tuple[Rule, ...]:
    """Mined rules in both directions, and those written by hand."""
    found = mined_rules().items()
    mined = (r for name, e in found if holds_of_floats(e) for r in rules_of(e, name))
    by_hand = (r for rs in rewrites.rules("rounding").by_root.values() for r in rs)
    return (*mined, *by_hand)


def holds_of_floats(e: Equality) -> bool:
    """Is what is equal of real numbers the same of floats, but for rounding? Exponentials leave
    their range where a sum of exponents does not, and a number that cancels, as in (x + y) - y,
    may be there for its rounding."""
    left, right = e.nodes(Sizes.symbolic(e.symbols))
    names = {n.op.name for n in topological((left, right))}
    if names & _OUT_OF_RANGE:
        return False
    same = set(leaves(e.left)) == set(leaves(e.right))
    return same or nodes_equal(left, right, "bits")


@cache
def searched_merges() -> tuple[Merge, ...]:
    return tuple(merges(mined_rules()))


@dataclass(frozen=True)
class Found:
    """The graph that was chosen, what both cost by the estimate, how the search went, the operators
    that are gone and those that are new, and the applications of rules that prove both graphs
    equal, each after those that it needs."""

    given: Graph
    graph: Graph
    before: float
    after: float
    best: bool
    ended: str
    members: int
    applied: Counter[str]
    removed: frozenset[Node] = frozenset()
    added: frozenset[Node] = frozenset()
    proof: tuple[Proved, ...] = ()


def search(
    graph: Graph, target: Target, budget: Budget, rules: Sequence[Rule] | None = None
) -> Found:
    """The cheapest graph equal to this one that was found within the budget."""
    until = time.monotonic() + budget.seconds
    classes = Classes(graph.outputs)
    rules = searched_rules() if rules is None else rules
    found = saturate(classes, rules, budget)
    for n, other, why in list(merged(classes, searched_merges(), constant_classes(classes))):
        classes.add(other)
        found.applied[why.rule] += classes.join(n, other, why)
    classes.settle()
    cost = Seconds(target, constant_classes(classes))
    left = max(until - time.monotonic(), budget.seconds / 4)
    chosen = cheapest(classes, graph.outputs, cost, left)
    live = set(topological(chosen.roots))
    places = {n: p for n, p in graph.places.items() if n in live}
    made = replace(graph, outputs=chosen.roots, places=places)
    before, after = estimated(graph, target), estimated(made, target)
    said = chosen.best, found.ended, len(classes), found.applied
    if after >= before:
        return Found(graph, graph, before, before, *said)
    own = {n: classes.over_leaders(n) for n in topological(graph.outputs)}
    taken = set(chosen.members.values())
    removed = frozenset(n for n, m in own.items() if m not in taken)
    known = set(own.values())
    added = frozenset(chosen.made[n] for n, m in chosen.members.items() if m not in known)
    leaders = ((n, classes.leader(n)) for n in graph.outputs)
    proof = classes.why([*leaders, *chosen.members.items()])
    return Found(graph, made, before, after, *said, removed, added, tuple(proof))


@dataclass(frozen=True)
class Whole:
    """A graph put together from what was found of its pieces; how often each piece occurs."""

    graph: Graph
    pieces: int
    found: tuple[tuple[Found, int], ...]


def search_pieces(graph: Graph, target: Target, budget: Budget, most: int) -> Whole:
    """A search of each part of at most so many operators. Parts that do the same are one."""
    parts = pieces(graph, most)
    counts = Counter(p.graph for p in parts)
    until = time.monotonic() + budget.seconds
    found: dict[Graph, Found] = {}
    for k, part in enumerate(counts):
        seconds = max(0.0, until - time.monotonic()) / (len(counts) - k)
        found[part] = search(part, target, replace(budget, seconds=seconds))
    made: dict[Node, Node] = {}
    for p in parts:
        table = {x: made.get(n, n) for x, n in zip(p.graph.inputs, p.bound, strict=True)}
        new = substituted(found[p.graph].graph.outputs, table)
        made |= zip(p.outputs, new, strict=True)
    whole = graph.with_outputs((made.get(n, n) for n in graph.outputs), made)
    return Whole(whole, len(parts), tuple((found[g], times) for g, times in counts.items()))


def estimated(graph: Graph, target: Target) -> float:
    """Seconds of a graph by the estimate of the search."""
    cost = Seconds(target, constant_classes(Classes(graph.outputs)))
    return sum(map(cost, topological(graph.outputs)))
