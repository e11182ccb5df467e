"""Mining by the command line: what is shown, and what a file of rules is trusted for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilewright.base.errors import Invalid
from tilewright.driver.cli import main
from tilewright.superopt.records import proved, read
from tilewright.superopt.text import parse_equality

WRONG = "matmul(a, b) == matmul(b, a) where a: [k, k], b: [k, k]"


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


def test_both_provers_have_to_agree() -> None:
    assert "normal forms" in str(proved(parse_equality(WRONG)))
    for text in ("x == ", "foo(x) == x where x: [m]", "relu(x) == y where x: [m]"):
        with pytest.raises(Invalid, match="no equality"):
            parse_equality(text)
