"""SGLang: which tokens are drafted, allowed, sampled and verified."""

from __future__ import annotations

import pytest
import torch
from reference import close, randn, same
from sglang_parts import drawn, function, ints, longs, mixed, sums, uniform

DSPARK = "speculative.dspark"


# ---- drafts


@pytest.mark.parametrize("budget", [0, 5, 99])
@pytest.mark.parametrize("most", [0, 3])
def test_how_many_to_verify(budget: int, most: int) -> None:
    """The likeliest positions get the budget; of equal ones the earlier, then the first row."""
    # Quarters, so that products are exact and equal ones occur.
    sure = (drawn(5, 9, 4) / 4).float()
    planner = ".srt.speculative.dspark_components.dspark_planner"
    config = function(planner, "DSparkScheduleConfig")(
        gamma=4, min_verify_len=1, max_verify_len=most, survival_eps=1e-3
    )
    got = function(f"{DSPARK}.dspark_schedule", "schedule_verify_lens_topk_triton")(
        confidence=sure, budget=budget, cfg=config
    )
    limit = most or 5
    alive = sure.double().cumprod(1)[:, :limit]
    order = sorted(
        (-alive[r, p].item(), p, r)
        for r in range(9)
        for p in range(alive.shape[1])
        if alive[r, p] >= 1e-3
    )
    wanted = [1] * 9
    for _, _, r in order[:budget]:
        wanted[r] += 1
    same(got, ints(*(min(n, limit) for n in wanted)))


def test_sampled_drafts() -> None:
    path = f"{DSPARK}.dspark_draft_model"
    # Rows of a wider tensor, and more than one tile of 1024.
    logits, heat = randn(5, 4000)[:, :3000] * 3, uniform(5) + 0.5
    greedy = torch.tensor([False, True, False, True, False])
    noise = -(1 - uniform(5, 3000)).log()
    got = function(path, "sample_step_tokens_triton")(
        step_logits=logits, temperatures=heat, greedy_mask=greedy, exp_noise=noise
    )
    odds = torch.softmax(logits.double() / heat.double()[:, None], -1)
    same(got, (odds / torch.where(greedy[:, None], 1.0, noise.double())).argmax(-1))
    bias, base = randn(5, 1100), randn(5, 2100)
    wanted = base.double()
    wanted[:, :1100] += bias
    close(function(path, "build_step_local_triton")(bias=bias, base_local=base), wanted)


@pytest.mark.parametrize("kept", [False, True])
def test_greedy_drafts(kept: bool) -> None:
    logits, at, drafts = randn(4, 17000)[:, :16500], longs(3, 9, 0, 7), longs(*[-1] * 12).view(4, 3)
    logits[1, 5] = torch.nan  # never chosen
    odds, got = function("speculative.topk1", "draft_topk1_postprocess")(
        logits, at, drafts if kept else None, 2
    )
    best = logits.nan_to_num(-1e30).argmax(-1)
    same(got[:, 0], best)
    assert (odds == 1).all()
    same(at, longs(4, 10, 1, 8))
    assert (drafts[:, :2] == -1).all()
    same(drafts[:, 2], best if kept else longs(-1, -1, -1, -1))


# ---- probabilities


@pytest.mark.parametrize("each", [False, True])
def test_likeliest_tokens(each: bool) -> None:
    odds = torch.softmax(randn(4, 2500) * 2, -1)
    best = odds.double().sort(-1, descending=True)
    counts, shares = (1, 7, 2500, 40) if each else (9,) * 4, (0.1, 0.5, 1.0, 0.9)
    got = function("sampling.renorm_triton", "top_k_renorm_probs_triton")(
        odds, longs(*counts) if each else 9
    )
    again = function("sampling.renorm_triton", "top_p_renorm_probs_triton")(
        odds, torch.tensor(shares) if each else 0.5
    )
    for row, (count, share) in enumerate(zip(counts, shares, strict=True)):
        mass = best.values[row].cumsum(-1)
        enough = int((mass < (share if each else 0.5)).sum()) + 1
        for found, n in ((got, count), (again, min(enough, 2500))):
            wanted = torch.zeros(2500).double()
            wanted[best.indices[row, :n]] = best.values[row, :n] / best.values[row, :n].sum()
            close(found[row] * 100, wanted * 100)


