"""Sparse matrices that graphs can carry: where elements stand, and what they are.

Dynamo cuts graphs at tensors of a sparse layout, since it has no guards for them. A `SparseMatrix`
is an object of three plain tensors instead, and products with it are one operator.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch._dynamo.variables import builtin as dynamo_builtin

from tilewright.base.errors import Invalid
from tilewright.capture.torch.recurrent import LIBRARY
from tilewright.capture.torch.substitutes import substitute

_NAME = "tilewright::sparse_mm"
_SCHEMA = "sparse_mm(Tensor row, Tensor col, Tensor values, Tensor dense, SymInt rows) -> Tensor"


# ---- the operator


def _product(row: Tensor, col: Tensor, values: Tensor, dense: Tensor, rows: int) -> Tensor:
    """Sums of 16-bit floats are rounded once."""
    wide = torch.promote_types(values.dtype, torch.float32)
    terms = values.to(wide).unsqueeze(1) * dense.index_select(0, col).to(wide)
    out = torch.zeros((rows, dense.shape[1]), dtype=wide, device=dense.device)
    return out.index_add(0, row, terms).to(values.dtype)


def _empty(row: Tensor, col: Tensor, values: Tensor, dense: Tensor, rows: int) -> Tensor:
    return dense.new_empty((rows, dense.shape[1]))


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:4])


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    row, col, values, dense = ctx.saved_tensors
    _, _, needs_values, needs_dense, _ = ctx.needs_input_grad
    of_values = of_dense = None
    if needs_values:
        of_values = (grad.index_select(0, row) * dense.index_select(0, col)).sum(1)
    if needs_dense:
        of_dense = torch.ops.tilewright.sparse_mm(col, row, values, grad, dense.shape[0])
    return None, None, of_values, of_dense, None


LIBRARY.define(_SCHEMA)
LIBRARY.impl("sparse_mm", _product, "CompositeExplicitAutograd")
torch.library.register_fake(_NAME, _empty, lib=LIBRARY)
torch.library.register_autograd(_NAME, _backward, setup_context=_setup, lib=LIBRARY)


# ---- the matrix


class SparseMatrix:
    """A matrix of which only some elements are stored: element p is values[p], in row row[p] and
    column col[p]; elements that stand in the same place are added up.

        a = tw.SparseMatrix.of(adjacency)                    # of a tensor, in any layout
        a = tw.SparseMatrix.csr(crow, col, values, (m, n))   # of the parts of a CSR tensor
        y = a @ x                                            # also torch.sparse.mm(a, x)

    Products with it are native in compiled functions, where it is an argument, an attribute, or
    made inside of its parts. Gradients go to `values` and to the dense operand.
    """

    def __init__(self, row: Tensor, col: Tensor, values: Tensor, shape: Sequence[int]) -> None:
        if not (
            row.dim() == col.dim() == values.dim() == 1
            and row.shape[0] == col.shape[0] == values.shape[0]
        ):
            raise Invalid(
                f"elements at {tuple(row.shape)} rows and {tuple(col.shape)} columns with "
                f"{tuple(values.shape)} values are no sparse matrix",
                hint="pass three tensors of one axis, as long as there are stored elements",
            )
        if len(shape) != 2:
            raise Invalid(
                f"a sparse matrix of shape {tuple(shape)} has not two axes",
                hint="pass rows and columns; a batch of matrices is one matrix with blocks",
            )
        self.row, self.col, self.values, self.shape = row, col, values, tuple(shape)

    @staticmethod
    def of(tensor: Tensor) -> SparseMatrix:
        """The same matrix; the elements of a dense tensor that are not zero."""
        if tensor.dim() != 2:
            raise Invalid(
                f"a tensor of shape {tuple(tensor.shape)} is no matrix",
                hint="pass a tensor of two axes",
            )
        if tensor.layout != torch.sparse_coo:
            tensor = tensor.to_sparse_coo()
        tensor = tensor.coalesce()
        row, col = (x.clone() for x in tensor.indices())
        return SparseMatrix(row, col, tensor.values().clone(), tensor.shape)

    @staticmethod
    def csr(crow: Tensor, col: Tensor, values: Tensor, shape: Sequence[int]) -> SparseMatrix:
        """Of the parts of a CSR tensor: elements crow[r] to crow[r + 1] stand in row r."""
        if not (crow.dim() == 1 and crow.shape[0] == shape[0] + 1):
            raise Invalid(
                f"{tuple(crow.shape)} beginnings are not those of {shape[0]} rows",
                hint="crow has one more element than there are rows",
            )
        places = torch.arange(col.shape[0], dtype=crow.dtype, device=crow.device)
        row = torch.searchsorted(crow, places, right=True) - 1
        return SparseMatrix(row, col, values, shape)

    def t(self) -> SparseMatrix:
        return SparseMatrix(self.col, self.row, self.values, self.shape[::-1])

    def to_dense(self) -> Tensor:
        zeros = torch.zeros(self.shape, dtype=self.values.dtype, device=self.values.device)
        return zeros.index_put((self.row, self.col), self.values, accumulate=True)

    def to_tensor(self) -> Tensor:
        """As a tensor of torch in the layout COO."""
        return torch.sparse_coo_tensor(torch.stack([self.row, self.col]), self.values, self.shape)

    def __matmul__(self, dense: Tensor) -> Tensor:
        return _matmul(self, dense)

    def __rmatmul__(self, dense: Tensor) -> Tensor:
        return _matmul(dense, self)

    def __repr__(self) -> str:
        rows, columns = self.shape
        return f"SparseMatrix({rows} x {columns}, {self.values.shape[0]} {self.values.dtype})"

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if function is Tensor.__rmatmul__:  # Dynamo finds no functions of Python in tables
            return _matmul(args[1], args[0])
        own = _FUNCTIONS.get(function)
        return NotImplemented if own is None else own(*args, **(kwargs or {}))


def _fits(a: SparseMatrix, dense: Any) -> None:
    if not (isinstance(dense, Tensor) and 1 <= dense.dim() <= 2):
        raise Invalid(
            "a sparse matrix is multiplied with a dense tensor of one or two axes only",
            hint="to_dense() makes a dense one of a sparse matrix",
        )
    if dense.shape[0] != a.shape[1]:
        raise Invalid(
            f"a sparse matrix of shape {a.shape} does not fit a tensor of {tuple(dense.shape)}",
            hint="its rows have to be as many as the matrix has columns; t() turns it",
        )
    if dense.dtype != a.values.dtype:
        raise Invalid(
            f"a sparse matrix of {a.values.dtype} does not fit a tensor of {dense.dtype}",
            hint="convert one of them",
        )


def _matmul(a: Any, b: Any) -> Tensor:
    if not isinstance(a, SparseMatrix):
        return _matmul(b.t(), a.t()).t()
    _fits(a, b)
    if b.dim() == 1:
        return _matmul(a, b.unsqueeze(1)).squeeze(1)
    return torch.ops.tilewright.sparse_mm(a.row, a.col, a.values, b, a.shape[0])


_REDUCED = {"mean": "mean", "amax": "amax", "amin": "amin"}


def _sparse_mm(a: Any, b: Any, reduce: str = "sum") -> Tensor:
    """As torch.sparse.mm: products of a row are added up, or their mean or extreme is taken."""
    if reduce == "sum":
        return _matmul(a, b)
    if not (reduce in _REDUCED and isinstance(a, SparseMatrix) and b.dim() == 2):
        raise Invalid(
            f"torch.sparse.mm with reduce={reduce!r} takes a sparse matrix and a dense one, and "
            "sum, mean, amax or amin",
            hint="pass one of these four, and a dense matrix of two axes",
        )
    _fits(a, b)
    terms = a.values.unsqueeze(1) * b.index_select(0, a.col)
    zeros = b.new_zeros((a.shape[0], b.shape[1]))
    return zeros.index_reduce(0, a.row, terms, _REDUCED[reduce], include_self=False)


def _addmm(added: Tensor, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = _matmul(a, b)
    return (added if beta == 1 else beta * added) + (product if alpha == 1 else alpha * product)


def _sampled_addmm(
    a: SparseMatrix, left: Tensor, right: Tensor, *, beta: float = 1.0, alpha: float = 1.0
) -> SparseMatrix:
    """beta a + alpha (left @ right), where elements of a are stored."""
    found = (left.index_select(0, a.row) * right.t().index_select(0, a.col)).sum(1)
    return SparseMatrix(a.row, a.col, beta * a.values + alpha * found, a.shape)


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.matmul: _matmul,
    torch.mm: _matmul,
    torch.mv: _matmul,
    torch.sparse.mm: _sparse_mm,
    torch.addmm: _addmm,
    torch.sparse.addmm: _addmm,
    torch.sparse.sampled_addmm: _sampled_addmm,
    Tensor.matmul: _matmul,
    Tensor.__matmul__: _matmul,
    Tensor.mm: _matmul,
    Tensor.mv: _matmul,
    Tensor.addmm: _addmm,
}


def _is_sparse(operands: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Is one of them such a matrix, as Dynamo knows it?"""
    values = [getattr(x.realize(), "value", None) for x in (*operands, *named.values())]
    return any(isinstance(x, SparseMatrix) for x in values)


# Of `a @ x` Dynamo asks with both operands swapped, by a table that lacks the product: it would say
# the same of `x @ a`.
_SWAPPED: dict[Any, Any] = getattr(dynamo_builtin, "BUILTIN_TO_TENSOR_RFN_MAP", {})
_SWAPPED.setdefault(operator.matmul, Tensor.__rmatmul__)

# Dynamo asks no object about these.
for _function in (torch.sparse.mm, torch.sparse.addmm, torch.sparse.sampled_addmm):
    substitute(_function, cast(Callable[..., Any], _FUNCTIONS[_function]), _is_sparse)
