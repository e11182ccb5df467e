"""Ways to search a space: what they propose, without a clock."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from importlib.util import find_spec
from random import Random

import pytest

from tests.tune.fake_measuring import Fake
from tests.tune.space.test_made import PRODUCT, TRANSPOSED, made
from tilewright.base.errors import Invalid
from tilewright.kernel.defaults.scheduler import Applied
from tilewright.kernel.group import Group
from tilewright.kernel.step import Trace
from tilewright.kernel.steps.parallel import Parallel
from tilewright.kernel.steps.split import Split
from tilewright.targets import default
from tilewright.tune.models.analytic import Analytic
from tilewright.tune.proposing import HERE
from tilewright.tune.search import WAYS, search_named
from tilewright.tune.search.state import Measured, P, Progress, State
from tilewright.tune.space.space import SKETCH, Point, Space, parse_space
from tilewright.tune.tuner import Tuning

SMALL = parse_space("""
n = ordered(4, 8, 16, 32, default=8)
threads = choice(False, True, default=True)
Split(loop='y.j', factor=n)
if threads == True: Parallel(loop='y.i')
""")


def state(space: Space, seed: int = 0, group: Group = TRANSPOSED) -> State:
    return State(group, default(), space, Analytic(), Random(seed))


def seconds(p: Point) -> float:
    """What a clock would say: a function of the schedule alone."""
    sizes = [s.factor for s in p.trace if isinstance(s, Split)]
    shared = any(isinstance(s, Parallel) for s in p.trace)
    return sum(abs(n - 16) for n in sizes) + (1.0 if shared else 2.0)


def searched(name: str, space: Space, rounds: int, count: int, seed: int = 0) -> list[Point]:
    """All that a search proposes while it is told how fast each is."""
    search, s, found = search_named(name), state(space, seed), list[Point]()
    for _ in range(rounds):
        points = search.propose(s, count)
        assert len(points) <= count
        for p in points:
            s.seen.add(p.trace)
            s.measured.append(Measured(p, seconds(p)))
        found += points
    return found


def traces(points: Sequence[Point]) -> list[Trace]:
    return [p.trace for p in points]


ways = pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.skipif(
            n == "bayesian" and find_spec("optuna") is None, reason="needs the extra `tune`"
        ))
        for n in WAYS
    ],
)  # fmt: skip


@ways
def test_the_same_seed_gives_the_same_proposals(name: str) -> None:
    one, two = (traces(searched(name, SMALL, 2, 3)) for _ in range(2))
    assert one == two and one


@ways
def test_nothing_is_proposed_twice_and_all_are_found(name: str) -> None:
    found = traces(searched(name, SMALL, 12, 3))
    assert len(set(found)) == len(found)
    if name != "bayesian":  # which may ask for the same again and again
        assert len(found) == 8


LARGER = parse_space(f"""
n = ordered({", ".join(map(str, range(1, 35)))}, default=3)
m = ordered({", ".join(map(str, range(1, 22)))}, default=2)
Split(loop='y.j', factor=n)
Split(loop='y.i', factor=m)
""")


@pytest.mark.parametrize("name", ["evolution", "annealing", "descent", "random"])
def test_a_search_finds_what_is_fast(name: str) -> None:
    found = searched(name, LARGER, 5, 6)
    assert min(map(seconds, found)) < seconds(LARGER.replay(TRANSPOSED, {}))


def test_sketches_are_measured_first() -> None:
    space = made(TRANSPOSED)
    count = len(space.named[SKETCH].values) - 1
    s = state(space)
    s.seen.add(space.replay(TRANSPOSED, {}).trace)
    known = {space.replay(TRANSPOSED, {SKETCH: k}).trace for k in range(1, count + 1)}
    assert len(s.sketches()) == len(known)
    first = search_named("evolution").propose(s, 8)
    assert len(known & set(traces(first))) == min(6, len(known)) and len(first) == 8


def test_what_no_compiler_would_finish_is_no_proposal() -> None:
    long = parse_space("""
wide = choice(True, False, default=False)
if wide == True: Unroll(loop='y.i')
Unroll(loop='y.j')
""")
    s = state(long, group=PRODUCT)
    assert s.point({"wide": False}) is not None and s.point({"wide": True}) is None
    assert {s.draw() is None for _ in range(20)} == {True, False}


def test_points_share_nests_until_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is how many nests are held, and not how many points were asked for."""
    monkeypatch.setattr("tilewright.tune.search.state.MOST_APPLIED", 4)
    s = state(SMALL)
    first = s.applied
    for _ in range(10):
        s.point({"n": 8})
    assert s.applied is first and first.count == 2
    for n in (4, 16, 32):
        s.point({"n": n})
    assert s.applied is not first


def test_nests_are_freed_without_a_collection_of_garbage() -> None:
    """A refusal that is remembered does not hold what remembers it."""
    space = parse_space("n = ordered(8, 0, default=8)\nSplit(loop='y.j', factor=n)\n")
    s = state(space)
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            assert s.point({"n": 0}) is None and s.point({"n": 8}) is not None
        held = weakref.ref(s.applied)
        s.applied = Applied()
        assert held() is None
    finally:
        gc.enable()


def test_no_garbage_is_collected_while_a_search_proposes() -> None:
    class Asked:
        name = "asked"

        def propose(self, state: Progress[P], count: int) -> list[P]:
            assert not gc.isenabled()
            return []

    made = Tuning(TRANSPOSED, default(), Fake(default()), Asked(), Analytic(), space=None)
    assert gc.isenabled()
    assert HERE.asked(made, 8)().given == ()
    assert gc.isenabled()


def test_an_unknown_search_is_told() -> None:
    with pytest.raises(Invalid, match="no search called 'luck'"):
        search_named("luck")
