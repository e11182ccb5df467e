"""SGLang: slots and pages of caches, and what is written into them."""

from __future__ import annotations

import pytest
import torch
from reference import close, randn, same
from sglang_parts import drawn, function, ints, longs, mixed, nearest, sums

TABLE = (torch.arange(5 * 400, dtype=torch.int32) * 7 % 2003).view(5, 400)
NARROW = torch.float8_e4m3fn
REQUESTS = longs(3, 0, 4)


# ---- slots of requests


def pages(page: int) -> torch.Tensor:
    """A table in which a request's pages lie anywhere."""
    first = mixed(5 * (400 // page), seed=3).view(5, -1, 1) * page
    return (first + torch.arange(page)).flatten(1).int()


def test_new_pages() -> None:
    page = 16
    before, after, last = longs(5, 32, 0, 40), longs(9, 70, 16, 41), longs(4, 31, -1, 100)
    free = longs(7, 3, 9, 12, 5, 6, 8)
    out = torch.full((60,), -1)
    function("memory.allocator", "alloc_extend_kernel")[(4,)](
        before, after, last, free, out, 4, page
    )
    parts, used = [], 0
    for a, b, slot in zip(before.tolist(), after.tolist(), last.tolist(), strict=True):
        for k in range(a, b):
            if k % page:
                slot += 1
            else:
                slot, used = int(free[used]) * page, used + 1
            parts.append(slot)
    same(out[: len(parts)], torch.tensor(parts))
    assert (out[len(parts) :] == -1).all()
    lengths, got = longs(6, 33, 1, 42), torch.empty(4, dtype=torch.int64)
    kernel = function("memory.allocator", "alloc_decode_kernel")
    kernel[(4,)](lengths, longs(4, 31, 0, 100), free, got, 4, page)
    same(got, longs(5, 7 * page, 3 * page, 101))


def test_slots_of_requests() -> None:
    table = TABLE.clone()
    prefixes = [drawn(999, n, seed=n) for n in (3, 600 % 97, 0)]
    addresses = torch.tensor([p.data_ptr() for p in prefixes], dtype=torch.uint64)
    before = longs(*map(len, prefixes))
    after, new = before + longs(5, 20, 1), drawn(999, 26)
    kernel = function("memory.common", "write_req_to_token_pool_triton")
    kernel[(3,)](table, REQUESTS, addresses, before, after, after - before, new, 400)
    wanted = TABLE.clone()
    for r, p, part in zip(REQUESTS, prefixes, new.split((5, 20, 1)), strict=True):
        wanted[r, : len(p) + len(part)] = torch.cat((p, part)).int()
    same(table, wanted)
    for name in ("get_last_loc_triton", "get_last_loc_triton_safe"):
        for kind in (torch.int32, torch.int64):
            got = function("memory.common", name)(
                TABLE, REQUESTS.to(kind), ints(9, 0, 400).to(kind)
            )
            same(got, torch.stack((TABLE[3, 8], torch.tensor(-1), TABLE[4, 399])))
    table, starts, ends = TABLE.clone(), longs(5, 0, 90), longs(9, 50, 91)
    function(".srt.mem_cache.allocation", "assign_req_to_token_pool")[(3,)](
        REQUESTS, table, starts, ends, drawn(999, 55, seed=2), 400, 4
    )
    wanted = TABLE.clone()
    for r, a, b, part in zip(REQUESTS, starts, ends, drawn(999, 55, seed=2).split((4, 50, 1)),
                             strict=True):  # fmt: skip
        wanted[r, a:b] = part.int()
    same(table, wanted)


def test_moved_parts() -> None:
    forward = function("memory.memcpy_triton", "memcpy_triton")
    a, b = randn(20, 30), randn(8, 30)
    for from_source in (False, True):
        wide, narrow = a.clone(), b.clone()
        if from_source:
            forward(narrow, wide, 0, ints(5), ints(7), True)
            same(narrow, torch.cat((a[5:12], b[7:])))
        else:
            forward(wide, narrow, 0, ints(5), ints(7), False)
            same(wide, torch.cat((a[:5], b[:7], a[12:])))


def mixed_bits(x: int) -> int:
    x ^= x >> 16
    x = x * 0x85EBCA6B & 0xFFFFFFFF
    x ^= x >> 13
    x = x * 0xC2B2AE35 & 0xFFFFFFFF
    return x ^ x >> 16


def test_hash() -> None:
    words = drawn(2**32, 700).tolist()
    seed = 0x243F6A88
    seeds = seed, ((seed * 0x9E3779B1) ^ 0xDEADBEEF) & 0xFFFFFFFF
    total = 0
    for tile in range(0, 700, 256):
        halves = []
        for s, factor, turn in zip(seeds, (0x27D4EB2D, 0x165667B1), (15, 13), strict=True):
            h = 0
            for at in range(tile, min(tile + 256, 700)):
                turned = (at << turn | at >> (32 - turn)) & 0xFFFFFFFF
                h += mixed_bits(words[at] ^ ((at * factor + s) & 0xFFFFFFFF) ^ turned)
            halves.append(mixed_bits(h & 0xFFFFFFFF ^ 2800))
        total += halves[0] << 32 | halves[1]
    x = total & 0xFFFFFFFFFFFFFFFF
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ x >> shift) * factor & 0xFFFFFFFFFFFFFFFF
    tensor = torch.tensor(words).to(torch.uint32).view(torch.int32)
    forward = function("memory.gpu_tensor_hash", "gpu_tensor_hash")
    assert forward(tensor, tile_words=256, reduce_chunk=16) == x ^ x >> 31


# ---- tables of pages


@pytest.mark.parametrize("sliding", [False, True])
def test_page_tables(sliding: bool) -> None:
    page, lengths = 16, ints(5, 100, 400)
    table, far = pages(page), mixed(2000, seed=1)
    out, near = (torch.full((3, 25), -1, dtype=torch.int32) for _ in range(2))
    more = {"swa_page_table": near, "full_to_swa": far} if sliding else {}
    function("kvcache.trtllm_mha_page_table", "build_trtllm_mha_page_table")(
        table, REQUESTS, lengths, out, page, **more
    )
    first = table[REQUESTS][:, ::page]
    there = torch.arange(25) < ((lengths + page - 1) // page)[:, None]
    same(out, torch.where(there, first // page, -1))
    if sliding:
        same(near, torch.where(there, far[first.long()] // page, -1))


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_metadata_of_graphs(mode: int) -> None:
    page, lengths = 16, longs(5, 100, 390)
    table, far = pages(page), mixed(2000, seed=1)
    far[7] = -1
    out, near = (torch.full((3, 25), -7, dtype=torch.int32) for _ in range(2))
    seen, sums_k, sums_q = ints(0, 0, 0), ints(0, -1, -1, -1), ints(0, -1, -1, -1)
    slots, swa_slots = longs(7, -3, 90), torch.full((5,), -9)
    function("kvcache.trtllm_mha_graph_metadata", "update_trtllm_mha_graph_metadata")(
        req_pool_indices=REQUESTS, seq_lens=lengths, req_to_token=table, cache_seqlens=seen,
        cu_seqlens_k=sums_k, page_table=out, bs=3, seqlen_offset=2, max_seq_pages=20,
        page_size=page, swa_mapping=far, swa_page_table=near, out_cache_loc=slots,
        swa_out_cache_loc=swa_slots, cu_seqlens_q=sums_q, qlens=ints(2, 4, 1), q_stride=3,
        q_mode=mode,
    )  # fmt: skip
    long = lengths + 2
    same(seen, long)
    same(sums_k, sums(tuple(long.tolist())))
    same(sums_q, (ints(0, -1, -1, -1), ints(0, 2, 6, 7), ints(0, 3, 6, 9))[mode])
    there = torch.arange(25) < ((long + page - 1) // page).clamp(max=20)[:, None]
    first = table[REQUESTS][:, ::page].long()
    same(out, torch.where(there, first // page, -7))
    other = torch.where(far[first] < 0, -1, far[first] // page)
    same(near, torch.where(there, other, -7))
    same(swa_slots, torch.stack((far[7], torch.tensor(-1), far[90], *torch.zeros(2).long())))


def test_pages_for_latent_attention() -> None:
    page, lengths, starts = 64, ints(5, 100, 200), ints(0, 64, 128)
    table = pages(80)[:, :400]  # any table will do
    out = torch.full((3, 8), -1, dtype=torch.int32)
    kernel = function("kvcache.kv_indices", "create_flashmla_kv_indices_triton")
    kernel[(3, 1)](table, REQUESTS, lengths, starts, out, 400, 8, page)
    for k, (r, n, a) in enumerate(zip(REQUESTS, lengths.tolist(), starts.tolist(), strict=True)):
        found = table[r, a : a + n : page] // page
        same(out[k], torch.cat((found, torch.full((8 - len(found),), -1))))


# ---- keys and values


@pytest.mark.parametrize("which", ["plain", "narrow", "scales"])
def test_latent_keys(which: str) -> None:
    a, b, at = randn(5, 1, 160), randn(5, 1, 64, seed=1), longs(3, 9, 0, 7, 1)
    wanted = torch.zeros(10, 1, 224)
    wanted[at] = torch.cat((a, b), -1)
    path, out = "kvcache.mla_buffer", torch.zeros(10, 1, 224)
    if which == "narrow":
        out = out.to(torch.uint8)
        function(path, "set_mla_kv_buffer_triton_fp8_quant")(out, at, a, b, NARROW)
        same(out.view(NARROW).float(), wanted.to(NARROW).float())
    elif which == "scales":
        function(path, "set_mla_kv_scale_buffer_triton")(out, at, a, b)
        same(out, wanted)
    else:
        kernel = function(path, "set_mla_kv_buffer_kernel")
        kernel[(5, 1)](out, a, b, at * 2 + 1, 224, 160, 64, 160, 64, 256, 1, 2)
        same(out, wanted)
        low, high = torch.empty(5, 1, 128), torch.empty(5, 1, 64)
        function(path, "get_mla_kv_buffer_triton")(out, at, low, high)
        same(low, wanted[at][..., :128])
        same(high, wanted[at][..., 128:192])


@pytest.mark.parametrize("heads", [4, 6])
def test_keys_of_two_parts(heads: int) -> None:
    a, b = randn(5, heads, 64), randn(5, 1, 32)
    out = torch.empty(5, heads, 96, dtype=torch.bfloat16)
    function("kvcache.cache_ops", "concat_and_cast_mha_k_triton")(out, a, b)
    same(out, torch.cat((a, b.expand(5, heads, 32)), -1).bfloat16())


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("sliding", [False, True])
def test_keys_in_pages(scaled: bool, sliding: bool) -> None:
    k, v, at = randn(5, 6, 40), randn(5, 6, 40, seed=1), longs(3, 9, -1, 17, 1)
    caches = [torch.zeros(4, 8, 6, 40) for _ in range(2)]
    far = mixed(32, seed=2)
    if sliding:
        at = at.clamp(min=0)
        at[2] = 30
        far[30] = -1
    scale = torch.tensor([2.0]) if scaled else None
    function("kvcache.cache_ops", "launch_reshape_and_cache_flash")(
        k, v, *caches, at, far if sliding else None, scale, scale
    )
    places = far[at] if sliding else at
    there = places >= 0
    for x, cache in ((k, caches[0]), (v, caches[1])):
        wanted = torch.zeros(32, 6, 40)
        wanted[places[there]] = x[there] / (2 if scaled else 1)
        same(cache.view(32, 6, 40), wanted)


def test_narrow_queries() -> None:
    a, b = randn(5, 4, 64), randn(5, 4, 32)
    out = torch.zeros(6, 8, 96).to(NARROW)
    function("kvcache.cache_ops", "concat_and_cast_q_fp8_pad")(out, a, b, 4)
    same(out[:5, :4].float(), torch.cat((a, b), -1).to(NARROW).float())
    assert (out[5].float() == 0).all() and (out[:, 4:].float() == 0).all()


@pytest.mark.parametrize("variant", ["loop", "two_dot", "three_dot", "pad", "power"])
def test_absorbed_queries(variant: str) -> None:
    wide = 64 if variant == "power" else 48
    q, w, r = (randn(*s, dtype=torch.bfloat16) for s in ((5, 2, wide), (2, wide, 64), (5, 2, 32)))
    out = torch.zeros(5, 2, 96).to(NARROW)
    function("kvcache.cache_ops", "absorbed_bmm_concat_cast_q_fp8")(
        out, q, w, r, 2, block_m=16, block_n=32, variant="auto" if variant == "power" else variant
    )
    product = torch.einsum("thk,hkn->thn", q.double(), w.double())
    nearest(out, torch.cat((product, r.double()), -1))


def test_lengths_of_lists() -> None:
    lists = drawn(99, 4, 256, dtype=torch.int32)
    for row, n in enumerate((256, 100, 3, 0)):
        lists[row, n:] = -1
    got = function("kvcache.cache_ops", "q8kv8_topk_length_from_indices")(lists)
    same(got, ints(256, 100, 3, 1))


def test_committed_rows() -> None:
    k, v = randn(6, 40), randn(6, 40, seed=1)
    caches = [torch.zeros(10, 40) for _ in range(2)]
    at = longs(3, 9, 1, 7, 0, 2).view(2, 3)
    function("kvcache.cache_move", "set_kv_buffer_prefix_valid_tiled")[(2, 3, 2)](
        k, v, *caches, at, longs(2, 1), 160, 160, 160, 160, 3, ROW_BYTES=160, BYTES_PER_TILE=128
    )
    for x, cache in ((k, caches[0]), (v, caches[1])):
        wanted = torch.zeros(10, 40)
        wanted[longs(3, 9, 7)] = x[longs(0, 1, 3)]
        same(cache, wanted)


def test_masked_rows() -> None:
    k, v, at = randn(5, 3, 40), randn(5, 3, 40, seed=1), longs(3, 9, 1, 7, 0)
    caches, use = [torch.zeros(10, 3, 40) for _ in range(2)], ints(1, 0, 1, 1, 0)
    function(".srt.mem_cache.memory_pool", "masked_set_kv_buffer_kernel")[(5,)](
        k, v, *caches, at, use, 5, 3, 40, 64, 120, 40, 120, 40
    )
    for x, cache in ((k, caches[0]), (v, caches[1])):
        wanted = torch.zeros(10, 3, 40)
        wanted[at[use > 0]] = x[use > 0]
        same(cache, wanted)


def test_staged_layers() -> None:
    page, layers = 4, [randn(24, 3, 16, seed=s) for s in range(4)]
    addresses = torch.tensor([x.data_ptr() for x in layers])
    which = longs(4, 0, 5)
    tokens = (which[:, None] * page + torch.arange(page)).flatten()
    path, size = ".srt.disaggregation.common.staging_buffer", 12 * 2 * 16
    staging = torch.zeros(4, size, dtype=torch.int32)
    function(path, "_fused_gather_to_staging_kernel")[(4, 1)](
        addresses, which, staging, 12, 48, 16, size, 32, page, 1024
    )
    wanted = torch.stack([x[tokens, 1:] for x in layers])
    same(staging.view(torch.float32).view(wanted.shape), wanted)
    writers = randn(3, 4, 12, 1, 16)
    function(path, "_fused_scatter_from_staging_kernel")[(12, 1)](
        addresses, which, writers.view(torch.int32), longs(0, 16, 32), 12, 48, 192, 16, page, 4,
        256,
    )  # fmt: skip
    for layer, x in enumerate(layers):
        same(x[tokens], writers[:, layer, :, 0].transpose(0, 1))


# ---- masks of tokens


@pytest.mark.parametrize("some", [False, True])
def test_masked_tokens(some: bool) -> None:
    x, bits = randn(3, 5000), drawn(2**32, 3, 157)
    words = bits.to(torch.uint32).view(torch.int32)
    allowed = (bits[:, :, None] >> torch.arange(32) & 1).flatten(1)[:, :5000] > 0
    wanted = x.masked_fill(~allowed, -torch.inf)
    if some:
        wanted[1] = x[1]
    forward = function("grammar.bitmask_ops", "apply_token_bitmask_inplace_triton")
    forward(x, words, [2, 0] if some else None)
    same(x, wanted)
    close(x, wanted)
