"""vLLM: which drafted tokens are taken, and what of memory moves with them."""

from __future__ import annotations

import pytest
import torch
from drive_vllm import function, ints, logits
from drive_vllm_worker import SPEC, addresses, longs
from reference import randn, same

SAMPLE = "v1.sample.rejection_sampler"
EAGLE = "v1.spec_decode.utils"


def drawn(shares: torch.Tensor, count: int, seed: int) -> torch.Tensor:
    return shares.multinomial(count, True, generator=torch.Generator().manual_seed(seed))


# ---- verification


def test_drafts_against_the_largest() -> None:
    """Requests 2 and 0 with two drafts each: 2 has both right, 0 the first wrong."""
    x = logits(6)
    best = x.argmax(-1)
    drafts = torch.stack((longs(0)[0], best[0], best[1], longs(0)[0], best[3] - 1, best[4]))
    got, count = function(SPEC + "rejection_sampler_utils", "rejection_sample")(
        x, None, drafts, ints(0, 3, 6), torch.arange(6), ints(2, 0), ints(2, 2, 2, 0, 0, 0),
        ints(0, 1, 2, 0, 1, 2), torch.zeros(4), longs(1, 2, 3, 4), 2,
    )  # fmt: skip
    same(count, ints(3, 1))
    same(got[0], best[:3])
    assert got[1, 0] == best[3]


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("block", [False, True])
def test_drafts_by_their_shares(known: bool, block: bool) -> None:
    """Whatever was drafted, the first token has the share that the target gives it."""
    many, warm = 1000, 0.8
    target, draft = randn(3, 6), randn(2, 6, seed=1)
    share = (draft / warm).softmax(-1)
    if known:
        steps = torch.stack((drawn(share[0], many, 1), drawn(share[1], many, 2)), 1)
    else:
        steps = torch.tensor([[2, 4]]).expand(many, 2)
    drafts = torch.cat((torch.zeros(many, 1, dtype=torch.int64), steps), 1).flatten()
    got, count = function(SPEC + "rejection_sampler_utils", "rejection_sample")(
        target.repeat(many, 1), draft[None].contiguous() if known else None, drafts,
        torch.arange(0, 3 * many + 1, 3).int(), torch.arange(3 * many),
        torch.zeros(many, dtype=torch.int32), torch.zeros(3 * many, dtype=torch.int32),
        ints(0, 1, 2).repeat(many), torch.tensor([warm]), longs(7), 2,
        use_block_verification=block,
    )  # fmt: skip
    right = target.softmax(-1)
    first = torch.bincount(got[:, 0], minlength=6) / many
    torch.testing.assert_close(first, right[0], rtol=0, atol=0.06)
    more = count > 1
    second = torch.bincount(got[more, 1], minlength=6) / more.sum()
    torch.testing.assert_close(second, right[1], rtol=0, atol=0.12)
    if not block:
        taken = torch.minimum(right[0], share[0]).sum() if known else right[0, 2]
        torch.testing.assert_close(more.float().mean(), taken, rtol=0, atol=0.06)


def test_samples_in_one_row() -> None:
    out, sampled = torch.zeros(6, dtype=torch.int64), torch.arange(6).view(2, 3) + 10
    kernel = function(SPEC + "rejection_sampler", "_flatten_sampled_kernel")
    kernel[(2,)](out, sampled, 3, ints(2, 1), ints(0, 3, 6))
    same(out, longs(10, 11, 0, 13, 0, 0))


DRAFTS, ENDS = ints(3, 4, 5, 6), ints(3, 3, 4)  # of three requests: three, none, one


@pytest.mark.parametrize("rated", [False, True])
def test_drafts_of_greedy_requests(rated: bool) -> None:
    out = torch.full((3, 4), -1, dtype=torch.int32)
    chance, rates = torch.tensor([0.1, 0.9, 0.1, 0.2]), torch.tensor([0.5, 0.5, 0.5])
    function(SAMPLE, "rejection_greedy_sample_kernel")[(3,)](
        out, ENDS, DRAFTS, longs(3, 9, 5, 6), ints(20, 21, 22), None, 3, chance, rates,
        SYNTHETIC_MODE=rated,
    )  # fmt: skip
    same(out[0], ints(3, 9, -1, -1))
    same(out[1], ints(21, -1, -1, -1))
    same(out[2], ints(6, 22, -1, -1))


