"""Spaces of groups: they print and parse, the default schedule is a point, and whatever is drawn is
legal and computes the same."""

from __future__ import annotations

from random import Random

import pytest

from tests.kernel.examples import EXAMPLES
from tests.kernel.fuzz import Judge
from tests.kernel.random_groups import sample
from tests.seeds import drawn
from tilewright.base.errors import Invalid, Refused
from tilewright.kernel.group import Group
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import print_trace
from tilewright.kernel.text import parse_group
from tilewright.targets import default
from tilewright.tune.space.decision import Decision, factors
from tilewright.tune.space.made import space_of
from tilewright.tune.space.space import Space, closed, parse_space

SMALL = """group kernel
  in a: f32[24,8]
  out y: f32[24,8]
  y[y.i,y.j] = max(a[y.i,y.j], 0.5) for y.i in 24, y.j in 8
"""
TEXT = """rows = ordered(3, 4, 6, default=4)
inner = ordered(1, 2, default=1)
keep = choice(False, True, default=True)
order = choice(('y.i.1', 'y.j'), ('y.j', 'y.i.1'), default=('y.i.1', 'y.j'))
Split(loop='y.i', factor=rows)
attempt(Split(loop='y.i.0', factor=inner * 2))
if keep == True: Reorder(order=('y.i.0', order[0], order[1]))
if rows != 3 and keep == False: Unroll(loop='y.i.1')
"""


def agrees(group: Group, seed: int, dims: list[dict[str, int]], draws: int) -> None:
    """All that is claimed of the space of a group."""
    target = default()
    space = space_of(group, target)
    assert parse_space(str(space)) == space
    first = space.replay(group, space.default)
    trace, nest = default_schedule(group, target)
    assert first.trace == trace and first.nest == nest
    judge, rng = Judge(group, dims or [{}], seed), Random(seed)
    found = [p for _ in range(draws) if (p := space.draw(group, rng)) is not None]
    for p in found:
        again = space.replay(group, p.given)
        assert again.trace == p.trace and again.nest == p.nest
        assert space.replay(group, space.relevant(p.given)).trace == p.trace
        judge.nest(p.nest)


@pytest.mark.parametrize("seed", drawn(range(200), 6))
def test_spaces_of_random_groups(seed: int) -> None:
    s = sample(seed)
    agrees(s.group, seed, s.dims, 3)


@pytest.mark.parametrize("name", drawn(sorted(EXAMPLES), 4))
def test_spaces_of_fused_groups(name: str) -> None:
    e = EXAMPLES[name]
    agrees(e.group, 0, [dict(d) for d in e.dims], 6)


def test_a_space_prints_parses_and_replays() -> None:
    space, group = parse_space(TEXT), parse_group(SMALL)
    assert str(space) == TEXT and space.size == 3 * 2 * 2 * 2
    point = space.replay(group, {"rows": 6, "keep": False})
    assert "Split(loop='y.i', factor=6)" in print_trace(point.trace)
    assert "Unroll(loop='y.i.1')" in print_trace(point.trace)
    assert dict(point.given)["inner"] == 1  # decided by default
    kept = space.relevant({**space.default, "keep": False})
    assert "order" not in kept and "rows" in kept


def test_equal_seeds_draw_the_same() -> None:
    group = EXAMPLES["softmax"].group
    space = space_of(group, default())
    one, two = ([space.draw(group, Random(k)) for k in range(3)] for _ in range(2))
    assert [p and p.trace for p in one] == [p and p.trace for p in two]


def test_a_closed_trace_is_a_space_of_one_point() -> None:
    group = EXAMPLES["softmax"].group
    trace, nest = default_schedule(group, default())
    space = Space((), closed(trace))
    assert space.size == 1 and space.replay(group, {}).nest == nest


def test_an_illegal_decision_is_refused_by_the_step() -> None:
    group = parse_group(SMALL)
    space = parse_space("loop = choice('y.i', 'z', default='y.i')\nSplit(loop=loop, factor=2)\n")
    with pytest.raises(Refused, match="there is no loop z"):
        space.replay(group, {"loop": "z"})
    assert space.legal(group, {"loop": "z"}) is None
    point = space.draw(group, Random(0), lambda d: ("z", "y.i"))
    assert point is not None and point.given == {"loop": "y.i"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rows = ordered(2, default=3)\n", "is 3 by default, which is none of its values"),
        ("rows = ordered(2, 2, default=2)\n", "rows has a value twice"),
        ("Split(loop='y.i', factor=rows)\n", "mentions rows, which is no decision"),
        ("rows = maybe(2, default=2)\n", "line 1 of the space"),
        ("rows = ordered(2, default=2)\nNoStep(loop='y.i')\n", "line 2 of the space"),
        ("rows = ordered(2, default=2)\nif rows > 1: Unroll(loop='y.i')\n", "line 2 of the space"),
        ("a = choice(1, default=1)\na = choice(2, default=2)\n", "two decisions called a"),
    ],
)
def test_what_is_no_space(text: str, said: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_space(text)
    assert said in str(caught.value)


def test_decisions_that_are_not_of_the_space() -> None:
    group, space = parse_group(SMALL), parse_space(TEXT)
    with pytest.raises(Invalid, match="columns is no decision"):
        space.replay(group, {"columns": 4})
    with pytest.raises(Invalid, match="rows is 5, which is none of its values"):
        space.replay(group, {"rows": 5})
    with pytest.raises(Invalid, match="keep is 1"):
        space.replay(group, {"keep": 1})
    with pytest.raises(Invalid, match="has no values"):
        Decision("rows", (), 1)


def test_factors() -> None:
    assert factors(12) == (1, 2, 3, 4, 6, 12) and factors(12, 4) == (1, 2, 3, 4)
