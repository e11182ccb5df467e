"""SGLang: drafts of tokens, which of them are accepted, and where their keys and values go."""

from __future__ import annotations

import pytest
import torch
from reference import close, randn, rms_norm, rotated, same
from sglang_parts import drawn, function, ints, longs, sums, uniform

EAGLE = "speculative.multi_layer_eagle"
LOCS = "speculative.cache_locs"
TABLE = (torch.arange(5 * 400, dtype=torch.int32) * 7 % 2003).view(5, 400)


# ---- drafts that are accepted


def test_accepted_blocks() -> None:
    width = 6
    target = drawn(3, 4, width)
    candidates = drawn(3, 4, width, seed=1)
    candidates[0, 1:] = target[0, :-1]  # all of them
    lens, commits, bonus, new = (torch.empty(4, dtype=torch.int64) for _ in range(4))
    out, before = torch.empty(4, width, dtype=torch.int64), longs(10, 20, 30, 40)
    function("speculative.dflash", "_compute_dflash_accept_bonus_triton_unchecked")(
        candidates, target, lens, commits, bonus, out, before, new
    )
    for row in range(4):
        n = 0
        while n < width - 1 and candidates[row, n + 1] == target[row, n]:
            n += 1
        wanted = [*candidates[row, 1:].tolist(), 0]
        wanted[n] = target[row, n].item()
        assert [lens[row], commits[row], bonus[row]] == [n, n + 1, target[row, n]]
        assert new[row] == before[row] + n + 1 and out[row].tolist() == wanted


def test_blocks_of_drafts() -> None:
    bonus, prefix, requests = longs(7, 8, 9), longs(5, 398, 0), longs(1, 4, 0)
    ids, at, locs = (torch.empty(3, 5, dtype=torch.int64) for _ in range(3))
    function("speculative.dflash", "_prepare_dflash_draft_block_unchecked")(
        bonus, prefix, requests, TABLE, ids, at, locs, 99
    )
    wanted = prefix[:, None] + torch.arange(5)
    same(at, wanted)
    same(ids, torch.cat((bonus[:, None], torch.full((3, 4), 99)), 1))
    inside = wanted < 400
    same(locs, TABLE[requests[:, None], wanted.clamp(max=399)] * inside)


def test_walk_along_candidates() -> None:
    ids, scores = drawn(1000, 3, 4, 8), randn(3, 4, 8, 8)
    chances, heat, greedy = uniform(3, 4), torch.tensor([1.0, 0.5, 2.0]), ints(1, 0, 0)
    tokens, rows = function("speculative.dflash", "selector_walk_triton")(
        candidate_ids=ids, scores=scores, uniforms=chances, temperatures=heat, greedy_mask=greedy
    )
    for b in range(3):
        before = 0
        for slot in range(4):
            row = scores[b, slot, before].double()
            if greedy[b]:
                at = int(row.argmax())
                shares = torch.eye(8)[at].double()
            else:
                shares = (row / heat[b]).softmax(0)
                at = min(int((chances[b, slot] >= shares.cumsum(0)).sum()), 7)
            close(rows[b, slot], shares)
            assert tokens[b, slot] == ids[b, slot, at]
            before = at


def test_bonus_tokens() -> None:
    tokens, lens, out = drawn(99, 3, 5), longs(1, 5, 3), torch.empty(3, dtype=torch.int64)
    function("speculative.eagle", "fill_bonus_tokens")[(3,)](tokens, lens, out, 5)
    same(out, tokens[torch.arange(3), lens - 1])
    index, locs = longs(3, -1, 0, -1, -1, 5), drawn(99, 6)
    out = torch.full((6,), -7)
    function("speculative.eagle", "fill_accept_out_cache_loc")[(6,)](index, locs, out, 8)
    same(out, torch.cat((locs[[3, 0, 5]], torch.full((3,), -7))))


