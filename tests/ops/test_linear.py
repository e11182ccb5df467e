"""Matrix multiplication: one contraction, accumulated where it has to be."""

import numpy as np
import pytest

from tilewright import ops
from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.expr import Fn, Load, Reduce
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Node, input
from tilewright.ir.operator import definition
from tilewright.ir.types import DType, TensorType, bf16, f16, f32, i8, round_bf16


def of(name: str, *shape: D.Dim, dtype: DType = f32) -> Node:
    return input(name, TensorType(dtype, shape))


def run(n: Node, *args: np.ndarray) -> np.ndarray:
    return evaluate(Graph("t", n.inputs, (n,)), args)[0]


def body_of(n: Node):
    _, (out,) = definition(n.op, tuple(x.ttype for x in n.inputs))
    return out.body


def test_the_definition_is_one_add_reduction_of_a_product_of_loads() -> None:
    body = body_of(ops.matmul(of("a", 2, 3, 4), of("b", 4, 5)))
    assert isinstance(body, Reduce) and body.combine == "add"
    assert isinstance(body.body, Fn) and body.body.name == "mul"
    assert all(isinstance(x, Load) for x in body.body.args)


@pytest.mark.parametrize("dtype", [f16, bf16])
def test_half_precision_is_carried_in_float32(dtype: DType) -> None:
    """4,096 ones sum to 2,048 in float16 and to 256 in bfloat16 when they are carried there."""
    ones = np.ones((1, 4096), np.float32)
    n = ops.matmul(of("a", 1, 4096, dtype=dtype), of("b", 4096, 1, dtype=dtype))
    assert run(n, ones, ones.T).item() == 4096


def test_integers_wrap_in_their_own_dtype() -> None:
    a = np.full((1, 3), 100, np.int8)
    n = ops.matmul(of("a", 1, 3, dtype=i8), of("b", 3, 1, dtype=i8))
    assert run(n, a, a.T).item() == np.int64(30000).astype(np.int8)


def test_symbolic_batch_compiles_once() -> None:
    m = D.sym("M", 0, 4096)
    n = ops.matmul(of("a", m, 6), of("b", 6, 5))
    assert n.shape == (m, 5)
    rng = np.random.default_rng(0)
    b = rng.standard_normal((6, 5)).astype(np.float32)
    for rows in (0, 1, 7):
        a = rng.standard_normal((rows, 6)).astype(np.float32)
        np.testing.assert_allclose(run(n, a, b), a @ b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 2))],
)
def test_batches_broadcast_as_in_torch(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    x, y = (rng.standard_normal(s).astype(np.float32) for s in (a, b))
    want = torch.matmul(torch.from_numpy(x), torch.from_numpy(y)).numpy()
    got = run(ops.matmul(of("a", *a), of("b", *b)), x, y)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_bfloat16_agrees_with_torch() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    x, y = (round_bf16(rng.standard_normal(s)) for s in ((4, 64), (64, 3)))
    want = torch.from_numpy(x).bfloat16() @ torch.from_numpy(y).bfloat16()
    got = run(ops.matmul(of("a", 4, 64, dtype=bf16), of("b", 64, 3, dtype=bf16)), x, y)
    np.testing.assert_allclose(got, want.float().numpy(), rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize(
    ("a", "b", "part"),
    [
        (of("a", 3, 4), of("b", 5, 3), "4 columns"),
        (of("a", 4), of("b", 4, 3), "at least two axes"),
        (of("a", 2, 3, 4), of("b", 5, 4, 3), "do not broadcast"),
        (of("a", 3, 4), of("b", 4, 3, dtype=f16), "dtype"),
    ],
)
def test_what_does_not_fit_gets_a_sentence(a: Node, b: Node, part: str) -> None:
    with pytest.raises(Invalid, match=part):
        ops.matmul(a, b)
