"""Tensor expressions as TVM writes them, against float64 numpy."""

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.kernel.nest import start
from tilewright.kernel.step import apply, parse_trace, print_trace


def _matmul(m: object, n: object, k: object):
    r = te.reduce_axis((0, k), "k")
    a, b = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")
    return a, b, c, r


def _check(s: te.Schedule, args: list, m: int = 64, n: int = 96, k: int = 40) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k), "f4"), rng.standard_normal((k, n), "f4")
    out = np.full((m, n), np.nan, "f4")
    tw.build(s, args)(a, b, out)
    np.testing.assert_allclose(out, a.astype("f8") @ b.astype("f8"), rtol=1e-4, atol=1e-4)


def test_blocked_matmul() -> None:
    a, b, c, _k = _matmul(64, 96, 40)
    s = te.create_schedule(c.op)
    mo, no, mi, ni = s[c].tile(c.op.axis[0], c.op.axis[1], 32, 32)
    (kaxis,) = s[c].op.reduce_axis
    ko, ki = s[c].split(kaxis, factor=4)
    s[c].reorder(mo, no, ko, mi, ki, ni)
    s[c].vectorize(ni)
    s[c].parallel(mo)
    assert "parallel C.i0.0 in 2" in str(tw.lower(s, [a, b, c], simple_mode=True))
    _check(s, [a, b, c])


def test_cache_write() -> None:
    a, b, c, _ = _matmul(64, 96, 40)
    s = te.create_schedule(c.op)
    cc = s.cache_write(c, "global")
    mo, no, _mi, _ni = s[c].tile(c.op.axis[0], c.op.axis[1], 32, 32)
    s[cc].compute_at(s[c], no)
    mc, nc = s[cc].op.axis
    (k,) = s[cc].op.reduce_axis
    ko, ki = s[cc].split(k, factor=4)
    s[cc].reorder(ko, mc, ki, nc)
    s[cc].vectorize(nc)
    s[cc].unroll(ki)
    s[c].parallel(mo)
    _check(s, [a, b, c])


def test_rfactor() -> None:
    a, b, c, k = _matmul(64, 96, 40)
    s = te.create_schedule(c.op)
    _, ki = s[c].split(k, factor=4)
    s.rfactor(c, ki)
    _check(s, [a, b, c])


def test_symbolic_sizes() -> None:
    a, b, c, _ = _matmul(te.var("m"), te.var("n"), te.var("k"))
    s = te.create_schedule(c.op)
    s[c].split(c.op.axis[0], factor=8)
    _check(s, [a, b, c], 13, 7, 5)


def test_refusals_leave_the_schedule_alone() -> None:
    a, b, c, k = _matmul(64, 96, 40)
    s = te.create_schedule(c.op)
    before = str(s)
    with pytest.raises(tw.Refused, match="not a positive factor"):
        s[c].split(c.op.axis[0], factor=0)
    with pytest.raises(tw.Refused, match="not an axis of C"):
        s[c].vectorize(te.reduce_axis((0, 3)))
    with pytest.raises(tw.Refused):
        s[c].parallel(k)
    assert str(s) == before and s.trace == ()
    f = tw.build(s, [a, b, c])
    x, y, z = np.zeros((64, 40), "f4"), np.zeros((40, 96), "f4"), np.zeros((64, 96), "f4")
    with pytest.raises(tw.Invalid, match="float64"):
        f(x.astype("f8"), y, z)
    with pytest.raises(tw.Invalid, match="shape"):
        f(x, y, z[:32])
    with pytest.raises(tw.Invalid, match="not contiguous"):
        f(x, np.zeros((96, 40), "f4").T, z)


def test_packed_b_and_cache_read() -> None:
    k = te.reduce_axis((0, 40), "k")
    a, b = te.placeholder((64, 40), name="A"), te.placeholder((40, 96), name="B")
    packed = te.compute((3, 40, 32), lambda p, r, j: b[r, p * 32 + j], name="packedB")
    c = te.compute(
        (64, 96), lambda i, j: te.sum(a[i, k] * packed[j // 32, k, j % 32], axis=k), name="C"
    )
    s = te.create_schedule(c.op)
    s.cache_read(a, "global", [c])
    jo, ji = s[c].split(c.op.axis[1], factor=32)
    s[c].reorder(jo, c.op.axis[0], k, ji)
    s[c].vectorize(ji)
    s[c].parallel(jo)
    s[packed].parallel(packed.op.axis[0])
    assert "A_global" in str(s) and len(s.trace) == 6
    _check(s, [a, b, c])


def test_a_trace_prints_and_parses() -> None:
    _, _, c, _ = _matmul(64, 96, 40)
    s = te.create_schedule(c.op)
    s.cache_write(c)
    s[c].tile(c.op.axis[0], c.op.axis[1], 8, 8)
    again = parse_trace(print_trace(s.trace))
    assert again == s.trace and apply(start(s.group), again) == s.nest


def test_what_a_split_axis_became_is_reported() -> None:
    a, b, c, k = _matmul(64, 96, 40)
    s = te.create_schedule(c.op)
    s[c].split(k, nparts=5)
    with pytest.raises(tw.Refused, match=r"k of C is k.outer, k.inner now"):
        s[c].unroll(k)
    with pytest.raises(tw.Refused):
        s[c].compute_at(s[c], c.op.axis[0])
    with pytest.raises(tw.Invalid, match="B, C missing"):
        tw.lower(s, [a])
    other = te.placeholder((3,), name="other")
    with pytest.raises(tw.Invalid, match="other is not part of this schedule"):
        s[other].compute_inline()
    _check(s, [a, b, c])
