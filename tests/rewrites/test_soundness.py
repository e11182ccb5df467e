"""What the normal form calls equal is equal, on random pairs of graphs; a wrong law is found so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.rewrites.random_pairs import check_seed
from tests.seeds import drawn
from tilewright.ir.expr import Const, Fn, Value, const, fn
from tilewright.rewrites.proofs import form, ieee, integers, reals
from tilewright.rewrites.proofs.form import Forms
from tilewright.rewrites.proofs.ieee import Floats
from tilewright.rewrites.proofs.terms import ONE, Terms

BATCH = 60


@pytest.mark.parametrize("batch", drawn(range(40), 1))
def test_what_is_called_equal_is_equal(batch: int) -> None:
    with np.errstate(all="ignore"):
        found = sum(check_seed(seed) > 0 for seed in range(batch * BATCH, (batch + 1) * BATCH))
    assert found >= BATCH // 4, "too few pairs are called equal to tell anything"


# ---- laws that are wrong are found by the same pairs


def zero_vanishes(self: Floats, a: Value, b: Value) -> Value:
    """x + 0 = x, bit for bit"""
    for x, y in ((a, b), (b, a)):
        if isinstance(y, Const) and y.value == 0:
            return x
    return fn("add", a, b)


def inexact_inverse(v: Value) -> Const | None:
    """x / 3 = x * (1/3)"""
    return const(1.0 / v.value, v.dtype) if isinstance(v, Const) and v.value > 0 else None


def no_remainder(forms: Forms, v: Fn, n: int) -> Terms | None:
    """(x // n) = x"""
    return forms.terms(v.args[0]) if v.name == "floordiv" else None


def no_divisor(forms: Forms, y: Value) -> Terms:
    """1 / y = 1"""
    return ONE


right_cut = form._cut


def one_too_many(s: Any, c: Any) -> Any:
    """Sums over a part have one element more."""
    cut = right_cut(s, c)
    return cut if cut is None else (cut[0], cut[1] + 1)


WRONG_LAWS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "x + 0 = x": lambda p: p.setitem(ieee._LAWS, "add", zero_vanishes),
    "x / 3 = x * (1/3)": lambda p: p.setattr(ieee, "_exact_inverse", inexact_inverse),
    "1/(x+0) = 1/x": lambda p: p.setitem(ieee.SIGN_BLIND, "div", 2),
    "any dtype holds any": lambda p: p.setattr(ieee, "holds_exactly", lambda a, b: True),
    "x // n = x": lambda p: p.setattr(integers, "_by_constant", no_remainder),
    "1 / y = 1": lambda p: p.setattr(reals, "inverse", no_divisor),
    "x >= y is x > y": lambda p: p.setitem(form.SWAPPED, "ge", "lt"),
    "one too many": lambda p: p.setattr(form, "_cut", one_too_many),
}


@pytest.mark.parametrize("law", WRONG_LAWS)
def test_a_wrong_law_is_found(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    WRONG_LAWS[law](monkeypatch)
    with np.errstate(all="ignore"):
        for seed in range(2000):
            try:
                check_seed(seed)
            except AssertionError:
                print("found by seed", seed)
                return
    pytest.fail("2000 pairs do not tell")
