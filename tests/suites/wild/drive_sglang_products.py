"""SGLang: products of experts, and what stands around them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from reference import close, randn, rms_norm, same
from sglang_parts import aligned, drawn, function, ints, mixed, uniform

FUSED, INKLING = "moe.fused_moe_triton_kernels", "moe.inkling_moe"
GEMMA = "layernorm.gemma4_fused_ops"
CONFIG = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 2}
NARROW = torch.float8_e4m3fn


IDS, WEIGHTS = drawn(4, 6, 2, dtype=torch.int32), uniform(6, 2)


def routed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """(token, choice, width) of the products of each token with its experts."""
    return torch.einsum("tk,tenk->ten", x.double(), w.double()[IDS.long()])


def launch(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor, **more: Any) -> None:
    import triton.language as tl

    given: dict[str, Any] = {
        "bias": None, "A_scale": None, "B_scale": None, "B_zp": None, "mul_routed_weight": False,
        "use_fp8_w8a8": False, "use_int8_w8a8": False, "use_int8_w8a16": False,
        "use_int4_w4a16": False, "per_channel_quant": False, "block_shape": None,
    }  # fmt: skip
    order, owners, length = aligned(IDS, 16, 4)
    kind = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}[out.dtype]
    function(FUSED, "invoke_fused_moe_kernel")(
        A=x, B=w, C=out, topk_weights=WEIGHTS, topk_ids=IDS, sorted_token_ids=order,
        expert_ids=owners, num_tokens_post_padded=length, top_k=2, config=CONFIG,
        compute_type=kind, **{**given, **more},
    )  # fmt: skip


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("wide", [64, 72])
def test_products(weighed: bool, wide: int) -> None:
    x, w, bias, out = randn(6, wide), randn(4, 40, wide), randn(4, 40), torch.zeros(6, 2, 40)
    launch(x, w, out, bias=bias, mul_routed_weight=weighed)
    wanted = routed(x, w) + bias.double()[IDS.long()]
    close(out, wanted * WEIGHTS.double()[..., None] if weighed else wanted, factor=10)


def test_products_summed() -> None:
    x, w, out = randn(6, 64), randn(4, 40, 64), torch.zeros(6, 40)
    launch(x, w, out, mul_routed_weight=True, fuse_sum_all_reduce=True, router_topk=2)
    close(out, (routed(x, w) * WEIGHTS.double()[..., None]).sum(1), factor=10)


def test_products_of_eight_bits() -> None:
    x, w = randn(6, 64).to(NARROW), randn(4, 40, 64).to(NARROW)
    sx, sw, out = uniform(6, 2), uniform(4, 2, 2), torch.zeros(6, 2, 40)
    launch(x, w, out, A_scale=sx, B_scale=sw, use_fp8_w8a8=True, block_shape=[32, 32])
    wide_x = x.double() * sx.double().repeat_interleave(32, 1)
    wide_w = w.double() * sw.double().repeat_interleave(32, 2).repeat_interleave(32, 1)[:, :40]
    close(out, routed(wide_x, wide_w), factor=10)
    x, scale = randn(6, 64), uniform(4, 40)
    whole = drawn(255, 4, 40, 64) - 127
    launch(x, whole.to(torch.int8), out, B_scale=scale, use_int8_w8a16=True, per_channel_quant=True)
    close(out, routed(x, whole.double() * scale.double()[..., None]), factor=100)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shifted", [False, True])
def test_products_of_groups(bits: int, shifted: bool) -> None:
    x, group, out = randn(6, 64), 32, torch.zeros(6, 2, 40)
    w, zero = drawn(2**bits, 4, 40, 64), drawn(2**bits, 4, 40, 2, seed=1)
    scale = uniform(4, 40, 2)
    if bits == 4:
        packed = (w[..., 0::2] | w[..., 1::2] << 4).to(torch.uint8)
        zeros = (zero[:, 0::2] | zero[:, 1::2] << 4).to(torch.uint8)
    else:
        packed, zeros = w.to(torch.uint8), zero.to(torch.uint8)
    base = zero if shifted else torch.full_like(zero, 2 ** (bits - 1))
    wide = (w - base.repeat_interleave(group, 2)) * scale.double().repeat_interleave(group, 2)
    launch(x, packed, out, B_scale=scale, B_zp=zeros if shifted else None, block_shape=[0, group],
           **{f"use_int{bits}_w{bits}a16": True})  # fmt: skip
    close(out, routed(x, wide), factor=100)


# ---- around them


@pytest.mark.parametrize("name", ["silu", "gelu"])
@pytest.mark.parametrize("limit", [None, 1.0])
def test_gates(name: str, limit: float | None) -> None:
    x, out, ids = randn(6, 1200), torch.zeros(6, 600), ints(0, 1, -1, 2, 3, 0)
    function(FUSED, "act_and_mul_triton")(
        x, out, CONFIG, ids.view(3, 2), activation=name, swiglu_limit=limit
    )
    gate, up = x.double().chunk(2, -1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    wanted = (F.silu(gate) if name == "silu" else F.gelu(gate, approximate="tanh")) * up
    wanted[2] = 0
    close(out, wanted)


def test_sums() -> None:
    x, out = randn(5, 3, 300), torch.empty(5, 300)
    function(FUSED, "moe_sum_reduce_triton")(x, out, 2.5)
    close(out, x.double().sum(1) * 2.5)


def test_shared_experts() -> None:
    ids, weights = drawn(8, 5, 3, dtype=torch.int32), uniform(5, 3)
    got, found = function(FUSED, "fused_append_shared_experts")(ids, weights, 2, 0.4, 8)
    same(got, torch.cat((ids, ints(8, 9).expand(5, 2)), 1))
    same(found, torch.cat((weights, torch.full((5, 2), 0.4)), 1))
    got, found = function(FUSED, "fused_append_remap_shared_experts_deepep")(
        ids, weights, 2, 0.4, 30, 4, ints(4), 77
    )
    moved = ids + ids // 4 * 2
    moved[4] = 77
    same(got, torch.cat((moved, ints(30, 31).expand(5, 2)), 1))
    same(found, torch.cat((weights, torch.full((5, 2), 0.4)), 1))
    x, gate = randn(5, 100), randn(100)
    forward = function(FUSED, "fused_append_shared_experts_with_weights")
    got, found = forward(ids, weights, None, 1, 8, fuse_gate=True, hidden_states=x,
                         gate_weight=gate, scale=0.5)  # fmt: skip
    same(got, torch.cat((ids, torch.full((5, 1), 8)), 1))
    share = torch.sigmoid(x.double() @ gate.double()) / 2
    close(found, torch.cat((weights.double(), share[:, None]), 1))
    share = randn(5, 2)
    _, found = forward(ids, weights, share, 2, 8, apply_sigmoid=True)
    close(found, torch.cat((weights.double(), share.double().sigmoid()), 1))


# ---- Inkling

ROUTES = drawn(6, 40, dtype=torch.int32, seed=3)


@pytest.mark.parametrize("block", [16, 128])
def test_grouped_products(block: int) -> None:
    order = ROUTES.argsort(stable=True)
    sorted_ids = ROUTES[order]
    counts, starts, blocks, plan = function(INKLING, "compute_grouped_gemm_metadata")(
        sorted_ids, 6, block_size_m=block
    )
    wanted = ROUTES.bincount(minlength=6)
    same(counts, wanted)
    same(starts, torch.cat((torch.zeros(1), wanted.cumsum(0))))
    needed = (wanted + block - 1) // block
    same(blocks, torch.cat((torch.zeros(1), needed.cumsum(0))))
    wanted_plan = [(k << 16) + e for e in range(6) for k in range(int(needed[e]))]
    wanted_plan += [-1] * (plan.numel() - len(wanted_plan))
    assert plan.tolist() == wanted_plan
    if block == 16:
        found = function(INKLING, "fused_moe_preprocess")(ROUTES, 6)
        places = torch.empty(40, dtype=torch.int64)
        places[order] = torch.arange(40)
        for got, known in zip(found, (places, counts, starts, blocks, plan, sorted_ids),
                              strict=True):  # fmt: skip
            same(got, known)
    a, b = randn(40, 100), randn(6, 72, 100)
    got = function(INKLING, "grouped_gemm_triton")(
        a, b, 6, counts, starts, blocks, plan, block_size_m=block
    )
    close(got, torch.einsum("tk,tnk->tn", a.double(), b.double()[sorted_ids.long()]), factor=10)


def test_order_of_routes() -> None:
    order = mixed(12, seed=5)
    places = function(INKLING, "get_src2dst")(order)
    same(places[order], torch.arange(12))
    x = randn(4, 300)
    got = function(INKLING, "pre_reorder")(x, places, 3)
    same(got[places.long()], x.repeat_interleave(3, 0))
    y, weights = randn(12, 300), uniform(4, 3)
    got = function(INKLING, "post_reorder")(y, places, weights)
    rows = y.double()[places.long()].view(4, 3, 300)
    close(got, (rows * weights.double()[..., None]).sum(1))


@pytest.mark.parametrize("weighed", [False, True])
def test_interleaved_gates(weighed: bool) -> None:
    x, weights = randn(40, 400), uniform(40)
    given = weights if weighed else None
    gate, up = x.double()[:, 0::2], x.double()[:, 1::2]
    wanted = F.silu(gate) * up * (weights.double()[:, None] if weighed else 1)
    close(function(INKLING, "silu_and_mul_triton")(x, given), wanted)
    close(function(INKLING, "silu_and_mul")(x, given), wanted)
    gate, up = x.double().chunk(2, -1)
    wanted = F.silu(gate) * up * (weights.double()[:, None] if weighed else 1)
    close(function(INKLING, "silu_and_mul")(x, given, use_interleaved=False), wanted)


# ---- Gemma


def test_norms() -> None:
    x, y, r = (randn(5, 300, seed=s) for s in range(3))
    u, v, w = (randn(300, seed=s) for s in range(3))
    scale = torch.tensor([0.5])
    got = function(GEMMA, "gemma_rmsnorm_residual_scalar")(x, u, r, scale)
    close(got, (rms_norm(x, u, 1e-6) + r) * 0.5)
    got = function(GEMMA, "gemma_dual_rmsnorm_residual_scalar")(x, u, y, v, w, r, scale)
    both = rms_norm(x, u, 1e-6) + rms_norm(y, v, 1e-6)
    close(got, (rms_norm(both, w, 1e-6) + r) * 0.5)


@pytest.mark.parametrize("tokens", [5, 257])
def test_norms_of_heads(tokens: int) -> None:
    q, k, v = randn(tokens, 4 * 40), randn(tokens, 2 * 40), randn(tokens, 2 * 40, seed=1)
    u, w, before = randn(40), randn(40, seed=1), [x.clone() for x in (q, k, v)]
    function(GEMMA, "gemma_qkv_rmsnorm")(q, k, v, u, w, 4, 2, 40)
    for got, x, scale in zip((q, k, v), before, (u, w, torch.ones(40)), strict=True):
        close(got, rms_norm(x.unflatten(1, (-1, 40)), scale, 1e-6).flatten(1))


def test_routes_of_gemma() -> None:
    x, scale = randn(5, 20), uniform(20)
    best = x.double().topk(4)
    shares = best.values.softmax(-1) * scale.double()[best.indices]
    got, ids = function(GEMMA, "gemma4_fused_routing")(x, scale, 4)
    same(ids, best.indices)
    close(got, shares)
    found = x.topk(4)
    got, ids = function(GEMMA, "gemma_routing_post_topk")(found.values, found.indices, scale)
    same(ids, best.indices)
    close(got, shares)
