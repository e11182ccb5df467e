"""The space of a template: its choices are found, its points are legal, all searches take it."""

from collections.abc import Callable
from random import Random

import pytest

import tilewright as tw
from tilewright import te, tune
from tilewright.driver.te.build import Lowered
from tilewright.ir.target import Target
from tilewright.kernel.group import Group
from tilewright.kernel.nest import Nest, start
from tilewright.kernel.step import Trace, apply, parse_trace, print_trace
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.text import nest_text
from tilewright.targets import host
from tilewright.tune.models.analytic import Analytic
from tilewright.tune.search import WAYS, search_named
from tilewright.tune.search.state import Measured, State
from tilewright.tune.space.space import parse_space
from tilewright.tune.space.template import Template

A = te.placeholder((48, 32), name="A")
B = te.compute((48, 32), lambda i, j: te.exp(A[i, j]), name="B")


def template(schedule: Callable[[te.Schedule], object]) -> tuple[Template, Group]:
    """Of a function that schedules `B`."""

    def make() -> tuple[Trace, Nest]:
        s = te.create_schedule(B.op)
        schedule(s)
        made = Lowered(s, [A, B], target=target())
        return made.trace, made.nest

    return Template.of("schedule", make), te.create_schedule(B.op).group


def target() -> Target:
    return host()


def tiled(s: te.Schedule) -> None:
    i, j = B.op.axis
    outer, inner = s[B].split(i, tune.factors("rows", 48))
    if tune.flag("written_out"):
        s[B].unroll(inner)
    if tune.choice("lanes", [0, 8, 16]):
        _, lane = s[B].split(j, tune.choice("lanes", [0, 8, 16]))
        s[B].vectorize(lane)
        if tune.flag("threads", default=True):
            s[B].parallel(outer)


def test_all_choices_are_found_those_in_branches_too() -> None:
    space, _ = template(tiled)
    assert list(space.named) == ["rows", "written_out", "lanes", "threads"]
    assert space.named["rows"].values == (1, 2, 3, 4, 6, 8, 12, 16, 24, 48)
    assert space.default == {"rows": 8, "written_out": False, "lanes": 0, "threads": True}
    assert parse_space(str(space)).decisions == space.decisions


def test_only_what_was_asked_for_is_relevant() -> None:
    space, _ = template(tiled)
    assert "threads" not in space.relevant(space.default)
    assert "threads" in space.relevant({**space.default, "lanes": 8})


def test_a_point_is_a_trace_that_replays_without_the_template() -> None:
    space, group = template(tiled)
    point = space.replay(group, {"rows": 12, "written_out": True})
    assert point.trace == (Split("B.i0", 12), Unroll("B.i0.1"))
    again = apply(start(group), parse_trace(print_trace(point.trace)))
    assert nest_text(again) == nest_text(point.nest)


def test_points_at_random_are_legal_and_the_same_seed_draws_the_same() -> None:
    space, group = template(tiled)
    drawn = [space.draw(group, Random(k)) for k in range(20)]
    assert all(p is not None and space.replay(group, p.given).trace == p.trace for p in drawn)
    assert len({p.trace for p in drawn if p is not None}) > 10
    first = [p.given for p in drawn if p is not None]
    assert [p.given for k in range(20) if (p := space.draw(group, Random(k)))] == first


def test_values_may_depend_on_other_choices() -> None:
    def nested(s: te.Schedule) -> None:
        outer = tune.factors("outer", 48, default=48)
        _, i = s[B].split(B.op.axis[0], outer)
        s[B].split(i, tune.factors("inner", outer, default=1))

    space, group = template(nested)
    assert space.named["inner"].values == space.named["outer"].values
    assert space.legal(group, {"outer": 8, "inner": 4}) is not None
    assert space.legal(group, {"outer": 8, "inner": 3}) is None
    points = [space.draw(group, Random(k)) for k in range(30)]
    pairs = [(int(str(p.given["outer"])), int(str(p.given["inner"]))) for p in points if p]
    assert len(pairs) == 30 and all(outer % inner == 0 for outer, inner in pairs)


def test_where_the_defaults_are_refused_another_point_is_the_first() -> None:
    def picky(s: te.Schedule) -> None:
        if tune.choice("rows", [5, 6, 8]) < 7:
            s[B].fuse(B.op.axis[1], B.op.axis[0])  # the wrong way round

    space, group = template(picky)
    assert space.default == {"rows": 8} and space.replay(group, space.default).trace == ()


def test_what_the_template_raises_for_some_values_makes_these_illegal() -> None:
    def dividing(s: te.Schedule) -> None:
        s[B].split(B.op.axis[0], 48 // tune.choice("parts", [1, 0, 4]))

    space, group = template(dividing)
    with pytest.raises(tw.Refused, match="raises ZeroDivisionError"):
        space.replay(group, {"parts": 0})
    assert space.legal(group, {"parts": 4}) is not None


@pytest.mark.parametrize("way", WAYS)
def test_every_search_proposes_points_of_it(way: str) -> None:
    if way == "bayesian":
        pytest.importorskip("optuna")
    space, group = template(tiled)
    state = State(group, target(), space, Analytic(), Random(1))
    search = search_named(way)
    for _ in range(3):
        points = search.propose(state, 4)
        assert 0 < len(points) <= 4 and len({p.key for p in points}) == len(points)
        for p in points:
            assert space.replay(group, p.given).trace == p.trace and p.key not in state.seen
            state.seen.add(p.key)
            state.measured.append(Measured(p, float(len(p.trace) + 1)))


def test_mistakes_are_told() -> None:
    with pytest.raises(tw.Invalid, match="asks for no choice: there is nothing to tune"):
        template(lambda s: s[B].parallel(B.op.axis[0]))

    def twice(s: te.Schedule) -> None:  # found though the default does not come there
        if tune.flag("more"):
            tune.factors("rows", 48), tune.factors("rows", 32)

    with pytest.raises(tw.Invalid, match="two choices called rows"):
        template(twice)

    def never(s: te.Schedule) -> None:
        s[B].fuse(B.op.axis[1], B.op.axis[tune.choice("which", [0, 1])])

    with pytest.raises(tw.Invalid, match="no legal point among 1 choices; the first is refused"):
        template(never)

    def broken(s: te.Schedule) -> None:
        tune.flag("any")
        raise KeyError("rows")

    with pytest.raises(KeyError, match="rows"):
        template(broken)