@pytest.mark.parametrize("known", [False, True])
def test_drafts_of_other_requests(known: bool) -> None:
    words = 50
    p, q = logits(4, words).softmax(-1), logits(4, words).roll(3, 0).softmax(-1)
    chance = torch.tensor([0.5, 0.9, 0.1, 0.4])
    rows = torch.arange(4)
    asked = p[rows, DRAFTS.long()] / (q[rows, DRAFTS.long()] if known else 1.0)
    chance[0], chance[2] = asked[0] * 0.9, asked[2] * 0.5
    chance[1], chance[3] = asked[1] * 1.1, asked[3] * 1.1
    out = torch.full((3, 4), -1, dtype=torch.int32)
    function(SAMPLE, "rejection_random_sample_kernel")[(3,)](
        out, ENDS, DRAFTS, q if known else None, p, ints(20, 21, 22), ints(30, 31, 32, 33), chance,
        torch.tensor([False, True, False]), 3, words, None, NO_DRAFT_PROBS=not known,
        SYNTHETIC_MODE=False,
    )  # fmt: skip
    same(out[0], ints(3, 31, -1, -1))
    same(out[1], ints(-1, -1, -1, -1))
    same(out[2], ints(33, -1, -1, -1))
    noise = torch.rand(3, words, generator=torch.Generator().manual_seed(0)) + 0.1
    got = torch.zeros(4, dtype=torch.int32)
    function(SAMPLE, "sample_recovered_tokens_kernel")[(3, 3)](
        got, ENDS, DRAFTS, q if known else None, p, noise, words, BLOCK_SIZE=16,
        NO_DRAFT_PROBS=not known, USE_FP64_GUMBEL=False,
    )  # fmt: skip
    left = (p - q).clamp(min=0) if known else p.scatter(1, DRAFTS[:, None].long(), 0)
    same(got, (left * noise[[0, 0, 0, 2]]).argmax(-1))


def test_values_of_requests_for_tokens() -> None:
    out = torch.zeros(4, dtype=torch.int32)
    function(SAMPLE, "expand_kernel")[(3,)](out, ints(1, 2, 0), ENDS, 0, 7, MAX_NUM_TOKENS=4)
    same(out, ints(1, 1, 1, 7))


@pytest.mark.parametrize("kind", ["k", "p", "both"])
def test_largest_and_likeliest(kind: str) -> None:
    x = logits(2, 300)
    k = ints(5, 300) if kind != "p" else None
    p = torch.tensor([0.7, 0.5]) if kind != "k" else None
    got = function("v1.sample.ops.topk_topp_triton", "apply_top_k_top_p_triton")(x.clone(), k, p)
    best, order = x.double().sort(-1, descending=True)
    keep = torch.ones(2, 300, dtype=torch.bool)
    if k is not None:
        keep = torch.arange(300) < k[:, None]
    if p is not None:
        share = best.masked_fill(~keep, -torch.inf).softmax(-1)
        keep &= share.cumsum(-1) - share < p[:, None]
    same(got, x.masked_fill(~torch.zeros_like(keep).scatter(1, order, keep), -torch.inf))


# ---- inputs of models that draft


def test_next_step_of_eagle() -> None:
    lengths, table = ints(5, 16, 8), torch.arange(12).int().view(3, 4) + 20
    positions, slots = torch.zeros(3, dtype=torch.int64), torch.zeros(5, dtype=torch.int64)
    function(EAGLE, "eagle_step_update_slot_mapping_and_metadata")(
        longs(4, 15, 7), table, lengths, 4, 16, positions, slots, 5
    )
    same(positions, longs(5, 0, 8))
    same(slots, longs(21 * 4 + 1, -1, 30 * 4, -1, -1))
    same(lengths, ints(6, 1, 9))


def test_tokens_after_eagle() -> None:
    at, rejected = ints(0, 0, 0), ints(0, 0, 0)
    kernel = function(EAGLE, "eagle_prepare_inputs_padded_kernel")
    kernel[(4,)](ENDS, ints(2, 1, 2), ints(0, 4, 5, 7), at, rejected, 3)
    same(at, ints(1, 4, 6))
    same(rejected, ints(2, 0, 0))
    sampled = torch.tensor([[5, 6, -1], [7, -1, -1], [-1, -1, -1], [8, 9, 10]], dtype=torch.int32)
    after, count = ints(0, 0, 0, 0), ints(9, 9, 9, 9)
    kernel = function(EAGLE, "eagle_prepare_next_token_padded_kernel")
    kernel[(4,)](sampled, torch.tensor([False, True, False, False]), ints(40, 41, 42, 43), after,
                 count, 100, 3, 4, 3, BLOCK_SIZE_TOKENS=4)  # fmt: skip
    same(after, ints(6, 41, 42, 10))
    same(count, ints(2, 0, 0, 3))


