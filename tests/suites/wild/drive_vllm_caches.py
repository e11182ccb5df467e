"""vLLM: models that keep more than keys and values: compressed caches, windows, residuals."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from drive_vllm import function, ints
from drive_vllm_drafts import longs
from drive_vllm_lora import EIGHT
from drive_vllm_models import INKLING
from reference import close, randn, rms_norm, same

DEEPSEEK = "models.deepseek_v4."
OPS = DEEPSEEK + "common.ops."
KIMI = "models.kimi_k3."


# ---- DeepSeek


def test_keys_in_8_bits_and_back() -> None:
    """A page has the bytes of its tokens, then their exponents."""
    path, k = OPS + "cache_utils", randn(5, 512, dtype=torch.bfloat16)
    pages = torch.zeros(4, 4 * 576 + 4 * 8, dtype=torch.uint8)
    slots = longs(4, 5, -1, 12, 7)
    function(path, "quantize_and_insert_k_cache")(k, pages, slots, 4)
    for row, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        page, at = pages[slot // 4], slot % 4
        data = page[at * 576 : at * 576 + 576]
        same(data[448:].view(torch.bfloat16), k[row, 448:])
        scale = 2.0 ** (page[4 * 576 + at * 8 : 4 * 576 + at * 8 + 7].double() - 127)
        groups = k[row, :448].double().view(7, 64)
        close(scale, (groups.abs().amax(-1) / 448).log2().ceil().exp2())
        same(
            data[:448].view(EIGHT).float().view(7, 64), (groups / scale[:, None]).to(EIGHT).float()
        )
    assert not pages[0].any() and not pages[2].any()
    out = torch.zeros(1, 4, 512, dtype=torch.bfloat16)
    kernel = function(path, "_dequantize_and_gather_k_kernel")
    kernel[(1, 2)](
        out, *out.stride()[:2], pages, ints(8), ints(3, 1).view(1, 2), 1, ints(3),
        max_blocks_per_seq=2, fp8_dim=448, bf16_dim=64, scale_dim=8, quant_block=64,
        cache_block_size=4, token_data_size=576, block_stride=pages.stride(0), output_dim=512,
        fp8_max=448.0, n_quant_blocks=7,
    )  # fmt: skip
    # The last three of eight tokens: places 1, 2 and 3 of page 1, of which 2 was never written.
    assert not out[0, 0].any() and not out[0, 2].any()
    for place, row in ((1, 1), (3, 4)):
        near = k[row].double()
        assert ((out[0, place].double() - near).abs() <= near.abs() / 15 + 0.02).all()
        same(out[0, place, 448:], k[row, 448:])


def test_inputs_of_a_module_that_drafts() -> None:
    path = OPS + "fused_mtp_input_rmsnorm"
    x, hidden, w, v = randn(4, 72), randn(4, 3, 72), randn(72), randn(72, seed=1)
    at = longs(0, 1, 0, 5)
    e, h = function(path, "fused_mtp_input_rmsnorm")(x, at, hidden, w, v, 1e-5, 3)
    close(e, rms_norm(x * (at != 0)[:, None], w, 1e-5))
    close(h, rms_norm(hidden, v, 1e-5))
    close(function(path, "mtp_shared_head_rmsnorm")(x, w, 1e-5), rms_norm(x, w, 1e-5))


def test_states_that_are_not_yet_compressed() -> None:
    kv, score, ape = randn(4, 40), randn(4, 40, seed=1), randn(3, 40)
    cache, slots, at = torch.zeros(3, 4, 96), longs(5, -1, 0, 11), longs(4, 5, 6, 8)
    function(OPS + "save_partial_states", "save_partial_states")(
        kv, score, ape, at, cache, slots, 4, 48, 3
    )
    wanted = torch.zeros(12, 96)
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            wanted[slot, :40], wanted[slot, 48:88] = kv[row], score[row] + ape[at[row] % 3]
    close(cache.view(12, 96), wanted.double())


@pytest.mark.parametrize("padded", [False, True])
def test_inputs_of_all_experts(padded: bool) -> None:
    x = randn(3, 256, dtype=torch.bfloat16)
    ids, weights = torch.randint(0, 9, (3, 6)).int(), torch.rand(3, 6)
    empty = torch.tensor([False, True, False]) if padded else None
    out, scale = torch.zeros(3, 256, dtype=EIGHT), torch.zeros(3, 2, dtype=torch.int32)
    to, by = torch.zeros(3, 6, dtype=torch.int64), torch.zeros(3, 6)
    function(DEEPSEEK + "nvidia.ops.prepare_megamoe", "_prepare_megamoe_inputs_kernel")[(3, 2)](
        x, out, scale, None, ids, weights, empty, to, by, *x.stride(), *out.stride(),
        *scale.stride(), 0, 0, *ids.stride(), *weights.stride(), 1, *to.stride(), *by.stride(),
        hidden_size=256, top_k=6, BLOCK_K=128, GROUP_K=32, BLOCK_TOPK=8, SHARED_BLOCK_M=128,
    )  # fmt: skip
    groups = x.double().view(3, 8, 32)
    exponent = (groups.abs().amax(-1) / 448).log2().ceil()
    same(scale[..., None] >> torch.arange(0, 32, 8) & 255, (exponent + 127).view(3, 2, 4))
    same(out.float().view(3, 8, 32), (groups / exponent.exp2()[..., None]).to(EIGHT).float())
    gone = torch.zeros(3, 1, dtype=torch.bool) if empty is None else empty[:, None]
    same(to, ids.long().masked_fill(gone, -1))
    same(by, weights.masked_fill(gone, 0))


def test_all_of_a_short_context() -> None:
    out = torch.zeros(3, 6, dtype=torch.int32)
    kernel = function(DEEPSEEK + "attention", "_fill_short_context_topk_indices")
    kernel[(3,)](out, longs(0, 7, 40), TOP_K=6, COMPRESS_RATIO=4, PADDED_TOP_K=8)
    place = torch.arange(6).expand(3, 6)
    same(out, torch.where(place < longs(0, 2, 10)[:, None], place, -1))


# ---- Kimi


def test_inputs_of_kimi_that_drafts() -> None:
    x, hidden, w, v, at = (
        randn(4, 72),
        randn(4, 72, seed=2),
        randn(72),
        randn(72, seed=1),
        longs(0, 1, 0, 5),
    )
    got = function(KIMI + "common.mtp", "fused_mtp_input")(at, x, hidden, w, v, 1e-5)
    first = rms_norm(x * (at != 0)[:, None], w, 1e-5)
    close(got, torch.cat((first, rms_norm(hidden, v, 1e-5)), 1))


@pytest.mark.parametrize("blocks", [0, 5])
@pytest.mark.parametrize("added", [False, True])
def test_attention_over_residuals(blocks: int, added: bool) -> None:
    prefix, delta, kept = randn(4, 72), randn(4, 72, seed=1), randn(4, 7, 72)
    w, q, last = randn(72), randn(72, seed=1) / 4, randn(72, seed=2)
    before, old = prefix.clone(), kept.clone()
    got = function(KIMI + "nvidia.ops.attn_res", "attn_res")(
        prefix, delta if added else None, kept, w, q, last, blocks, 5, 1e-5, 1e-5
    )
    total = before.double() + (delta if added else 0)
    close(prefix, total)
    close(kept[:, 5], total)
    same(kept[:, :5], old[:, :5])
    sources = torch.cat((old[:, :blocks].double(), total[:, None]), 1)
    share = (rms_norm(sources, w, 1e-5) * q.double()).sum(-1).softmax(-1)
    close(got, rms_norm((share[..., None] * sources).sum(1), last, 1e-5), 10)


def test_states_of_requests_that_draft() -> None:
    path, table = KIMI + "nvidia.kda_metadata", torch.arange(24).int().view(4, 6)
    out = torch.zeros(4, 3, dtype=torch.int32)
    lengths = ints(1, 8, 9, 0)
    function(path, "_get_aligned_state_indices_kernel")[(1,)](
        table, lengths, out, 6, 1, 1, 3, 1, 4, CACHE_BLOCK_SIZE=4, NUM_STATE_SLOTS=3,
        BLOCK_STATE_SLOTS=4, BLOCK_ROWS=8, launch_pdl=False,
    )  # fmt: skip
    same(out, torch.stack([table[r, c : c + 3] for r, c in enumerate((0, 1, 2, 0))]))
    staged, starts, counts = torch.full((6, 3), 9).int(), ints(*[9] * 7), ints(*[9] * 6)
    function(path, "_stage_spec_decode_metadata_kernel")[(1,)](
        out, ints(0, 3, 5, 9, 12), ints(2, 1, 3, 2), staged, starts, counts, 3, 1, 3, 1, 4, 6,
        NUM_STATE_SLOTS=3, BLOCK_STATE_SLOTS=4, NULL_STATE_ID=0, BLOCK_ROWS=8, launch_pdl=False,
    )  # fmt: skip
    same(staged, torch.cat((out, torch.zeros(2, 3).int())))
    same(starts, ints(0, 3, 5, 9, 12, 12, 12))
    same(counts, ints(2, 1, 3, 2, 1, 1))


def test_states_in_the_middle_of_a_prompt() -> None:
    x, conv, state = randn(9, 6), torch.zeros(4, 6, 3), torch.zeros(4, 20)
    given = randn(2, 20)
    function(KIMI + "nvidia.kda", "_store_cache_checkpoints_kernel")[(2, 2)](
        x, conv, given, state, ints(0, 5), ints(4, 0), ints(3, 1), 6, 1, 18, 3, 1, 20, 20, 1,
        STATE_LEN=3, WIDTH=6, RECURRENT_ROW_SIZE=20, NULL_STATE_IDX=0, BLOCK_SIZE=16,
    )  # fmt: skip
    wanted = torch.zeros(4, 6, 3)
    wanted[3] = x[1:4].T
    same(conv, wanted)
    same(state[3], given[0])
    assert not state[:3].any()


# ---- Inkling


@pytest.mark.parametrize("act", [None, "silu"])
def test_short_convolutions(act: str | None) -> None:
    """Requests with 3 and 2 new tokens; the first has two before them, in pages of four."""
    x, w = randn(5, 2 * 6), randn(12, 4)
    cache, table = randn(5, 2, 4, 10), ints(3, 1, 4, 2).view(2, 2)
    old, at = cache.clone(), longs(2, 3, 4, 0, 1)
    request, first = ints(0, 0, 0, 1, 1), ints(0, 0, 0, 3, 3)
    slots = table[request.long(), at // 4].long() * 4 + at % 4
    got = function(INKLING + "ops.sconv", "fused_sconv")(
        x, w, cache, at, table, request, slots, first, 2, 6, 4, act
    )
    past = torch.cat([old[3, :, t, 2:8].reshape(1, 12) for t in range(2)])
    wanted = []
    for rows, before in ((x[:3], past), (x[3:], torch.zeros(0, 12))):
        whole = torch.cat((before, rows)).double()
        padded = torch.cat((torch.zeros(3, 12), whole))
        taps = torch.stack([padded[k : k + len(whole)] for k in range(4)], -1)
        y = (taps * w.double()).sum(-1)[len(before) :]
        wanted.append((F.silu(y) if act else y) + rows.double())
    close(got, torch.cat(wanted))
    for row, slot in enumerate(slots.tolist()):
        old[slot // 4, :, slot % 4, 2:8] = x[row].view(2, 6)
    same(cache, old)


def test_requests_of_tokens() -> None:
    request, first = ints(*[9] * 10), ints(*[9] * 10)
    function(INKLING + "ops.sconv", "sconv_seq_metadata")(ints(0, 3, 4, 7), 3, 7, request, first, 9)
    same(request, ints(0, 0, 0, 1, 2, 2, 2, 0, 0, 9))
    same(first, ints(0, 0, 0, 3, 4, 4, 4, 0, 0, 9))


@pytest.mark.parametrize("name", ["_rel_proj_low_latency_kernel", "_rel_proj_throughput_kernel"])
@pytest.mark.parametrize("scaled", [False, True])
def test_relative_positions(name: str, scaled: bool) -> None:
    x, w, by = randn(5, 100 + 3 * 16), randn(16, 40), torch.rand(5)
    out = torch.zeros(5, 3, 40)
    more = {} if "low" in name else {"GROUP_M": 2}
    function(INKLING + "ops.qkvr_prep", name)[(1, 2)](
        x, w, out, by, 15, x.stride(0), R_OFFSET=100, NUM_Q_HEADS=3, REL_EXTENT=40, BLOCK_M=16,
        BLOCK_N=32, APPLY_LOG_SCALING=scaled, **more,
    )  # fmt: skip
    wanted = x[:, 100:].double().view(5, 3, 16) @ w.double()
    close(out, wanted * by.double()[:, None, None] if scaled else wanted, 10)
