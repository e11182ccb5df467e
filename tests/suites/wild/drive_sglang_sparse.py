"""SGLang: attention to the best blocks of keys (MiniMax), and what makes its queries and keys."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from reference import close, randn, rms_norm, rotated, same
from sglang_parts import function, ints, longs, mixed, overridden, sums

SPARSE = "attention.minimax_sparse"
NARROW = torch.float8_e4m3fn
HEADS, SHARED, WIDE, BLOCK, TOP = 4, 2, 48, 32, 4
TABLE = mixed(4, 320).int()  # slots of the tokens of each request
REQUESTS, LENGTHS = longs(2, 0, 3), (300, 70, 33)


class Drawn:
    """Queries of some tokens, and keys and values of four requests; narrow ones have scales."""

    def __init__(self, tokens: int, narrow: bool) -> None:
        self.q = randn(tokens, HEADS, WIDE, dtype=torch.bfloat16)
        dtype = NARROW if narrow else torch.bfloat16
        self.k, self.v = (randn(4 * 320, SHARED, WIDE, seed=s).to(dtype) for s in range(2))
        self.sink = randn(HEADS, WIDE, seed=3).bfloat16()
        self.scales = dict(zip(("q_scale", "k_scale", "v_scale"), (0.5, 2.0, 0.25), strict=True))
        if not narrow:
            self.scales = {}

    def logits(self, token: int, request: int, seen: int) -> torch.Tensor:
        """Of a query with the first keys of a request."""
        k = self.k[TABLE[request, :seen].long()].double().repeat_interleave(HEADS // SHARED, 1)
        scores = torch.einsum("hd,nhd->hn", self.q[token].double(), k) * WIDE**-0.5
        return scores * self.scales.get("q_scale", 1.0) * self.scales.get("k_scale", 1.0)

    def attended(
        self, scores: torch.Tensor, token: int, request: int, chosen: torch.Tensor | None = None
    ) -> torch.Tensor:
        """A sink is one more key, of which the value is zero; only chosen blocks are seen."""
        tokens = scores.shape[1]
        if chosen is not None:
            seen = (torch.arange(tokens) // BLOCK == chosen[:, :, None]).any(1)
            scores = scores.masked_fill(~seen.repeat_interleave(HEADS // SHARED, 0), -torch.inf)
        ends = (self.q[token].double() * self.sink.double()).sum(-1, keepdim=True) * WIDE**-0.5
        both = torch.cat((scores, ends * self.scales.get("q_scale", 1.0)), 1)
        v = self.v[TABLE[request, :tokens].long()].double().repeat_interleave(HEADS // SHARED, 1)
        v = v * self.scales.get("v_scale", 1.0)
        return torch.einsum("hn,nhd->hd", torch.softmax(both, 1)[:, :-1], v)


def best_blocks(scores: torch.Tensor, first: int, last: int, kind: str) -> torch.Tensor:
    """The first and the last blocks of keys are taken anyway, the rest by their scores."""
    blocks = -(-scores.shape[1] // BLOCK)
    padded = F.pad(scores, (0, blocks * BLOCK - scores.shape[1]), value=-torch.inf)
    parts = padded.unflatten(1, (blocks, BLOCK))
    worth = parts.amax(-1) if kind == "max" else parts.logsumexp(-1)
    worth[:, :first] = worth[:, max(blocks - last, 0) :] = torch.inf
    found = worth.topk(min(TOP, blocks), 1).indices.sort(1).values
    return F.pad(found, (0, TOP - found.shape[1]), value=-1)


@pytest.mark.parametrize("kind", ["max", "lse"])
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("valued", [False, True])
def test_best_blocks_of_new_tokens(kind: str, narrow: bool, valued: bool) -> None:
    x = Drawn(3, narrow)
    run = function(f"{SPARSE}.decode.flash_with_topk_idx", "flash_decode_with_topk_idx")
    with overridden("SGLANG_OPT_USE_MINIMAX_DECODE_TOPK_RADIX", False):
        out, found, _ = run(
            x.q, x.sink, x.k, x.v if valued else None, TABLE, ints(*LENGTHS), 320, REQUESTS, BLOCK,
            TOP, 1, 1, score_type=kind, disable_index_value=not valued, **x.scales,
        )  # fmt: skip
    for b, (n, request) in enumerate(zip(LENGTHS, REQUESTS.tolist(), strict=True)):
        scores = x.logits(b, request, n)
        same(found[:, b], best_blocks(scores, 1, 1, kind))
        if valued:
            close(out[b], x.attended(scores, b, request))


@pytest.mark.parametrize("narrow", [False, True])
def test_new_tokens(narrow: bool) -> None:
    x = Drawn(3, narrow)
    chosen = ints(0, 9, 4, 7, 0, 2, -1, -1, 1, 0, -1, -1, 5, 0, -1, -1, 1, 0, 2, -1, 1, -1, -1, -1)
    chosen = chosen.view(SHARED, 3, TOP)
    got = function(f"{SPARSE}.decode.topk_sparse", "flash_decode_with_gqa_share_sparse")(
        x.q, x.sink, x.k, x.v, TABLE, ints(*LENGTHS), REQUESTS, BLOCK, chosen, **x.scales
    )
    for b, (n, request) in enumerate(zip(LENGTHS, REQUESTS.tolist(), strict=True)):
        close(got[b], x.attended(x.logits(b, request, n), b, request, chosen[:, b]))


@pytest.mark.parametrize("kind", ["max", "lse"])
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("every", [1, 16])
def test_best_blocks_of_prompts(kind: str, narrow: bool, every: int) -> None:
    """Blocks are chosen for every so many queries, by the first of them."""
    new, before, x = (70, 1, 9), (30, 69, 250), Drawn(80, narrow)
    lengths = ints(*new) + ints(*before)
    out, found = function(f"{SPARSE}.prefill.flash_with_topk_idx", "flash_prefill_with_topk_index")(
        x.q, x.k, x.v, x.sink, TABLE, REQUESTS, sums(new), lengths, ints(*before), 70, 320,
        every, BLOCK, TOP, 1, 2, score_type=kind, **x.scales,
    )  # fmt: skip
    # What each block of queries chose is what it attends to, for the heads that share keys.
    chosen = found[:: HEADS // SHARED].contiguous()
    sparse = function(f"{SPARSE}.prefill.topk_sparse", "flash_prefill_with_gqa_share_sparse")(
        x.q, x.k, x.v, x.sink, TABLE, REQUESTS, chosen, every, BLOCK, sums(new), lengths,
        ints(*before), 70, **x.scales,
    )  # fmt: skip
    token = row = 0
    for request, n, past in zip(REQUESTS.tolist(), new, before, strict=True):
        for t in range(n):
            scores = x.logits(token, request, past + t + 1)
            close(out[token], x.attended(scores, token, request))
            if t % every == 0:
                same(found[:, row], best_blocks(scores, 1, 2, kind))
                row += 1
            close(sparse[token], x.attended(scores, token, request, chosen[:, row - 1]))
            token += 1
    assert row == found.shape[1]


@pytest.mark.parametrize("neighbours", [False, True])
def test_queries_and_keys_of_an_indexer(neighbours: bool) -> None:
    """The root-mean-square of each head, and a rotation of its first elements."""
    path, wide, part = "attention.minimax_m3_qk_norm_rope", 48, 32
    counts = {"q": 4, "k": 2, "index q": 3, "index k": 1}
    whole = randn(5, 11 * wide, dtype=torch.bfloat16)
    sizes = [wide * n for n in (*counts.values(), 1)]
    *rows, _ = whole.split(sizes, 1)  # views, of which the rows are not next to each other
    v = randn(5, 2 * wide, seed=1).bfloat16()
    weights = [randn(wide, seed=s).bfloat16() for s in range(4)]
    at, angles = longs(3, 0, 7, 39, 12), randn(40, part // 2)
    table = torch.cat((angles.cos(), angles.sin()), 1)
    wanted = []
    for x, w in zip(rows, weights, strict=True):
        normed = rms_norm(x.unflatten(1, (-1, wide)), w.double() + 1, 1e-6)
        cos, sin = (f(angles[at].double())[:, None] for f in (torch.cos, torch.sin))
        turned = rotated(normed[..., :part], cos, sin, neighbours)
        wanted.append(torch.cat((turned, normed[..., part:]), -1).flatten(1))
    last = at, table, 1e-6, wide, part, not neighbours
    pair = function(path, "qk_gemma_rmsnorm_rope")(*rows[:2], *weights[:2], *last)
    four = function(path, "sparse_qk_index_gemma_rmsnorm_rope")(*rows, *weights, *last)
    keys, values, index = (torch.zeros(9, n, wide).bfloat16() for n in (2, 2, 1))
    slots = longs(4, 8, 1, 0, 6)
    stored = function(path, "sparse_qk_index_gemma_rmsnorm_rope_cache")(
        *rows[:2], v, *rows[2:], keys, values, index, slots, *weights, *last
    )
    for got in (pair, four, stored):
        for a, b in zip(got, wanted, strict=False):
            close(a, b)
    same(keys[slots].flatten(1), stored[1])
    same(values[slots].flatten(1), v)
    same(index[slots].flatten(1), stored[3])
    for cache in (keys, values, index):
        assert cache.flatten(1).any(1).sum() == 5
