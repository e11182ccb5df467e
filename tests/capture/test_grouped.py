"""Rows in groups, each with a matrix of its own: the operator of transformers' experts."""

from importlib import import_module
from typing import Any

import pytest
import torch

import tilewright as tw


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
