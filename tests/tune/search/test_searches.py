"""Searches: the same seed and the same measurements give the same proposals, no point is proposed
twice, and what is found gets better."""

from __future__ import annotations

from importlib.util import find_spec
from random import Random

import pytest

from tests.tune.fake_measuring import Fake
from tilewright.base.errors import Invalid
from tilewright.kernel.group import Group
from tilewright.kernel.text import parse_group
from tilewright.targets import default
from tilewright.tune.models import model_for
from tilewright.tune.models.analytic import Analytic
from tilewright.tune.search import WAYS, search_named
from tilewright.tune.space.made import space_of
from tilewright.tune.space.space import Space, parse_space
from tilewright.tune.tuner import Tuning

ROWS = """group rows
  in a: f32[24,64]
  out y: f32[24]
  local t: f32[24]
  t[t.i] add= a[t.i,t.r] for t.i in 24, t.r in 64 from 0.0
  y[y.i] = t[y.i] for y.i in 24
"""


@pytest.fixture(scope="module")
def group() -> Group:
    return parse_group(ROWS)


@pytest.fixture(scope="module")
def space(group: Group) -> Space:
    return space_of(group, default())


def tuning(group: Group, space: Space, search: str, seed: int = 0) -> Tuning:
    fake = Fake(default(), chance=Random(0))
    return Tuning(group, default(), fake, search_named(search), Analytic(), seed, space)


# Small enough to go through.
FEW = """rows = ordered(1, 2, 3, 4, 6, 8, 12, 24, default=1)
cols = ordered(1, 2, 4, 8, 16, 32, default=1)
Split(loop='y.i', factor=rows)
Split(loop='t.r', factor=cols)
"""


def names() -> list[object]:
    missing = find_spec("optuna") is None
    skip = pytest.mark.skipif(missing, reason="the extra `tune` (optuna) is not installed")
    return [pytest.param(n, marks=[skip] if n == "bayesian" else []) for n in WAYS]


@pytest.mark.parametrize("name", names())
def test_a_search_repeats_itself_and_proposes_nothing_twice(
    name: str, group: Group, space: Space
) -> None:
    space = parse_space(FEW) if name == "exhaustive" else space
    runs = []
    for _ in range(2):
        t = tuning(group, space, name)
        for _ in range(3):
            t.step(4)
        runs.append([(x.trace, x.ratio) for x in t.trials])
    assert runs[0] == runs[1]
    traces = [trace for trace, _ in runs[0]]
    assert len(set(traces)) == len(traces) >= 6
    assert t.default.trace not in traces[1:]


def test_other_seeds_find_others(group: Group, space: Space) -> None:
    found = []
    for seed in (0, 1):
        t = tuning(group, space, "random", seed)
        t.step(1)  # the space's default point
        found.append([x.trace for x in t.step(8)])
    assert found[0] != found[1]


def test_exhaustive_search_measures_every_point_once(group: Group) -> None:
    space = parse_space("rows = ordered(1, 2, 3, 4, default=1)\nSplit(loop='y.i', factor=rows)\n")
    t = tuning(group, space, "exhaustive")
    while not t.ended:
        t.step(3)
    assert len(t.trials) == 4 and not t.problem


def test_exhaustive_search_refuses_what_would_take_forever(group: Group) -> None:
    many = ", ".join(map(str, range(1, 400)))
    sizes = "".join(f"d{k} = ordered({many}, default=1)\n" for k in range(3))
    space = parse_space(sizes + "Split(loop='y.i', factor=d0)\n")
    with pytest.raises(Invalid, match="63,521,199 points") as caught:
        tuning(group, space, "exhaustive").search.propose(
            tuning(group, space, "exhaustive").state, 1
        )
    assert "such as evolution" in str(caught.value)


def test_a_space_without_a_legal_point(group: Group) -> None:
    space = parse_space("rows = ordered(1, 2, default=1)\nSplit(loop='nowhere', factor=rows)\n")
    with pytest.raises(Invalid, match=r"its space has no legal point: .*there is no loop nowhere"):
        tuning(group, space, "random")


def test_searches_and_models_that_there_are_not() -> None:
    with pytest.raises(Invalid, match="there is no search called 'luck'") as caught:
        search_named("luck")
    assert "evolution" in str(caught.value)
    with pytest.raises(Invalid, match="there is no model called 'oracle'"):
        model_for("oracle", default(), print)
