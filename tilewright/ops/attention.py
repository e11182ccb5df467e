"""Scaled dot-product attention and its gradients, as compositions.

Shapes are [.., heads, length, width]. Fewer heads of keys and values than of queries are shared by
groups of query heads (grouped-query attention). A boolean mask says what may be seen, a float mask
is added to the scores. A row that may see nothing gives zeros, as in torch. 16-bit floats are
computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node, Op, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.positions import may_equal
from tilewright.ir.types import TensorType, TupleType, bf16, f16, f64, i64
from tilewright.ops import elementwise as ew
from tilewright.ops import samples as S
from tilewright.ops.creation import iota, number
from tilewright.ops.linear import matmul
from tilewright.ops.reductions import amax, sum
from tilewright.ops.shapes import broadcast_shapes, same_dtype, want_kind
from tilewright.ops.views import expand, pad, reshape, transpose

NOTHING = float("-inf")


def _groups(q: tuple[Dim, ...], k: tuple[Dim, ...]) -> int:
    """How many query heads share one head of keys."""
    if len(q) < 3 or len(k) < 3 or D.known_eq(q[-3], k[-3]) or q[-3] == 1:
        return 1
    heads, shared = q[-3], k[-3]
    if isinstance(heads, int) and isinstance(shared, int) and shared and heads % shared == 0:
        return heads // shared
    raise Invalid(
        f"attention: {heads} heads of queries do not divide among {shared} heads of keys",
        hint="the number of query heads is a multiple of the number of key heads",
    )


@dataclass(frozen=True)
class _Attention(Op):
    causal: bool
    scale: float | None  # None: by the width of the heads, which the call knows

    def scaled(self, x: Node, q: Node) -> Node:
        """Of scores, or of their gradient: times the scale."""
        if self.scale is not None:
            return ew.mul(x, self.scale)
        width = number(D.maximum(q.shape[-1], 1), x.dtype)
        return ew.mul(x, ew.div(number(1, x.dtype), ew.sqrt(width)))

    def _check(self, q: TensorType, k: TensorType, v: TensorType, *mask: TensorType) -> None:
        same_dtype(self.name, q, k, v)
        want_kind(self.name, q, "f")
        if min(q.rank, k.rank, v.rank) < 2:
            raise Invalid(f"{self.name}: {q!r}, {k!r}, {v!r} need a length and a width")
        if not D.known_eq(q.shape[-1], k.shape[-1]):
            raise Invalid(f"{self.name}: queries {q!r} and keys {k!r} differ in width")
        if not may_equal(k.shape[-2], v.shape[-2]):
            raise Invalid(f"{self.name}: keys {k!r} and values {v!r} differ in length")
        _groups(q.shape, k.shape)
        if mask:
            want_kind(f"{self.name} (its mask)", mask[0], "fb")

    def _out(self, q: TensorType, k: TensorType, v: TensorType) -> tuple[Dim, ...]:
        groups = _groups(q.shape, k.shape)
        batch = q.shape[:-3] if groups > 1 else q.shape[:-2]
        other = v.shape[:-3] if groups > 1 else v.shape[:-2]
        batch = broadcast_shapes(batch, other, what=self.name)
        return batch + q.shape[-3 if groups > 1 else -2 : -1] + v.shape[-1:]

    def scores(self, q: Node, k: Node, mask: tuple[Node, ...]) -> Node:
        """Scaled and masked, heads apart as in `_apart`; what may not be seen is -inf."""
        groups = _groups(q.shape, k.shape)
        scores = matmul(_apart(q, groups), transpose(_together(k, groups), -2, -1))
        scores = self.scaled(scores, q)
        if self.causal:
            rows = reshape(iota(q.shape[-2], dtype=i64), (q.shape[-2], 1))
            columns = iota(k.shape[-2], dtype=i64)
            scores = ew.where(ew.ge(rows, columns), scores, NOTHING)
        for m in mask:
            scores = _masked(scores, _apart(m, groups))
        return scores

    def rows(self, q: Node, k: Node, v: Node, *mask: Node) -> tuple[Node, Node, int]:
        """Masked scores and the values that they weigh, in the accumulator's dtype, and how many
        heads of queries share one of keys: these are apart, `joined` brings them together."""
        k, v = _once(k, _as_long(v, k))
        groups = _groups(q.shape, k.shape)
        wide_q, wide_k, wide_v = _wide(q, k, v)
        return self.scores(wide_q, wide_k, mask), _together(wide_v, groups), groups

    def shared_rows(self, q: Node, k: Node, v: Node, *mask: Node) -> tuple[Node, Node]:
        """The same with the heads that share keys as rows of one product: [.., shared, groups * L,
        ..]. They read each key once."""
        k, v = _once(k, _as_long(v, k))
        groups = _groups(q.shape, k.shape)
        wide_q, wide_k, wide_v = _wide(q, k, v)
        rows = _rows(_apart(wide_q, groups), groups)
        scores = self.scaled(matmul(rows, transpose(wide_k, -2, -1)), q)
        length = q.shape[-2]
        if self.causal:
            seen = self._visible(q, k, groups)
            scores = ew.where(seen, scores, NOTHING)
        for m in mask:
            scores = _masked(scores, _mask_rows(m, groups, length))
        return scores, wide_v

    def _visible(self, q: Node, k: Node, groups: int, turned: bool = False) -> Node:
        """Which keys causal attention sees from rows of `groups` heads; turned: keys by rows."""
        length = q.shape[-2]
        own = reshape(iota(length, dtype=i64), (1, length, 1))
        rows = _rows(expand(own, (groups, length, 1)), groups) if groups > 1 else own
        places = reshape(rows, (1, -1) if turned else (-1, 1))
        keys = iota(k.shape[-2], dtype=i64)
        return ew.ge(places, reshape(keys, (-1, 1) if turned else (1, -1)))


def _masked(scores: Node, mask: Node) -> Node:
    if mask.dtype.is_bool:
        return ew.where(mask, scores, NOTHING)
    return ew.add(scores, ew.cast(mask, scores.dtype))


def _mask_rows(m: Node, groups: int, length: Dim) -> Node:
    """A mask [.., heads or 1, L or 1, S] for rows of `groups` heads next to each other."""
    m = reshape(m, (*(1 for _ in range(2 - m.rank)), *m.shape))
    if groups == 1:
        return m
    apart = _apart(m, groups) if m.rank > 2 else reshape(m, (1, 1, *m.shape))
    own, rows, keys = apart.shape[-3:]
    if D.known_eq(own, 1) and D.known_eq(rows, 1):
        return reshape(apart, (*apart.shape[:-3], 1, keys))
    whole = expand(apart, (*apart.shape[:-3], groups, length, keys))
    return _rows(whole, groups)


def _apart(x: Node, groups: int) -> Node:
    """[.., heads, L, N] with the heads of one group on an axis of their own: [.., shared, groups,
    L, N]."""
    if groups == 1 or x.rank < 3:
        return x
    heads = x.shape[-3]
    split = (1, 1) if D.known_eq(heads, 1) else (D.floordiv(heads, groups), groups)
    return reshape(x, (*x.shape[:-3], *split, *x.shape[-2:]))


def _together(x: Node, groups: int) -> Node:
    """[.., shared, L, N] for all heads of a group: [.., shared, 1, L, N]."""
    return x if groups == 1 else reshape(x, (*x.shape[:-2], 1, *x.shape[-2:]))


def _once(k: Node, v: Node) -> tuple[Node, Node]:
    """Keys and values that were repeated for the heads of a group, as they were before."""
    found = [_unrepeated(x) for x in (k, v)]
    if found[0] is None or found[1] is None or found[0].shape[:-2] != found[1].shape[:-2]:
        return k, v
    return found[0], found[1]


def _unrepeated(x: Node) -> Node | None:
    """[.., shared, L, N], if that is x = reshape(expand(…)): each head several times in a row."""
    if x.op.name != "reshape" or x.inputs[0].op.name != "expand":
        return None
    (wide,) = x.inputs
    (base,) = wide.inputs
    if base.rank != wide.rank or wide.rank != x.rank + 1 or wide.rank < 4:
        return None
    shared = (*wide.shape[:-3], 1, *wide.shape[-2:])
    heads = wide.shape[-4] * wide.shape[-3]
    if base.shape != shared or x.shape != (*wide.shape[:-4], heads, *wide.shape[-2:]):
        return None
    return reshape(base, (*base.shape[:-3], *base.shape[-2:]))


def joined(x: Node, groups: int) -> Node:
    """The inverse of `_apart`."""
    if groups == 1:
        return x
    return reshape(x, (*x.shape[:-4], x.shape[-4] * groups, *x.shape[-2:]))


def _weights(scores: Node) -> tuple[Node, Node, Node]:
    """exp(scores - top), its sum per row, top; rows without anything to see have sum 0, top 0."""
    axis = (scores.rank - 1,)
    top = amax(scores, axis, True)
    top = ew.where(ew.eq(top, NOTHING), 0.0, top)
    e = ew.exp(ew.sub(scores, top))
    return e, sum(e, axis, True), top


def _as_long(v: Node, k: Node) -> Node:
    """As many values as keys, also where symbolic sizes do not prove that they are as many."""
    if D.known_eq(v.shape[-2], k.shape[-2]):
        return v
    none = (0,) * v.rank
    return pad(v, none, (*none[:-2], k.shape[-2] - v.shape[-2], 0))


def _rows(x: Node, groups: int) -> Node:
    """[.., shared, groups, L, N] with the rows of one group next to each other."""
    if groups == 1:
        return x
    return reshape(x, (*x.shape[:-3], groups * x.shape[-2], x.shape[-1]))


def _wide(*xs: Node) -> list[Node]:
    return [ew.cast(x, x.dtype.accumulator) for x in xs]


def _numpy_weights(
    op: _Attention, q: np.ndarray, k: np.ndarray, mask: tuple[np.ndarray, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """(softmax, log of its denominator), row by row, straight from the definition."""
    scores = np.einsum("...ld,...sd->...ls", q, _repeated(k, q)) * _numpy_scale(op, q)
    visible = np.ones(scores.shape, bool)
    if op.causal:
        visible &= np.tri(q.shape[-2], k.shape[-2], dtype=bool)
    for m in mask:
        if m.dtype == bool:
            visible &= m
        else:
            scores = scores + m
    scores = np.where(visible, scores, -np.inf)
    top = np.max(scores, -1, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    e = np.exp(scores - top)
    total = e.sum(-1, keepdims=True)
    return np.where(total > 0, e / np.where(total > 0, total, 1), 0), (np.log(total) + top)[..., 0]


def _repeated(k: np.ndarray, q: np.ndarray) -> np.ndarray:
    if q.ndim < 3 or k.shape[-3] in (1, q.shape[-3]):
        return k
    return np.repeat(k, q.shape[-3] // k.shape[-3], axis=-3)


def _sample_args() -> Iterator[tuple[bool, tuple[np.ndarray, ...]]]:
    def qkv(*shape: int, keys: tuple[int, ...] = ()) -> tuple[np.ndarray, ...]:
        keys = keys or shape
        return S.normal(*shape), S.normal(*keys, seed=1), S.normal(*keys, seed=2)

    yield False, qkv(2, 3, 5, 4)
    yield True, qkv(2, 2, 5, 4)
    yield True, qkv(1, 2, 3, 4, keys=(1, 2, 7, 4))
    yield False, qkv(2, 4, 3, 4, keys=(2, 2, 5, 4))
    yield True, qkv(1, 6, 3, 4, keys=(1, 2, 3, 4))
    yield False, qkv(5, 4)
    hidden = S.booleans(5, 5)
    hidden[1] = False
    yield False, (*qkv(2, 3, 5, 4), hidden)
    yield False, (*qkv(2, 3, 5, 4), S.normal(2, 1, 5, 5, seed=3))
    yield False, (*qkv(2, 4, 3, 4, keys=(2, 2, 3, 4)), S.booleans(2, 4, 3, 3))
    yield False, (*qkv(2, 3, 4), np.where(S.booleans(3, 3), 0, -np.inf).astype(np.float32))
    yield False, qkv(2, 2, 0, 4)


@operator
class Attention(_Attention):
    """softmax(q kᵀ · scale + mask) v"""

    def infer(self, q: TensorType, k: TensorType, v: TensorType, *mask: TensorType) -> TensorType:
        self._check(q, k, v, *mask)
        return TensorType(q.dtype, self._out(q, k, v))

    def compose(self, q: Node, k: Node, v: Node, *mask: Node) -> Node:
        scores, values, groups = self.rows(q, k, v, *mask)
        e, total, _ = _weights(scores)
        # Dividing what was seen, not the weights: one division per row and width.
        seen = ew.div(matmul(e, values), ew.where(ew.eq(total, 0.0), 1.0, total))
        return joined(ew.cast(seen, q.dtype), groups)

    def reference(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray, *mask: np.ndarray
    ) -> np.ndarray:
        return _numpy_weights(self, q, k, mask)[0] @ _repeated(v, q)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for causal, args in _sample_args():
            yield S.case(cls(causal, 0.5), *args)
        for dtype in (f64, f16, bf16):
            args = (
                S.normal(1, 2, 6, 8),
                S.normal(1, 2, 6, 8, seed=1),
                S.normal(1, 2, 6, 8, seed=2),
            )
            yield S.case(cls(True, 8**-0.5), *args, dtype=dtype)
        yield S.case(cls(True, None), *(S.normal(2, 3, 5, 4, seed=k) for k in range(3)))


@operator
class AttentionForward(_Attention):
    """attention -> (out, log of each row's denominator), which its gradient needs."""

    def infer(self, q: TensorType, k: TensorType, v: TensorType, *mask: TensorType) -> TupleType:
        self._check(q, k, v, *mask)
        shape = self._out(q, k, v)
        return TupleType((TensorType(q.dtype, shape), TensorType(q.dtype.accumulator, shape[:-1])))

    def compose(self, q: Node, k: Node, v: Node, *mask: Node) -> tuple[Node, Node]:
        groups = _groups(q.shape, k.shape)
        wide_q, wide_k, wide_v = _wide(q, k, _as_long(v, k))
        e, total, top = _weights(self.scores(wide_q, wide_k, mask))
        safe = ew.where(ew.eq(total, 0.0), 1.0, total)
        seen = matmul(e, _together(wide_v, groups))
        out = joined(ew.cast(ew.div(seen, safe), q.dtype), groups)
        return out, reshape(ew.add(ew.log(total), top), out.shape[:-1])

    def reference(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray, *mask: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        weights, log_total = _numpy_weights(self, q, k, mask)
        return weights @ _repeated(v, q), log_total

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for causal, args in _sample_args():
            yield S.case(cls(causal, 0.5), *args)
        yield S.case(cls(True, 0.3), *(S.normal(2, 5, 4, seed=k) for k in range(3)), dtype=bf16)


@operator
class AttentionBackward(_Attention):
    """Gradients of q, k and v from (grad, q, k, v, out, log denominator[, mask])."""

    linear: ClassVar[tuple[int, ...]] = ()

    def infer(
        self,
        grad: TensorType,
        q: TensorType,
        k: TensorType,
        v: TensorType,
        out: TensorType,
        log_total: TensorType,
        *mask: TensorType,
    ) -> TupleType:
        self._check(q, k, v, *mask)
        if not D.known_eq(k.shape[-2], v.shape[-2]):
            raise Invalid(f"{self.name}: keys {k!r} and values {v!r} may differ in length")
        for what, t in (("gradient", grad), ("output", out)):
            if t.shape != self._out(q, k, v):
                raise Invalid(f"{self.name}: the {what} {t!r} has not the shape of the result")
        if q.rank != k.rank or q.shape[:-3] != k.shape[:-3] or k.shape[:-2] != v.shape[:-2]:
            raise Invalid(f"{self.name}: {q!r}, {k!r} and {v!r} should have equal batch dims")
        return TupleType((q, k, v))

    def compose(
        self, grad: Node, q: Node, k: Node, v: Node, out: Node, log_total: Node, *mask: Node
    ) -> tuple[Node, Node, Node]:
        groups = _groups(q.shape, k.shape)
        g, wide_q, wide_k, wide_v, o, total = _wide(grad, q, k, v, out, log_total)
        scores = self.scores(wide_q, wide_k, mask)
        # A row that sees nothing has -inf here; its scores are -inf too and must give 0, not NaN.
        total = reshape(ew.where(ew.eq(total, NOTHING), 0.0, total), total.shape + (1,))
        p = ew.exp(ew.sub(scores, _apart(total, groups)))
        inner = sum(ew.mul(g, o), (g.rank - 1,), True)
        g, own_q, inner = (_apart(x, groups) for x in (g, wide_q, inner))
        dp = matmul(g, transpose(_together(wide_v, groups), -2, -1))
        ds = self.scaled(ew.mul(p, ew.sub(dp, inner)), q)
        dq = joined(matmul(ds, _together(wide_k, groups)), groups)
        rows = [_rows(x, groups) for x in (ds, own_q, p, g)]
        dk = matmul(transpose(rows[0], -2, -1), rows[1])
        dv = matmul(transpose(rows[2], -2, -1), rows[3])
        return ew.cast(dq, q.dtype), ew.cast(dk, k.dtype), ew.cast(dv, v.dtype)

    def recomputed(
        self,
        grad: Node,
        q: Node,
        k: Node,
        v: Node,
        out: Node,
        log_total: Node,
        *mask: Node,
        once: bool = False,
    ) -> tuple[Node, Node, Node]:
        """The same gradients, each from weights of its own, so that none are stored: those of keys
        and values from weights with keys as rows. What a product multiplies is rounded to the dtype
        of the operands. With `once`, those of queries are from the same weights as the others."""
        groups = _groups(q.shape, k.shape)
        g, wide_q, wide_k, wide_v, o, total = _wide(grad, q, k, v, out, log_total)
        total = reshape(ew.where(ew.eq(total, NOTHING), 0.0, total), total.shape + (1,))
        inner = sum(ew.mul(g, o), (g.rank - 1,), True)

        def narrow(x: Node) -> Node:
            return ew.cast(ew.cast(x, q.dtype), x.dtype)

        def weights(scores: Node, seen: Node, each: Node, within: Node) -> tuple[Node, Node]:
            p = ew.exp(ew.sub(scores, each))
            return p, self.scaled(ew.mul(p, ew.sub(seen, within)), q)

        rows, of_rows, each, within = (
            _rows(_apart(x, groups), groups) for x in (wide_q, g, total, inner)
        )
        turned = self.scaled(matmul(wide_k, transpose(rows, -2, -1)), q)
        seen = matmul(wide_v, transpose(of_rows, -2, -1))
        if self.causal:
            turned = ew.where(self._visible(q, k, groups, turned=True), turned, NOTHING)
        for m in mask:
            own = _mask_rows(m, groups, q.shape[-2])
            turned = _masked(turned, transpose(own, -2, -1))
        each, within = (transpose(x, -2, -1) for x in (each, within))
        p, ds = weights(turned, seen, each, within)
        dk, dv = matmul(narrow(ds), rows), matmul(narrow(p), of_rows)
        if once:
            dq = reshape(matmul(transpose(narrow(ds), -2, -1), wide_k), q.shape)
        else:
            scores = self.scores(wide_q, wide_k, mask)
            own_g, own_total, own_inner = (_apart(x, groups) for x in (g, total, inner))
            seen = matmul(own_g, transpose(_together(wide_v, groups), -2, -1))
            _, ds = weights(scores, seen, own_total, own_inner)
            dq = joined(matmul(narrow(ds), _together(wide_k, groups)), groups)
        return ew.cast(dq, q.dtype), ew.cast(dk, k.dtype), ew.cast(dv, v.dtype)

    def reference(
        self,
        grad: np.ndarray,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        out: np.ndarray,
        log_total: np.ndarray,
        *mask: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        p, _ = _numpy_weights(self, q, k, mask)
        dp = grad @ np.swapaxes(_repeated(v, q), -1, -2)
        ds = p * (dp - (grad * out).sum(-1, keepdims=True)) * _numpy_scale(self, q)
        dk, dv = np.swapaxes(ds, -1, -2) @ q, np.swapaxes(p, -1, -2) @ grad
        if q.ndim > 2 and k.shape[-3] != q.shape[-3]:
            split = (*k.shape[:-3], k.shape[-3], -1)
            dk = dk.reshape(*split, *dk.shape[-2:]).sum(-3)
            dv = dv.reshape(*split, *dv.shape[-2:]).sum(-3)
        return ds @ _repeated(k, q), dk, dv

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for causal, (q, k, v, *mask) in _sample_args():
            if 0 in q.shape:
                continue
            forward = AttentionForward(causal, 0.5)
            with np.errstate(divide="ignore"):
                out, log_total = (a.astype(np.float32) for a in forward.reference(q, k, v, *mask))
            grad = S.normal(*out.shape, seed=9)
            scales = (0.5,) if mask or q.shape[-1] != 4 else (0.5, None)  # which are the same
            for scale in scales:
                yield S.case(cls(causal, scale), grad, q, k, v, out, log_total, *mask)


def _numpy_scale(op: _Attention, q: np.ndarray) -> float:
    return 1 / math.sqrt(max(q.shape[-1], 1)) if op.scale is None else op.scale


def _default(q: Node, scale: float | None) -> float | None:
    if scale is not None:
        return float(scale)
    width = q.shape[-1]
    if not isinstance(width, int):
        return None
    return 1 / math.sqrt(width) if width else 1.0


def attention(
    q: Node,
    k: Node,
    v: Node,
    mask: Node | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Node:
    """The scale is 1 / sqrt(width) where none is given."""
    given = () if mask is None else (mask,)
    return node(Attention(causal, _default(q, scale)), q, k, v, *given)


def attention_forward(
    q: Node,
    k: Node,
    v: Node,
    mask: Node | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Node:
    """(out, log of each row's denominator)"""
    given = () if mask is None else (mask,)
    return node(AttentionForward(causal, _default(q, scale)), q, k, v, *given)


def attention_backward(
    grad: Node,
    q: Node,
    k: Node,
    v: Node,
    out: Node,
    log_total: Node,
    mask: Node | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Node:
    """(dq, dk, dv)"""
    given = () if mask is None else (mask,)
    op = AttentionBackward(causal, _default(q, scale))
    return node(op, grad, q, k, v, out, log_total, *given)
