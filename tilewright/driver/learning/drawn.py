"""One group of a program drawn at random, and schedules of it."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from tilewright.base.events import Log
from tilewright.driver.learning.families import FAMILIES, program
from tilewright.driver.program.compile import split
from tilewright.driver.program.options import Options
from tilewright.driver.program.schedules import Numbers, by_first_use, group_of
from tilewright.graph.fuse import fuse
from tilewright.graph.memory import plan
from tilewright.ir.node import Graph
from tilewright.ir.rewrite import subgraphs
from tilewright.ir.target import Target
from tilewright.kernel.group import Group
from tilewright.tune.candidates import points
from tilewright.tune.models.analytic import Analytic
from tilewright.tune.search.state import State
from tilewright.tune.space.made import space_of
from tilewright.tune.space.space import Point

# Of the schedules, these parts are drawn at random, and are a few decisions away from others; of
# the rest the analytic model prefers one of so many: a search meets more of these than of others.
AT_RANDOM, NEAR = 0.3, 0.4
OF = 3
PATIENCE = 6  # draws for each schedule that is wanted
# A group computes at least so many points, or another is drawn: calls of less are the clock's.
FEWEST_POINTS = 20_000
MOST_DRAWS = 20


def family_of(draw: int) -> str:
    names = list(FAMILIES)
    return names[draw % len(names)]


def group_of_draw(draw: int, seed: int, target: Target) -> Group:
    """What computes most of the program with this number, as the compiler cuts it into kernels."""
    drawn: list[Group] = []
    for k in range(MOST_DRAWS):
        made = program(family_of(draw), f"{seed}_{draw}_{k}")
        drawn.append(max(groups_of(made, target), key=points))
        if points(drawn[-1]) >= FEWEST_POINTS:
            break
    return max(drawn, key=points)


def groups_of(graph: Graph, target: Target) -> list[Group]:
    """The groups of the kernels that every call of a program runs."""
    parts = split(graph, Options(), target, Log())
    fused = fuse(parts.main, target, Log())
    placed = plan(fused)
    return [
        group_of(by_first_use(c), placed, Numbers())
        for c in fused.clusters
        if not any(subgraphs(n.op) for n in c.nodes)
    ]


def schedules(group: Group, target: Target, count: int, rng: Random) -> list[Point]:
    """The default schedule, then distinct others: fewer than asked for where there are no more."""
    state = State(group, target, space_of(group, target), Analytic(), rng)
    first = state.space.replay(group, state.space.default, state.applied)
    found = {first.trace: first}

    def add(points: Iterable[Point | None], most: int) -> None:
        for p in points:
            if len(found) >= most:
                break
            if p is not None:
                found.setdefault(p.trace, p)

    def near() -> Point | None:
        start = rng.choice(list(found.values()))
        return state.point(state.neighbour(start.given, rng.choice((1, 1, 2, 3))))

    apart = round(AT_RANDOM * count)
    add((state.draw() for _ in range(PATIENCE * apart)), 1 + apart)
    near_count = round(NEAR * count)
    add((near() for _ in range(PATIENCE * near_count)), 1 + apart + near_count)
    left = 1 + count - len(found)
    met = {p.trace: p for _ in range(OF * left) if (p := near()) is not None}
    add(state.ranked([p for t, p in met.items() if t not in found]), 1 + count)
    return list(found.values())