# ---- what is allowed


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("anew", [False, True])
def test_allowed_tokens(allowed: bool, anew: bool) -> None:
    """A bit for each token of each row."""
    masks, tokens = drawn(2**31, 3, 40, dtype=torch.int32), mixed(40 * 32)[:300].tolist()
    before = masks.clone()
    bits = (masks[1].long()[:, None] >> torch.arange(32)) & 1
    if anew:
        bits[:] = 0 if allowed else 1
    bits.view(-1)[tokens] = int(allowed)
    function("grammar.token_filter_ops", "set_token_filter_triton")(masks, tokens, 1, allowed, anew)
    same((masks[1].long()[:, None] >> torch.arange(32)) & 1, bits)
    same(masks[[0, 2]], before[[0, 2]])


def test_parts_of_a_vocabulary() -> None:
    """This part holds the tokens 20 to 39, padding for 4, and the added ones 105 to 109."""
    weight, ids = randn(29, 1500), longs(0, 19, 20, 39, 40, 104, 105, 109, 110, 33).view(2, 5)
    got = function("embeddings.vocab_parallel_embedding", "vocab_parallel_embedding")(
        ids, weight, 20, 40, 4, 105, 110
    )
    rows = {20: 0, 39: 19, 33: 13, 105: 24, 109: 28}
    for i, token in enumerate(ids.flatten().tolist()):
        same(got.flatten(0, 1)[i], weight[rows[token]] if token in rows else torch.zeros(1500))


# ---- phases


def test_phases() -> None:
    checker = function(".srt.utils.phase_checker", "SimplePhaseChecker")(
        initial_phase=0, device=torch.device("cpu")
    )
    checker.update(expect_phase=3, next_phase=5)  # nothing is asked yet
    assert checker._phase.item() == 5
    checker.enable_assert()
    checker.update(expect_phase=0, next_phase=1, caller_name="first")
    checker.update(expect_phase=1, next_phase=2, caller_name="second")
    assert checker._phase.item() == 2
    with pytest.raises(Exception, match="phase mismatch"):
        checker.update(expect_phase=1, next_phase=2)


# ---- a plan of what is checked


@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("room", [20, 99])
def test_plans(near: bool, room: int) -> None:
    requests, prefixes, new = longs(3, 0, 1, 4, 2), longs(9, 5, 0, 30, 7), longs(2, 8, 4, 1, 0)
    table = drawn(50, 6, 40, dtype=torch.int32) + 1
    mapping = mixed(60)
    offsets, writes = torch.full((4097,), -7), torch.full((9,), -7)
    seeds = torch.full((8,), -7)
    count, enabled, rows = ints(-7), ints(-7), ints(-7)
    function("kv_canary.plan.offsets_kernel", "launch_plan_offsets_kernel")(
        req_pool_indices=requests, prefix_lens=prefixes, extend_seq_lens=new, req_to_token=table,
        full_to_swa_index_mapping=mapping if near else None, out_verify_offsets_scratch=offsets,
        out_write_offsets=writes, out_write_seed_slot_indices=seeds, out_verify_num_valid=count,
        out_verify_enable=enabled, out_write_num_valid_reqs=rows, swa_window_size=8 * near,
        verify_capacity=room,
    )  # fmt: skip
    # The second row stands for no request.
    seen = (8, 0, 0, 8, 7) if near else (9, 0, 0, 30, 7)
    same(offsets[:6], sums(seen))
    assert (offsets[6:] == -7).all()
    same(writes, longs(*sums((2, 0, 4, 1, 0)).tolist(), -7, -7, -7))
    last = (table[3, 8], table[4, 29])
    first, other = (int(mapping[x] if near else x) for x in last)
    same(seeds, longs(first, -1, -1, other, -1, -7, -7, -7))
    assert (rows.item(), count.item()) == (5, min(sum(seen), room))
    assert enabled.item() == int(sum(seen) <= room)


def test_scattered_tokens() -> None:
    lengths, rows = (3, 0, 300, 40), longs(5, 1, 0, 2)
    flat, out = drawn(9999, 343), torch.full((6, 200), -1, dtype=torch.int32)
    function("kv_canary.scatter_req_token_ids", "launch_scatter_req_token_ids_kernel")(
        flat_in=flat, offsets=sums(lengths).long(), req_pool_indices=rows, pool_out=out
    )
    wanted = torch.full((6, 200), -1)
    for row, part in zip(rows.tolist(), flat.split(lengths), strict=True):
        wanted[row, : len(part)] = part[:200]
    same(out, wanted)
