"""Operators on complex tensors, as operators on their two parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.capture.torch.context import Context, axes_of, cast
from tilewright.capture.torch.registry import Rule, Untranslated, aten, rule_for
from tilewright.capture.torch.values import Complex, joined, parted
from tilewright.ir.node import Node
from tilewright.ir.types import DType

# They move elements, or add them up: what they do to the one part they do to the other.
_MOVES = """
    view.default _unsafe_view.default reshape.default view_copy.default unsqueeze.default squeeze
    permute.default permute_copy.default transpose.int t.default expand.default slice.Tensor
    narrow.default select.int split.Tensor split_with_sizes.default unbind.int cat.default
    stack.default flip.default roll.default repeat.default as_strided_copy.default unfold.default
    slice_scatter.default select_scatter.default diagonal.default gather.default
    index_select.default index.Tensor embedding.default clone.default alias.default detach.default
    lift_fresh.default lift_fresh_copy.default contiguous.default alias_copy.default squeeze_copy
    unsqueeze_copy col2im.default
    expand_copy.default slice_copy.Tensor select_copy.int t_copy.default transpose_copy.int
    diagonal_copy.default unbind_copy.int
""".split()


# Their second operand is moved too; of others it is an index.
_INTO = ("slice_scatter.default", "select_scatter.default")


def _part(tree: Any, pick: Callable[[Complex], Node]) -> Any:
    if isinstance(tree, Complex):
        return pick(tree)
    if isinstance(tree, (tuple, list)):
        return [_part(x, pick) for x in tree]
    return tree


def _as_pairs(values: Sequence[Any]) -> list[Any]:
    """Real tensors among complex ones as pairs: their imaginary part is 0."""
    if not any(isinstance(x, Complex) for x in values):
        return list(values)
    return [Complex(x, ops.full(x.shape, 0, x.dtype)) if isinstance(x, Node) else x for x in values]


def _mover(name: str) -> Rule:
    def move(c: Context, first: Any, *args: Any, **kwargs: Any) -> Any:
        rule = rule_for(_Named(f"aten.{name}"))
        assert rule is not None
        if isinstance(first, (tuple, list)):
            first = _as_pairs(first)
        elif name in _INTO:
            first, second = _as_pairs((first, args[0]))
            args = (second, *args[1:])
        re, im = (
            rule(c, *_part((first, *args), pick), **kwargs)
            for pick in (lambda x: x.re, lambda x: x.im)
        )
        if isinstance(re, (tuple, list)):
            return tuple(Complex(a, b) for a, b in zip(re, im, strict=True))
        return Complex(re, im)

    return move


class _Named:
    """Stands for an operator where only its name matters."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name


for _name in _MOVES:
    aten(_name, numbers="complex")(_mover(_name))


def _pair(c: Context, x: Any, d: DType) -> Complex:
    """An operand as a complex tensor with parts of dtype `d`."""
    if isinstance(x, Complex):
        return Complex(cast(x.re, d), cast(x.im, d))
    if isinstance(x, complex):
        return Complex(c.number(x.real, d), c.number(x.imag, d))
    re = c.node(x, d)
    return Complex(re, ops.full(re.shape, 0, d))


def _scaled(c: Context, x: Complex, by: Any, d: DType) -> Complex:
    if isinstance(by, (int, float)) and by == 1:
        return x
    return _times(x, _pair(c, by, d))


def _times(a: Complex, b: Complex) -> Complex:
    re = ops.sub(ops.mul(a.re, b.re), ops.mul(a.im, b.im))
    return Complex(re, ops.add(ops.mul(a.re, b.im), ops.mul(a.im, b.re)))


@aten("add.Tensor", "add.Scalar", numbers="complex")
def add(c: Context, x: Any, y: Any, alpha: Any = 1) -> Complex:
    d = c.out().dtype
    a, b = _pair(c, x, d), _scaled(c, _pair(c, y, d), alpha, d)
    return Complex(ops.add(a.re, b.re), ops.add(a.im, b.im))


@aten("sub.Tensor", "sub.Scalar", numbers="complex")
def sub(c: Context, x: Any, y: Any, alpha: Any = 1) -> Complex:
    d = c.out().dtype
    a, b = _pair(c, x, d), _scaled(c, _pair(c, y, d), alpha, d)
    return Complex(ops.sub(a.re, b.re), ops.sub(a.im, b.im))


@aten("mul.Tensor", "mul.Scalar", numbers="complex")
def mul(c: Context, x: Any, y: Any) -> Complex:
    d = c.out().dtype
    for a, b in ((x, y), (y, x)):
        if isinstance(a, Complex) and not isinstance(b, (Complex, complex)):
            k = c.node(b, d)
            return Complex(ops.mul(cast(a.re, d), k), ops.mul(cast(a.im, d), k))
    return _times(_pair(c, x, d), _pair(c, y, d))


