"""vLLM: several tokens become one: gathered, weighted, normed, turned and stored with few bits; and
what Inkling stores of queries, keys and values."""

from __future__ import annotations

import pytest
import torch
from drive_vllm import function, ints
from drive_vllm_drafts import longs
from drive_vllm_experts import FOURS
from drive_vllm_lora import EIGHT
from drive_vllm_models import INKLING
from drive_vllm_quantized import fours
from reference import close, randn, rms_norm, rotated, same

PATH = "models.deepseek_v4.common.ops.fused_compress_quant_cache"


def compressed(
    states: torch.Tensor,
    table: torch.Tensor,
    place: int,
    width: int,
    ratio: int,
    overlap: int,
    weight: torch.Tensor,
    cache: torch.Tensor,
) -> torch.Tensor:
    """The tokens up to a place, each element with weights of its own. The older half of those that
    overlap has the first part of a state, the newer half the second."""
    size, total = states.shape[1], (1 + overlap) * ratio
    half = states.shape[2] // 2
    kv, score = [], []
    for k, p in enumerate(range(place - total + 1, place + 1)):
        if p >= 0:
            row, at = states[int(table[0, p // size]), p % size].double(), (k >= ratio) * width
            kv.append(row[at : at + width])
            score.append(row[half + at : half + at + width])
    y = (torch.stack(kv) * torch.stack(score).softmax(0)).sum(0)
    y = rms_norm(y, weight, 1e-6)
    cos, sin = cache[place // ratio * ratio].chunk(2)
    return torch.cat((y[:-64], rotated(y[-64:], cos, sin, True)))


def inputs(width: int, ratio: int, overlap: int) -> tuple[torch.Tensor, ...]:
    """Three places that end a group, and one that does not."""
    states = randn(3 * ratio // 8 + 1, 8, 2 * (1 + overlap) * width)
    at = longs(ratio - 1, 2 * ratio - 1, 2 * ratio, 3 * ratio - 1)
    table = torch.arange(len(states)).flip(0).int()[None]
    return states, table, at, randn(width), randn(3 * ratio, 64)


@pytest.mark.parametrize("bits", [4, 8])
def test_index_of_compressed_tokens(bits: int) -> None:
    states, table, at, weight, cache = inputs(128, 4, 1)
    data, more = (64, 4) if bits == 4 else (128, 4)
    pages, slots = torch.zeros(2, 4 * (data + more), dtype=torch.uint8), longs(1, 6, 3, 4)
    name = "_fused_kv_compress_norm_rope_insert_indexer_" + ("mxfp4_attn" if bits == 4 else "attn")
    function(PATH, name)[(4,)](
        states, *states.stride()[:2], ints(0, 0, 0, 0), at, longs(0, 1, 2, 3), table,
        table.stride(0), 8, weight, 1e-6, cache, 64, pages, slots, 4, HEAD_SIZE=128,
        TRITON_BLOCK_SIZE=128, STATE_WIDTH=256, COMPRESS_RATIO=4, OVERLAP=1, ROPE_HEAD_DIM=64,
        FP8_MAX=448.0, QUANT_BLOCK=32 if bits == 4 else 128, TOKEN_STRIDE=data, SCALE_DIM=more,
        KV_BLOCK_STRIDE=pages.stride(0),
    )  # fmt: skip
    for row in (0, 1, 3):
        wanted = compressed(states, table, int(at[row]), 128, 4, 1, weight, cache)
        page, place = pages[int(slots[row]) // 4], int(slots[row]) % 4
        bytes_ = page[place * data : place * data + data]
        scale = page[4 * data + place * 4 : 4 * data + place * 4 + 4]
        if bits == 8:
            step = scale.view(torch.float32).double()
            close(step.float(), (wanted.abs().amax() / 448).log2().ceil().exp2()[None])
            off = (bytes_.view(EIGHT).double() * step - wanted).abs()
            assert (off <= wanted.abs() / 14 + step * 2**-9).all()
            continue
        groups = wanted.view(4, 32)
        exponent = (groups.abs().amax(-1) / 6).log2().ceil()
        same(scale, exponent + 127)
        code = torch.stack((bytes_ & 15, bytes_ >> 4), -1).flatten().long()
        values = (FOURS[code & 7] * torch.where(code > 7, -1.0, 1.0)).double()
        exact = fours(groups / exponent.exp2()[:, None]).flatten()
        assert (values == exact).double().mean() > 0.9 and (values - exact).abs().max() <= 2
    gap = pages[0, 3 * data : 4 * data]
    assert not gap.any()  # the third token ends no group


@pytest.mark.parametrize("split", [False, True])
def test_compressed_tokens(split: bool) -> None:
    ratio, overlap = (128, 0) if split else (4, 1)
    states, table, at, weight, cache = inputs(512, ratio, overlap)
    pages, slots = torch.zeros(2, 4, 584, dtype=torch.uint8), longs(1, 6, 3, 4)
    requests, tokens = ints(0, 0, 0, 0), longs(0, 1, 2, 3)
    if split:
        function(PATH, "_launch_two_stage_sparse_attn_compressor")(
            states, requests, at, tokens, table, 8, 512, 128, cache, pages, slots, weight, 1e-6,
            64, 576, 8, 512, 64, 4, torch.zeros(4, 512),
        )  # fmt: skip
    else:
        function(PATH, "_fused_kv_compress_norm_rope_insert_sparse_attn")[(4,)](
            states, *states.stride()[:2], requests, at, tokens, table, table.stride(0), 8, weight,
            1e-6, cache, 64, pages, slots, 4, HEAD_SIZE=512, TRITON_BLOCK_SIZE=512,
            STATE_WIDTH=1024, COMPRESS_RATIO=4, OVERLAP=1, ROPE_HEAD_DIM=64, FP8_MAX=448.0,
            QUANT_BLOCK=64, TOKEN_STRIDE=576, SCALE_DIM=8, KV_BLOCK_STRIDE=pages.stride(0),
            SANITIZE_CACHE_NANS=False,
        )  # fmt: skip
    for row in (0, 1, 3):
        wanted = compressed(states, table, int(at[row]), 512, ratio, overlap, weight, cache)
        page, place = pages[int(slots[row]) // 4].flatten(), int(slots[row]) % 4
        data = page[place * 576 : place * 576 + 576]
        close(data[448:].view(torch.bfloat16), wanted[448:])
        scale = page[4 * 576 + place * 8 : 4 * 576 + place * 8 + 7].double()
        groups = wanted[:448].view(7, 64)
        exponent = (groups.abs().amax(-1) / 448).log2().ceil()
        assert ((scale - 127 - exponent).abs() <= 1).all()  # rounded before or after
        step = (scale - 127).exp2()[:, None]
        off = (data[:448].view(EIGHT).double().view(7, 64) * step - groups).abs()
        assert (off <= groups.abs() / 14 + step * 2**-9).all()


@pytest.mark.parametrize("tokens", [9, 136])
def test_queries_keys_and_values_of_inkling(tokens: int) -> None:
    """One request whose tokens are all new, in pages of 16."""
    heads, groups, width, wide = 4, 2, 128, 64
    x = randn(tokens, (heads + 2 * groups) * width + heads * 16, dtype=torch.bfloat16)
    kw, vw = (randn(groups * width, 4, dtype=torch.bfloat16, seed=s) for s in range(2))
    qn, kn = (randn(width, dtype=torch.bfloat16, seed=s) for s in range(2))
    relative, by = randn(16, wide, dtype=torch.bfloat16), torch.linspace(1.0, 1.1, tokens)
    pages = -(-tokens // 16)
    conv = torch.zeros(pages, groups, 16, 2 * width, dtype=torch.bfloat16)
    keys, values = (torch.zeros(pages, 16, groups, width, dtype=torch.bfloat16) for _ in range(2))
    at, none = torch.arange(tokens), torch.zeros(tokens, dtype=torch.int32)
    q, rel = function(INKLING + "ops.qkvr_prep", "fused_qkvr_prep")(
        x, kw, vw, qn, kn, relative, 1e-6, heads, groups, width, 16, conv, keys, values, at,
        torch.arange(pages).int()[None], none, at, none, at, 0, width, 16, by,
    )  # fmt: skip
    parts = x.double().split((heads * width, groups * width, groups * width, heads * 16), 1)

    def convolved(y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        padded = torch.cat((torch.zeros(3, y.shape[1]), y))
        taps = torch.stack([padded[k : k + tokens] for k in range(4)], -1)
        return ((taps * w.double()).sum(-1) + y).view(tokens, groups, width)

    scale = by.double()[:, None, None]
    close(q.view(tokens, heads, width), rms_norm(parts[0].view(tokens, heads, width), qn, 1e-6)
          * scale)  # fmt: skip
    close(rel, parts[3].view(tokens, heads, 16) @ relative.double() * scale, 2)
    close(values.view(-1, groups, width)[:tokens], convolved(parts[2], vw))
    close(keys.view(-1, groups, width)[:tokens], rms_norm(convolved(parts[1], kw), kn, 1e-6))
