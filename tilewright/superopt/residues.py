"""Numbers that programs are compared on: whole ones, or remainders that have quotients and powers.

Whole numbers have signs and an order, so maxima and positive parts are what they are; but they have
no quotients. Remainders by a prime p have: a sum, difference, product or quotient is that of the
field, a root is a power. An exponential turns sums into products: with p = 2 q + 1 for a prime q,
powers of 4 modulo p depend on the exponent modulo q only. So a number is two remainders, by p and
by q, and exp(x) is 4 to the power of the second. What is computed of an exponential has no
remainder by q, and so no exponential: such programs, and quotients by 0, are left out. Other
functions are random ones: equal values of equal arguments are all that is known of them; and the
order is a random one. So laws of those are missed. No wrong rule comes of it: an equality is proved
before it is a rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from math import isfinite, prod
from typing import Any, ClassVar, Protocol

import numpy as np

from tilewright.base.errors import Invalid, Unsupported
from tilewright.ir.expr import Fn, Load
from tilewright.ir.interpret import _Masked
from tilewright.ir.scalar import SCALARS
from tilewright.ir.types import DType
from tilewright.superopt.fingerprint import PRIMES, remainder, remainders
from tilewright.superopt.structure import EXACT, Many, Structure

LARGEST_LEAF = 20
# Shares of negative elements of leaves, point by point.
_NEGATIVE = (0.5, 0.85, 0.15)
# Functions that turn sums into products: squares, so that their powers repeat after q steps.
_POWERS = {"exp": 4, "exp2": 9}
_ORDERED = ("max", "min", "maxnum", "minnum")


class Arithmetic(Protocol):
    """Values are [plane, tensor, element of all points]."""

    planes: int

    def leaf(
        self, points: int, size: int, positive: bool, rng: np.random.Generator
    ) -> np.ndarray: ...

    def constant(self, points: int, elements: np.ndarray) -> np.ndarray:
        """A tensor of given elements, at all points."""
        ...

    def computed(self, s: Structure, points: int, *values: np.ndarray) -> np.ndarray: ...

    def remainders(self, values: np.ndarray) -> np.ndarray:
        """By the primes of keys."""
        ...

    def check(self, values: np.ndarray) -> None:
        """Raises where an operator's results are no numbers of this kind."""
        ...


class WholeNumbers:
    """One plane of exact numbers."""

    planes = 1

    def leaf(self, points: int, size: int, positive: bool, rng: np.random.Generator) -> np.ndarray:
        # Of all magnitudes, and at each point another share of negative ones, so that no tensor is
        # larger than another everywhere, and no maximum always positive.
        if size == 1:
            row = rng.choice(np.arange(3, LARGEST_LEAF + 1), points, replace=False)
            signs = (-1) ** np.arange(points)
        else:
            row = np.exp(rng.uniform(np.log(2), np.log(LARGEST_LEAF + 1), points * size)).astype(
                int
            )
            shares = np.resize(_NEGATIVE, points)
            signs = np.where(rng.random(points * size) < np.repeat(shares, size), -1, 1)
        return (row if positive else row * signs).astype(np.float64)[None]

    def constant(self, points: int, elements: np.ndarray) -> np.ndarray:
        return np.tile(elements, points)[None]

    def computed(self, s: Structure, points: int, *values: np.ndarray) -> np.ndarray:
        count = values[0].shape[1]
        found = s(*(v[0].reshape(count * points, -1) for v in values)).reshape(1, count, -1)
        if np.abs(found).max(initial=0.0) >= EXACT:
            raise Invalid("values of programs are too large to be exact: use smaller leaves")
        return np.ascontiguousarray(found)

    def remainders(self, values: np.ndarray) -> np.ndarray:
        return remainders(values[0])

    def check(self, values: np.ndarray) -> None:
        if not np.array_equal(values, np.rint(values)):
            raise Unsupported("its results of whole numbers are not whole")


