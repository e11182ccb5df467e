"""The prover itself: known-wrong rules are refused by either method, true identities are proved."""

from collections.abc import Callable
from typing import Any

import pytest

from tilewright import ops as _ops
from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.node import Node
from tilewright.ir.pattern import Rule, Var, op
from tilewright.ir.types import bf16, f64, i8, i64, u8
from tilewright.rewrites.proofs.equality import nodes_equal
from tilewright.rewrites.proofs.form import READINGS
from tilewright.rewrites.proofs.prove import compare, prove
from tilewright.rewrites.subject import Maker

ops: Any = _ops
x, y, s = Var("x"), Var("y"), Var("s")

Pair = tuple[Node, Node]


# ---- wrong


def relu_of_scaled(m: Maker) -> Pair:
    a, b = m.tensor("x", m.shape(2)), m.tensor("s", ())
    return ops.relu(ops.mul(b, a)), ops.mul(b, ops.relu(a))


def gram_is_positive(m: Maker) -> Pair:
    a = m.tensor("x", m.shape(2))
    gram = ops.matmul(a, ops.permute(a, (1, 0)))
    return gram, ops.relu(gram)


def grouped_convs_by_concat(m: Maker) -> Pair:
    """Two convolutions of two groups on one input are not one convolution of the joined weights."""
    a = m.tensor("x", (m.dim(hi=2), 4, m.dim(lo=4, hi=6)))
    v, w = m.weight("v", (2, 2, 1)), m.weight("w", (2, 2, 1))
    apart = ops.concat([ops.conv(a, v, groups=2), ops.conv(a, w, groups=2)], 1)
    return apart, ops.conv(a, ops.concat([v, w], 0), groups=2)


def concat_forgets_its_cut(m: Maker) -> Pair:
    """concat is associative, but a split that remembers where the cut was is not."""
    rows = m.dim()
    a, b, c = (m.tensor(k, (rows, n)) for k, n in (("a", 2), ("b", 3), ("c", 4)))
    left = ops.slice(ops.concat([ops.concat([a, b], 1), c], 1), 1, 0, 2)
    return left, ops.slice(ops.concat([a, ops.concat([b, c], 1)], 1), 1, 2, 4)


def transpose_of_product(m: Maker) -> Pair:
    n = m.dim()
    a, b = m.tensor("a", (n, n)), m.tensor("b", (n, n))
    t = ops.permute(ops.matmul(a, b), (1, 0))
    return t, ops.matmul(ops.permute(a, (1, 0)), ops.permute(b, (1, 0)))


def sum_of_squares(m: Maker) -> Pair:
    a = m.tensor("x", m.shape(2))
    return ops.sum(ops.mul(a, a), (1,)), ops.square(ops.sum(a, (1,)))


def matmul_commutes(m: Maker) -> Pair:
    n = m.dim(lo=2)
    a, b = m.tensor("a", (n, n)), m.tensor("b", (n, n))
    return ops.matmul(a, b), ops.matmul(b, a)


def max_distributes(m: Maker) -> Pair:
    a, b, c = (m.tensor(k, m.shape(1)[:0] + (4,)) for k in "abc")
    return ops.maximum(ops.add(a, b), c), ops.add(ops.maximum(a, c), b)


WRONG = (
    relu_of_scaled,
    gram_is_positive,
    grouped_convs_by_concat,
    concat_forgets_its_cut,
    transpose_of_product,
    sum_of_squares,
    matmul_commutes,
    max_distributes,
)


@pytest.mark.parametrize("sides", WRONG, ids=lambda f: f.__name__)
def test_wrong_rules_are_refused_by_normal_form(sides: Callable[[Maker], Pair]) -> None:
    for seed in range(5):
        for reading in READINGS:
            assert not nodes_equal(*sides(Maker(seed, symbolic=True)), reading)


@pytest.mark.parametrize("sides", WRONG, ids=lambda f: f.__name__)
def test_wrong_rules_are_refused_by_evaluation(sides: Callable[[Maker], Pair]) -> None:
    assert any(compare(*sides(Maker(seed)), "rounding", seed) for seed in range(40))