def test_chain_of_samples() -> None:
    slots, vocabulary = 4, 300
    target = randn(3, slots, vocabulary).softmax(-1)
    draft = randn(3, slots - 1, vocabulary, seed=1).softmax(-1)
    candidates, index = drawn(vocabulary, 3, slots), torch.arange(12).view(3, slots)
    chances, last = uniform(3, slots), uniform(3)
    chances[0] = 0  # all are accepted
    predicts = torch.full((12,), -1, dtype=torch.int32)
    accepted, count = torch.full((3, slots), -1), torch.zeros(3, dtype=torch.int32)
    function("speculative.reject_sampling", "chain_speculative_sampling_triton")(
        predicts, accepted, count, candidates, index, None, None, chances, last, target, draft,
        1.0, 1.0, True,
    )  # fmt: skip
    for b in range(3):
        n, p, q = 0, target[b].double(), draft[b].double()
        while n + 1 < slots:
            token = int(candidates[b, n + 1])
            if not chances[b, n] * q[n, token] < p[n, token]:
                break
            assert predicts[index[b, n]] == token
            n += 1
        assert count[b] == n and accepted[b].tolist() == [*index[b, : n + 1], *[-1] * (3 - n)]
        rest = p[n] if n + 1 == slots else (p[n] - q[n]).clamp(min=0)
        total = rest.cumsum(0)
        got = int(predicts[index[b, n]])
        edge = last[b] * total[-1]  # sums in float32 may fall to either side of it
        assert total[got] > edge - 1e-5 and (got == 0 or total[got - 1] <= edge + 1e-5)


def tree() -> tuple[torch.Tensor, ...]:
    """Two trees of drafts: two best of each node, three levels deep, five nodes of the draft."""
    # Entry k of the parents is the place of the node whose children are 2 k and 2 k + 1.
    parents = longs(-1, 0, 1, 2, 5).repeat(2, 1)
    chosen = torch.stack((longs(0, 1, 2, 5, 7), longs(0, 1, 3, 5, 8)))
    return parents, chosen


@pytest.mark.parametrize("only_drafts", [False, True])
def test_trees(only_drafts: bool) -> None:
    parents, chosen = tree()
    lengths, drafts = longs(3, 6), 6
    width = [drafts if only_drafts else n + drafts for n in lengths.tolist()]
    size = sum(drafts * w for w in width)
    mask = torch.ones(size, dtype=torch.bool)
    at, index = torch.zeros(12, dtype=torch.int64), torch.zeros(2, drafts, dtype=torch.int64)
    children, siblings = torch.full((2, drafts), -1), torch.full((2, drafts), -1)
    function("speculative.spec_tree", "sgl_build_tree_kernel_efficient_triton")[(2,)](
        parents, chosen, lengths, longs(0, 3), mask, at, index, children, siblings,
        2, 4, drafts, 1 if only_drafts else 0, 2, parents.stride(0), chosen.stride(0),
    )  # fmt: skip
    same(index, torch.arange(12).view(2, drafts))
    start = 0
    for b in range(2):
        nodes = chosen[b].tolist()
        above = [0]  # the root is its own parent
        for node in nodes:
            group = node // 2
            above.append(0 if group == 0 else 1 + nodes.index(int(parents[b, group])))
        seen, depth = torch.zeros(drafts, drafts, dtype=torch.bool), [0] * drafts
        for k in range(drafts):
            node, seen[k, 0] = k, True
            while node:
                seen[k, node] = True
                depth[k] += 1
                node = above[node]
        block = mask[start : start + drafts * width[b]].view(drafts, width[b])
        start += drafts * width[b]
        same(block[:, -drafts:], seen)
        assert block[:, :-drafts].all()
        same(at[b * drafts :][:drafts], lengths[b] + torch.tensor(depth))
        for k in range(drafts):
            family = [j for j in range(1, drafts) if above[j] == k]
            links = [int(children[b, k])]
            while links[-1] != -1:
                links.append(int(siblings[b, links[-1]]))
            assert links[:-1] == family


