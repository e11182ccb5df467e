"""Mined equalities as rules of graphs: other ranks than they were found with, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from tilewright.ir.node import Node, input, item, node
from tilewright.ir.operator import OPERATORS
from tilewright.ir.pattern import Rule
from tilewright.ir.types import DType, TensorType, f16, f32, i32
from tilewright.superopt.applied import at_kinds, of_several, rules_of
from tilewright.superopt.classes import Classes
from tilewright.superopt.merge import merged, merges
from tilewright.superopt.saturate import Budget, saturate
from tilewright.superopt.search import searched_rules
from tilewright.superopt.seconds import constant_classes
from tilewright.superopt.text import parse_equality

ASSOCIATIVE = "matmul(matmul(a, b), c) == matmul(a, matmul(b, c))"
ASSOCIATIVE += " where a: [m, k], b: [k, n], c: [n, o]"
BESIDE = "concat(matmul(a, b), matmul(a, c), axis=1) == matmul(a, concat(b, c, axis=1))"
BESIDE += " where a: [m, k], b: [k, n], c: [k, o]"
FIRST = "slice(concat(a, b, axis=0), axis=0, start=first, stop=middle) == a"
FIRST += " where a: [m, k], b: [n, k]"
SCALED = "relu(mul(p, a)) == mul(p, relu(a)) where p: [] >= 0, a: [m, k]"


def tensor(name: str, *shape: int, dtype: DType = f32) -> Node:
    return input(name, TensorType(dtype, shape))


def make(name: str, *operands: Node, **attributes: object) -> Node:
    return node(OPERATORS[name](**attributes), *operands)


def both(text: str) -> list[Rule]:
    return rules_of(parse_equality(text), "mined")


def applied(rule: Rule, n: Node) -> Node | None:
    found = rule.apply(n)
    return found and found[0]


@pytest.mark.parametrize("batch", [(), (7,), (7, 2)])
def test_axes_in_front(batch: tuple[int, ...]) -> None:
    a, b, c = tensor("a", *batch, 2, 3), tensor("b", 3, 4), tensor("c", 3, 5)
    there, back = both(BESIDE)
    left = make("concat", make("matmul", a, b), make("matmul", a, c), axis=len(batch) + 1)
    right = make("matmul", a, make("concat", b, c, axis=1))
    assert applied(there, left) is right and applied(back, right) is left


def test_channels_in_groups() -> None:
    """What was found of all channels holds of groups where that is proved: filters add up, and they
    are no longer filters of their groups when they are put together."""
    settings = "stride=(1, 1), padding=(1, 1), dilation=(1, 1)"
    kinds = "x: [n, c, h, w], u: [k, c, 3, 3], v: [o, c, 3, 3]"
    summed = f"add(conv(x, u, {settings}), conv(x, v, {settings}))"
    summed += f" == conv(x, add(u, v), {settings}) where {kinds.replace('o, c', 'k, c')}"
    beside = f"concat(conv(x, u, {settings}), conv(x, v, {settings}), axis=1)"
    beside += f" == conv(x, concat(u, v, axis=0), {settings}) where {kinds}"
    x, u, v = tensor("x", 1, 8, 5, 5), tensor("u", 8, 2, 3, 3), tensor("v", 8, 2, 3, 3)
    at = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    one, other = (make("conv", x, w, **at, groups=4) for w in (u, v))
    added = make("conv", x, make("add", u, v), **at, groups=4)
    there, back = both(summed)
    assert applied(there, make("add", one, other)) is added
    assert applied(back, added) is make("add", one, other)
    joined = make("concat", one, other, axis=1)
    together = make("conv", x, make("concat", u, v, axis=0), **at, groups=4)
    assert [applied(r, n) for r, n in zip(both(beside), (joined, together), strict=True)] == [
        None,
        None,
    ]
    two = make("conv", x, tensor("w", 8, 4, 3, 3), **at, groups=2)
    assert applied(there, make("add", one, two)) is None


def test_other_attributes_do_not_match() -> None:
    a, b = tensor("a", 4, 3), tensor("b", 5, 3)
    (rule,) = both(FIRST)
    both_rows = make("concat", a, b, axis=0)
    assert applied(rule, make("slice", both_rows, axis=0, start=0, stop=4)) is a
    assert applied(rule, make("slice", both_rows, axis=0, start=0, stop=3)) is None
    assert applied(rule, make("slice", both_rows, axis=1, start=0, stop=3)) is None


def test_a_sign_has_to_be_known() -> None:
    rule = both(SCALED)[0]
    a, two = tensor("a", 4, 3), make("full", shape=(), value=2.0, dtype=f32)
    right = make("mul", two, make("relu", a))
    assert applied(rule, make("relu", make("mul", two, a))) is right
    minus = make("full", shape=(), value=-2.0, dtype=f32)
    assert applied(rule, make("relu", make("mul", minus, a))) is None
    assert applied(rule, make("relu", make("mul", tensor("s"), a))) is None


def test_floats_of_one_dtype_alone() -> None:
    rule = both(ASSOCIATIVE)[0]
    a, b, c = (tensor(x, 2, 2, dtype=i32) for x in "abc")
    assert applied(rule, make("matmul", make("matmul", a, b), c)) is None


def test_what_is_not_proved_for_a_rank_is_refused() -> None:
    e = parse_equality(ASSOCIATIVE)
    a, b, c = ("m", "k"), ("k", "n"), ("n", "o")
    assert at_kinds(e, (("i", *a), b, c)) is not None
    assert at_kinds(e, (a, b, ("i", *c))) is not None
    assert at_kinds(e, (("k",), b, c)) is None
    # Transposing the last two axes of a product of three.
    sides = "matmul(a, permute(b, perm=(1, 0))) == matmul(a, b)"
    turned = parse_equality(f"{sides} where a: [m, k], b: [k, k]")
    assert at_kinds(turned, (("i", "m", "k"), ("k", "k"))) is None


SUMS = "add(add(s, a), b) == add(add(s, b), a) where s: [], a: [m, n], b: [m, n]"
SCALES = "matmul(mul(s, a), b) == mul(s, matmul(a, b)) where s: [], a: [m, k], b: [k, n]"


def test_vectors_and_tensors_in_the_place_of_others() -> None:
    """A sum may be taken in another order whatever is repeated; a scale of each column of the first
    operand does not leave a product, one of each row does."""
    (there, _), shapes = both(SUMS), [(5, 3, 4), (4,), (3, 1), (), (5, 1, 1)]
    for one, other, third in product(shapes, repeat=3):
        a, b, c = tensor("a", *one), tensor("b", *other), tensor("c", *third)
        left = make("add", make("add", a, b), c)
        assert applied(there, left) is make("add", make("add", a, c), b)
    scales = both(SCALES)[0]
    a, b = tensor("a", 6, 3), tensor("b", 3, 4)
    for shape in ((), (6, 1)):
        s = tensor("s", *shape)
        found = applied(scales, make("matmul", make("mul", s, a), b))
        assert found is make("mul", s, make("matmul", a, b)), shape
    for shape in ((3,), (6, 3)):
        assert applied(scales, make("matmul", make("mul", tensor("s", *shape), a), b)) is None


def test_sixteen_bits_are_only_moved() -> None:
    """A scale that keeps a sum in range must stay where it is; columns may be put together."""
    half = make("full", shape=(), value=0.5, dtype=f16)
    a, b, c = (tensor(x, 4, 4, dtype=f16) for x in "abc")
    rule = both("matmul(mul(s, a), b) == mul(s, matmul(a, b)) where s: [], a: [m, k], b: [k, n]")[0]
    assert applied(rule, make("matmul", make("mul", half, a), b)) is None
    columns = make("concat", make("matmul", a, b), make("matmul", a, c), axis=1)
    assert applied(both(BESIDE)[0], columns) is not None


def test_infinity_is_no_number() -> None:
    rule = both(SCALED)[0]
    much = make("full", shape=(), value=float("inf"), dtype=f32)
    assert applied(rule, make("relu", make("mul", much, tensor("a", 4, 3)))) is None


def test_any_number_of_products_becomes_one() -> None:
    """But for those whose other operand is of another shape."""
    x = tensor("x", 4, 8, 16)
    wide = [input(f"w{k}", TensorType(f32, (4, 16, 5)), "weight") for k in range(18)]
    odd = input("odd", TensorType(f32, (1, 16, 5)), "weight")
    products = [make("matmul", x, w) for w in (wide[0], odd, *wide[1:])]
    classes = Classes(products)
    rules = merges({"beside": parse_equality(BESIDE)})
    found = list(merged(classes, rules, constant_classes(classes)))
    assert {n for n, _, _ in found} == {p for p in products if p.inputs[1] is not odd}
    assert all(n.type == made.type for n, made, _ in found)


def test_a_rule_of_two_parts_is_one_of_several() -> None:
    """Of neighbours that it holds of; a rule of other operators is none."""
    there, back = both(BESIDE)
    several = of_several(there)
    assert several is not None and of_several(back) is None
    x, y, other = tensor("x", 4, 8), tensor("y", 4, 8), tensor("other", 4, 3)
    weights = [tensor(f"w{k}", 8, 2 + k) for k in range(4)]
    a, b, c, d = (make("matmul", x, w) for w in weights)
    of_y = make("matmul", y, weights[0])
    two = make("concat", *weights[:2], axis=1)
    three = make("concat", two, weights[2], axis=1)
    assert applied(several, make("concat", a, b, c, axis=1)) is make("matmul", x, three)
    among = make("concat", other, a, b, c, of_y, d, axis=1)
    assert applied(several, among) is make(
        "concat", other, make("matmul", x, three), of_y, d, axis=1
    )
    assert applied(several, make("concat", a, other, b, of_y, axis=1)) is None
    assert applied(several, make("concat", a, b, axis=1)) is None  # that is the rule of two


JOINED = "matmul(reshape(x, shape=joined(0)), w) == reshape(matmul(x, w), shape=joined(0))"
JOINED += " where x: [l, m, k], w: [k, n]"
PARTED = (
    "relu(reshape(y, shape=parted(1))) == reshape(relu(y), shape=parted(1)) where y: [m, h * d]"
)


def reshaped(x: Node, *shape: int) -> Node:
    return make("reshape", x, shape=shape)


def test_reshapes() -> None:
    x, w = tensor("x", 2, 3, 4), tensor("w", 4, 5)
    there, back = both(JOINED)
    left = make("matmul", reshaped(x, 6, 4), w)
    right = reshaped(make("matmul", x, w), 6, 5)
    assert applied(there, left) is right and applied(back, right) is left
    assert applied(there, make("matmul", reshaped(x, 3, 2, 4), w)) is None
    assert applied(back, reshaped(make("matmul", x, w), 2, 15)) is None


@pytest.mark.parametrize("batch", [(), (7,)])
def test_what_an_axis_is_parted_into_is_read_off_the_graph(batch: tuple[int, ...]) -> None:
    y = tensor("y", *batch, 2, 12)
    there, back = both(PARTED)
    for parts in ((3, 4), (2, 6)):
        left = make("relu", reshaped(y, *batch, 2, *parts))
        right = reshaped(make("relu", y), *batch, 2, *parts)
        assert applied(there, left) is right and applied(back, right) is left
    assert applied(there, make("relu", reshaped(y, *batch, 24))) is None


def test_constants() -> None:
    """Of any shape, and of the dtype of what they are used with."""
    zero = "full(shape=(), value=0.0, dtype=f64)"
    there, back = both(f"maximum(x, {zero}) == relu(x) where x: [m, n]")
    x = tensor("x", 2, 3)

    def full(value: float, *shape: int) -> Node:
        return make("full", shape=shape, value=value, dtype=f32)

    for shape in ((), (3,), (2, 3)):
        assert applied(there, make("maximum", x, full(0.0, *shape))) is make("relu", x)
    assert applied(there, make("maximum", x, full(1.0))) is None
    assert applied(back, make("relu", x)) is make("maximum", x, full(0.0))
    (gone,) = both(f"sub(s, s) == {zero} where s: []")  # a constant is not what a rule begins with
    assert applied(gone, make("sub", s := tensor("s"), s)) is full(0.0)
    assert not parse_equality(f"add({zero}, {zero}) == {zero} where s: []").is_rule


def test_what_is_too_large_for_a_proof_is_not_applied() -> None:
    """With kernels of one element it is proved; with larger ones there are too many sums."""

    def image(x: str) -> str:
        for k in "abc":
            x = f"conv({x}, {k}, stride=(1, 1), padding=(0, 0), dilation=(1, 1))"
        return x

    leaves = "i: [n, c, h, w], s: [], a: [c, c, 1, 1], b: [c, c, 1, 1], c: [c, c, 1, 1]"
    e = parse_equality(f"mul({image('i')}, s) == {image('mul(i, s)')} where {leaves}")
    assert e.is_proved()
    kernels = {x.name: ("c", "c", 3, 3) for x in e.leaves if x.name in "abc"}
    assert at_kinds(e, tuple(kernels.get(x.name, x.kind) for x in e.leaves)) is None


def conv(x: Node, k: Node, stride: int = 1, padding: int = 0) -> Node:
    settings = {"stride": (stride, stride), "padding": (padding, padding)}
    return make("conv", x, k, **settings, dilation=(1, 1))


def sums_of_convolutions() -> tuple[Node, Node]:
    x, y = tensor("x", 2, 8, 14, 15), tensor("y", 2, 6, 14, 15)
    v, w = tensor("v", 4, 8, 5, 5), tensor("w", 4, 6, 5, 5)
    both = make("concat", x, y, axis=1), make("concat", v, w, axis=1)
    return make("add", conv(x, v, 2, 2), conv(y, w, 2, 2)), conv(*both, 2, 2)


def a_pool_of_a_convolution() -> tuple[Node, Node]:
    """As between the blocks of a dense network: the convolution is of a quarter of the image."""
    x, k = tensor("x", 1, 8, 14, 14), tensor("k", 4, 8, 1, 1)
    how: dict[str, object] = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)}
    return make("avg_pool", conv(x, k), **how), conv(make("avg_pool", x, **how), k)


def a_stride_behind_a_convolution() -> tuple[Node, Node]:
    x, j, k = tensor("x", 1, 8, 14, 14), tensor("j", 8, 8, 1, 1), tensor("k", 4, 8, 1, 1)
    return conv(conv(x, j), k, 2), conv(conv(x, j, 2), k)


def a_pool_of_positive_parts() -> tuple[Node, Node]:
    x = tensor("x", 1, 8, 14, 14)
    how = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1), "dilation": (1, 1)}
    relu = make("relu", item(make("max_pool", x, **how), 0))
    return item(make("max_pool", make("relu", x), **how), 0), relu


@pytest.mark.parametrize(
    "sides",
    [
        sums_of_convolutions,
        a_pool_of_a_convolution,
        a_stride_behind_a_convolution,
        a_pool_of_positive_parts,
    ],
)
def test_laws_of_images_that_ship(sides: Callable[[], tuple[Node, Node]]) -> None:
    left, right = sides()
    classes = Classes((left, right))
    saturate(classes, searched_rules(), Budget(rounds=1))
    assert classes.leader(left) is classes.leader(right)
