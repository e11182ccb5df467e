"""Memory that goes back while a program runs: nobody needs it, and less is there at once."""

from __future__ import annotations

import pytest

from tests.graph.build import TARGET, arg, build, check_run, graph
from tests.graph.random_graphs import random_graph
from tilewright.base.events import Log
from tilewright.graph import freed as module
from tilewright.graph import memory
from tilewright.graph.cluster import Cluster, Fused
from tilewright.graph.freed import Freed, freed
from tilewright.graph.fuse import fuse
from tilewright.graph.memory import Plan, plan

ROWS = 256
BYTES = ROWS * ROWS * 4


def one_by_one(*results) -> Fused:
    """Each operator as a kernel."""
    g = graph(*results)
    made = [n for n in g.nodes() if n.inputs]
    clusters = tuple(Cluster((n,), n.inputs, (n,), "reduce", n) for n in made)
    return Fused(g, clusters, ())


def most_there(f: Fused, p: Plan, gone: list[Freed], spent: int) -> int:
    """Bytes that were used and did not go back, by results that are made one after the other."""
    end, made, there = len(f.clusters), 0, []
    for k, c in enumerate(f.clusters):
        made += sum(BYTES for o in c.outputs if o in p.outputs)
        there.append(spent + made - sum(x.size for x in gone if x.owner and x.after < k))
    assert len(there) == end
    return max(there)


@pytest.mark.parametrize("count", [3, 8])
def test_what_was_kept_goes_while_results_come(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST", 64)
    kept = [arg(f"x{k}", ROWS, ROWS) for k in range(count)]
    f = one_by_one(*(build.exp(x) for x in kept))
    p = plan(f, spent=kept, fresh=True)
    gone = freed(f, p, kept, {})
    assert most_there(f, p, [], count * BYTES) == 2 * count * BYTES
    assert most_there(f, p, gone, count * BYTES) == (count + 1) * BYTES
    # What results replace is enough: the last one needs no other to go.
    assert [x.after for x in gone] == list(range(count - 1))
    assert not freed(f, p, (), {})
    check_run(f, f.graph, p, gone=gone)


def test_nothing_goes_where_that_helps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST", 64)
    x = arg("x", ROWS, ROWS)
    f = one_by_one(build.sum(build.exp(x), (0, 1)))
    assert not freed(f, plan(f, spent=[x]), [x], {})


def test_parts_of_the_arena_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what programs inside a cluster used."""
    monkeypatch.setattr(module, "LEAST", 64)
    x = arg("x", ROWS, ROWS)
    first = build.sum(build.mul(build.exp(x), build.neg(x)), (0, 1))
    results = [build.mul(x, first), build.add(x, first), build.sub(x, first)]
    f = one_by_one(*results)
    p = plan(f)
    gone = freed(f, p, (), {})
    assert gone and all(g.owner is None for g in gone)
    check_run(f, f.graph, p, gone=gone)
    size = p.size
    assert isinstance(size, int)
    inside = freed(f, p, (), {0: (size, size + 4 * BYTES)})
    assert any((g.after, g.start, g.size) == (0, size, 4 * BYTES) for g in inside)


def test_random_graphs_need_nothing_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LENT", 64)
    monkeypatch.setattr(module, "LEAST", 64)
    arenas = inputs = 0
    for seed in range(60):
        g = random_graph(seed, 30)
        f = fuse(g, TARGET, Log())
        p = plan(f, spent=g.inputs, fresh=True)
        gone = freed(f, p, g.inputs, {})
        assert [x.after for x in gone] == sorted(x.after for x in gone)
        check_run(f, g, p, seed, gone)
        arenas += sum(x.owner is None for x in gone)
        inputs += sum(x.owner is not None for x in gone)
    assert arenas > 5 and inputs > 20
