"""Reducers with a combine of the user's own, as TVM's users write them."""

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.base.errors import Invalid


def argmax_reducer():
    def fcombine(x, y):
        first = te.select(x[1] >= y[1], x[0], y[0])
        return first, te.select(x[1] >= y[1], x[1], y[1])

    def fidentity(t0, t1):
        return te.const(-1, t0), te.min_value(t1)

    return te.comm_reducer(fcombine, fidentity, name="argmax")


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def largest(m: int, n: int):
    argmax = argmax_reducer()
    idx = te.placeholder((m, n), name="idx", dtype="int32")
    val = te.placeholder((m, n), name="val", dtype="float32")
    k = te.reduce_axis((0, n), "k")
    first, value = te.compute((m,), lambda i: argmax((idx[i, k], val[i, k]), axis=k), name="T")
    return idx, val, k, first, value


@pytest.mark.parametrize("scheduled", [False, True])
def test_argmax(scheduled: bool) -> None:
    idx, val, k, first, value = largest(6, 37)
    s = te.create_schedule(first.op)
    assert value.op is first.op and first.op.output(1) is value and first.op.num_outputs == 2
    assert first.op.reduce_axis == (k,) and first.op.input_tensors == (idx, val)
    if scheduled:
        _, inner = s[first].split(s[value].op.reduce_axis[0], factor=8)
        s.rfactor(first, inner)
    f = tw.build(s, [idx, val, first, value])
    a = numbers(6, 37)
    where = np.broadcast_to(np.arange(37, dtype=np.int32), (6, 37)).copy()
    got, top = np.empty(6, np.int32), np.empty(6, np.float32)
    f(where, a, got, top)
    np.testing.assert_array_equal(got, a.argmax(1))
    np.testing.assert_array_equal(top, a.max(1))


def test_one_component() -> None:
    largest_size = te.comm_reducer(
        lambda x, y: te.select(te.abs(x) > te.abs(y), x, y), lambda t: te.const(0, t), "largest"
    )
    a = te.placeholder((5, 9), name="a")
    k = te.reduce_axis((0, 9), "k")
    b = te.compute((5,), lambda i: largest_size(a[i, k], axis=k), name="b")
    f = tw.build(te.create_schedule(b.op), [a, b])
    x, got = numbers(5, 9), np.empty(5, np.float32)
    f(x, got)
    np.testing.assert_array_equal(got, x[np.arange(5), np.abs(x).argmax(1)])


def test_where_leaves_points_out() -> None:
    argmax = argmax_reducer()
    a = te.placeholder((4, 9), name="a")
    k = te.reduce_axis((0, 9), "k")
    first, value = te.compute(
        (4,), lambda i: argmax((k + 0, a[i, k]), axis=k, where=k < 5), name="T"
    )
    f = tw.build(te.create_schedule([first.op, value.op]), [a, first, value])
    x, got, top = numbers(4, 9), np.empty(4, np.int64), np.empty(4, np.float32)
    f(x, got, top)
    np.testing.assert_array_equal(got, x[:, :5].argmax(1))


def test_bad_reducers() -> None:
    a = te.placeholder((5, 9), name="a")
    k = te.reduce_axis((0, 9), "k")
    with pytest.raises(Invalid, match="not a name"):
        te.comm_reducer(lambda x, y: x, lambda t: 0, "a b")
    short = te.comm_reducer(lambda x, y: (x[0],), lambda t, u: (0, 0), "short")
    with pytest.raises(Invalid, match="combines 2 components into"):
        short((a[0, k], a[1, k]), axis=k)
    with pytest.raises(Invalid, match="identity has 1"):
        te.comm_reducer(lambda x, y: x, lambda t, u: (0,), "few")((a[0, k], a[1, k]), axis=k)
    with pytest.raises(Invalid, match="no number"):
        te.comm_reducer(lambda x, y: x, lambda t: a[0, 0], "odd")(a[0, k], axis=k)
