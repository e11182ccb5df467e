"""The provers on rules that nobody chose: true by construction, or with one mistake."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from tests.seeds import drawn
from tests.superopt.judged_rules import ALL_CHANGES, changed, judged, mutants, true_rules
from tilewright.base.errors import Invalid
from tilewright.superopt.records import Record, proved
from tilewright.superopt.text import parse_equality

BATCH = 6
SETTINGS = "stride=(1, 1), padding=(1, 1), dilation=(1, 1)"
# What a prover must refuse; the first two are true of most numbers that are tried, the third where
# the groups are alike.
KNOWN_WRONG = {
    "a scale of any sign": "relu(mul(s, x)) == mul(s, relu(x)) where s: [], x: [m, n]",
    "a product with its transpose": "matmul(x, permute(x, perm=(1, 0)))"
    " == relu(matmul(x, permute(x, perm=(1, 0)))) where x: [m, n]",
    "grouped convolutions by plain concat": f"concat(conv(x, u, {SETTINGS}, groups=2),"
    f" conv(x, v, {SETTINGS}, groups=2), axis=1)"
    f" == conv(x, concat(u, v, axis=0), {SETTINGS}, groups=2)"
    " where x: [n, (c, c), h, w], u: [(o, o), c, 3, 3], v: [(o, o), c, 3, 3]",
}


@pytest.mark.parametrize("batch", drawn(range(35), 1))
def test_true_rules_are_proved(batch: int) -> None:
    found = list(true_rules(1000 + batch, BATCH))
    missed = [str(x.rule) for x in found if not x.accepted]
    assert len(missed) <= 1, missed
    assert all(x.points for x in found), "what is drawn is true"


@pytest.mark.parametrize("batch", drawn(range(35), 1))
def test_mutants_are_refused(batch: int) -> None:
    """By either prover alone: none rests on the other."""
    found = list(mutants(1000 + batch, BATCH))
    assert not [str(x.rule) for x in found if x.form or x.points]


@pytest.mark.parametrize("name", KNOWN_WRONG)
def test_known_wrong_rules_are_refused(name: str) -> None:
    found = judged(0, name, parse_equality(KNOWN_WRONG[name]))
    assert not found.form and not found.points


def test_a_split_remembers_its_cut() -> None:
    """Concat is associative, but for where it is cut again: these are of different sizes."""
    whole = "slice(concat({}, axis=0), axis=0, start=first, stop=middle)"
    sides = whole.format("concat(x, y, axis=0), z"), whole.format("x, concat(y, z, axis=0)")
    with pytest.raises(Invalid, match="the sides are of types"):
        parse_equality(f"{sides[0]} == {sides[1]} where x: [m, n], y: [k, n], z: [l, n]")
    square = f"{sides[0]} == concat(x, y, axis=0) where x: [m, n], y: [k, n], z: [l, n]"
    assert isinstance(proved(parse_equality(square)), Record)


def test_every_change_is_drawn() -> None:
    """Of rules with everything in them, each kind of change makes another."""
    text = f"relu(mul(p, conv(concat(x, y, axis=1), concat(u, v, axis=1), {SETTINGS})))"
    text += f" == mul(p, relu(add(conv(x, u, {SETTINGS}), conv(y, v, {SETTINGS}))))"
    text += " where p: [] >= 0, x: [n, c, h, w], y: [n, c, h, w], u: [o, c, 3, 3], v: [o, c, 3, 3]"
    cut = "slice(concat(x, y, axis=0), axis=0, start=first, stop=middle) == x"
    grouped = KNOWN_WRONG["grouped convolutions by plain concat"]
    found = [parse_equality(t) for t in (text, f"{cut} where x: [m, n], y: [m, n]", grouped)]
    for change in ALL_CHANGES:
        made = [x for e in found for x in islice(changed(random.Random(0), e, change), 99)]
        assert any(x not in found for x in made), change
