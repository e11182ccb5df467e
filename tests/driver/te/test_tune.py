"""`te.tune` finds the best assignment of a template, keeps what it measured, and says what it
cannot tune. Times come from a rule here, so that the best is known."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import te, tune
from tilewright.base import knobs
from tilewright.kernel.step import parse_trace
from tilewright.kernel.steps.split import Split
from tilewright.tune.measuring.process import Measuring
from tilewright.tune.measuring.race import Verdict
from tilewright.tune.records import Records


@pytest.fixture(autouse=True)
def own_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "records.jsonl"
    monkeypatch.setenv("TILEWRIGHT_RECORDS", str(path))
    assert knobs.records_file() == path
    return path


def rows(n: int = 48, more: bool = False) -> tuple[te.Schedule, list[te.Tensor]]:
    a = te.placeholder((n, 16), name="A")
    b = te.compute((n, 16), lambda i, j: te.exp(a[i, j]) + 1.0, name="B")
    s = te.create_schedule(b.op)
    outer, inner = s[b].split(b.op.axis[0], tune.factors("rows", n))
    if tune.flag("written_out"):
        s[b].unroll(inner)
    if more and tune.flag("threads"):
        s[b].parallel(outer)
    return s, [a, b]


class Ruled:
    """Takes the place of a process that measures: twelve rows are the fastest, and eight fail."""

    def __init__(self) -> None:
        self.traces: list[str] = []

    def __call__(
        self, _: Measuring, group: str, traces: Sequence[str], rounds: int | None = None
    ) -> list[Verdict]:
        self.traces += traces[1:]
        return [self._verdict(t) for t in traces]

    def _verdict(self, trace: str) -> Verdict:
        split = [s for s in parse_trace(trace) if isinstance(s, Split) and s.loop == "B.i0"]
        if split and split[0].factor == 8:
            return Verdict(fault="crashed", why="the process ended while it ran")
        return Verdict(1.0 + abs(split[0].factor - 12) if split else 20.0)


@pytest.fixture
def ruled(monkeypatch: pytest.MonkeyPatch) -> Ruled:
    made = Ruled()
    monkeypatch.setattr(Measuring, "measure", lambda self, *given: made(self, *given))
    return made


def test_the_fastest_assignment_is_found_and_built(ruled: Ruled) -> None:
    found = te.tune(rows, 48, trials=20, search="exhaustive", model="analytic")
    assert found.given["rows"] == 12 and found.seconds == 1.0 and found.usual == 20.0
    assert len(found.trials) == found.measured == 20 and "2 crashed" in str(found)
    assert "rows=12" in str(found)
    assert any(isinstance(s, Split) and s.factor == 12 for s in found.schedule.trace)
    x = np.linspace(-1, 1, 48 * 16, dtype=np.float32).reshape(48, 16)
    y = np.empty_like(x)
    found.build()(x, y)
    np.testing.assert_allclose(y, np.exp(x) + 1, rtol=1e-5)


def test_the_template_without_tuning_has_its_defaults() -> None:
    s, args = rows(48)
    assert [x.factor for x in s.trace if isinstance(x, Split)] == [8]
    tw.build(s, args)


def test_the_users_defaults_are_measured_first(ruled: Ruled) -> None:
    te.tune(rows, 96, trials=1, model="analytic")
    assert "factor=12" in ruled.traces[0]


def test_what_was_measured_is_not_measured_again(ruled: Ruled, own_records: Path) -> None:
    first = te.tune(rows, 48, trials=20, search="exhaustive", model="analytic")
    told = len(ruled.traces)
    again = te.tune(rows, 48, trials=20, search="exhaustive", model="analytic")
    assert len(ruled.traces) == told and again.measured == 0
    assert again.given == first.given and again.seconds == first.seconds
    best = Records.load(own_records).best().values()
    assert [r.gains for r in best] == [True], "every compile of the group takes it"
    te.tune(rows, 96, trials=3, model="analytic")
    assert len(ruled.traces) > told, "another size is another group"


def test_a_choice_that_is_added_leaves_known_what_was_measured(ruled: Ruled) -> None:
    te.tune(rows, 48, trials=8, model="analytic")
    told = len(ruled.traces)
    found = te.tune(rows, 48, True, trials=12, model="analytic")
    assert found.measured == 4 and len(found.trials) == 12 and len(ruled.traces) >= told + 4


def test_where_the_default_schedule_is_faster_the_best_of_the_template_is_given(
    ruled: Ruled, monkeypatch: pytest.MonkeyPatch, own_records: Path
) -> None:
    fast = lambda t: Verdict(0.5) if "Tile" not in t and "Split(loop='B.i0'" not in t else None  # noqa: E731
    usual = ruled._verdict
    monkeypatch.setattr(ruled, "_verdict", lambda t: fast(t) or usual(t))
    found = te.tune(rows, 48, trials=20, search="exhaustive", model="analytic")
    assert found.given["rows"] == 12 and found.seconds > found.usual
    assert not any(r.gains for r in Records.load(own_records).best().values())


def test_it_measures() -> None:
    found = te.tune(rows, 48, trials=2, search="random", model="analytic")
    assert found.measured == 2 and found.seconds > 0 and found.usual > 0
    assert not any(t.verdict.fault for t in found.trials)


def test_templates_for_a_gpu(ruled: Ruled) -> None:
    def threads(n: int) -> tuple[te.Schedule, list[te.Tensor]]:
        a = te.placeholder((n,), name="A")
        b = te.compute((n,), lambda i: te.exp(a[i]), name="B")
        s = te.create_schedule(b.op)
        block, thread = s[b].split(b.op.axis[0], tune.choice("threads", [6, 12, 24]))
        s[b].bind(block, te.thread_axis("blockIdx.x"))
        s[b].bind(thread, te.thread_axis("threadIdx.x"))
        return s, [a, b]

    found = te.tune(threads, 960, trials=3, target="cuda:90", search="exhaustive", model="analytic")
    assert found.given == {"threads": 12} and found.target.grid is not None
    assert all("Synchronise()" in t for t in ruled.traces), "as tw.build finishes them"


# ---- bad input


def no_choice() -> Any:
    with tune.given({}):
        return rows()


def alone() -> Any:
    return rows()[0]


def something_else() -> Any:
    a = te.placeholder((48,), name="A")
    factor = 2.0 if tune.flag("double") else 1.0
    b = te.compute((48,), lambda i: a[i] * factor, name="B")
    return te.create_schedule(b.op), [a, b]


def packing() -> Any:
    s, (a, b) = rows()
    s[a].transform_layout(lambda i, j: (j, i))
    return s, [a, b]


@pytest.mark.parametrize(
    "given, said",
    [
        (lambda: te.tune(no_choice), "no_choice asks for no choice"),
        (lambda: te.tune(rows()[0]), "a schedule is made already"),  # type: ignore[arg-type]
        (lambda: te.tune(rows()), "is no function that makes a schedule"),  # type: ignore[arg-type]
        (lambda: te.tune(alone), "gives Schedule, not a schedule and its arguments"),
        (lambda: te.tune(something_else), "computes something else for other choices"),
        (lambda: te.tune(packing), "no legal point.* takes A in a layout of its own"),
        (lambda: te.tune(rows, search="guess"), "no search called 'guess'"),
        (lambda: te.tune(rows, model="oracle"), "no model called 'oracle'"),
        (lambda: te.tune(rows, trials=0), "0 trials find nothing"),
    ],
)
def test_what_cannot_be_tuned_is_told(given, said: str) -> None:
    with pytest.raises(tw.Invalid, match=said):
        given()


def test_a_template_none_of_whose_schedules_runs_says_why(
    ruled: Ruled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ruled, "_verdict", lambda t: Verdict(fault="hung", why="no answer"))
    with pytest.raises(tw.Invalid, match="no schedule of rows was measured: its default schedule"):
        te.tune(rows, model="analytic")
