"""Handles beyond the basic ones: each gives its steps, and the result stays the same."""

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.kernel.nest import loop_names


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(4).standard_normal(shape, "f4")


def chain(shape: tuple[int, ...] = (5, 6, 7)):
    a = te.placeholder(shape, name="A")
    b = te.compute(shape, lambda *i: a[i] * 2, name="B")
    c = te.compute(shape, lambda *i: b[i] + 1, name="C")
    return a, b, c


def check(s: te.Schedule, a: te.Tensor, c: te.Tensor) -> None:
    x = numbers(*(d for d in a.shape if isinstance(d, int)))
    out = np.full_like(x, np.nan)
    tw.build(s, [a, c])(x, out)
    np.testing.assert_array_equal(out, x * 2 + 1)


def test_fuse_of_several_axes() -> None:
    a, _, c = chain()
    s = te.create_schedule(c.op)
    whole = s[c].fuse(*c.op.axis)
    assert whole.name == "i0.i1.i2.fused" and whole.extent == 210
    assert s[c].fuse(whole) is whole and len(s.trace) == 2
    outer, inner = s[c].split(whole, factor=8)
    s[c].vectorize(inner)
    s[c].parallel(outer)
    check(s, a, c)


def test_reorder_of_one_axis_is_nothing() -> None:
    _, _, c = chain()
    s = te.create_schedule(c.op)
    s[c].reorder(c.op.axis[1])
    assert s.trace == ()


def test_leaves_are_the_loops_of_now() -> None:
    _, _, c = chain()
    s = te.create_schedule(c.op)
    i, j, k = c.op.axis
    ko, ki = s[c].split(k, factor=2)
    s[c].reorder(ko, i)
    assert s[c].leaf_iter_vars == (ko, j, i, ki)
    assert repr(s[c]) == "stage C: i2.outer, i1, i0, i2.inner"


def test_one_copy_for_several_readers() -> None:
    a = te.placeholder((8, 9), name="A")
    b = te.compute((8, 9), lambda i, j: a[i, j] * 2, name="B")
    c = te.compute((8, 9), lambda i, j: a[i, j] + b[i, j], name="C")
    s = te.create_schedule(c.op)
    copy = s.cache_read(a, "global", [b, c])
    assert [b.name for b in s.nest.buffers] == ["A", "C", "B", "A_global"]
    text = str(s)
    assert "* 2" in text and text.count(" A[") == 1  # only the copy reads A itself
    s[copy].vectorize(copy.op.axis[1])
    x, out = numbers(8, 9), np.full((8, 9), np.nan, "f4")
    tw.build(s, [a, c])(x, out)
    np.testing.assert_allclose(out, x * 3.0, rtol=1e-6)
    again = s.cache_read(a, "global", copy)
    assert again.name == "A_global_1"
    tw.build(s, [a, c])(x, out)
    np.testing.assert_allclose(out, x * 3.0, rtol=1e-6)


def test_compute_root_takes_a_place_back() -> None:
    a, b, c = chain()
    s = te.create_schedule(c.op)
    naive = s.nest
    s[b].compute_root()
    assert s.nest == naive
    s[b].compute_at(s[c], c.op.axis[1])
    assert s.nest.buffer("B").shape == (1, 1, 7)
    s[b].compute_root()
    assert s.nest == naive and s.trace == ()
    s[b].compute_inline()
    s[c].split(c.op.axis[0], factor=2)
    s[b].compute_root()
    assert "B.i0" in loop_names(s.nest) and "C.i0.1" in loop_names(s.nest)
    check(s, a, c)


def test_axes_that_vanished_are_one_iteration() -> None:
    a, b, c = chain()
    s = te.create_schedule(c.op)
    s[b].compute_at(s[c], c.op.axis[1])
    i, j, k = b.op.axis
    s[b].reorder(k, j, i)
    s[b].unroll(i)
    assert len(s.trace) == 1
    s[b].vectorize(k)
    check(s, a, c)


def test_several_outputs_are_one_stage() -> None:
    x = te.placeholder((8, 3), name="X")
    p, q = te.compute((8, 3), lambda i, j: (x[i, j] + 1, te.max(x[i, j], 0.0)), name="two")
    assert p.op is q.op and p.op.outputs == (p, q) and len(p.op.body) == 2
    s = te.create_schedule(p.op)
    assert s[q].name == s[p].name and len(s.nest.body) == 1
    s[q].fuse(*q.op.axis)
    v, a, b = numbers(8, 3), np.empty((8, 3), "f4"), np.empty((8, 3), "f4")
    tw.build(s, [x, p, q])(v, a, b)
    np.testing.assert_array_equal(a, v + 1)
    np.testing.assert_array_equal(b, np.maximum(v, 0))
    with pytest.raises(tw.Invalid, match="there is no number 2"):
        p.op.output(2)


def test_several_results_that_others_read() -> None:
    x = te.placeholder((8, 3), name="X")
    p, q = te.compute((8, 3), lambda i, j: (x[i, j] + 1, x[i, j] * 2), name="two")
    y = te.compute((8, 3), lambda i, j: p[i, j] + q[i, j], name="Y")
    s = te.create_schedule(y.op)
    assert s[q].name != s[p].name  # each may be placed on its own
    s[p].compute_at(s[y], y.op.axis[0])
    s[q].compute_inline()
    v, out = numbers(8, 3), np.empty((8, 3), "f4")
    tw.build(s, [x, y])(v, out)
    np.testing.assert_allclose(out, v * 3.0 + 1, rtol=1e-5, atol=1e-6)


def test_stages_that_share_loops() -> None:
    x = te.placeholder((8, 3), name="X")
    p = te.compute((8, 3), lambda i, j: x[i, j] + 1, name="P")
    q = te.compute((8, 3), lambda i, j: te.max(x[i, j], 0.0), name="Q")
    s = te.create_schedule([p.op, q.op])
    s[q].compute_with(s[p], p.op.axis[1])
    assert len(s.nest.body) == 1
    v, a, b = numbers(8, 3), np.empty((8, 3), "f4"), np.empty((8, 3), "f4")
    tw.build(s, [x, p, q])(v, a, b)
    np.testing.assert_array_equal(a, v + 1)
    np.testing.assert_array_equal(b, np.maximum(v, 0))


def test_what_an_operation_says() -> None:
    a, b, c = chain((4, 5, 6))
    assert a.op.body == [] and len(c.op.body) == 1 and "B" in repr(c.op.body[0])
    assert c.op.input_tensors == (b,) and c.op.output(0) is c and c.op.num_outputs == 1


@pytest.mark.parametrize(("reducer", "judge"), [(te.argmax, np.argmax), (te.argmin, np.argmin)])
def test_the_first_place_of_an_extreme(reducer, judge) -> None:
    a = te.placeholder((6, 37), name="A")
    k = te.reduce_axis((0, 37), "k")
    place, value = te.compute((6,), lambda i: reducer(a[i, k], axis=k), name="T")
    s = te.create_schedule(place.op)
    _, inner = s[place].split(k, factor=8)
    s.rfactor(place, inner)  # places meet out of order
    x = np.random.default_rng(0).integers(0, 4, (6, 37)).astype("f4")
    x[2, [7, 30]], x[3], x[4] = np.nan, -np.inf, np.inf
    at, top = np.empty(6, "i8"), np.empty(6, "f4")
    tw.build(s, [a, place, value])(x, at, top)
    np.testing.assert_array_equal(at, judge(x, 1))
    np.testing.assert_array_equal(top, x[np.arange(6), judge(x, 1)])
