"""The search: all graphs equal to one by the rules, and the cheapest of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

from tilewright import rewrites
from tilewright.ir.node import Graph, Input, Node, topological
from tilewright.ir.pattern import Rule
from tilewright.ir.target import Target
from tilewright.rewrites.proofs.equality import nodes_equal
from tilewright.superopt.applied import BACK, of_several, rules_of
from tilewright.superopt.blocks import Sizes
from tilewright.superopt.classes import Classes, Proved
from tilewright.superopt.extract import cheapest
from tilewright.superopt.merge import Merge, merged, merged_by_weights, merges
from tilewright.superopt.pieces import pieces, rewritten, substituted
from tilewright.superopt.queue import Step, Walked, walk
from tilewright.superopt.records import FOLDER, read
from tilewright.superopt.regroup import Regrouping, regroupings
from tilewright.superopt.saturate import Budget, saturate
from tilewright.superopt.seconds import Measured, Seconds, constant_classes, operators
from tilewright.superopt.terms import Equality, leaves

K = TypeVar("K")
V = TypeVar("V")

_OUT_OF_RANGE = frozenset(("exp", "exp2", "expm1"))


@cache
def mined_rules() -> dict[str, Equality]:
    """The rules of all files that come with the compiler, by the file and their place in it."""
    files = sorted(FOLDER.glob("*.json"))
    return {f"{path.stem}-{k}": e for path in files for k, e in enumerate(read(path))}


@cache
def searched_rules() -> tuple[Rule, ...]:
    """Mined rules in both directions, and those written by hand, with those that move batch
    normalisation into weights: what they gain is judged here."""
    found = mined_rules().items()
    mined = [r for name, e in found if holds_of_floats(e) for r in rules_of(e, name)]
    several = (r for rule in mined if (r := of_several(rule)) is not None)
    tables = (rewrites.rules("rounding", f) for f in ((), ("batch_norm",)))
    by_hand = (r for table in tables for rs in table.by_root.values() for r in rs)
    return (*mined, *several, *by_hand)


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


@cache
def searched_orders() -> dict[str, Regrouping]:
    """Rules that say nothing but that operands may be taken in any order."""
    return regroupings(mined_rules())


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

    def operators(self) -> dict[str, Graph]:
        """Those of which it depends whether the new graph is faster, as graphs of their own."""
        out: dict[str, Graph] = {}
        for g, some in ((self.given, self.removed), (self.graph, self.added)):
            constant = constant_classes(Classes(g.outputs))
            out |= operators((n for n in g.nodes() if n in some), constant)
        return out


@dataclass(frozen=True)
class _Explored:
    """What a way to search gives: roots of the cheapest graph, whether none is cheaper, how it
    ended, how many operators it saw, how often rules were applied, and what is equal to what."""

    roots: tuple[Node, ...]
    best: bool
    ended: str
    members: int
    applied: Counter[str]
    classes: Classes


@dataclass(frozen=True)
class _Equal:
    """All that was found to be equal, how that ended, and how often rules were applied."""

    classes: Classes
    ended: str
    applied: Counter[str]


_equal: dict[tuple[Graph, Budget], _Equal] = {}
REMEMBERED = 100


def _all_equal(graph: Graph, budget: Budget, rules: Sequence[Rule]) -> _Equal:
    """By all rules, as often as the budget allows. It does not depend on what operators cost, so a
    search that is made again with other costs has it already."""
    key = graph, replace(budget, seconds=0.0)
    known = _equal.get(key) if rules is searched_rules() else None
    if known is not None:
        return known
    classes = Classes(graph.outputs)
    orders = searched_orders()
    found = saturate(
        classes,
        [r for r in rules if r.name.removesuffix(BACK) not in orders],
        budget,
        constant_classes,
        [orders[r.name] for r in rules if r.name in orders],
    )
    for n, other, why in list(merged(classes, searched_merges(), constant_classes(classes))):
        classes.add(other)
        found.applied[why.rule] += classes.join(n, other, why)
    classes.settle()
    made = _Equal(classes, found.ended, found.applied)
    if rules is searched_rules() and found.ended != "seconds":
        _remember(_equal, key, made)
    return made


def _remember(table: dict[K, V], key: K, value: V) -> None:
    while len(table) >= REMEMBERED:
        table.pop(next(iter(table)))
    table[key] = value


def _saturated(graph: Graph, cost: Seconds, budget: Budget, rules: Sequence[Rule]) -> _Explored:
    """All graphs at once, and the cheapest of them."""
    until = time.monotonic() + budget.seconds
    equal = _all_equal(graph, budget, rules)
    classes = equal.classes
    left = max(until - time.monotonic(), budget.seconds / 4)
    constant = constant_classes(classes)
    cost = replace(cost, constant=constant)
    inputs = (n for n in classes if any(isinstance(m.op, Input) for m in classes.members(n)))
    free = constant.union(inputs)
    chosen = cheapest(classes, graph.outputs, cost, left, choices=budget.choices, free=free)
    ended = "seconds" if chosen.late else equal.ended
    return _Explored(chosen.roots, chosen.best, ended, len(classes), equal.applied, classes)


def _walked(graph: Graph, cost: Seconds, budget: Budget, rules: Sequence[Rule]) -> _Explored:
    """One graph after the other, the cheapest first."""
    found = walk(graph.outputs, rules, searched_merges(), cost, budget)
    equal = found.classes(graph.outputs)
    return _Explored(found.roots, False, found.ended, found.members, found.applied, equal)


def _by_weights(graph: Graph, cost: Seconds, budget: Budget, rules: Sequence[Rule]) -> _Explored:
    """Operators with the same weights as one, wherever that is cheaper; no other rules."""
    steps: list[Step] = []
    roots, going = graph.outputs, True
    while going:
        going, classes = False, Classes(roots)
        constant = constant_classes(classes)
        price = replace(cost, constant=constant)
        for step in merged_by_weights(classes, searched_merges(), constant):
            old, new = {n for n, _, _ in step}, topological((o for _, o, _ in step), stop=classes)
            if sum(map(price, new)) < sum(map(price, old)):
                roots, going = rewritten(roots, {n: other for n, other, _ in step}), True
                steps.append(step)
                break
    applied = Counter(step[0][2].rule for step in steps)
    walked = Walked(roots, tuple(steps), "nothing left", 0, applied)
    equal = walked.classes(graph.outputs)
    return _Explored(roots, False, walked.ended, len(equal), applied, equal)


WAYS = {"saturation": _saturated, "queue": _walked, "weights": _by_weights}


def search(
    graph: Graph,
    target: Target,
    budget: Budget,
    rules: Sequence[Rule] | None = None,
    by: str = "saturation",
    measured: Measured | None = None,
) -> Found:
    """The cheapest graph equal to this one that was found within the budget, by an estimate and by
    what was measured of operators."""
    rules = searched_rules() if rules is None else rules
    constant = constant_classes(Classes(graph.outputs))
    cost = Seconds(target, constant, {} if measured is None else measured).scaled(graph.nodes())
    explored = WAYS[by](graph, replace(cost, constant=set()), budget, rules)
    live = set(topological(explored.roots))
    places = {n: p for n, p in graph.places.items() if n in live}
    made = replace(graph, outputs=explored.roots, places=places)
    before, after = (_total(g, cost) for g in (graph, made))
    said = explored.best, explored.ended, explored.members, explored.applied
    if after >= before:
        return Found(graph, graph, before, before, *said)
    classes = explored.classes
    for n in made.outputs:
        classes.add(n)
    old, new = ({n: classes.over_leaders(n) for n in g.nodes()} for g in (graph, made))
    removed, added = (
        frozenset(n for n, m in some.items() if m not in others)
        for some, others in ((old, {*new.values()}), (new, {*old.values()}))
    )
    proof = classes.why(zip(graph.outputs, made.outputs, strict=True))
    return Found(graph, made, before, after, *said, removed, added, tuple(proof))


@dataclass(frozen=True)
class Whole:
    """A graph put together from what was found of it as a whole and then of its pieces; how often
    each occurs."""

    graph: Graph
    pieces: int
    different: int  # of these
    found: tuple[tuple[Found, int], ...]
    before: float  # seconds by the estimate
    after: float


def search_pieces(
    graph: Graph,
    target: Target,
    budget: Budget,
    most: int,
    by: str = "saturation",
    measured: Measured | None = None,
) -> Whole:
    """A search of each part of at most so many operators. Parts that do the same are one, and one
    that takes less than a kernel needs to start is left as it is: nobody could measure what is
    gained. Seconds are for all of them together."""
    until, measured = time.monotonic() + budget.seconds, measured or {}
    first = _remembered(graph, target, budget, "weights", measured)
    parts = pieces(first.graph, most)
    counts = Counter(p.graph for p in parts)
    found: dict[Graph, Found] = {}
    start = target.region / (target.mhz * 1e6)
    for part in counts:
        took = _total(part, Seconds(target, measured=measured))
        if took < start:
            found[part] = Found(part, part, took, took, True, "little to gain", 0, Counter())
            continue
        left = max(0.0, until - time.monotonic())
        found[part] = _remembered(part, target, replace(budget, seconds=left), by, measured)
    made: dict[Node, Node] = {}
    for p in parts:
        table = {x: made.get(n, n) for x, n in zip(p.graph.inputs, p.bound, strict=True)}
        new = substituted(found[p.graph].graph.outputs, table)
        made |= zip(p.outputs, new, strict=True)
    outputs = first.graph.outputs
    whole = first.graph.with_outputs((made.get(n, n) for n in outputs), made)
    listed = [(first, 1)] if first.proof else []
    listed += ((found[g], times) for g, times in counts.items())
    after = _total(whole, Seconds(target, measured=measured))
    return Whole(whole, len(parts), len(counts), tuple(listed), first.before, after)


class _Noted(dict[str, float]):
    """What was measured, and what was looked up of it."""

    def __init__(self, measured: Measured) -> None:
        super().__init__(measured)
        self.asked: dict[str, float | None] = {}

    def __getitem__(self, key: str) -> float:
        self.asked[key] = None
        self.asked[key] = found = super().__getitem__(key)
        return found


_found: dict[tuple[object, ...], tuple[dict[str, float | None], Found]] = {}


def _remembered(graph: Graph, target: Target, budget: Budget, by: str, measured: Measured) -> Found:
    """A search of the same graph finds the same, so it is not made again where all is as it was
    that it looked up."""
    key = graph, target.key(), replace(budget, seconds=0.0), by
    if key in _found:
        asked, found = _found[key]
        if all(measured.get(k) == v for k, v in asked.items()):
            return found
    noted = _Noted(measured)
    found = search(graph, target, budget, None, by, noted)
    if found.ended != "seconds":
        _remember(_found, key, (noted.asked, found))
    return found


def _total(graph: Graph, cost: Seconds) -> float:
    cost = replace(cost, constant=constant_classes(Classes(graph.outputs)))
    return sum(map(cost, topological(graph.outputs)))
