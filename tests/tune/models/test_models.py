"""Models that learn: they find rules that were planted, add to what was learned before, and pass
over files that are no good."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tilewright import targets
from tilewright.base.errors import Invalid, MissingExtra
from tilewright.driver.learning.drawn import family_of, group_of_draw, groups_of, schedules
from tilewright.driver.learning.families import FAMILIES, program
from tilewright.ir.target import Target
from tilewright.kernel.group import Group
from tilewright.kernel.nest import start
from tilewright.kernel.step import apply, parse_trace
from tilewright.kernel.text import group_text, parse_group
from tilewright.tune import models
from tilewright.tune.models import family, kept_file, learned, model_for
from tilewright.tune.models.features import default_nest, feature_names, features, rows_of
from tilewright.tune.models.keeping import MOST, Kept
from tilewright.tune.models.learned import Learned, Query, columns, predict, train, trees_of
from tilewright.tune.models.training import right
from tilewright.tune.search.state import Measured
from tilewright.tune.space.space import Point

TARGET = targets.get("arm64")
needs_lightgbm = pytest.mark.skipif(not learned.available(), reason="lightgbm is not installed")
FEW = {"num_leaves": 7, "min_data_in_leaf": 4, "feature_fraction": 1.0}


def elementwise() -> Group:
    draw = list(FAMILIES).index("elementwise")
    return group_of_draw(draw, 0, TARGET)


@pytest.fixture(scope="module")
def drawn() -> tuple[Group, list[Point]]:
    group = elementwise()
    return group, schedules(group, TARGET, 10, Random(0))


def planted(seed: int, groups: int, size: int = 24) -> list[Query]:
    """Times by two features of many; the levels of groups have nothing in common."""
    rng, out = np.random.default_rng(seed), []
    for _ in range(groups):
        rows = np.zeros((size, len(feature_names())), np.float32)
        rows[:, 1:17] = rng.standard_normal((size, 16))  # the first is the analytic model's
        times = np.abs(rows[:, 3]) + np.where(rows[:, 7] > 0, 1.0, 0.0) + rng.uniform(-3, 3)
        out.append(Query(rows, times))
    return out


def part_right(model: object, queries: list[Query]) -> float:
    found = [right(predict(model, q.rows), q.times) for q in queries]
    return sum(r for r, _ in found) / sum(n for _, n in found)


# ---- features


def test_the_same_nest_has_the_same_row(drawn: tuple[Group, list[Point]]) -> None:
    _group, points = drawn
    again = schedules(elementwise(), TARGET, 10, Random(0))
    for p, q in zip(points, again, strict=True):
        assert np.array_equal(features(p.nest, TARGET), features(q.nest, TARGET))
    rows = rows_of([p.nest for p in points], points[0].nest, TARGET)
    assert rows.shape == (len(points), len(feature_names()))
    assert np.isfinite(rows).all()
    assert not rows[0, rows.shape[1] // 2 :].any()  # the default schedule is compared with itself


def test_features_are_those_that_shipped_trees_were_trained_on() -> None:
    """Each line has a schedule and its features by the code that trained the model which ships: one
    that means something else by the same name has to be trained again."""
    first, *others = Path(__file__).with_name("features.jsonl").read_text().splitlines()
    target = Target.parse(json.loads(first)["target"])
    names = feature_names()
    for line in map(json.loads, others):
        nest = apply(start(parse_group(line["group"])), parse_trace(line["trace"]))
        found = features(nest, target)
        near = np.isclose(found, line["features"], rtol=1e-5, atol=1e-6)
        assert near.all(), [names[k] for k in np.flatnonzero(~near)]


def test_schedules_that_differ_have_rows_that_differ(drawn: tuple[Group, list[Point]]) -> None:
    _, points = drawn
    rows = {features(p.nest, TARGET).tobytes() for p in points}
    assert len(rows) > len(points) / 2


def test_names_of_features_are_distinct() -> None:
    assert len(set(feature_names())) == len(feature_names())


# ---- trees


@needs_lightgbm
def test_a_planted_rule_is_learned_and_holds_for_unseen_groups() -> None:
    model = train(planted(0, 12), 60, settings=FEW)
    assert part_right(model, planted(1, 4)) > 0.9


@needs_lightgbm
def test_training_adds_to_what_was_learned_before(tmp_path: Path) -> None:
    before = tmp_path / "before.txt"
    train(planted(0, 12), 60, settings=FEW).save_model(str(before))
    few = planted(2, 1, 8)
    alone = part_right(train(few, 20, settings=FEW), planted(1, 4))
    added = train(few, 20, str(before), settings=FEW)
    assert added.num_trees() == 80
    assert part_right(added, planted(1, 4)) > max(0.85, alone)


@needs_lightgbm
def test_scores_follow_what_was_measured() -> None:
    group = elementwise()  # of ten schedules one pair or two decide
    points, model = schedules(group, TARGET, 24, Random(0)), Learned()
    # As long as nothing was learned, the analytic model's cycles decide.
    cycles = [float(features(p.nest, TARGET)[0]) for p in points]
    assert list(model.scores(group, points, TARGET)) == pytest.approx(cycles)
    lanes = feature_names().index("store 0: iterations of the innermost loop")
    wanted = [2.0 ** features(p.nest, TARGET)[lanes] for p in points]
    measured = [Measured(p, t / wanted[0]) for p, t in zip(points, wanted, strict=True)]
    model.learn(group, measured, TARGET)
    scores = np.array(model.scores(group, points, TARGET))
    found, pairs = right(scores, np.log2(wanted))
    assert pairs and found / pairs > 0.9


@needs_lightgbm
def test_one_that_does_not_run_is_ranked_last(drawn: tuple[Group, list[Point]]) -> None:
    group, points = drawn
    model = Learned()
    ratios = [1.0 if k % 2 else None for k in range(len(points))]
    model.learn(group, [Measured(p, r) for p, r in zip(points, ratios, strict=True)], TARGET)
    scores = model.scores(group, points, TARGET)
    broken = [s for s, r in zip(scores, ratios, strict=True) if r is None]
    others = [s for s, r in zip(scores, ratios, strict=True) if r is not None]
    assert np.mean(broken) > np.mean(others)


@needs_lightgbm
def test_schedules_that_look_alike_teach_nothing(drawn: tuple[Group, list[Point]]) -> None:
    group, points = drawn
    model = Learned()
    model.learn(group, [Measured(points[0], 1.0 + k) for k in range(12)], TARGET)
    cycles = [float(features(p.nest, TARGET)[0]) for p in points]
    assert list(model.scores(group, points, TARGET)) == pytest.approx(cycles)


# ---- what is kept


def kept(path: Path, told: list[str]) -> Kept:
    return Kept(path, columns(), told.append)


@needs_lightgbm
def test_what_was_learned_is_used_by_the_next_run(
    drawn: tuple[Group, list[Point]], tmp_path: Path
) -> None:
    group, points = drawn
    told: list[str] = []
    measured = [Measured(p, 1.0 + 0.5 * k) for k, p in enumerate(points)]
    first = Learned(kept=kept(tmp_path / "k.npz", told))
    first.learn(group, measured, TARGET)
    second = Learned(kept=kept(tmp_path / "k.npz", told))
    assert not told
    assert list(second.scores(group, points, TARGET)) == pytest.approx(
        list(first.scores(group, points, TARGET))
    )


def test_only_so_many_schedules_are_kept(tmp_path: Path) -> None:
    told: list[str] = []
    file = kept(tmp_path / "k.npz", told)
    rows = {f"g{k}": (np.zeros((MOST // 4, 3)), np.full(MOST // 4, float(k))) for k in range(9)}
    file.save(rows)
    found = file.load()
    assert list(found) == ["g5", "g6", "g7", "g8"]
    assert found["g8"][1][0] == 8.0 and not told


@pytest.mark.parametrize("content", [b"", b"nothing of the kind", b"PK\x03\x04 half a file"])
def test_a_broken_file_of_what_was_learned_is_passed_over(content: bytes, tmp_path: Path) -> None:
    told: list[str] = []
    path = tmp_path / "k.npz"
    path.write_bytes(content)
    assert kept(path, told).load() == {}
    assert len(told) == 1 and "k.npz" in told[0]


def test_rows_of_other_features_are_passed_over(tmp_path: Path) -> None:
    told: list[str] = []
    path = tmp_path / "k.npz"
    Kept(path, "others", told.append).save({"g": (np.zeros((2, 3)), np.zeros(2))})
    assert kept(path, told).load() == {}
    assert "another version" in told[0]


@needs_lightgbm
def test_trees_that_cannot_be_used_are_passed_over(tmp_path: Path) -> None:
    told: list[str] = []
    broken, foreign = tmp_path / "broken.txt", tmp_path / "foreign.txt"
    broken.write_text("no trees\n")
    assert trees_of(broken, told.append) is None
    import lightgbm

    data = lightgbm.Dataset(np.random.default_rng(0).random((40, 2)), np.arange(40.0))
    lightgbm.train({"verbosity": -1, "min_data_in_leaf": 2}, data, 2).save_model(str(foreign))
    assert trees_of(foreign, told.append) is None
    assert "broken.txt" in told[0] and "another version" in told[1]
    assert Learned(foreign, tell=told.append).pretrained is None


# ---- which model


def test_without_the_extra_the_analytic_model_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(learned, "available", lambda: False)
    assert model_for("auto", TARGET, told.append).name == "analytic"
    assert "stands in" in told[0]
    with pytest.raises(MissingExtra):
        model_for("learned", TARGET, told.append)
    with pytest.raises(Invalid, match="no model called 'best'"):
        model_for("best", TARGET, told.append)


@needs_lightgbm
def test_a_library_that_cannot_be_loaded_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> None:
        raise OSError("libgomp.so.1: cannot open shared object file")

    told: list[str] = []
    learned.broken.cache_clear()
    monkeypatch.setattr(learned, "import_module", fails)
    try:
        assert model_for("auto", TARGET, told.append).name == "analytic"
        assert "libgomp1" in told[0] and "stands in" in told[0]
        with pytest.raises(Invalid, match="LightGBM cannot be loaded"):
            model_for("learned", TARGET, told.append)
    finally:
        learned.broken.cache_clear()


@needs_lightgbm
def test_a_copy_for_another_process_guesses_the_same(
    drawn: tuple[Group, list[Point]], tmp_path: Path
) -> None:
    """Whatever the model tells its words to, and wherever it keeps what it learns."""
    group, points = drawn
    model = Learned(kept=Kept(tmp_path / "kept.npz", columns()), tell=Console().print)
    model.queries = {str(k): q for k, q in enumerate(planted(0, 12))}
    model._train()
    copy = pickle.loads(pickle.dumps(model))
    assert copy.scores(group, points, TARGET) == model.scores(group, points, TARGET)
    assert copy.kept is None


@needs_lightgbm
def test_trees_are_made_when_something_is_ranked(
    drawn: tuple[Group, list[Point]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A campaign that proposes in other processes learns from every race and makes no trees."""
    group, points = drawn
    made: list[int] = []

    def counted(queries: Sequence[Query], *others: Any) -> Any:
        made.append(len(queries))
        return train(queries, *others)

    monkeypatch.setattr(learned, "train", counted)
    model = Learned()
    measured = [Measured(p, 1.0 + k) for k, p in enumerate(points)]
    for k in range(8, len(points) + 1):
        model.learn(group, measured[:k], TARGET)
    copy = pickle.loads(pickle.dumps(model))
    assert made == []
    first = model.scores(group, points, TARGET)
    assert model.scores(group, points, TARGET) == first and made == [1]
    assert copy.scores(group, points, TARGET) == first and made == [1, 1]


