"""Elementwise operators: what samples do not say (errors, symbolic dims, interning)."""

import math

import numpy as np
import pytest

from tilewright import ops
from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, input
from tilewright.ir.operator import OPERATORS
from tilewright.ir.types import TensorType, b1, bf16, f16, f32, i8, i64

M, N = D.sym("m", 1), D.sym("n", 1)


def tensor(*shape, dtype=f32, name="x"):
    return input(name, TensorType(dtype, shape))


def test_symbolic_dims_broadcast() -> None:
    x, y = tensor(M, 1, N), tensor(4, N, name="y")
    z = ops.add(x, y)
    assert z.shape == (M, 4, N)
    a, b = np.ones((3, 1, 2), np.float32), np.arange(8, dtype=np.float32).reshape(4, 2)
    np.testing.assert_array_equal(evaluate(Graph("g", (x, y), (z,)), (a, b))[0], a + b)


def test_a_dim_that_might_be_one_is_not_stretched() -> None:
    with pytest.raises(Invalid, match="do not broadcast: m and n meet at axis -1"):
        ops.add(tensor(M), tensor(N, name="y"))


def test_shapes_that_do_not_fit_are_named() -> None:
    with pytest.raises(Invalid, match=r"mul: shapes \[2,3\], \[4\] do not broadcast"):
        ops.mul(tensor(2, 3), tensor(4, name="y"))


def test_dtypes_are_not_promoted() -> None:
    with pytest.raises(Invalid, match="differ in dtype"):
        ops.add(tensor(3), tensor(3, dtype=i64, name="y"))


@pytest.mark.parametrize(
    ("build", "dtype"),
    [
        (ops.exp, i64),
        (ops.neg, b1),
        (ops.bitwise_not, f32),
        (lambda x: ops.div(x, x), i64),
        (lambda x: ops.shl(x, x), f32),
        (ops.gelu, i8),
    ],
)
def test_wrong_kinds_are_refused(build, dtype) -> None:
    with pytest.raises(Invalid, match="is not defined on"):
        build(tensor(3, dtype=dtype))


def test_the_next_value_depends_on_the_precision() -> None:
    for dtype in (f16, bf16):
        with pytest.raises(Invalid, match="cast to f32"):
            ops.nextafter(tensor(3, dtype=dtype), tensor(3, dtype=dtype, name="y"))


def test_where_wants_a_boolean() -> None:
    with pytest.raises(Invalid, match="condition"):
        ops.where(tensor(3), tensor(3), tensor(3))


def test_plain_numbers_take_the_dtype_of_their_neighbour() -> None:
    x = tensor(3, dtype=bf16)
    assert ops.mul(2, x).dtype is bf16
    assert ops.where(tensor(3, dtype=b1, name="c"), x, 0.0).dtype is bf16
    with pytest.raises(Invalid, match="plain numbers only"):
        ops.add(1.0, 2.0)


def test_zeros_of_either_sign_and_nan_are_distinguished() -> None:
    plus, minus = ops.full((), 0.0, f32), ops.full((), -0.0, f32)
    assert plus is not minus
    assert ops.full((), math.nan, f32) is ops.full((), math.nan, f32)
    (got,) = evaluate(Graph("g", (), (minus,)), ())
    assert np.signbit(got)


def test_a_cast_to_the_same_dtype_is_nothing() -> None:
    x = tensor(3)
    assert ops.cast(x, f32) is x


def test_number_of_a_symbolic_dim() -> None:
    x = tensor(M, 2)
    n = ops.number(M * 2, f32)
    (got,) = evaluate(Graph("g", (x,), (n,)), (np.zeros((5, 2), np.float32),))
    assert got.shape == () and got == 10


def test_every_operator_has_a_builder_of_its_name() -> None:
    missing = [name for name in OPERATORS if not callable(getattr(ops, name, None))]
    assert not missing
