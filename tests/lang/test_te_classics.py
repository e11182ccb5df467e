"""The classic examples as TVM's users write them, natively built, against float64 numpy."""

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.kernel.nest import Loop, loop_names
from tilewright.kernel.step import parse_trace, print_trace


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, "f4")


def agrees(s: te.Schedule, args: list, inputs: list[np.ndarray], want: np.ndarray) -> None:
    """The last argument is the result; it begins as something that would be noticed."""
    out = np.full(want.shape, np.nan, "f4")
    tw.build(s, args)(*inputs, out)
    np.testing.assert_allclose(out, want, rtol=2e-4, atol=2e-5 * max(1.0, np.abs(want).max()))


def outermost(s: te.Schedule, args: list) -> list[str]:
    return [x.name for x in tw.lower(s, args).nest.body if isinstance(x, Loop)]


def test_blocked_matmul() -> None:
    m, n, size, block = 128, 96, 80, 32
    k = te.reduce_axis((0, size), "k")
    a, b = te.placeholder((m, size), name="A"), te.placeholder((size, n), name="B")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    s = te.create_schedule(c.op)
    xo, yo, xi, yi = s[c].tile(c.op.axis[0], c.op.axis[1], block, block)
    (kaxis,) = s[c].op.reduce_axis
    ko, ki = s[c].split(kaxis, factor=4)
    s[c].reorder(xo, yo, ko, xi, ki, yi)
    s[c].vectorize(yi)
    s[c].parallel(xo)
    x, y = numbers(0, m, size), numbers(1, size, n)
    agrees(s, [a, b, c], [x, y], x.astype("f8") @ y)


