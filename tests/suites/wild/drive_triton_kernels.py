"""triton_kernels: products of groups, routing, layouts of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from reference import close, randn, same


def groups(sizes: list[int]) -> Any:
    from triton_kernels.tensor import make_ragged_tensor_metadata

    return make_ragged_tensor_metadata(torch.tensor(sizes, dtype=torch.int32), sum(sizes))


def test_product() -> None:
    from triton_kernels.matmul import PrecisionConfig, matmul

    a, b, bias = randn(20, 48), randn(48, 40), randn(40)
    got = matmul(a, b, bias, precision_config=PrecisionConfig(allow_tf32=False))
    close(got, a.double() @ b.double() + bias.double(), factor=10)


@pytest.mark.parametrize("routed", [False, True])
def test_product_of_groups(routed: bool) -> None:
    from triton_kernels.matmul import PrecisionConfig, matmul

    sizes = [5, 0, 11]
    rows = sum(sizes)
    a, b, bias = randn(rows, 48), randn(3, 48, 40), randn(3, 40)
    at = torch.randperm(rows, generator=torch.Generator().manual_seed(0)).int()
    got = matmul(
        a, b, bias,
        a_ragged_metadata=groups(sizes),
        gather_indx=at if routed else None,
        scatter_indx=at if routed else None,
        precision_config=PrecisionConfig(allow_tf32=False),
    )  # fmt: skip
    of = torch.repeat_interleave(torch.arange(3), torch.tensor(sizes))
    read = at.long() if routed else torch.arange(rows)
    wanted = torch.einsum("rk,rkn->rn", a[read].double(), b[of].double()) + bias[of].double()
    if routed:
        wanted = torch.empty_like(wanted).index_copy_(0, read, wanted)
    close(got, wanted, factor=10)


@pytest.mark.parametrize("softmax", [False, True])
def test_gradient_of_the_largest(softmax: bool) -> None:
    from triton_kernels.topk import topk

    x, slope = randn(9, 24).requires_grad_(), randn(9, 4)
    chosen = topk(x, 4, apply_softmax=softmax)
    wide = x.detach().double().requires_grad_()
    values = wide.gather(1, chosen.indx.long())
    values = torch.softmax(values, -1) if softmax else values
    close(chosen.vals, values)
    chosen.vals.backward(slope)
    values.backward(slope.double())
    assert x.grad is not None and wide.grad is not None
    close(x.grad, wide.grad)


def philox(key: int, counter: list[int]) -> int:
    """The first of four numbers: ten rounds on a counter of four words and a key of two."""
    keys, c, word = [key & 0xFFFFFFFF, key >> 32], counter, 0xFFFFFFFF
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ keys[0], b & word, (a >> 32) ^ c[3] ^ keys[1], a & word]
        keys = [(keys[0] + 0x9E3779B9) & word, (keys[1] + 0xBB67AE85) & word]
    return c[0]


def test_random_signs() -> None:
    from triton_kernels.testing import _random_block_signs

    rows, columns, block, seed = 40, 70, 32, 1234567890123
    signs = torch.empty(1, 2, 3, block, dtype=torch.int64)
    _random_block_signs[(1,)](
        signs, seed, 8, rows, columns, 2, 3, block, signs.numel(), TILE_SIZE=512
    )
    for at in range(signs.numel()):
        lane, tile = at % block, at // block
        count = max(min(block, rows - tile // 3 * block), min(block, columns - tile % 3 * block))
        bit = philox(seed, [2 + tile, 0, lane, 0]) & 1
        assert signs.flatten()[at] == (bit if lane < count else 0)


def test_rows_of_groups_are_padded() -> None:
    from triton_kernels.tensor_details.layout_details import blackwell_scale as b

    sizes, x = [5, 0, 11], (randn(16, 20) * 10).to(torch.uint8)
    about = groups(sizes)
    padded = b.pad_segments_triton(x, about, 16, 48, 20, 24)
    wanted = torch.zeros(padded.shape, dtype=torch.uint8)
    wanted[:5, :20], wanted[16:27, :20] = x[:5], x[5:]
    same(padded[:32], wanted[:32])
    same(b.unpad_segments_triton(padded, about, 16, 16, 20, 24), x)


def test_rows_in_the_order_of_their_inputs() -> None:
    """Those with four and more come first; then three, two, and the rest."""
    from triton_kernels.reduce import _create_row_idxs

    mask = (torch.rand(50, 6, generator=torch.Generator().manual_seed(0)) < 0.4).to(torch.int8)
    counts, order = torch.empty(50, dtype=torch.int32), torch.empty(50, dtype=torch.int32)
    _create_row_idxs[(1,)](
        mask, 1, 6, counts, order, 50, None, K=6, BLOCK_M=64, BLOCK_K=8, BLOCK_S0=1
    )
    same(counts, mask.sum(1))
    ranks = counts.clamp(1, 4)
    same(order, torch.sort(ranks, descending=True, stable=True).indices)


def test_nibbles_are_shuffled() -> None:
    """As the library's own function of torch does it, and back."""
    from triton_kernels.tensor_details.layout import BlackwellMX4ValueShuffledLayout
    from triton_kernels.tensor_details.layout_details import blackwell_value_shuffled as s

    made = BlackwellMX4ValueShuffledLayout().make_transformation([2, 100, 60], True)
    x = torch.randint(0, 256, (2, 100, 30), dtype=torch.uint8)
    wanted = made.swizzle_data(x)  # on a CPU it is torch that does it
    got, back = torch.zeros_like(wanted), torch.zeros_like(x)
    for inverse, canonical in ((False, x), (True, back)):
        s._convert_shuffled_mxfp4[(2 * 2,)](
            canonical, got, tuple(x.shape), tuple(got.shape), x.stride(), got.stride(),
            GRID_K=2, GRID_N=1, INVERSE=inverse, BLOCK_K=64, BLOCK_N=128,
        )  # fmt: skip
    same(got, wanted)
    same(back, x)
