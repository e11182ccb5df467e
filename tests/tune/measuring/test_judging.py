"""When the result of a schedule is right: the rule of `measuring/judging.py`."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernel.examples import EXAMPLES
from tests.kernel.random_groups import arrays
from tilewright.base.errors import Unsupported
from tilewright.ir.types import DType, bf16, f16, f32, i32
from tilewright.kernel.doubled import doubled
from tilewright.kernel.interpret import run_group
from tilewright.kernel.nest import start
from tilewright.kernel.text import group_text, parse_group
from tilewright.runtime.device import HOST
from tilewright.targets import default
from tilewright.tune.measure import Arguments, places
from tilewright.tune.measuring.judging import Exact, Judge, in_double, terms


def found(
    x: float,
    usual: float,
    exact: float | None,
    terms: int = 1,
    dtype: DType = f32,
    change: float = 0.0,
) -> bool:
    """Is x right?"""
    numbers = [np.array([v, 1.0]) for v in (x, usual)]
    known = Exact([np.array([exact or 0.0, 1.0])], [np.array([change, 0.0])])
    judge = Judge([numbers[1]], [dtype], None if exact is None else known, terms)
    return judge.difference([numbers[0]]) is None


UNIT = 2.0**-23


def test_a_float_is_right_by_its_error_against_float64() -> None:
    """At most twice the default schedule's own, and some units in the last place."""
    assert found(1 + 4 * UNIT, 1.0, 1.0) and not found(1 + 9 * UNIT, 1.0, 1.0)
    own = 100 * UNIT
    assert found(1 - 2 * own, 1 + own, 1.0) and not found(1 - 2.2 * own, 1 + own, 1.0)


def test_longer_sums_may_be_further_off() -> None:
    assert found(1 + 100 * UNIT, 1.0, 1.0, terms=1024)
    assert not found(1 + 300 * UNIT, 1.0, 1.0, terms=1024)


def test_results_that_change_much_with_inputs_may_be_further_off() -> None:
    """By the change of this very result."""
    assert found(1 + 39 * UNIT, 1.0, 1.0, change=9 * UNIT)
    assert not found(1 + 49 * UNIT, 1.0, 1.0, change=9 * UNIT)
    known = Exact([np.array([1.0, 1.0])], [np.array([0.0, 1.0])])
    judge = Judge(known.results, [f32], known)
    assert judge.difference([np.array([1.0, 1.5])]) is None
    assert judge.difference([np.array([1.0 + 1e-4, 1.0])]) is not None


RECIPROCALS = """group reciprocals
  in a: f32[777,523]
  out y: f32[523]
  local t: f32[523]
  t[t.i] add= a[t.r,t.i] for t.i in 523, t.r in 777 from 0.0
  y[y.i] = 1.0 / t[y.i] for y.i in 523
"""


def test_sums_near_zero_below_a_division() -> None:
    """Sums in float32 in any order are right, even where the default schedule happens to round
    little; a row that is left out is seen."""
    group = parse_group(RECIPROCALS)
    arguments = Arguments(start(group), default(), HOST)
    exact = in_double(group, arguments, default())
    a = arguments.results([0])[0].reshape(777, 523)
    rng = np.random.default_rng(1)

    def summed(rows: np.ndarray) -> np.ndarray:
        total = np.zeros(523, np.float32)
        for row in rows:
            total += row
        return np.float32(1) / total

    usual = (1 / a.astype(np.float64).sum(0)).astype(np.float32)
    judge = Judge([usual], [f32], exact, terms(group))
    for _ in range(8):
        assert judge.difference([summed(rng.permutation(a))]) is None
    assert judge.difference([summed(a[:-1])]) is not None


