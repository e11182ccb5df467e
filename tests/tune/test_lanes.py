"""Several kernels are tuned at a time, and what is found does not depend on who is faster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.tune.fake_measuring import GROUPS, Fake
from tests.tune.fleet_rate import steady
from tilewright import targets
from tilewright.tune.campaign import Campaign, tasks_of
from tilewright.tune.measuring.measurer import Measurer
from tilewright.tune.models.analytic import Analytic
from tilewright.tune.records import Records
from tilewright.tune.search import search_named


def records(path: Path, by: Measurer, lanes: int, **given: Any) -> list[str]:
    """The records of a run, without when they were made."""
    kernels = [(text, 1 + k, f"k{k}") for k, text in enumerate(GROUPS)]
    tasks = tasks_of(kernels, by.target, by, lambda: search_named("random"), Analytic(), 0)
    campaign = Campaign(tasks, Records(path), 12, lanes=lanes, **given)
    for _ in campaign.run():
        pass
    for _ in campaign.finish():
        pass
    return [replace(r, at=0).line() for r in Records.load(path).records]


def lines(path: Path, lanes: int, most: float) -> tuple[list[str], Fake]:
    fake = Fake(targets.get("x86-64-v3"), most=most)
    return records(path, fake, lanes), fake


def test_records_are_the_same_whichever_race_ends_first(tmp_path: Path) -> None:
    first, fake = lines(tmp_path / "a", 3, 0.02)
    again, _ = lines(tmp_path / "b", 3, 0.0)
    assert first == again
    assert 1 < fake.together <= 3
    assert len(first) == len(set(first)) == 12 * len(GROUPS) + len(GROUPS)


def test_one_lane_is_one_race_at_a_time(tmp_path: Path) -> None:
    found, fake = lines(tmp_path / "a", 1, 0.001)
    assert fake.together == 1 and len(found) == 13 * len(GROUPS)


def test_an_error_of_a_race_ends_the_run_and_records_stay(tmp_path: Path) -> None:
    target = targets.get("x86-64-v3")
    fake, path = Fake(target), tmp_path / "a"
    kernels = [(text, 1, f"k{k}") for k, text in enumerate(GROUPS[:2])]
    tasks = tasks_of(kernels, target, fake, lambda: search_named("random"), Analytic(), 0)
    run = Campaign(tasks, Records(path), 24, lanes=2).run()
    next(run)
    fake.measure = lambda *given: 1 / 0  # type: ignore
    with pytest.raises(ZeroDivisionError):
        for _ in run:
            pass
    assert len(Records.load(path).records) >= 8


def test_a_rate_counts_what_ends_while_all_lanes_are_busy() -> None:
    """Not the first race of each lane, nor those that end after the last one began."""
    ends = [(10.0, 8), (12.0, 8), (14.0, 8), (16.0, 8), (32.0, 8)]
    assert steady(ends, 2, 22.0) == 60 * 16 / 10
    with pytest.raises(SystemExit, match="give more --seconds"):
        steady(ends[:2], 2, 22.0)
