"""vLLM: queries and outputs that are turned and made small; pages that are gathered."""

from __future__ import annotations

import pytest
import torch
from drive_vllm import function, ints
from drive_vllm_drafts import longs
from drive_vllm_experts import FOURS
from drive_vllm_lora import EIGHT
from drive_vllm_quantized import fours
from reference import close, randn, rms_norm, rotated, same

OPS = "models.deepseek_v4.common.ops."


def turned(q: torch.Tensor, cache: torch.Tensor, at: torch.Tensor, width: int) -> torch.Tensor:
    """The last so many of (token, head, width) are rotated, neighbours as pairs."""
    cos, sin = (x[:, None] for x in cache[at].chunk(2, -1))
    last = rotated(q[..., -width:], cos, sin, True).bfloat16().double()
    return torch.cat((q[..., :-width].double(), last), -1)


@pytest.mark.parametrize("bits", [4, 8])
def test_queries_of_an_index(bits: int) -> None:
    q, cache = randn(4, 3, 128, dtype=torch.bfloat16), randn(9, 64)
    at, weights = longs(8, 0, 3, 1), randn(4, 3)
    wanted = turned(q, cache, at, 64)
    if bits == 8:
        got, by = function(OPS + "fused_indexer_q", "fused_indexer_q_rope_quant")(
            at, q, cache, weights, 0.5, 0.25
        )
        scale = (wanted.abs().amax(-1) / 448).log2().ceil().exp2()
        close(by, weights.double() * scale * 0.125)
        exact = (wanted / scale[..., None]).to(EIGHT).float()
        assert (got.float() == exact).float().mean() > 0.99
        return
    out, exponent = torch.zeros(4, 3, 64).byte(), torch.zeros(4, 3, 4).byte()
    by = torch.zeros(4, 3)
    function(OPS + "fused_indexer_q", "_fused_indexer_q_rope_mxfp4_kernel")[(4, 3)](
        at, q, *q.stride()[:2], cache, 64, 32, out, *out.stride()[:2], exponent,
        *exponent.stride()[:2], 128, 32, weights, 3, 0.5, 0.25, by, 3,
    )  # fmt: skip
    close(by, weights.double() * 0.125)
    groups = wanted.view(4, 3, 4, 32)
    right = (groups.abs().amax(-1) / 6).log2().ceil()
    same(exponent, right + 127)
    code = torch.stack((out & 15, out >> 4), -1).flatten(2).long()
    values = FOURS[code & 7] * torch.where(code > 7, -1.0, 1.0)
    exact = fours(groups / right.exp2()[..., None]).view(4, 3, 128)
    assert (values.double() == exact).double().mean() > 0.99


@pytest.mark.parametrize("packed", [False, True])
def test_outputs_are_turned_back(packed: bool) -> None:
    o, cache, at = randn(3, 4, 512, dtype=torch.bfloat16), randn(9, 64), longs(8, 0, 3)
    got, scale = function(OPS + "fused_inv_rope_fp8_quant",
                          "_fused_inv_rope_fp8_quant_kernel_impl")(
        o, at, cache, 2, 128, 4, 64, 32, packed, 448.0, 4, 3, 2, 1024, 2 if packed else 8,
    )  # fmt: skip
    cos, sin = (x[:, None] for x in cache[at].chunk(2, -1))
    back = rotated(o[..., -64:], cos, -sin, True)
    wanted = torch.cat((o[..., :-64].double(), back), -1).view(3, 2, 8, 128).transpose(0, 1)
    right = (wanted.abs().amax(-1) / 448).log2().ceil()
    if packed:
        same(scale[..., None] >> torch.arange(0, 32, 8) & 255, (right + 127).view(2, 3, 2, 4))
    else:
        close(scale, right.exp2())
    exact = (wanted / right.exp2()[..., None]).to(EIGHT).float()
    assert (got.float().view(2, 3, 8, 128) == exact).float().mean() > 0.99


