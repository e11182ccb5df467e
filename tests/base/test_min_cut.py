"""Cuts of small networks, against all cuts that there are."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.seeds import drawn
from tilewright.base.min_cut import INFINITE, Network

Edge = tuple[int, int, int]


def network(count: int, edges: list[Edge]) -> Network:
    made = Network()
    for _ in range(count - 2):
        made.node()
    for a, b, size in edges:
        made.edge(a, b, size)
    return made


def cost(side: tuple[bool, ...] | list[bool], edges: list[Edge]) -> int:
    return sum(size for a, b, size in edges if side[a] and not side[b])


@pytest.mark.parametrize("seed", drawn(range(200), quick=20))
def test_no_cut_is_cheaper(seed: int) -> None:
    r = random.Random(seed)
    count = r.randint(2, 9)
    edges = [
        (r.randrange(count), r.randrange(count), r.choice((0, 1, 2, 5, 9)))
        for _ in range(r.randint(1, 25))
    ]
    found = network(count, edges).source_side()
    assert found[0] and not found[1]
    every = itertools.product((True, False), repeat=count - 2)
    assert cost(found, edges) == min(cost((True, False, *rest), edges) for rest in every)


def test_a_long_chain_with_edges_that_cannot_be_cut() -> None:
    """Nothing recurses along it, and the cheap edge in its middle is found."""
    n = 20000
    inner = range(2, n)
    edges = [(a, b, INFINITE) for a, b in itertools.pairwise((0, *inner, 1))]
    edges[n // 2] = (edges[n // 2][0], edges[n // 2][1], 3)
    found = network(n, edges).source_side()
    assert cost(found, edges) == 3
