"""Windows put back: definition and reference agree on drawn settings, and with torch's fold."""

import random

import numpy as np
import pytest

from tests.seeds import drawn
from tilewright import ops
from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Node, input
from tilewright.ir.types import TensorType, f32, f64
from tilewright.ops.window_folds import Fold


def of(x: np.ndarray) -> Node:
    return input("x", TensorType(f64, x.shape))


def settings(seed: int) -> tuple[Fold, np.ndarray]:
    """Any taps, strides, dilations and paddings, along one to three axes; windows may end before
    the image does, or after it."""
    draw = random.Random(seed)
    n = draw.randint(1, 3)
    taps = [draw.randint(1, 4) for _ in range(n)]
    windows = [draw.randint(1, 4) for _ in range(n)]
    stride = [draw.randint(1, 6) for _ in range(n)]
    dilation = [draw.randint(1, 6) for _ in range(n)]
    before = [draw.randint(0, 3) for _ in range(n)]
    space = [draw.randint(1, 12) for _ in range(n)]
    lead = [draw.randint(1, 2) for _ in range(draw.randint(0, 2))]
    x = np.random.default_rng(seed).standard_normal((*lead, *taps, *windows))
    return Fold(*map(tuple, (stride, dilation, before, space))), x


@pytest.mark.parametrize("seed", drawn(range(40), 12))
def test_drawn_windows(seed: int) -> None:
    op, x = settings(seed)
    n = of(x)
    built = ops.fold(n, op.stride, op.dilation, op.before, op.space)
    (found,) = evaluate(Graph("g", (n,), (built,)), [x])
    np.testing.assert_allclose(found, op.reference(x), 1e-12, 1e-12, err_msg=str(op))


@pytest.mark.parametrize("seed", drawn(range(12), 4))
def test_it_is_torchs_fold(seed: int) -> None:
    torch = pytest.importorskip("torch")
    draw = random.Random(seed)
    pair = lambda a, b: [draw.randint(a, b) for _ in "hw"]  # noqa: E731
    kernel, stride, dilation, padding = pair(1, 4), pair(1, 4), pair(1, 3), pair(0, 2)
    space = [d * (k - 1) + 1 + draw.randint(0, 7) for d, k in zip(dilation, kernel)]
    windows = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, d, p in zip(space, kernel, stride, dilation, padding)
    ]
    x = np.random.default_rng(seed).standard_normal((2, 3, *kernel, *windows))
    columns = torch.from_numpy(x).reshape(2, -1, windows[0] * windows[1])
    want = torch.nn.functional.fold(columns, space, kernel, dilation, padding, stride).numpy()
    built = ops.fold(of(x), stride, dilation, padding, space)
    np.testing.assert_allclose(evaluate(Graph("g", built.inputs, (built,)), [x])[0], want, 1e-12)


def test_images_of_any_size() -> None:
    h, size = D.sym("h"), D.sym("size", 1)
    x, like = (input(name, TensorType(f64, d)) for name, d in (("x", (2, 3, h)), ("y", (size,))))
    graph = Graph("g", (x, like), (ops.fold(x, (2,), (1,), (1,), like.shape),))
    for windows, n in ((1, 1), (4, 7), (9, 30)):
        a = np.random.default_rng(n).standard_normal((2, 3, windows))
        want = Fold((2,), (1,), (1,), (n,)).reference(a)
        np.testing.assert_allclose(evaluate(graph, [a, np.zeros(n)])[0], want, 1e-12, 1e-12)


def test_what_it_refuses() -> None:
    x = input("x", TensorType(f32, (2, 3, 4)))
    for stride, space in (((0,), (9,)), ((1, 1), (9,)), ((1, 1), (9, 9))):
        with pytest.raises(Invalid):
            ops.fold(x, stride, (1,), (0,), space)
    with pytest.raises(Invalid, match="unknown number"):
        ops.fold(input("x", TensorType(f32, (D.sym("k"), 4))), (1,), (1,), (0,), (9,))
