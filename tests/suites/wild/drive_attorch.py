"""attorch: attention, whose layer the library refuses to make, by the function under it."""

from __future__ import annotations

import pytest
import torch
from reference import attention, compare_gradients, randn


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("parallel", [False, True])
def test_attention(causal: bool, parallel: bool) -> None:
    from attorch.multi_head_attention_kernels import _attention

    q, k, v = (randn(1, 2, 128, 16, dtype=torch.float16, seed=s) for s in range(3))
    compare_gradients(
        lambda q, k, v: _attention.apply(q, k, v, causal, 0.25, parallel),
        lambda q, k, v: attention(q, k, v, 0.25, causal),
        [q, k, v],
        factor=2,
    )
