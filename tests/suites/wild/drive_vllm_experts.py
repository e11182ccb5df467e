"""vLLM: mixtures of experts: who gets which token, products with their weights, sums."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from drive_vllm import LAYERS, function, ints
from drive_vllm_lora import EXPERTS, squeezed
from reference import close, randn, same

MOE = LAYERS + "fused_moe."
BLOCKS = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 1}
FOURS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])  # floats of 4 bits


def dtype(name: str) -> Any:
    return getattr(function("triton_utils", "tl"), name)


def in_blocks(block: int = 16) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pairs of token and place by expert, filled up to blocks; the experts; how many there are."""
    tokens, blocks = [], []
    for expert in range(4):
        mine = (EXPERTS.flatten() == expert).nonzero().flatten().tolist()
        fill = -len(mine) % block
        tokens += mine + [EXPERTS.numel()] * fill
        blocks += [expert] * ((len(mine) + fill) // block)
    return ints(*tokens), ints(*blocks), ints(len(tokens))


def products(x: torch.Tensor, w: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """(token, place, width) of (token, width) and (expert, width, width)."""
    out = torch.einsum("mk,mtnk->mtn", x.double(), w.double()[EXPERTS.long()])
    return out if weights is None else out * weights.double()[..., None]


# ---- products


@pytest.mark.parametrize("kind", ["plain", "weighted", "unsorted", "bias"])
def test_products_of_experts(kind: str) -> None:
    x, w, out = randn(7, 64), randn(4, 48, 64), torch.zeros(7, 2, 48)
    weights, bias = torch.rand(7, 2), randn(4, 48, seed=2) if kind == "bias" else None
    order = in_blocks() if kind != "unsorted" else (None, EXPERTS.flatten(), ints(14 * 16))
    function(MOE + "fused_moe", "invoke_fused_moe_triton_kernel")(
        x, w, out, None, None, weights, *order, kind == "weighted", 2, BLOCKS, dtype("float32"),
        False, False, False, False, False, None, bias,
    )  # fmt: skip
    wanted = products(x, w, weights if kind == "weighted" else None)
    if bias is not None:
        wanted = wanted + bias.double()[EXPERTS.long()]
    close(out, wanted, 20)


def test_products_of_8_bit_floats_by_blocks() -> None:
    x, by = squeezed(randn(7, 2, 32), (2,))
    w, on = squeezed(randn(4, 2, 32, 2, 32), (2, 4))
    out = torch.zeros(7, 2, 64, dtype=torch.bfloat16)
    function(MOE + "fused_moe", "invoke_fused_moe_triton_kernel")(
        x.view(7, 64), w.view(4, 64, 64), out, by.view(7, 2), on.view(4, 2, 2), None,
        *in_blocks(), False, 2, BLOCKS, dtype("bfloat16"), True, False, False, False, False,
        [32, 32],
    )  # fmt: skip
    exact = (x.double() * by).view(7, 64), (w.double() * on).view(4, 64, 64)
    close(out, products(*exact, None), 2)


def test_products_of_8_bit_integers() -> None:
    x, w = (torch.randint(-99, 99, s).to(torch.int8) for s in ((7, 64), (4, 48, 64)))
    by, on = torch.rand(7, 1), torch.rand(4, 48)
    out = torch.zeros(7, 2, 48)
    function(MOE + "fused_moe", "invoke_fused_moe_triton_kernel")(
        x, w, out, by, on, None, *in_blocks(), False, 2, BLOCKS, dtype("float32"),
        False, True, False, False, True,
    )  # fmt: skip
    wanted = products(x.double() * by, w.double() * on[..., None], None)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-3, atol=1.0)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_products_of_packed_weights(bits: int, zeros: bool) -> None:
    generator = torch.Generator().manual_seed(bits)
    whole = torch.randint(0, 1 << bits, (4, 32, 64), generator=generator)
    offset = torch.randint(0, 1 << bits, (4, 32, 2), generator=generator)
    scale, x = torch.rand(4, 32, 2) / 4, randn(7, 64, dtype=torch.bfloat16)
    packed, points = whole.byte(), offset.byte()
    if bits == 4:
        packed = (whole[..., ::2] | whole[..., 1::2] << 4).byte()
        points = (offset[:, ::2] | offset[:, 1::2] << 4).byte()
    out = torch.zeros(7, 2, 32, dtype=torch.bfloat16)
    function(MOE + "fused_moe", "invoke_fused_moe_wna16_triton_kernel")(
        x, packed, out, scale.bfloat16(), points if zeros else None, None, *in_blocks(), False, 2,
        {**BLOCKS, "SPLIT_K": 1}, dtype("bfloat16"), bits == 8, bits == 4, [0, 32],
    )  # fmt: skip
    zero = offset.double() if zeros else torch.full_like(offset, 1 << bits - 1).double()
    wide = (whole.view(4, 32, 2, 32) - zero[..., None]) * scale.bfloat16().double()[..., None]
    wanted = products(x, wide.view(4, 32, 64), None)
    torch.testing.assert_close(out.double(), wanted, rtol=3e-2, atol=0.3 if bits == 4 else 4.0)


@pytest.mark.parametrize("kind", ["plain", "8 bits"])
def test_products_of_each_expert(kind: str) -> None:
    x, w, counts = randn(3, 20, 64), randn(3, 48, 64), ints(20, 0, 7)
    by = on = None
    if kind == "8 bits":
        x, by = squeezed(x, (1, 2))
        w, on = squeezed(w, (1, 2))
    out = torch.zeros(3, 20, 48)
    function(MOE + "experts.fused_batched_moe", "invoke_moe_batched_triton_kernel")(
        x, w, out, counts, dtype("float32"), by,
        None if on is None else on.flatten(), None, by is not None, False, False, BLOCKS, False,
    )  # fmt: skip
    wide = x.double() * (1 if by is None else by), w.double() * (1 if on is None else on)
    wanted = wide[0] @ wide[1].transpose(1, 2)
    wanted *= (torch.arange(20) < counts[:, None])[..., None]
    close(out, wanted, 20)


def test_products_of_4_bit_floats() -> None:
    code = torch.randint(0, 16, (4, 48, 64), generator=torch.Generator().manual_seed(3))
    values = FOURS[code & 7] * torch.where(code > 7, -1.0, 1.0)
    scale = (torch.rand(4, 48, 4) + 0.5).to(torch.float8_e4m3fn)
    whole, x = torch.rand(4) + 0.5, randn(7, 64, dtype=torch.bfloat16)
    out = torch.zeros(7, 2, 48, dtype=torch.bfloat16)
    function(MOE + "experts.nvfp4_emulation_moe", "fused_moe_nvfp4_emulation_kernel")[(4 * 2,)](
        x, (code[..., ::2] | code[..., 1::2] << 4).byte(), out, scale.view(torch.uint8), whole,
        None, *in_blocks(), 48, 64, 64, 14, *x.stride(), 48 * 32, 1, 32, 48, 1, 48 * 4, 1, 4,
        block_k_diviable=True, MUL_ROUTED_WEIGHT=False, top_k=2, compute_type=dtype("bfloat16"),
        group_size=16, **BLOCKS,
    )  # fmt: skip
    wide = values.view(4, 48, 4, 16).double() * scale.double()[..., None]
    wanted = products(x, wide.view(4, 48, 64) * whole[:, None, None], None)
    close(out, wanted, 4)


def test_products_with_shared_exponents() -> None:
    generator = torch.Generator().manual_seed(4)
    x, w = (randn(*s).to(torch.float8_e4m3fn) for s in ((7, 128), (4, 48, 128)))
    by, on = (torch.randint(124, 130, s, generator=generator) for s in ((7, 4), (4, 48, 4)))
    weights = torch.rand(14)
    got = function(MOE + "experts.mxfp8_native_moe", "_grouped_gemm_mxfp8")(
        x, by.byte(), w, on.byte(), *in_blocks(), 14, 2, 16, torch.float32, 2, weights
    )
    a = x.double().view(7, 4, 32) * 2.0 ** (by - 127)[..., None]
    b = w.double().view(4, 48, 4, 32) * 2.0 ** (on - 127)[..., None]
    wanted = products(a.view(7, 128), b.view(4, 48, 128), weights.view(7, 2))
    close(got, wanted.view(14, 48), 20)


# ---- where tokens go


@pytest.mark.parametrize("mapped", [False, True])
def test_tokens_of_each_expert(mapped: bool) -> None:
    where = ints(1, -1, 0, -1) if mapped else None
    got = function(MOE + "utils", "count_expert_num_tokens")(EXPERTS, 2 if mapped else 4, where)
    counts = torch.bincount(EXPERTS.flatten().long(), minlength=4)
    same(got, counts[[2, 0]] if mapped else counts)


def test_tokens_to_experts_and_back() -> None:
    path, x, scale = MOE + "deep_gemm_utils", randn(7, 64), torch.rand(7, 2)
    ids = EXPERTS.clone()
    ids[2, 1] = -1  # that place is nobody's
    counts = torch.bincount(ids[ids >= 0].long(), minlength=4).int()
    starts, rows = torch.zeros(4, dtype=torch.int32), torch.full((32,), -1, dtype=torch.int32)
    out, by = torch.zeros(32, 64), torch.zeros(32, 2)
    index = torch.full((7, 2), -1, dtype=torch.int32)
    function(path, "ep_scatter")(
        x, scale, ids, counts, None, starts, out, by, rows, index, align_m=8, block_size=32
    )
    begin = (-(-counts // 8) * 8).cumsum(0) - -(-counts // 8) * 8
    wanted = torch.full((32,), -1)
    for expert in range(4):
        wanted[begin[expert] : begin[expert] + counts[expert]] = expert
    same(rows, wanted)
    same(starts, begin + counts)
    used = (ids >= 0).nonzero().tolist()
    assert len({int(index[t, k]) for t, k in used}) == len(used)
    for token, place in used:
        row = int(index[token, place])
        assert rows[row] == ids[token, place]
        same(out[row], x[token])
        same(by[row], scale[token])
    weights, back = torch.rand(7, 2), torch.zeros(7, 64)
    function(path, "ep_gather")(out, ids, weights, index, None, back)
    close(back, x.double() * (weights * (ids >= 0)).double().sum(1, keepdim=True))


def test_experts_with_copies() -> None:
    generator = torch.Generator().manual_seed(0)
    copies, where = ints(1, 3, 2, 1), torch.randint(0, 8, (4, 3), generator=generator).int()
    load = torch.zeros(8, dtype=torch.int32)
    got = function(MOE + "router.base_router", "eplb_map_to_physical_and_record")(
        EXPERTS, load, where, copies, torch.tensor([True]), ints(5)
    )
    token = torch.arange(7)[:, None] * 2654435769 % 2**32
    wanted = where[EXPERTS.long(), token % copies[EXPERTS.long()]]
    same(got, wanted)
    same(load, torch.bincount(wanted[:5].flatten().long(), minlength=8))


def test_six_best_experts() -> None:
    x, bias = 3 * randn(5, 40), randn(40)
    weights, ids = function(MOE + "router.dsv4_topk", "dsv4_topk")(x, bias, torch.int32, 1.5)
    score = F.softplus(x.double()).sqrt()
    wanted = (score + bias).topk(6).indices
    same(ids, wanted)
    best = score.gather(1, wanted)
    close(weights, 1.5 * best / best.sum(1, keepdim=True))


def test_sets_of_experts_as_bits() -> None:
    path = MOE + "experts.gpt_oss_triton_kernels_moe"
    ids = torch.tensor([[0, 33], [5, -1], [63, 31]], dtype=torch.int16)
    bits = torch.zeros(3, 2, dtype=torch.uint32)
    function(path, "pack_bitmatrix")[(1,)](bits, ids, 3, 2, 2, BLOCK_SIZE_M=4, BLOCK_SIZE_K=32)
    same(bits.long(), torch.tensor([[1, 2], [32, 0], [1 << 31, 1 << 31]]))
    same(function(path, "remap_topk_to_local")(ids.int() % 4, ints(2, -1, 0, 1)),
         torch.tensor([[2, -1], [-1, 1], [1, 1]]))  # fmt: skip


def test_sums_of_own_experts() -> None:
    x, ids = randn(5, 2, 72), torch.tensor([[0, 1], [-1, 2], [3, -1], [-1, -1], [1, 1]])
    x[1, 0] = torch.nan
    out = torch.zeros(5, 72)
    function(MOE + "experts.gpt_oss_triton_kernels_moe", "masked_moe_sum")(x, ids, out)
    close(out, x.double().masked_fill((ids < 0)[..., None], 0).sum(1))


def test_rows_back_in_order() -> None:
    path, x, where = MOE + "experts.trtllm_lora_moe", randn(6, 72), ints(3, -1, 0, 5, 1, 2)
    out = torch.ones(6, 72)
    function(path, "_unpermute_activation_kernel")[(6, 2)](x, where, out, 72, 72, 72, BLOCK_I=64)
    keep = (where >= 0)[:, None]
    same(out, x[where.long()] * keep)
    weights, delta, got = torch.rand(6), randn(3, 2, 72), torch.zeros(3, 72)
    function(path, "_finalize_lora_kernel")[(3, 2)](
        x, weights, where, delta, got, 72, 72, 144, 72, 72, 0.5, TOP_K=2, BLOCK_K=64
    )
    rows = x.double()[where.long()] * keep * weights[:, None]
    close(got, 0.5 * rows.view(3, 2, 72).sum(1) + delta.double().sum(1))


def test_ids_of_all_ranks() -> None:
    ids = torch.tensor([[0, 3], [-1, 2], [1, 1]])
    got = function(MOE + "prepare_finalize.deepep_v2", "_globalize_recv_topk_idx")(
        ids, ints(1, 2), 4, 7
    )
    same(got, torch.tensor([[4, -1], [-1, 6], [-1, -1]]))


def test_experts_that_do_nothing() -> None:
    x, ids, scale = randn(3, 256), torch.tensor([[0, 5], [4, 5], [1, 2]]), torch.rand(3, 2)
    zero = (ids >= 4) * scale.double()
    got = function(MOE + "fused_moe", "zero_experts_compute_triton")(ids, scale, 4, "identity", x)
    close(got, x.double() * zero.sum(1, keepdim=True))


def test_gate_in_8_bits() -> None:
    x, counts = randn(2, 4, 512, dtype=torch.bfloat16), ints(3, 4)
    out = torch.zeros(2, 4, 256, dtype=torch.float8_e4m3fn)
    scale = torch.zeros(2, 4, 2)
    kernel = function(MOE + "experts.batched_deep_gemm_moe", "_silu_mul_fp8_quant_deep_gemm")
    kernel[(4,)](x, out, scale, counts, 256, 128, *x.stride(), *out.stride(), *scale.stride(), 1,
                 1e-10, -448.0, 448.0, False, BLOCK=128, NUM_STAGES=2)  # fmt: skip
    gate, up = x.double().chunk(2, -1)
    wanted = F.silu(gate) * up * (torch.arange(4) < counts[:, None])[..., None]
    got = out.double().view(2, 4, 2, 128) * scale.double()[..., None]
    torch.testing.assert_close(got.view(2, 4, 256), wanted, rtol=0.07, atol=0.03)
    close(scale, wanted.view(2, 4, 2, 128).abs().amax(-1) / 448, 100)
