"""SGLang: products with low-rank adapters, each for a segment of the tokens."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from reference import close, randn, same
from sglang_parts import drawn, function, ints, sums

LENGTHS, RANKS, MOST = (5, 20, 3), (8, 16, 0), 16
TOKENS, SCALES = sum(LENGTHS), torch.tensor([0.5, 2.0, 1.0])

folders = pytest.mark.parametrize("folder", ["gemm", "gemm.trtllm_lora_temp"])
orders = pytest.mark.parametrize("ordered", [False, True])


def batch(ordered: bool) -> tuple[SimpleNamespace, list[torch.Tensor]]:
    """What a batch says of its segments, and the tokens of each; adapter k is for segment k."""
    order = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(3))
    about = SimpleNamespace(
        use_cuda_graph=False,
        bs=3,
        num_segments=3,
        seg_indptr=sums(LENGTHS),
        weight_indices=ints(0, 1, 2),
        lora_ranks=ints(*RANKS),
        scalings=SCALES,
        max_len=max(LENGTHS),
        seg_lens=ints(*LENGTHS),
        permutation=order if ordered else None,
    )
    tokens = order if ordered else torch.arange(TOKENS)
    return about, list(tokens.split(LENGTHS))


def adapters(*shape: int, seed: int = 0) -> torch.Tensor:
    """One matrix for each adapter, zero past its rank in the last dimension."""
    w = randn(3, *shape, seed=seed)
    for k, rank in enumerate(RANKS):
        w[k, ..., rank:] = 0
    return w


@folders
@orders
@pytest.mark.parametrize("stacked", [1, 2])
def test_down(folder: str, ordered: bool, stacked: int) -> None:
    about, segments = batch(ordered)
    x, w = randn(TOKENS, 300), randn(3, stacked * MOST, 300)
    got = function(f"{folder}.sgemm_lora_a", "sgemm_lora_a_fwd")(x, w, about, stacked)
    for k, tokens in enumerate(segments[:2]):
        n = RANKS[k] * stacked
        close(got[tokens, :n], x[tokens].double() @ w[k, :n].double().T, factor=10)


@folders
@orders
def test_up(folder: str, ordered: bool) -> None:
    about, segments = batch(ordered)
    x, w, base = randn(TOKENS, MOST), adapters(40, MOST), randn(TOKENS, 40)
    wanted = base.double()
    for k, tokens in enumerate(segments[:2]):
        wanted[tokens] += x[tokens].double() @ w[k].double().T * SCALES[k]
    close(function(f"{folder}.sgemm_lora_b", "sgemm_lora_b_fwd")(x, w, about, base), wanted)


@folders
@orders
@pytest.mark.parametrize("parts", [(24, 8, 8), (20, 20)])
def test_up_in_parts(folder: str, ordered: bool, parts: tuple[int, ...]) -> None:
    """Queries, keys and values; gates and their factors."""
    about, segments = batch(ordered)
    count, total = len(parts), sum(parts)
    x, w = randn(TOKENS, count * MOST), adapters(total, MOST)
    base = randn(TOKENS, total)
    wanted, starts = base.double(), sums(parts).tolist()
    for k, tokens in enumerate(segments[:2]):
        for part, (a, b) in enumerate(pairwise(starts)):
            narrow = x[tokens, part * RANKS[k] : (part + 1) * RANKS[k]].double()
            wanted[tokens, a:b] += narrow @ w[k, a:b, : RANKS[k]].double().T * SCALES[k]
    if count == 3:
        forward = function(f"{folder}.qkv_lora_b", "qkv_lora_b_fwd")
        got = forward(x, w, about, sums(parts), max(parts), base)
    else:
        got = function(f"{folder}.gate_up_lora_b", "gate_up_lora_b_fwd")(x, w, about, 20, base)
    close(got, wanted)


@folders
@orders
def test_absorbed(folder: str, ordered: bool) -> None:
    """The steps of an adapter on keys and values that latent attention has absorbed."""
    about, segments = batch(ordered)
    heads, nope, value, latent = 2, 48, 24, 80
    path = f"{folder}.kv_b_lora_absorbed"
    up, down = randn(3, heads * (nope + value), MOST), randn(3, MOST, latent)
    for k, rank in enumerate(RANKS):
        up[k, :, rank:] = 0
        down[k, rank:] = 0
    of_heads = up.double().view(3, heads, nope + value, MOST)
    q, o = randn(TOKENS, heads, nope), randn(TOKENS, heads, latent)
    first = function(path, "step_a_q_fwd")(q, up, about, nope + value)
    third = function(path, "step_a_v_fwd")(o, down, about)
    narrow = randn(TOKENS, heads, MOST)
    base_q, base_v = randn(TOKENS, heads, latent), randn(TOKENS, heads, value)
    wanted_q, wanted_v = base_q.double(), base_v.double()
    second = function(path, "step_b_q_fwd")(narrow, down, about, base_q)
    fourth = function(path, "step_b_v_fwd")(narrow, up, about, base_v, nope, value)
    for k, tokens in enumerate(segments[:2]):
        r = RANKS[k]
        low, high = of_heads[k, :, :nope, :r], of_heads[k, :, nope:, :r]
        close(first[tokens][..., :r], torch.einsum("shk,hkr->shr", q[tokens].double(), low), 10)
        close(third[tokens][..., :r], o[tokens].double() @ down[k, :r].double().T, 10)
        x = narrow[tokens, :, :r].double() * SCALES[k]
        wanted_q[tokens] += x @ down[k, :r].double()
        wanted_v[tokens] += torch.einsum("shr,hvr->shv", x, high)
    close(second, wanted_q)
    close(fourth, wanted_v)


def chunks() -> tuple[SimpleNamespace, list[tuple[int, torch.Tensor]]]:
    """Segments of at most 16 tokens, and the adapter and the tokens of each."""
    about, segments = batch(True)
    parts = [(k, p) for k, tokens in enumerate(segments) for p in tokens.split(16)]
    about.num_segments = len(parts)
    about.seg_indptr = sums(tuple(len(p) for _, p in parts))
    about.weight_indices = ints(*(k for k, _ in parts))
    about.max_len = 16
    return about, parts


def test_chunks_down_and_up() -> None:
    about, parts = chunks()
    x, down, up = randn(TOKENS, 96), randn(3, 2 * MOST, 96), randn(3, 40, MOST)
    shrink = function("gemm.chunked_sgmv_shrink", "chunked_sgmv_lora_shrink_forward")
    got = shrink(x, down, about, 2)
    for k, tokens in parts:
        n = 2 * RANKS[k]
        close(got[tokens, :n], x[tokens].double() @ down[k, :n].double().T, factor=10)
    narrow, base = randn(TOKENS, 2 * MOST), randn(TOKENS, 40)
    wanted = base.double()
    for k, tokens in parts:
        r = RANKS[k]
        for part, (a, b) in enumerate(((0, 24), (24, 40))):
            x = narrow[tokens, part * r : (part + 1) * r].double() * SCALES[k]
            wanted[tokens, a:b] += x @ up[k, a:b, :r].double().T
    expand = function("gemm.chunked_sgmv_expand", "chunked_sgmv_lora_expand_forward")
    close(expand(narrow, up, about, ints(0, 24, 40), 24, base), wanted)


def embedded(ids: torch.Tensor, w: torch.Tensor, parts: Any) -> torch.Tensor:
    wanted = torch.zeros(TOKENS, MOST)
    for k, tokens in parts:
        wanted[tokens, : RANKS[k]] = w[k, : RANKS[k], ids[tokens]].T
    return wanted


def test_embeddings() -> None:
    about, segments = batch(False)
    w, more = randn(3, MOST, 50), randn(3, 4, MOST)
    ids = drawn(54, TOKENS)
    forward = function("gemm.embedding_lora_a", "embedding_lora_a_fwd")
    wide = torch.cat((w, more.transpose(1, 2)), 2)
    same(forward(ids, w, about, 50, more), embedded(ids, wide, enumerate(segments)))
    about, parts = chunks()
    ids = drawn(50, TOKENS, seed=1)
    forward = function("gemm.chunked_embedding_lora_a", "chunked_embedding_lora_a_forward")
    same(forward(ids, w, about, 50), embedded(ids, w, parts))
