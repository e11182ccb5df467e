"""What some machines have no instruction for, by instructions that all have."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.target import Target
from tilewright.llvm.narrow import Lanes

# Functions that round to whole numbers.
WHOLE = frozenset({"floor", "ceil", "trunc", "round"})


@dataclass(frozen=True)
class Has:
    """Instructions that a machine has, or that LLVM has code for there."""

    f16: bool = True  # conversions of half precision
    whole: bool = True  # floats rounded to whole numbers
    f64_maximum: bool = True  # maxima of doubles that distinguish zeros
    maximum: bool = True  # maxima of vectors of floats in which NaN stays
    saturates: bool = True  # vectors of floats to integers, the nearest where there is none

    @staticmethod
    def of(target: Target) -> Has:
        return Has(
            target.converts_f16,
            target.rounds,
            target.f64_maximum,
            target.maximum,
            target.saturates,
        )


def rounded(name: str, t: str, x: str, n: Lanes) -> str:
    """A function of `WHOLE` of floats or doubles: added to a number whose last place is 1, the sum
    rounds to whole numbers; then one more or less where that is on the wrong side."""
    i, sign, digits = ("i64", 1 << 63, 52) if t == "double" else ("i32", 1 << 31, 23)
    anchor = 2.0**digits
    bits = n.convert("bitcast", x, t, i)
    minus = n.op("and", bits, sign, i)

    def signed(r: str) -> str:
        """With the sign of x, so that there are zeros of both."""
        r = n.op("and", n.convert("bitcast", r, t, i), sign - 1, i)
        return n.convert("bitcast", n.op("or", r, minus, i), i, t)

    size = n.convert("bitcast", n.op("and", bits, sign - 1, i), i, t)
    r = n.op("fsub", n.op("fadd", size, anchor, t), anchor, t)
    if name == "trunc":
        r = n.choose(n.op("fcmp ogt", r, size, t), n.op("fsub", r, 1.0, t), r, t)
    r = signed(r)
    if name in ("floor", "ceil"):
        beyond, back = ("ogt", "fsub") if name == "floor" else ("olt", "fadd")
        wrong = n.op(f"fcmp {beyond}", r, x, t)
        r = signed(n.choose(wrong, n.op(back, r, 1.0, t), r, t))
    return n.choose(n.op("fcmp olt", size, anchor, t), r, x, t)


def with_ordered_zeros(name: str, r: str, x: str, y: str, n: Lanes) -> str:
    """The maximum or minimum of doubles, given one in which zeros may be of either sign. Equal
    numbers have equal bits but for the sign of zeros, which a maximum clears and a minimum sets."""
    a, b = (n.convert("bitcast", e, "double", "i64") for e in (x, y))
    joined = n.op("and" if name == "max" else "or", a, b, "i64")
    equal = n.op("fcmp oeq", x, y, "double")
    return n.choose(equal, n.convert("bitcast", joined, "i64", "double"), r, "double")


def bounded(name: str, x: str, limit: str, zero: str, t: str, n: Lanes) -> str:
    """The maximum or minimum of vectors of floats and a constant that is a number; `zero` is the
    one that the function prefers to the other. NaN is neither beyond it nor the same."""
    code = "olt" if name == "max" else "ogt"
    if limit == zero:
        code = "ole" if name == "max" else "oge"
    return n.choose(n.op(f"fcmp {code}", x, limit, t), limit, x, t)


def saturated(t: str, x: str, n: Lanes) -> str:
    """Floats or doubles cut to integers of 64 bits: the nearest one where there is none, and 0 for
    NaN. What does not fit is converted as 0."""
    most = 2.0**63
    high, low = n.op("fcmp oge", x, most, t), n.op("fcmp ole", x, -most, t)
    fits = n.op("and", n.op("fcmp olt", x, most, t), n.op("fcmp ogt", x, -most, t), "i1")
    r = n.convert("fptosi", n.choose(fits, x, "zeroinitializer", t), t, "i64")
    r = n.choose(low, -(1 << 63), r, "i64")
    return n.choose(high, (1 << 63) - 1, r, "i64")