def test_windows_of_pages() -> None:
    path, cache = "models.dots3_note.nvidia.attention", randn(6, 4, 40)
    table, lengths = ints(3, 1, 5, 4, -1, 2).view(2, 3), ints(9, 6)
    out, valid = torch.ones(2, 5, 40), torch.zeros(2, 5, dtype=torch.bool)
    function(path, "_gather_swa_kv_kernel")[(2, 1, 2)](
        cache, table, lengths, out, valid, torch.ones(1), *cache.stride(), 3, *out.stride(),
        *valid.stride(), GATHER_LEN=5, KV_DIM=40, BLOCK_T=8, BLOCK_D=32, PAGE_SIZE=4,
    )  # fmt: skip
    for request, first in enumerate((4, 1)):
        for k in range(5):
            page = int(table[request, (first + k) // 4])
            assert valid[request, k] == (page >= 0)
            same(out[request, k], cache[page, (first + k) % 4] * (page >= 0))
    scores = torch.zeros(2, 3, 2, 5)
    function(path, "_apply_swa_score_mask_kernel")[(2, 3, 2)](
        scores, lengths, valid, *scores.stride(), *valid.stride(), GATHER_LEN=5, WINDOW_SIZE=3,
        QUERY_LEN=2, BLOCK_T=8,
    )  # fmt: skip
    for request, (length, first) in enumerate(((9, 4), (6, 1))):
        for query in range(2):
            place = length - 2 + query - torch.arange(first, first + 5)
            seen = valid[request] & (place >= 0) & (place < 3)
            same(scores[request, :, query] == 0, seen.expand(3, 5))


def test_pages_for_another_library() -> None:
    path = "v1.attention.backends.flashinfer"
    table, out = ints(3, 1, 5, 4, 2, 0).view(2, 3), ints(*[9] * 5)
    function(path, "_copy_page_indices_kernel")[(2,)](out, table, 3, ints(0, 3, 5), BLOCK_SIZE=2)
    same(out, ints(3, 1, 5, 4, 2))
    cache = randn(6, 2, 2, 4, 16).to(EIGHT)  # page, key or value, head, token, width
    wide = torch.zeros(7, 2, 2, 4, 16, dtype=torch.bfloat16)
    function(path, "_trtllm_prefill_attn_kvfp8_dequant")[(2, 3)](
        cache, table, 3, wide, torch.tensor([0.5]), torch.tensor([0.25]), *cache.stride(),
        DST_K_CACHE_STRIDE=128, DST_KV_CACHE_STRIDE=256, HEAD_STRIDE=64, HEAD_SIZE=16,
        NUM_KV_HEADS=2,
    )  # fmt: skip
    scale = torch.tensor([0.5, 0.25]).view(1, 2, 1, 1, 1)
    for k, page in enumerate(table.flatten().tolist()):
        exact = cache[page : page + 1].double() * scale if page else torch.zeros(1, 2, 2, 4, 16)
        close(wide[k + 1 : k + 2], exact)


@pytest.mark.parametrize("kept", [False, True])
def test_norms_and_rotations_of_latents(kept: bool) -> None:
    path, at = "models.deepseek_v32.common.kernels", longs(8, 0, 3)
    q, kv, pe, index = (randn(3, n, seed=n) for n in (96, 64, 32, 64))
    qw, kw, iw, ib = randn(96), randn(64), randn(64, seed=1), randn(64, seed=2)
    cache, other = randn(9, 32), randn(9, 16)
    top = torch.zeros(3, 20, dtype=torch.int32)
    a, b, c = torch.zeros(3, 64), torch.zeros(3, 32), torch.zeros(3, 64)
    pages, slots = torch.zeros(2, 4, 96), longs(5, -1, 2)
    more = {"slot_mapping": slots, "mla_kv_cache": pages} if kept else {
        "kv_c_out": a, "k_pe_out": b, "index_k_out": c}  # fmt: skip
    got = function(path, "fused_norm_rope")(
        at, q, qw, 1e-5, kv, kw, 1e-5, pe, cache, index, iw, ib, 1e-5, other, top, **more
    )
    assert (top == -1).all()
    latent = rms_norm(kv, kw, 1e-5)
    cos, sin = cache[at].chunk(2, -1)
    place = rotated(pe, cos, sin, True)
    if kept:
        for row, slot in enumerate(slots.tolist()):
            if slot >= 0:
                close(got[row], rms_norm(q[row], qw, 1e-5))
                close(pages.view(8, 96)[slot], torch.cat((latent[row], place[row])))
        return
    close(got, rms_norm(q, qw, 1e-5))
    close(a, latent)
    close(b, place)
    normed = torch.nn.functional.layer_norm(index.double(), (64,), iw.double(), ib.double(), 1e-5)
    first = rotated(normed[:, :16], *other[at].chunk(2, -1), pairs=False)
    close(c, torch.cat((first, normed[:, 16:]), 1))


def test_latents_of_a_module_that_drafts() -> None:
    x, hidden, w, v, at = (
        randn(4, 72),
        randn(4, 72, seed=2),
        randn(72),
        randn(72, seed=1),
        ints(0, 1, 0, 5),
    )
    out = torch.zeros(4, 144)
    function("models.deepseek_v32.common.kernels", "_fused_eh_norm_kernel")[(4,)](
        at, x, 72, hidden, 72, w, v, 1e-5, out, 144, 72, 128
    )
    first = rms_norm(x * (at != 0)[:, None], w, 1e-5)
    close(out, torch.cat((first, rms_norm(hidden, v, 1e-5)), 1))


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("pairs", [False, True])
def test_queries_of_latents(small: bool, pairs: bool) -> None:
    pe, latent, index = randn(3, 3, 32), randn(3, 3, 48), randn(3, 2, 64)
    cache, other, at = randn(9, 32), randn(9, 16), longs(8, 0, 3)
    weights, scale = randn(3, 2), torch.tensor([0.5])
    packed, turn = torch.zeros(3, 3, 80, dtype=EIGHT), torch.zeros(3, 3, 32)
    eight, by = torch.zeros(3, 2, 64, dtype=EIGHT), torch.zeros(3, 2)
    function("models.deepseek_v32.common.kernels", "_fused_q_kernel")[(3, 3, 2)](
        at, pe, *pe.stride()[:2], 3, cache, 32, 16, index, *index.stride()[:2], 2, other, 16, 8,
        eight, *eight.stride()[:2], 64, latent, *latent.stride()[:2], packed,
        *packed.stride()[:2], scale, 48, 64, turn, *turn.stride()[:2], weights, 2, 0.5, 0.25, by,
        2, HAS_INDEXER=True, INDEX_ROPE_INTERLEAVE=pairs, QUANTIZE_MQA=small, USE_PDL=False,
    )  # fmt: skip
    cos, sin = (x[:, None] for x in cache[at].chunk(2, -1))
    place = rotated(pe, cos, sin, True)
    if small:
        wanted = torch.cat((latent.double(), place), -1)
        off = (packed.double() * 0.5 - wanted).abs()
        assert (off <= wanted.abs() / 15 + 0.001).all()
    else:
        close(turn, place)
    cos, sin = (x[:, None] for x in other[at].chunk(2, -1))
    wanted = torch.cat((rotated(index[..., :16], cos, sin, pairs), index[..., 16:].double()), -1)
    step = (wanted.abs().amax(-1) / 448).log2().ceil().exp2()
    close(by, weights.double() * step * 0.125)
    off = (eight.double() * step[..., None] - wanted).abs()
    assert (off <= wanted.abs() / 15 + step[..., None] * 2**-9).all()
