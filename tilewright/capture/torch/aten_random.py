"""Random operators: our own counter-based stream, seeded once per call from torch's default
generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilewright import ops
from tilewright.capture.torch.context import RANDOM_IN_EAGER, Context, Operand, cast, parts
from tilewright.capture.torch.registry import Untranslated, aten
from tilewright.ir.node import Node
from tilewright.ir.types import DType, bf16, f16, f32, f64, i64


def _own(c: Context, generator: Any = None) -> None:
    if c.random == "eager":
        raise Untranslated(RANDOM_IN_EAGER)
    if generator is not None:
        raise Untranslated("it draws from a generator of its own")


def _uniform(c: Context, shape: Any, dtype: DType) -> Node:
    """Uniform on [0, 1)."""
    seed, offset = c.stream()
    return ops.rand(seed, offset, tuple(shape), dtype)


def _normal(c: Context, shape: Any, dtype: DType) -> Node:
    seed, offset = c.stream()
    return ops.randn(seed, offset, tuple(shape), dtype)


@aten("rand.default", "rand_like.default", "rand.generator")
def rand(c: Context, *_: Any, generator: Any = None, **__: Any) -> Node:
    _own(c, generator)
    return _uniform(c, c.out().shape, c.out().dtype)


@aten("randn.default", "randn_like.default", "randn.generator")
def randn(c: Context, *_: Any, generator: Any = None, **__: Any) -> Node:
    _own(c, generator)
    return _normal(c, c.out().shape, c.out().dtype)


def _integers(c: Context, low: int, high: int) -> Node:
    seed, offset = c.stream()
    out = c.out()
    return cast(ops.randint(seed, offset, out.shape, low, high, i64), out.dtype)


@aten("randint.default", "randint_like.default")
def randint(c: Context, *given: Any, generator: Any = None, **__: Any) -> Node:
    _own(c, generator)
    high = given[1] if isinstance(given[0], Node) else given[0]
    return _integers(c, 0, high)


@aten("randint.low", "randint_like.low_dtype")
def randint_low(c: Context, *given: Any, generator: Any = None, **__: Any) -> Node:
    _own(c, generator)
    low, high = given[1:3] if isinstance(given[0], Node) else given[0:2]
    return _integers(c, low, high)


@aten("randperm.default")
def randperm(c: Context, n: int, *, generator: Any = None, **__: Any) -> Node:
    """The order of random keys; a tie among 53-bit keys is broken by position."""
    _own(c, generator)
    keys = _uniform(c, c.out().shape, f64)
    return cast(parts(ops.sort(keys, 0, False))[1], c.out().dtype)


@aten("bernoulli.p", "bernoulli.default", "bernoulli.Tensor")
def bernoulli(c: Context, x: Node, p: Any = None, *, generator: Any = None) -> Node:
    _own(c, generator)
    out = c.out()
    chance = x if p is None else c.node(p, f32)
    if isinstance(p, (int, float)):
        if not 0 <= p <= 1:
            raise Untranslated("eager refuses the probability")
    else:
        _probability(c, chance)
    wide = f64 if chance.dtype is f64 else f32
    drawn = ops.lt(_uniform(c, out.shape, wide), cast(chance, wide))
    return cast(drawn, out.dtype)


def _probability(c: Context, p: Node) -> None:
    zero, one = c.number(0, p.dtype), c.number(1, p.dtype)
    fine = ops.logical_and(ops.ge(p, zero), ops.le(p, one))
    words = "Expected p_in >= 0 && p_in <= 1 to be true, but got false.  "
    words += "(Could this error message be improved?  If so, please report an enhancement request "
    c.checks.never(ops.logical_not(fine), f"{words}to PyTorch.)")


@aten("native_dropout.default")
def native_dropout(c: Context, x: Node, p: float, train: bool | None = True) -> tuple[Node, Node]:
    if train is False or p == 0:
        return x, ops.full(x.shape, True, c.out(1).dtype)
    _own(c)
    if p == 1:
        return ops.full(x.shape, 0, x.dtype), ops.full(x.shape, False, c.out(1).dtype)
    keep = ops.ge(_uniform(c, x.shape, f32), ops.full((), p, f32))
    wide = f32 if x.dtype in (f16, bf16) else x.dtype
    scaled = ops.mul(cast(x, wide), c.number(1.0 / (1.0 - p), wide))
    return cast(ops.where(keep, scaled, c.number(0, wide)), x.dtype), keep


# ---- distributions over a tensor of the given shape


def _open_uniform(c: Context, shape: Any, wide: DType) -> Node:
    """Uniform on (0, 1]: a logarithm of it is finite."""
    return ops.sub(ops.full((), 1, wide), _uniform(c, shape, wide))


def _drawn(c: Context, fn: Callable[[DType], Node]) -> Node:
    out = c.out().dtype
    return cast(fn(f64 if out is f64 else f32), out)


@aten("uniform.default")
def uniform(c: Context, x: Node, low: Any = 0.0, high: Any = 1.0, *, generator: Any = None) -> Node:
    _own(c, generator)

    def draw(d: DType) -> Node:
        u = _uniform(c, x.shape, d)
        return ops.add(ops.mul(u, c.number(high - low, d)), c.number(low, d))

    return _drawn(c, draw)


def _scaled_normal(c: Context, mean: Operand, std: Operand) -> Node:
    if isinstance(std, Node):
        negative = ops.lt(std, c.number(0, std.dtype))
        c.checks.never(negative, "normal expects all elements of std >= 0.0")

    def draw(d: DType) -> Node:
        z = _normal(c, c.out().shape, d)
        return ops.add(ops.mul(z, c.node(std, d)), c.node(mean, d))

    return _drawn(c, draw)


@aten("normal_functional.default")
def normal_functional(
    c: Context, x: Node, mean: float = 0.0, std: float = 1.0, *, generator: Any = None
) -> Node:
    _own(c, generator)
    return _scaled_normal(c, mean, std)


@aten("normal.Tensor_Tensor", "normal.Tensor_float", "normal.float_Tensor", "normal.float_float")
def normal(
    c: Context, mean: Operand = 0.0, std: Operand = 1.0, *_: Any, generator: Any = None, **__: Any
) -> Node:
    _own(c, generator)
    return _scaled_normal(c, mean, std)


@aten("log_normal.default")
def log_normal(
    c: Context, x: Node, mean: float = 1.0, std: float = 2.0, *, generator: Any = None
) -> Node:
    _own(c, generator)
    return ops.exp(_scaled_normal(c, mean, std))


@aten("exponential.default")
def exponential(c: Context, x: Node, lambd: float = 1.0, *, generator: Any = None) -> Node:
    _own(c, generator)
    return _drawn(
        c,
        lambda d: ops.mul(ops.log(_open_uniform(c, x.shape, d)), c.number(-1.0 / lambd, d)),
    )


@aten("cauchy.default")
def cauchy(
    c: Context, x: Node, median: float = 0.0, sigma: float = 1.0, *, generator: Any = None
) -> Node:
    _own(c, generator)

    def draw(d: DType) -> Node:
        turn = ops.sub(_uniform(c, x.shape, d), c.number(0.5, d))
        wild = ops.tan(ops.mul(turn, c.number(math.pi, d)))
        return ops.add(ops.mul(wild, c.number(sigma, d)), c.number(median, d))

    return _drawn(c, draw)


@aten("geometric.default")
def geometric(c: Context, x: Node, p: float, *, generator: Any = None) -> Node:
    _own(c, generator)

    def draw(d: DType) -> Node:
        u = _open_uniform(c, x.shape, d)
        return ops.maximum(
            ops.ceil(ops.div(ops.log(u), c.number(math.log1p(-p), d))), c.number(1, d)
        )

    return _drawn(c, draw)


def _weights(c: Context, x: Node, axis: int, count: int, replacement: bool) -> None:
    """What eager requires of weights, with the messages of each of its two ways to draw."""
    zero = c.number(0, x.dtype)
    sums = ops.le(ops.sum(ops.cast(x, f64), (axis,), False), c.number(0, f64))
    below = ops.lt(x, zero)
    unbounded = ops.logical_not(ops.isfinite(x))
    invalid = "invalid multinomial distribution ({})".format
    if not replacement or count == 1:
        words = "probability tensor contains either `inf`, `nan` or element < 0"
        c.checks.never(ops.logical_or(below, unbounded), words)
    else:
        below = ops.logical_or(below, ops.isnan(x))
        c.checks.never(below, invalid("encountering probability entry < 0"))
        c.checks.never(unbounded, invalid("encountering probability entry = infinity or NaN"))
    c.checks.never(sums, invalid("sum of probabilities <= 0"))


@aten("multinomial.default")
def multinomial(
    c: Context, x: Node, num_samples: int, replacement: bool = False, *, generator: Any = None
) -> Node:
    """With replacement by inversion; without, the largest of weight / exponential are the draws."""
    _own(c, generator)
    wide = ops.cast(x, f64)
    axis = x.rank - 1
    _weights(c, x, axis, num_samples, replacement)
    if not replacement:
        shape = x.shape
        keys = ops.div(wide, ops.neg(ops.log(_open_uniform(c, shape, f64))))
        return parts(ops.topk(keys, num_samples, axis, True))[1]
    total = ops.cumsum(wide, axis)
    whole = ops.slice(total, axis, x.shape[axis] - 1, x.shape[axis], 1)
    draws = ops.mul(_uniform(c, (*x.shape[:-1], num_samples), f64), whole)
    below = ops.le(ops.unsqueeze(total, axis), ops.unsqueeze(draws, axis + 1))
    return ops.sum(ops.cast(below, i64), (axis + 1,), False)


@aten("rrelu_with_noise_functional.default")
def rrelu(
    c: Context,
    x: Node,
    noise: Node,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> tuple[Node, Node]:
    negative = ops.le(x, c.number(0, x.dtype))
    if not training:
        slope = c.number((lower + upper) / 2, x.dtype)
        return ops.where(negative, ops.mul(x, slope), x), noise
    _own(c, generator)
    drawn = _uniform(c, x.shape, f64 if x.dtype is f64 else f32)
    drawn = ops.add(
        ops.mul(drawn, c.number(upper - lower, drawn.dtype)), c.number(lower, drawn.dtype)
    )
    slope = ops.where(negative, cast(drawn, x.dtype), c.number(1, x.dtype))
    return ops.mul(x, slope), slope
