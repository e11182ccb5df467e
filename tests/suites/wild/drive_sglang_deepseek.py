"""SGLang: rotations, caches of eight bits and lists of slots of the fourth DeepSeek."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from reference import close, randn, rms_norm, rotated, same
from sglang_parts import (
    drawn,
    function,
    ints,
    longs,
    narrow_parts,
    nearest,
    read_pages,
    sums,
    whole_pages,
)

ROPE, V4 = "attention.deepseek_v4_rope", "attention.dsv4"
NARROW = torch.float8_e4m3fn
ANGLES = randn(50, 16)
TURNS = torch.polar(torch.ones(50, 16), ANGLES)


def turned(x: torch.Tensor, at: torch.Tensor, back: bool = False) -> torch.Tensor:
    angles = ANGLES[at].double() * (-1 if back else 1)
    if x.ndim == 3:
        angles = angles[:, None]
    return rotated(x, angles.cos(), angles.sin(), True)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("heads", [(), (3,)])
def test_rotations(batched: bool, back: bool, heads: tuple[int, ...]) -> None:
    at = longs(3, 49, 0, 7, 7)
    for places in (at, None):
        x = randn(5, *heads, 32)
        before, turns = x.clone(), TURNS if places is not None else TURNS[:5]
        function(ROPE, "set_batched_rope")(batched)
        try:
            function(ROPE, "apply_rotary_emb_triton")(x, turns, places, back)
        finally:
            function(ROPE, "set_batched_rope")(False)
        close(x, turned(before, at if places is not None else torch.arange(5), back))


@pytest.mark.parametrize("weighed", [False, True])
def test_norms_and_rotations(weighed: bool) -> None:
    x, w, at = randn(5, 80), randn(80), longs(3, 49, 0, 7, 7)
    wanted = rms_norm(x, w if weighed else torch.ones(80), 1e-5)
    function(ROPE, "fused_norm_rope_inplace_triton")(x, w if weighed else None, 1e-5, TURNS, at)
    close(x, torch.cat((wanted[:, :48], turned(wanted[:, 48:], at)), 1))


def test_pools() -> None:
    x = randn(5, 4, 200)
    got = function(ROPE, "fused_softmax_pool_triton")(x, 100)
    values, scores = x.double().split(100, -1)
    close(got, (values * scores.softmax(1)).sum(1))


@pytest.mark.parametrize("powers", [False, True])
def test_groups(powers: bool) -> None:
    path, x = "attention.dsa.triton_kernel", randn(5, 3, 256)
    got, scale = function(path, "act_quant")(x, 128, "ue8m0" if powers else None)
    wanted = x.double().unflatten(-1, (2, 128)).abs().amax(-1) / 448
    wanted = wanted.log2().ceil().exp2() if powers else wanted
    close(scale, wanted)
    nearest(got, x.double() / wanted.repeat_interleave(128, -1))
    lists, out = drawn(99, 3, 16, dtype=torch.int32), ints(*[-5] * 48)
    lists[drawn(3, 3, 16) == 0] = -1
    lengths = tuple((lists >= 0).sum(1).tolist())
    function(path, "get_valid_kv_indices")(lists, sums(lengths), out, 3)
    same(out[: sum(lengths)], lists[lists >= 0])
    assert (out[sum(lengths) :] == -5).all()


# ---- caches: 448 numbers of 8 bits with a power of two for each 64, and 64 of 16 bits

PAGE = 16
AT = longs(0, 15, 16, 40, 63, 33)


def test_caches() -> None:
    x, path = 9 * randn(6, 512, dtype=torch.bfloat16), f"{V4}.index_buf_accessor"
    wanted, exponents = narrow_parts(x)
    packed = function(f"{V4}.quant_k_cache", "quant_to_nope_fp8_rope_bf16_pack_triton")(x)
    nearest(packed.k_nope_fp8, wanted)
    same(packed.k_rope_bf16, x[:, 448:])
    same(packed.scale_k_nope_ue8m0, exponents)
    one, two = (torch.zeros(4, PAGE * 584, dtype=torch.uint8) for _ in range(2))
    function(path, "SetKAndS").triton(SimpleNamespace(page_size=PAGE), one, AT, packed)
    function("kvcache.triton_store_cache", "triton_fused_store_cache")(
        x, two, AT, page_size=PAGE, type="flashmla"
    )
    for buffer in (one, two):
        low, high, scales = read_pages(buffer, PAGE)
        nearest(low[AT], wanted)
        same(high[AT], x[:, 448:])
        same(scales[AT], exponents)
    back = whole_pages(one, PAGE)[AT]
    got = function(f"{V4}.dequant_k_cache", "dequantize_k_cache_paged")(one, AT, PAGE)
    close(got[:, 0], back)
    got = function(f"{V4}.dequant_k_cache", "gather_dequant_requant_fp8_paged")(one, AT, PAGE, 2)
    nearest(got[:6, 0], back.clamp(-448, 448))
    assert (got[6:].float() == 0).all()


def test_keys_of_indexers() -> None:
    x, buffer = randn(6, 128, dtype=torch.bfloat16), torch.zeros(4, 64 * 132, dtype=torch.uint8)
    function("kvcache.triton_store_cache", "triton_fused_store_cache")(
        x, buffer, AT, page_size=64, type="indexer"
    )
    keys = buffer[:, : 64 * 128].reshape(256, 128)[AT].view(NARROW)
    scales = buffer[:, 64 * 128 :].reshape(256, 4)[AT].view(torch.float32)[:, 0]
    wanted = x.double().abs().amax(1) / 448
    close(scales, wanted)
    nearest(keys, x.double() / wanted[:, None])


# ---- one cache for windows and compressed keys

RUN = f"{V4}.unified_kv_kernels.runtime"


@pytest.mark.parametrize("last", [False, True])
def test_rings(last: bool) -> None:
    x, whole = randn(5, 40), torch.zeros(64, 40)
    slot, at, end = longs(0, 0, 2, 2, 3), longs(3, 20, 5, 40, 7), longs(20, 20, 40, 40, 7)
    function(RUN, "store_swa_into_unified")(
        kv=x, state_slot=slot, positions=at, unified_kv=whole, win=16, ring_stride=16,
        final_pos=end if last else None,
    )  # fmt: skip
    wanted = torch.zeros(64, 40)
    for k in range(5):
        if not last or at[k] > end[k] - 16:
            wanted[slot[k] * 16 + at[k] % 16] = x[k]
    same(whole, wanted)
    function(RUN, "scatter_bf16_into_unified")(kv=x, loc=longs(9, -1, 0, 63, 5), unified_kv=whole)
    wanted[longs(9, 0, 63, 5)] = x[longs(0, 2, 3, 4)]
    same(whole, wanted)


def test_tails() -> None:
    pages, valid, before = drawn(99, 3, 7, dtype=torch.int32), ints(7, 0, 3), ints(2, 5, 1)
    pages[0, 2] = -1
    starts, out = ints(0, 10, 20), ints(*[-9] * 30)
    function(RUN, "fill_compress_tail")(
        indices=out, indptr=starts, prefix_len=before, page_indices=pages, valid_len=valid,
        swa_pages=1000,
    )  # fmt: skip
    wanted = ints(*[-9] * 30)
    for k in range(3):
        n, a = int(valid[k]), int(starts[k] + before[k])
        wanted[a : a + n] = torch.where(pages[k, :n] < 0, -1, pages[k, :n] + 1000)
    same(out, wanted)


@pytest.mark.parametrize("ratio", [0, 4])
def test_lists_of_slots(ratio: int) -> None:
    win, ring, slot = 16, 32, ints(2, 2, 0, 0, 0)
    at, chunk, first = ints(30, 31, 4, 5, 6), ints(30, 30, 4, 4, 4), ints(0, 0, 2, 2, 2)
    pages = drawn(99, 5, 7, dtype=torch.int32)
    for k, n in enumerate((7, 3, 1, 0, 2)):
        pages[k, n:] = -1
    old, old_at, new, new_at = function(RUN, "build_prefill_indices")(
        compress_ratio=ratio, state_slot=slot, positions=at, chunk_start=chunk, cu_q=first, win=win,
        ring_stride=ring, swa_pages=1000, c128_page_indices=None,
        c4_sparse_page_indices=pages if ratio else None,
    )  # fmt: skip
    for k in range(5):
        here, begun = int(at[k]), int(chunk[k])
        low = max(here - win + 1, 0)
        past = [int(slot[k]) * ring + p % ring for p in range(low, begun)]
        past += [int(p) + 1000 for p in pages[k] if p >= 0] if ratio else []
        assert old[old_at[k] : old_at[k + 1]].tolist() == past
        fresh = [int(first[k]) + p - begun for p in range(max(low, begun), here + 1)]
        assert new[new_at[k] : new_at[k + 1]].tolist() == fresh


def with_sink(q: torch.Tensor, kv: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """Attention of (heads, width) to (slots, width), with one more score that has no value."""
    scores = torch.cat((q.double() @ kv.double().T * 0.2, sink.double()[:, None]), 1)
    return scores.softmax(1)[:, :-1] @ kv.double()


@pytest.mark.parametrize("splits", [1, 4])
def test_attention_to_lists(splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = 6
    # It asks a library for another GPU how many units there are.
    path = "sglang.kernels.ops.attention.dsv4.unified_kv_kernels.paged_decode"
    monkeypatch.setattr(f"{path}._cu_count", lambda: 4)
    q, whole = randn(tokens, 4, 64, dtype=torch.float16), randn(90, 64, dtype=torch.float16)
    sink = randn(4)
    lengths = tuple((7 * t) % 50 for t in range(tokens))
    slots = drawn(90, sum(lengths), dtype=torch.int32)
    decode = f"{V4}.unified_kv_kernels.paged_decode"
    got = function(decode, "_sparse_attn_v4_paged_decode_triton")(
        q, whole, slots, sums(lengths), sink, 0.2, kv_splits=splits, block_k=16
    )
    lists = slots.long().split(lengths)
    for t in range(tokens):
        close(got[t], with_sink(q[t], whole[lists[t]], sink))
    new, fresh = randn(tokens, 64, seed=1).half(), tuple(t % 3 for t in range(tokens))
    more = drawn(tokens, sum(fresh), dtype=torch.int32)
    got = function(RUN, "prefill")(
        q=q, unified_kv=whole, kv_indices_prefix=slots, kv_indptr_prefix=sums(lengths),
        kv_extend=new, kv_indices_extend=more, kv_indptr_extend=sums(fresh), attn_sink=sink,
        softmax_scale=0.2,
    )  # fmt: skip
    for t, (a, b) in enumerate(zip(lists, more.long().split(fresh), strict=True)):
        close(got[t], with_sink(q[t], torch.cat((whole[a], new[b])), sink))


def test_slots_for_decoding() -> None:
    win, ring = 8, 16
    slot, at = ints(2, 0, 3), ints(30, 4, 7)
    near, far, wide = ints(8, 5, 8), ints(2, 0, 1), ints(1, 3, 0)
    pages = drawn(99, 3, 5, dtype=torch.int32)
    found = function(RUN, "build_decode_streams")(
        state_slot=slot, positions=at, swa_len=near, hca_len=far, csa_len=wide,
        hca_page_indices=pages, csa_width=4, win=win, ring_stride=ring, swa_pages=1000,
    )  # fmt: skip
    for k in range(3):
        here = int(at[k])
        window = [int(slot[k]) * ring + p % ring for p in range(max(here - win + 1, 0), here + 1)]
        tail = (pages[k, : int(far[k])] + 1000).tolist()
        for (out, starts), wanted in zip(
            ((found[0], found[1]), (found[2], found[3]), (found[4], found[5])),
            (window, window + tail, window), strict=True,
        ):  # fmt: skip
            assert out[starts[k] : starts[k] + len(wanted)].tolist() == wanted
