"""Steps that say how operands of products are stored: their results, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.seeds import drawn
from tilewright.base.errors import Refused
from tilewright.ir.types import DTYPES, DType, from_memory, has_all_of, to_memory
from tilewright.kernel import steps  # noqa: F401  (traces name them)
from tilewright.kernel.check import verify
from tilewright.kernel.interpret import run
from tilewright.kernel.nest import Nest
from tilewright.kernel.step import apply, parse_trace, print_trace
from tilewright.kernel.text import nest_text, parse_nest

NARROW = [d for d in DTYPES.values() if d.bits <= 16 and not d.is_bool]


def numbers(d: DType) -> np.ndarray:
    codes = np.arange(1 << d.bits, dtype=np.uint32).astype(f"u{d.bytes}")
    return from_memory(codes.view(d.memory), d)


@pytest.mark.parametrize("narrow", NARROW, ids=str)
def test_a_wider_dtype_has_every_number(narrow: DType) -> None:
    """All of them, for dtypes of 8 and 16 bits."""
    with np.errstate(invalid="ignore"):  # NaN with any bits
        given = numbers(narrow).astype(np.float64)
        for wide in DTYPES.values():
            if has_all_of(wide, narrow):
                rounded = from_memory(to_memory(numbers(narrow).astype(wide.numpy), wide), wide)
                np.testing.assert_array_equal(rounded.astype(np.float64), given, str(wide))


def test_no_dtype_has_those_of_a_wider_one() -> None:
    for one, other in [
        ("f16", "bf16"),
        ("bf16", "f16"),
        ("i8", "u8"),
        ("f32", "f64"),
        ("i16", "u8"),
    ]:
        assert has_all_of(DTYPES[one], DTYPES[other]) == (one == "i16")


def nest(dtype: str, sums: str, other: str | None = None) -> Nest:
    """A product in a loop, its first operand filled before it, its second inside."""
    b = other or dtype
    return parse_nest(f"""nest k where n: 1..
  in x: {dtype}[4,8]
  in y: {b}[8,6]
  out c: {sums}[4,6]
  local a: {dtype}[4,8]
  local b: {b}[8,6]
  alloc a
  for s.i0 in 4:
    for s.i1 in 8:
      s: a[s.i0,s.i1] = x[s.i0,s.i1]
  for z.i0 in 4:
    for z.i1 in 6:
      z: c[z.i0,z.i1] = cast<{sums}>(#(6*z.i0+z.i1))
  for turn in n:
    alloc b
    for t.i0 in 8:
      for t.i1 in 6:
        t: b[t.i0,t.i1] = y[t.i0,t.i1]
    for d.i0 in 4:
      for d.i1 in 6:
        for d.r0 in 8:
          d: c[d.i0,d.i1] add= cast<{sums}>(a[d.i0,d.r0]) * cast<{sums}>(b[d.r0,d.i1])
""")


def result(n: Nest, seed: int) -> np.ndarray:
    """After three turns, with operands drawn from all numbers of their dtypes."""
    rng = np.random.default_rng(seed)
    given: dict[str, Any] = {}
    for b in n.buffers:
        if b.name in ("x", "y"):
            assert b.dtype.is_int
            low, high = int(b.dtype.lowest), int(b.dtype.highest)
            shape = tuple(int(d) for d in b.shape if isinstance(d, int))
            given[b.name] = rng.integers(low, high, shape, b.dtype.numpy, endpoint=True)
    c = run(n, given, {"n": 3})["c"]
    want = np.arange(24).reshape(4, 6) + 3 * (given["x"].astype(int) @ given["y"].astype(int))
    np.testing.assert_array_equal(c, want)
    return c


@pytest.mark.parametrize("seed", drawn(range(12), quick=1))
@pytest.mark.parametrize("dtype, other", [("i8", "i8"), ("u8", "i8"), ("i8", "u8"), ("u8", "u8")])
@pytest.mark.parametrize(
    "trace",
    [
        "OtherSign('d')",
        "Retype('a', 'i16')\nRetype('b', 'i32')",
        "CopyOperand('a', 'd', 'u')\nRetype('u', 'i32')",
        "CopyOperand('a', 'd', 'u')\nOtherSign('d')\nCopyOperand('b', 'd', 'v')",
    ],
)
def test_products_stay_what_they_are(dtype: str, other: str, trace: str, seed: int) -> None:
    n = nest(dtype, "i32", other)
    made = apply(n, parse_trace(trace))
    verify(made)
    assert parse_nest(nest_text(made)) == made
    assert print_trace(parse_trace(trace)) == print_trace(
        parse_trace(print_trace(parse_trace(trace)))
    )
    np.testing.assert_array_equal(result(made, seed), result(n, seed))


def test_widened_operands_are_read_without_casts() -> None:
    text = nest_text(
        apply(nest("bf16", "f32"), parse_trace("Retype('a', 'f32')\nRetype('b', 'f32')"))
    )
    assert "s: a[s.i0,s.i1] = cast<f32>(x[s.i0,s.i1])" in text
    assert "add= a[d.i0,d.r0] * b[d.r0,d.i1]" in text
    assert "local a: f32[4,8]" in text and "local b: f32[8,6]" in text


def test_what_was_widened_before_may_take_another_dtype() -> None:
    n = nest("f16", "f32")
    with pytest.raises(Refused, match="bf16 has not every number of f16"):
        apply(n, parse_trace("Retype('a', 'bf16')"))
    n = parse_nest(
        nest_text(n)
        .replace("in x: f16", "in x: f8e5m2")
        .replace("= x[", "= cast<f16>(x[")
        .replace("cast<f16>(x[s.i0,s.i1]", "cast<f16>(x[s.i0,s.i1])")
    )
    text = nest_text(apply(n, parse_trace("Retype('a', 'bf16')")))
    assert "= cast<bf16>(x[s.i0,s.i1])" in text and "cast<f32>(a[d.i0,d.r0])" in text


def test_a_copy_is_made_where_the_buffer_is_complete() -> None:
    outside = nest_text(apply(nest("i8", "i32"), parse_trace("CopyOperand('a', 'd', 'u')")))
    assert outside.index("alloc u") < outside.index("for turn")
    inside = nest_text(apply(nest("i8", "i32"), parse_trace("CopyOperand('b', 'd', 'u')")))
    assert inside.index("for t.i0") < inside.index("alloc u") < inside.index("for d.i0")
    assert inside.count("u[d.r0,d.i1]") == 1 and inside.count("b[d.r0,d.i1]") == 0


@pytest.mark.parametrize(
    "trace, says",
    [
        ("Retype('a', 'i7')", "there is no dtype i7"),
        ("Retype('a', 'i8')", "a is i8 already"),
        ("Retype('a', 'u8')", "u8 has not every number of i8"),
        ("Retype('x', 'i16')", "x is an argument"),
        ("Retype('q', 'i16')", "there is no buffer q"),
        ("CopyOperand('a', 'd', 'b')", "there is something called b already"),
        ("CopyOperand('a', 'e', 'u')", "e is not one statement"),
        ("CopyOperand('x', 'd', 'u')", "x is an argument"),
        ("OtherSign('s')", "s adds up no products"),
        ("OtherSign('e')", "e is not one statement"),
        ("Retype('a', 'i16')\nOtherSign('d')", "a is i16, not i8 or u8"),
    ],
)
def test_refusals(trace: str, says: str) -> None:
    with pytest.raises(Refused) as error:
        apply(nest("i8", "i32"), parse_trace(trace))
    assert says in str(error.value)


def test_sums_and_positions_are_not_retyped() -> None:
    n = parse_nest("""nest k
  in x: i8[4]
  out c: i8[4]
  local a: i8[]
  local p: i8[4]
  alloc a
  alloc p
  z: a[] = 0:i8
  for s.r0 in 4:
    s: a[] add= x[s.r0]
  for t.i0 in 4:
    t: p[t.i0] = x[t.i0]
  for y.i0 in 4:
    y: c[${p[y.i0]}] = a[]
""")
    with pytest.raises(Refused, match="s adds to a, in i8"):
        apply(n, parse_trace("Retype('a', 'i16')"))
    with pytest.raises(Refused, match="y reads positions from p"):
        apply(n, parse_trace("Retype('p', 'i16')"))