class Remainders:
    """Six planes: remainders by three primes p, then by their q. NaN: there is none."""

    planes = 2 * len(PRIMES)

    def leaf(self, points: int, size: int, positive: bool, rng: np.random.Generator) -> np.ndarray:
        rows = [rng.integers(1, m, points * size).astype(np.float64) for m in _moduli()]
        # A square has a root.
        return np.stack([remainder(r * r, m) if positive else r for r, m in zip(rows, _moduli())])

    def constant(self, points: int, elements: np.ndarray) -> np.ndarray:
        return np.stack([remainder(np.tile(elements, points), m) for m in _moduli()])

    def computed(self, s: Structure, points: int, *values: np.ndarray) -> np.ndarray:
        planes, count = values[0].shape[:2]
        out: list[np.ndarray] = [np.zeros(0)] * planes
        for k in range(len(PRIMES)):
            both = [v[[k, k + len(PRIMES)]].reshape(2, count * points, -1) for v in values]
            for plane in (0, 1):
                found = s(*both, by=_evaluator(k, plane))
                out[k + plane * len(PRIMES)] = found.reshape(count, -1)
        return np.stack(out)

    def remainders(self, values: np.ndarray) -> np.ndarray:
        return values[: len(PRIMES)]

    def check(self, values: np.ndarray) -> None:
        """Every function has values, or is known to have none."""


ARITHMETICS: dict[str, Arithmetic] = {"whole": WholeNumbers(), "remainders": Remainders()}


