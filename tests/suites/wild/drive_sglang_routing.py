"""SGLang: which experts a token goes to."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from reference import close, randn, same
from sglang_parts import aligned, drawn, function, ints, longs, uniform


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("experts", [30, 100])
def test_best(dtype: torch.dtype, experts: int) -> None:
    # No two are equal, in bfloat16 neither.
    order = torch.stack([torch.randperm(experts, generator=torch.Generator().manual_seed(s))
                         for s in range(5)])  # fmt: skip
    x = ((order - experts // 2) / 8).to(dtype)
    values, indices = function("moe.gate_topk", "gate_topk")(x, 6)
    wanted = x.topk(6)
    same(indices, wanted.indices)
    same(values, wanted.values)


@pytest.mark.parametrize("packed", [False, True])
def test_best_of_sigmoids(packed: bool) -> None:
    experts, shared, top = 40, 2, 6
    x, bias, scale = randn(5, experts + shared), randn(experts), torch.tensor([0.5])
    forward = function("moe.sigmoid_gate_topk_renorm", "sigmoid_gate_topk_renorm")
    found = forward(x, top, shared, 2.5, scale, bias, return_packed_topk=packed)
    best = (x[:, :experts].double().sigmoid() + bias).topk(top).indices
    chances = torch.cat((x[:, :experts].gather(1, best), x[:, experts:]), 1).double().sigmoid()
    weights = chances / chances.sum(1, keepdim=True) * 1.25
    tensors = [t for t in found if isinstance(t, torch.Tensor)]
    if packed:
        both = next(t for t in tensors if t.dtype == torch.int32)
        same(both >> 16, best)
        bits = (both & 0xFFFF).to(torch.int16).view(torch.bfloat16)
        close(bits, weights[:, :top])
    else:
        same(next(t for t in tensors if not t.dtype.is_floating_point), best)
        close(next(t for t in tensors if t.is_floating_point() and t.shape[1] == top),
              weights[:, :top])  # fmt: skip
    close(next(t for t in tensors if t.is_floating_point() and t.shape[1] == shared),
          weights[:, top:])  # fmt: skip


@pytest.mark.parametrize("cap", [0, 30.0])
@pytest.mark.parametrize("top", [1, 2, 4])
def test_routers(cap: float, top: int) -> None:
    path = "moe.router"
    for experts, wide in ((8, 200), (16, 256)):
        if wide == 256 and top > 2:
            continue
        x, w, bias = randn(5, wide), randn(experts, wide) / 8, randn(experts)
        got, ids = (
            function(path, "fused_moe_router_cudacore")(x, w, top, cap, bias)
            if wide == 200
            else function(path, "fused_moe_router_tensorcore")(
                x, w, top, cap, 16, 16, 128, correction_bias=bias
            )
        )
        logits = x.double() @ w.double().T
        if cap:
            logits = cap * torch.tanh(logits / cap)
        wanted = (logits + bias).softmax(-1).topk(top)
        same(ids, wanted.indices)
        close(got, wanted.values)


def test_tables_of_experts() -> None:
    x, ids, table = randn(5, 20), drawn(50, 5), drawn(20, 50, 6)
    forward = function("moe.triton_hash_topk", "hash_topk_triton")
    got, experts = forward(x, ids, table, 1, 2.5, "sqrtsoftplus")
    chosen = table[ids]
    weights = F.softplus(x.double().gather(1, chosen)).sqrt()
    wanted = weights / weights.sum(1, keepdim=True)
    close(got, torch.cat((wanted, torch.full((5, 1), 0.4)), 1))
    same(experts, torch.cat((chosen, torch.full((5, 1), 20)), 1))


def test_packed() -> None:
    ids, weights = drawn(200, 5, 6, dtype=torch.int32), randn(5, 6)
    bits = weights.bfloat16().view(torch.int16).int() & 0xFFFF
    wanted = ids << 16 | bits
    same(function("moe.trtllm_lora_temp.topk_pack", "fused_pack_topk")(ids, weights), wanted)
    same(function("moe.pack_topk_ids", "PackTopkIds").triton(ids, weights), wanted)


def test_padded_rows() -> None:
    x = drawn(99, 6, 5, dtype=torch.int32)
    wanted = x.clone()
    wanted[4:] = -1
    function("moe.fill_padded_rows", "_fill_padded_rows")(x, ints(4), -1)
    same(x, wanted)


# ---- ranks that share the work

PER_RANK, RANKS, TOP = 4, 4, 3


def test_counts_of_ranks() -> None:
    ids, counts = drawn(16, 300, TOP) - 1, longs(0, 0, 0, 0)
    function("moe.deepep_waterfill_kernels", "_count_routed_per_rank_kernel")[(2,)](
        ids, counts, 300, TOP, PER_RANK, RANKS, 256
    )
    same(counts, (ids[ids >= 0] // PER_RANK).bincount(minlength=RANKS))


@pytest.mark.parametrize("everywhere", [False, True])
def test_shared_experts_of_ranks(everywhere: bool) -> None:
    tokens, source = 40, 1
    ids, weights, load = drawn(17, tokens, TOP) - 1, uniform(tokens, TOP), longs(20, 30, 33, 90)
    ids[3] = -1
    got, shares = function("moe.deepep_waterfill_kernels", "materialize_waterfill_dispatch_fused")(
        ids, weights, load, PER_RANK * RANKS, RANKS, source, 0.7, everywhere
    )
    total = int(load.sum())
    level = (total + total // TOP + RANKS - 1) // RANKS
    for t in range(tokens):
        there = [i for i in ids[t].tolist() if i >= 0]
        ranks = set(range(RANKS)) if everywhere else {source, *(i // PER_RANK for i in there)}
        room = [max(level - int(load[r]), 0) if r in ranks else 0 for r in range(RANKS)]
        room = [w if r == source else w * 10 // 11 for r, w in enumerate(room)]
        draw = ((t ^ source * 0x9E3779B9) * 1664525 + 1013904223) & 0xFFFFFFFF
        left, rank = draw % sum(room), 0
        while left >= room[rank]:
            left, rank = left - room[rank], rank + 1
        shared = rank * (PER_RANK + 1) + PER_RANK if there else -1
        moved = [i + i // PER_RANK if i >= 0 else i for i in ids[t].tolist()]
        assert got[t].tolist() == [*moved, shared]
    same(shares[:, :TOP], weights * (ids >= 0))
    same(shares[:, TOP], torch.where((ids >= 0).any(1), 0.7, 0.0))


# ---- adapters of experts


@pytest.mark.parametrize("folder", ["moe", "moe.trtllm_lora_temp"])
def test_virtual_experts(folder: str) -> None:
    path = f"{folder}.virtual_experts"
    ids, adapters = drawn(6, 5, 2, dtype=torch.int32), ints(1, -1, 0, 1, 0)
    got, use, count = function(path, "_fused_virtual_topk_ids")(ids, adapters, 6, False, 2)[:3]
    wanted = ids + adapters.clamp(min=0)[:, None] * 6
    if folder != "moe":
        wanted[1] = -1
    same(got, wanted)
    same(use, adapters >= 0)
    assert count == 12
    same(function(path, "fused_sanitize_expert_ids")(ints(3, 12, 11, -1), 12), ints(3, -1, 11, -1))
    x, w, out = randn(5, 200), randn(12, 16, 200), torch.zeros(10, 16)
    spread = torch.where(wanted < 0, 0, wanted)
    order, owners, length = aligned(spread, 16, 12)
    config = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 16, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}
    function(path, "_invoke_moe_lora_shrink_splitk")(
        x, w, out, ids, order, owners, length, 2, config
    )
    rows = x.double().repeat_interleave(2, 0)
    close(out, torch.einsum("rk,rnk->rn", rows, w.double()[spread.flatten().long()]), factor=10)


@pytest.mark.parametrize("summed", [False, True])
def test_expanded_adapters(summed: bool) -> None:
    ids, weights = drawn(4, 5, 2, dtype=torch.int32), uniform(5, 2)
    x, w = randn(10, 32), randn(4, 64, 16)
    out = torch.zeros(5 if summed else 10, 64)
    order, owners, length = aligned(ids, 16, 4)
    config = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32}
    function(".srt.lora.trtllm_lora_temp.specialized_expand", "_invoke_moe_lora_expand_add")(
        x, w, out, weights, ids, order, owners, length, config, True, summed
    )
    pick = w.double()[ids.flatten().long()]
    low = torch.einsum("rk,rnk->rn", x[:, :16].double(), pick[:, :32])
    high = torch.einsum("rk,rnk->rn", x[:, 16:].double(), pick[:, 32:])
    wanted = torch.cat((low, high), 1) * weights.double().view(10, 1)
    close(out, wanted.view(5, 2, 64).sum(1) if summed else wanted)


def test_direct_adapters() -> None:
    top, rank, half = 6, 32, 128
    ids, adapters = drawn(8, 3, top, dtype=torch.int32), ints(1, -1, 0)
    path = ".srt.lora.marlin_lora_temp.direct_decode"
    x, w, out = randn(2, 3, 2 * rank), randn(2, 8, 2 * half, rank), torch.empty(3, top, 2 * half)
    function(path, "direct_decode_gate_expand")(x, w, ids, adapters, out)
    y, a, low = randn(3 * top, half), randn(2, 8, rank, half), torch.empty(3, top, rank)
    function(path, "direct_decode_down_shrink")(y, a, ids, adapters, low)
    for t, s in enumerate(adapters.tolist()):
        if s < 0:
            assert (out[t] == 0).all() and (low[t] == 0).all()
            continue
        for k in range(top):
            e = int(ids[t, k])
            halves = [x[s, t, i * rank :][:rank].double() @ w[s, e, i * half :][:half].double().T
                      for i in range(2)]  # fmt: skip
            close(out[t, k], torch.cat(halves))
            close(low[t, k], y[t * top + k].double() @ a[s, e].double().T, factor=10)
    base, delta, out = randn(5, 200), randn(5, 200, seed=1), torch.empty(5, 100)
    function(".srt.lora.marlin_lora_temp.activation", "silu_and_mul_add_delta")(base, delta, out)
    gate, up = (base.double() + delta.double()).chunk(2, -1)
    close(out, F.silu(gate) * up)