def test_verified_trees() -> None:
    drafts, steps = 6, 4
    # 0 → 1, 2; 1 → 3, 4; 4 → 5
    children = longs(1, 3, -1, -1, 5, -1).repeat(2, 1)
    siblings = longs(-1, 2, -1, 4, -1, -1).repeat(2, 1)
    index = torch.arange(12).view(2, drafts)
    candidates = torch.stack((longs(9, 1, 2, 3, 4, 5), longs(9, 1, 2, 3, 4, 5)))
    target = torch.stack((longs(1, 4, 8, 8, 5, 7), longs(2, 8, 6, 8, 8, 8)))
    predicts = torch.full((12,), -1)
    accepted, count = torch.full((2, steps), -1), torch.zeros(2, dtype=torch.int64)
    function("speculative.spec_tree", "verify_tree_greedy_kernel_triton")[(2,)](
        predicts, accepted, count, candidates, index, children, siblings, target, 2, steps, drafts
    )
    # The first goes 0, 1, 4, 5; the second 0, 2 and no further.
    assert count.tolist() == [3, 1]
    assert accepted.tolist() == [[0, 1, 4, 5], [6, 8, -1, -1]]
    assert predicts.tolist() == [1, 4, -1, -1, 5, 7, 2, -1, 6, -1, -1, -1]


# ---- several layers of drafts


@pytest.mark.parametrize("placed", [False, True])
def test_rotated_ids(placed: bool) -> None:
    lengths = (5, 20, 1)
    ids, new = drawn(99, 26), longs(100, 200, 300)
    where = longs(2, 24, 25) if placed else None
    wanted = ids.clone()
    for k, (start, n) in enumerate(zip(sums(lengths).tolist(), lengths, strict=False)):
        wanted[start : start + n - 1] = ids[start + 1 : start + n]
        wanted[start + n - 1 if where is None else where[k]] = new[k]
    forward = function(EAGLE, "rotate_input_ids")
    same(forward(ids, sums(lengths)[:3], ints(*lengths), new, where), wanted)


@pytest.mark.parametrize("set_valid", [False, True])
def test_stashed_states(set_valid: bool) -> None:
    tokens, hidden, ends, there = drawn(99, 20), randn(20, 40), longs(4, 17), longs(2, 9)
    stash, states, valid = drawn(99, 4, 3, seed=1), randn(4, 3, 40), ints(3, 0, 2, 0)
    requests = longs(2, 1)
    wanted, rows, count = stash.clone(), states.clone(), valid.clone()
    for k, r in enumerate(requests.tolist()):
        m, end = min(int(there[k]), 3), int(ends[k])
        wanted[r] = torch.cat((stash[r, m:], tokens[end - m : end]))
        rows[r] = torch.cat((states[r, m:], hidden[end - m : end]))
        count[r] = m if set_valid else min(int(valid[r]) + m, 3)
    function(EAGLE, "stash_append_boundary_state_triton")(
        tokens, hidden, ends, there, requests, stash, states, valid, set_valid
    )
    same(stash, wanted)
    same(states, rows)
    same(valid, count)


def test_wider_drafts() -> None:
    drafts, front, warm = 4, 3, 1
    stash, states, valid = drawn(99, 5, front, seed=1), randn(5, front, 40), ints(3, 0, 2, 3, 1)
    lengths, requests = longs(50, 2, 9), longs(2, 3, 1)
    predict, hidden = drawn(99, 12), randn(12, 40, seed=1)
    ids, rows = torch.full((21,), -1), torch.full((21, 40), -1.0)
    function(EAGLE, "fill_widened_draft_extend_inputs_triton")(
        ids, rows, predict, hidden, stash, states, valid, lengths, requests, drafts
    )
    locs, at = function(EAGLE, "compute_widened_draft_extend_locs_positions_triton")(
        lengths, requests, TABLE, valid, drafts, front, warm
    )
    for k, r in enumerate(requests.tolist()):
        n = int(lengths[k])
        first = max(front - int(valid[r]), front - n, 0)
        kept = torch.arange(front) >= first
        part = slice(7 * k, 7 * k + 7)
        same(ids[part], torch.cat((stash[r] * kept, predict[4 * k : 4 * k + 4])))
        same(rows[part], torch.cat((states[r] * kept[:, None], hidden[4 * k : 4 * k + 4])))
        place = n - front + torch.arange(7)
        same(at[part], place * (torch.arange(7) >= first))
        real = torch.arange(7) >= min(first + warm, front)
        same(locs[part], TABLE[r, place.clamp(min=0)] * real)


@pytest.mark.parametrize("heated", [False, True])
def test_wide_softmax(heated: bool) -> None:
    x, heat = 3 * randn(2, 9000), torch.tensor([0.5, 2.0])
    out = torch.empty(2, 9100)[:, :9000]
    got = function(EAGLE, "wide_row_softmax_triton")(x, heat if heated else None, out)
    close(got, (x.double() / heat[:, None] if heated else x.double()).softmax(-1))


