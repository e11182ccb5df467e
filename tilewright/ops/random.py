"""Random numbers from a counter: Philox-4x32-10 (Salmon et al., 2011) of (seed, offset + element).

An element's number depends on the seed, the offset and its row-major place only: any part of a
tensor can be drawn by itself, in any order, on any target, and is the same. A call that draws n
elements advances the offset by n. Words of 32 bits are stored in i64, whose products do not
overflow before the mask.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.ir import expr
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Tensor, Value, fn
from tilewright.ir.node import Node, Op, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.types import DType, TensorType, TupleType, b1, bf16, f16, f32, f64, i8, i32, i64
from tilewright.ops import elementwise as ew
from tilewright.ops import samples as S
from tilewright.ops.creation import full
from tilewright.ops.shapes import want_kind

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
MASK = 0xFFFFFFFF
# Random bits in a uniform number: as many as fit between 0 and 1 without rounding up to 1.
DIGITS = {f64: 53, f32: 24, f16: 11, bf16: 8}


def _philox(seed: Value, counter: Value) -> tuple[Value, Value, Value, Value]:
    """Four words of 32 random bits for a 64-bit seed and counter."""
    key = [seed & MASK, fn("shr", seed, 32)]
    zero = expr.const(0, i64)
    c0, c1, c2, c3 = counter & MASK, fn("shr", counter, 32), zero, zero
    for k in range(ROUNDS):
        if k:
            key = [(w + step) & MASK for w, step in zip(key, KEY_STEPS, strict=True)]
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        high0, high1 = fn("shr", p0, 32), fn("shr", p1, 32)
        c0, c1, c2, c3 = high1 ^ c1 ^ key[0], p1 & MASK, high0 ^ c3 ^ key[1], p0 & MASK
    return c0, c1, c2, c3


def _philox_numpy(seed: int, counters: np.ndarray) -> list[np.ndarray]:
    """The same on unsigned 64-bit arrays, as the paper defines it."""
    words = [counters & np.uint64(MASK), counters >> np.uint64(32)]
    words += [np.zeros_like(counters), np.zeros_like(counters)]
    unsigned = seed % (1 << 64)
    key = [unsigned & MASK, unsigned >> 32]
    for _ in range(ROUNDS):
        a, b = words[0] * np.uint64(MULTIPLIERS[0]), words[2] * np.uint64(MULTIPLIERS[1])
        words = [
            (b >> np.uint64(32)) ^ words[1] ^ np.uint64(key[0]),
            b & np.uint64(MASK),
            (a >> np.uint64(32)) ^ words[3] ^ np.uint64(key[1]),
            a & np.uint64(MASK),
        ]
        key = [(k + step) & MASK for k, step in zip(key, KEY_STEPS, strict=True)]
    return words


def _counters(shape: Sequence[int], offset: np.ndarray) -> np.ndarray:
    n = math.prod(shape)
    return (np.arange(n, dtype=np.uint64) + np.uint64(int(offset) % (1 << 64))).reshape(shape)


def _uniform(high: Value, low: Value, dtype: DType) -> Value:
    """[0, 1) from the top bits of one word, or of two for f64."""
    digits = DIGITS[dtype]
    wide = dtype.accumulator
    if dtype is f64:
        bits = fn("shr", fn("shl", high, 32) | low, 64 - digits)
    else:
        bits = fn("shr", high, 32 - digits)
    return expr.cast(expr.cast(bits, wide) * 2.0**-digits, dtype)


def _uniform_numpy(high: np.ndarray, low: np.ndarray, dtype: DType) -> np.ndarray:
    digits = DIGITS[dtype]
    if dtype is f64:
        return ((high << np.uint64(32) | low) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return (high >> np.uint64(32 - digits)).astype(np.float64) * 2.0**-digits


@dataclass(frozen=True)
class _Draw(Op):
    """A tensor of random numbers from (seed, offset), both 0-d i64."""

    random: ClassVar[bool] = True
    shape: tuple[Dim, ...]
    dtype: DType

    def infer(self, seed: TensorType, offset: TensorType) -> TensorType:
        for what, t in (("seed", seed), ("offset", offset)):
            if t != TensorType(i64, ()):
                raise Invalid(f"{self.name}: the {what} is {t!r}", hint="it is one integer, i64[]")
        self._check()
        return TensorType(self.dtype, self.shape)

    def _check(self) -> None:
        want_kind(self.name, TensorType(self.dtype, self.shape), "f")

    def compute(self, seed: Tensor, offset: Tensor) -> Tensor:
        def body(*i: Dim) -> Value:
            place: Dim = 0
            for k, d in zip(i, self.shape, strict=True):
                place = place * d + k
            return self._number(_philox(seed[()], offset[()] + expr.index(place)))

        return expr.compute(self.shape, body, self.dtype)

    def _number(self, words: tuple[Value, Value, Value, Value]) -> Value:
        raise NotImplementedError

    def reference(self, seed: np.ndarray, offset: np.ndarray) -> np.ndarray:
        shape = [d for d in self.shape if isinstance(d, int)]
        return self._numpy(_philox_numpy(int(seed), _counters(shape, offset)))

    def _numpy(self, words: list[np.ndarray]) -> np.ndarray:
        raise NotImplementedError

    @classmethod
    def _drawn(cls, shape: tuple[int, ...], dtype: DType) -> Op:
        return cls(shape, dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (f32, f64, f16, bf16):
            yield _sample(cls._drawn((4, 7), dtype), 123456789, 0)
            yield _sample(cls._drawn((3,), dtype), -5, (1 << 40) + 3)
        yield _sample(cls._drawn((), f32), 0, 0)
        yield _sample(cls._drawn((0, 3), f32), 1, 2)
        yield _sample(cls._drawn((2,), f32), (1 << 63) - 1, -1)


def _sample(op: Op, seed: int, offset: int) -> Sample:
    return S.case(op, np.array(seed, np.int64), np.array(offset, np.int64))


@operator
class Rand(_Draw):
    """Uniform in [0, 1): 24 random bits, 53 for f64."""

    def _number(self, words: tuple[Value, Value, Value, Value]) -> Value:
        return _uniform(words[0], words[1], self.dtype)

    def _numpy(self, words: list[np.ndarray]) -> np.ndarray:
        return _uniform_numpy(words[0], words[1], self.dtype)


@operator
class Randn(_Draw):
    """Standard normal, by Box and Muller: one number from two uniform ones."""

    def _number(self, words: tuple[Value, Value, Value, Value]) -> Value:
        wide = self.dtype.accumulator
        if wide is f64:
            positive = 1.0 - _uniform(words[0], words[1], f64)
            turn = _uniform(words[2], words[3], f64)
        else:
            # All 32 bits: the smallest decides how far into its tail a normal number can be.
            positive = (expr.cast(words[0], wide) + 1.0) * 2.0**-32
            turn = _uniform(words[1], words[2], wide)
        radius = fn("sqrt", fn("log", positive) * -2.0)
        return expr.cast(radius * fn("cos", turn * (2 * math.pi)), self.dtype)

    def _numpy(self, words: list[np.ndarray]) -> np.ndarray:
        if self.dtype is f64:
            positive = 1 - _uniform_numpy(words[0], words[1], f64)
            angle = _uniform_numpy(words[2], words[3], f64) * (2 * math.pi)
        else:
            # The two uniform numbers are float32 by definition; what is made of them is exact here.
            one, turn = np.float32(1), _uniform_numpy(words[1], words[2], f32).astype(np.float32)
            positive = ((words[0].astype(np.float32) + one) * np.float32(2.0**-32)).astype(float)
            angle = (turn * np.float32(2 * math.pi)).astype(float)
        return np.sqrt(-2 * np.log(positive)) * np.cos(angle)


@operator
class Randint(_Draw):
    """Integers in [low, high), from 63 random bits."""

    low: int = 0
    high: int = 2

    def _check(self) -> None:
        want_kind(self.name, TensorType(self.dtype, self.shape), "iu")
        if not self.low < self.high:
            raise Invalid(f"randint: no integer is at least {self.low} and below {self.high}")
        if self.high - self.low > 1 << 62:
            raise Invalid(f"randint: {self.low} to {self.high} is a wider range than 2**62")

    def _number(self, words: tuple[Value, Value, Value, Value]) -> Value:
        bits = fn("shr", fn("shl", words[0], 32) | words[1], 1)
        drawn = fn("mod", bits, expr.const(self.high - self.low, i64))
        return expr.cast(drawn + expr.const(self.low, i64), self.dtype)

    def _numpy(self, words: list[np.ndarray]) -> np.ndarray:
        bits = (words[0] << np.uint64(32) | words[1]) >> np.uint64(1)
        return bits.astype(np.int64) % (self.high - self.low) + self.low

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield _sample(cls((4, 7), i64, 0, 10), 42, 0)
        yield _sample(cls((9,), i32, -100, 100), 42, 7)
        yield _sample(cls((2, 0), i64, 0, 2), 0, 0)
        yield _sample(cls((), i8, -3, 4), -1, 5)
        yield _sample(cls((5,), i64, -(1 << 40), 1 << 60), 3, 1 << 33)


def _chance(p: Node) -> DType:
    return f64 if p.dtype is f64 else f32


@operator
class Bernoulli(Op):
    """1 with the given probability, else 0, in the dtype of the probabilities."""

    random: ClassVar[bool] = True

    def infer(self, p: TensorType, seed: TensorType, offset: TensorType) -> TensorType:
        want_kind("bernoulli", p, "f")
        return p

    def compose(self, p: Node, seed: Node, offset: Node) -> Node:
        wide = _chance(p)
        return ew.cast(ew.lt(rand(seed, offset, p.shape, wide), ew.cast(p, wide)), p.dtype)

    def reference(self, p: np.ndarray, seed: np.ndarray, offset: np.ndarray) -> np.ndarray:
        words = _philox_numpy(int(seed), _counters(p.shape, offset))
        # The samples are of 24 bits or fewer: only there may the reference see float64.
        return np.where(_uniform_numpy(words[0], words[1], f32) < p, 1.0, 0.0)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        seed, offset = np.array(7, np.int64), np.array(1, np.int64)
        for dtype in (None, f16, bf16):
            yield S.case(cls(), S.uniform(5, 9), seed, offset, dtype=dtype)
        yield S.case(cls(), S.uniform(0, 2), seed, offset)
        yield S.case(cls(), np.array([0.0, 1.0, 0.0, 1.0], np.float32), seed, offset)
        yield S.case(cls(), S.uniform(), seed, offset)


@operator
class Dropout(Op):
    """Zero with probability p, else x / (1 - p) -> (y, kept)."""

    random: ClassVar[bool] = True
    p: float

    def infer(self, x: TensorType, seed: TensorType, offset: TensorType) -> TupleType:
        want_kind("dropout", x, "f")
        if not 0 <= self.p <= 1:
            raise Invalid(f"dropout: p={self.p} is not a probability")
        return TupleType((x, TensorType(b1, x.shape)))

    def compose(self, x: Node, seed: Node, offset: Node) -> tuple[Node, Node]:
        kept = ew.ge(rand(seed, offset, x.shape, f32), full((), self.p, f32))
        wide = ew.cast(x, x.dtype.accumulator)
        scale = 1 / (1 - self.p) if self.p < 1 else 0.0
        y = ew.mul(wide, ew.where(kept, full((), scale, wide.dtype), 0.0))
        return ew.cast(y, x.dtype), kept

    def reference(
        self, x: np.ndarray, seed: np.ndarray, offset: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        words = _philox_numpy(int(seed), _counters(x.shape, offset))
        kept = _uniform_numpy(words[0], words[1], f32) >= np.float32(self.p)
        return np.where(kept, x / max(1 - self.p, 1e-300), 0), kept

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        seed, offset = np.array(11, np.int64), np.array(100, np.int64)
        for p in (0.0, 0.3, 1.0):
            yield S.case(cls(p), S.normal(6, 5), seed, offset)
            yield S.case(cls(p), S.normal(33), seed, offset, dtype=bf16)
        yield S.case(cls(0.5), S.normal(0, 3), seed, offset, dtype=f64)
        yield S.case(cls(0.5), S.normal(), seed, offset, dtype=f16)


# ---- builders


def rand(seed: Node, offset: Node, shape: Sequence[Dim], dtype: DType = f32) -> Node:
    """Uniform in [0, 1)."""
    return node(Rand(tuple(shape), dtype), seed, offset)


def randn(seed: Node, offset: Node, shape: Sequence[Dim], dtype: DType = f32) -> Node:
    """Standard normal."""
    return node(Randn(tuple(shape), dtype), seed, offset)


def randint(
    seed: Node, offset: Node, shape: Sequence[Dim], low: int, high: int, dtype: DType = i64
) -> Node:
    """Integers in [low, high)."""
    return node(Randint(tuple(shape), dtype, low, high), seed, offset)


def bernoulli(p: Node, seed: Node, offset: Node) -> Node:
    """1 with probability p, element by element, else 0."""
    return node(Bernoulli(), p, seed, offset)


def dropout(x: Node, seed: Node, offset: Node, p: float = 0.5) -> Node:
    """(y, kept): zero with probability p, else scaled by 1 / (1 - p)."""
    return node(Dropout(float(p)), x, seed, offset)
