"""Mining by the command line: what is shown, and what a file of rules is trusted for."""

from __future__ import annotations

import json
from importlib import import_module
from itertools import count
from pathlib import Path

import pytest

from tests.seeds import drawn
from tilewright.base.errors import Invalid
from tilewright.driver.cli import main
from tilewright.superopt.generalise import has_proof
from tilewright.superopt.records import proved, read
from tilewright.superopt.terms import Equality
from tilewright.superopt.text import parse_equality

WRONG = "matmul(a, b) == matmul(b, a) where a: [k, k], b: [k, k]"

MOVED = ["mine", "reshapes", "--operators", "2"]  # eight rules in a second


@pytest.fixture(scope="module")
def mined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("mined") / "rules.json"
    assert main(["mine", "matrices", "--operators", "1", "--out", str(out)]) == 0
    return out


def test_a_file_of_rules(mined: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mine", "matrices", "--operators", "1", "--count"]) == 0
    said = capsys.readouterr().out
    assert "candidates" in said and "173" in said
    kept = json.loads(mined.read_text())
    assert kept["vocabulary"] == "matrices" and kept["operators"] == 1 and kept["seed"] == 0
    rules = read(mined)
    assert parse_equality("relu(p1) == p1 where p1: [] >= 0") in rules
    assert all(r["seconds"] > 0 and r["points"] > 50 for r in kept["rules"])


def test_operators_that_join_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mine", "matrices", "--joining"]) == 0
    lines = {x.split()[0]: x for x in capsys.readouterr().out.splitlines()[2:]}
    assert lines["matmul"].count("yes") == 2 and lines["maximum"].count("yes") == 1
    assert "not whole" in lines["exp"] and "takes 3 tensors" in lines["where"]
    assert "is random" in lines["rand"]
    assert lines["full"].count("yes") == 1 and lines["reshape"].count("yes") == 1
    assert main(["mine", "tables", "--joining"]) == 2


def test_an_edited_rule_is_proved_again_or_refused(mined: Path, tmp_path: Path) -> None:
    kept = json.loads(mined.read_text())
    edited = tmp_path / "edited.json"
    true = "matmul(a, add(b, c)) == add(matmul(a, b), matmul(a, c))"
    true += " where a: [m, k], b: [k, n], c: [k, n]"
    kept["rules"][0]["rule"] = true
    edited.write_text(json.dumps(kept))
    assert parse_equality(true) in read(edited)
    kept["rules"][0]["rule"] = WRONG
    edited.write_text(json.dumps(kept))
    with pytest.raises(Invalid, match="was edited and is not proved"):
        read(edited)
    edited.write_text("[]")
    with pytest.raises(Invalid, match="is no file of rules"):
        read(edited)


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("moved") / "rules.json"
    assert main([*MOVED, "--out", str(out)]) == 0
    return out


def candidates(
    monkeypatch: pytest.MonkeyPatch, names: str, failing: int, why: BaseException
) -> None:
    """Makes a stage of mining fail for one of its candidates."""
    of, name = names.rsplit(".", 1)
    module = import_module(f"tilewright.superopt.{of}")
    real, calls = getattr(module, name), count()

    def stage(*given: object, **named: object) -> object:
        if next(calls) == failing:
            raise why
        return real(*given, **named)

    monkeypatch.setattr(module, name, stage)


@pytest.mark.parametrize(
    "stage",
    drawn(["mine.generalised", "mine.proved", "shorten.rules_of", "shorten.gains"], 1),
)
def test_a_candidate_that_cannot_be_treated(
    stage: str,
    moved: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is left out and counted; the others are written."""
    candidates(monkeypatch, stage, 4, Invalid("axis 0 has no parts that are known"))
    out = tmp_path / "rules.json"
    assert main([*MOVED, "--out", str(out)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("left out: ") == 1 and "axis 0 has no parts that are known" in said
    assert "1 could not be treated" in said
    assert len(read(out)) >= len(read(moved)) - 2


@pytest.mark.parametrize("stage", drawn(["shorten.saturate", "mine.has_proof", "mine.proved"], 1))
def test_what_was_found_is_written_and_gone_on_from(
    stage: str,
    moved: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "rules.json"
    command = [*MOVED, "--out", str(out)]
    with monkeypatch.context() as ended:
        candidates(ended, stage, 4, KeyboardInterrupt())
        assert main(command) == 130
    assert "the same command goes on from there" in " ".join(capsys.readouterr().out.split())
    kept = json.loads(out.read_text())
    assert kept["unfinished"] and len(kept["rules"]) >= 3
    asked: list[Equality] = []
    monkeypatch.setattr(
        "tilewright.superopt.mine.has_proof", lambda e: asked.append(e) or has_proof(e)
    )
    assert main(command) == 0
    assert json.loads(out.read_text()).keys() == json.loads(moved.read_text()).keys()
    assert set(read(out)) == set(read(moved))
    assert (stage == "mine.has_proof") == any(map(has_proof, asked))  # none is proved again


def test_a_budget_ends_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rules.json"
    command = ["mine", "matrices", "--operators", "3", "--budget", "1s", "--out", str(out)]
    assert main(command) == 0
    heard = capsys.readouterr()
    assert "the budget of 1 s ended: " in heard.out
    assert "of the budget are left" in " ".join(heard.err.split()), "it is told beforehand"
    assert main([*command[:-1], str(tmp_path / "none" / "rules.json")]) == 2


def test_both_provers_have_to_agree() -> None:
    assert "normal forms" in str(proved(parse_equality(WRONG)))
    for text in ("x == ", "foo(x) == x where x: [m]", "relu(x) == y where x: [m]"):
        with pytest.raises(Invalid, match="no equality"):
            parse_equality(text)