def test_buffers_of_drafts() -> None:
    raw, bs, per, front = 3, 4, 3, 1
    new = [drawn(99, 9, seed=s) for s in range(3)]
    old = [torch.full((20,), -1) for _ in range(3)]
    lengths, requests, right, accepted = ints(7, 8, 9), longs(4, 2, 0), ints(0, 1, 2), ints(1, 2, 3)
    kept = [ints(*[-1] * 5), longs(*[-1] * 5), ints(*[5] * 5), ints(*[-2] * 5), longs(*[-3] * 5)]
    heat, hidden = torch.full((5,), 9.0), torch.full((20, 40), -1.0)
    source, several = randn(9, 40), [ints(0, 0), ints(0, 0)]
    function(EAGLE, "fill_draft_extend_prepare_buffers_triton")(
        *old, *new, *kept, heat, lengths, requests, right, accepted, torch.tensor([0.5, 1.5, 2.5]),
        hidden, source, *several, raw, bs, per, front, 77,
    )  # fmt: skip
    for x, y in zip(old, new, strict=True):
        same(x, torch.cat((y, torch.zeros(11))))
    same(kept[0], ints(7, 8, 9, 77, 77))
    same(kept[1], longs(4, 2, 0, -1, -1))
    same(kept[2], ints(0, 1, 2, 5, 5))
    same(kept[3], ints(1, 2, 3, -1, -2))
    same(kept[4], longs(1, 5, 9, 15, -3))
    same(heat, torch.tensor([0.5, 1.5, 2.5, 1.0, 9.0]))
    same(hidden, torch.cat((source, torch.full((11, 40), -1.0))))
    same(torch.stack(several), torch.full((2, 2), 12))


# ---- places


@pytest.mark.parametrize("padded", [3, 6])
def test_lengths_in_buckets(padded: int) -> None:
    path = "speculative.ragged_verify_kernels"
    lengths = longs(4, 1, 5)
    got = function(path, "pad_verify_lens_to_bucket_triton")(
        verify_lens=lengths, graph_num_tokens=18, bs=3, padded_bs=padded
    )
    same(got, ints(4, 1, 13) if padded == 3 else ints(4, 1, 5, 3, 3, 2))
    found = function(path, "build_qo_indptr_triton")(verify_lens=lengths)
    same(found.qo_indptr, ints(0, 4, 5, 10))
    same(found.extend_start_loc, ints(0, 4, 5))


def test_places_of_drafts() -> None:
    requests, lengths = longs(3, 1, 0), longs(5, 130, 0)
    out = torch.zeros(3 * 6, dtype=torch.int64)
    kernel = function(LOCS, "assign_draft_cache_locs_contiguous")
    kernel[(3,)](requests, TABLE, lengths, out, 400, 2, 3)
    parts = [TABLE[r, n : n + 6] for r, n in zip(requests, lengths, strict=True)]
    same(out, torch.cat(parts))
    starts, ends = longs(5, 130, 0), longs(9, 200, 3)
    got = torch.zeros(77, dtype=torch.int64)
    kernel = function(LOCS, "assign_extend_cache_locs")
    kernel[(3,)](requests, TABLE, starts, ends, got, 400, 4)
    parts = [TABLE[r, a:b] for r, a, b in zip(requests, starts, ends, strict=True)]
    same(got, torch.cat(parts))
    got = torch.zeros(210, dtype=torch.int64)
    kernel = function(LOCS, "assign_extend_cache_locs_uniform")
    kernel[(3,)](requests, TABLE, starts, got, 400, 70)
    same(got, torch.cat([TABLE[r, a : a + 70] for r, a in zip(requests, starts, strict=True)]))


