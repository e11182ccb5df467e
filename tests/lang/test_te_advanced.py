"""Handles of the later steps: consumers that follow, instructions, versions and pipelines."""

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.kernel import interpret, simt
from tilewright.kernel.step import parse_trace, print_trace
from tilewright.targets import default


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, "f4")


def matmul(m: int, n: int, depth: int):
    k = te.reduce_axis((0, depth), "k")
    a, b = te.placeholder((m, depth), name="A"), te.placeholder((depth, n), name="B")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return a, b, c, k


def test_a_consumer_follows_its_producer() -> None:
    a, b, c, _ = matmul(20, 24, 9)
    d = te.compute((20, 24), lambda i, j: te.max(c[i, j], 0.0), name="D")
    s = te.create_schedule(d.op)
    io, _ = s[c].split(c.op.axis[0], factor=8)
    s[d].reverse_compute_at(s[c], io)
    assert s.nest.buffer("C").shape == (8, 24)
    x, y, out = numbers(0, 20, 9), numbers(1, 9, 24), np.full((20, 24), np.nan, "f4")
    want = np.maximum(x.astype("f8") @ y, 0)
    tw.build(s, [a, b, d])(x, y, out)
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)
    s[d].compute_root()
    assert s.nest.buffer("C").shape == (20, 24)
    out[:] = np.nan
    tw.build(s, [a, b, d])(x, y, out)
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)


def fma() -> str:
    return "arm64.fma" if default().arch == "aarch64" else "x86.avx2.fma"


def test_an_instruction() -> None:
    a, b, c, k = matmul(16, 32, 10)
    s = te.create_schedule(c.op)
    xo, yo, xi, yi = s[c].tile(c.op.axis[0], c.op.axis[1], 4, 16)
    s[c].reorder(xo, yo, xi, yi, k)
    s[c].tensorize(xi, fma())
    args = [a, b, c]
    low = tw.lower(s, args)
    assert f"by {fma()}" in str(low) and parse_trace(print_trace(low.trace)) == low.trace
    x, y, out = numbers(0, 16, 10), numbers(1, 10, 32), np.full((16, 32), np.nan, "f4")
    want = x.astype("f8") @ y
    tw.build(s, args)(x, y, out)
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)
    seen = interpret.run(low.nest, {"A": x, "B": y})["C"]
    np.testing.assert_allclose(seen, want, rtol=1e-4, atol=1e-5)


def test_what_is_not_the_instruction_is_refused() -> None:
    k = te.reduce_axis((0, 10), "k")
    a, b = te.placeholder((16, 10), name="A"), te.placeholder((32, 10), name="B")
    c = te.compute((16, 32), lambda i, j: te.sum(a[i, k] * b[j, k], axis=k), name="C")
    s = te.create_schedule(c.op)
    xo, yo, xi, yi = s[c].tile(c.op.axis[0], c.op.axis[1], 4, 16)
    s[c].reorder(xo, yo, xi, yi, k)
    before = s.trace, s.nest
    with pytest.raises(tw.Refused, match=f"this is not {fma()}"):
        s[c].tensorize(xi, fma())  # B lies the other way round
    with pytest.raises(tw.Refused, match="there is no instruction abacus"):
        s[c].tensorize(xi, "abacus")
    assert (s.trace, s.nest) == before


