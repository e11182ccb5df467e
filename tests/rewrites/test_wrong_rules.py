"""Rules that are wrong, each by a slip that people make: no normal form may call one proved, and
evaluation finds a point where its sides differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from tilewright import ops as _ops
from tilewright.base.errors import Unsupported
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.maps import Map
from tilewright.ir.node import Node
from tilewright.ir.pattern import make
from tilewright.ir.types import DTYPES, DType, b1, f16, f32, f64, i8, i16, i32, i64, u8
from tilewright.rewrites.proofs.equality import nodes_equal
from tilewright.rewrites.proofs.form import READINGS
from tilewright.rewrites.proofs.prove import compare
from tilewright.rewrites.subject import Maker

ops: Any = _ops
CHANGES = {"bits": "nothing", "numbers": "sign of zero", "reals": "rounding"}
Pair = tuple[Node, Node]


class Wrong(NamedTuple):
    name: str
    dtype: DType
    reading: str  # the loosest in which it is wrong: it is wrong in the stricter ones, too
    sides: Callable[[Maker], Pair]


def of(build: Callable[..., Pair]) -> Callable[[Maker], Pair]:
    """Sides over tensors of one shape."""
    count = build.__code__.co_argcount

    def sides(m: Maker) -> Pair:
        shape = m.shape(2, lo=4, hi=6)
        return build(*(m.tensor(k, shape) for k in "xyz"[:count]))

    return sides


def filled(x: Node, value: float) -> Node:
    return ops.expand(ops.full((), value, x.dtype), x.shape)


def cut(x: Node, start: Dim, stop: Dim, step: int = 1, axis: int = 1) -> Node:
    return make("slice", x, axis=axis, start=start, stop=stop, step=step)


def padded(x: Node, lo: Sequence[Dim], hi: Sequence[Dim], value: float = 0) -> Node:
    return make("pad", x, lo=tuple(lo), hi=tuple(hi), value=value)


def joined(*parts: Node, axis: int = 1) -> Node:
    return make("concat", *parts, axis=axis)


def to(x: Node, name: str) -> Node:
    return ops.cast(x, DTYPES[name])


FLOATS = (
    Wrong("x/x=1", f32, "reals", of(lambda x: (ops.div(x, x), filled(x, 1.0)))),
    Wrong("x-x=0", f32, "numbers", of(lambda x: (ops.sub(x, x), filled(x, 0.0)))),
    Wrong("x*0=0", f64, "numbers", of(lambda x: (ops.mul(x, 0.0), filled(x, 0.0)))),
    Wrong("x+0=x", f32, "bits", of(lambda x: (ops.add(x, 0.0), x))),
    Wrong("0-x=-x", f16, "bits", of(lambda x: (ops.sub(0.0, x), ops.neg(x)))),
    Wrong("-(x-y)=y-x", f32, "bits", of(lambda x, y: (ops.neg(ops.sub(x, y)), ops.sub(y, x)))),
    Wrong(
        "1/(x+0)=1/x",
        f32,
        "numbers",
        of(lambda x: (ops.reciprocal(ops.add(x, 0.0)), ops.reciprocal(x))),
    ),
    Wrong("x==x", f32, "numbers", of(lambda x: (ops.eq(x, x), ops.full(x.shape, True, b1)))),
    Wrong(
        "not(x<y)=x>=y",
        f32,
        "numbers",
        of(lambda x, y: (ops.logical_not(ops.lt(x, y)), ops.ge(x, y))),
    ),
    Wrong("x+y-y=x", f64, "numbers", of(lambda x, y: (ops.sub(ops.add(x, y), y), x))),
    Wrong(
        "(x+y)+z=x+(y+z)",
        f32,
        "numbers",
        of(lambda x, y, z: (ops.add(ops.add(x, y), z), ops.add(x, ops.add(y, z)))),
    ),
    Wrong("x/3=x*(1/3)", f32, "numbers", of(lambda x: (ops.div(x, 3.0), ops.mul(x, 1 / 3)))),
    Wrong(
        "x*y+x*z=x*(y+z)",
        f32,
        "numbers",
        of(lambda x, y, z: (ops.add(ops.mul(x, y), ops.mul(x, z)), ops.mul(x, ops.add(y, z)))),
    ),
    Wrong("abs(x)=x", f32, "reals", of(lambda x: (ops.abs(x), x))),
    Wrong(
        "|x|+0x=|x|",
        f32,
        "numbers",
        of(lambda x: (ops.add(ops.abs(x), ops.mul(x, 0.0)), ops.abs(x))),
    ),
    Wrong(
        "max(x,inf)=inf",
        f32,
        "numbers",
        of(lambda x: (ops.maximum(x, float("inf")), filled(x, float("inf")))),
    ),
    Wrong("max=min", f32, "reals", of(lambda x, y: (ops.maximum(x, y), ops.minimum(x, y)))),
    Wrong(
        "max(x,min(x,y))=x", f32, "numbers", of(lambda x, y: (ops.maximum(x, ops.minimum(x, y)), x))
    ),
    Wrong(
        "relu(x)=x*[x>0]",
        f32,
        "numbers",
        of(lambda x: (ops.relu(x), ops.mul(x, to(ops.gt(x, 0.0), "f32")))),
    ),
    Wrong(
        "relu(x)+relu(-x)=x",
        f64,
        "reals",
        of(lambda x: (ops.add(ops.relu(x), ops.relu(ops.neg(x))), x)),
    ),
    Wrong("sqrt(x)^2=x", f64, "reals", of(lambda x: (ops.square(ops.sqrt(x)), x))),
    Wrong("sqrt(x^2)=x", f64, "reals", of(lambda x: (ops.sqrt(ops.square(x)), x))),
    Wrong(
        "exp(x+y)=exp(x)+exp(y)",
        f64,
        "reals",
        of(lambda x, y: (ops.exp(ops.add(x, y)), ops.add(ops.exp(x), ops.exp(y)))),
    ),
    Wrong(
        "exp(x*y)=exp(x)*exp(y)",
        f64,
        "reals",
        of(lambda x, y: (ops.exp(ops.mul(x, y)), ops.mul(ops.exp(x), ops.exp(y)))),
    ),
    Wrong(
        "exp(x)*exp(y)=exp(x+y) in bits",
        f32,
        "numbers",
        of(lambda x, y: (ops.mul(ops.exp(x), ops.exp(y)), ops.exp(ops.add(x, y)))),
    ),
    Wrong(
        "log(x*y)=log(x)+log(y)",
        f64,
        "reals",
        of(lambda x, y: (ops.log(ops.mul(x, y)), ops.add(ops.log(x), ops.log(y)))),
    ),
    Wrong("1/(1/x)=x", f32, "numbers", of(lambda x: (ops.reciprocal(ops.reciprocal(x)), x))),
    Wrong(
        "1/x-1/x=0",
        f64,
        "reals",
        of(lambda x: (ops.sub(ops.reciprocal(x), ops.reciprocal(x)), filled(x, 0.0))),
    ),
    Wrong("0*sqrt(x)=0", f64, "reals", of(lambda x: (ops.mul(ops.sqrt(x), 0.0), filled(x, 0.0)))),
    Wrong("0*log(x)=0*x", f64, "reals", of(lambda x: (ops.mul(ops.log(x), 0.0), ops.mul(x, 0.0)))),
    Wrong("cos odd", f64, "reals", of(lambda x: (ops.cos(ops.neg(x)), ops.neg(ops.cos(x))))),
    Wrong("tanh even", f64, "reals", of(lambda x: (ops.tanh(ops.neg(x)), ops.tanh(x)))),
    Wrong(
        "floor(-x)=-floor(x)",
        f64,
        "reals",
        of(lambda x: (ops.floor(ops.neg(x)), ops.neg(ops.floor(x)))),
    ),
    Wrong("floor(floor)=ceil", f32, "numbers", of(lambda x: (ops.ceil(ops.floor(x)), ops.ceil(x)))),
    Wrong("through f16", f32, "numbers", of(lambda x: (to(to(x, "f16"), "f32"), x))),
    Wrong("through bf16", f16, "numbers", of(lambda x: (to(to(x, "bf16"), "f16"), x))),
    Wrong("through f32", f64, "numbers", of(lambda x: (to(to(x, "f32"), "f64"), x))),
)

INTEGERS = (
    Wrong("x*x=x", i32, "reals", of(lambda x: (ops.square(x), x))),
    Wrong("x>=y is x>y", i32, "reals", of(lambda x, y: (ops.ge(x, y), ops.gt(x, y)))),
    Wrong(
        "x<x+1", i32, "reals", of(lambda x: (ops.lt(x, ops.add(x, 1)), ops.full(x.shape, True, b1)))
    ),
    Wrong("x-y<0 is x<y", i8, "reals", of(lambda x, y: (ops.lt(ops.sub(x, y), 0), ops.lt(x, y)))),
    Wrong("2x//2=x", i16, "reals", of(lambda x: (ops.floordiv(ops.mul(x, 2), 2), x))),
    Wrong("(x//2)*2=x", i64, "reals", of(lambda x: (ops.mul(ops.floordiv(x, 2), 2), x))),
    Wrong(
        "mod from floordiv of any",
        i32,
        "reals",
        of(lambda x, y: (ops.mod(x, y), ops.sub(x, ops.mul(y, ops.floordiv(x, y))))),
    ),
    Wrong("rem=mod", i32, "reals", of(lambda x: (ops.rem(x, 3), ops.mod(x, 3)))),
    Wrong(
        "abs(x)>=0", i8, "reals", of(lambda x: (ops.ge(ops.abs(x), 0), ops.full(x.shape, True, b1)))
    ),
    Wrong(
        "relu(-x)=0 of unsigned", u8, "reals", of(lambda x: (ops.relu(ops.neg(x)), filled(x, 0)))
    ),
    Wrong(
        "max(x+1,y+1)=max(x,y)+1",
        i8,
        "reals",
        of(lambda x, y: (ops.maximum(ops.add(x, 1), ops.add(y, 1)), ops.add(ops.maximum(x, y), 1))),
    ),
    Wrong("16x=0 modulo 16", u8, "reals", of(lambda x: (ops.mul(x, 16), filled(x, 0)))),
    Wrong(
        "widening after adding",
        i8,
        "reals",
        of(lambda x, y: (to(ops.add(x, y), "i32"), ops.add(to(x, "i32"), to(y, "i32")))),
    ),
    Wrong(
        "narrowing keeps order",
        i32,
        "reals",
        of(lambda x, y: (ops.lt(to(x, "i8"), to(y, "i8")), ops.lt(x, y))),
    ),
    Wrong("i64 through f32", i64, "reals", of(lambda x: (to(to(x, "f32"), "i64"), x))),
    Wrong(
        "unsigned through signed", u8, "reals", of(lambda x: (to(to(x, "i8"), "i32"), to(x, "i32")))
    ),
    Wrong("not x = -x", i32, "reals", of(lambda x: (ops.bitwise_not(x), ops.neg(x)))),
    Wrong("and=or", i32, "reals", of(lambda x, y: (ops.bitwise_and(x, y), ops.bitwise_or(x, y)))),
    Wrong(
        "square of cut",
        i32,
        "reals",
        of(lambda x: (to(ops.square(x), "i64"), ops.square(to(x, "i64")))),
    ),
    Wrong("x<=y is x<y", i32, "reals", of(lambda x, y: (ops.le(x, y), ops.lt(x, y)))),
    Wrong(
        "de Morgan",
        b1,
        "reals",
        of(
            lambda x, y: (
                ops.logical_not(ops.logical_and(x, y)),
                ops.logical_and(ops.logical_not(x), ops.logical_not(y)),
            )
        ),
    ),
    Wrong("or=xor", b1, "reals", of(lambda x, y: (ops.logical_or(x, y), ops.logical_xor(x, y)))),
)


# ---- positions


def concat_in_another_order(m: Maker) -> Pair:
    n = m.dim(lo=2)
    x, y = m.tensor("x", (n, 3)), m.tensor("y", (n, 3))
    return joined(x, y), joined(y, x)


def concat_cut_one_too_far(m: Maker) -> Pair:
    n, size = m.dim(lo=2), m.dim(lo=4, hi=6)
    x, y = m.tensor("x", (n, size)), m.tensor("y", (n, size))
    return cut(joined(x, y), size - 1, 2 * size - 1), y


def slices_that_overlap(m: Maker) -> Pair:
    x = m.tensor("x", (m.dim(lo=2), m.dim(lo=6, hi=9)))
    n = x.shape[1]
    return joined(cut(x, 0, 3), cut(x, 2, n - 1)), x


def pads_of_different_values(m: Maker) -> Pair:
    x = m.tensor("x", m.shape(2, lo=1))
    return padded(padded(x, (1, 0), (0, 0), 1), (1, 0), (0, 0)), padded(x, (2, 0), (0, 0))


def pad_cut_again(m: Maker) -> Pair:
    """A pad of less than nothing loses what the other pad does not give back."""
    x = m.tensor("x", m.shape(2, lo=3))
    return padded(padded(x, (-1, 0), (0, 0)), (1, 0), (0, 0)), x


def product_over_the_wrong_axis(m: Maker) -> Pair:
    n = m.dim(lo=2)
    x, s = m.tensor("x", (n, n)), m.tensor("s", (n, 1))
    return ops.mul(ops.sum(x, (1,), True), s), ops.sum(
        ops.mul(x, ops.transpose(s, 0, 1)), (1,), True
    )


def sum_of_products(m: Maker) -> Pair:
    shape = m.shape(1, lo=2)
    x, y = m.tensor("x", shape), m.tensor("y", shape)
    return ops.sum(ops.mul(x, y), (0,)), ops.mul(ops.sum(x, (0,)), ops.sum(y, (0,)))


def sum_of_a_constant(m: Maker) -> Pair:
    x = m.tensor("x", (m.dim(lo=2), m.dim(lo=2)))
    return ops.sum(ops.add(x, 1.0), (1,)), ops.add(ops.sum(x, (1,)), 1.0)


def sums_within_sums(m: Maker) -> Pair:
    n = m.dim(lo=2)
    x = m.tensor("x", (n, n))
    rows, columns = (ops.tanh(ops.sum(x, (k,))) for k in (1, 0))
    return ops.sum(rows, (0,)), ops.sum(columns, (0,))


def maximum_of_a_sum(m: Maker) -> Pair:
    shape = m.shape(2, lo=2)
    x, y = m.tensor("x", shape), m.tensor("y", shape)
    return ops.amax(ops.add(x, y), (1,)), ops.add(ops.amax(x, (1,)), ops.amax(y, (1,)))


def reshape_for_transpose(m: Maker) -> Pair:
    a, b = m.dim(lo=2), m.dim(lo=2)
    x = m.tensor("x", (a, b))
    return ops.transpose(x, 0, 1), ops.reshape(x, (b, a))


def reshape_of_parts(m: Maker) -> Pair:
    n = m.dim(lo=2)
    x = m.tensor("x", (n, 2, 3))
    return ops.reshape(ops.permute(x, (0, 2, 1)), (n, 6)), ops.reshape(x, (n, 6))


def flattened_transpose(m: Maker) -> Pair:
    a, b = m.dim(lo=2), m.dim(lo=2)
    x = m.tensor("x", (a, b))
    return ops.reshape(ops.transpose(x, 0, 1), (a * b,)), ops.reshape(x, (a * b,))


def flips_of_two_axes(m: Maker) -> Pair:
    x = m.tensor("x", m.shape(2, lo=2))
    return make("flip", make("flip", x, axes=(0,)), axes=(1,)), x


def step_of_steps(m: Maker) -> Pair:
    x = m.tensor("x", (m.dim(lo=13, hi=15),))
    n = x.shape[0]
    twice = cut(cut(x, 0, n, 2, axis=0), 1, D.ceildiv(n, 2), 2, axis=0)
    shape = twice.shape[0]
    return twice, cut(x, 1, 1 + (shape - 1) * 4 + 1, 4, axis=0)


def rows_of_a_softmax(m: Maker) -> Pair:
    x = m.tensor("x", m.shape(2, lo=2))
    e = ops.exp(x)
    return ops.div(e, ops.sum(e, (1,), True)), ops.div(e, ops.sum(e, (0,), True))


def matmul_of_the_other_transpose(m: Maker) -> Pair:
    n = m.dim(lo=2)
    a, b = m.tensor("a", (n, n)), m.tensor("b", (n, n))
    return ops.matmul(a, ops.transpose(b, 0, 1)), ops.matmul(ops.transpose(a, 0, 1), b)


def blocks_in_another_order(m: Maker) -> Pair:
    n = m.dim(lo=1)
    x = m.tensor("x", (m.dim(lo=1), 4 * n))
    packed = make("relayout", x, map=Map.parse("k, j -> j//4, k, j%4"))
    return packed, ops.permute(ops.reshape(x, (x.shape[0], 4, n)), (2, 0, 1))


def padding_that_is_kept(m: Maker) -> Pair:
    """A matrix product over padded columns, whose padding is not zero."""
    x, w = m.tensor("x", (m.dim(lo=1), 5)), m.tensor("w", (5, m.dim(lo=1)))
    left = ops.matmul(padded(x, (0, 0), (0, 3), 1), padded(w, (0, 0), (3, 0), 1))
    return left, ops.matmul(x, w)


def conv_padded_by_one_side(m: Maker) -> Pair:
    x, w = m.tensor("x", (m.dim(lo=1, hi=2), 2, m.dim(lo=5, hi=7))), m.tensor("w", (3, 2, 3))
    inner = padded(x, (0, 0, 2), (0, 0, 0))
    return ops.conv(x, w, padding=1), ops.conv(inner, w)


def sum_of_halves_forgets_one(m: Maker) -> Pair:
    x = m.tensor("x", (m.dim(lo=6, hi=9),))
    n = x.shape[0]
    halves = ops.add(ops.sum(cut(x, 0, 3, axis=0), (0,)), ops.sum(cut(x, 4, n, axis=0), (0,)))
    return ops.sum(x, (0,)), halves


def where_of_swapped_branches(m: Maker) -> Pair:
    shape = m.shape(1, lo=2)
    c, x, y = m.condition("c", shape), m.tensor("x", shape), m.tensor("y", shape)
    return ops.where(ops.logical_not(c), x, y), ops.where(c, x, y)


def order_of_a_float_sum(m: Maker) -> Pair:
    x = m.tensor("x", m.shape(2, lo=3))
    return ops.sum(ops.sum(x, (0,)), (0,)), ops.sum(ops.sum(x, (1,)), (0,))


def axes_of_a_float_sum(m: Maker) -> Pair:
    n = m.dim(lo=3)
    x = m.tensor("x", (n, n))
    return ops.sum(x, (0, 1)), ops.sum(ops.transpose(x, 0, 1), (0, 1))


def sum_without_its_last(m: Maker) -> Pair:
    x = m.tensor("x", m.shape(1, lo=2))
    return ops.sum(padded(cut(x, 0, x.shape[0] - 1, axis=0), (0,), (1,)), (0,)), ops.sum(x, (0,))


POSITIONS = tuple(
    Wrong(f.__name__, f32, "reals", f)
    for f in (
        concat_in_another_order,
        concat_cut_one_too_far,
        slices_that_overlap,
        pads_of_different_values,
        pad_cut_again,
        product_over_the_wrong_axis,
        sum_of_products,
        sum_of_a_constant,
        maximum_of_a_sum,
        reshape_for_transpose,
        reshape_of_parts,
        flattened_transpose,
        flips_of_two_axes,
        step_of_steps,
        rows_of_a_softmax,
        matmul_of_the_other_transpose,
        blocks_in_another_order,
        padding_that_is_kept,
        conv_padded_by_one_side,
        sum_of_halves_forgets_one,
        sums_within_sums,
        where_of_swapped_branches,
        sum_without_its_last,
    )
) + tuple(Wrong(f.__name__, f64, "numbers", f) for f in (order_of_a_float_sum, axes_of_a_float_sum))


WRONG = (*FLOATS, *INTEGERS, *POSITIONS)


def proved(rule: Wrong, reading: str, seed: int = 0) -> bool:
    sides = rule.sides(Maker(seed, symbolic=True, dtype=rule.dtype))
    try:
        return nodes_equal(*sides, reading)
    except Unsupported:
        return False  # refused, with a reason


@pytest.mark.parametrize("rule", WRONG, ids=lambda r: r.name)
def test_no_wrong_rule_is_proved(rule: Wrong) -> None:
    for reading in READINGS[: READINGS.index(rule.reading) + 1]:
        for seed in range(2):
            assert not proved(rule, reading, seed), (reading, seed)


@pytest.mark.parametrize("rule", WRONG, ids=lambda r: r.name)
def test_evaluation_finds_each_wrong_rule(rule: Wrong) -> None:
    """So that the table holds wrong rules only."""
    changes = CHANGES[rule.reading]
    for seed in range(60):
        if compare(*rule.sides(Maker(seed, dtype=rule.dtype)), changes, seed):
            return
    pytest.fail("no point tells the sides apart")
