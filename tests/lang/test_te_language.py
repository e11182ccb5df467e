"""Every form of the expression language, natively built, against numpy in float64."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import te


def built(args: list, *outputs: te.Tensor) -> Callable[..., list[np.ndarray]]:
    """A function from inputs to results, from the naive schedule."""
    f = tw.build(te.create_schedule([t.op for t in outputs]), [*args, *outputs])

    def run(*arrays: np.ndarray) -> list[np.ndarray]:
        sizes: dict[str, int] = {}
        for t, a in zip(args, arrays, strict=True):
            sizes |= {str(d): n for d, n in zip(t.shape, a.shape, strict=True)}
        shapes = [[eval(str(d), {}, sizes) for d in t.shape] for t in outputs]
        names = [f"{t.dtype.numpy}" for t in outputs]
        outs = [np.full(s, 99, n) for s, n in zip(shapes, names, strict=True)]
        f(*arrays, *outs)
        return outs

    return run


FUNCTIONS: dict[str, tuple[Callable, float, float]] = {
    "exp": (np.exp, -5, 5),
    "exp2": (np.exp2, -5, 5),
    "log": (np.log, 0.1, 9),
    "log2": (np.log2, 0.1, 9),
    "log10": (np.log10, 0.1, 9),
    "log1p": (np.log1p, -0.9, 9),
    "sqrt": (np.sqrt, 0, 9),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 0.1, 9),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), -5, 5),
    "erf": (np.vectorize(math.erf), -3, 3),
    "sin": (np.sin, -5, 5),
    "cos": (np.cos, -5, 5),
    "tan": (np.tan, -1.3, 1.3),
    "sinh": (np.sinh, -4, 4),
    "cosh": (np.cosh, -4, 4),
    "tanh": (np.tanh, -4, 4),
    "asin": (np.arcsin, -0.9, 0.9),
    "acos": (np.arccos, -0.9, 0.9),
    "atan": (np.arctan, -9, 9),
    "asinh": (np.arcsinh, -9, 9),
    "acosh": (np.arccosh, 1.1, 9),
    "atanh": (np.arctanh, -0.9, 0.9),
    "floor": (np.floor, -9, 9),
    "ceil": (np.ceil, -9, 9),
    "trunc": (np.trunc, -9, 9),
    "round": (np.round, -9, 9),
    "abs": (np.abs, -9, 9),
    "isnan": (np.isnan, -9, 9),
}
PAIRS: dict[str, Callable] = {
    "atan2": np.arctan2,
    "copysign": np.copysign,
    "fmod": np.fmod,
    "floormod": np.mod,
    "floordiv": np.floor_divide,
    "power": lambda x, y: np.power(np.abs(x), y),
    "max": np.maximum,
    "min": np.minimum,
}


def test_functions_of_one() -> None:
    for name, (judge, low, high) in FUNCTIONS.items():
        x = te.placeholder((33,), name="X")
        f = getattr(te, name)
        y = te.compute((33,), lambda i, f=f, x=x: f(x[i]), name="Y")
        a = np.linspace(low, high, 33).astype("f4")
        (got,) = built([x], y)(a)
        want = judge(a.astype("f8"))
        np.testing.assert_allclose(got, want, rtol=3e-6, atol=1e-6, err_msg=name)


def test_functions_of_two() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-5, 5, 40).astype("f4"), rng.uniform(0.5, 3, 40).astype("f4")
    for name, judge in PAIRS.items():
        x, z = te.placeholder((40,), name="X"), te.placeholder((40,), name="Z")
        f = getattr(te, name)
        first = te.abs if name == "power" else lambda v: v
        y = te.compute((40,), lambda i, f=f, x=x, z=z, g=first: f(g(x[i]), z[i]), name="Y")
        (got,) = built([x, z], y)(a, b)
        want = judge(a.astype("f8"), b.astype("f8"))
        np.testing.assert_allclose(got, want, rtol=3e-6, atol=3e-6, err_msg=name)


def test_integer_arithmetic() -> None:
    x, z = te.placeholder((64,), "int32", name="X"), te.placeholder((64,), "int32", name="Z")
    rng = np.random.default_rng(1)
    a, b = rng.integers(-99, 99, 64, "i4"), rng.integers(1, 9, 64, "i4")
    rules: list[tuple[Callable[[Any, Any], Any], Callable]] = [
        (lambda p, q: p + q, np.add),
        (lambda p, q: p - 2 * q, lambda p, q: p - 2 * q),
        (lambda p, q: -p // q, lambda p, q: -p // q),
        (lambda p, q: p % q, np.mod),
        (lambda p, q: (p & q) | (p ^ q), lambda p, q: (p & q) | (p ^ q)),
        (lambda p, q: (p << q) >> 1, lambda p, q: (p << q) >> 1),
        (lambda p, q: ~p + q, lambda p, q: ~p + q),
    ]
    for k, (rule, judge) in enumerate(rules):
        y = te.compute((64,), lambda i, r=rule: r(x[i], z[i]), name="Y")
        (got,) = built([x, z], y)(a, b)
        np.testing.assert_array_equal(got, judge(a, b), err_msg=str(k))


@pytest.mark.parametrize("to", ["float64", "float16", "int64", "int32", "int8", "uint8", "bool"])
@pytest.mark.parametrize("of", ["float32", "int16", "uint8"])
def test_casts(of: str, to: str) -> None:
    x = te.placeholder((5, 4), of, name="X")
    y = te.compute((5, 4), lambda i, j: te.cast(x[i, j], to), name="Y")
    z = te.compute((5, 4), lambda i, j: x[i, j].astype(to), name="Z")
    a = np.arange(20).reshape(5, 4).astype(of)
    for got in built([x], y, z)(a):
        assert got.dtype == np.dtype(to)
        np.testing.assert_array_equal(got, a.astype(to))


def test_wider_dtypes_win() -> None:
    x, z = te.placeholder((4,), "int8", name="X"), te.placeholder((4,), name="Z")
    y = te.compute((4,), lambda i: x[i] * z[i] + i, name="Y")
    assert str(y.dtype) == "f32"
    a, b = np.array([1, -2, 3, 4], "i1"), np.array([0.5, 1, 2, 3], "f4")
    np.testing.assert_array_equal(built([x, z], y)(a, b)[0], a * b + np.arange(4))


def test_shapes_of_others() -> None:
    n = te.var("n", dtype="int32")
    x = te.placeholder((n, 6), name="X")
    k = te.reduce_axis((0, x.shape[1]), "k")
    y = te.compute(x.shape, lambda i, j: x[i, x.shape[1] - 1 - j], name="Y", tag="reversed")
    z = te.compute((x.shape[0],), lambda i: te.sum(x[i, k], axis=k), name="Z")
    a = np.random.default_rng(0).standard_normal((3, 6), "f4")
    got = built([x], y, z)(a)
    np.testing.assert_array_equal(got[0], a[:, ::-1])
    np.testing.assert_allclose(got[1], a.astype("f8").sum(1), rtol=1e-5, atol=1e-6)
    with pytest.raises(tw.Invalid, match="not an integer"):
        te.placeholder((2.5,), name="half")


def test_reducers() -> None:
    x = te.placeholder((5, 7), name="X")
    k = [te.reduce_axis((0, 7), "k") for _ in range(6)]
    outs = [
        te.compute((5,), lambda i: te.sum(x[i, k[0]], axis=k[0]), name="s"),
        te.compute((5,), lambda i: te.prod(x[i, k[1]], axis=k[1]), name="p"),
        te.compute((5,), lambda i: te.max(x[i, k[2]], axis=k[2]), name="u"),
        te.compute((5,), lambda i: te.min(x[i, k[3]], axis=k[3]), name="v"),
        te.compute((5,), lambda i: te.any(x[i, k[4]] > 1.5, axis=k[4]), name="a"),
        te.compute((5,), lambda i: te.all(x[i, k[5]] > -1, axis=k[5]), name="b"),
    ]
    a = np.random.default_rng(2).standard_normal((5, 7), "f4")
    got = built([x], *outs)(a)
    w = a.astype("f8")
    want = [w.sum(1), w.prod(1), w.max(1), w.min(1), (w > 1.5).any(1), (w > -1).all(1)]
    for g, t in zip(got, want, strict=True):
        np.testing.assert_allclose(g, t, rtol=1e-5, atol=1e-6)


def test_parts_of_an_axis() -> None:
    x = te.placeholder((6, 9), name="X")
    r, c = te.reduce_axis((1, 5), "r"), te.reduce_axis((2, 9), "c")
    q = te.reduce_axis((0, 9), "q")
    total = te.compute((), lambda: te.sum(x[r, c], axis=[r, c]), name="total")
    even = te.compute((6,), lambda i: te.sum(x[i, q], axis=q, where=q % 2 == 0), name="even")
    a = np.random.default_rng(3).standard_normal((6, 9), "f4")
    got = built([x], total, even)(a)
    np.testing.assert_allclose(got[0], a[1:5, 2:].astype("f8").sum(), rtol=1e-5)
    np.testing.assert_allclose(got[1], a[:, ::2].astype("f8").sum(1), rtol=1e-5, atol=1e-6)
    assert r.dom == (1, 5)


def test_conditions() -> None:
    x = te.placeholder((6, 6), name="X")
    y = te.compute(
        (6, 6),
        lambda i, j: te.if_then_else(
            te.all(i > 0, te.any(j < 2, x[i, j] > 0.5)), x[i - 1, j], te.select(i == j, 1.0, -1.0)
        ),
        name="Y",
    )
    a = np.random.default_rng(4).standard_normal((6, 6), "f4")
    i, j = np.indices((6, 6))
    taken = (i > 0) & ((j < 2) | (a > 0.5))
    want = np.where(taken, np.roll(a, 1, 0), np.where(i == j, 1, -1))
    np.testing.assert_array_equal(built([x], y)(a)[0], want)


def test_gathers() -> None:
    table = te.placeholder((10, 3), name="T")
    at, then = te.placeholder((4, 5), "int32", name="at"), te.placeholder((5,), "int64", name="th")
    rows = te.compute((4, 5, 3), lambda i, j, c: table[at[i, then[j]], c], name="R")
    shifted = te.compute((4,), lambda i: table[(at[i, 0] + 1) % 10, 2], name="S")
    rng = np.random.default_rng(5)
    t = rng.standard_normal((10, 3), "f4")
    p, q = rng.integers(0, 10, (4, 5), "i4"), rng.permutation(5)
    got = built([table, at, then], rows, shifted)(t, p, q)
    np.testing.assert_array_equal(got[0], t[p[:, q]])
    np.testing.assert_array_equal(got[1], t[(p[:, 0] + 1) % 10, 2])


@pytest.mark.parametrize(("n", "m"), [(5, 4), (1, 1), (16, 3)])
def test_symbolic_extents(n: int, m: int) -> None:
    rows, columns = te.var("rows"), te.size_var("columns")
    x = te.placeholder((rows, columns), name="X")
    k = te.reduce_axis((0, columns), "k")
    flat = te.compute((rows * columns,), lambda p: x[p // columns, p % columns], name="flat")
    twice = te.compute((2 * rows + 1,), lambda i: x[te.min(i // 2, rows - 1), 0], name="twice")
    mean = te.compute((rows,), lambda i: te.sum(x[i, k], axis=k) / columns, name="mean")
    a = np.random.default_rng(6).standard_normal((n, m), "f4")
    got = built([x], flat, twice, mean)(a)
    np.testing.assert_array_equal(got[0], a.reshape(-1))
    np.testing.assert_array_equal(got[1], a[np.minimum(np.arange(2 * n + 1) // 2, n - 1), 0])
    np.testing.assert_allclose(got[2], a.astype("f8").mean(1), rtol=1e-5, atol=1e-6)


def test_a_scan_over_two_rows_back() -> None:
    rows = te.var("rows")
    x = te.placeholder((rows, 4), name="X")
    state = te.placeholder((rows, 4), name="state")
    init = te.compute((2, 4), lambda t, i: x[t, i], name="init")
    step = te.compute(
        (rows, 4), lambda t, i: state[t - 1, i] + 0.5 * state[t - 2, i] + x[t, i], name="step"
    )
    out = te.scan(init, step, state, name="out")
    a = np.random.default_rng(7).standard_normal((9, 4), "f4")
    want = a.astype("f8")
    for t in range(2, 9):
        want[t] += want[t - 1] + 0.5 * want[t - 2]
    np.testing.assert_allclose(built([x], out)(a)[0], want, rtol=1e-5, atol=1e-5)


def test_a_scan_of_several_stages() -> None:
    m, n = te.var("m"), te.var("n")
    x = te.placeholder((m, n), name="X")
    state = te.placeholder((m, n), name="state")
    init = te.compute((1, n), lambda _, i: x[0, i], name="init")
    first = te.compute((m, n), lambda t, i: state[t - 1, i] * 0.5, name="first")
    second = te.compute((m, n), lambda t, i: first[t, i] + x[t, i], name="second")
    out = te.scan([init], [second], [state], inputs=[x], name="out")
    assert out.op.scan_axis is out.op.axis[0] and out.op.spatial_axis_ == out.op.axis[1:]
    with pytest.raises(tw.Invalid, match="first is no scan"):
        _ = first.op.scan_axis
    a = np.random.default_rng(9).standard_normal((7, 5), "f4")
    want = a.astype("f8")
    for t in range(1, 7):
        want[t] += 0.5 * want[t - 1]
    np.testing.assert_allclose(built([x], out)(a)[0], want, rtol=1e-5, atol=1e-5)


def test_bad_scans() -> None:
    x, state = te.placeholder((6, 4), name="X"), te.placeholder((6, 4), name="state")
    init = te.compute((1, 4), lambda _, i: x[0, i], name="init")
    k = te.reduce_axis((0, 4), "k")
    total = te.compute((6, 4), lambda t, i: te.sum(state[t - 1, k], axis=k), name="total")
    good = te.compute((6, 4), lambda t, i: state[t - 1, i] + x[t, i], name="good")
    late = te.compute((6, 4), lambda t, i: state[t, i] + x[t, i], name="late")
    with pytest.raises(tw.Invalid, match="total reduces"):
        te.scan(init, total, state)
    with pytest.raises(tw.Invalid, match="not at an earlier row"):
        te.scan(init, late, state)
    with pytest.raises(tw.Invalid, match="shapes do not fit"):
        te.scan(te.compute((1, 3), lambda _, i: x[0, i], name="short"), good, state)
    with pytest.raises(tw.Invalid, match="not one tensor"):
        te.scan([init, init], [good, good], [state, state])
    with pytest.raises(tw.Invalid, match="state is a placeholder"):
        te.scan(init, good, good)


def test_many_axes_and_none() -> None:
    x = te.placeholder((2, 3, 2, 3, 2), name="X")
    y = te.compute((2, 3, 2, 3, 2), lambda *i: x[tuple(reversed(i))[0:1] + i[1:]], name="Y")
    one = te.placeholder((), name="one")
    z = te.compute((), lambda: one[()] + 1, name="Z")
    empty = te.placeholder((0, 4), name="E")
    w = te.compute((0, 4), lambda i, j: empty[i, j] * 2, name="W")
    a = np.random.default_rng(8).standard_normal((2, 3, 2, 3, 2), "f4")
    got = built([x, one, empty], y, z, w)(a, np.array(2, "f4"), np.empty((0, 4), "f4"))
    i = np.indices(a.shape)
    np.testing.assert_array_equal(got[0], a[i[4], i[1], i[2], i[3], i[4]])
    assert got[1] == 3 and got[2].shape == (0, 4)


def test_built_for_a_named_target_and_timed() -> None:
    x = te.placeholder((100,), name="X")
    y = te.compute((100,), lambda i: x[i] + 1, name="Y")
    f = tw.build(te.create_schedule(y.op), [x, y], target="host")
    a, out = np.zeros(100, "f4"), np.empty(100, "f4")
    f(a, out)
    assert (out == 1).all()
    times = f.time_evaluator(f.lowered.nest.name, None, number=2, repeat=3)(a, out)
    assert len(times.results) == 3 and 0 < times.min <= times.median <= max(times.results)
    assert times.min <= times.mean
    with pytest.raises(tw.Invalid, match="measure nothing"):
        f.time_evaluator(number=0)
