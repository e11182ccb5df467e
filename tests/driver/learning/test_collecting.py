"""Collecting measured schedules, training on them, and the ablation's replay."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.tune import ablation
from tilewright import targets
from tilewright.base.errors import Invalid
from tilewright.driver.cli import main
from tilewright.driver.learning.collecting import Collecting
from tilewright.driver.learning.families import FAMILIES
from tilewright.driver.learning.preparing import Prepare, measured, prepared
from tilewright.tune.models import family, learned, training
from tilewright.tune.models.features import feature_names
from tilewright.tune.models.learned import Query
from tilewright.tune.models.samples import Sample, append_samples, load_samples
from tilewright.tune.models.training import Measurements, report, right, write_model

needs_lightgbm = pytest.mark.skipif(not learned.available(), reason="lightgbm is not installed")
DRAW = list(FAMILIES).index("elementwise")


@pytest.fixture(scope="module")
def sample() -> Sample:
    return measured(prepared(Prepare(DRAW, 0, 4), targets.default(), 1))


def failed(draw: int) -> Sample:
    return Sample(0, draw, "none", "", targets.default().text(), 1, why="it was not tried")


def made(kind: str, seed: int, size: int = 20) -> Measurements:
    """Times by one feature; measured twice, all but alike."""
    rng = np.random.default_rng(seed)
    rows = np.zeros((size, len(feature_names())), np.float32)
    rows[:, 1:9] = rng.standard_normal((size, 8))  # the first is the analytic model's
    times = 2.0 * rows[:, 5]
    times -= times[0]
    text = f"{kind} {seed}"
    return Measurements(kind, "any", text, Query(rows, times), times, times + 0.001)


def test_schedules_are_measured_twice(sample: Sample) -> None:
    assert 2 < len(sample.traces) == len(sample.seconds) <= 5  # some draws are the same
    assert all(s is not None and min(s) > 0 for s in sample.seconds)


def test_samples_are_read_as_they_were_written(sample: Sample, tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    append_samples(path, [sample])
    with open(path, "a") as file:
        file.write('{"half": ')
    append_samples(path, [failed(3)])
    found, problems = load_samples(path)
    assert found == [sample, failed(3)]
    assert len(problems) == 1 and "line 2" in problems[0]


def test_collecting_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    append_samples(path, [failed(k) for k in range(DRAW)])
    collecting = Collecting(path, targets.default(), 1, DRAW + 1, 2)
    (found,) = collecting.run()
    assert found.draw == DRAW and found.why == "" and len(found.traces) == 3
    assert list(Collecting(path, targets.default(), 1, DRAW + 1, 2).run()) == []


def test_a_group_that_cannot_be_prepared_is_told(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    append_samples(path, [failed(k) for k in range(DRAW)])
    tiny = replace(targets.default(), triple="nowhere-unknown-unknown")
    (found,) = Collecting(path, tiny, 1, DRAW + 1, 2).run()
    assert found.why and not found.traces


def test_pairs_are_counted_where_times_differ_clearly() -> None:
    times = np.array([0.0, 0.01, 1.0])
    assert right(times, times) == (2, 2)
    assert right(-times, times) == (0, 2)
    assert right(np.zeros(3), times) == (1, 2)


@needs_lightgbm
def test_a_report_judges_by_what_was_not_seen() -> None:
    found = [made("one", seed) for seed in range(5)] + [made("two", seed) for seed in range(5, 10)]
    rows = report(found, 12)
    assert [r.family for r in rows] == ["one", "two", "all"]
    assert rows[-1].groups == 10 and rows[-1].schedules == 200
    assert rows[-1].shapes > 0.8 and rows[-1].operators > 0.8
    assert rows[-1].again == 1.0 and rows[-1].analytic < 0.6
    with pytest.raises(Invalid, match="too few"):
        report(found[:3], 12)


@needs_lightgbm
def test_a_model_is_of_one_family_of_targets_and_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = [made("one", 0), made("one", 1)]
    assert write_model(one, tmp_path / "m.txt", 3) == (tmp_path / "m.txt").stat().st_size
    with pytest.raises(Invalid, match="2 families"):
        write_model([one[0], replace(one[1], target="other")], tmp_path / "n.txt", 3)
    monkeypatch.setattr(training, "MOST_BYTES", 1000)
    with pytest.raises(Invalid, match="may take"):
        write_model(one, tmp_path / "n.txt", 3)


@needs_lightgbm
def test_train_from_the_command_line(
    sample: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, model = tmp_path / "s.jsonl", tmp_path / f"{family(targets.default())}.txt"
    append_samples(path, [sample])
    words = ["tune", "train", str(path), "--out", str(model), "--trees", "2"]
    assert main([*words, "--no-report"]) == 0
    assert model.is_file() and "2 trees" in capsys.readouterr().out
    assert main(words) == 2  # there is too little to judge it by
    path.write_text(json.dumps({"half": 1}) + "\n")
    assert main(words) == 2


def test_collect_refuses_what_it_cannot_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "collect", "--groups", "0", "--out", "nowhere"]) == 2
    assert "at least 1" in capsys.readouterr().err


@needs_lightgbm
def test_ablation_replays_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablation, "TREES", 4)
    found = [made("one", seed, 33) for seed in range(5)]
    means = {way: ablation.mean(curves) for way, curves in ablation.replay(found, 16, 1, 20)}
    assert means.keys() == ablation.COLOURS.keys()
    for curve in means.values():
        assert len(curve) == 17 and curve[0] == 1.0
        assert all(b <= a for a, b in itertools.pairwise(curve))
    # One that saw other groups with the same rule knows where to look.
    assert means["best"][8] <= means["pretrained"][8] < means["random"][8]
    assert "16 trials" in ablation.table(means) and "<svg" in ablation.page(means)