@aten("div.Tensor", "div.Scalar", numbers="complex")
def div(c: Context, x: Any, y: Any) -> Complex:
    d = c.out().dtype
    a = _pair(c, x, d)
    if not isinstance(y, (Complex, complex)):
        k = c.node(y, d)
        return Complex(ops.div(a.re, k), ops.div(a.im, k))
    b = _pair(c, y, d)
    # Scaled by the larger part, so that its square does not overflow.
    size = ops.maximum(ops.abs(b.re), ops.abs(b.im))
    u, v = ops.div(b.re, size), ops.div(b.im, size)
    norm = ops.mul(ops.add(ops.mul(u, u), ops.mul(v, v)), size)
    re = ops.div(ops.add(ops.mul(a.re, u), ops.mul(a.im, v)), norm)
    return Complex(re, ops.div(ops.sub(ops.mul(a.im, u), ops.mul(a.re, v)), norm))


@aten("neg.default", numbers="complex")
def neg(c: Context, x: Complex | complex) -> Complex:
    x = _pair(c, x, c.out().dtype)
    return Complex(ops.neg(x.re), ops.neg(x.im))


@aten("_conj", "_conj_physical", "conj_physical", numbers="complex")
def conj(c: Context, x: Complex | complex) -> Complex:
    """Of a number too: gradients of products with one have it."""
    x = _pair(c, x, c.out().dtype)
    return Complex(x.re, ops.neg(x.im))


@aten("resolve_conj", "resolve_neg", numbers="complex")
def resolved(c: Context, x: Complex | complex) -> Complex:
    return _pair(c, x, c.out().dtype)


@aten("real.default", numbers="complex")
def real(c: Context, x: Complex) -> Node:
    return x.re


@aten("imag.default", numbers="complex")
def imag(c: Context, x: Complex) -> Node:
    return x.im


@aten("abs.default", numbers="complex")
def magnitude(c: Context, x: Complex) -> Node:
    return ops.hypot(x.re, x.im)


@aten("angle.default", numbers="complex")
def angle(c: Context, x: Complex) -> Node:
    return ops.atan2(x.im, x.re)


@aten("exp.default", numbers="complex")
def exp(c: Context, x: Complex) -> Complex:
    size = ops.exp(x.re)
    return Complex(ops.mul(size, ops.cos(x.im)), ops.mul(size, ops.sin(x.im)))


@aten("complex.default", numbers="complex")
def make_complex(c: Context, re: Node, im: Node) -> Complex:
    shape = c.out().shape
    return Complex(ops.expand(re, shape), ops.expand(im, shape))


@aten("polar.default", numbers="complex")
def polar(c: Context, size: Node, turn: Node) -> Complex:
    return Complex(ops.mul(size, ops.cos(turn)), ops.mul(size, ops.sin(turn)))


@aten("view_as_complex.default", numbers="complex")
def view_as_complex(c: Context, x: Node) -> Complex:
    return parted(x)


@aten("view_as_real.default", "view_as_real_copy.default", numbers="complex")
def view_as_real(c: Context, x: Complex) -> Node:
    return joined(x)


@aten("_to_copy.default", "prims.convert_element_type.default", numbers="complex")
def to_copy(c: Context, x: Any, *_: Any, **__: Any) -> Node | Complex:
    out = c.out().dtype
    if c.val.dtype.is_complex:
        return _pair(c, x, out)
    return cast(x.re, out)  # as in eager, the imaginary part is dropped