@pytest.mark.parametrize(
    "rule",
    [
        Rule("add-0-keeps-all", x + 0.0, x, dtypes="f"),  # -0.0 + 0.0 is 0.0
        Rule("mul-0-of-floats", x * 0, 0 * x - x + x, dtypes="f"),
        Rule("sub-self-of-floats", x - x, 0 * x, dtypes="f"),  # inf - inf
        Rule("not-lt", op.logical_not(op.lt(x, y)), op.ge(x, y)),  # NaN
        Rule("relu-scale", op.relu(s * x), s * op.relu(x), changes="rounding"),
        Rule("add-commutes-with-neg", -(x + y), op.neg(x) + y),
        Rule("abs-of-whole", op.abs(op.neg(op.abs(x))), x, dtypes="i"),
    ],
    ids=lambda r: r.name,
)
def test_wrong_rules_are_not_proved(rule: Rule) -> None:
    proof = prove(rule, points=6)
    assert not proof and proof.detail


def test_a_rule_that_never_applies_is_not_proved() -> None:
    idle = Rule("idle", op.neg(op.neg(x)), x, subject=lambda m: ops.neg(m.tensor("x")))
    assert "does not apply" in prove(idle).detail


def test_a_rule_that_changes_the_type_is_an_error() -> None:
    wrong = Rule("drops", op.sum(x), x, subject=lambda m: ops.sum(m.tensor("x", m.shape(2)), (0,)))
    with pytest.raises(Invalid, match="types differ"):
        prove(wrong)


# ---- right, for all sizes


def matmul_associates(m: Maker) -> Pair:
    a, b, c, d = (m.dim() for _ in range(4))
    p, q, r = m.tensor("p", (a, b)), m.tensor("q", (b, c)), m.tensor("r", (c, d))
    return ops.matmul(ops.matmul(p, q), r), ops.matmul(p, ops.matmul(q, r))


def matmul_distributes(m: Maker) -> Pair:
    a, b, c = (m.dim() for _ in range(3))
    p, q, r = m.tensor("p", (a, b)), m.tensor("q", (b, c)), m.tensor("r", (b, c))
    return ops.matmul(p, ops.add(q, r)), ops.add(ops.matmul(p, q), ops.matmul(p, r))


def matmuls_by_rows(m: Maker) -> Pair:
    """A sum of products is one product of the joined operands."""
    a, b, c, n = (m.dim() for _ in range(4))
    p, q = m.tensor("p", (a, b)), m.tensor("q", (a, c))
    r, t = m.tensor("r", (b, n)), m.tensor("t", (c, n))
    joined = ops.matmul(ops.concat([p, q], 1), ops.concat([r, t], 0))
    return joined, ops.add(ops.matmul(p, r), ops.matmul(q, t))


def matmuls_by_columns(m: Maker) -> Pair:
    a, b, c, n = (m.dim() for _ in range(4))
    p, q, r = m.tensor("p", (a, b)), m.tensor("q", (b, c)), m.tensor("r", (b, n))
    joined = ops.matmul(p, ops.concat([q, r], 1))
    return joined, ops.concat([ops.matmul(p, q), ops.matmul(p, r)], 1)


def transpose_reverses(m: Maker) -> Pair:
    a, b, c = (m.dim() for _ in range(3))
    p, q = m.tensor("p", (a, b)), m.tensor("q", (b, c))
    right = ops.matmul(ops.permute(q, (1, 0)), ops.permute(p, (1, 0)))
    return ops.permute(ops.matmul(p, q), (1, 0)), right


def sums_exchange(m: Maker) -> Pair:
    a = m.tensor("x", m.shape(3))
    return ops.sum(ops.sum(a, (0,)), (1,)), ops.sum(ops.sum(a, (2,)), (0,))


def scale_leaves_the_sum(m: Maker) -> Pair:
    a, b = m.tensor("x", m.shape(2)), m.tensor("s", ())
    return ops.sum(ops.mul(a, b), (1,)), ops.mul(ops.sum(a, (1,)), b)


def conv_is_linear(m: Maker) -> Pair:
    a = m.tensor("x", (m.dim(), 3, m.dim(lo=4, hi=6), m.dim(lo=4, hi=6)))
    v, w = m.tensor("v", (2, 3, 3, 3)), m.tensor("w", (2, 3, 3, 3))
    both = ops.conv(a, ops.add(v, w), padding=1)
    return both, ops.add(ops.conv(a, v, padding=1), ops.conv(a, w, padding=1))


def convs_share_an_input(m: Maker) -> Pair:
    a = m.tensor("x", (m.dim(), 3, m.dim(lo=4, hi=6)))
    v, w = m.tensor("v", (m.dim(), 3, 3)), m.tensor("w", (m.dim(), 3, 3))
    both = ops.conv(a, ops.concat([v, w], 0), padding=1)
    return both, ops.concat([ops.conv(a, v, padding=1), ops.conv(a, w, padding=1)], 1)


