"""Sparse matrices in graphs: products with them, gradients, and what is said where none fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tilewright as tw
from tests.capture.running import check
from tilewright.bench.oracle import disagreements

ROWS, COLUMNS, WIDTH = 6, 9, 5


def _tensor(dtype: torch.dtype = torch.float32) -> Tensor:
    """With an empty row, in the layout CSR."""
    drawn = torch.Generator().manual_seed(0)
    dense = torch.randn(ROWS, COLUMNS, generator=drawn)
    kept = torch.rand(ROWS, COLUMNS, generator=drawn) < 0.4
    kept[2] = False
    return (dense * kept).to(dtype).to_sparse_csr()


def _dense(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# How products are written, and what they are multiplied with. Torch computes the same of its own
# tensors.
WRITTEN: dict[str, tuple[Callable[[Any, Tensor], Any], tuple[int, ...]]] = {
    "@": (lambda a, x: a @ x, (COLUMNS, WIDTH)),
    "vector": (lambda a, x: a @ x, (COLUMNS,)),
    "turned": (lambda a, x: x @ a, (WIDTH, ROWS)),
    "t": (lambda a, x: a.t() @ x, (ROWS, WIDTH)),
    "mm": (lambda a, x: torch.mm(a, x), (COLUMNS, WIDTH)),
    "matmul": (lambda a, x: torch.matmul(a, x), (COLUMNS, WIDTH)),
    "addmm": (
        lambda a, x: torch.addmm(x[:ROWS], a, x, beta=0.5, alpha=2.0),
        (COLUMNS, WIDTH),
    ),
}
OF_SPARSE: dict[str, tuple[Callable[[Any, Tensor], Any], tuple[int, ...]]] = {
    "sparse.mm": (lambda a, x: torch.sparse.mm(a, x), (COLUMNS, WIDTH)),
    "mean": (lambda a, x: torch.sparse.mm(a, x, "mean"), (COLUMNS, WIDTH)),
    "amax": (lambda a, x: torch.sparse.mm(a, x, "amax"), (COLUMNS, WIDTH)),
    "amin": (lambda a, x: torch.sparse.mm(a, x, "amin"), (COLUMNS, WIDTH)),
    "sampled_addmm": (
        lambda a, x: torch.sparse.sampled_addmm(a, x[:ROWS], x.t(), beta=0.5).to_dense(),
        (COLUMNS, WIDTH),
    ),
}


@pytest.mark.parametrize("written", WRITTEN)
def test_products_are_torchs(written: str) -> None:
    """Captured, and evaluated by definition; and without a compiler."""
    call, shape = WRITTEN[written]
    theirs, x = _tensor(), _dense(*shape)
    ours = tw.SparseMatrix.of(theirs)
    torch.testing.assert_close(call(ours, x), call(theirs, x).to_dense())
    check(lambda x: call(ours, x), x)


@pytest.mark.slow
@pytest.mark.parametrize("written", [*WRITTEN, *OF_SPARSE])
def test_products_are_native(written: str) -> None:
    call, shape = (WRITTEN | OF_SPARSE)[written]
    theirs, x = _tensor(), _dense(*shape)
    ours = tw.SparseMatrix.of(theirs)
    fast = tw.compile(call, strict=True)
    torch.testing.assert_close(fast(ours, x), call(theirs, x).to_dense())


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        pytest.param(torch.float64, marks=pytest.mark.slow),
        pytest.param(torch.bfloat16, marks=pytest.mark.slow),
        pytest.param(torch.float16, marks=pytest.mark.slow),
    ],
)
def test_gradients(dtype: torch.dtype) -> None:
    """Of values and of the dense operand, of a matrix made inside of the parts of a CSR tensor."""
    theirs = _tensor(dtype)
    crow, col = theirs.crow_indices().clone(), theirs.col_indices().clone()
    values, x = theirs.values().clone(), _dense(COLUMNS, 17, dtype=dtype)

    def product(values: Tensor, x: Tensor) -> Tensor:
        return (tw.SparseMatrix.csr(crow, col, values, (ROWS, COLUMNS)) @ x).sin()

    def dense(values: Tensor, x: Tensor) -> Tensor:
        row = torch.repeat_interleave(torch.arange(ROWS), crow.diff())
        zeros = torch.zeros(ROWS, COLUMNS, dtype=values.dtype)
        return (zeros.index_put((row, col), values) @ x).sin()

    def with_gradients(call: Any, *given: Tensor) -> list[Tensor]:
        given = tuple(g.detach().requires_grad_() for g in given)
        out = call(*given)
        return [out.detach(), *torch.autograd.grad(out, given, torch.ones_like(out))]

    with tw.record() as log:
        ours = with_gradients(tw.compile(product, strict=True), values, x)
    assert not log.of("fallback")
    exact = with_gradients(dense, values.double(), x.double())
    assert not disagreements(ours, with_gradients(dense, values, x), exact)


def test_places_outside_are_an_error() -> None:
    at = torch.tensor([0, COLUMNS])
    a = tw.SparseMatrix(torch.tensor([0, 1]), at, torch.ones(2), (ROWS, COLUMNS))
    with pytest.raises(IndexError):
        tw.compile(lambda a, x: a @ x, strict=True)(a, _dense(COLUMNS, WIDTH))


def test_a_sparse_tensor_is_refused_with_what_to_do() -> None:
    with pytest.raises(tw.Unsupported, match=r"sparse Tensor(.|\n)*tw\.SparseMatrix\.of"):
        tw.compile(lambda a, x: a @ x, strict=True)(_tensor(), _dense(COLUMNS, WIDTH))


def test_what_does_not_fit() -> None:
    a = tw.SparseMatrix.of(_tensor())
    with pytest.raises(tw.Invalid, match=r"\(6, 9\) does not fit a tensor of \(6, 5\)"):
        a @ _dense(ROWS, WIDTH)
    with pytest.raises(tw.Invalid, match=r"float32 does not fit a tensor of torch\.float64"):
        a @ _dense(COLUMNS, WIDTH).double()
    with pytest.raises(tw.Invalid, match="one or two axes"):
        a @ a  # type: ignore[operator]
    with pytest.raises(tw.Invalid, match=r"\(2, 3, 4\) is no matrix"):
        tw.SparseMatrix.of(torch.ones(2, 3, 4))
    with pytest.raises(tw.Invalid, match="one more element than there are rows"):
        tw.SparseMatrix.csr(torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1), (3, 3))
    with pytest.raises(tw.Invalid, match="no sparse matrix"):
        tw.SparseMatrix(torch.tensor([0]), torch.tensor([0]), torch.ones(2), (3, 3))
