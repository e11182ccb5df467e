"""Unevaluated sums high + low of two floats: twice the precision where a formula needs it."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, localcontext

from tilewright.llvm.vmath.builder import Format, Value, fma


@dataclass(frozen=True, eq=False)
class Pair:
    """high + low, where low is at most about half an ulp of high."""

    high: Value
    low: Value


def split_constant(digits: str, form: Format, high_bits: int | None = None) -> tuple[float, float]:
    """A decimal constant as high + low; `high_bits` leaves room for exact products by integers."""
    with localcontext() as context:
        context.prec = 120
        exact = Decimal(digits)
        high = _truncate(exact, form.digits if high_bits is None else high_bits)
        return high, form.round(float(exact - Decimal(high)))


def split_constant_in(digits: str, form: Format, bits: list[int]) -> list[float]:
    """A decimal constant as a sum of parts, the k-th with `bits[k]` significant bits."""
    parts: list[float] = []
    with localcontext() as context:
        context.prec = 120
        rest = Decimal(digits)
        for count in bits:
            parts.append(_truncate(rest, count))
            rest -= Decimal(parts[-1])
    return [form.round(p) for p in parts]


def _truncate(value: Decimal, bits: int) -> float:
    """The value cut (nearest) to a number of significant bits."""
    exponent = 0
    scaled = abs(value)
    while scaled >= 1:
        scaled, exponent = scaled / 2, exponent + 1
    while scaled < Decimal("0.5"):
        scaled, exponent = scaled * 2, exponent - 1
    integer = int((scaled * 2**bits).to_integral_value())
    return (-1.0 if value < 0 else 1.0) * integer * 2.0 ** (exponent - bits)


def fast_two_sum(a: Value, b: Value) -> Pair:
    """a + b exactly, if |a| >= |b|."""
    high = a + b
    return Pair(high, b - (high - a))


def two_sum(a: Value, b: Value) -> Pair:
    """a + b exactly."""
    high = a + b
    shadow = high - a
    return Pair(high, (a - (high - shadow)) + (b - shadow))


def split(a: Value) -> tuple[Value, Value]:
    """a = high + low with about half the digits each, by cutting bits: nothing can overflow."""
    f = a.format
    high = (a.bits() & -(1 << (f.digits + 1) // 2)).as_float()
    return high, a - high


def two_product(a: Value, b: Value) -> Pair:
    """a * b exactly (without fused operations: to a last bit of the low word)."""
    high = a * b
    if a.builder.fma:
        return Pair(high, fma(a, b, -high))
    ah, al = split(a)
    bh, bl = split(b)
    return Pair(high, al * bl - (((high - ah * bh) - al * bh) - ah * bl))


def multiply(a: Pair, b: Pair) -> Pair:
    """The product to about twice the precision."""
    product = two_product(a.high, b.high)
    low = fma(a.low, b.high, fma(a.high, b.low, product.low))
    return fast_two_sum(product.high, low)


def add(a: Pair, b: Pair) -> Pair:
    """The sum to about twice the precision, if |a.high| >= |b.high|."""
    total = fast_two_sum(a.high, b.high)
    return fast_two_sum(total.high, total.low + a.low + b.low)