def relu_of_concat(m: Maker) -> Pair:
    rows = m.dim()
    a, b = m.tensor("a", (m.dim(), rows)), m.tensor("b", (m.dim(), rows))
    both = ops.relu(ops.concat([a, b], 0))
    return both, ops.concat([ops.relu(a), ops.relu(b)], 0)


def square_of_sum(m: Maker) -> Pair:
    a, b = (m.tensor(k, m.shape(1)[:0] + (5,)) for k in "ab")
    twice = ops.add(ops.mul(a, b), ops.mul(b, a))
    return ops.square(ops.add(a, b)), ops.add(ops.add(ops.square(a), ops.square(b)), twice)


def whole_powers(m: Maker) -> Pair:
    a = m.tensor("x", m.shape(1))
    return ops.pow(a, 3.0), ops.mul(a, ops.square(a))


def exponents_add(m: Maker) -> Pair:
    shape = m.shape(2)
    a, b = m.tensor("a", shape), m.tensor("b", shape)
    return ops.div(ops.exp(a), ops.exp(ops.sub(b, a))), ops.exp(ops.sub(ops.add(a, a), b))


def softmax_of_shifted(m: Maker) -> Pair:
    """exp(x - s) over its sum is the same for any s of a row."""
    a, s = m.tensor("x", m.shape(2)), m.tensor("s", ())
    return ops.div(ops.exp(ops.sub(a, s)), ops.exp(ops.neg(s))), ops.exp(a)


def one_over_a_root(m: Maker) -> Pair:
    a, b = (m.tensor(k, m.shape(1)[:0] + (5,)) for k in "ab")
    return ops.mul(b, ops.rsqrt(a)), ops.div(b, ops.sqrt(a))


def odd_and_even(m: Maker) -> Pair:
    a, b = (m.tensor(k, m.shape(1)[:0] + (5,)) for k in "ab")
    c = ops.sub(a, b)
    left = ops.mul(ops.tanh(c), ops.cos(c))
    return left, ops.neg(ops.mul(ops.tanh(ops.sub(b, a)), ops.cos(ops.sub(b, a))))


RIGHT = (
    whole_powers,
    exponents_add,
    softmax_of_shifted,
    one_over_a_root,
    odd_and_even,
    matmul_associates,
    matmul_distributes,
    matmuls_by_rows,
    matmuls_by_columns,
    transpose_reverses,
    sums_exchange,
    scale_leaves_the_sum,
    conv_is_linear,
    convs_share_an_input,
    relu_of_concat,
    square_of_sum,
)


@pytest.mark.parametrize("sides", RIGHT, ids=lambda f: f.__name__)
def test_true_identities_are_proved(sides: Callable[[Maker], Pair]) -> None:
    for seed in range(3):
        assert nodes_equal(*sides(Maker(seed, symbolic=True)), "reals")
        left, right = sides(Maker(seed, dtype=f64))
        assert compare(left, right, "rounding", seed) is None


@pytest.mark.parametrize(
    "sides",
    [matmuls_by_columns, transpose_reverses, convs_share_an_input, relu_of_concat],
    ids=lambda f: f.__name__,
)
def test_some_are_proved_bit_for_bit(sides: Callable[[Maker], Pair]) -> None:
    for dtype in (f64, bf16):
        assert nodes_equal(*sides(Maker(0, symbolic=True, dtype=dtype)), "bits")
        left, right = sides(Maker(0, dtype=dtype))
        assert compare(left, right, "nothing", 0) is None


def test_integers_distribute_and_floats_do_not() -> None:
    for dtype, proved in ((i8, True), (u8, True), (i64, True), (f64, False)):
        for sides in (matmul_distributes, matmul_associates, square_of_sum):
            assert nodes_equal(*sides(Maker(0, symbolic=True, dtype=dtype)), "bits") == proved


def test_short_sums_are_their_additions_in_order() -> None:
    a = Maker(0, True, f64).tensor("x", (D.sym("n", 1), 3))
    first, second, third = (ops.slice(a, 1, k, k + 1) for k in range(3))
    total = ops.sum(a, (1,), True)
    start = ops.add(ops.full((), 0.0, f64), first)
    assert nodes_equal(total, ops.add(ops.add(start, second), third))
    assert not nodes_equal(total, ops.add(ops.add(start, third), second))
    assert not nodes_equal(total, ops.add(start, second))
