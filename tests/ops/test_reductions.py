"""Reductions, cumulative operators and sorting beyond samples: symbolic dims, torch, errors."""

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.seeds import every_run
from tilewright import ops
from tilewright.base.errors import Invalid, Unsupported
from tilewright.ir import dim as D
from tilewright.ir import expr
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, input
from tilewright.ir.operator import outputs_of
from tilewright.ir.types import TensorType, bf16, f32, i64
from tilewright.ops import words

M = D.sym("m", 1)


def tensor(*shape, dtype=f32, name="x"):
    return input(name, TensorType(dtype, shape))


def run(build, array, dtype=f32):
    x = tensor(*array.shape, dtype=dtype)
    out = build(x)
    return evaluate(Graph("g", (x,), outputs_of(out)), (array,))


def test_symbolic_counts() -> None:
    x = tensor(M, 3)
    outs = (ops.mean(x, (0,)), ops.var(x, (0, 1)), ops.sum(x, None), ops.logsumexp(x, (0,)))
    a = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    mean, var, total, lse = evaluate(Graph("g", (x,), outs), (a,))
    np.testing.assert_allclose(mean, a.mean(0), rtol=1e-5)
    np.testing.assert_allclose(var, a.var(ddof=1), rtol=1e-5)
    np.testing.assert_allclose(total, a.sum(), rtol=1e-5)
    np.testing.assert_allclose(lse, np.log(np.exp(a).sum(0)), rtol=1e-5)


def test_variance_of_too_few() -> None:
    (got,) = run(lambda x: ops.var(x, (0,), 1), np.ones((1, 2), np.float32))
    assert np.isnan(got).all()


def test_sums_of_halves_are_carried_in_float32() -> None:
    (got,) = run(lambda x: ops.sum(x), np.ones(1000, np.float32), bf16)
    assert got == 1000  # bfloat16 would stop at 256


def test_negative_and_repeated_axes() -> None:
    x = tensor(2, 3, 4)
    assert ops.sum(x, -1).shape == (2, 3)
    assert ops.amax(x, (-1, 0), keepdims=True).shape == (1, 3, 1)
    with pytest.raises(Invalid, match="name one axis twice"):
        ops.sum(x, (0, -3))
    with pytest.raises(Invalid, match="does not exist"):
        ops.sum(x, 3)


def test_0d_and_flattened_arguments() -> None:
    assert run(lambda x: ops.argmax(x), np.array([[1, 5], [7, 2]], np.float32))[0] == 2
    assert run(lambda x: ops.argmin(x, 0), np.array(3, np.float32))[0] == 0
    assert run(lambda x: ops.argmax(x, None, True), np.ones((2, 2), np.float32))[0].shape == (1, 1)
    with pytest.raises(Invalid, match="is empty"):
        ops.argmax(tensor(0, 2), 0)


@every_run(0, 3)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("descending", [False, True])
def test_sort_against_torch(seed: int, descending: bool) -> None:
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 30, (3, int(rng.integers(1, 90)))).astype(np.float32)
    a[rng.random(a.shape) < 0.05] = np.nan
    values, places = run(lambda x: ops.sort(x, 1, descending), a)
    want = torch.sort(torch.from_numpy(a), dim=1, descending=descending, stable=True)
    np.testing.assert_array_equal(values, want.values.numpy(), err_msg=f"seed {seed}")
    np.testing.assert_array_equal(places, want.indices.numpy(), err_msg=f"seed {seed}")


def test_sort_along_any_axis_of_any_size() -> None:
    x = tensor(M, 20, 2)
    a = np.random.default_rng(1).standard_normal((3, 20, 2)).astype(np.float32)
    for axis in (0, 1):
        values, places = evaluate(Graph("g", (x,), outputs_of(ops.sort(x, axis))), (a,))
        np.testing.assert_array_equal(values, np.sort(a, axis))
        np.testing.assert_array_equal(places, np.argsort(a, axis, kind="stable"))
    with pytest.raises(Unsupported, match="its size is not known"):
        ops.median(x, 0)


@every_run(1, 2)
@pytest.mark.parametrize("sizes, k", [((words.LONG + 5,), 0), ((5, 300), 0), ((1000,), 20)])
def test_native_sorts_and_first_ones(sizes: tuple[int, ...], k: int) -> None:
    """Few different numbers, so that equal ones have to stay in their order."""

    def either(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = torch.topk(x, k) if k else torch.sort(x, descending=True, stable=True)
        return found.values, found.indices

    fast = tw.compile(either, strict=True, dynamic=len(sizes) > 1)
    for n in sizes:
        x = torch.randint(-5, 5, (2, n), dtype=torch.int8)
        want = torch.sort(x, descending=True, stable=True)
        for a, b in zip(fast(x), want, strict=True):
            assert torch.equal(a, b[:, : k or n])


def test_an_update_that_reads_itself_keeps_to_its_row() -> None:
    base = expr.placeholder((3, 4))
    with pytest.raises(Invalid, match="another row"):
        expr.revise(base, (3, 4), lambda r, j: (r, j), lambda own, r, j: own[r - 1, j])


@pytest.mark.parametrize("name", ["median", "nanmedian"])
def test_medians_against_torch(name: str) -> None:
    a = np.array([[3, 1, 2, 4], [1, np.nan, 0, np.nan], [np.nan] * 4], np.float32)
    values, places = run(lambda x: getattr(ops, name)(x, 1), a)
    want = getattr(torch, name)(torch.from_numpy(a), 1)
    np.testing.assert_array_equal(values, want.values.numpy())
    # Which of many NaNs torch's nanmedian names, it does not say.
    named = slice(0, 3 if name == "median" else 2)
    np.testing.assert_array_equal(places[named], want.indices.numpy()[named])


def test_cumulative_extremes_against_torch() -> None:
    a = np.array([[1, 3, 3, np.nan, 5, np.nan], [2, 2, 1, 7, 7, 0]], np.float32)
    for name in ("cummax", "cummin"):
        values, places = run(lambda x, f=name: getattr(ops, f)(x, 1), a)
        want = getattr(torch, name)(torch.from_numpy(a), 1)
        np.testing.assert_array_equal(values, want.values.numpy())
        np.testing.assert_array_equal(places, want.indices.numpy())


def test_topk_bounds() -> None:
    with pytest.raises(Invalid, match="k=4"):
        ops.topk(tensor(3), 4)
    assert ops.topk(tensor(2, 5), 2, 0).type.items[1] == TensorType(i64, (2, 5))
