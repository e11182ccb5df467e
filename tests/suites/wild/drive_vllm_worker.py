"""vLLM: kernels of its worker that move, count and choose: tables of blocks, marks of words, the
inputs of models that draft tokens."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from drive_vllm import AT, GPU, STARTS, TOKENS, function, ints, logits
from reference import close, randn, same

SPEC = GPU + "spec_decode."


def longs(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def addresses(*tensors: torch.Tensor) -> torch.Tensor:
    return torch.tensor([x.data_ptr() for x in tensors])


# ---- sampling


def test_words_that_are_forbidden() -> None:
    x = logits(3)
    got = x.clone()
    # Request 2 has written 105 106 after its prompt, and drafts 107; request 0 has written 103.
    tokens = torch.zeros(4, 10, dtype=torch.int32)
    tokens[2, :5] = ints(101, 102, 103, 105, 106)
    tokens[0, :3] = ints(101, 102, 103)
    words = torch.zeros(4, 8, dtype=torch.int32)
    words[2, :6] = ints(105, 106, 7, 107, 8, 9)  # "105 106 7", "107 8", "9"
    words[0, :2] = ints(104, 6)
    offsets = torch.zeros(4, 4, dtype=torch.int32)
    offsets[2] = ints(0, 3, 5, 6)
    offsets[0] = ints(0, 2, 0, 0)
    function(GPU + "sample.bad_words", "apply_bad_words")(
        got, ints(2, 2, 0), words, offsets, ints(1, 0, 3, 0), tokens, ints(2, 0, 3, 0),
        ints(3, 0, 5, 0), ints(106, 107, 103), ints(0, 1, 0), 3,
    )  # fmt: skip
    wanted = x.clone()
    wanted[0, [7, 9]] = -torch.inf
    wanted[1, [8, 9]] = -torch.inf
    same(got, wanted)


@pytest.mark.parametrize("budget", [2, 5])
@pytest.mark.parametrize("scanned", [0, 3])
def test_budget_of_thoughts(budget: int, scanned: int) -> None:
    x = logits(2)
    got = x.clone()
    tokens = torch.zeros(4, 12, dtype=torch.int32)
    tokens[2, :7] = ints(5, 50, 51, 6, 7, 8, 60)  # thinking begins with 50 51, ends with 60 61
    starts, ends, at = (torch.full((4,), v, dtype=torch.int32) for v in (-1, -1, 0))
    if scanned:
        starts[2], at[2] = 1, scanned
    function(GPU + "sample.thinking_budget", "apply_thinking_budget")(
        got, ints(2), ints(2, 2), ints(-1, -1, budget, -1), tokens, ints(0, 0, 7, 0),
        ints(60, 62), ints(0, 1), starts, ends, at, ints(50, 51), ints(60, 61), ints(60, 61),
    )  # fmt: skip
    wanted = x.clone()
    # 4 tokens of thought: after 60 the mark goes on with 61; after the draft 62 it starts anew.
    if budget <= 4:
        wanted[0, 61] = 1e9
    if budget <= 5:
        wanted[1, 60] = 1e9
    same(got, wanted)
    same(starts[2], torch.tensor(1))
    same(ends[2], torch.tensor(-1))
    same(at[2], torch.tensor(6))


def test_replay_of_a_trace() -> None:
    sampled = longs(1, 2, 3)
    function(GPU + "sample.trace_replay", "apply_trace_tokens")(
        sampled, ints(2, -1, 0), TOKENS, ints(2, 0, 5, 0), ints(9, 0, 6, 0), ints(7, 0, 4, 0)
    )
    same(sampled, longs(122, 2, 3))  # the trace of request 0 has only two tokens


def test_mask_of_what_can_be_sampled() -> None:
    x = logits(3)
    x[x < 0.5] = -torch.inf
    x[0, 3] = torch.inf
    tensors = function(GPU + "sample.output", "SamplingMaskTensors")
    got = tensors.from_logits(x, ints(1, 0, 2))
    keep = x.isfinite() & torch.tensor([[True], [False], [True]])
    same(got.counts, keep.sum(1))
    bits = (got.packed_mask[:, :, None].int() >> torch.arange(8) & 1).flatten(1)
    same(bits[:, :1500].bool(), keep)
    assert not bits[:, 1500:].any()


def test_temperatures() -> None:
    x = logits(3)
    got = x.clone()
    warm = torch.tensor([0.0, 1.0, 0.7, 0.0])
    function(GPU + "sample.gumbel", "apply_temperature")(got, ints(2, 1, 0), warm)
    close(got, torch.stack((x[0].double() / 0.7, x[1].double(), x[2].double())))


@pytest.mark.parametrize("wide", [False, True])
def test_samples_with_noise(wide: bool) -> None:
    """Without heat it is the largest; with it, one draw in many has the share of the softmax."""
    sample = function(GPU + "sample.gumbel", "gumbel_sample")
    x, cold = logits(3), torch.zeros(4)
    cache = torch.zeros(4, 2, 1500)
    got = sample(x, ints(2, 1, 0), cold, longs(1, 2, 3, 4), longs(0, 1, 2), True, cache,
                 torch.tensor(1), use_fp64=wide)  # fmt: skip
    same(got, x.argmax(-1))
    same(cache[2, 1], x[0])
    few = torch.tensor([0.0, 1.0, 2.0, -1.0]).repeat(4000, 1)
    where = torch.zeros(4000, dtype=torch.int32)
    warm = torch.tensor([2.0])
    got = sample(few, where, warm, longs(3), torch.arange(4000), True, use_fp64=wide)
    share = torch.bincount(got, minlength=4) / 4000
    torch.testing.assert_close(share, (few[0] / 2).softmax(0), rtol=0, atol=0.04)


def test_mask_of_a_grammar() -> None:
    x = logits(3)
    got = x.clone()
    allowed = torch.randint(-(2**31), 2**31, (2, 47), generator=torch.Generator().manual_seed(1))
    kernel = function(GPU + "structured_outputs", "_apply_grammar_bitmask_kernel")
    # Row 1 of request 0, and row 1 of request 1, which has only one row.
    kernel[(2, 1)](got, 1500, ints(1, 5), ints(0, 2, 3), allowed.int(), 47, 1500, MASK_STRIDE=4,
                   BLOCK_SIZE=2048)  # fmt: skip
    bits = (allowed[:, :, None] >> torch.arange(32) & 1).flatten(1)[:, :1500].bool()
    wanted = x.clone()
    wanted[1, ~bits[0]] = -torch.inf
    same(got, wanted)


# ---- tables of blocks


def test_tables_of_blocks() -> None:
    kernel = function(GPU + "block_table", "_gather_block_tables_kernel")
    tables = [torch.randint(0, 99, (4, n)).int() for n in (5, 7)]
    out = [torch.full((3, n), -1, dtype=torch.int32) for n in (5, 7)]
    counts = torch.tensor([[1, 2, 3, 4], [7, 6, 5, 4]], dtype=torch.int32)
    kernel[(2, 3)](AT, addresses(*tables), addresses(*out), longs(5, 7), counts, 4, 2,
                   BLOCK_SIZE=16)  # fmt: skip
    for group in range(2):
        wanted = torch.full_like(out[group], -1)
        for row, request in enumerate(AT.tolist()):
            n = int(counts[group, request])
            wanted[row, :n] = tables[group][request, :n]
        wanted[2] = 0
        same(out[group], wanted)


@pytest.mark.parametrize("ranks", [1, 2])
def test_places_of_tokens(ranks: int) -> None:
    kernel = function(GPU + "block_table", "_compute_slot_mappings_kernel")
    tables = [torch.randint(1, 99, (4, 8)).int() for _ in range(2)]
    sizes, positions = ints(4, 8), longs(2, 3, 4, 7)
    out = torch.zeros(2, 6, dtype=torch.int64)
    kernel[(2, 3)](
        6, AT, STARTS, positions, addresses(*tables), longs(8, 8), sizes, out, 6, 1,
        CP_SIZE=ranks, CP_INTERLEAVE=1, PAD_ID=-1, TRITON_BLOCK_SIZE=16,
    )  # fmt: skip
    wanted = torch.full((2, 6), -1)
    for group, size in enumerate(sizes.tolist()):
        for token, (request, p) in enumerate(zip((2, 2, 2, 0), positions.tolist(), strict=True)):
            block = int(tables[group][request, p // (size * ranks)])
            if p % ranks == 1 or ranks == 1:
                wanted[group, token] = block * size + p % (size * ranks) // ranks
    same(out, wanted)


@pytest.mark.parametrize("groups", [False, True])
def test_staged_writes(groups: bool) -> None:
    kernel = function(GPU + "buffer_utils", "_apply_write_kernel")
    tables = [torch.zeros(4, n, dtype=torch.int32) for n in (16, 32)]
    contents, rows, starts, ends = ints(1, 2, 3, 4, 5, 6), ints(2, 0), ints(3, 1), ints(2, 6)
    wanted = [x.clone() for x in tables]
    if groups:
        kernel[(2,)](addresses(*tables), longs(16, 32), rows, starts, contents, ends, ints(1, 0),
                     BLOCK_SIZE=16, MULTI_GROUP=True)  # fmt: skip
        wanted[1][2, 3:5], wanted[0][0, 1:5] = contents[:2], contents[2:]
    else:
        kernel[(2,)](tables[0], 16, rows, starts, contents, ends, None,
                     BLOCK_SIZE=16, MULTI_GROUP=False)  # fmt: skip
        wanted[0][2, 3:5], wanted[0][0, 1:5] = contents[:2], contents[2:]
    for got, right in zip(tables, wanted, strict=True):
        same(got, right)


# ---- states of models


def test_accepted_tokens() -> None:
    path, counts = GPU + "model_states.mamba_hybrid", ints(9, 9, 9, 9)
    function(path, "_scatter_num_accepted_kernel")[(3,)](ints(2, -1, 0), ints(0, 5, 3), counts)
    same(counts, ints(3, 9, 1, 9))
    function(path, "_fill_num_accepted_kernel")[(2,)](ints(3, -1), counts, 4)
    same(counts, ints(3, 9, 1, 4))


@pytest.mark.parametrize("chosen", [False, True])
def test_states_that_are_recovered(chosen: bool) -> None:
    kernel = function(GPU + "model_states.recoverssm", "_postprocess_recoverssm_align_kernel")
    states, counts = ints(9, 9, 9, 9), ints(7, 7, 7, 7)
    rows = ints(1, 2) if chosen else None
    kernel[(2 if chosen else 3,)](
        ints(3, 2, -1), ints(1, 3, 2), rows, ints(5, 30, 6), states, counts,
        MAMBA_BLOCK_SIZE=4, BLOCK_TABLE_WIDTH=6,
    )  # fmt: skip
    same(states, ints(9, 9, 5, 9 if chosen else 1))
    same(counts, ints(7, 7, 1, 7 if chosen else 1))


def test_embeddings_of_prompts() -> None:
    kernel = function(GPU + "model_states.prompt_embeds", "_apply_prompt_embeds_kernel")
    embeds, given = torch.zeros(4, 40), randn(6, 40)
    words = torch.tensor([0, 0, 0, 1, 0, 0], dtype=torch.int8)  # row 3 is a word, no embedding
    where, masks = (torch.zeros(4, dtype=torch.int64) for _ in range(2))
    where[2], masks[2] = given.data_ptr(), words.data_ptr()
    kernel[(2, 2)](embeds, 40, where, masks, ints(0, 0, 6, 0), AT, STARTS, ints(7, 0, 2, 0), 40,
                   TOKEN_BLOCK=2, BLOCK_SIZE=16)  # fmt: skip
    wanted = torch.zeros(4, 40)
    wanted[0], wanted[2] = given[2], given[4]
    same(embeds, wanted)


# ---- models that draft tokens, one at a time


def test_drafting_after_a_prompt() -> None:
    kernel = function(SPEC + "autoregressive.speculator", "_prepare_prefill_inputs_kernel")
    last, step, ids = ints(9, 9, 9, 9), ints(5), torch.zeros(7, dtype=torch.int32)
    positions, starts, lengths = torch.zeros(7, dtype=torch.int64), ints(*[9] * 5), ints(*[9] * 4)
    kernel[(2,)](
        last, step, ids, positions, starts, lengths, ints(10, 11, 12, 13, 14, 15, 16),
        torch.arange(50, 57), AT, longs(70, 71, 72, 73), ints(80, 81, 82, 83), ints(1, 0),
        ints(1, 0), ints(0, 4, 7), ints(54, 57), 4, BLOCK_SIZE=16,
    )  # fmt: skip
    same(last, ints(2, 6, 0, 0))
    same(step, ints(0))
    same(ids, ints(11, 12, 72, 0, 15, 16, 80))
    same(positions, longs(50, 51, 52, 0, 54, 55, 56))
    same(starts, ints(0, 4, 7, 7, 7))
    same(lengths, ints(54, 57, 0, 0))


@pytest.mark.parametrize("moves", [False, True])
def test_drafting_step_by_step(moves: bool) -> None:
    path = SPEC + "autoregressive.speculator"
    buffers = SimpleNamespace(
        input_ids=ints(0, 0, 0, 0),
        positions=longs(5, 15, 0, 0),
        query_start_loc=ints(*[9] * 5),
        seq_lens=ints(*[9] * 4),
    )
    drafts = torch.tensor([[30, 31], [40, 41]])
    function(path, "prepare_decode_inputs")(
        drafts, ints(7, 16), ints(1, 0), buffers, 16, 4, advance_draft_positions=moves
    )
    same(buffers.input_ids, ints(30, 40, 0, 0))
    same(buffers.query_start_loc, ints(0, 1, 2, 2, 2))
    same(buffers.positions, longs(6, 15, 0, 0) if moves else longs(5, 15, 0, 0))
    same(buffers.seq_lens, ints(7, 16, 0, 0) if moves else ints(6, 16, 0, 0))
    kernel = function(path, "_update_draft_inputs_kernel")
    out, hidden, after = torch.zeros(2, 3, dtype=torch.int64), randn(2, 40), torch.zeros(2, 40)
    kernel[(2,)](
        out, 3, after, 40, buffers.input_ids, buffers.positions, buffers.seq_lens, longs(50, 51),
        longs(1), hidden, 40, 40, 16, 3, BLOCK_SIZE=16, ADVANCE_DRAFT_POSITIONS=moves,
    )  # fmt: skip
    same(out, torch.tensor([[0, 50, 0], [0, 51, 0]]))
    same(after, hidden)
    same(buffers.input_ids, ints(50, 51, 0, 0))
    same(buffers.positions, longs(7, 15, 0, 0) if moves else longs(5, 15, 0, 0))


# ---- models that draft tokens, with several modules: request 2 rejected three of five tokens

WINDOW = ints(0, 5, 8)  # where its tokens and those of request 0 begin


def test_inputs_of_modules() -> None:
    path = SPEC + "multi_module_mtp.speculator"
    buffers = SimpleNamespace(
        input_ids=torch.zeros(8, dtype=torch.int32),
        positions=torch.zeros(8, dtype=torch.int64),
        seq_lens=ints(*[9] * 4),
        query_start_loc=torch.cat((WINDOW, ints(0, 0))),
    )
    batch = SimpleNamespace(
        input_ids=torch.arange(10, 18).int(),
        positions=torch.arange(50, 58),
        idx_mapping=AT,
        seq_lens=ints(55, 58),
    )
    cached = torch.arange(12).view(4, 3) + 200
    ahead = torch.arange(16).view(4, 4).int() + 300
    over, last = torch.zeros(4, 3, dtype=torch.int64), ints(*[9] * 4)
    function(path, "prepare_input_buffers")(
        2, batch, cached, ints(1, 0), ints(3, 0), longs(70, 71, 72, 73), ahead, over, buffers,
        last, 4, 4,
    )  # fmt: skip
    # Two tokens come from the cache; then 11, and the token that was sampled.
    same(buffers.input_ids, ints(207, 208, 11, 72, 0, 16, 17, 300))
    same(buffers.positions, longs(48, 49, 50, 51, 0, 55, 56, 57))
    same(buffers.seq_lens, ints(53, 58, 0, 0))
    same(buffers.query_start_loc, ints(0, 5, 8, 8, 8))
    same(last, ints(3, 7, 0, 0))
    same(over[:2], torch.tensor([[-1, -1, -1], [304, 308, 312]]))
    hidden, target = torch.zeros(8, 40), randn(8, 40)
    embeds, kept, words = torch.zeros(8, 40), randn(4, 3, 40, seed=1), randn(4, 3, 40, seed=2)
    function(path, "prepare_input_hidden_states_and_embeddings")(
        2, 5, hidden, target, kept, embeds, words, batch, buffers, ints(3, 0), 4
    )
    wanted = torch.zeros(8, 40)
    wanted[:2], wanted[2:4], wanted[5:] = kept[2, 1:], target[:2], target[5:]
    same(hidden, wanted)
    same(embeds, torch.cat((words[2, 1:], torch.zeros(6, 40))))


def test_places_after_the_last_token() -> None:
    slots = torch.arange(16).view(2, 8)
    function(SPEC + "multi_module_mtp.speculator", "pad_trailing_draft_slots")(
        slots, WINDOW, ints(3, 7), 2
    )
    wanted = torch.arange(16).view(2, 8)
    wanted[:, 4] = -1
    same(slots, wanted)


def test_inputs_that_are_kept() -> None:
    path = SPEC + "multi_module_mtp.speculator"
    buffers = SimpleNamespace(input_ids=torch.arange(10, 18).int(), query_start_loc=WINDOW)
    embeds, hidden = randn(8, 40), randn(8, 40, seed=1)
    ids = torch.zeros(4, 3, dtype=torch.int64)
    words, states = torch.zeros(4, 3, 40), torch.zeros(4, 3, 40)
    function(path, "cache_inputs")(
        buffers, embeds, hidden, ids, words, states, ints(3, 6), ints(2, 0), 2, 4, True
    )
    same(ids[2], longs(11, 12, 13))
    same(ids[0], longs(0, 15, 16))  # request 0 has only two tokens
    same(words[2], embeds[1:4])
    same(states[0], torch.cat((torch.zeros(1, 40), hidden[5:7])))


def test_drafts_are_shifted_in() -> None:
    path = SPEC + "multi_module_mtp.speculator"
    ids = torch.arange(10, 18).int()
    kernel = function(path, "_shift_input_ids_kernel")
    kernel[(2,)](ids, ints(2, 0), WINDOW, ints(3, 7), longs(70, 71), BLOCK_SIZE=16)
    same(ids, ints(11, 12, 13, 70, 14, 16, 17, 71))
    embeds, new = randn(8, 40), randn(2, 40)
    got = embeds.clone()
    kernel = function(path, "_shift_input_embeds_kernel")
    kernel[(2, 2)](got, 40, new, 40, ints(2, -1), WINDOW, ints(3, 7), 40, BLOCK_SIZE_Q=8,
                   BLOCK_SIZE_H=32)  # fmt: skip
    same(got, torch.cat((embeds[1:4], new[:1], embeds[4:])))


# ---- models that draft a whole path


@pytest.mark.parametrize("wide", [False, True])
def test_walk_through_candidates(wide: bool) -> None:
    kernel = function(SPEC + "dflash2.speculator", "_selector_walk_kernel")
    scores = randn(2, 3, 5, 5)  # request, step, previous, next
    candidates = torch.randint(0, 99, (2, 3, 5), generator=torch.Generator().manual_seed(0))
    tokens, realized = torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3, 5)
    rows = ints(2, 2, 2, -1, -1, -1)
    kernel[(2,)](
        scores, candidates, torch.arange(6), rows, torch.zeros(4), longs(1, 2, 3, 4), tokens,
        realized, num_steps=3, top_k=5, BLOCK_K=8, SAMPLE_PROBABILISTIC=True, USE_FP64=wide,
    )  # fmt: skip
    previous = 0
    for step in range(3):
        same(realized[0, step], scores[0, step, previous])
        previous = int(scores[0, step, previous].argmax())
        assert tokens[0, step] == candidates[0, step, previous]
    assert not tokens[1].any() and not realized[1].any()


def test_scores_of_drafts_that_are_kept() -> None:
    kernel = function(SPEC + "dflash2.speculator", "_cache_draft_logits_kernel")
    scores, new = randn(4, 3), torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 3, 5]])
    old = torch.arange(24).view(4, 2, 3)
    kept, found = torch.zeros(4, 2, 30), old.clone()
    kernel[(4,)](kept, found, new, scores, ints(2, 2, -1, -1), 60, 30, num_steps=2, top_k=3,
                 BLOCK_K=4)  # fmt: skip
    wanted, ids = torch.zeros(4, 2, 30), old.clone()
    for step in range(2):
        wanted[2, step, old[2, step]] = -torch.inf
        wanted[2, step, new[step]] = scores[step]
        ids[2, step] = new[step]
    same(kept, wanted)
    same(found, ids)
