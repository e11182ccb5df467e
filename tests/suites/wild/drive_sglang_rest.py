"""SGLang: samples, caches of latent attention, and kernels of single models."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from reference import close, randn, same
from sglang_parts import drawn, function, ints, longs, nearest, uniform

NARROW = torch.float8_e4m3fn
MASK = 0xFFFFFFFF


# ---- samples


def mixed_in(h: int, k: int) -> int:
    k = k * 0xCC9E2D51 & MASK
    k = (k << 15 | k >> 17) & MASK
    h ^= k * 0x1B873593 & MASK
    h = (h << 13 | h >> 19) & MASK
    return (h * 5 + 0xE6546B64) & MASK


def test_hashes() -> None:
    seeds, at, columns = drawn(2**62, 3), drawn(999, 3), drawn(99999, 7)
    got = function("sampling.murmur_hash", "murmur_hash32")(seeds, at, columns)
    for row in range(3):
        for column in range(7):
            h, seed = 0, int(seeds[row])
            for k in (seed & MASK, seed >> 32, int(at[row]), int(columns[column])):
                h = mixed_in(h, k)
            h ^= 16
            h = (h ^ h >> 16) * 0x85EBCA6B & MASK
            h = (h ^ h >> 13) * 0xC2B2AE35 & MASK
            assert int(got[row, column]) == h ^ h >> 16


def test_most_likely() -> None:
    p, most = randn(3, 3000).softmax(-1), torch.tensor([0.5, 0.9, 1.0])
    got = function("sampling.top_p_renorm_triton", "top_p_renorm_probs_triton")(p, most)
    for row in range(3):
        low, at = p[row].double().sort()
        first = int((low.cumsum(0) < 1 - float(most[row]) - 1e-6).sum())
        wanted = p[row].double().clone()
        wanted[at[:first]] = 0
        close(got[row], wanted / wanted.sum(), factor=2)


# ---- latent keys: 512 numbers of 8 bits, 4 scales, 64 numbers of 16 bits


def narrow_cache() -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of 656 bytes, and what they stand for."""
    keys, scales = randn(10, 512).to(NARROW), uniform(10, 4)
    rest = randn(10, 64, dtype=torch.bfloat16)
    parts = keys.view(torch.uint8), scales.view(torch.uint8), rest.view(torch.uint8)
    wide = keys.double() * scales.double().repeat_interleave(128, 1)
    return torch.cat(parts, 1).view(NARROW), torch.cat((wide, rest.double()), 1)


def test_wide_keys() -> None:
    path, at = "attention.dsa.dequant_k_cache", longs(3, 9, 0, 3, 7)
    cache, wanted = narrow_cache()
    close(function(path, "_dequantize_k_cache_fast")(cache), wanted)
    close(function(path, "dequantize_k_cache_paged")(cache, at)[:, 0], wanted[at])
    got = function(path, "gather_dequant_requant_fp8_paged_legacy")(cache, at, extra_rows=2)
    nearest(got[:5, 0], wanted[at])
    assert (got[5:].float() == 0).all()
    got = function(path, "gather_dequant_requant_fp8_paged")(cache, at, extra_rows=2)
    nearest(got[:5, 0], wanted[at])
    assert (got[5:].float() == 0).all()
    low, high, out = randn(5, 512), randn(5, 64), torch.zeros(7, 576).to(NARROW)
    kernel = function(path, "_concat_cast_kv_fp8_pad_kernel")
    kernel[(7,)](out, low, high, 5, 512, 64, NOPE=512, ROPE=64)
    same(out[:5].float(), torch.cat((low, high), 1).to(NARROW).float())


# ---- experts of single models


@pytest.mark.parametrize("both", [False, True])
def test_gates_of_kimi(both: bool) -> None:
    x, out = randn(5, 600), torch.empty(5, 300)
    path = ".srt.layers.moe.fused_moe_triton.fused_marlin_moe"
    function(path, "situ_and_mul")(out, x, 2.0, 3.0 if both else None)
    gate, up = x.double().chunk(2, -1)
    gate = 2 * torch.tanh(gate / 2) * gate.sigmoid()
    close(out, gate * (3 * torch.tanh(up / 3) if both else up))


def test_unpacked_routes() -> None:
    ids, weights = drawn(200, 5, 6, dtype=torch.int32), randn(5, 6).bfloat16()
    packed = ids << 16 | weights.view(torch.int16).int() & 0xFFFF
    got, found = function(".srt.layers.moe.moe_runner.marlin", "_fused_unpack_packed_topk")(packed)
    same(got, ids)
    same(found, weights.float())


