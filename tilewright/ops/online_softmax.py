"""softmax(scores) values in one pass over the keys: a reduction over a tuple that rescales.

A partial result is the greatest score so far, the sum of exp(score - greatest) and the sum of the
values so weighted. Two of them come together by rescaling both to the greater maximum, which no
order of the keys changes but for rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir import expr as E
from tilewright.ir.combine import Combiner, combiner
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Tensor, Value
from tilewright.ir.node import Node, Op, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.types import DType, TensorType, TupleType, f64
from tilewright.ops import samples as S
from tilewright.ops.shapes import same_dtype, want_kind

NOTHING = float("-inf")


@cache
def _rescaling(d: DType) -> Combiner:
    """(maximum, sum, weighted sum) of two parts of the keys, as those of both."""

    def together(left: tuple[Value, ...], right: tuple[Value, ...]) -> tuple[Value, ...]:
        top = E.fn("max", left[0], right[0])
        # The one with the greater maximum stays as it is. Both do where both have seen nothing yet:
        # -inf less -inf is no number.
        one = E.const(1.0, d)
        less = E.fn("exp", E.fn("sub", E.fn("min", left[0], right[0]), top))
        a, b = (E.select(E.fn("eq", x[0], top), one, less) for x in (left, right))
        sums = zip(left[1:], right[1:], strict=True)
        return top, *(E.fn("add", E.fn("mul", x, a), E.fn("mul", y, b)) for x, y in sums)

    zero = E.const(0.0, d)
    return combiner(f"rescaling_{d}", together, (E.const(NOTHING, d), zero, zero))


@operator
class SoftmaxMatmul(Op):
    """softmax(scores) values, [.., L, S] by [.., S, N]; rows of -inf only give zeros."""

    def infer(self, scores: TensorType, values: TensorType) -> TensorType:
        same_dtype(self.name, scores, values)
        want_kind(self.name, scores, "f")
        if scores.dtype.bits < 32:
            raise Invalid(f"{self.name}: {scores!r} loses too much; cast to float32 first")
        batch, other = scores.shape[:-2], values.shape[:-2]
        fits = scores.rank == values.rank >= 2 and all(map(D.known_eq, batch, other))
        if not fits or not D.known_eq(scores.shape[-1], values.shape[-2]):
            raise Invalid(
                f"{self.name}: {scores!r} and {values!r} do not fit",
                hint="[.., L, S] by [.., S, N]",
            )
        return TensorType(scores.dtype, (*scores.shape[:-1], values.shape[-1]))

    def compute(self, scores: Tensor, values: Tensor) -> Tensor:
        d = scores.dtype
        zero, one, nothing = E.const(0.0, d), E.const(1.0, d), E.const(NOTHING, d)

        def body(*at: Dim) -> Value:
            *batch, row, column = at

            def one_key(key: Dim) -> Value:
                score = scores[(*batch, row, key)]
                unseen = E.fn("eq", score, nothing)
                weighted = E.select(unseen, zero, values[(*batch, key, column)])
                return E.tuple_of(score, E.select(unseen, zero, one), weighted)

            parts = E.reduce(_rescaling(d), (scores.shape[-1],), one_key)
            total = E.item(parts, 1)
            return E.item(parts, 2) / E.select(E.fn("eq", total, zero), one, total)

        return E.compute((*scores.shape[:-1], values.shape[-1]), body, d)

    def reference(self, scores: np.ndarray, values: np.ndarray) -> np.ndarray:
        top = np.max(scores, -1, keepdims=True, initial=NOTHING)
        e = np.exp(scores - np.where(np.isfinite(top), top, 0))
        total = e.sum(-1, keepdims=True)
        return (e / np.where(total > 0, total, 1)) @ values

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield S.case(cls(), S.normal(5, 7), S.normal(7, 4, seed=1))
        yield S.case(cls(), S.normal(2, 3, 6, 9), S.normal(2, 3, 9, 5, seed=1), dtype=f64)
        yield S.case(cls(), S.uniform(3, 8, lo=-80, hi=80), S.normal(8, 3, seed=2))
        hidden = np.where(S.booleans(6, 6), S.normal(6, 6), NOTHING).astype(np.float32)
        hidden[2] = NOTHING
        yield S.case(cls(), hidden, S.normal(6, 4, seed=3))
        yield S.case(cls(), S.normal(3, 1), S.normal(1, 2, seed=4))
        yield S.case(cls(), S.normal(0, 4), S.normal(4, 2, seed=5))


class _Parts(Op):
    """What reduces parts of the keys: their maxima [.., P, L, 1], the sums of their weights
    exp(score - maximum) and those weights times values [.., P, L, N]."""

    def check(self, top: TensorType, total: TensorType, seen: TensorType) -> None:
        same_dtype(self.name, top, total, seen)
        want_kind(self.name, top, "f")
        each = (*seen.shape[:-1], 1)
        fits = all(
            x.rank == seen.rank >= 3 and all(map(D.known_eq, x.shape, each)) for x in (top, total)
        )
        if not fits:
            raise Invalid(
                f"{self.name}: {top!r}, {total!r} and {seen!r} do not fit",
                hint="[.., P, L, 1] twice and [.., P, L, N]",
            )

    @staticmethod
    def reduced(top: Tensor, total: Tensor, seen: Tensor, at: tuple[Dim, ...]) -> Value:
        """(maximum, sum, weighted sum) of all parts at one place."""
        *batch, row, column = at

        def part(p: Dim) -> Value:
            each = (*batch, p, row, 0)
            return E.tuple_of(top[each], total[each], seen[(*batch, p, row, column)])

        return E.reduce(_rescaling(seen.dtype), (seen.shape[-3],), part)


def _divided(parts: Value, zeros: bool) -> Value:
    """The weighted values; of a row that has seen nothing zero, or no number. One division is for
    all of a row."""
    sums = E.item(parts, 1)
    one = E.const(1.0, sums.dtype)
    if zeros:
        sums = E.select(E.fn("eq", sums, E.const(0.0, sums.dtype)), one, sums)
    return E.item(parts, 2) * (one / sums)


@operator
class SoftmaxParts(_Parts):
    """Softmax times values of all keys, from parts of the keys: their maxima [.., P, L, 1], the
    sums of their weights exp(score - maximum) and those weights times values [.., P, L, N].

    A row of which no part has seen anything (-inf, 0, 0) is zero, or no number.
    """

    zeros: bool

    def infer(self, top: TensorType, total: TensorType, seen: TensorType) -> TensorType:
        self.check(top, total, seen)
        return TensorType(seen.dtype, (*seen.shape[:-3], *seen.shape[-2:]))

    def compute(self, top: Tensor, total: Tensor, seen: Tensor) -> Tensor:
        def body(*at: Dim) -> Value:
            return _divided(self.reduced(top, total, seen, at), self.zeros)

        return E.compute((*seen.shape[:-3], *seen.shape[-2:]), body, seen.dtype)

    def reference(self, top: np.ndarray, total: np.ndarray, seen: np.ndarray) -> np.ndarray:
        return _numpy_parts(top, total, seen, self.zeros)[0]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for zeros, shape in ((True, (3, 5)), (False, (2, 4, 3)), (True, (1, 2))):
            yield S.case(cls(zeros), *_sample_parts(*shape))
        yield S.case(cls(True), *_unseen())
        yield S.case(
            cls(False),
            S.normal(2, 3, 1),
            S.uniform(2, 3, 1, lo=1, hi=2),
            S.normal(2, 3, 4),
            dtype=f64,
        )


@operator
class SoftmaxPartsLog(_Parts):
    """(softmax times values, log of the sum of exp(score) of each row) from parts of the keys, as
    SoftmaxParts has them; rows that see nothing are zero."""

    def infer(self, top: TensorType, total: TensorType, seen: TensorType) -> TupleType:
        self.check(top, total, seen)
        if seen.shape[-1] == 0:
            raise Invalid(f"{self.name}: {seen!r} has no values to weigh")
        shape = (*seen.shape[:-3], *seen.shape[-2:])
        return TupleType((TensorType(seen.dtype, shape), TensorType(seen.dtype, shape[:-1])))

    def program(self, top: Tensor, total: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        shape, d = (*seen.shape[:-3], *seen.shape[-2:]), seen.dtype
        parts = E.compute(shape, lambda *at: self.reduced(top, total, seen, at), name="parts")
        out = E.compute(shape, lambda *at: _divided(parts[at], True), d)

        def log_total(*at: Dim) -> Value:
            whole = parts[(*at, 0)]  # maximum and sum are the same along a row
            return E.fn("add", E.fn("log", E.item(whole, 1)), E.item(whole, 0))

        return out, E.compute(shape[:-1], log_total, d)

    def reference(
        self, top: np.ndarray, total: np.ndarray, seen: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        out, sums, whole = _numpy_parts(top, total, seen, True)
        with np.errstate(divide="ignore"):
            return out, (np.log(sums) + whole)[..., 0]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in ((3, 5), (2, 4, 3), (1, 2)):
            yield S.case(cls(), *_sample_parts(*shape))
        yield S.case(cls(), *_unseen())
        yield S.case(cls(), *_sample_parts(0, 3, 2))


def _numpy_parts(
    top: np.ndarray, total: np.ndarray, seen: np.ndarray, zeros: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(weighted values, sums of weights, maxima)"""
    whole = np.max(top, -3, keepdims=True, initial=NOTHING)
    scale = np.exp(top - np.where(whole == NOTHING, 0, whole))
    sums = (total * scale).sum(-3)
    by = np.where(sums == 0, 1, sums) if zeros else sums
    with np.errstate(invalid="ignore"):
        return (seen * scale).sum(-3) / by, sums, whole[..., 0, :, :]


def _sample_parts(*shape: int) -> tuple[np.ndarray, ...]:
    top = S.uniform(*shape, 1, lo=-60, hi=60)
    return top, S.uniform(*shape, 1, lo=1, hi=9), S.normal(*shape, 6)


def _unseen() -> tuple[np.ndarray, ...]:
    top = np.full((2, 3, 1), NOTHING, np.float32)
    return top, np.zeros_like(top), np.zeros((2, 3, 6), np.float32)


def softmax_matmul(scores: Node, values: Node) -> Node:
    return node(SoftmaxMatmul(), scores, values)


def softmax_parts(top: Node, total: Node, seen: Node, zeros: bool) -> Node:
    """Of rows that see nothing: `zeros` instead of no numbers."""
    return node(SoftmaxParts(zeros), top, total, seen)


def softmax_parts_log(top: Node, total: Node, seen: Node) -> Node:
    """(weighted values, log of the sum of exp(score) of each row)"""
    return node(SoftmaxPartsLog(), top, total, seen)
