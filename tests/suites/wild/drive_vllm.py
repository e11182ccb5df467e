"""vLLM: what prepares a batch, sampling, norms, gates and sums of experts; its own tests do the
rest."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from reference import close, randn, rms_norm, same

GPU = "v1.worker.gpu."
LAYERS = "model_executor.layers."


def function(path: str, name: str) -> Any:
    return getattr(import_module(f"vllm.{path}"), name)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def logits(rows: int = 3, words: int = 1500) -> torch.Tensor:
    return randn(rows, words)


# ---- preparing a batch: requests 2 and 0 of four, with 3 and 1 new tokens

AT, STARTS, COMPUTED, PREFILL = ints(2, 0), ints(0, 3, 4), ints(7, 0, 2, 0), ints(5, 0, 6, 0)
TOKENS = torch.arange(40, dtype=torch.int32).view(4, 10) + 100


def test_tokens_of_prompts() -> None:
    ids, ahead = torch.zeros(4, dtype=torch.int32), torch.zeros(2, 4, dtype=torch.int32)
    forward = function(GPU + "input_batch", "prepare_prefill_inputs")
    forward(ids, ahead, AT, STARTS, TOKENS, PREFILL, COMPUTED)
    same(ids, ints(122, 123, 124, 0))  # request 0 is past its prompt
    same(ahead, torch.tensor([[0, 0, 125, 0], [0, 0, 0, 0]]))


def test_positions_and_lengths() -> None:
    positions, lengths = torch.zeros(4, dtype=torch.int64), torch.full((4,), 9, dtype=torch.int32)
    forward = function(GPU + "input_batch", "prepare_pos_seq_lens")
    forward(AT, STARTS, COMPUTED, positions, lengths)
    same(positions, torch.tensor([2, 3, 4, 7]))
    same(lengths, ints(5, 8, 0, 0))


def test_sampled_and_draft_tokens() -> None:
    ids, drafts = torch.zeros(4, dtype=torch.int32), TOKENS[:, :2].contiguous()
    forward = function(GPU + "input_batch", "combine_sampled_and_draft_tokens")
    at = forward(ids, AT, ints(50, 51, 52, 53), STARTS, ints(9, 8), PREFILL, drafts,
                 ints(0, 3, 4), 4)  # fmt: skip
    same(at, torch.arange(4))
    same(ids, ints(52, 120, 121, 50))


def test_counts_of_sampled_tokens() -> None:
    forward = function(GPU + "input_batch", "get_num_sampled_and_rejected")
    got = forward(ints(2, 1), ints(4, 8), ints(0, 3, 4), AT, PREFILL)
    same(got[0], ints(0, 1))
    same(got[1], ints(0, 0))


def test_state_after_a_step() -> None:
    computed, last = COMPUTED.clone(), torch.zeros(4, dtype=torch.int32)
    counts, tokens = torch.zeros(4, 60, dtype=torch.int32), TOKENS.clone()
    sampled, total = torch.tensor([[5, 5], [7, 0]]), ints(8, 0, 5, 0)
    forward = function(GPU + "input_batch", "post_update")
    forward(AT, computed, last, counts, sampled, ints(2, 1), ints(1, 0), STARTS, tokens, total)
    same(computed, COMPUTED + ints(1, 0, 2, 0))
    same(last, ints(7, 0, 5, 0))
    same(total, ints(9, 0, 7, 0))
    assert counts[2, 5] == 2 and counts[0, 7] == 1 and counts.sum() == 3
    assert tokens[2, 5:7].tolist() == [5, 5] and tokens[0, 8] == 7
    function(GPU + "input_batch", "post_update_num_computed_tokens")(AT, computed, STARTS)
    same(computed, COMPUTED + ints(2, 0, 5, 0))


def test_requests_of_scores() -> None:
    forward = function(GPU + "input_batch", "expand_idx_mapping")
    rows, places = forward(AT, 4, ints(0, 3, 4), 3)
    same(rows, ints(2, 2, 2, 0))
    same(places, ints(0, 1, 2, 0))


def test_lengths_of_a_rank() -> None:
    kernel = function(GPU + "cp_utils", "_dcp_local_seq_lens_kernel")
    out = torch.full((6,), 9, dtype=torch.int32)
    lengths = ints(5, 8, 17, 3)
    kernel[(1,)](out, lengths, 2, 1, 2, 4, 6, BLOCK_SIZE=128)
    mine = [sum((p // 2) % 2 == 1 for p in range(n)) for n in lengths.tolist()]
    same(out, ints(*mine, 0, 0))


def test_tokens_that_prompts_predict() -> None:
    forward = function(GPU + "sample.prompt_logprob", "get_prompt_logprobs_token_ids")
    same(forward(4, STARTS, AT, COMPUTED, TOKENS), torch.tensor([123, 124, 125, 108]))


def test_positions_of_images() -> None:
    kernel = function(GPU + "mm.rope", "_prepare_rope_positions_kernel")
    stored = torch.arange(120, dtype=torch.int32).view(4, 3, 10)
    out = torch.zeros(3, 4, dtype=torch.int64)
    kernel[(2,)](
        out, out.stride(0), stored, stored.stride(0), stored.stride(1), ints(30, 0, 0, 0), AT,
        STARTS, PREFILL, COMPUTED, BLOCK_SIZE=16, NUM_DIMS=3,
    )  # fmt: skip
    same(out, torch.cat((stored[2, :, 2:5], torch.full((3, 1), 37)), 1))


# ---- sampling


def test_values_that_are_no_numbers() -> None:
    x = logits()
    x[1, [3, 1400]] = torch.nan
    same(function(GPU + "metrics.logits", "get_num_nans")(x), ints(0, 2, 0))


def test_least_probability() -> None:
    x, least = logits(), torch.tensor([0.0, 0.2, 0.01])
    got = x.clone()
    function(GPU + "sample.min_p", "apply_min_p")(got, ints(1, 2, 0), least)
    share = x.softmax(-1)
    low = share < share.amax(-1, keepdim=True) * least[[1, 2, 0]][:, None]
    same(got, x.masked_fill(low, -torch.inf))


def test_log_probabilities() -> None:
    x, ids = logits(), torch.tensor([4, 900, 1499])
    got = function(GPU + "sample.logprob", "compute_topk_scores")(x, 2, ids)
    wanted = torch.cat((ids[:, None], x.topk(2).indices), 1)
    same(got.logprob_token_ids, wanted)
    close(got.logprobs, x.double().log_softmax(-1).gather(1, wanted))
    same(got.selected_token_ranks, (x >= x.gather(1, ids[:, None])).sum(1))


def test_log_probabilities_of_chosen_tokens() -> None:
    kernel = function(GPU + "sample.logprob", "_fill_logprob_token_ids_kernel")
    out, valid = torch.zeros(2, 4, dtype=torch.int64), torch.zeros(2, 4, dtype=torch.bool)
    best, own = ints(7, 8, 9, 10).view(2, 2), TOKENS[:, :3].contiguous()
    kernel[(2,)](
        out, 4, valid, 4, torch.tensor([1, 2]), best, 2, AT, ints(0, 0, 3, 0), own, 3,
        NUM_TOPK=2, PADDED_COLS=4,
    )  # fmt: skip
    same(out, torch.tensor([[1, 120, 121, 122], [2, 9, 10, 0]]))
    same(valid, torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]).bool())


def test_penalties() -> None:
    path, words = GPU + "sample.penalties", 1500
    tokens = torch.randint(0, words, (4, 10), generator=torch.Generator().manual_seed(0)).int()
    seen = torch.zeros(4, (words + 31) // 32, dtype=torch.int32)
    counts = torch.zeros(4, words, dtype=torch.int32)
    function(path, "bincount")(AT, tokens, ints(4, 0, 6, 0), ints(9, 0, 8, 0), seen, counts, 10)
    prompt = torch.zeros(4, words, dtype=torch.bool)
    wanted = torch.zeros(4, words)
    for r, (p, n) in {0: (4, 9), 2: (6, 8)}.items():
        prompt[r, tokens[r, :p].long()] = True
        wanted[r] = torch.bincount(tokens[r, p:n].long(), minlength=words)
    same(counts, wanted)
    bits = (seen[:, :, None] >> torch.arange(32) & 1).flatten(1)[:, :words]
    same(bits.bool(), prompt)
    x, drafts = logits(2), ints(3, 4)
    rep, freq, pres = torch.tensor([1.3, 1, 0.7, 1]), torch.rand(4), torch.rand(4)
    got = x.clone()
    function(path, "apply_penalties")(
        got, ints(2, 2), drafts, ints(0, 1), rep, freq, pres, seen, counts
    )
    exact = x.double()
    for row in range(2):
        n = counts[2].clone()
        n[drafts[1]] += row  # the draft before the second row was accepted
        scale = torch.where(prompt[2] | (n > 0), rep[2].double(), 1.0)
        line = torch.where(exact[row] > 0, exact[row] / scale, exact[row] * scale)
        exact[row] = line - freq[2].double() * n - pres[2].double() * (n > 0)
    close(got, exact)


def test_biases() -> None:
    x = logits(2)
    got = x.clone()
    ids = torch.tensor([[1, 2], [3, 4], [5, 1499], [6, 7]], dtype=torch.int32)
    bias = randn(4, 2)
    function(GPU + "sample.logit_bias", "apply_logit_bias")(
        got, AT, torch.tensor([3, 3]), ints(0, 0, 2, 0), ids, ints(2, 0, 1, 0), ids, bias,
        ints(9, 0, 0, 0), ints(1, 0, 2, 0), ids + 20,
    )  # fmt: skip
    wanted = torch.full_like(x[0], -torch.inf)
    wanted[[5, 1499]] = x[0, [5, 1499]]
    wanted[5] += bias[2, 0]
    same(got[0], wanted)
    wanted = x[1].clone()
    wanted[[1, 2]] += bias[0]
    wanted[21] = -torch.inf
    same(got[1], wanted)


# ---- norms, gates, sums


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norm_with_a_gate(kind: str) -> None:
    forward = function(LAYERS + "mamba.ops.layernorm_gated", "_layer_norm_fwd")
    x, z, w, b = randn(5, 96), randn(5, 96, seed=1), randn(96), randn(96, seed=1)
    rms = kind == "rms"
    out, _, _ = forward(x, w, None if rms else b, 1e-5, z=z, group_size=48, is_rms_norm=rms)
    groups = x.double().view(5, 2, 48)
    if rms:
        wanted = rms_norm(groups, torch.ones(48), 1e-5).view(5, 96) * w
    else:
        wanted = F.layer_norm(groups, (48,), eps=1e-5).view(5, 96) * w + b
    close(out, wanted * F.silu(z.double()))


def test_norms_of_queries_and_keys() -> None:
    q, kv, w, v = randn(5, 96), randn(5, 40), randn(96), randn(40)
    got = function("models.common.ops.fused_qk_rmsnorm", "fused_q_kv_rmsnorm")(q, kv, w, v, 1e-5)
    close(got[0], rms_norm(q, w, 1e-5))
    close(got[1], rms_norm(kv, v, 1e-5))


def test_sums_in_one_order() -> None:
    path, x = LAYERS + "batch_invariant", randn(4, 1500)
    close(function(path, "log_softmax")(x), x.double().log_softmax(-1))
    y = randn(3, 50, 4)
    close(function(path, "mean_dim")(y, 1), y.double().mean(1))


@pytest.mark.parametrize("mapped", [False, True])
def test_sum_over_experts(mapped: bool) -> None:
    forward = function(LAYERS + "fused_moe.moe_fused_mul_sum", "moe_fused_mul_sum")
    x, w = randn(5, 2, 96), randn(5, 2)
    ids, where = torch.tensor([[0, 1], [2, 3]] * 2 + [[3, 0]]).int(), ints(0, -1, 1, -1)
    got = forward(x, w, topk_ids=ids, expert_map=where) if mapped else forward(x, w)
    use = w.double() * (where[ids.long()] >= 0) if mapped else w.double()
    close(got, (x.double() * use[..., None]).sum(1))


def test_ids_and_weights_in_one_number() -> None:
    forward = function(LAYERS + "fused_moe.utils", "trtllm_moe_pack_topk_ids_weights")
    ids, w = torch.tensor([[3, 1], [0, 7]], dtype=torch.int32), randn(2, 2)
    low = w.bfloat16().view(torch.int16).int() & 0xFFFF
    same(forward(ids, w), ids << 16 | low)


def test_limited_gate() -> None:
    forward = function(LAYERS + "fused_moe.utils", "_swiglu_limit_pad_aware")
    x, out, ids = 3 * randn(5, 80), torch.zeros(5, 40), ints(0, -1, 2, 1, 3)
    forward(out, x, ids, 2.0, expert_map=ints(0, -1, 1, 2))
    gate, up = x.double().chunk(2, -1)
    wanted = F.silu(gate.clamp(max=2)) * up.clamp(-2, 2)
    close(out, wanted * torch.tensor([1, 0, 1, 0, 1])[:, None])


@pytest.mark.parametrize("name", ["qwen", "olmo"])
def test_gates_of_delta_nets(name: str) -> None:
    path = f"{LAYERS}mamba.gdn.{name}_gdn_linear_attn"
    gate = "fused_gdn_gating" if name == "qwen" else "fused_olmo_hybrid_gdn_gating"
    log, a, b, bias = randn(12), randn(5, 12), randn(5, 12, seed=1), randn(12, seed=1)
    g, beta = function(path, gate)(log, a, b, bias)
    close(g[0], -log.double().exp() * F.softplus(a.double() + bias))
    close(beta[0], b.double().sigmoid())


@pytest.mark.parametrize("kind", ["scalar", "vector"])
@pytest.mark.parametrize("reverse", [False, True])
def test_sums_within_chunks(kind: str, reverse: bool) -> None:
    path = "third_party.flash_linear_attention.ops.cumsum"
    g = randn(2, 64, 3) if kind == "scalar" else randn(2, 64, 3, 16)
    got = function(path, f"chunk_local_cumsum_{kind}")(g, 16, reverse=reverse)
    chunks = g.double().unflatten(1, (4, 16))
    wanted = chunks.flip(2).cumsum(2).flip(2) if reverse else chunks.cumsum(2)
    close(got, wanted.flatten(1, 2))
