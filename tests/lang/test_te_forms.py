"""The other classic forms: convolution, softmax, scan, gather, several and no axes."""

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.base.errors import Invalid


def test_conv2d_with_compute_at() -> None:
    x, w = te.placeholder((3, 12, 12), name="X"), te.placeholder((4, 3, 3, 3), name="W")
    pad = te.compute(
        (3, 14, 14),
        lambda c, y, z: te.if_then_else(
            te.all(y >= 1, y < 13, z >= 1, z < 13), x[c, y - 1, z - 1], 0.0
        ),
        name="pad",
    )
    c, p, q = (te.reduce_axis((0, 3), n) for n in "cpq")
    out = te.compute(
        (4, 12, 12),
        lambda o, i, j: te.sum(pad[c, i + p, j + q] * w[o, c, p, q], axis=[c, p, q]),
        name="Y",
    )
    s = te.create_schedule(out.op)
    s[pad].compute_at(s[out], out.op.axis[0])
    s[out].parallel(out.op.axis[0])
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((3, 12, 12), "f4"), rng.standard_normal((4, 3, 3, 3), "f4")
    y = np.full((4, 12, 12), np.nan, "f4")
    tw.build(s, [x, w, out])(a, b, y)
    padded = np.pad(a.astype("f8"), ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    np.testing.assert_allclose(y, np.einsum("cijpq,ocpq->oij", windows, b), rtol=1e-4, atol=1e-4)


def test_softmax_with_rfactor() -> None:
    n, m = te.var("n"), 64
    x = te.placeholder((n, m), name="X")
    k, r = te.reduce_axis((0, m), "k"), te.reduce_axis((0, m), "r")
    top = te.compute((n,), lambda i: te.max(x[i, k], axis=k), name="top")
    e = te.compute((n, m), lambda i, j: te.exp(x[i, j] - top[i]), name="e")
    total = te.compute((n,), lambda i: te.sum(e[i, r], axis=r), name="total")
    y = te.compute((n, m), lambda i, j: e[i, j] / total[i], name="Y")
    s = te.create_schedule(y.op)
    _, inner = s[total].split(r, factor=8)
    s.rfactor(total, inner)
    a = np.random.default_rng(2).standard_normal((5, m), "f4")
    out = np.full((5, m), np.nan, "f4")
    tw.build(s, [x, y])(a, out)
    want = np.exp(a.astype("f8"))
    np.testing.assert_allclose(out, want / want.sum(1, keepdims=True), rtol=1e-4)


def test_scan_gather_and_zero_dims() -> None:
    x = te.placeholder((6, 4), name="X")
    at = te.placeholder((5,), "int64", name="at")
    state = te.placeholder((6, 4), name="state")
    init = te.compute((1, 4), lambda _, i: x[0, i], name="init")
    step = te.compute((6, 4), lambda t, i: state[t - 1, i] + x[t, i], name="step")
    sums = te.scan(init, step, state, name="sums")
    rows = te.compute((5, 4), lambda i, j: x[at[i], j] * 2, name="rows")
    a, b = te.reduce_axis((0, 6)), te.reduce_axis((0, 4))
    total = te.compute((), lambda: te.sum(x[a, b], axis=[a, b]), name="total")
    s = te.create_schedule([sums, rows, total])
    v = np.random.default_rng(3).standard_normal((6, 4), "f4")
    picks = np.array([5, 0, 3, 3, 1])
    y, z, t = (np.full(shape, np.nan, "f4") for shape in ((6, 4), (5, 4), ()))
    tw.build(s, [x, at, sums, rows, total])(v, picks, y, z, t)
    np.testing.assert_allclose(y, v.astype("f8").cumsum(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(z, v[picks] * 2)
    np.testing.assert_allclose(t, v.astype("f8").sum(), rtol=1e-5, atol=1e-6)


def test_several_outputs_on_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    x = te.placeholder((8, 3), name="X")
    p, q = te.compute((8, 3), lambda i, j: (x[i, j] + 1, te.max(x[i, j], 0.0)), name="two")
    s = te.create_schedule([p, q])
    s[p].fuse(*p.op.axis)
    v, a, b = torch.randn(8, 3), torch.empty(8, 3), torch.empty(8, 3)
    tw.build(s, [x, p, q])(v, a, b)
    assert torch.equal(a, v + 1) and torch.equal(b, v.relu())
    with pytest.raises(tw.Invalid, match="overlaps"):
        tw.build(s, [x, p, q])(v, v, b)


def test_bad_expressions_are_errors() -> None:
    x = te.placeholder((4, 4), name="X")
    with pytest.raises(tw.Invalid, match="X has 2 axes and is indexed with 1"):
        x[0]
    with pytest.raises(tw.Invalid, match="takes 1 indices, its shape has 2 axes"):
        te.compute((4, 4), lambda i: x[i, i])
    with pytest.raises(tw.Invalid, match="not a dtype"):
        te.placeholder((1,), "float7")
    with pytest.raises(tw.Invalid, match="no axis of it"):
        k = te.reduce_axis((0, 4))
        te.compute((4,), lambda i: x[i, k])
    with pytest.raises(tw.Invalid, match="is not known while"):
        te.compute((4,), lambda i: x[i, 0] if i < 2 else x[i, 1])


def test_a_read_outside_its_tensor_is_refused() -> None:
    a = te.placeholder((8,), name="a")
    k = te.reduce_axis((0, 3), "k")

    def schedule(n: int, read) -> None:
        te.create_schedule(te.compute((n,), read, name="b").op)

    with pytest.raises(Invalid, match="b reads a at 8 of axis 0, which has 8"):
        schedule(8, lambda i: a[i + 1])
    with pytest.raises(Invalid, match="b reads a at -1 of axis 0"):
        schedule(8, lambda i: a[i - 1])
    with pytest.raises(Invalid, match="b reads a at 9"):
        schedule(8, lambda i: te.sum(a[i + k], axis=k))
    schedule(8, lambda i: te.if_then_else(i < 7, a[i + 1], 0.0))
    schedule(6, lambda i: te.sum(a[i + k], axis=k))
