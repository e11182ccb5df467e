"""Convolutions and their gradients against torch and its autograd."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from tilewright import ops
from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.expr import Fn, Load, Reduce, extent
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Node, input
from tilewright.ir.operator import definition
from tilewright.ir.types import DType, TensorType, f16, f32, f64
from tilewright.ops.arranged import Arranged
from tilewright.ops.convolution import ConvValid

rng = np.random.default_rng(3)


def of(name: str, *shape: D.Dim, dtype: DType = f64) -> Node:
    return input(name, TensorType(dtype, shape))


def run(n: Node, *args: np.ndarray) -> np.ndarray:
    return evaluate(Graph("t", n.inputs, (n,)), args)[0]


CASES: list[dict[str, Any]] = [
    {"n": 1, "stride": s, "padding": p, "dilation": d, "groups": 1}
    for s, p, d in product((1, 2, 3), (0, 2), (1, 2))
]
CASES += [
    {"n": 2, "stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": 1},
    {"n": 2, "stride": (2, 3), "padding": (0, 2), "dilation": (1, 1), "groups": 2},
    {"n": 2, "stride": 1, "padding": 1, "dilation": 1, "groups": 4},
    {"n": 3, "stride": (1, 2, 1), "padding": (1, 0, 1), "dilation": 1, "groups": 2},
]


def sizes(n: int) -> tuple[int, ...]:
    return {1: (11,), 2: (8, 7), 3: (4, 5, 3)}[n]


def kernels(n: int) -> tuple[int, ...]:
    return {1: (3,), 2: (3, 2), 3: (2, 2, 2)}[n]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_values_and_gradients_are_torchs(case: dict[str, Any], transposed: bool) -> None:
    torch = pytest.importorskip("torch")
    n, groups = case["n"], case["groups"]
    settings = {k: case[k] for k in ("stride", "padding", "dilation", "groups")}
    x = rng.standard_normal((2, 4, *sizes(n)))
    w = rng.standard_normal(((4, 8 // groups) if transposed else (8, 4 // groups)) + kernels(n))
    stride = case["stride"] if isinstance(case["stride"], tuple) else (case["stride"],) * n
    extra = tuple(s - 1 for s in stride) if transposed else (0,) * n
    a, b = (torch.from_numpy(v).requires_grad_() for v in (x, w))
    name = f"conv{'_transpose' if transposed else ''}{n}d"
    more = {"output_padding": extra} if transposed else {}
    y = getattr(torch.nn.functional, name)(a, b, **settings, **more)

    built = ops.conv(
        of("x", *x.shape),
        of("w", *w.shape),
        **settings,
        transposed=transposed,
        output_padding=extra,
    )
    assert built.shape == tuple(y.shape)
    np.testing.assert_allclose(run(built, x, w), y.detach().numpy(), atol=1e-12)

    grad = rng.standard_normal(tuple(y.shape))
    y.backward(torch.from_numpy(grad))
    g = of("g", *grad.shape)
    back = ops.conv_backward_input(g, of("w", *w.shape), x.shape, **settings, transposed=transposed)
    np.testing.assert_allclose(run(back, grad, w), a.grad.numpy(), atol=1e-12)
    back = ops.conv_backward_weight(
        g, of("x", *x.shape), w.shape, **settings, transposed=transposed
    )
    np.testing.assert_allclose(run(back, grad, x), b.grad.numpy(), atol=1e-12)


def test_the_contraction_has_no_condition_in_its_body() -> None:
    n = ops.conv(of("x", 2, 4, 9, 9), of("w", 6, 2, 3, 3), stride=2, padding=1, groups=2)
    inner = n.op.compose(*n.inputs)  # type: ignore[attr-defined]
    assert inner.op.name == "conv_valid" and inner.inputs[0].op.name == "pad"
    _, (out,) = definition(inner.op, tuple(x.ttype for x in inner.inputs))
    assert isinstance(out.body, Reduce) and isinstance(out.body.body, Fn)
    assert out.body.body.name == "mul"
    assert all(isinstance(x, Load) for x in out.body.body.args)


def test_half_precision_is_carried_in_float32() -> None:
    x, w = np.ones((1, 4096, 1), np.float16), np.ones((1, 4096, 1), np.float16)
    n = ops.conv(of("x", 1, 4096, 1, dtype=f16), of("w", 1, 4096, 1, dtype=f16))
    assert run(n, x, w).item() == 4096


def test_symbolic_batch_and_space() -> None:
    torch = pytest.importorskip("torch")
    batch, length = D.sym("B", 1, 64), D.sym("L", 4, 1000)
    n = ops.conv(of("x", batch, 2, length), of("w", 3, 2, 3), stride=2, padding=1)
    back = ops.conv_backward_input(of("g", *n.shape), of("w", 3, 2, 3), (batch, 2, length), 2, 1)
    assert back.shape == (batch, 2, length)
    w = rng.standard_normal((3, 2, 3))
    for b, size in ((1, 4), (3, 9)):
        x = rng.standard_normal((b, 2, size))
        a = torch.from_numpy(x).requires_grad_()
        want = torch.nn.functional.conv1d(a, torch.from_numpy(w), stride=2, padding=1)
        np.testing.assert_allclose(run(n, x, w), want.detach().numpy(), atol=1e-12)
        want.sum().backward()
        ones = np.ones(tuple(want.shape))
        graph = Graph("t", back.inputs, (back,))
        got = evaluate(graph, (ones, w), {"L": size, "B": b})[0]
        np.testing.assert_allclose(got, a.grad.numpy(), atol=1e-12)


@pytest.mark.parametrize(
    ("build", "part"),
    [
        (lambda: ops.conv(of("x", 1, 2, 3), of("w", 4, 3, 3)), "channels"),
        (lambda: ops.conv(of("x", 1, 2, 3), of("w", 4, 2, 5)), "larger than"),
        (lambda: ops.conv(of("x", 1, 2, 3), of("w", 4, 2, 3, 3)), "3 to 5 axes"),
        (lambda: ops.conv(of("x", 1, 4, 3), of("w", 5, 2, 3), groups=2), "groups"),
        (lambda: ops.conv(of("x", 1, 2, 3), of("w", 4, 2, 3), stride=0), "positive"),
        (lambda: ops.conv(of("x", 1, 2, 3), of("w", 4, 2, 3), stride=(1, 1)), "2 entries for 1"),
        (lambda: ops.conv(of("x", 1, 2, 3, dtype=f32), of("w", 4, 2, 3)), "dtype"),
        (lambda: ops.conv(of("x", 1, 2, 3), of("w", 3, 2, 3), transposed=True), "channels"),
        (
            lambda: ops.conv_backward_input(of("g", 1, 4, 3), of("w", 4, 2, 3), (1, 3, 5)),
            "no input",
        ),
        (
            lambda: ops.conv_backward_weight(of("g", 1, 4, 3), of("x", 1, 2, 3), (4, 3, 3)),
            "channels",
        ),
    ],
)
def test_what_does_not_fit_gets_a_sentence(build, part: str) -> None:
    with pytest.raises(Invalid, match=part):
        build()


@pytest.mark.parametrize("size", [40, D.sym("s", 0)])
def test_sums_go_through_an_image_as_it_lies(size: D.Dim) -> None:
    """Rows, then columns, then channels, whether their number is known or not."""
    last = (0, 2, 3, 1)
    op = Arranged(ConvValid((2, 2), (1, 1), 1), (last, (0, 1, 2, 3)), last)
    image, weight = TensorType(f32, (1, size, size, 3)), TensorType(f32, (8, 3, 7, 5))
    _, (out,) = definition(op, (image, weight))
    assert isinstance(out.body, Reduce)
    assert [extent(a) for a in out.body.axes] == [7, 5, 3]
