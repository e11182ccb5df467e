"""Files of rules: what is trusted, what is proved again, and what is refused in words."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest

from tilewright.base.errors import Invalid
from tilewright.driver.cli import main
from tilewright.ir.operator import OPERATORS
from tilewright.rewrites import all_rules
from tilewright.rewrites.proofs.prove import prove
from tilewright.superopt.axioms import FOLDER
from tilewright.superopt.points import refuted
from tilewright.superopt.records import Record, proved, read, records, signed, write
from tilewright.superopt.text import parse_equality

KINDS = " where x: [m, k], y: [k, n], z: [k, n]"
TRUE = "mul(add(x, y), z) == add(mul(x, z), mul(y, z)) where x: [m, n], y: [m, n], z: [m, n]"
WRONG = TRUE.replace("mul(add(x, y), z)", "mul(add(x, z), y)")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rules.json"


def given(file: Path, *rules: object) -> Path:
    file.write_text(json.dumps({"rules": rules}))
    return file


def test_written_by_hand(file: Path) -> None:
    """A rule without a record is proved; what does not hold is refused, with its place."""
    assert read(given(file, {"rule": TRUE})) == [parse_equality(TRUE)]
    with pytest.raises(Invalid, match=r"rule 1 of .*rules.json was edited and is not proved"):
        read(given(file, {"rule": TRUE}, {"rule": WRONG}))


def test_what_a_record_is_trusted_for(file: Path) -> None:
    """A rule is not proved again where nothing was edited; a change of what matters is noticed."""
    made = proved(parse_equality(TRUE))
    assert isinstance(made, Record)
    forged = signed(made, rule=WRONG)  # as only a program writes it: `prove` finds that out
    write(file, [forged])
    assert read(file) == [parse_equality(WRONG)]
    assert main(["prove", str(file)]) == 1
    for name, value in (("rule", WRONG), ("method", "I say so"), ("points", 9), ("witness", "me")):
        other = {**json.loads(file.read_text())["rules"][0], "rule": WRONG, name: value}
        if name != "rule":
            with pytest.raises(Invalid, match="not proved"):
                read(given(file, other))


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (3, "number 0 is no text"),
        ("relu(x)", "no equality"),
        ("relu(x) == x", "x has no kind"),
        ("relu(x) == foo(x) where x: [m]", "there is no operator foo"),
        ("relu(x) == x where x: [m + 1]", "no size"),
        ("permute(x, perm=(1, 0)) == x where x: [m, n]", "the sides are of types"),
        ("matmul(x) == x where x: [m, n]", "no equality"),
        ("softmax(x, axis=7) == x where x: [m, n]", "axis 7"),
        ("sum(x) == x where x: [m, n]", "no equality"),
        ("reshape(x, shape=(m ** n,)) == x where x: [m, n]", "no size"),
        ("reshape(x, shape=folded(0)) == x where x: [m, n]", "cannot be folded"),
        ("reshape(x, shape=parted(0)) == x where x: [m, n]", "axis 0 cannot be parted"),
        ("relu(x, axis=joined(0)) == x where x: [m, n]", "the axis of nothing"),
        ("full(shape=(m,), value=1.0, dtype=f9) == x where x: [m]", "no dtype"),
        ("slice(x, axis=0, start=first, stop=middle) == x where x: [m]", "no parts"),
        ("__import__('os') == x where x: [m]", "no equality|no operator"),
    ],
)
def test_refused_in_words(rule: object, why: str, file: Path) -> None:
    with pytest.raises(Invalid) as error:
        read(given(file, {"rule": rule}))
    assert "rules.json" in str(error.value)
    assert re.search(why, str(error.value)), str(error.value)


def test_random_edits_are_refused_or_proved(file: Path) -> None:
    """No edit makes anything but a rule that holds, or a refusal in words."""
    rng = random.Random(0)
    texts = [r.rule for r in records(FOLDER / "published.json")][:30]
    refused = 0
    for _ in range(60):
        text = rng.choice(texts)
        k = rng.randrange(len(text))
        new = rng.choice(["", *"xyz01(),=[]", "add", "axis=1"])
        try:
            found = read(given(file, {"rule": text[:k] + new + text[k + rng.randrange(3) :]}))
        except Invalid as why:
            refused += 1
            assert "rules.json" in why.what
        else:
            assert found[0].is_proved()
    assert refused > 30


def test_the_second_prover_uses_references(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which have nothing to do with the definitions that a normal form is made of."""
    e = parse_equality("matmul(x, add(y, z)) == add(matmul(x, y), matmul(x, z))" + KINDS)
    assert isinstance(proved(e), Record)
    by_hand = next(r for r in all_rules() if r.name == "div-into-matmul")
    assert prove(by_hand)
    monkeypatch.setattr(OPERATORS["matmul"], "reference", lambda op, a, b: np.abs(a) @ np.exp(b))
    assert "the normal forms agree, and the sides differ" in str(proved(e))
    assert "by references" in prove(by_hand).detail


def test_what_one_point_refutes() -> None:
    """Nothing that holds, and nothing of which the point says nothing: a side that is not defined,
    and tensors that are too large to be tried."""
    assert refuted(parse_equality(WRONG)) and not refuted(parse_equality(TRUE))
    small, large = (f"matmul(x, x) == x where x: [{n}, {n}]" for n in (8, 8000))
    assert refuted(parse_equality(small)) and not refuted(parse_equality(large))
    assert not refuted(parse_equality("log(neg(exp(x))) == x where x: [m]"))


def test_judged_by_the_command(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given(file, {"rule": TRUE, "name": "distributive"}, {"rule": WRONG})
    assert main(["prove", str(file)]) == 1
    said = capsys.readouterr().out
    assert "distributive" in said and "rules-1" in said and "1 do not hold" in said
    made = file.with_name("made.json")
    assert main(["prove", str(file), "--write", str(made)]) == 2 and not made.exists()
    file.write_text(json.dumps({"seed": 7, "rules": [{"rule": TRUE, "name": "distributive"}]}))
    assert main(["prove", str(file), "--write", str(made)]) == 0
    (kept,) = records(made)
    assert kept.name == "distributive" and kept.digest == kept.signed() and kept.seconds > 0
    assert json.loads(made.read_text())["seed"] == 7
    assert "Multiplied out" in capsys.readouterr().out
