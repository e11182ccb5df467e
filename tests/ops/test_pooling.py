"""Pooling, resizing and their gradients against torch and its autograd."""

from typing import Any

import numpy as np
import pytest

from tilewright import ops
from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.expr import Fn, Load, loads, walk
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Node, input, item
from tilewright.ir.operator import definition
from tilewright.ir.types import DType, TensorType, f64, i64

rng = np.random.default_rng(5)


def of(name: str, *shape: D.Dim, dtype: DType = f64) -> Node:
    return input(name, TensorType(dtype, shape))


def run(outputs: Node | tuple[Node, ...], *args: np.ndarray) -> list[np.ndarray]:
    outs = outputs if isinstance(outputs, tuple) else (outputs,)
    source = outs[0].inputs[0] if outs[0].op.name == "item" else outs[0]
    return evaluate(Graph("t", source.inputs, outs), args)


def both(n: Node) -> tuple[Node, Node]:
    return item(n, 0), item(n, 1)


SIZES = {1: (11,), 2: (9, 8), 3: (5, 6, 4)}
WINDOWS = [
    # spatial axes, kernel, stride, padding, dilation
    (1, (3,), (2,), (1,), (1,)),
    (1, (2,), (3,), (0,), (2,)),
    (1, (4,), (1,), (2,), (1,)),
    (2, (3, 3), (2, 2), (1, 1), (1, 1)),
    (2, (2, 3), (2, 1), (1, 0), (3, 2)),
    (2, (2, 2), (2, 2), (0, 0), (1, 1)),
    (3, (2, 3, 2), (2, 2, 1), (0, 1, 1), (1, 1, 1)),
]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("parallel", [False, True])
def test_max_pool_is_torchs(window, ceil: bool, parallel: bool) -> None:
    torch = pytest.importorskip("torch")
    n, kernel, stride, padding, dilation = window
    x = rng.integers(-4, 5, (2, 3, *SIZES[n])).astype(np.float64)  # many ties
    a = torch.from_numpy(x).requires_grad_()
    pool = getattr(torch.nn.functional, f"max_pool{n}d")
    want, places = pool(a, kernel, stride, padding, dilation, ceil, return_indices=True)
    built = ops.max_pool(of("x", *x.shape), kernel, stride, padding, dilation, ceil)
    values, indices = run(both(built), x)
    np.testing.assert_array_equal(values, want.detach().numpy())
    np.testing.assert_array_equal(indices, places.numpy())

    grad = rng.standard_normal(want.shape)
    want.backward(torch.from_numpy(grad))
    g, i = of("g", *grad.shape), of("i", *grad.shape, dtype=i64)
    settings = (kernel, stride, padding, dilation) if parallel else ()
    back = ops.max_pool_backward(g, i, SIZES[n], *settings)
    np.testing.assert_allclose(
        evaluate(Graph("t", (g, i), (back,)), (grad, indices))[0], a.grad.numpy(), atol=1e-12
    )


def test_nan_wins_as_in_torch_and_minus_infinity_has_a_place() -> None:
    torch = pytest.importorskip("torch")
    nan, inf = float("nan"), float("inf")
    rows = [[1, nan, 3, nan, 5, 6], [-inf, -inf, -inf, -inf, 2, 2], [nan, nan, nan, 0, 0, -1]]
    x = np.array([rows])
    want, places = torch.nn.functional.max_pool1d(torch.from_numpy(x), 3, 1, 1, return_indices=True)
    values, indices = run(both(ops.max_pool(of("x", *x.shape), (3,), 1, 1)), x)
    np.testing.assert_array_equal(values, want.numpy())
    np.testing.assert_array_equal(indices, places.numpy())


AVERAGES = [
    (window, include, divisor)
    for window in WINDOWS
    for include, divisor in ((True, None), (False, None), (True, 7))
    if set(window[4]) == {1} and (window[0] > 1 or divisor is None)  # avg_pool1d takes no divisor
]