def test_compact_tables() -> None:
    out = torch.full((5, 300), -1, dtype=torch.int32)
    wanted, requests, starts, lengths = out.clone(), longs(3, 1), longs(5, 0), longs(260, 7)
    new = drawn(999, 2, 8, dtype=torch.int32)
    for k, (r, a, n) in enumerate(zip(*(x.tolist() for x in (requests, starts, lengths)),
                                      strict=True)):  # fmt: skip
        wanted[r, : n + 8] = torch.cat((TABLE[r, a : a + n], new[k]))
    function(LOCS, "rebuild_compact_draft_req_to_token_func")(
        draft_req_to_token=out, target_req_to_token=TABLE, req_pool_indices=requests,
        suffix_start=starts, draft_prefix_lens=lengths, verify_out_cache_loc_2d=new,
        batch_size=2, block_size=8,
    )  # fmt: skip
    same(out, wanted)


def test_indices_for_drafts() -> None:
    steps, top, lengths, requests = 3, 2, longs(5, 130), longs(3, 1)
    indices = torch.full((steps, 400), -1, dtype=torch.int32)
    starts, at = torch.zeros(steps, 5, dtype=torch.int32), lengths.repeat_interleave(top)
    function(LOCS, "generate_draft_decode_kv_indices")[(steps, 2, top)](
        requests, TABLE, lengths, indices, starts, at, 400, 400, 5, 2, 4, 4, 1
    )
    for step in range(steps):
        parts = [
            torch.cat((TABLE[r, :n], TABLE[r, n + k * steps :][: step + 1]))
            for r, n in zip(requests.tolist(), lengths.tolist(), strict=True)
            for k in range(top)
        ]
        whole = torch.cat(parts)
        same(indices[step, : len(whole)], whole)
        same(starts[step], sums(tuple(map(len, parts))))


# ---- keys and values


def test_keys_of_layers() -> None:
    layers, tokens, heads, width, turned = 2, 5, 3, 32, 16
    kv, w = randn(tokens, layers, 2 * heads * width), randn(layers, width)
    table, at = randn(50, turned), longs(3, 0, 7, 49, 7)
    k, v = function("speculative.fused_kv_materialize", "_fused_norm_rope_stacked")(
        kv, w, torch.tensor([1e-5, 1e-3]), table, at, heads, width, turned
    )
    whole = kv.view(tokens, layers, 2, heads, width).permute(2, 1, 0, 3, 4)
    same(v, whole[1])
    cos, sin = (x[:, None] for x in table[at].chunk(2, -1))
    for layer, eps in enumerate((1e-5, 1e-3)):
        x = rms_norm(whole[0, layer], w[layer], eps)
        close(k[layer], torch.cat((rotated(x[..., :turned], cos, sin, False), x[..., turned:]), -1))


@pytest.mark.parametrize("committed", [False, True])
def test_written_keys(committed: bool) -> None:
    layers, tokens, heads, width = 2, 6, 2, 32
    kv = randn(tokens, layers * 2 * heads * width, dtype=torch.bfloat16)
    w, table = randn(layers, width, dtype=torch.bfloat16), randn(50, width)
    keys = [torch.zeros(10, heads * width, dtype=torch.bfloat16) for _ in range(layers)]
    values = [x.clone() for x in keys]
    meta = torch.tensor([[k.data_ptr(), v.data_ptr(), heads * width, heads * width]
                         for k, v in zip(keys, values, strict=True)])  # fmt: skip
    at, locs, lens = longs(3, 0, 7, 49, 7, 8), longs(4, 9, -1, 1, 0, 2), longs(3, 1)
    more = {"commit_lens": lens, "locs_row_width": 3} if committed else {}
    function("speculative.dspark.fused_kv_write", "fused_kv_norm_rope_write")(
        kv, meta, w, table, at, locs, layers, heads * width, width, 1e-5, **more
    )
    there = locs >= 0
    if committed:
        there &= longs(1, 1, 1, 1, 0, 0) > 0
    cos, sin = (x[:, None] for x in table[at].chunk(2, -1))
    whole = kv.view(tokens, layers, 2, heads, width)
    for layer in range(layers):
        k = rotated(rms_norm(whole[:, layer, 0], w[layer], 1e-5), cos, sin, False)
        wanted_k, wanted_v = torch.zeros(10, heads, width).double(), torch.zeros(10, heads, width)
        wanted_k[locs[there]] = k[there]
        wanted_v[locs[there]] = whole[there, layer, 1].float()
        close(keys[layer].view(10, heads, width), wanted_k)
        same(values[layer].view(10, heads, width).float(), wanted_v)
