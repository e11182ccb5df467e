"""vLLM: which stored tokens a query may see: places in pages, windows, blocks that were chosen."""

from __future__ import annotations

import pytest
import torch
from drive_vllm import function, ints
from drive_vllm_drafts import longs
from reference import close, randn, same

MLA = "v1.attention.backends.mla."
CACHES = "models.deepseek_v4.common.ops.cache_utils"
M3 = "models.minimax_m3.common.ops."

# Requests of 3 and 2 new tokens that end at 9 and 6, in pages of four.
STARTS, LENGTHS = ints(0, 3, 5), ints(9, 6)
TABLE = ints(3, 1, 5, 4, 2, 6).view(2, 3)
REQUEST = ints(0, 0, 0, 1, 1)
PLACES = (6, 7, 8, 4, 5)


def slot(request: int, place: int) -> int:
    return int(TABLE[request, place // 4]) * 4 + place % 4


def test_windows_of_tokens() -> None:
    out, count = torch.zeros(5, 4, dtype=torch.int32), ints(9, 9, 9, 9, 9)
    kernel = function(MLA + "sparse_swa", "_compute_swa_indices_and_lens_kernel")
    valid = torch.tensor([True, True, False, True, True])
    kernel[(5,)](out, 4, count, 4, STARTS, LENGTHS, REQUEST, valid, TABLE, 3, 4, 0,
                 TRITON_BLOCK_SIZE=4)  # fmt: skip
    for row, (request, place) in enumerate(zip(REQUEST.tolist(), PLACES, strict=True)):
        seen = list(range(max(place - 3, 0), place + 1)) if valid[row] else []
        assert count[row] == len(seen)
        wanted = [slot(request, p) for p in seen]
        same(out[row], ints(*wanted, *[-1] * (4 - len(wanted))))


def test_windows_before_drafts() -> None:
    out, count = torch.zeros(5, 8, dtype=torch.int32), ints(9, 9, 9, 9, 9)
    kernel = function(MLA + "sparse_swa", "_compute_dspark_noncausal_swa_indices_kernel")
    valid = torch.tensor([True, True, False, True, True])
    kernel[(5,)](out, 8, count, 4, 8, STARTS, LENGTHS, REQUEST, valid, TABLE, 3, 4, 0,
                 TRITON_BLOCK_SIZE=4)  # fmt: skip
    for row, request in enumerate(REQUEST.tolist()):
        before = (6, 4)[request]
        seen = list(range(max(before - 4, 0), int(LENGTHS[request]))) if valid[row] else []
        assert count[row] == len(seen)
        same(out[row], ints(*(slot(request, p) for p in seen), *[-1] * (8 - len(seen))))


def test_lengths_that_are_gathered() -> None:
    kernel = function(MLA + "sparse_swa", "ComputePrefillMetadataKernel").kernel
    out = ints(0, 0)
    kernel[(1,)](out, ints(1, 9, 6), ints(0, 1, 4, 6), 2, 1, 4, BLOCK_SIZE=2)
    same(out, ints(3 + 3, 2 + 3))


def test_places_of_compressed_tokens() -> None:
    got = function(MLA + "compressor_utils", "get_compressed_slot_mapping")(
        5, STARTS, LENGTHS, TABLE, 2, 4
    )
    wanted = []
    for request, place in zip(REQUEST.tolist(), PLACES, strict=True):
        at = place // 4
        full = (place + 1) % 4 == 0
        wanted.append(int(TABLE[request, at // 2]) * 2 + at % 2 if full else -1)
    same(got, ints(*wanted))


def test_chosen_tokens_in_pages() -> None:
    chosen = torch.tensor([[0, 8, -1, 5]] * 3 + [[5, -1, 0, 1]] * 2, dtype=torch.int32)
    valid = torch.tensor([True, True, False, True, True])
    got, count = function(CACHES, "compute_global_topk_indices_and_lens")(
        chosen, REQUEST, TABLE, 4, valid
    )
    wanted = [[slot(r, p) if p >= 0 else -1 for p in row]
              for r, row in zip(REQUEST.tolist(), chosen.tolist(), strict=True)]  # fmt: skip
    same(got, torch.tensor(wanted))
    same(count, ints(3, 3, 0, 3, 3))


@pytest.mark.parametrize("ranks", [1, 2])
def test_chosen_tokens_of_a_rank(ranks: int) -> None:
    chosen = torch.tensor([[0, 8, -1, 5], [1, 2, 3, -1]], dtype=torch.int32)
    out, count = torch.zeros(2, 4, dtype=torch.int32), ints(0, 0)
    kernel = function(MLA + "sparse_utils", "_convert_req_index_to_global_index_kernel")
    kernel[(2, 1)](
        ints(0, 1), TABLE, chosen, out, count, None, None, max_num_blocks_per_req=3, BLOCK_SIZE=4,
        BLOCK_STRIDE_ROWS=4, BLOCK_N=4, HAS_PREFILL=False, COUNT_VALID=True, SINGLE_TILE=True,
        COMPACT_TO_FRONT=False, DCP_SIZE=ranks, DCP_RANK=0, DCP_INTERLEAVE=1, bt_stride0=3,
        bt_stride1=1, ti_stride0=4, ti_stride1=1, out_stride0=4, out_stride1=1,
    )  # fmt: skip
    wanted = torch.full((2, 4), -1)
    for row in range(2):
        for k, place in enumerate(chosen[row].tolist()):
            if place >= 0 and place % ranks == 0:
                wanted[row, k] = slot(row, place // ranks)
    same(out, wanted)
    same(count, (wanted >= 0).sum(1))


def test_drafts_as_requests() -> None:
    lengths, tables, ones = ints(*[9] * 4), torch.zeros(4, 3, dtype=torch.int32), ints(*[9] * 4)
    kernel = function(MLA + "indexer", "_prepare_uniform_decode_kernel")
    kernel[(4,)](ints(9, 0), lengths, TABLE, 3, tables, 3, ones, 2, BLOCK_SIZE=4)
    same(lengths, ints(8, 9, 0, 0))
    same(tables, TABLE.repeat_interleave(2, 0))
    same(ones, ints(1, 1, 1, 1))


def test_compressed_tokens_of_queries() -> None:
    kernel = function(MLA + "indexer", "BuildPrefillChunkMetadataKernel").kernel
    ends = ints(0, 4, 7)  # 9 and 6 tokens, two in one
    of, first, last = (ints(*[9] * 9) for _ in range(3))
    kernel[(2,)](STARTS, LENGTHS, ends, ends, of, first, last, 1, 5, 0, 1, 1,
                             BLOCK_SIZE=4, COMPRESS_RATIO=2)  # fmt: skip
    same(first[:4], ints(0, 0, 4, 4))
    same(last[:4], ints(*((0, 4)[r] + (p + 1) // 2 for r, p in zip((0, 0, 1, 1), PLACES[1:],
                                                                  strict=True))))  # fmt: skip
    same(of[:7], ints(0, 0, 0, 0, 1, 1, 1))


def test_chosen_tokens_and_windows() -> None:
    chosen = torch.tensor([[2, 0, 1]] * 3 + [[1, 0, 7]] * 2, dtype=torch.int32)
    got, count = function(CACHES, "combine_topk_swa_indices")(
        chosen, STARTS, LENGTHS, ints(7, 5), 4, 2, 3, 20, 10
    )
    for row, (request, place) in enumerate(zip(REQUEST.tolist(), PLACES, strict=True)):
        top = [c + 20 * request for c in chosen[row, : min((place + 1) // 2, 3)].tolist()]
        begin = int(LENGTHS[request]) - (7, 5)[request]
        window = [20 * request + 10 + p - begin for p in range(max(place - 3, 0), place + 1)]
        assert count[row] == len(top) + len(window)
        same(got[row, : len(top) + len(window)], ints(*top, *window))


# ---- MiniMax: blocks of 128 tokens


PAGES = ints(2, 0, 3, 1, 4, 5).view(2, 3)


def test_blocks_of_prompts() -> None:
    path, q, keys = M3 + "index_topk", randn(5, 2, 32), randn(6, 128, 32)
    starts, lengths, before = ints(0, 3, 5), ints(300, 130), ints(297, 128)
    score = function(path, "minimax_m3_index_score")(
        q, keys, PAGES, starts, lengths, before, 3, 300, 2
    )
    wanted = torch.full((2, 5, 3), -torch.inf, dtype=torch.float64)
    for row, (request, place) in enumerate(((0, 297), (0, 298), (0, 299), (1, 128), (1, 129))):
        near = keys[PAGES[request].long()].double().view(-1, 32)[: place + 1]
        s = q[row].double() @ near.T
        for block in range(-(-(place + 1) // 128)):
            wanted[:, row, block] = s[:, 128 * block : 128 * block + 128].amax(1)
    for row, blocks in enumerate((3, 3, 3, 2, 2)):
        close(score[:, row, :blocks], wanted[:, row, :blocks], 20)
    got = function(path, "minimax_m3_index_topk")(score, starts, before, 3, 2, 0, 1)
    for row, blocks in enumerate((3, 3, 3, 2, 2)):
        rank = wanted[:, row, :blocks].clone()
        rank[:, blocks - 1] = torch.inf  # the last block is always taken
        best = rank.topk(2).indices
        same(got[:, row].sort().values, best.sort().values)


def attended(q: torch.Tensor, cache: torch.Tensor, request: int, place: int,
             chosen: torch.Tensor) -> torch.Tensor:  # fmt: skip
    """(head, width) of (head, width): two heads share what is stored."""
    kv = cache[PAGES[request].long()].transpose(1, 2).reshape(-1, 2, 64).double()
    out = []
    for head in range(4):
        group = head // 2
        at = [128 * int(b) + t for b in chosen[group] if b >= 0 for t in range(128)]
        at = [t for t in at if t <= place]
        k, v = kv[at, group, :32], kv[at, group, 32:]
        out.append((k @ q[head].double() * 0.2).softmax(0) @ v)
    return torch.stack(out)


@pytest.mark.parametrize("kind", ["prompt", "new"])
def test_attention_over_chosen_blocks(kind: str) -> None:
    q, cache = randn(4, 4, 32), randn(6, 2, 128, 64)
    chosen = torch.tensor([[[2, 0], [2, 1], [0, -1], [0, -1]], [[2, 1], [0, 2], [0, -1], [0, -1]]])
    chosen, out, lengths = chosen.int(), torch.zeros(4, 4, 32), ints(300, 100)
    if kind == "prompt":
        function(M3 + "sparse_attn", "minimax_m3_sparse_attn")(
            q, cache, chosen, PAGES, ints(0, 2, 4), lengths, ints(298, 98), 2, 2, 0.2, out
        )
    else:
        function(M3 + "sparse_attn", "minimax_m3_sparse_attn_decode")(
            q, cache, chosen, PAGES, lengths, 2, 0.2, out, 2
        )
    for row, (request, place) in enumerate(((0, 298), (0, 299), (1, 98), (1, 99))):
        close(out[row], attended(q[row], cache, request, place, chosen[:, row]), 20)


def test_blocks_of_new_tokens() -> None:
    path, q, keys = M3 + "index_topk", randn(2, 2, 32), randn(6, 128, 32)
    got = function(path, "minimax_m3_index_decode")(
        q, keys, PAGES, ints(300, 130), 300, 2, 0, 1, 2, 1, 1
    )
    for row, length in enumerate((300, 130)):
        near = keys[PAGES[row].long()].double().view(-1, 32)[:length]
        s, blocks = q[row].double() @ near.T, -(-length // 128)
        rank = torch.stack([s[:, 128 * b : 128 * b + 128].amax(1) for b in range(blocks)], 1)
        rank[:, blocks - 1] = torch.inf
        same(got[:, row].sort().values, rank.topk(2).indices.sort().values)


def test_all_compressed_tokens() -> None:
    """Three new tokens, one of which is no token, and two of a prompt; four tokens are one."""
    path, wide = "models.deepseek_v4.sparse_mla", 8
    tokens, counts = torch.full((3, wide), 9).int(), ints(9, 9, 9)
    local = torch.full((2, wide), 9).int()
    function(path, "_build_c128a_topk_metadata_kernel")[(5,)](
        tokens, wide, counts, local, wide, longs(8, 3, 5, 4, 11), 4, wide, 3, ints(0, 0, 1, 1, 1),
        TABLE, 3, 2, longs(5, -1, 3, 7, 8), BLOCK_SIZE=4,
    )  # fmt: skip
    for row, (request, count) in enumerate(((0, 2), (0, 1), (1, 1))):
        seen = [int(TABLE[request, c // 2]) * 2 + c % 2 for c in range(count)]
        same(tokens[row], ints(*seen, *[-1] * (wide - count)))
        assert counts[row] == (0 if row == 1 else count)
    for row, count in enumerate((1, 3)):
        same(local[row], ints(*range(count), *[-1] * (wide - count)))


@pytest.mark.parametrize("local", [False, True])
def test_windows_and_compressed_tokens(local: bool) -> None:
    """The first request has one new token, the second a prompt of two; pages have room to spare."""
    window = ints(1, 7, 13, -1).view(1, 4)
    chosen = ints(2, 0, -1).view(1, 3) if local else ints(9, 5, 4).view(1, 3)
    given = torch.tensor([[1, 0, 2], [2, 0, 1]], dtype=torch.int32)
    got, count = function(CACHES, "build_flashinfer_mixed_sparse_indices")(
        window, chosen, None if local else ints(2), given, ints(0, 1, 3), ints(9, 6),
        ints(0, 1, 1), TABLE, 4, TABLE, 2, 4, 2, 3, local, torch.tensor([True]), 6, 3,
    )  # fmt: skip

    def wide(page: int, at: int, span: int) -> int:
        return page * span + at

    seen = [wide(s // 4, s % 4, 6) if s >= 0 else -1 for s in window[0].tolist()]
    if local:
        more = [wide(int(TABLE[0, c // 2]), c % 2, 3) if c >= 0 else -1 for c in (2, 0, -1)]
    else:
        more = [wide(s // 2, s % 2, 3) for s in (9, 5, 4)]
    same(got[0], ints(*seen, *more, -1))
    for row, place in enumerate((4, 5)):
        tail = range(max(place - 3, 0), place + 1)
        seen = [wide(int(TABLE[1, p // 4]), p % 4, 6) for p in tail]
        top = given[row, : min((place + 1) // 2, 3)].tolist()
        more = [wide(int(TABLE[1, c // 2]), c % 2, 3) for c in top]
        same(got[row + 1], ints(*seen, *more, *[-1] * (4 - len(more))))
    same(count, ints(6, 6, 7))