def test_shared_adapters() -> None:
    path, tokens, top, rank = ".srt.lora.marlin_lora_temp.shared_outer", 5, 3, 16
    x, weights, out = randn(tokens, top, rank), uniform(tokens, top), torch.empty(tokens, rank)
    function(path, "weighted_topk_rank_sum")(x, weights, out, 2.5, block_m=2)
    summed = (x.double() * weights.double()[..., None]).sum(1) * 2.5
    close(out, summed)
    base, w = randn(tokens, top, 64).bfloat16(), randn(64, rank).bfloat16()
    narrow, out = x.bfloat16(), torch.empty(tokens, 64).bfloat16()
    function(path, "fused_base_shared_lora_reduce")(
        base, narrow, weights, w, out, 2.5, block_m=2, block_k=32
    )
    low = (narrow.double() * weights.double()[..., None]).sum(1) * 2.5
    plain = base.double().sum(1) * 2.5
    close(out, plain + low @ w.double().T, factor=2)
    several, slots = randn(2, 1, 64, rank).bfloat16(), ints(1, -1, 0, 0, 1)
    function(path, "fused_base_mapped_shared_lora_reduce")(
        base, narrow, weights, several, slots, out, 2.5, block_k=32
    )
    for t, s in enumerate(slots.tolist()):
        more = low[t] @ several[s, 0].double().T if s >= 0 else 0
        close(out[t], plain[t] + more, factor=2)


def test_groups_of_dots() -> None:
    x = randn(5, 3, 256)
    got, scale = function(".srt.models.dots3_common.fp8", "per_token_group_quant_einsum_fp8")(x)
    wanted = x.double().unflatten(-1, (2, 128)).abs().amax(-1) / 448
    close(scale, wanted)
    nearest(got, x.double() / wanted.repeat_interleave(128, -1))


@pytest.mark.parametrize("shared", [0, 2])
def test_weights_of_inkling(shared: int) -> None:
    x, ids, scale = randn(5, 20 + shared), drawn(20, 5, 4), torch.tensor([0.5])
    got, rest = function(".srt.models.inkling_common.moe", "renorm_topk_logits_scaled")(
        x, ids, shared, 2.5, scale
    )
    chances = torch.cat((x.gather(1, ids), x[:, 20:]), 1).double().sigmoid()
    wanted = chances / chances.sum(1, keepdim=True) * 1.25
    close(got, wanted[:, :4])
    if shared:
        close(rest, wanted[:, 4:])


# ---- drafts of DSpark

ACCEPT = "speculative.dspark.dspark_accept"


def test_accepted_drafts() -> None:
    index, predicts, count = drawn(20, 4, 5), drawn(999, 20), ints(0, 4, 2, 1)
    rows = torch.arange(4)
    got = function(ACCEPT, "gather_two_level_bonus_triton")(
        accept_index=index, predicts=predicts, correct_len=count
    )
    same(got, predicts[index[rows, count.long()]])
    got = function(ACCEPT, "gather_row_bonus_triton")(table=index, idx=count)
    same(got, index[rows, count.long()])
    x, heat = randn(6, 5000), torch.tensor([0.5, 1.0, 2.0])
    got = function(ACCEPT, "softmax_temp_triton")(logits=x, temperatures=heat, rows_per_request=2)
    close(got, (x.double() / heat.double().repeat_interleave(2)[:, None]).softmax(-1))
    capped, cut = function(ACCEPT, "cap_correct_len_triton")(
        correct_len=count, verify_lens=ints(3, 3, 3, 2)
    )
    same(capped, ints(0, 2, 2, 1))
    same(cut, ints(0, 2, 0, 0))
    found = function(ACCEPT, "finalize_accept_lens_triton")(
        correct_len=count, cap_trim_lens=cut, prefix_lens=longs(10, 20, 30, 40)
    )
    same(found.commit_lens, count + 1)
    same(found.new_seq_lens, longs(11, 25, 33, 42))
    parts = [drawn(99, 4, seed=s) for s in range(6)]
    greedy = torch.tensor([True, False, False, True])
    names = ("len", "bonus", "trim")
    given = {f"greedy_{n}": parts[k] for k, n in enumerate(names)}
    given |= {f"sampling_{n}": parts[k + 3] for k, n in enumerate(names)}
    found = function(ACCEPT, "select_mixed_accept_triton")(greedy_mask=greedy, **given)
    fields = (found.correct_len, found.bonus, found.cap_trim_lens)
    for k, got in enumerate(fields):
        same(got, torch.where(greedy, parts[k], parts[k + 3]))


