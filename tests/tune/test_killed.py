"""A tuning run that is killed again and again: nothing is lost, nothing is measured twice, and
memory stays as it was."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from tests.tune import long_run
from tests.tune.fake_measuring import GROUPS
from tilewright.kernel.nest import Nest
from tilewright.tune.records import Records
from tilewright.tune.tuner import BATCH


def test_five_kills(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    found = long_run.run(path, GROUPS[:2], 24, kills=5, fake=True, most=0.02)
    assert (found.kills, found.lines, found.doubled, found.broken) == (5, 48, 0, 0)
    assert sorted(found.decided.values()) == [1, 1]


def test_killed_within_a_line(tmp_path: Path) -> None:
    """What the line said is measured again; those around it are as they were."""
    path = tmp_path / "records.jsonl"
    long_run.tune(path, GROUPS[:1], 16, fake=True)
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:9]) + whole[9][:40])
    long_run.tune(path, GROUPS[:1], 16, fake=True)
    found = long_run.outcome(path, 1)
    assert (found.lines, found.doubled, found.broken) == (16, 0, 1)
    assert path.read_bytes().splitlines(keepends=True)[:9] == whole[:9]
    assert Records.load(path).problems == [
        "line 10 of records.jsonl: it is no JSON, perhaps half a line"
    ]


@pytest.mark.slow
def test_nests_are_forgotten_after_each_race(tmp_path: Path) -> None:
    """But those that were measured: others take most of the memory."""
    path = tmp_path / "records.jsonl"
    gc.collect()
    before = _nests()
    campaign = long_run.campaign_of(path, [long_run.softmax(8, 64)], 24, fake=True)
    for _ in campaign.run():
        pass
    gc.collect()
    task = campaign.tasks[0]
    assert len(task.tuning.trials) == 24
    steps = len(task.tuning.state.space.steps)
    # Of the last race, every step of every point.
    assert _nests() - before < 24 + BATCH * steps


def _nests() -> int:
    return sum(type(x) is Nest for x in gc.get_objects())


@pytest.mark.slow
def test_memory_stays_flat(tmp_path: Path) -> None:
    """Of hundreds of trials, whose nests would take a hundred kilobytes each."""
    path = tmp_path / "records.jsonl"
    found = long_run.run(path, long_run.GROUPS[:1], 400, kills=0, fake=True)
    assert found.lines == 400 and found.growth < 20 << 20


@pytest.mark.slow
def test_real_races_and_kills(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    found = long_run.run(path, long_run.GROUPS[:2], 24, kills=5, fake=False)
    assert (found.kills, found.lines, found.doubled) == (5, 48, 0)
    assert sorted(found.decided.values()) == [1, 1]
