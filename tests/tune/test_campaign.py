"""Tuning the kernels of a program: which comes next, what is on disk when, how it goes on after an
interruption, and what happens where something is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.tune import long_run
from tests.tune.fake_measuring import GROUPS, Fake
from tests.tune.measuring.planted import GROUP, PROGRAM, SEGFAULT, WRONG, split
from tilewright.base.errors import Invalid
from tilewright.targets import default
from tilewright.tune.campaign import Campaign, Task, tasks_of
from tilewright.tune.measuring.measurer import Measurer
from tilewright.tune.measuring.process import Measuring
from tilewright.tune.measuring.race import Verdict
from tilewright.tune.models.analytic import Analytic
from tilewright.tune.records import Records
from tilewright.tune.reproducers import folder, load_reproducer
from tilewright.tune.search import search_named
from tilewright.tune.space.space import parse_space


@dataclass
class Watched(Fake):
    """Counts the lines on disk when each race begins."""

    path: Path = Path()
    lines: list[int] = field(default_factory=list)

    def measure(
        self, group: str, traces: Sequence[str], rounds: int | None = None
    ) -> list[Verdict]:
        self.lines.append(len(Records.load(self.path).records))
        return super().measure(group, traces, rounds)


def campaign(
    path: Path, measuring: Measurer, trials: int = 16, search: str = "random", count: int = 2
) -> Campaign:
    kernels = [(text, 1 + k, f"kernel {k}") for k, text in enumerate(GROUPS[:count])]
    by = (measuring, lambda: search_named(search), Analytic(), 0)
    made = Campaign(tasks_of(kernels, default(), *by), Records.load(path), trials)
    made.resume()
    return made


def finished(c: Campaign) -> Campaign:
    for _ in c.run():
        pass
    for _ in c.finish():
        pass
    return c


def test_what_is_measured_is_on_disk_before_the_next_race(tmp_path: Path) -> None:
    path = tmp_path / "r"
    fake = Watched(default(), path=path)
    finished(campaign(path, fake))
    assert fake.lines == [0, 8, 16, 24, 32, 33]  # the last two races decide
    assert [r.kind for r in Records.load(path).records] == ["trial"] * 32 + ["best"] * 2


def test_a_run_goes_on_where_another_was_stopped(tmp_path: Path) -> None:
    path = tmp_path / "r"
    first = campaign(path, Fake(default()))
    next(first.run())
    second = finished(campaign(path, Fake(default())))
    assert second.known == 8
    found = Records.load(path)
    trials = [(r.group, r.trace) for r in found.records if r.kind == "trial"]
    assert len(trials) == len(set(trials)) == 32 and len(found.best()) == 2


def test_what_is_decided_is_not_decided_again(tmp_path: Path) -> None:
    path = tmp_path / "r"
    before = finished(campaign(path, Fake(default())))
    size, fake = path.stat().st_size, Fake(default())
    again = finished(campaign(path, fake))
    assert again.known == 32 and not fake.races and path.stat().st_size == size
    assert [t.won for t in again.tasks] == [t.won for t in before.tasks]
    assert all(t.closed for t in again.tasks)
    more = finished(campaign(path, fake, trials=24))
    assert [len(t.tuning.trials) for t in more.tasks] == [24, 24] and more.known == 32
    assert {r.trials for r in Records.load(path).best().values()} == {24}


def test_a_trial_of_another_space_is_not_tried_again(tmp_path: Path) -> None:
    """Decisions that are not there any more lead nowhere; the steps are known all the same."""
    path = tmp_path / "r"
    finished(campaign(path, Fake(default()), count=1))
    lines = [json.loads(x) for x in path.read_text().splitlines()]
    for x in lines:
        x["given"] = {"gone": [1, {"what": None}]} if x["kind"] == "trial" else {}
    path.write_text("".join(json.dumps(x) + "\n" for x in lines))
    c = campaign(path, Fake(default()), count=1)
    assert c.known == 0
    finished(c)
    trials = [r.trace for r in Records.load(path).records if r.kind == "trial"]
    assert len(trials) == len(set(trials)) > 16


def test_the_kernel_that_should_save_most_comes_first(tmp_path: Path) -> None:
    """By how often a call runs it and what it takes; one that gains nothing waits."""
    path = tmp_path / "r"
    small, large = long_run.softmax(4, 16), long_run.softmax(64, 400)
    by = (Fake(default()), lambda: search_named("random"), Analytic(), 0)
    for calls, wanted in (((1, 1), large), ((10_000, 1), small)):
        tasks = tasks_of([(small, calls[0], "s"), (large, calls[1], "l")], default(), *by)
        t, made = next(Campaign(tasks, Records(path), 16).run())
        assert t.text == wanted and len(made) == 8
    before = t.expected
    t.fruitless += 1
    assert t.expected == pytest.approx(before / 2)


def test_equal_groups_are_one_task() -> None:
    by = (Fake(default()), lambda: search_named("random"), Analytic(), 0)
    kernels = [(GROUPS[0], 2, "one"), (GROUPS[1], 1, "two"), (GROUPS[0], 3, "three")]
    tasks = tasks_of(kernels, default(), *by)
    assert [(t.calls, t.names) for t in tasks] == [(5, ("one", "three")), (1, ("two",))]


def test_one_kernel_that_cannot_be_tuned_is_told_and_left_out(tmp_path: Path) -> None:
    c = campaign(tmp_path / "r", Fake(default()))
    c.tasks[0].space = parse_space(
        "rows = ordered(1, 2, default=1)\nSplit(loop='nowhere', factor=rows)\n"
    )
    finished(c)
    assert "no legal point" in c.tasks[0].problem and not c.tasks[1].problem
    assert len(c.tasks[1].tuning.trials) == 16 and c.tasks[1].closed


def test_a_search_that_refuses_a_space_is_told(tmp_path: Path) -> None:
    def search() -> Any:
        class Refuses:
            name = "refuses"

            def propose(self, state: object, count: int) -> list[object]:
                raise Invalid("this space is too large")

        return Refuses()

    by = (Fake(default()), search, Analytic(), 0)
    tasks = tasks_of([(GROUPS[0], 1, "k")], default(), *by)
    finished(Campaign(tasks, Records(tmp_path / "r"), 16))
    assert tasks[0].problem == "this space is too large"


def test_a_default_schedule_that_fails_ends_its_kernel_only(tmp_path: Path) -> None:
    @dataclass
    class Failing(Fake):
        def measure(
            self, group: str, traces: Sequence[str], rounds: int | None = None
        ) -> list[Verdict]:
            if group == bad:
                return [
                    Verdict(fault="crashed", why="by SIGSEGV"),
                    *[Verdict()] * (len(traces) - 1),
                ]
            return super().measure(group, traces, rounds)

    c = campaign(tmp_path / "r", Failing(default()))
    bad = c.tasks[0].text
    finished(c)
    assert c.tasks[0].problem == "its default schedule ended its process: by SIGSEGV"
    assert {r.group for r in Records.load(tmp_path / "r").records} == {c.tasks[1].text}


@pytest.fixture
def harmed(tmp_path: Path) -> Iterator[Task]:
    """A kernel that was tuned by candidates that do harm, all of which are proposed."""
    sizes = f"1, 12, {SEGFAULT}, {WRONG}"
    space = parse_space(f"rows = ordered({sizes}, default=1)\nSplit(loop='y.i', factor=rows)\n")
    measuring = Measuring(default(), 1, rounds=3, program=PROGRAM)
    by = (default(), measuring, lambda: search_named("exhaustive"), Analytic(), 0)
    task = Task(GROUP, 1, ("kernel",), *by, space)
    c = finished(Campaign([task], Records(tmp_path / "records.jsonl"), 16))
    assert len(c.reproducers) == 2
    yield task
    measuring.close()


def test_mistakes_are_kept_as_reproducers_and_never_as_records(
    harmed: Task, tmp_path: Path
) -> None:
    path = tmp_path / "records.jsonl"
    kept = {p.name.partition("-")[0]: p for p in folder(path).iterdir()}
    assert kept.keys() == {"crashed", "wrong"}
    r = load_reproducer(kept["wrong"])
    assert (r.group, r.trace, r.difference, r.seed) == (GROUP, split(WRONG), 0.25, 0)
    assert r.target == default().machine_key() and "the error is 0.25" in r.why
    found = r.again(harmed.measuring)
    assert (found.fault, found.difference) == ("wrong", 0.25)
    assert replace(r, trace=split(12)).again(harmed.measuring).seconds
    faulty = [x for x in Records.load(path).records if x.fault]
    assert {x.fault for x in faulty} == {"crashed", "wrong"}
    assert all(x.kind == "trial" and x.seconds is None for x in faulty)
    (best,) = Records.load(path).best().values()
    assert best.trace not in (split(WRONG), split(SEGFAULT))


def test_what_is_no_reproducer(tmp_path: Path) -> None:
    for text in ("", "[]", '{"form": 1}'):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(Invalid, match="no reproducer of this version"):
            load_reproducer(tmp_path / "x.json")
    with pytest.raises(Invalid, match="cannot be read"):
        load_reproducer(tmp_path / "y.json")
