"""Blocks, threads and shared memory through te, on the executor that reports races."""

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.base.errors import Invalid, Refused
from tilewright.kernel.simt import run


def doubled_and_shifted(n: int):
    a = te.placeholder((n,), name="a")
    b = te.compute((n,), lambda i: a[i] * 2, name="b")
    c = te.compute((n,), lambda i: b[n - 1 - i] + 1, name="c")
    return a, b, c


def test_threads_of_a_block_share_memory() -> None:
    _, b, c = doubled_and_shifted(24)
    s = te.create_schedule(c.op)
    thread = te.thread_axis("threadIdx.x")
    for t in (b, c):
        s[t].bind(s[t].op.axis[0], thread)
    s[b].set_scope("shared")
    s.synchronise()
    assert "barrier" in str(s) and "thread.x b.i0" in str(s)
    x = np.arange(24, dtype=np.float32)
    np.testing.assert_array_equal(run(s.nest, {"a": x})["c"], 2 * x[::-1] + 1)


def test_blocks() -> None:
    a = te.placeholder((100,), name="a")
    c = te.compute((100,), lambda i: a[i] + 1, name="c")
    s = te.create_schedule(c.op)
    outer, inner = s[c].split(c.op.axis[0], nparts=7)
    s[c].bind(outer, te.thread_axis("blockIdx.x"))
    s[c].bind(inner, te.thread_axis("threadIdx.x"))
    x = np.arange(100, dtype=np.float32)
    np.testing.assert_array_equal(run(s.nest, {"a": x})["c"], x + 1)


def test_rows_are_aligned() -> None:
    a = te.placeholder((5, 6), name="a")
    b = te.compute((5, 6), lambda i, j: a[i, j] * 2, name="b")
    c = te.compute((6, 5), lambda i, j: b[j, i], name="c")
    s = te.create_schedule(c.op)
    s[b].storage_align(b.op.axis[0], 8, 1)
    assert s.nest.buffer("b").shape == (5, 9)


@pytest.mark.parametrize("columns", [6, 32, 40])
def test_threads_sum_up(columns: int) -> None:
    a = te.placeholder((5, columns), name="a")
    k = te.reduce_axis((0, columns), "k")
    c = te.compute((5,), lambda i: te.sum(a[i, k], axis=k), name="c")
    s = te.create_schedule(c.op)
    s[c].bind(c.op.axis[0], te.thread_axis("blockIdx.x"))
    s[c].bind(k, te.thread_axis("threadIdx.x"))
    s.synchronise()
    x = np.random.default_rng(columns).standard_normal((5, columns)).astype("f")
    np.testing.assert_allclose(run(s.nest, {"a": x})["c"], x.sum(1), rtol=1e-5, atol=1e-5)


def test_threads_sum_up_partial_results() -> None:
    """Each thread has a partial result of its own, by rfactor, before they are combined."""
    a = te.placeholder((5, 100), name="a")
    k = te.reduce_axis((0, 100), "k")
    c = te.compute((5,), lambda i: te.sum(a[i, k], axis=k), name="c")
    y = te.compute((5,), lambda i: c[i] * 2, name="y")
    s = te.create_schedule(y.op)
    s[c].compute_at(s[y], y.op.axis[0])
    _, inner = s[c].split(k, factor=16)
    part = s.rfactor(c, inner)
    s[y].bind(y.op.axis[0], te.thread_axis("blockIdx.x"))
    for stage, axis in ((part, part.op.axis[0]), (c, inner)):
        s[stage].bind(axis, te.thread_axis("threadIdx.x"))
    s.synchronise()
    x = np.random.default_rng(0).standard_normal((5, 100)).astype("f")
    np.testing.assert_allclose(run(s.nest, {"a": x})["y"], 2 * x.sum(1), rtol=1e-5, atol=1e-5)


def test_sums_of_threads_are_refused_where_they_are_not_one_value_each() -> None:
    a = te.placeholder((5, 64), name="a")
    k = te.reduce_axis((0, 64), "k")
    c = te.compute((5,), lambda i: te.sum(a[i, k], axis=k), name="c")
    s = te.create_schedule(c.op)
    outer, _ = s[c].split(k, factor=16)
    with pytest.raises(Refused, match="RFactor it first"):
        s[c].bind(outer, te.thread_axis("threadIdx.x"))
    strict = te.create_schedule(c.op, precision="strict")
    with pytest.raises(Refused, match="accumulates into"):
        strict[c].bind(k, te.thread_axis("threadIdx.x"))


def test_a_program_without_a_schedule_gets_the_default_one_of_a_gpu() -> None:
    n = te.var("n")
    a = te.placeholder((n,), name="a")
    c = te.compute((n,), lambda i: a[i] + 1, name="c")
    lowered = tw.lower(te.create_schedule(c.op), [a, c], target="cuda:90")
    assert all(kind in str(lowered) for kind in ("block.x", "thread.x", "lane"))
    x = np.arange(1500, dtype=np.float32)
    np.testing.assert_array_equal(run(lowered.nest, {"a": x}, {"n": 1500})["c"], x + 1)


def test_barriers_are_added_for_a_gpu() -> None:
    a, b, c = doubled_and_shifted(24)
    s = te.create_schedule(c.op)
    for t in (b, c):
        s[t].bind(s[t].op.axis[0], te.thread_axis("threadIdx.x"))
    s[b].set_scope("shared")
    assert "barrier" not in str(tw.lower(s, [a, c]))
    assert "barrier" in str(tw.lower(s, [a, c], target="cuda:90"))


def test_refusals() -> None:
    a = te.placeholder((5, 6), name="a")
    k = te.reduce_axis((0, 6), "k")
    c = te.compute((5,), lambda i: te.sum(a[i, k], axis=k), name="c")
    s = te.create_schedule(c.op)
    with pytest.raises(Invalid, match="no thread axis"):
        te.thread_axis("warp.x")
    with pytest.raises(Refused, match="accumulates into"):
        s[c].bind(k, te.thread_axis("blockIdx.x"))
    with pytest.raises(Refused, match="no axis of c as it was written"):
        s[c].storage_align(k, 8)
    with pytest.raises(Refused, match="one of them"):
        s[c].split(k, factor=2, nparts=2)
    assert s.trace == ()