def test_versions_of_a_buffer_in_a_loop() -> None:
    a, b, c, k = matmul(8, 8, 12)
    s = te.create_schedule(c.op)
    piece = s.cache_read(b, "global", [c])
    ko, ki = s[c].split(k, factor=4)
    s[c].reorder(ko, *c.op.axis, ki)
    s[piece].compute_at(s[c], ko)
    s[piece].double_buffer()
    assert s.nest.buffer("B_global").shape == (2, 4, 8)
    x, y, out = numbers(0, 8, 12), numbers(1, 12, 8), np.full((8, 8), np.nan, "f4")
    tw.build(s, [a, b, c])(x, y, out)
    np.testing.assert_allclose(out, x.astype("f8") @ y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_pipeline(ahead: int) -> None:
    a, b, c, k = matmul(8, 8, 12)
    s = te.create_schedule(c.op)
    piece = s.cache_read(b, "global", [c])
    ko, ki = s[c].split(k, factor=4)
    s[c].reorder(ko, *c.op.axis, ki)
    s[piece].compute_at(s[c], ko)
    s[piece].pipeline(s[c], ko, ahead)
    assert s.nest.buffer("B_global").shape == (ahead + 1, 4, 8)
    x, y, out = numbers(0, 8, 12), numbers(1, 12, 8), np.full((8, 8), np.nan, "f4")
    tw.build(s, [a, b, c])(x, y, out)
    np.testing.assert_allclose(out, x.astype("f8") @ y, rtol=1e-4, atol=1e-5)
    with pytest.raises(tw.Refused, match="ahead"):
        s[piece].pipeline(s[c], ko, 0)


def test_asynchronous_copies_in_threads() -> None:
    """A row of threads adds up the columns of a matrix, piece after piece through shared memory."""
    n, depth = 16, 12
    a = te.placeholder((depth, n), name="A")
    k = te.reduce_axis((0, depth), "k")
    c = te.compute((n,), lambda i: te.sum(a[k, i], axis=k), name="C")
    s = te.create_schedule(c.op)
    piece = s.cache_read(a, "shared", [c])
    ko, ki = s[c].split(k, factor=4)
    thread = te.thread_axis("threadIdx.x")
    s[c].reorder(ko, c.op.axis[0], ki)
    s[piece].compute_at(s[c], ko)
    s[c].bind(c.op.axis[0], thread)
    s[piece].bind(piece.op.axis[1], thread)
    s[piece].pipeline(s[c], ko, asynchronous=True)
    s.synchronise()
    assert "async" in str(s) and "wait" in str(s)
    x = np.random.default_rng(0).integers(-3, 4, (depth, n)).astype("f4")
    np.testing.assert_array_equal(simt.run(s.nest, {"A": x})["C"], x.sum(0))


def test_strict_precision() -> None:
    _, _, c, k = matmul(8, 8, 12)
    s = te.create_schedule(c.op, precision="strict")
    s[c].split(c.op.axis[0], factor=4)
    _, ki = s[c].split(k, factor=4)
    before = s.trace
    with pytest.raises(tw.Refused, match="strict"):
        s.rfactor(c, ki)
    with pytest.raises(tw.Invalid, match="there is no precision 'sloppy'"):
        te.create_schedule(c.op, precision="sloppy")
    assert s.trace == before and "strict" in str(s).splitlines()[0]


def test_an_input_in_a_layout_of_its_own() -> None:
    a, b, c, k = matmul(12, 40, 9)
    s = te.create_schedule(c.op)
    s[b].transform_layout(lambda k, j: (j // 16, k, j % 16))
    jo, ji = s[c].split(c.op.axis[1], factor=16)
    s[c].reorder(jo, c.op.axis[0], k, ji)
    s[c].vectorize(ji)
    f = tw.build(s, [a, b, c])
    x, y, out = numbers(0, 12, 9), numbers(1, 9, 40), np.full((12, 40), np.nan, "f4")
    with pytest.raises(tw.Invalid, match="B has 2 axes, 3 are needed") as why:
        f(x, y, out)
    assert why.value.hint is not None and "f.pack(B, array)" in why.value.hint
    packed = f.pack(b, y)
    assert packed.shape == (3, 9, 16) and f.pack(a, x) is x
    f(x, packed, out)
    np.testing.assert_allclose(out, x.astype("f8") @ y, rtol=1e-4, atol=1e-5)
    before = s.trace
    with pytest.raises(tw.Refused, match="cannot be read back"):
        s[a].transform_layout(lambda i, k: (i // 4, k))
    with pytest.raises(tw.Invalid, match="takes 1 indices"):
        s[a].transform_layout(lambda i: (i,))
    assert s.trace == before


def test_hints_change_no_result() -> None:
    a, b, c, k = matmul(20, 24, 9)
    s = te.create_schedule(c.op)
    i, j = c.op.axis
    s[c].reorder(i, k, j)
    s[c].pragma(j, "unroll", 4)
    s[c].prefetch(a, i, 2)
    text = str(s)
    assert "pragma unroll 4" in text and "prefetch A[" in text
    x, y, out = numbers(0, 20, 9), numbers(1, 9, 24), np.full((20, 24), np.nan, "f4")
    tw.build(s, [a, b, c])(x, y, out)
    np.testing.assert_allclose(out, x.astype("f8") @ y, rtol=1e-4, atol=1e-5)
    before = s.trace
    with pytest.raises(tw.Refused, match="auto is no pragma"):
        s[c].pragma(j, "auto")
    with pytest.raises(tw.Refused, match="0 is not a positive distance"):
        s[c].prefetch(a, i, 0)
    assert s.trace == before