def test_as_written_in_the_gemm_tutorial() -> None:
    M = K = N = 128
    bn = 32
    k = te.reduce_axis((0, K), "k")
    A = te.placeholder((M, K), name="A")
    B = te.placeholder((K, N), name="B")
    packedB = te.compute(
        (N / bn, K, bn), lambda bigN, k, littleN: B[k, bigN * bn + littleN], name="packedB"
    )
    C = te.compute(
        (M, N),
        lambda m, n: te.sum(A[m, k] * packedB[n // bn, k, te.indexmod(n, bn)], axis=k),
        name="C",
    )
    s = te.create_schedule(C.op)
    CC = s.cache_write(C, "global")
    mo, no, _mi, _ni = s[C].tile(C.op.axis[0], C.op.axis[1], bn, bn)
    s[CC].compute_at(s[C], no)
    mc, nc = s[CC].op.axis
    (kaxis,) = s[CC].op.reduce_axis
    ko, ki = s[CC].split(kaxis, factor=4)
    s[CC].reorder(ko, mc, ki, nc)
    s[CC].vectorize(nc)
    s[CC].unroll(ki)
    s[C].parallel(mo)
    bigN, _, littleN = s[packedB].op.axis
    s[packedB].vectorize(littleN)
    s[packedB].parallel(bigN)
    assert "parallel C.i0.0 in 4" in str(tw.lower(s, [A, B, C], simple_mode=True))
    func = tw.build(s, [A, B, C], target="llvm")
    a, b, c = numbers(0, M, K), numbers(1, K, N), np.zeros((M, N), "f4")
    func(a, b, c)
    np.testing.assert_allclose(c, a.astype("f8") @ b, rtol=1e-4, atol=1e-4)
    assert func.time_evaluator(func.entry_name, None, number=1)(a, b, c).mean > 0


@pytest.mark.parametrize("size", [(64, 64, 64), (70, 50, 45)])
def test_matmul_with_cache_write_and_packed_b(size: tuple[int, int, int]) -> None:
    m, n, depth = size
    block = 16
    k = te.reduce_axis((0, depth), "k")
    a, b = te.placeholder((m, depth), name="A"), te.placeholder((depth, n), name="B")
    panels = -(-n // block)
    packed = te.compute(
        (panels, depth, block),
        lambda p, r, j: te.if_then_else(p * block + j < n, b[r, p * block + j], 0.0),
        name="packedB",
    )
    c = te.compute(
        (m, n),
        lambda i, j: te.sum(a[i, k] * packed[j // block, k, j % block], axis=k),
        name="C",
    )
    s = te.create_schedule(c.op)
    cc = s.cache_write(c, "global")
    xo, yo, _xi, _yi = s[c].tile(c.op.axis[0], c.op.axis[1], 8, block)
    s[cc].compute_at(s[c], yo)
    xc, yc = s[cc].op.axis
    (ki,) = s[cc].op.reduce_axis
    ko, ki = s[cc].split(ki, factor=4)
    s[cc].reorder(ko, xc, ki, yc)
    s[cc].unroll(ki)
    s[cc].vectorize(yc)
    s[c].parallel(xo)
    s[packed].vectorize(packed.op.axis[2])
    s[packed].parallel(packed.op.axis[0])
    x, y = numbers(0, m, depth), numbers(1, depth, n)
    agrees(s, [a, b, c], [x, y], x.astype("f8") @ y)


def padded(x: te.Tensor, name: str = "pad") -> te.Tensor:
    channels, h, w = x.shape
    return te.compute(
        (channels, h + 2, w + 2),
        lambda c, y, z: te.if_then_else(
            te.all(y >= 1, y <= h, z >= 1, z <= w), x[c, y - 1, z - 1], 0.0
        ),
        name=name,
    )


def convolved(x: te.Tensor, w: te.Tensor, name: str = "Y") -> te.Tensor:
    out, channels, _, _ = w.shape
    c = te.reduce_axis((0, channels), "c")
    p, q = te.reduce_axis((0, 3), "p"), te.reduce_axis((0, 3), "q")
    shape = (out, x.shape[1] - 2, x.shape[2] - 2)
    return te.compute(
        shape,
        lambda o, i, j: te.sum(x[c, i + p, j + q] * w[o, c, p, q], axis=[c, p, q]),
        name=name,
    )


def convolution(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    wide = np.pad(x.astype("f8"), ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (1, 2))
    return np.einsum("cijpq,ocpq->oij", windows, w)


def test_conv2d_with_the_padding_placed() -> None:
    x, w = te.placeholder((6, 14, 18), name="X"), te.placeholder((8, 6, 3, 3), name="W")
    pad = padded(x)
    y = convolved(pad, w)
    s = te.create_schedule(y.op)
    o, i, j = y.op.axis
    io, ii = s[y].split(i, factor=4)
    s[y].reorder(io, o, ii, j)
    s[pad].compute_at(s[y], io)
    s[y].parallel(io)
    # Four rows of the result need six of the padded image, all channels and columns.
    assert s.nest.buffer("pad").shape == (6, 6, 20)
    a, b = numbers(0, 6, 14, 18), numbers(1, 8, 6, 3, 3)
    agrees(s, [x, w, y], [a, b], convolution(a, b))


def test_softmax_with_rfactor() -> None:
    rows, n = 7, 100
    x = te.placeholder((rows, n), name="X")
    k, r = te.reduce_axis((0, n), "k"), te.reduce_axis((0, n), "r")
    top = te.compute((rows,), lambda i: te.max(x[i, k], axis=k), name="top")
    e = te.compute((rows, n), lambda i, j: te.exp(x[i, j] - top[i]), name="e")
    total = te.compute((rows,), lambda i: te.sum(e[i, r], axis=r), name="total")
    y = te.compute((rows, n), lambda i, j: e[i, j] / total[i], name="Y")
    s = te.create_schedule(y.op)
    for stage, axis in ((top, k), (total, r)):
        _, inner = s[stage].split(axis, factor=8)
        parts = s.rfactor(stage, inner)
        *_, last = s[parts].op.axis[:1]
        (outer,) = s[parts].op.reduce_axis
        s[parts].reorder(outer, last)
        s[parts].vectorize(last)
    _, inner = s[e].split(e.op.axis[1], factor=8)
    s[e].vectorize(inner)
    a = numbers(3, rows, n) * 4
    want = np.exp(a.astype("f8") - a.max(1, keepdims=True))
    agrees(s, [x, y], [a], want / want.sum(1, keepdims=True))


def test_conv_bias_relu_batch_norm_in_one_nest() -> None:
    x, w = te.placeholder((3, 10, 12), name="X"), te.placeholder((8, 3, 3, 3), name="W")
    bias, scale, mean, var = (te.placeholder((8,), name=n) for n in ("b", "g", "mu", "var"))
    pad = padded(x)
    conv = convolved(pad, w, "conv")
    biased = te.compute(conv.shape, lambda o, i, j: conv[o, i, j] + bias[o], name="biased")
    relu = te.compute(conv.shape, lambda o, i, j: te.max(biased[o, i, j], 0.0), name="relu")
    y = te.compute(
        conv.shape,
        lambda o, i, j: (relu[o, i, j] - mean[o]) * te.rsqrt(var[o] + 1e-5) * scale[o],
        name="Y",
    )
    s = te.create_schedule(y.op)
    for stage in (pad, biased, relu):
        s[stage].compute_inline()
    o, i, j = y.op.axis
    s[conv].compute_at(s[y], i)
    s[conv].reorder(*s[conv].op.reduce_axis, s[conv].op.axis[2])
    s[conv].vectorize(s[conv].op.axis[2])
    s[y].vectorize(j)
    s[y].parallel(o)
    args = [x, w, bias, scale, mean, var, y]
    assert outermost(s, args) == ["Y.i0"]
    assert s.nest.buffer("conv").shape == (1, 1, 12)
    a, b = numbers(0, 3, 10, 12), numbers(1, 8, 3, 3, 3)
    vectors = [numbers(k, 8) for k in range(2, 5)] + [np.abs(numbers(5, 8)) + 0.5]
    c, g, mu, v = (t.astype("f8")[:, None, None] for t in vectors)
    want = (np.maximum(convolution(a, b) + c, 0) - mu) / np.sqrt(v + 1e-5) * g
    agrees(s, args, [a, b, *vectors], want)


def online_softmax():
    """Partial results are (maximum, sum of exponentials, weighted value), as of that maximum."""

    def fcombine(x, y):
        top = te.max(x[0], y[0])
        left, right = te.exp(x[0] - top), te.exp(y[0] - top)
        return top, x[1] * left + y[1] * right, x[2] * left + y[2] * right

    def fidentity(t0, t1, t2):
        return te.const(-3e38, t0), te.const(0, t1), te.const(0, t2)

    return te.comm_reducer(fcombine, fidentity, name="online")


@pytest.mark.parametrize("scheduled", [False, True])
def test_attention_by_a_tuple_reduction(scheduled: bool) -> None:
    queries, keys, width = 9, 40, 16
    q = te.placeholder((queries, width), name="Q")
    key, v = te.placeholder((keys, width), name="K"), te.placeholder((keys, width), name="V")
    r, k = te.reduce_axis((0, width), "r"), te.reduce_axis((0, keys), "k")
    score = te.compute(
        (queries, keys),
        lambda i, j: te.sum(q[i, r] * key[j, r] * width**-0.5, axis=r),
        name="score",
    )
    online = online_softmax()
    _, total, value = te.compute(
        (queries, width),
        lambda i, d: online((score[i, k], te.const(1.0), v[k, d]), axis=k),
        name="state",
    )
    out = te.compute((queries, width), lambda i, d: value[i, d] / total[i, d], name="O")
    s = te.create_schedule(out.op)
    if scheduled:
        s[value].compute_at(s[out], out.op.axis[0])
        s[score].compute_at(s[out], out.op.axis[0])
        (k,) = s[value].op.reduce_axis
        s[value].reorder(k, s[value].op.axis[1])
        s[out].parallel(out.op.axis[0])
        assert outermost(s, [q, key, v, out]) == ["O.i0"]
    a, b, c = numbers(0, queries, width) * 3, numbers(1, keys, width), numbers(2, keys, width)
    logits = a.astype("f8") @ b.T / width**0.5
    weights = np.exp(logits - logits.max(1, keepdims=True))
    want = weights @ c / weights.sum(1, keepdims=True)
    agrees(s, [q, key, v, out], [a, b, c], want)


def test_every_classic_trace_prints_and_parses() -> None:
    x, w = te.placeholder((3, 10, 12), name="X"), te.placeholder((8, 3, 3, 3), name="W")
    y = convolved(padded(x), w)
    s = te.create_schedule(y.op)
    s[y].fuse(*y.op.axis)
    assert parse_trace(print_trace(s.trace)) == s.trace
    assert len([n for n in loop_names(s.nest) if n.startswith("Y.f")]) == 1
