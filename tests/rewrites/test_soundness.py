"""What the normal form calls equal is equal, on random pairs of graphs; wrong laws are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from tests.rewrites.random_pairs import check_seed
from tests.rewrites.test_wrong_rules import WRONG, proved
from tests.seeds import drawn
from tilewright.ir.expr import Const, Fn, Value, const, extent, fn
from tilewright.ir.scalar import SCALARS
from tilewright.rewrites.proofs import form, ieee, integers, reals
from tilewright.rewrites.proofs.form import READINGS, Forms
from tilewright.rewrites.proofs.ieee import Floats
from tilewright.rewrites.proofs.terms import Terms, scaled

BATCH = 60


@pytest.mark.parametrize("batch", drawn(range(40), 1))
def test_what_is_called_equal_is_equal(batch: int) -> None:
    with np.errstate(all="ignore"):
        found = sum(check_seed(seed) > 0 for seed in range(batch * BATCH, (batch + 1) * BATCH))
    assert found >= BATCH // 4, "too few pairs are called equal to tell anything"


# ---- with a law that is wrong, one of the wrong rules is proved: the table would find it


def zero_vanishes(self: Floats, a: Value, b: Value) -> Value:
    for x, y in ((a, b), (b, a)):
        if isinstance(y, Const) and y.value == 0:
            return x
    return fn("add", a, b)


def inexact_inverse(v: Value) -> Const | None:
    return const(1.0 / v.value, v.dtype) if isinstance(v, Const) and v.value > 0 else None


def true_quotient(forms: Forms, v: Fn, n: int) -> Terms | None:
    return scaled(forms.terms(v.args[0]), Fraction(1, n)) if v.name == "floordiv" else None


right_orders = form._orders
# What is patched, and the wrong rule that is proved then.
WRONG_LAWS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "x + 0 = x": (lambda p: p.setitem(ieee._LAWS, "add", zero_vanishes), "x+0=x"),
    "all inverses are exact": (
        lambda p: p.setattr(ieee, "_exact_inverse", inexact_inverse),
        "x/3=x*(1/3)",
    ),
    "a divisor's sign of zero": (lambda p: p.setitem(ieee.SIGN_BLIND, "div", 2), "1/(x+0)=1/x"),
    "any dtype holds any": (
        lambda p: p.setattr(ieee, "holds_exactly", lambda a, b: True),
        "through f16",
    ),
    "x // n = x / n": (lambda p: p.setattr(integers, "_by_constant", true_quotient), "2x//2=x"),
    "all is defined": (lambda p: p.setattr(reals, "domain", lambda f, v: set()), "1/x-1/x=0"),
    "cos is odd": (
        lambda p: p.setitem(SCALARS, "cos", replace(SCALARS["cos"], parity="odd")),
        "cos odd",
    ),
    "x >= y is x > y": (lambda p: p.setitem(form.SWAPPED, "ge", "lt"), "x>=y is x>y"),
    "numbers are tests": (lambda p: p.setattr(form, "is_test", lambda f: True), "x*x=x"),
    "all sums have the same indices": (
        lambda p: p.setattr(Forms, "_height_within", lambda forms, t: 0),
        "sums_within_sums",
    ),
    "a cut keeps the range": (
        lambda p: p.setattr(form, "_cut", lambda s, c: (0, extent(s))),
        "sum_without_its_last",
    ),
    "sums have no order": (
        lambda p: p.setattr(form, "_orders", lambda a, b, *_, **__: right_orders(a, b)),
        "axes_of_a_float_sum",
    ),
}


@pytest.mark.parametrize("law", WRONG_LAWS)
def test_a_wrong_law_proves_a_wrong_rule(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, name = WRONG_LAWS[law]
    (rule,) = (r for r in WRONG if r.name == name)
    readings = READINGS[: READINGS.index(rule.reading) + 1]
    assert not any(proved(rule, reading) for reading in readings)
    patch(monkeypatch)
    assert any(proved(rule, reading) for reading in readings)