@pytest.mark.parametrize("shift", [False, True])
def test_places_for_drafts(shift: bool) -> None:
    """Two requests of 4 and 3 tokens; the first rejected its last; each gets three new places."""
    size = 7 + 2 * (2 if shift else 3)
    ids, positions = torch.full((size,), -5, dtype=torch.int32), torch.full((size,), -5)
    rejected, masked = (torch.zeros(size, dtype=torch.bool) for _ in range(2))
    new, where = torch.zeros(6, dtype=torch.int32), torch.full((7,), -1, dtype=torch.int32)
    function(EAGLE, "copy_and_expand_eagle_inputs_kernel")[(2, 2)](
        ints(10, 11, 12, 13, 14, 15, 16), longs(50, 51, 52, 53, 7, 8, 9), ints(70, 71), ids,
        positions, rejected, masked, new, where, ints(0, 4, 7), ints(2, 6), 99, 98, 7, 3, shift,
        BLOCK_SIZE_TOKENS=8,
    )  # fmt: skip
    given = [[10, 11, 12], [14, 15, 16]]
    wanted, places, marks, fresh = [], [], [], []
    for row, (tokens, start, bad) in enumerate(zip(given, (50, 7), (1, 0), strict=True)):
        kept = tokens[1:] if shift else tokens
        fresh += [len(wanted) + len(kept) + k for k in range(3)]
        wanted += kept + [70 + row, 98, 98] + [99] * bad
        places += [start + k for k in range(len(kept) + 3)] + [0] * bad
        marks += [0] * (len(kept) + 1) + [1, 1] + [0] * bad
    same(ids, ints(*wanted))
    same(positions, longs(*places))
    same(masked, longs(*marks).bool())
    same(rejected, longs(*(w == 99 for w in wanted)).bool())
    same(new, ints(*fresh))
    if shift:
        same(where, ints(0, 1, 2, 3, 6, 7, 8))