@aten("sum.default", "sum.dim_IntList", "mean.default", "mean.dim", numbers="complex")
def reduced(c: Context, x: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> Complex:
    fn = ops.sum if ".sum." in str(c.fx.target) else ops.mean
    a = _pair(c, x, c.out().dtype)
    axes = axes_of(dim, a.rank)
    return Complex(fn(a.re, axes, keepdim), fn(a.im, axes, keepdim))


@aten("mm.default", "bmm.default", numbers="complex")
def matmul(c: Context, x: Complex, y: Complex) -> Complex:
    p = ops.matmul
    re = ops.sub(p(x.re, y.re), p(x.im, y.im))
    return Complex(re, ops.add(p(x.re, y.im), p(x.im, y.re)))


@aten("where.self", numbers="complex")
def where(c: Context, cond: Node, x: Any, y: Any) -> Complex:
    d = c.out().dtype
    a, b = _pair(c, x, d), _pair(c, y, d)
    return Complex(ops.where(cond, a.re, b.re), ops.where(cond, a.im, b.im))


@aten("eq.Tensor", "eq.Scalar", "ne.Tensor", "ne.Scalar", numbers="complex")
def equal(c: Context, x: Any, y: Any) -> Node:
    d = x.dtype if isinstance(x, Complex) else y.dtype
    a, b = _pair(c, x, d), _pair(c, y, d)
    same = ops.logical_and(ops.eq(a.re, b.re), ops.eq(a.im, b.im))
    return same if ".eq." in str(c.fx.target) else ops.logical_not(same)


@aten("full.default", "full_like.default", "scalar_tensor.default", numbers="complex")
def full(c: Context, *args: Any, **options: Any) -> Complex:
    value = options.get("fill_value", args[-1])
    out = c.out()
    whole = value if isinstance(value, complex) else complex(value)
    return Complex(
        ops.full(out.shape, whole.real, out.dtype), ops.full(out.shape, whole.imag, out.dtype)
    )


@aten("empty", "empty_like", "new_empty", "empty_strided", "zeros", "zeros_like", numbers="complex")
def zeros(c: Context, *_: Any, **__: Any) -> Complex:
    zero = ops.full(c.out().shape, 0, c.out().dtype)
    return Complex(zero, zero)


@aten("constant_pad_nd.default", numbers="complex")
def constant_pad(c: Context, x: Complex, pad: Any, value: Any = 0) -> Complex:
    rule = rule_for(_Named("aten.constant_pad_nd.default"))
    assert rule is not None
    whole = complex(value)
    return Complex(rule(c, x.re, pad, whole.real), rule(c, x.im, pad, whole.imag))


@aten("copy.default", numbers="complex")
def copy(c: Context, x: Any, src: Any, non_blocking: bool = False) -> Complex:
    a = _pair(c, src, c.out().dtype)
    return Complex(ops.expand(a.re, c.out().shape), ops.expand(a.im, c.out().shape))


# ---- Fourier transforms

# Tables of a longer transform are larger than what a program should contain.
LONGEST = 1 << 17


def _length(n: Any) -> int:
    if not isinstance(n, int):
        raise Untranslated("the length of the transform is not known")
    if n > LONGEST or n == 0:
        raise Untranslated(f"a transform of {n} elements has no native form")
    return n


def _transform(x: Complex, axis: int, forward: bool) -> Complex:
    return Complex(*ops.fourier(x.re, x.im, axis, _length(x.shape[axis]), forward))


def _factor(sizes: list[int], how: int) -> float:
    """how: 0 nothing, 1 by the root of the number of elements, 2 by the number."""
    n = math.prod(sizes)
    return (1.0, 1 / math.sqrt(n), 1 / n)[how]


def _normalised(x: Complex, sizes: list[int], how: int) -> Complex:
    k = _factor(sizes, how)
    if k == 1:
        return x
    return Complex(*(ops.mul(v, ops.full((), k, v.dtype)) for v in (x.re, x.im)))


@aten("_fft_c2c.default", numbers="complex")
def fft_c2c(c: Context, x: Complex, dim: Any, normalization: int, forward: bool) -> Complex:
    axes = [d % x.rank for d in dim]
    sizes = [_length(x.shape[a]) for a in axes]
    for a in reversed(axes):
        x = _transform(x, a, forward)
    return _normalised(x, sizes, normalization)


@aten("_fft_r2c.default", numbers="complex")
def fft_r2c(c: Context, x: Node, dim: Any, normalization: int, onesided: bool) -> Complex:
    axes = [d % x.rank for d in dim]
    sizes = [_length(x.shape[a]) for a in axes]
    n = sizes[-1]
    keep = n // 2 + 1 if onesided else n
    out = Complex(*ops.fourier(x, None, axes[-1], n, keep=keep))
    for a in axes[-2::-1]:
        out = _transform(out, a, True)
    return _normalised(out, sizes, normalization)


@aten("_fft_c2r.default", numbers="complex")
def fft_c2r(c: Context, x: Complex, dim: Any, normalization: int, last_dim_size: Any) -> Node:
    axes = [d % x.rank for d in dim]
    n = _length(last_dim_size)
    sizes = [*(_length(x.shape[a]) for a in axes[:-1]), n]
    for a in axes[:-1]:
        x = _transform(x, a, False)
    last, half = axes[-1], n // 2 + 1
    # Every frequency but the first, and the middle one of an even length, stands for two.
    weights = np.full(half, 2 * _factor(sizes, normalization))
    weights[[0, half - 1] if n % 2 == 0 else [0]] /= 2
    shape = [half if a == last else 1 for a in range(x.rank)]
    weight = ops.reshape(c.literal(weights, x.dtype), shape)
    re, im = (ops.mul(ops.slice(v, last, 0, half, 1), weight) for v in (x.re, x.im))
    return ops.fourier(re, im, last, n, False, real=True)[0]
