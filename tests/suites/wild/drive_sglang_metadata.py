"""SGLang: metadata of pages, lengths and places for attention."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from reference import close, randn, same
from sglang_parts import drawn, function, ints, longs, mixed, nearest, sums, uniform

TABLE = (torch.arange(5 * 400, dtype=torch.int32) * 7 % 2003).view(5, 400)
FAR = mixed(2003, seed=1).int()
REQUESTS = longs(3, 0, 4)
LENGTHS = (5, 100, 390)
DCP, META, DSA = "attention.dcp_kernels", "attention.metadata", "attention.dsa"
V4 = "attention.dsv4"
NARROW = torch.float8_e4m3fn


# ---- contexts split over ranks


def test_slots_of_one_rank() -> None:
    size, rank, starts = 4, 1, ints(0, 6, 3)
    lengths = ints(3, 20, 7)
    out = torch.full((30,), -1, dtype=torch.int32)
    function(DCP, "create_triton_kv_indices_for_dcp_triton")[(3,)](
        TABLE, REQUESTS, lengths, sums((3, 20, 7)), starts, out, 400, size, rank
    )
    parts = []
    for r, a, n in zip(REQUESTS, starts.tolist(), lengths.tolist(), strict=True):
        first = a + (rank - a) % size
        parts.append(TABLE[r, first : first + n * size : size] // size)
    same(out, torch.cat(parts))
    tables = torch.full((3, 8), -1, dtype=torch.int32)
    kernel = function(DCP, "create_mla_kv_page_table_for_dcp")
    kernel[(3, 2)](TABLE, REQUESTS, ints(5, 33, 60), tables, 400, 8, 16, size, rank, 4)
    for k, (r, n) in enumerate(zip(REQUESTS, (5, 33, 60), strict=True)):
        count = -(-n // 16)
        found = TABLE[r, rank :: 16 * size][:count] // size // 16
        same(tables[k], torch.cat((found, torch.full((8 - count,), -1))))


def test_prefixes_and_new_tokens() -> None:
    prefix, new = (3, 600, 0), (5, 17, 1)
    whole = tuple(p + n for p, n in zip(prefix, new, strict=True))
    out = torch.full((sum(whole),), -1, dtype=torch.int32)
    function(DCP, "create_dcp_kv_indices")[(3,)](
        sums(whole), ints(*new), sums(new), ints(*prefix), sums(prefix), out, sum(prefix), 2
    )
    old, fresh = torch.arange(sum(prefix)), sum(prefix) + torch.arange(sum(new))
    both = zip(old.split(prefix), fresh.split(new), strict=True)
    same(out, torch.cat([x for pair in both for x in pair]))
    lengths, local = (9, 30), (4, 15)
    values, got = drawn(999, 39, dtype=torch.int32), torch.zeros(19, dtype=torch.int32)
    function(DCP, "update_kv_lens_and_indices")[(2, 1)](
        ints(*lengths), sums(lengths), values, ints(*local), sums(local), got, 1, 2, 32
    )
    same(got, torch.cat((values[1:9:2], values[10:39:2])) // 2)


@pytest.mark.parametrize("natural", [False, True])
def test_shares_of_ranks(natural: bool) -> None:
    x, lse = randn(4, 5, 3, 32), randn(4, 5, 3)
    lse[1, 0, 0] = -torch.inf
    got, total = function(DCP, "dcp_lse_combine_triton")(x, lse, natural, True)
    wide = lse.double() * (1 if natural else torch.tensor(2.0).double().log())
    close(got, (x.double() * wide.softmax(0)[..., None]).sum(0))
    close(total, wide.logsumexp(0) / (1 if natural else torch.tensor(2.0).double().log()))
    out, parts, sent = randn(5, 8, 32), torch.zeros(4, 6, 2, 32), torch.zeros(4, 6, 2)
    logs = randn(5, 8)
    function(DCP, "dcp_pack_a2a_send")(out, logs, parts, sent)
    same(parts[:, :5], out.view(5, 4, 2, 32).transpose(0, 1))
    same(sent[:, :5], logs.view(5, 4, 2).transpose(0, 1))


# ---- tables of pages


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("sliding", [False, True])
def test_pages_for_decoding(page: int, sliding: bool) -> None:
    lengths, width = ints(*LENGTHS), 400 // page
    out, near = (torch.full((3, width), -1, dtype=torch.int32) for _ in range(2))
    seen, starts = ints(0, 0, 0), ints(0, 0, 0, 0)
    pool = None
    if sliding:
        kind = function(".srt.mem_cache.swa_memory_pool", "SWAKVPool")
        pool = kind.__new__(kind)
        pool.full_to_swa_index_mapping = FAR
    function(META, "normal_decode_set_metadata")(
        seen, starts, out, TABLE, REQUESTS, None, width, lengths, 2, page,
        near if sliding else None, pool,
    )  # fmt: skip
    long = lengths + 2
    same(seen, long)
    same(starts, sums(tuple(long.tolist())))
    there = torch.arange(width) < ((long + page - 1) // page)[:, None]
    first = TABLE[REQUESTS][:, ::page]
    same(out, torch.where(there, first // page, -1))
    if sliding:
        same(near, torch.where(there, FAR[first.long()] // page, -1))


@pytest.mark.parametrize("page", [1, 16])
def test_pages_for_drafts(page: int) -> None:
    width, lengths, new = 400 // page, ints(*LENGTHS), ints(2, 3, 1)
    out, near = (torch.full((3, width), -1, dtype=torch.int32) for _ in range(2))
    seen, starts, queries, locs = ints(0, 0, 0), ints(0, 0, 0, 0), ints(0, 0, 0, 0), drawn(999, 9)
    places = torch.zeros(9, dtype=torch.int64)
    function(META, "draft_extend_set_metadata")(
        seen, starts, queries, out, TABLE, REQUESTS, lengths, new, page, FAR.long(), near, locs,
        places,
    )  # fmt: skip
    same(seen, lengths)
    same(starts, sums(LENGTHS))
    same(queries, sums((2, 3, 1)))
    same(places, FAR[locs])
    there = torch.arange(width) < ((lengths + page - 1) // page)[:, None]
    first = TABLE[REQUESTS][:, ::page]
    same(out, torch.where(there, first // page, -1))
    same(near, torch.where(there, FAR[first.long()] // page, -1))


def test_two_tables_as_one() -> None:
    a, b = drawn(999, 2, 300, dtype=torch.int32), drawn(999, 6, 20, dtype=torch.int32)
    out = torch.full((6, 320), -1, dtype=torch.int32)
    lens_a, lens_b = ints(257, 3), ints(1, 2, 3, 20, 5, 6)
    function(META, "prepare_swa_spec_page_table_triton")(out, a, b, lens_a, lens_b, 3)
    for k in range(6):
        n, m = int(lens_a[k // 3]), int(lens_b[k])
        same(out[k, : n + m], torch.cat((a[k // 3, :n], b[k, :m])))


def test_parts_of_contexts() -> None:
    lengths, out = ints(*LENGTHS), ints(0, 0, 0, 0, 0, 0)
    kernel = function(META, "get_num_kv_splits_triton")
    kernel[(1,)](out, lengths, 3, 2, 8, 2, 16, 40, MAX_NUM_SEQ=4)
    most, least = max(LENGTHS), min(LENGTHS)
    first = -(-most // min(-(-most // least), 16))
    cores = int(40 * max(torch.tensor(most / 64).log2().item(), 1.0))
    second = -(-most // min(-(-cores // (3 * 2 * 2)), 16))
    wanted = [max(-(-n // first), -(-n // second)) for n in LENGTHS]
    same(out, ints(*wanted).repeat_interleave(2))


def test_windows_of_pages() -> None:
    lengths, prefill = ints(*LENGTHS), ints(9, 9, 9, 3, 300)
    prefill[0] = 20
    out, seen = function("attention.pa_page_table", "_build_pa_page_table")(
        TABLE, REQUESTS, lengths, prefill, 64, 3, 400, "cpu"
    )
    for k, (r, n) in enumerate(zip(REQUESTS, LENGTHS, strict=True)):
        p = int(prefill[r])
        slots = torch.cat((TABLE[r, : min(p, n)], TABLE[r, max(p, n - 64) : n]))
        assert seen[k] == len(slots)
        same(out[k, : len(slots)], slots)


# ---- sparse attention


def test_queries_of_one_rank() -> None:
    lengths = [5, 0, 7, 1, 12]
    for rank in range(3):
        out, which = ints(*[-1] * 5), ints(*[-1] * 5)
        kernel = function(f"{DSA}.cp_split", "dsa_cp_round_robin_split_q_seqs_kernel")
        kernel[(1,)](ints(*lengths), out, which, 5, 3, rank)
        # What is over goes to the next sequence.
        over, wanted = 0, []
        for k, n in enumerate(lengths):
            mine = (n + over) // 3 + ((n + over) % 3 > rank)
            if mine > 0:
                wanted.append((k, mine))
            over = n + over - mine * 3
        assert list(zip(which.tolist(), out.tolist(), strict=True))[: len(wanted)] == wanted


@pytest.mark.parametrize("spread", [False, True])
def test_chosen_tokens(spread: bool) -> None:
    path, new = f"{DSA}.transform_index", [2, 1, 3]
    chosen = drawn(400, 6, 2048, dtype=torch.int32)
    chosen[:, 1500:] = -1
    table = TABLE[longs(3, 3, 0, 4, 4, 4)] if spread else TABLE[REQUESTS]
    got = function(path, "transform_index_page_table_prefill_fast")(
        table, chosen, new, output_num_tokens=8, page_table_is_expanded=spread
    )
    rows = TABLE[longs(3, 3, 0, 4, 4, 4)]
    wanted = torch.where(chosen < 0, -1, rows.gather(1, chosen.long().clamp(min=0)))
    same(got, F.pad(wanted, (0, 0, 0, 2), value=-1))
    got = function(path, "transform_index_page_table_decode_fast")(rows, chosen)
    same(got, wanted)


def test_keys_of_indexers() -> None:
    path, pool = f"{DSA}.index_buf_accessor", SimpleNamespace(page_size=64, index_head_dim=128)
    keys, scales, at = randn(6, 128).to(NARROW), uniform(6), longs(0, 63, 64, 130, 200, 255)
    buffer = torch.zeros(4, 64 * 132, dtype=torch.uint8)
    function(path, "SetKAndS").triton(pool, buffer, at, keys, scales)
    kept = buffer[:, : 64 * 128].reshape(256, 128)
    logs = buffer[:, 64 * 128 :].reshape(256, 4)
    same(kept[at], keys.view(torch.uint8))
    same(logs[at], scales.view(torch.uint8).view(6, 4))
    order = torch.cat([torch.arange(64) + 64 * p for p in (3, 0, 2)])
    same(function(path, "GetK").triton(pool, buffer, 150, ints(3, 0, 2)), kept[order[:150]])
    same(function(path, "GetS").triton(pool, buffer, 150, ints(3, 0, 2)), logs[order[:150]])
    pages = ints(3, 0, 2, 1, 2, 0).view(2, 3)
    got = function(path, "GetKAndS").triton(pool, buffer, pages, ints(150, 70), 220, 150)
    other = torch.cat([torch.arange(64) + 64 * p for p in (1, 2)])
    tokens = torch.cat((order[:150], other[:70]))
    same(got[0], kept[tokens])
    same(got[1], logs[tokens])


def test_narrow_keys() -> None:
    x = randn(2, 3, 1, 576, dtype=torch.bfloat16)
    got = function(f"{DSA}.quant_k_cache", "quantize_k_cache")(x)[:, :, 0]
    parts = x[:, :, 0, :512].double().unflatten(-1, (4, 128))
    scale = parts.abs().amax(-1) / 448
    close(got[..., 512:528].contiguous().view(torch.float32), scale)
    nearest(got[..., :512], (parts / scale[..., None]).flatten(-2))
    same(got[..., 528:].contiguous().view(torch.bfloat16), x[:, :, 0, 512:])
    low, high = function(f"{DSA}.quant_k_cache", "quantize_k_cache_separate")(
        x.view(6, 576)[:, :512], x.view(6, 576)[:, 512:]
    )
    same(low[:, 0, :512], got[..., :512].contiguous().view(torch.uint8).view(6, 512))
    same(high[:, 0].view(torch.bfloat16), x.view(6, 576)[:, 512:])


# ---- the fourth DeepSeek


def test_queries_one_by_one() -> None:
    path = "attention.dsv4_attn_metadata_kernels"
    new, lengths = (2, 3, 1), ints(*LENGTHS)
    got = function(path, "expand_prefill_causally_triton")(
        req_pool_indices=REQUESTS, seq_lens=lengths, extend_seq_lens=ints(*new), num_tokens=6,
        padded_num_tokens=8,
    )  # fmt: skip
    seen = ints(4, 5, 98, 99, 100, 390, 1, 1)
    rows = longs(3, 3, 0, 0, 0, 4, 4, 4)
    same(got.seq_lens_casual, seen)
    same(got.req_pool_indices_repeated, rows)
    got = function(path, "build_page_table_positions_triton")(
        req_to_token=TABLE, req_pool_indices_repeated=rows, seq_lens_casual=seen, max_seq_len=390,
        page_size=16, swa_window=64,
    )  # fmt: skip
    same(got.positions_casual, seen - 1)
    same(got.seq_lens_casual, seen)
    same(got.swa_topk_lengths, seen.clamp(max=64))
    same(got.page_table, TABLE[rows][:, :390:16] // 16)
    got = function(path, "build_causal_swa_page_indices_triton")(
        req_to_token=TABLE, full_to_swa_mapping=FAR, req_pool_indices_repeated=rows,
        seq_lens_casual=seen, swa_window=50, page_index_aligned_size=64,
    )  # fmt: skip
    at = seen[:, None] - 1 - torch.arange(64)
    there = (at >= 0) & (torch.arange(64) < 50)
    same(got, torch.where(there, FAR[TABLE[rows[:, None], at.clamp(min=0)].long()], -1))


def test_states_of_rejected_drafts() -> None:
    state = randn(5 * 16, 600)
    wanted = state.clone()
    function(f"{V4}.c128_cleanup", "clear_unaccepted_c128_draft_states")(
        state, REQUESTS, ints(14, 3, 20), ints(1, 3, 0), ring_size=16, num_draft_tokens=3
    )
    for r, n, kept in ((3, 14, 1), (0, 3, 3), (4, 20, 0)):
        for k in range(kept, 3):
            row = r * 16 + (n + k) % 16
            wanted[row, :300], wanted[row, 300:] = 0, -torch.inf
    same(state, wanted)


@pytest.mark.parametrize("ratio", [4, 128])
@pytest.mark.parametrize("overlap", [False, True])
def test_places_of_compressed_states(ratio: int, overlap: bool) -> None:
    lengths, new = ints(*LENGTHS), ints(2, 30, 1)
    got = function(f"{V4}.attn", "triton_create_paged_compress_data")(
        compress_ratio=ratio, is_overlap=overlap, swa_page_size=64, ring_size=256,
        req_pool_indices=REQUESTS, seq_lens=lengths, extend_seq_lens=new, req_to_token=TABLE,
        full_to_swa_index_mapping=FAR,
    )  # fmt: skip

    def place(request: int, at: int) -> int:
        at = max(at, 0)
        if ratio == 128:
            return (request * 256 + at % 256) // ratio
        slot = int(FAR[int(TABLE[request, at])])
        return (slot // 64 * 256 + slot % 256) // ratio

    for k, (r, n, m) in enumerate(zip(REQUESTS.tolist(), LENGTHS, new.tolist(), strict=True)):
        write, load = (n - 1) // ratio * ratio, (n - m - 1) // ratio * ratio
        assert got[0][k] == place(r, write)
        wanted = [place(r, load - ratio), place(r, load), place(r, write - ratio), write]
        assert got[1][k].tolist() == (wanted if overlap else place(r, load))


def test_tokens_of_windows() -> None:
    path = f"{V4}.sparse_prefill_kernels"
    first, lengths = ints(2, 50, 300), (3, 40, 90)
    out = torch.full((133,), -1, dtype=torch.int32)
    function(path, "_build_swa_token_ids_kernel")[(3, 4)](
        out, first, ints(*lengths), sums(lengths), REQUESTS, TABLE, 400, FAR
    )
    parts = [FAR[TABLE[r, a : a + n].long()]
             for r, a, n in zip(REQUESTS, first, lengths, strict=True)]  # fmt: skip
    same(out, torch.cat(parts))
    new, top, window, ratio = (2, 3), 8, 16, 4
    chosen = drawn(99, 5, top, dtype=torch.int32)
    seen, gathered = ints(6, 100), ints(6, 20)
    base, other = ints(1000, 2000), ints(5000, 6000)
    got, count = torch.full((5, 32), -1, dtype=torch.int32), ints(0, 0, 0, 0, 0)
    function(path, "_combine_topk_swa_indices_kernel")[(2, 2)](
        got, 32, count, chosen, top, sums(new) + 7, seen, gathered, base, other, top, ratio, window,
        8,
    )  # fmt: skip
    token = 0
    for b, n in enumerate(new):
        for k in range(n):
            at = int(seen[b]) - n + k
            best, near = min((at + 1) // ratio, top), min(at + 1, window)
            slots = int(other[b]) + torch.arange(at - near + 1, at + 1) - int(seen[b] - gathered[b])
            wanted = torch.cat((chosen[token, :best] + base[b], slots))
            assert count[token] == len(wanted)
            same(got[token, : len(wanted)], wanted)
            token += 1


def test_lengths_of_compressed_keys() -> None:
    lengths, slots, pages = (
        ints(4, 128, 390),
        longs(40, 256, 77),
        drawn(99, 3, 5, dtype=torch.int32),
    )
    found = function(f"{V4}.metadata_kernel", "_init_compressed_attn_metadata_triton")(
        lengths, lengths - 1, slots, pages, 256
    )
    wanted = []
    for ratio in (4, 128):
        wanted.append(torch.where(lengths % ratio == 0, slots // ratio, 0))
        wanted.append((lengths - 1) // ratio * ratio)
        wanted += [lengths // ratio, (lengths // ratio).clamp(min=1)]
    places = pages.repeat_interleave(2, 1) * 2 + torch.arange(10) % 2
    wanted.append(torch.where(torch.arange(10) < (lengths // 128)[:, None], places, -1))
    for got, known in zip(found, wanted, strict=True):
        same(got, known)