def test_queries_of_dflash() -> None:
    """Requests of 3 and 2 tokens, of which the first rejected one; three queries each."""
    table = torch.arange(16).int().view(2, 8) + 20
    ids, slots = torch.zeros(6, dtype=torch.int32), torch.zeros(6, dtype=torch.int64)
    context, queries = torch.zeros(5, dtype=torch.int64), torch.zeros(6, dtype=torch.int64)
    stored, samples = torch.zeros(5, dtype=torch.int64), torch.zeros(4, dtype=torch.int32)
    positions = longs(5, 6, 7, 10, 11)
    function(EAGLE, "copy_and_expand_dflash_inputs_kernel")[(2, 1)](
        ints(70, 71), positions, ids, context, queries, stored, slots, samples, table, 8,
        ints(0, 3, 5), ints(1, 0), 98, 4, 3, 2, 5, BLOCK_SIZE=8, HAS_NUM_REJECTED=True,
    )  # fmt: skip
    same(ids, ints(70, 98, 98, 71, 98, 98))
    same(context, positions)
    same(queries, longs(7, 8, 9, 12, 13, 14))
    row = longs(0, 0, 0, 1, 1)
    same(stored, table[row, positions // 4].long() * 4 + positions % 4)
    row = longs(0, 0, 0, 1, 1, 1)
    same(slots, table[row, queries // 4].long() * 4 + queries % 4)
    same(samples, ints(1, 2, 4, 5))


@pytest.mark.parametrize("anchor", [False, True])
def test_queries_of_dflash_on_one_rank(anchor: bool) -> None:
    table = torch.arange(16).int().view(2, 8) + 20
    table[1, 2] = 0  # a block that was given back
    steps = 3 if anchor else 2
    ids, places, starts = ints(*[0] * 6), longs(*[0] * 6), ints(*[9] * 5)
    lengths, slots = ints(*[9] * 4), longs(*[9] * 8)
    context, stored = longs(*[9] * 5), longs(*[9] * 5)
    samples, at, of = longs(*[9] * 4 * steps), longs(*[9] * 4 * steps), ints(*[9] * 4 * steps)
    warm, seeds = torch.zeros(4), longs(0, 0, 0, 0)
    positions = longs(5, 6, 7, 10, 13)
    function(SPEC + "dflash.speculator", "_prepare_dflash_inputs_kernel")[(2, 1)](
        ids, places, starts, lengths, slots, context, stored, samples, at, of, warm, seeds,
        positions, ints(0, 3, 5), ints(2, 0), longs(70, 71, 72, 73), ints(80, 81, 82, 83),
        ints(1, 0), ints(1, 0), torch.tensor([0.5, 0.6, 0.7, 0.8]), longs(1, 2, 3, 4), table, 8,
        98, 4, 3, steps, 4, 8, 16, 0, SAMPLE_FROM_ANCHOR=anchor, PAD_SLOT_ID=-1, CP_SIZE=1,
        CP_INTERLEAVE=1, BLOCK_SIZE=8,
    )  # fmt: skip
    same(ids, ints(72, 98, 98, 80, 98, 98))
    same(places, longs(7, 8, 9, 14, 15, 15))
    same(starts, ints(0, 3, 6, 6, 6))
    same(lengths, ints(10, 16, 0, 0))
    same(context, longs(5, 6, 0, 10, 13))  # the token that was rejected has no place
    same(stored, longs(21 * 4 + 1, 21 * 4 + 2, -1, -1, 31 * 4 + 1))
    same(slots, longs(21 * 4 + 3, 22 * 4, 22 * 4 + 1, 31 * 4 + 2, 31 * 4 + 3, 32 * 4, -1, -1))
    if anchor:
        same(samples[:6], longs(0, 1, 2, 3, 4, 5))
        same(at[:6], longs(8, 9, 10, 15, 16, 17))
    else:
        same(samples[:4], longs(1, 2, 4, 5))
        same(at[:4], longs(8, 9, 15, 16))
    same(of, ints(*[2] * steps, *[0] * steps, *[-1] * 2 * steps))
    assert not samples[2 * steps :].any()
    same(warm, torch.tensor([0.5, 0.0, 0.7, 0.0]))
    same(seeds, longs(1, 0, 3, 0))


# ---- memory


def test_places_in_a_table() -> None:
    kernel = function("v1.worker.block_table", "ComputeSlotMappingKernel").kernel
    table, out = torch.arange(16).int().view(2, 8) + 20, torch.zeros(6, dtype=torch.int64)
    positions = longs(5, 6, 7, 10)
    kernel[(3,)](
        4, 6, ints(0, 3, 4), positions, table, 8, 4, out, KV_CACHE_BLOCK_SIZE=4,
        BLOCKS_PER_KV_BLOCK=1, TOTAL_CP_WORLD_SIZE=2, TOTAL_CP_RANK=1,
        CP_KV_CACHE_INTERLEAVE_SIZE=1, PAD_ID=-1, BLOCK_SIZE=8,
    )  # fmt: skip
    same(out, longs(20 * 4 + 2, -1, 20 * 4 + 3, -1, -1, -1))


def test_blocks_are_cleared() -> None:
    kernel = function("v1.worker.utils", "_zero_kv_blocks_kernel")
    kept = [torch.ones(5, 12, dtype=torch.int32), torch.ones(5, 20, dtype=torch.int32)]
    where = addresses(*kept).view(torch.uint64)
    kernel[(2, 2, 2)](where, longs(12, 20), longs(10, 20), longs(3, 1), BLOCK_SIZE=16)
    for x, size in zip(kept, (10, 20), strict=True):
        wanted = torch.ones_like(x)
        wanted[[1, 3], :size] = 0
        same(x, wanted)


def test_copies_in_one_launch() -> None:
    data = torch.randint(0, 256, (200,), generator=torch.Generator().manual_seed(0)).byte()
    got = data.clone()
    base = got.data_ptr()
    where = torch.tensor([base, base + 150], dtype=torch.uint64)
    into = torch.tensor([base + 60, base + 140], dtype=torch.uint64)
    function("v1.worker.mamba_utils", "batch_memcpy")(where, into, ints(33, 40))
    wanted = data.clone()
    wanted[60:93], wanted[140:180] = data[:33], data[150:190]
    same(got, wanted)
    words = torch.arange(48).view(6, 8)
    out = torch.zeros(6, 8, dtype=torch.int64)
    kernel = function("v1.kv_offload.cpu.swap_blocks_triton", "_swap_blocks_kernel")
    kernel[(2,)](addresses(words[0], words[2], words[5]), addresses(out[3], out[0], out[1]),
                 longs(64, 40, 64), 3, BYTES_PER_CHUNK=32)  # fmt: skip
    right = torch.zeros_like(out)
    right[3], right[0, :5], right[1] = words[0], words[2, :5], words[5]
    same(out, right)


LAYOUT = {"COPY_BLOCK_SIZE": 16, "CONV_STATE_DIM_FIRST": False}


def states() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, tuple]:
    """A window of four tokens and a state of one layer, and what says where they are."""
    window, state = randn(9, 4, 6), randn(9, 5, 3)
    table = torch.tensor([[3, 4, 5, 6], [7, 8, 1, 2]], dtype=torch.int32)
    return window, state, table, (
        addresses(table), 4, addresses(window, state), longs(4 * 24, 4 * 15), ints(4, 4),
        longs(6, 15), ints(4, 0), ints(0, 0), ints(0, 0), longs(0, 0),
    )  # fmt: skip


def test_states_before_a_step() -> None:
    window, state, _, layout = states()
    old, before = window.clone(), state.clone()
    columns, offsets, counts = ints(9, 9, 9, 9), ints(9, 9, 9, 9), ints(2, 1, 3, 1)
    at = ints(0, 0, 1, 0)
    # Requests 2 and 0: from 7 and 3 tokens on by 2 and 1, in blocks of four.
    function("v1.worker.mamba_utils", "preprocess_mamba_align_fused_kernel")[(1,)](
        ints(2, 0), at, ints(3, 0, 7, 0), ints(0, 2, 3), counts, columns, offsets, 2,
        BLOCK_SIZE=4, MAMBA_BLOCK_SIZE=4,
    )  # fmt: skip
    same(columns, ints(0, 9, 1, 9))
    same(offsets, ints(1, 9, 2, 9))
    same(at, ints(0, 0, 2, 0))
    same(counts, ints(2, 1, 1, 1))
    offsets[2] = 1  # a row of the table has four columns
    function("v1.worker.mamba_utils", "precopy_mamba_align_fused_kernel")[(2, 2)](
        at, columns, offsets, *layout, ints(2, 0), 2, **LAYOUT
    )
    old[5, :3] = old[4, 1:]
    before[5] = before[5]  # column 1 + 1 is the block that it goes to
    same(window, old)
    same(state, before)


def test_states_after_a_step() -> None:
    window, state, _, layout = states()
    old, before = window.clone(), state.clone()
    counts = ints(2, 1)
    # Request 0 ran from 6 to 7 tokens and two were accepted: block 2 ends after the first.
    function("v1.worker.mamba_utils", "postprocess_mamba_fused_kernel")[(2, 2)](
        counts, ints(2, 0), ints(3, 1), ints(6, 1), ints(2, 0), *layout, counts, None, 2,
        block_size=4, **LAYOUT,
    )  # fmt: skip
    old[4, :3] = old[5, 1:]
    before[4] = before[6]
    same(window, old)
    same(state, before)
    same(counts, ints(2, 1))


def test_stored_caches() -> None:
    path = "distributed.kv_transfer.kv_connector.v1.hf3fs.utils.gather_scatter_helper"
    caches = [torch.zeros(4, 2, 3, 8), torch.zeros(4, 2, 3, 8)]  # block, head, token, content
    source = randn(2, 2, 3, 8)
    shape = (3, 2, 8, caches[0].stride())
    function(path, "scatter_kv_caches")(addresses(*caches), 12, source, [0, 7, 10], *shape)
    wanted = torch.zeros(2, 4, 2, 3, 8)
    for layer in range(2):
        for n, token in enumerate((0, 7, 10)):
            wanted[layer, token // 3, :, token % 3] = source[layer, :, n]
        same(caches[layer], wanted[layer])
    got = torch.zeros_like(source)
    function(path, "gather_kv_caches")(addresses(*caches), 12, got, [0, 7, 10], *shape)
    same(got, source)
