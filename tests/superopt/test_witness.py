"""Z3 as a third witness: what follows from axioms, what does not, and what has no meaning."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tilewright.base.errors import MissingExtra
from tilewright.driver.cli import main
from tilewright.superopt.records import read, records
from tilewright.superopt.text import parse_equality
from tilewright.superopt.witness import follows

pytest.importorskip("z3")

CHAIN = "matmul(matmul(matmul(a, b), c), d) == matmul(a, matmul(b, matmul(c, d)))"
CHAIN += " where a: [m, k], b: [k, l], c: [l, n], d: [n, o]"
SCALED = "relu(mul(concat(x, y, axis=1), p)) == concat(mul(relu(x), p), mul(relu(y), p), axis=1)"
SCALED += " where x: [m, n], y: [m, o], p: [] >= 0"
CUT = "slice(concat(concat(x, y, axis=1), z, axis=1), axis=1, start=first, stop=middle)"
CUT += " == concat(x, y, axis=1) where x: [m, n], y: [m, o], z: [m, k]"
FOLLOW = {"a chain": CHAIN, "a condition": SCALED, "a cut": CUT}
DO_NOT = {
    "the other order": "matmul(a, b) == matmul(b, a) where a: [k, k], b: [k, k]",
    "no condition": SCALED.removesuffix(" >= 0"),
    "the other part": CUT.replace("start=first, stop=middle", "start=0, stop=o + n").replace(
        "== concat(x, y, axis=1)", "== concat(y, x, axis=1)"
    ),
    # A law of equal sizes is not used where one operand is repeated.
    "a sum that is repeated": "matmul(x, add(y, z)) == add(matmul(x, y), matmul(x, z))"
    " where x: [m, k], y: [k, n], z: [1, n]",
}


@pytest.mark.parametrize("name", FOLLOW)
def test_follows(name: str) -> None:
    e = parse_equality(FOLLOW[name])
    assert e.is_proved() and follows(e)


@pytest.mark.parametrize("name", DO_NOT)
def test_does_not_follow(name: str) -> None:
    assert not follows(parse_equality(DO_NOT[name]), seconds=0.3)


def test_an_axiom_does_not_prove_itself() -> None:
    text = "matmul(x, matmul(y, z)) == matmul(matmul(x, y), z)"
    e = parse_equality(f"{text} where x: [m, k], y: [k, l], z: [l, n]")
    assert not follows(e, seconds=0.3) and follows(e, [e])


def test_the_record_says_who_agrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, made = tmp_path / "given.json", tmp_path / "made.json"
    given.write_text(json.dumps({"rules": [{"rule": CHAIN, "name": "chain"}]}))
    assert main(["prove", str(given), "--z3", "--write", str(made)]) == 0
    assert "1 follow from axioms by Z3" in capsys.readouterr().out
    (kept,) = records(made)
    assert "z3" in kept.witness and kept.name == "chain" and len(kept.witnesses) == 3
    assert kept.digest == kept.signed() and read(made) == [parse_equality(CHAIN)]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "z3", None)
    with pytest.raises(MissingExtra, match="'prove' is not installed"):
        follows(parse_equality(CHAIN))