@pytest.mark.parametrize(("dtype", "unit"), [(f32, 2.0**-23), (f16, 2.0**-10), (bf16, 2.0**-7)])
def test_units_are_those_of_the_dtype(dtype: DType, unit: float) -> None:
    assert found(1 + 4 * unit, 1.0, 1.0, dtype=dtype)
    assert not found(1 + 12 * unit, 1.0, 1.0, dtype=dtype)


def test_without_float64_the_default_schedule_is_right() -> None:
    assert found(1 + 5e-5, 1.0, None) and not found(1 + 5e-4, 1.0, None)


@pytest.mark.parametrize(
    ("x", "usual", "right"),
    [
        (np.nan, np.nan, True),
        (np.inf, np.inf, True),
        (np.inf, -np.inf, False),
        (np.nan, 1.0, False),
        (1.0, np.nan, False),
    ],
)
def test_nan_and_infinity_are_in_the_same_places(x: float, usual: float, right: bool) -> None:
    assert found(x, usual, None) == right
    assert found(x, usual, usual) == right


def test_whole_numbers_are_equal() -> None:
    judge = Judge([np.array([1, 2, 3], np.int32)], [i32])
    assert judge.difference([np.array([1, 2, 3], np.int32)]) is None
    off = judge.difference([np.array([1, 2, 10], np.int32)])
    assert off is not None and off.largest == 7 and "output 0: 1 of 3 values differ" in off.words


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_groups_in_float64(name: str) -> None:
    """They print, parse and compute the same, more exactly."""
    e = EXAMPLES[name]
    wide = doubled(e.group)
    assert parse_group(group_text(wide)) == wide
    sizes = e.dims[0] if e.dims else {}
    given = arrays(e.group, sizes, 0)
    usual = run_group(e.group, given, sizes)
    exact = run_group(wide, {k: np.array(v) for k, v in given.items()}, sizes)
    for k, v in exact.items():
        assert v.dtype == (np.float64 if usual[k].dtype.kind == "f" else usual[k].dtype)
        np.testing.assert_allclose(v, usual[k], rtol=1e-2, atol=1e-2)


def test_bits_of_a_float_have_no_form_in_float64() -> None:
    text = """group bits
  in a: f32[8]
  out y: u32[8]
  y[y.i] = bits_of_f32(a[y.i]) for y.i in 8
"""
    with pytest.raises(Unsupported, match="bits_of_f32"):
        doubled(parse_group(text))


def test_float64_on_this_processor_agrees_with_numpy() -> None:
    group = EXAMPLES["matmul"].group
    arguments = Arguments(start(group), default(), HOST)
    known = in_double(group, arguments, default())
    assert known is not None
    (got,), (changes,) = known.results, known.changes
    a, b = (arguments.results([k])[0].astype(np.float64) for k in (0, 1))
    want = a.reshape(13, 6) @ b.reshape(6, 29)
    np.testing.assert_allclose(got.reshape(13, 29), want, rtol=1e-12)
    assert terms(group) == 6
    # The root of the sum of squares of what each of the two numbers of each product moves.
    moved = UNIT * np.sqrt(2 * (a.reshape(13, 6) ** 2 @ b.reshape(6, 29) ** 2))
    assert 0.3 < np.median(changes.reshape(13, 29) / moved) < 1.5


def test_whole_numbers_are_drawn_unless_they_say_what_is_read() -> None:
    """A product of bytes shows mistakes; an index has to be one."""
    text = """group indexed
  in a: i8[16,16]
  in at: i64[16]
  in base: i64[16]
  out y: i32[16]
  local t: i64[16]
  t[t.i] = at[t.i] + base[t.i] for t.i in 16
  y[y.i] = cast<i32>(a[y.i,${max(min(t[y.i], 15), 0)}]) for y.i in 16
"""
    nest = start(parse_group(text))
    assert places(nest) == {"at", "base", "t"}
    arguments = Arguments(nest, default(), HOST)
    a, at, base = arguments.results([0, 1, 2])
    assert a.max() > 0 and a.min() >= 0 and not at.any() and not base.any()