@pytest.mark.parametrize(("window", "include", "divisor"), AVERAGES, ids=str)
@pytest.mark.parametrize("ceil", [False, True])
def test_avg_pool_is_torchs(window, ceil: bool, include: bool, divisor: int | None) -> None:
    torch = pytest.importorskip("torch")
    n, kernel, stride, padding, _ = window
    x = rng.standard_normal((2, 3, *SIZES[n]))
    a = torch.from_numpy(x).requires_grad_()
    more = {} if n == 1 else {"divisor_override": divisor}
    pool = getattr(torch.nn.functional, f"avg_pool{n}d")
    want = pool(a, kernel, stride, padding, ceil, include, **more)
    settings = (kernel, stride, padding, ceil, include, divisor)
    (got,) = run(ops.avg_pool(of("x", *x.shape), *settings), x)
    np.testing.assert_allclose(got, want.detach().numpy(), atol=1e-12)
    grad = rng.standard_normal(want.shape)
    want.backward(torch.from_numpy(grad))
    (back,) = run(ops.avg_pool_backward(of("g", *grad.shape), SIZES[n], *settings), grad)
    np.testing.assert_allclose(back, a.grad.numpy(), atol=1e-12)


ADAPTIVE = [
    (1, (1,)),
    (1, (4,)),
    (1, (11,)),
    (1, (15,)),
    (2, (3, 4)),
    (2, (1, 1)),
    (2, (7, 12)),
    (3, (2, 4, 3)),
]


