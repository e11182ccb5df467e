"""SGLang: attention over its cache, and what moves tokens, slots and pages; its own tests do the
rest."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from reference import attention, close, randn, same
from sglang_parts import function, ints, sums

HEADS, WIDTH = 4, 32
PREFIX, NEW = (3, 20), (5, 17)


def cache(kv_heads: int) -> tuple[torch.Tensor, ...]:
    k, v = randn(64, kv_heads, WIDTH), randn(64, kv_heads, WIDTH, seed=1)
    return k, v, torch.randperm(64, generator=torch.Generator().manual_seed(1))


def spread(x: torch.Tensor) -> torch.Tensor:
    """(length, heads, width) as (all heads, length, width)."""
    return x.repeat_interleave(HEADS // x.shape[1], 1).transpose(0, 1)


# ---- attention


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_decoding(kv_heads: int) -> None:
    k, v, slots = cache(kv_heads)
    lengths = (5, 37)
    q = randn(2, HEADS, WIDTH, seed=2)
    o, parts, weights = torch.empty_like(q), torch.empty(2, HEADS, 2, WIDTH), torch.empty(2, 4, 2)
    function("attention.decode_attention", "decode_attention_fwd")(
        q, k, v, o, sums(lengths), slots[:42], parts, weights, ints(2, 2), 2, 0.2, 1.0, 1.0
    )
    for b, at in enumerate(slots[:42].split(lengths)):
        wanted = attention(q[b][:, None], spread(k[at]), spread(v[at]), scale=0.2)
        close(o[b], wanted[:, 0])


@pytest.mark.parametrize("unified", [False, True])
def test_extending(unified: bool) -> None:
    k, v, slots = cache(2)
    q, k_new, v_new = (randn(sum(NEW), h, WIDTH, seed=h) for h in (HEADS, 2, 2))
    v_new = v_new + 1
    old, new = slots[: sum(PREFIX)], slots[sum(PREFIX) : sum(PREFIX) + sum(NEW)]
    k[new], v[new] = k_new, v_new
    o = torch.empty_like(q)
    pieces = list(zip(old.split(PREFIX), new.split(NEW), strict=True))
    if unified:
        whole = torch.cat([torch.cat(p) for p in pieces])
        total = sums(tuple(p + n for p, n in zip(PREFIX, NEW, strict=True)))
        function("attention.extend_attention", "extend_attention_fwd_unified")(
            q, o, k, v, 1.0, 1.0, sums(NEW), total, whole, ints(*PREFIX), max(NEW)
        )
    else:
        function("attention.extend_attention", "extend_attention_fwd")(
            q, k_new, v_new, o, k, v, sums(NEW), sums(PREFIX), old, None, True, None, max(NEW),
            1.0, 1.0,
        )  # fmt: skip
    for part, got, at in zip(q.split(NEW), o.split(NEW), map(torch.cat, pieces), strict=True):
        wanted = attention(spread(part), spread(k[at]), spread(v[at]), causal=True)
        close(got, wanted.transpose(0, 1))


@pytest.mark.parametrize("causal", [False, True])
def test_prefill(causal: bool) -> None:
    q, k, v = (randn(sum(NEW), h, WIDTH, seed=h) for h in (HEADS, 2, 2))
    o = torch.empty_like(q)
    forward = function("attention.prefill_attention", "context_attention_fwd")
    forward(q, k, v, o, sums(NEW)[:2], ints(*NEW), max(NEW), is_causal=causal)
    for parts, got in zip(zip(*(x.split(NEW) for x in (q, k, v)), strict=True), o.split(NEW),
                          strict=True):  # fmt: skip
        q, k, v = map(spread, parts)
        close(got, attention(q, k, v, causal=causal).transpose(0, 1))


def test_merged_states() -> None:
    a, b = randn(5, HEADS, 40), randn(5, HEADS, 40, seed=1)
    x, y = randn(5, HEADS), randn(5, HEADS, seed=1)
    x[0, 0] = -torch.inf
    got, weight = function("attention.merge_state", "merge_state_triton")(a, x, b, y)
    both = torch.stack((x, y)).double()
    share = both.softmax(0)[..., None]
    close(got, a.double() * share[0] + b.double() * share[1])
    close(weight, both.logsumexp(0))


def test_positions() -> None:
    forward = function("attention.position", "compute_position_triton")
    at, starts = forward(ints(*PREFIX), ints(*NEW), sum(NEW))
    same(at, torch.cat([torch.arange(p, p + n) for p, n in zip(PREFIX, NEW, strict=True)]))
    same(starts, sums(NEW)[:2])


# ---- elements


def test_capped_scores() -> None:
    x = 40 * randn(5, 300)
    wanted = 30 * torch.tanh(x.double() / 30)
    close(function("activation.softcap", "softcap_out")(x, 30.0), wanted, factor=10)
    close(function("activation.softcap", "softcap_inplace_logits")(x.clone(), 30.0), wanted)
    part = x[:, :200]
    assert function("activation.softcap", "softcap_inplace_logits")(part, 30.0) is part
    close(x[:, :200], wanted[:, :200])


def test_gates_of_delta_nets() -> None:
    log, a, b, bias = randn(12), randn(5, 12), randn(5, 12, seed=1), randn(12, seed=1)
    g, beta = function("attention.fla.fused_gdn_gating", "fused_gdn_gating")(log, a, b, bias)
    close(g[0], -log.double().exp() * F.softplus(a.double() + bias))
    close(beta[0], b.double().sigmoid())


def test_heads_of_hyper_connections() -> None:
    x, w, scale, base = randn(5, 4, 96), randn(4, 384) / 8, randn(1), randn(4)
    got = function("layernorm.mhc_head", "fused_hc_head")(x, w, scale, base, 1e-5, 1e-3)
    flat = x.double().flatten(1)
    norm = torch.rsqrt(flat.square().mean(-1, keepdim=True) + 1e-5)
    gate = torch.sigmoid(flat @ w.double().T * norm * scale + base) + 1e-3
    close(got, (gate[..., None] * x.double()).sum(1))


@pytest.mark.parametrize("mapped", [False, True])
def test_sum_over_experts(mapped: bool) -> None:
    forward = function("moe.moe_fused_mul_sum", "moe_fused_mul_sum")
    x, w = randn(5, 2, 96), randn(5, 2)
    ids, where = torch.tensor([[0, 1], [2, 3]] * 2 + [[3, 0]]).int(), ints(0, -1, 1, -1)
    got = forward(x, w, topk_ids=ids, expert_map=where) if mapped else forward(x, w)
    use = w.double() * (where[ids.long()] >= 0) if mapped else w.double()
    close(got, (x.double() * use[..., None]).sum(1))


# ---- slots and pages

TABLE = torch.arange(4 * 600, dtype=torch.int32).view(4, 600)


def test_indices_of_tokens() -> None:
    kernel = function("kvcache.kv_indices", "create_flashinfer_kv_indices_triton")
    lengths, out = (5, 550), torch.zeros(555, dtype=torch.int32)
    kernel[(2,)](TABLE, ints(3, 1), ints(*lengths), sums(lengths), ints(7, 40), out, 600)
    same(out, torch.cat((TABLE[3, 7:12], TABLE[1, 40:590])))
    kernel = function("kvcache.kv_indices", "create_chunked_prefix_cache_kv_indices")
    out.zero_()
    kernel[(2,)](TABLE, ints(3, 1), ints(7, 40), ints(*lengths), sums(lengths), out, 600)
    same(out, torch.cat((TABLE[3, 7:12], TABLE[1, 40:590])))


def test_moved_slots() -> None:
    layers = [randn(16, 24, seed=s) for s in range(3)]
    before = [x.clone() for x in layers]
    addresses = torch.tensor([x.data_ptr() for x in layers], dtype=torch.uint64)
    kernel = function("kvcache.cache_move", "copy_all_layer_kv_cache_tiled")
    source, target = torch.tensor([1, 2, 3]), torch.tensor([2, 3, 9])  # they overlap
    strides = torch.tensor([96] * 3)
    kernel[(3, 1)](addresses, strides, target, source, 3, 4, BYTES_PER_TILE=128)
    for x, old in zip(layers, before, strict=True):
        old[target] = old[source]
        same(x, old)


def test_stored_pages() -> None:
    k, v = torch.zeros(4, 8, 2, 16), torch.zeros(4, 8, 2, 16)
    new_k, new_v, at = randn(3, 2, 16), randn(3, 2, 16, seed=1), torch.tensor([5, 8, 31])
    function("kvcache.cache_move", "store_cache_4d")(k, v, new_k, new_v, at, 8)
    same(k.view(32, 2, 16)[at], new_k)
    same(v.view(32, 2, 16)[at], new_v)
    raw = torch.full((4 * 64,), 7, dtype=torch.uint8)
    function("kvcache.zero_pages", "zero_pages")(raw, torch.tensor([2, 0]), 4, 64)
    same(raw.view(4, 64)[:, 0], torch.tensor([0, 7, 0, 7]))


def test_pages_bound_to_slots() -> None:
    forward = function("memory.virtual_slot", "alloc_bind_inplace")
    to, back = torch.zeros(8, dtype=torch.int64), torch.zeros(16, dtype=torch.int64)
    same(forward(torch.tensor([3, 1, 6]), to, back, 4), torch.tensor([4, 5, 6]))
    assert to[[3, 1, 6]].tolist() == [4, 5, 6] and back[4:7].tolist() == [3, 1, 6]


def test_states_of_requests() -> None:
    forward = function("mamba.mamba_state_indices_triton", "fused_replay_state_indices")
    requests, out = ints(2, 0, 5, 5), torch.zeros(4, dtype=torch.int32)
    got = forward(
        req_pool_indices=requests,
        mamba_index_mapping=ints(10, 11, 12),
        out_state_indices=out,
        valid_bs=2,
        total_bs=4,
    )
    same(got, ints(12, 10, -1, -1))
    same(requests, ints(2, 0, 0, 0))
