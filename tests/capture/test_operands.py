"""What eager's operators between native segments are given, and what becomes of their results."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def _compiled(f: Any, *args: Any, dynamic: bool | None = None) -> Any:
    torch._dynamo.reset()
    return torch.compile(f, backend="tilewright", fullgraph=True, dynamic=dynamic)(*args)


@torch.library.custom_op("tilewright_tests::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    """Nothing of ours: it runs in eager, and keeps the strides of its operand."""
    return torch.mul(x, 2)


@doubled.register_fake
def _(x: Tensor) -> Tensor:
    return torch.mul(x, 2)


def test_eager_operators_get_the_strides_that_torch_announced() -> None:
    def attention(x: Tensor) -> Tensor:  # the width of its heads is symbolic: it runs in eager
        q = x.unflatten(-1, (2, -1)).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q)

    x = torch.randn(7, 5, 8)
    assert _compiled(attention, x, dynamic=True).stride() == attention(x).stride() == (40, 4, 8, 1)


def test_results_of_eager_operators_keep_strides_where_native_code_reads_them() -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        gaps = doubled((x + 1).permute(2, 0, 1)[::2])
        whole = doubled((x + 1).permute(2, 0, 1))
        repeated = doubled((x[:1, :1] - 1).expand(2, 3, 4))
        return whole, whole.exp(), gaps, repeated.sin(), repeated

    x = torch.randn(2, 3, 4)
    for ours, eager in zip(_compiled(f, x), f(x), strict=True):
        torch.testing.assert_close(ours, eager)
        assert ours.stride() == eager.stride()


def test_a_copy_of_an_eager_result_is_a_copy() -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        y = doubled((x * 3).t())
        return y, y.clone(), doubled(y.contiguous())

    x = torch.randn(3, 4)
    ours = _compiled(f, x)
    assert [y.stride() for y in ours] == [y.stride() for y in f(x)]
    ours[0].zero_()
    torch.testing.assert_close(ours[1], f(x)[1])