def test_windows_of_drafts() -> None:
    path = "speculative.dspark.dspark_attn_metadata"
    table, far = drawn(900, 5, 100, dtype=torch.int32), drawn(500, 900, dtype=torch.int32)
    lengths, block, window = longs(3, 70), 4, 16
    each = function(path, "build_block_seq_lens_causal_triton")(
        seq_lens=lengths, block_size=block, device=torch.device("cpu")
    )
    same(each, (lengths[:, None] + 1 + torch.arange(4)).flatten())
    requests = longs(2, 4).repeat_interleave(block)
    found = function(path, "compute_dspark_window_gather_triton")(
        seq_lens_casual=each, req_pool_indices_repeated=requests, block_size=block,
        swa_window=window,
    )  # fmt: skip
    at = lengths[:, None] - window + torch.arange(window)
    same(found.context_lens, lengths.clamp(max=window))
    same(found.req_pool_indices_per_request, longs(2, 4))
    same(found.invalid, at < 0)
    same(found.offsets, at.clamp(min=0))
    new = drawn(900, 8)
    got, count = function(path, "build_dspark_swa_page_indices_triton")(
        req_to_token=table, full_to_swa_mapping=far, req_pool_indices_per_request=longs(2, 4),
        offsets=found.offsets, out_loc=new, context_lens=found.context_lens, block_size=block,
        swa_window=window, page_index_aligned_size=32,
    )  # fmt: skip
    for b, (r, n) in enumerate(((2, 3), (4, 70))):
        seen = torch.cat((table[r, max(n - window, 0) : n].long(), new[b * 4 : b * 4 + 4]))
        wanted = F.pad(far[seen], (0, 32 - len(seen)), value=-1)
        for q in range(block):
            same(got[b * block + q], wanted)
            assert count[b * block + q] == len(seen)


def test_verified_windows() -> None:
    path, lengths, total = "speculative.dspark.dspark_verify_window", longs(3, 1, 4), 10
    about = SimpleNamespace(verify_lens=lengths, graph_num_tokens=total)
    owner = torch.cat((torch.arange(3).repeat_interleave(lengths), longs(3, 3)))
    inside = longs(0, 1, 2, 0, 0, 1, 2, 3, 0, 0)
    request, within, valid = function(path, "compact_row_index_triton")(
        verify_lens=lengths, padded_total=total, device="cpu"
    )
    same(request, owner)
    same(within, inside)
    same(valid, owner < 3)
    ids, drafts = drawn(99, 3, 4), drawn(99, 3, 4, seed=1)
    got = function(path, "compact_verify_ids_triton")(
        draft_block_ids=ids, draft_tokens=drafts, layout=about, device="cpu"
    )
    parts = [torch.cat((ids[k, :1], drafts[k]))[:n] for k, n in enumerate(lengths)]
    same(got, torch.cat((*parts, longs(0, 0))))
    before, slots, at, out = longs(10, 20, 30), drawn(999, 8), longs(*[-1] * 10), longs(*[-1] * 10)
    kernel = function(path, "_ragged_finalize_kernel")
    kernel[(1,)](request, within, before, slots, at, out, 3, total, 8, BLOCK=16)
    same(at, torch.cat((before.repeat_interleave(lengths) + inside[:8], longs(0, 0))))
    same(out, torch.cat((slots, longs(0, 0))))
    rows = randn(8, 40)
    got = function(path, "scatter_compact_to_strided_triton")(
        compact=rows, layout=about, fill_value=-5.0, verify_num_draft_tokens=5
    )
    for k, part in enumerate(rows.split(lengths.tolist())):
        same(got[5 * k : 5 * k + 5], F.pad(part, (0, 0, 0, 5 - len(part)), value=-5.0))
    table, far = drawn(900, 5, 100, dtype=torch.int32), drawn(500, 900, dtype=torch.int32)
    found = function(path, "build_commit_inject_layout_triton")(
        req_pool_indices=longs(2, 4, 0), req_to_token=table, prefix_lens=before,
        block_pos_offsets=torch.arange(5), full_to_swa_mapping=far, commit_lens=lengths, stride=5,
    )  # fmt: skip
    at = before[:, None] + torch.arange(5)
    same(found.positions, at.flatten())
    near = far[table[longs(2, 4, 0)[:, None], at].long()]
    same(found.swa_loc, torch.where(torch.arange(5) < lengths[:, None], near, -1).flatten())
    got = function(path, "build_out_tokens_triton")(
        draft_tokens=drafts, correct_len=ints(0, 4, 2), bonus=longs(7, 8, 9),
        verify_num_draft_tokens=5, gamma=4,
    )  # fmt: skip
    wanted = F.pad(drafts, (0, 1))
    wanted[torch.arange(3), longs(0, 4, 2)] = longs(7, 8, 9)
    same(got, wanted)


def test_gates() -> None:
    path, x, gate = "moe.triton_sigmoid_gate_mul", randn(5, 300), randn(5, 300, seed=1)
    close(function(path, "sigmoid_gate_mul")(x, gate), x.double() * gate.double().sigmoid())
    got = function(path, "sigmoid_gate_mul_broadcast")(x, gate[:, :1].contiguous())
    close(got, x.double() * gate[:, :1].double().sigmoid())
