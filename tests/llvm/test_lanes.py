"""Comparisons that are numbers of lanes, and reads that leave the branch they stand in."""

from __future__ import annotations

import operator
import re

import numpy as np
import pytest

from tests.llvm.test_statements import Compiled, nest, same, strays
from tilewright.kernel.legal import legalise
from tilewright.llvm.emit import emit
from tilewright.llvm.objects import assembly
from tilewright.targets import get

LANES = 8
LAST = (1 << 63) - 1
COMPARED = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
AGAINST = """
nest k where n: {low}..{high}, m: {low}..{high}
  out q: bool[8]
  lane i in 8:
    q: q[i] = {left} {compared} {right}
"""
ENDS = (-LAST - 1, -LAST, LANES - LAST - 1, -9, -1, 0, 1, 7, 1 << 40, LAST - LANES, LAST - 1, LAST)


def compared(name: str, rising: bool, swapped: bool, bits: int) -> Compiled:
    """Lanes that are counted up or down from n, against m."""
    left, right = "#(n+i)" if rising else "#(n-i)", "#(m)"
    if swapped:
        left, right = right, left
    high = (1 << (bits - 1)) - 1
    text = AGAINST.format(low=-high - 1, high=high, left=left, compared=name, right=right)
    return Compiled(nest(text))


@pytest.mark.parametrize("swapped", (False, True))
@pytest.mark.parametrize("rising", (True, False))
@pytest.mark.parametrize("name", COMPARED)
def test_lanes_before_a_number_of_64_bits(name: str, rising: bool, swapped: bool) -> None:
    k = compared(name, rising, swapped, 64)
    assert f"icmp slt <{LANES} x i32>" in k.text  # numbers of lanes, not indices
    for n in ENDS:
        lanes = [n + j if rising else n - j for j in range(LANES)]
        if not all(-LAST - 1 <= x <= LAST for x in lanes):
            continue
        near = (x + d for x in (lanes[0], lanes[-1]) for d in (-1, 0, 1))
        for m in {*ENDS, *(x for x in near if -LAST - 1 <= x <= LAST)}:
            q = np.zeros(LANES, bool)
            k({"q": q}, {"n": n, "m": m})
            wanted = [COMPARED[name](*((m, x) if swapped else (x, m))) for x in lanes]
            assert q.tolist() == wanted, (n, m)


@pytest.mark.parametrize("name", COMPARED)
def test_a_difference_that_fits_is_a_difference(name: str) -> None:
    """Nothing is paid for 64 bits where numbers have 32."""
    assert ".sat." not in compared(name, True, False, 32).text
    assert ".sat." in compared(name, True, False, 64).text


@pytest.mark.parametrize("limit", (LAST, LAST - 1, -LAST - 1, -LAST))
@pytest.mark.parametrize("name", COMPARED)
def test_lanes_before_a_constant_at_the_end_of_64_bits(name: str, limit: int) -> None:
    text = f"""
nest k where n: -100..100
  out q: bool[8]
  lane i in 8:
    q: q[i] = #(n+i) {name} #({limit})
"""
    k = Compiled(nest(text))
    for n in (-100, -1, 0, 1, 100):
        q = np.zeros(LANES, bool)
        k({"q": q}, {"n": n})
        assert q.tolist() == [COMPARED[name](n + j, limit) for j in range(LANES)], n


# ---- reads in branches

BRANCH = """
nest k where n: 1.., c: 0..100
  in x: {x}
  out q: *f32
  for i in n:
    if #(i) < #(c):
      q: q[i] = x[{at}] * 2.0
"""


def before_the_loop(text: str, kind: str) -> bool:
    """Is the first load of a kind before the first loop?"""
    lines = Compiled(nest(text)).text.splitlines()
    first = next(k for k, line in enumerate(lines) if f"= load {kind}," in line)
    loop = next(k for k, line in enumerate(lines) if "phi i64" in line)
    return first < loop


def test_a_read_that_is_proved_valid_leaves_its_branch() -> None:
    text = BRANCH.format(x="f32[4]", at="3")
    assert before_the_loop(text, "float")
    arrays = {"x": np.arange(4, dtype=np.float32), "q": np.zeros(6, np.float32)}
    got = same(text, arrays, {"n": 6, "c": 2})
    np.testing.assert_array_equal(got["q"], [6, 6, 0, 0, 0, 0])