@pytest.mark.parametrize(("n", "size"), ADAPTIVE, ids=str)
def test_adaptive_pools_are_torchs(n: int, size: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    F = torch.nn.functional
    x = rng.standard_normal((2, 3, *SIZES[n]))
    a = torch.from_numpy(x).requires_grad_()
    want = getattr(F, f"adaptive_avg_pool{n}d")(a, size)
    (got,) = run(ops.adaptive_avg_pool(of("x", *x.shape), size), x)
    np.testing.assert_allclose(got, want.detach().numpy(), atol=1e-12)
    grad = rng.standard_normal(want.shape)
    want.backward(torch.from_numpy(grad))
    (back,) = run(ops.adaptive_avg_pool_backward(of("g", *grad.shape), SIZES[n]), grad)
    np.testing.assert_allclose(back, a.grad.numpy(), atol=1e-12)

    a = torch.from_numpy(x).requires_grad_()
    want, places = getattr(F, f"adaptive_max_pool{n}d")(a, size, return_indices=True)
    values, indices = run(both(ops.adaptive_max_pool(of("x", *x.shape), size)), x)
    np.testing.assert_array_equal(values, want.detach().numpy())
    np.testing.assert_array_equal(indices, places.numpy())
    want.backward(torch.from_numpy(grad))
    g, i = of("g", *grad.shape), of("i", *grad.shape, dtype=i64)
    for settings in ((), ((),)):
        back = ops.max_pool_backward(g, i, SIZES[n], *settings)
        got = evaluate(Graph("t", (g, i), (back,)), (grad, indices))[0]
        np.testing.assert_allclose(got, a.grad.numpy(), atol=1e-12)


def test_windows_that_fit_need_no_conditions() -> None:
    n = ops.avg_pool(of("x", 1, 2, 8, 8), (2, 2))
    total = n.op.compose(*n.inputs).inputs[0]  # type: ignore[attr-defined]
    assert total.op.name == "window_sum"
    _, (out,) = definition(total.op, tuple(x.ttype for x in total.inputs))
    assert out.body is not None
    assert not any(isinstance(v, Fn) and v.name == "select" for v in walk(out.body))
    assert len(list(loads(out.body))) == 1


def test_pooling_a_symbolic_length() -> None:
    torch = pytest.importorskip("torch")
    n = D.sym("N", 3, 1000)
    built = ops.max_pool(of("x", 2, n), (3,), 2, 1, 1, True)
    mean = ops.avg_pool(of("x", 2, n), (3,), 2, 1, True, False)
    shared = ops.adaptive_avg_pool(of("x", 2, n), (3,))
    F = torch.nn.functional
    for size in (3, 4, 10, 11):
        x = rng.standard_normal((2, size))
        t = torch.from_numpy(x)
        wanted = (
            (item(built, 0), F.max_pool1d(t, 3, 2, 1, 1, True)),
            (mean, F.avg_pool1d(t, 3, 2, 1, True, False)),
            (shared, F.adaptive_avg_pool1d(t, 3)),
        )
        for node, want in wanted:
            np.testing.assert_allclose(run(node, x)[0], want.numpy(), atol=1e-12)


RESIZE = [
    (n, size, scale)
    for n, size in ((1, (22,)), (1, (7,)), (1, (40,)), (2, (18, 16)), (2, (5, 13)), (3, (10, 3, 9)))
    for scale in (None, 1.7)
]


@pytest.mark.parametrize(("n", "size", "scale"), RESIZE, ids=str)
@pytest.mark.parametrize("mode", ["nearest", "exact", "linear", "aligned"])
def test_resizing_is_torchs(n: int, size: tuple[int, ...], scale: float | None, mode: str) -> None:
    torch = pytest.importorskip("torch")
    x = rng.standard_normal((2, 3, *SIZES[n]))
    a = torch.from_numpy(x).requires_grad_()
    linear = mode in ("linear", "aligned")
    kind = ("linear", "bilinear", "trilinear")[n - 1]
    name = kind if linear else {"nearest": "nearest", "exact": "nearest-exact"}[mode]
    options: dict[str, Any] = {"align_corners": mode == "aligned"} if linear else {}
    if scale is None:
        options["size"] = size
    else:
        options |= {"scale_factor": scale, "recompute_scale_factor": False}
    want = torch.nn.functional.interpolate(a, mode=name, **options)
    out, scales = tuple(want.shape[2:]), None if scale is None else (scale,) * n
    grad = rng.standard_normal(want.shape)
    want.backward(torch.from_numpy(grad))
    xn, gn = of("x", *x.shape), of("g", *grad.shape)
    if linear:
        built = ops.upsample_linear(xn, out, mode == "aligned", scales)
        back = ops.upsample_linear_backward(gn, SIZES[n], mode == "aligned", scales)
    else:
        built = ops.upsample_nearest(xn, out, scales, mode == "exact")
        back = ops.upsample_nearest_backward(gn, SIZES[n], scales, mode == "exact")
    np.testing.assert_allclose(run(built, x)[0], want.detach().numpy(), atol=1e-11)
    np.testing.assert_allclose(run(back, grad)[0], a.grad.numpy(), atol=1e-11)


def test_doubling_is_an_index_function() -> None:
    n = ops.upsample_nearest(of("x", 1, 4, 4), (8, 8), (2.0, 2.0))
    _, (out,) = definition(n.op, tuple(x.ttype for x in n.inputs))
    assert isinstance(out.body, Load) and repr(out.body) == "x0[i0,(i1//2),(i2//2)]"


@pytest.mark.parametrize(
    ("build", "part"),
    [
        (lambda: ops.max_pool(of("x", 2, 5), (3,), 1, 2), "more than half"),
        (lambda: ops.max_pool(of("x", 2, 5), (7,)), "larger than the input"),
        (lambda: ops.max_pool(of("x", 2, 5), (3,), (1, 1)), "not given for 1 axes"),
        (lambda: ops.avg_pool(of("x", 2, 5, dtype=i64), (2,)), "not floating point"),
        (lambda: ops.avg_pool(of("x", 2, 5), (2,), divisor=0), "divisor is zero"),
        (lambda: ops.avg_pool_backward(of("g", 2, 5), (7,), (2,)), "windows, not those of"),
        (lambda: ops.adaptive_avg_pool(of("x", 2, 0), (2,)), "is empty"),
        (lambda: ops.adaptive_max_pool(of("x", 2), (2, 2)), "does not fit"),
        (lambda: ops.upsample_nearest(of("x", 2, 0), (2,)), "cannot grow"),
        (lambda: ops.upsample_linear(of("x", 2, 3, dtype=i64), (2,), False), "not floating point"),
    ],
)
def test_what_does_not_fit_gets_a_sentence(build, part: str) -> None:
    with pytest.raises(Invalid, match=part):
        build()


@pytest.mark.parametrize("size", [1, 3, 8])
def test_interpolation_over_unknown_sizes_is_that_over_known_ones(size: int) -> None:
    x = np.arange(size, dtype=np.float32)[None] ** 2
    sizes = D.sym("N", 1, 9), size
    any_size, known = (run(ops.upsample_linear(of("x", 1, n), (8,), False), x)[0] for n in sizes)
    np.testing.assert_array_equal(any_size, known)
