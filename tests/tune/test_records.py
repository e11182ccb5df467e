"""Files of records: what is read, what is passed over and told, what holds."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tilewright.base.errors import Invalid
from tilewright.tune.records import (
    Record,
    Records,
    append,
    checked,
    merged,
    parse_record,
    rewrite,
)

GROUP = """group kernel
  in a: f32[24,8]
  out y: f32[24,8]
  y[y.i,y.j] = max(a[y.i,y.j], 0.5) for y.i in 24, y.j in 8
"""
TRACE = "Split(loop='y.i', factor=4)\n"
BEST = Record("best", GROUP, "machine", 2, TRACE, 1e-5, 2e-5, trials=64, at=5.0)
TRIAL = replace(BEST, kind="trial", trials=0, given={"rows": 4, "order": ["y.i", "y.j"]})


def test_a_line_is_read_back() -> None:
    for r in (BEST, TRIAL, replace(TRIAL, seconds=None, fault="wrong", why="it differs")):
        assert parse_record(r.line()) == r
        assert "\n" not in r.line()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (BEST.line()[:50], "half a line"),
        ("[1, 2]", "it is no record"),
        ("{}", "of form None, and this version reads form 1"),
        (replace(BEST, form=99).line(), "of form 99"),
        (json.dumps(json.loads(BEST.line()) | {"threads": "two"}), "threads is 'two'"),
        (json.dumps(json.loads(BEST.line()) | {"seconds": -1.0}), "which is no time"),
        (json.dumps(json.loads(BEST.line()) | {"usual": float("nan")}), "which is no time"),
        (json.dumps(json.loads(BEST.line()) | {"colour": "red"}), "it has colour"),
        (
            json.dumps({k: v for k, v in json.loads(BEST.line()).items() if k != "trace"}),
            "no trace",
        ),
        (replace(BEST, kind="guess").line(), "no records of kind 'guess'"),
    ],
)
def test_what_is_no_record_is_told_and_passed_over(line: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(f"{TRIAL.line()}\n{line}\n\n{BEST.line()}\n")
    for kind, wanted in (("", [TRIAL, BEST]), ("best", [BEST]), ("trial", [TRIAL])):
        found = Records.load(path, kind)
        assert found.records == wanted
    (problem,) = Records.load(path).problems
    assert problem.startswith("line 2 of r.jsonl: ") and said in problem


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(b"\xff\xfe\x00" + b"\n" + BEST.line().encode() + b"\n")
    found = Records.load(path)
    assert found.records == [BEST] and len(found.problems) == 1


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    assert Records.load(tmp_path / "none").records == []
    with pytest.raises(Invalid, match=r"cannot be read from .*directory"):
        Records.load(tmp_path)


def test_a_half_line_is_ended_before_another_is_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "r.jsonl"
    append(path, [TRIAL])
    with open(path, "a") as file:
        file.write(BEST.line()[:30])
    append(path, [BEST])
    found = Records.load(path)
    assert found.records == [TRIAL, BEST] and len(found.problems) == 1
    append(path, [])
    assert Records.load(path).records == [TRIAL, BEST]


def _some(seed: int) -> list[Record]:
    rng = Random(seed)
    return [
        replace(
            rng.choice((BEST, TRIAL)),
            group=rng.choice((GROUP, GROUP.replace("24", "12"))),
            threads=rng.choice((1, 2)),
            seconds=rng.randrange(1, 9) * 1e-5,
            trials=rng.choice((16, 64)),
            at=float(rng.randrange(50)),
        )
        for _ in range(12)
    ]


def files(parts: Sequence[Sequence[Record]]) -> list[Records]:
    return [Records(Path(f"{k}"), list(rows)) for k, rows in enumerate(parts)]


@pytest.mark.parametrize("seed", range(5))
def test_merging_in_any_order_and_again_gives_the_same(seed: int) -> None:
    parts = [_some(3 * seed + k) for k in range(3)]
    once = merged(files(parts))
    for order in itertools.permutations(parts):
        assert merged(files(order)) == once
    assert merged(files([once, parts[0], once])) == once
    assert {r.line() for r in once} == {r.line() for rows in parts for r in rows}
    holds = {k: r.line() for k, r in Records(Path(), once).best().items()}
    shuffled = Random(seed).sample(once, len(once))
    assert {k: r.line() for k, r in Records(Path(), shuffled).best().items()} == holds
    assert [r.kind for r in once] == sorted((r.kind for r in once), reverse=True)


def test_what_holds_is_decided_by_most_trials_then_the_last() -> None:
    lucky = replace(BEST, trials=16, seconds=1e-6, at=BEST.at + 2)
    later = replace(BEST, seconds=1.5e-5, at=BEST.at + 1)
    assert Records(Path(), [later, lucky, BEST, TRIAL]).best() == {BEST.key: later}
    slower = replace(BEST, seconds=1.5e-5)
    assert Records(Path(), [slower, lucky, BEST, TRIAL]).best() == {BEST.key: BEST}
    other = replace(BEST, target="another")
    assert len(Records(Path(), [BEST, other]).best()) == 2


def test_no_gain_is_no_schedule() -> None:
    assert BEST.gains and BEST.ratio == 0.5
    assert not replace(BEST, seconds=2e-5).gains and not replace(BEST, seconds=None).gains


def test_a_file_is_replaced_only_when_all_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.jsonl"
    rewrite(path, [BEST])
    monkeypatch.setattr(Record, "line", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        rewrite(path, [TRIAL])
    monkeypatch.undo()
    assert Records.load(path).records == [BEST]
    rewrite(path, [])
    assert path.read_text() == ""


def test_records_are_checked_against_todays_steps() -> None:
    older = replace(BEST, trace="OldStep(loop='y.i')\n")
    refused = replace(BEST, trace="Split(loop='z', factor=4)\n")
    unread = replace(BEST, group="group of another time\n")
    said = [why for _, why in checked([BEST, older, refused, unread])]
    assert said[0] == "" and "OldStep" in said[1] and "there is no loop z" in said[2] and said[3]