def _moduli() -> tuple[int, ...]:
    return (*PRIMES, *(p // 2 for p in PRIMES))


class _Modulo(Many):
    """Evaluates modulo one of the two primes of a pair."""

    modulus: ClassVar[int]
    plane: ClassVar[int]
    other: ClassVar[type[_Modulo]]

    def number(self, value: Any, dtype: DType) -> np.ndarray:
        if not dtype.is_float:
            return super().number(value, dtype)
        if not isfinite(value):
            return np.asarray(float(value))
        x = Fraction(value)
        return np.asarray(float(x.numerator * pow(x.denominator, -1, self.modulus) % self.modulus))

    def fitted(self, x: Any, dtype: DType) -> np.ndarray:
        return np.asarray(x) if dtype.is_float else super().fitted(x, dtype)

    def _element(self, v: Load, a: np.ndarray) -> np.ndarray:
        return super()._element(v, a[self.plane])

    def _operands(self, x: _Masked) -> list[_Masked]:
        v = x[0]
        if isinstance(v, Fn) and v.name in _POWERS and v.dtype.is_float:
            return []  # what it needs is modulo the other prime
        return super()._operands(x)

    def _eval(self, x: _Masked) -> Any:
        v = x[0]
        if isinstance(v, Fn) and v.name in _POWERS and v.dtype.is_float:
            if self.plane:
                return np.asarray(np.nan)
            exponents = self.other(self.mem, {}, dict(self.env))
            exponents.mask = self.mask
            base = np.asarray(float(_POWERS[v.name]))
            return self._power(base, np.asarray(exponents(v.args[0])))
        return super()._eval(x)

    def function(self, v: Fn, args: Sequence[Any], dtype: DType) -> Any:
        before = [a.dtype.is_float for a in v.args]
        if not any(before) and not dtype.is_float:
            return super().function(v, args, dtype)
        x = [np.asarray(a) for a in args]
        if v.name == "cast" and dtype.is_float:
            return x[0] if before[0] else np.mod(x[0].astype(np.float64), self.modulus)
        if not all(before):
            raise Unsupported(f"{v.name} of numbers and others is not evaluated modulo a prime")
        return self._applied(v.name, x)

    def folded(self, combine: str, x: np.ndarray, n: int, dtype: DType) -> np.ndarray:
        if not dtype.is_float:
            return super().folded(combine, x, n, dtype)
        flat = x.reshape(*x.shape[: x.ndim - n], prod(x.shape[x.ndim - n :]))
        if combine == "add":
            return self._reduced(flat.sum(-1))
        acc = flat[..., 0]
        for k in range(1, flat.shape[-1]):
            acc = self._applied(combine, [acc, flat[..., k]])
        return acc

    def joined(self, combine: str, a: Any, b: Any, dtype: DType) -> Any:
        if not dtype.is_float:
            return super().joined(combine, a, b, dtype)
        return self._applied(combine, [np.asarray(a), np.asarray(b)])

    # ---- functions of remainders

    def _reduced(self, x: np.ndarray) -> np.ndarray:
        return remainder(x, self.modulus)

    def _applied(self, name: str, x: Sequence[np.ndarray]) -> np.ndarray:
        m = self.modulus
        match name:
            case "add":
                return self._reduced(x[0] + x[1])
            case "sub":
                return self._reduced(x[0] - x[1])
            case "mul":
                return self._reduced(x[0] * x[1])
            case "fma":
                return self._reduced(x[0] * x[1] + x[2])
            case "neg":
                return self._reduced(-x[0])
            case "div":
                return self._reduced(x[0] * self._inverse(x[1]))
            case "sqrt":
                return self._power(x[0], np.asarray((m + 1) // 4))
            case "rsqrt":
                return self._inverse(self._power(x[0], np.asarray((m + 1) // 4)))
            case "max" | "maxnum" | "min" | "minnum":
                a, b = map(_order, x)
                return np.where((a >= b) == name.startswith("max"), x[0], x[1])
            case "eq" | "ne":
                return (x[0] == x[1]) == (name == "eq")
            case "lt" | "le" | "gt" | "ge":
                a, b = map(_order, x)
                return {"lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[name]
        return self._unknown(name, x)

    def _inverse(self, x: np.ndarray) -> np.ndarray:
        found = self._power(x, np.asarray(self.modulus - 2))
        return np.where(x == 0, np.nan, found)

    def _power(self, base: np.ndarray, exponent: np.ndarray) -> np.ndarray:
        left = np.nan_to_num(exponent).astype(np.int64)
        out, power = np.asarray(1.0), base
        while left.any():
            out = np.where(left & 1, self._reduced(out * power), out)
            power, left = self._reduced(power * power), left >> 1
        return np.where(np.isnan(base) | np.isnan(exponent), np.nan, out)

    def _unknown(self, name: str, args: Sequence[np.ndarray]) -> np.ndarray:
        """A random function, odd or even where this one is."""
        parity, x, sign = SCALARS[name].parity, list(args), np.asarray(False)
        if parity:
            sign = x[0] > self.modulus // 2
            x = [np.where(sign, self.modulus - x[0], x[0])]
        key = np.uint64(int.from_bytes(name.encode()[:8], "little"))
        for a in x:
            key = _mixed(_mixed(np.nan_to_num(a).astype(np.uint64)) ^ key)
        if SCALARS[name].result == "bool":
            return (key & np.uint64(1)).astype(bool)
        found = (np.asarray(key) % np.uint64(self.modulus)).astype(np.float64)
        if parity == "odd":
            found = np.where(sign, self._reduced(-found), found)
        nothing = np.logical_or.reduce([~np.isfinite(a) for a in np.broadcast_arrays(*args)])
        return np.where(nothing, np.nan, found)


def _mixed(x: np.ndarray) -> np.ndarray:
    """Another number of 64 bits for each: a random one to all appearances."""
    with np.errstate(over="ignore"):
        z = x + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def _order(x: np.ndarray) -> np.ndarray:
    """Keys that order remainders at random, between the infinities."""
    whole = np.isfinite(x)
    inner = _mixed(np.where(whole, x, 0).astype(np.uint64)).astype(np.float64)
    return np.where(whole, inner, x)


@cache
def _evaluator(prime: int, plane: int) -> type[_Modulo]:
    p = PRIMES[prime]
    other = type("_Exponents", (_Modulo,), {"modulus": p // 2, "plane": 1})
    return (
        other if plane else type("_Numbers", (_Modulo,), {"modulus": p, "plane": 0, "other": other})
    )