@pytest.mark.parametrize("x, at", (("*f32", "3"), ("f32[4]", "c")))
def test_a_read_that_may_not_be_there_stays_in_its_branch(x: str, at: str) -> None:
    text = BRANCH.format(x=x, at=at)
    assert not before_the_loop(text, "float")
    if x == "*f32":
        arrays = {"x": np.zeros(1, np.float32), "q": np.zeros(6, np.float32)}
        assert strays(nest(text), arrays, {"n": 6, "c": 0}) is None


def test_a_read_of_what_the_loop_changes_stays_where_it_is() -> None:
    text = """
nest k where n: 1.., c: 0..100
  out s: f32[4]
  out q: *f32
  for i in n:
    if #(i) < #(c):
      q: q[i] = s[3] * 2.0
    s: s[3] = cast<f32>(#(i))
"""
    arrays = {"s": np.full(4, 9, np.float32), "q": np.zeros(6, np.float32)}
    got = same(text, arrays, {"n": 6, "c": 4})
    np.testing.assert_array_equal(got["q"], [18, 0, 2, 4, 0, 0])


RAGGED = """
nest k
  in x: f32[30]
  out q: f32[30]
  for i in 8:
    for r in 5:
      {kind} j in min(4, 30-4*i):
        q: q[4*i+j] add= x[4*i+j]
"""


@pytest.mark.parametrize("kind", ("lane", "unroll"))
def test_a_read_of_an_iteration_that_may_not_be_there_stays_under_its_condition(kind: str) -> None:
    """The extent of the ragged loop proves its index, so no read leaves the test of the extent."""
    text = RAGGED.format(kind=kind)
    arrays = {"x": np.arange(30, dtype=np.float32), "q": np.zeros(30, np.float32)}
    np.testing.assert_array_equal(same(text, arrays)["q"], 5 * np.arange(30))
    assert strays(nest(text), arrays, {}) is None


CHOSEN = """
nest k
  in x: u8[4]
  in y: u8[4]
  out q: u8[8]
  for r in 2:
    lane j in 4:
      q: q[4*r+j] = select(#(r) < 1, x[j] * 3:u8, y[j] + 1:u8)
"""


def test_what_left_a_loop_is_chosen_from_registers() -> None:
    """Both sides of the choice leave the loop: they are registers, not neighbours in memory."""
    arrays = {name: np.arange(k, k + 4, dtype=np.uint8) for k, name in ((1, "x"), (9, "y"))}
    arrays["q"] = np.zeros(8, np.uint8)
    got = same(CHOSEN, arrays)["q"]
    np.testing.assert_array_equal(got, [3, 6, 9, 12, 10, 11, 12, 13])


EXTREME = """
nest k
  in x: f32[64]
  out y: f32[]
  y: y[] = {neutral}
  lane i in 64:
    y: y[] {function}= x[i]
"""
FUNCTIONS = {"max": np.maximum, "min": np.minimum, "maxnum": np.fmax, "minnum": np.fmin}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_maximum_of_many_lanes_waits_for_few(function: str) -> None:
    """Of halves of the lanes, not of one lane after the other."""
    neutral = {"max": "-inf", "min": "inf"}.get(function, "nan")
    n = nest(EXTREME.format(neutral=neutral, function=function))
    k = Compiled(n)
    for values in (np.arange(64.0), -np.arange(64.0), np.full(64, np.nan), np.zeros(64)):
        for place, other in ((0, np.nan), (37, np.nan), (63, np.nan), (5, np.inf), (6, -np.inf)):
            x = values.astype(np.float32)
            x[place] = other
            y = np.zeros((), np.float32)
            k({"x": x, "y": y}, {})
            np.testing.assert_equal(y, FUNCTIONS[function].reduce(x))
    target = get("x86-64-v4")
    ones = re.findall(r"\bv(?:max|min)ss\b", assembly(emit(legalise(n, target), target), target))
    assert len(ones) <= 4
