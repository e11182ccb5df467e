"""The laws of IEEE 754 that hold bit for bit, and those that hold but for the sign of zero.

One NaN is as good as another. Results are rounded to the nearest, ties to even, so that a function
of changed signs is the function with its sign changed. `max` and `min` are IEEE's `maximum` and
`minimum`: NaN wins, and -0 is below +0. tests/rewrites/test_laws.py tries the laws on every value
of the floats of 16 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tilewright.ir.expr import Const, Fn, Value, cast, const, fn
from tilewright.ir.scalar import SCALARS, applied
from tilewright.ir.types import DType
from tilewright.rewrites.facts import holds_exactly

ROUNDINGS = ("floor", "ceil", "trunc", "round")
# Of arguments that differ in the sign of a zero, the results differ in that at most: how many of
# the arguments, from the first.
SIGN_BLIND = {
    **dict.fromkeys((*ROUNDINGS, "neg", "abs", "sqrt", "exp", "tanh", "sigmoid", "cast"), 1),
    **dict.fromkeys("add sub mul max min lt le gt ge eq ne".split(), 2),
    "div": 1,
}


def sign_blind(v: Fn, k: int) -> bool:
    """May argument k of a function change the sign of a zero?"""
    return k < SIGN_BLIND.get(v.name, 0)


def shortened(x: Value, to: DType) -> Value:
    """cast(cast(x)) as cast(x), where the dtype between holds every value of x."""
    while isinstance(x, Fn) and x.name == "cast" and holds_exactly(x.args[0].dtype, x.dtype):
        x = x.args[0]
    return cast(x, to)


class Floats:
    """Float functions in canonical form; with `numbers`, but for the sign of zero."""

    def __init__(self, numbers: bool = False) -> None:
        self.numbers = numbers
        self.exactly = Floats() if numbers else self
        self.known: dict[Value, Value] = {}

    def canonical(self, v: Value) -> Value:
        """The same value; equal for more values than v."""
        found = self.known.get(v)
        if found is None:
            found = self.known[v] = self._canonical(v)
        return found

    def _canonical(self, v: Value) -> Value:
        if isinstance(v, Const) and v.dtype.is_float:
            return const(0.0, v.dtype) if self.numbers and v.value == 0 else v
        if not isinstance(v, Fn) or v.name == "select":
            return v
        if v.name == "cast":
            inner = (self if v.dtype.is_float else self.exactly).canonical(v.args[0])
            return shortened(inner, v.dtype)
        if not v.dtype.is_float or not all(a.dtype is v.dtype for a in v.args):
            return v
        args = tuple(
            (self if sign_blind(v, k) else self.exactly).canonical(a) for k, a in enumerate(v.args)
        )
        return self._applied(v.name, args, v.dtype)

    def _applied(self, name: str, args: tuple[Value, ...], dtype: DType) -> Value:
        # The same wherever it is computed, so it may be computed here.
        if SCALARS[name].rounded and all(isinstance(a, Const) for a in args):
            numbers = [np.array(a.value, dtype.numpy) for a in args if isinstance(a, Const)]
            with np.errstate(all="ignore"):
                return self.canonical(const(float(applied(name, numbers, dtype)), dtype))
        law = _LAWS.get(name)
        return fn(name, *args) if law is None else law(self, *args)

    # ---- functions of canonical arguments

    def neg(self, a: Value) -> Value:
        if isinstance(a, Const):
            return self.canonical(const(-a.value, a.dtype))
        if isinstance(a, Fn) and a.name == "neg":
            return a.args[0]
        if self.numbers and isinstance(a, Fn) and a.name == "add":
            return self.add(*map(self.neg, a.args))  # 1 - 1 is +0, and so is -1 + 1
        return fn("neg", a)

    def add(self, a: Value, b: Value) -> Value:
        for x, y in ((a, b), (b, a)):
            if isinstance(y, Const) and y.value == 0:
                if self.numbers or math.copysign(1, y.value) < 0:
                    return x
        return fn("add", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return self.add(a, self.neg(b))

    def mul(self, a: Value, b: Value) -> Value:
        (a, minus_a), (b, minus_b) = _unsigned(a), _unsigned(b)
        if _is_number(a, 1):
            out = b
        elif _is_number(b, 1):
            out = a
        elif _is(a, "abs") and _is(b, "abs"):
            out = self.abs(self.mul(a.args[0], b.args[0]))
        else:
            out = fn("mul", a, b)
        return self.neg(out) if minus_a != minus_b else out

    def div(self, a: Value, b: Value) -> Value:
        (a, minus_a), (b, minus_b) = _unsigned(a), _unsigned(b)
        inverse = _exact_inverse(b)
        out = fn("div", a, b) if inverse is None else self.mul(a, inverse)
        return self.neg(out) if minus_a != minus_b else out

    def abs(self, a: Value) -> Value:
        a, _ = _unsigned(a)
        if isinstance(a, Const) or _is(a, "abs"):
            return a
        if _is(a, "mul") and a.args[0] is a.args[1]:
            return a
        return fn("abs", a)


def _rounding(name: str) -> Callable[[Floats, Value], Value]:
    """What is a whole number stays."""
    return lambda _, a: a if isinstance(a, Fn) and a.name in ROUNDINGS else fn(name, a)


_LAWS: dict[str, Callable[..., Value]] = {
    "neg": Floats.neg,
    "add": Floats.add,
    "sub": Floats.sub,
    "mul": Floats.mul,
    "div": Floats.div,
    "abs": Floats.abs,
    **{name: _rounding(name) for name in ROUNDINGS},
}


def _is(v: Value, name: str) -> bool:
    return isinstance(v, Fn) and v.name == name


def _is_number(v: Value, x: float) -> bool:
    return isinstance(v, Const) and v.value == x


def _unsigned(v: Value) -> tuple[Value, bool]:
    """(v without its sign, whether it had one)."""
    if _is(v, "neg"):
        return v.args[0], True
    if isinstance(v, Const) and math.copysign(1, v.value) < 0:
        return const(-v.value, v.dtype), True
    return v, False


def _exact_inverse(v: Value) -> Const | None:
    """1/v where v is a power of two and 1/v a number of its dtype: both round the same quotient."""
    if not isinstance(v, Const) or not math.isfinite(v.value) or v.value <= 0:
        return None
    if math.frexp(v.value)[0] != 0.5:
        return None
    inverse = 1.0 / v.value
    made = const(inverse, v.dtype)
    return made if made.value == inverse else None
