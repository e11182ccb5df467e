"""Blocks, threads and shared memory through te, on the executor that reports races."""

import numpy as np
import pytest

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


def test_refusals() -> None:
    a = te.placeholder((5, 6), name="a")
    k = te.reduce_axis((0, 6), "k")
    c = te.compute((5,), lambda i: te.sum(a[i, k], axis=k), name="c")
    s = te.create_schedule(c.op)
    with pytest.raises(Invalid, match="no thread axis"):
        te.thread_axis("warp.x")
    with pytest.raises(Refused, match="accumulates into"):
        s[c].bind(k, te.thread_axis("threadIdx.x"))
    with pytest.raises(Refused, match="no axis of c as it was written"):
        s[c].storage_align(k, 8)
    with pytest.raises(Refused, match="one of them"):
        s[c].split(k, factor=2, nparts=2)
    assert s.trace == ()