SHIPPED = sorted(models.PRETRAINED.glob("*.txt"))


@needs_lightgbm
@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_shipped_models_are_of_these_features_and_small(path: Path) -> None:
    told: list[str] = []
    assert trees_of(path, told.append) is not None, told
    assert path.stat().st_size <= 2_000_000


@needs_lightgbm
def test_models_ship_and_are_kept_by_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(models, "PRETRAINED", tmp_path)
    alike = replace(TARGET, name="another", l2=2 * TARGET.l2, cores=7)
    assert family(alike) == family(TARGET) != family(replace(TARGET, vector_bits=256))
    assert kept_file(TARGET).is_relative_to(tmp_path)
    train(planted(0, 2), 3, settings=FEW).save_model(str(tmp_path / f"{family(TARGET)}.txt"))
    made = model_for("auto", alike, print)
    assert isinstance(made, Learned) and made.pretrained is not None


@needs_lightgbm
@pytest.mark.parametrize("path", sorted(models.PRETRAINED.glob("*.txt")), ids=lambda p: p.stem)
def test_trees_that_ship_are_of_these_features(path: Path) -> None:
    assert path.stat().st_size <= 2_000_000
    told: list[str] = []
    assert trees_of(path, told.append) is not None, told


# ---- groups at random


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_draws_groups_that_compile(name: str) -> None:
    groups = groups_of(program(name, "0"), TARGET)
    assert groups
    default_nest(groups[0], TARGET)


def test_the_same_draw_is_the_same_group() -> None:
    draw = list(FAMILIES).index("reduction")
    assert family_of(draw) == "reduction"
    first, again, other = (group_of_draw(draw, seed, TARGET) for seed in (0, 0, 1))
    assert group_text(first) == group_text(again) != group_text(other)


def test_schedules_begin_with_the_default_and_are_distinct(
    drawn: tuple[Group, list[Point]],
) -> None:
    group, points = drawn
    assert points[0].nest == default_nest(group, TARGET)
    assert len({p.trace for p in points}) == len(points)
    assert 5 < len(points) <= 11  # some draws are the same schedule
