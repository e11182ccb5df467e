"""Products in groups: torch's `_grouped_mm` in its four forms, and the one of transformers."""

from importlib import import_module
from itertools import pairwise
from typing import Any

import pytest
import torch

import tilewright as tw
from tests.capture.running import check
from tilewright.bench.oracle import disagreements

SHORT, LONG = [3, 3, 8], [30, 97, 128]  # rows one by one, and in blocks
FORMS = {  # shapes of both operands, and where groups end
    "rows": ((8, 16), (3, 16, 24), SHORT),
    "rows in blocks": ((128, 16), (3, 16, 24), LONG),
    "columns": ((3, 8, 16), (16, 8), SHORT),
    "columns in blocks": ((3, 8, 16), (16, 128), LONG),
    "terms": ((8, 8), (8, 16), SHORT),
    "terms in blocks": ((8, 128), (128, 16), LONG),
    "matrices": ((3, 8, 16), (3, 16, 8), None),
}
FAST = (("rows", torch.float32),)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def _in_groups(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor | None) -> torch.Tensor:
    """Group by group, in any dtype."""
    if ends is None:
        return a @ b
    cuts = [0, *ends.tolist()]
    own = [slice(*pair) for pair in pairwise(cuts)]
    if b.dim() == 3:
        return torch.cat([a[k] @ b[g] for g, k in enumerate(own)])
    if a.dim() == 3:
        return torch.cat([a[g] @ b[:, k] for g, k in enumerate(own)], 1)
    return torch.stack([a[:, k] @ b[k] for k in own])


def _with_gradients(product: Any, a: Any, b: Any, ends: Any) -> list[torch.Tensor]:
    a, b = (x.detach().requires_grad_() for x in (a, b))
    out = product(a, b, ends)
    weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape)
    return [out.detach(), *torch.autograd.grad(out, (a, b), weights.to(out.dtype))]


@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        pytest.param(form, dtype, marks=[] if (form, dtype) in FAST else [pytest.mark.slow])
        for form in FORMS
        for dtype in DTYPES
    ],
)
def test_torchs_grouped_products(form: str, dtype: torch.dtype) -> None:
    """With gradients, natively, against float64."""
    shape_a, shape_b, at = FORMS[form]
    ends = None if at is None else torch.tensor(at, dtype=torch.int32)
    drawn = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=drawn).to(dtype) for shape in (shape_a, shape_b))

    def product(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor | None) -> torch.Tensor:
        return torch.nn.functional.grouped_mm(a * 2, b, offs=ends).sin()

    def exact(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor | None) -> torch.Tensor:
        return _in_groups(a * 2, b, ends).sin()

    with tw.record() as log:
        ours = _with_gradients(tw.compile(product, strict=True), a, b, ends)
    assert not log.of("fallback")
    eager = _with_gradients(product, a, b, ends)
    assert not disagreements(ours, eager, _with_gradients(exact, a.double(), b.double(), ends))


SCALED = {  # shapes of the factors of rows and of columns
    "rows in blocks": ((128,), (3, 24)),
    "columns in blocks": ((3, 8), (128,)),
    "terms in blocks": ((24,), (48,)),
    "matrices": ((3, 8), (3, 8)),
}


def _scaled(a: Any, b: Any, x: Any, y: Any, ends: torch.Tensor | None) -> torch.Tensor:
    """In float64: torch has no such product on processors."""
    a, b, x, y = (t.double() for t in (a, b, x, y))
    if a.dim() == 3:
        a, x = a * x.unsqueeze(2), None
    if b.dim() == 3:
        b, y = b * y.unsqueeze(1), None
    out = _in_groups(a, b, ends)
    if x is not None:
        out = out * (x.reshape(-1, a.shape[0], 1) if y is not None else x.unsqueeze(1))
    if y is not None:
        out = out * (y.reshape(-1, 1, b.shape[1]) if x is not None else y)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("form", SCALED)
def test_scaled_grouped_products(form: str) -> None:
    """Of floats of 8 bits; the result is rounded to bfloat16 once."""
    shape_a, shape_b, at = FORMS[form]
    ends = None if at is None else torch.tensor(at, dtype=torch.int32)
    drawn = torch.Generator().manual_seed(0)
    a = torch.randn(shape_a, generator=drawn).to(torch.float8_e4m3fn)
    turned = torch.randn(shape_b, generator=drawn).mT.contiguous().to(torch.float8_e4m3fn)
    b = turned.mT
    x, y = (torch.rand(shape, generator=drawn) for shape in SCALED[form])
    ours = tw.compile(torch._scaled_grouped_mm, strict=True)(a, b, x, y, ends)
    exact = _scaled(a, b, x, y, ends)
    assert not disagreements(ours, exact.bfloat16(), exact)


@pytest.mark.parametrize("form", FORMS)
def test_definitions_of_grouped_products(form: str) -> None:
    """As numpy evaluates them: no code is made."""
    shape_a, shape_b, at = FORMS[form]
    ends = None if at is None else torch.tensor(at, dtype=torch.int32)
    drawn = torch.Generator().manual_seed(0)
    a, b = (torch.randn(s, generator=drawn).bfloat16() for s in (shape_a, shape_b))
    check(torch._grouped_mm, a, b, ends)


def test_a_grouped_product_that_does_not_fit_says_why() -> None:
    a, b = torch.ones(8, 16), torch.ones(3, 16, 24)
    call = tw.compile(torch._grouped_mm)
    with pytest.raises(Exception, match="matrix batch sizes have to match"):
        call(a, b, torch.tensor([3, 8], dtype=torch.int32))


@pytest.mark.slow
def test_groups_of_rows() -> None:
    """Forward and backward, with a group of no rows and rows of no group, natively."""
    import_module("transformers.integrations.moe")  # defines the operator
    product: Any = torch.ops.transformers.grouped_mm_fallback
    torch.manual_seed(0)
    ends = torch.tensor([3, 3, 8], dtype=torch.int32)
    results = []
    for compiled in (False, True):
        drawn = torch.Generator().manual_seed(0)
        x = torch.randn(9, 5, generator=drawn).requires_grad_()
        w = torch.randn(3, 5, 7, generator=drawn).requires_grad_()

        def call(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return product(x * 2, w, ends).sin()

        with tw.record() as log:
            strict: Any = {"strict": True}
            f = torch.compile(call, backend="tilewright", options=strict) if compiled else call
            out = f(x, w)
            out.backward(torch.ones_like(out))
        assert not log.of("fallback")
        results.append((out.detach(), x.grad, w.grad))
    for ours, eager in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-6)
