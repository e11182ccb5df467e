"""lightllm: attention over a cache of tokens, of requests of several lengths, by model."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from reference import attention, close, randn, same

HEADS, WIDTH = 4, 32
LENGTHS, CACHED = (5, 37), (2, 9)  # tokens of each request, and how many were there before


def function(path: str, name: str) -> Any:
    return getattr(import_module(f"lightllm.models.{path}"), name)


class Batch:
    """Two requests whose tokens lie in slots of the cache in any order."""

    def __init__(self, kv_heads: int = 2, width: int = WIDTH) -> None:
        self.requests = torch.tensor([3, 1], dtype=torch.int32)
        self.lengths = torch.tensor(LENGTHS, dtype=torch.int32)
        self.cached = torch.tensor(CACHED, dtype=torch.int32)
        slots = torch.randperm(64, generator=torch.Generator().manual_seed(3)).int()
        self.tokens = torch.zeros(4, 40, dtype=torch.int32)
        self.tokens[3, :5], self.tokens[1, :37] = slots[:5], slots[5:42]
        self.k = randn(64, kv_heads, width)
        self.v = randn(64, kv_heads, width, seed=1)
        self.starts = torch.tensor([0, 5], dtype=torch.int32)

    def of(self, cache: torch.Tensor, which: int, heads: int = HEADS) -> torch.Tensor:
        """The cache's rows of a request: (heads, length, width)."""
        rows = cache[self.tokens[self.requests[which], : LENGTHS[which]].long()].double()
        return rows.repeat_interleave(heads // cache.shape[1], 1).transpose(0, 1)

    def decoded(self, q: torch.Tensor, bias: Any = None, window: int = 1000) -> torch.Tensor:
        """One new query per request."""
        out = []
        for b, length in enumerate(LENGTHS):
            k, v = (self.of(c, b)[:, max(length - window, 0) :] for c in (self.k, self.v))
            out.append(attention(q[b][:, None], k, v, bias=None if bias is None else bias(b))[:, 0])
        return torch.stack(out)

    def scores(self, q: torch.Tensor, bias: Any = None) -> torch.Tensor:
        """What softmax is taken of, requests one after the other: (heads, tokens)."""
        parts = []
        for b in range(2):
            s = (q[b].double()[:, None] @ self.of(self.k, b).mT)[:, 0] * q.shape[-1] ** -0.5
            parts.append(s if bias is None else s + bias(b)[:, 0])
        return torch.cat(parts, 1)


SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])


def alibi(length: int, queries: int = 1) -> torch.Tensor:
    at = torch.arange(length - queries, length)[:, None] - torch.arange(length)
    return -at * SLOPES[:, None, None].double()


# ---- many queries of a request at once


def prefilled(batch: Batch, q: torch.Tensor, bias: Any = None) -> torch.Tensor:
    """Queries of the tokens that were not in the cache, requests one after the other."""
    out, at = [], 0
    for b in range(2):
        new = LENGTHS[b] - CACHED[b]
        part = q[at : at + new].transpose(0, 1)
        more = None if bias is None else bias(LENGTHS[b], new)
        k, v = batch.of(batch.k, b), batch.of(batch.v, b)
        out.append(attention(part, k, v, causal=True, bias=more).transpose(0, 1))
        at += new
    return torch.cat(out)


NEW = tuple(n - c for n, c in zip(LENGTHS, CACHED, strict=True))


@pytest.mark.parametrize("model", ["llama", "phi3", "bloom"])
def test_prefill(model: str) -> None:
    forward = function(
        f"{model}.triton_kernel.context_flashattention_nopad", "context_attention_fwd"
    )
    batch = Batch(HEADS if model == "bloom" else 2)
    q = randn(sum(NEW), HEADS, WIDTH, seed=2)
    o, starts = torch.empty_like(q), torch.tensor([0, NEW[0]], dtype=torch.int32)
    more = (batch.requests, *([SLOPES] if model == "bloom" else []), starts, batch.lengths)
    forward(q, batch.k, batch.v, o, *more, batch.cached, max(NEW), batch.tokens)
    close(o, prefilled(batch, q, alibi if model == "bloom" else None))


def packed(window: int | None = None, kv_heads: int = 2) -> tuple[Any, ...]:
    """Requests without a cache: their tokens one after the other."""
    q, k, v = (randn(sum(LENGTHS), h, WIDTH, seed=h) for h in (HEADS, kv_heads, kv_heads))
    out, at = [], 0
    for n in LENGTHS:
        parts = [x[at : at + n].double().transpose(0, 1) for x in (q, k, v)]
        parts = [p.repeat_interleave(HEADS // p.shape[0], 0) for p in parts]
        far = torch.arange(n)[:, None] - torch.arange(n)
        bias = torch.where(far < (window or n + 1), 0.0, -torch.inf)
        out.append(attention(parts[0], parts[1], parts[2], causal=True, bias=bias).transpose(0, 1))
        at += n
    starts = torch.tensor([0, LENGTHS[0]], dtype=torch.int32)
    return q, k, v, starts, torch.tensor(LENGTHS, dtype=torch.int32), torch.cat(out)


@pytest.mark.parametrize("model", ["llama", "phi3", "mistral"])
def test_prefill_without_cache(model: str) -> None:
    module = f"{model}.triton_kernel.context_flashattention_nopad"
    windowed = model == "mistral"
    q, k, v, starts, lengths, wanted = packed(window=16 if windowed else None)
    o = torch.empty_like(q)
    name = "context_attention_fwd" + ("" if windowed else "_no_prompt_cache")
    function(module, name)(q, k, v, o, starts, lengths, max(LENGTHS), *([16] if windowed else []))
    close(o, wanted)


def test_prefill_of_dense_cache() -> None:
    """Keys and values lie by request; those past a request's length are not looked at."""
    forward = function(
        "llama.triton_kernel.context_flashattention_nopad", "context_attention_fwd_ppl_int8kv"
    )
    batch = Batch()
    k, v = randn(2, 2, 40, WIDTH), randn(2, 2, 40, WIDTH, seed=1)
    q = randn(sum(NEW), HEADS, WIDTH, seed=2)
    o, starts = torch.empty_like(q), torch.tensor([0, NEW[0]], dtype=torch.int32)
    forward(q, k, v, o, starts, batch.lengths, max(NEW), batch.cached)
    out, at = [], 0
    for b in range(2):
        parts = [x[b, :, : LENGTHS[b]].repeat_interleave(2, 0) for x in (k, v)]
        part = q[at : at + NEW[b]].transpose(0, 1)
        out.append(attention(part, parts[0], parts[1], causal=True).transpose(0, 1))
        at += NEW[b]
    close(o, torch.cat(out))


# ---- one query per request: scores, softmax and the sum over values, each a kernel


@pytest.mark.parametrize("model", ["llama", "bloom"])
def test_scores_softmax_values(model: str) -> None:
    path = f"{model}.triton_kernel.token_attention_nopad_"
    batch = Batch(HEADS if model == "bloom" else 2)
    q = randn(2, HEADS, WIDTH, seed=2)
    where = (batch.tokens, batch.requests, batch.starts, batch.lengths)
    bias = (lambda b: alibi(LENGTHS[b])) if model == "bloom" else None
    scores = torch.empty(HEADS, sum(LENGTHS))
    more = [SLOPES] if model == "bloom" else []
    function(path + "att1", "token_att_fwd")(q, batch.k, scores, *more, *where, max(LENGTHS))
    close(scores, batch.scores(q, bias))
    shares = torch.empty_like(scores)
    function(path + "softmax", "token_softmax_fwd")(
        scores, batch.starts, batch.lengths, shares, max(LENGTHS)
    )
    parts = scores.double().split(LENGTHS, 1)
    close(shares, torch.cat([p.softmax(1) for p in parts], 1))
    o = torch.empty_like(q)
    function(path + "reduceV", "token_att_fwd2")(shares, batch.v, o, *where)
    close(o, batch.decoded(q, bias))


def test_decoding_with_slopes() -> None:
    """Slots of a request stand at the end of its row of the table."""
    kernel = function("bloom.triton_kernel.token_flashattention_nopad", "_fwd_kernel")
    batch, q = Batch(HEADS), randn(2, HEADS, WIDTH, seed=2)
    table = torch.zeros(2, 40, dtype=torch.int32)
    for b, n in enumerate(LENGTHS):
        table[b, 40 - n :] = batch.tokens[batch.requests[b], :n]
    o = torch.empty_like(q)
    kernel[(2, HEADS)](
        q,
        batch.k,
        batch.v,
        WIDTH**-0.5,
        SLOPES,
        table,
        batch.lengths,
        40,
        o,
        *(n for x in (q, batch.k, batch.v, o, table) for n in x.stride()),
        BLOCK_DMODEL=WIDTH,
        BLOCK_N=16,
    )
    close(o, batch.decoded(q, lambda b: alibi(LENGTHS[b])))


def test_softmax_with_values() -> None:
    forward = function(
        "llama.triton_kernel.token_attention_softmax_and_reducev", "token_softmax_reducev_fwd"
    )
    batch, q = Batch(), randn(2, HEADS, WIDTH, seed=2)
    o = torch.empty_like(q)
    where = (batch.tokens, batch.requests, batch.starts, batch.lengths)
    forward(batch.scores(q).float(), batch.v, o, *where)
    close(o, batch.decoded(q))


def test_scores_and_values_of_bytes() -> None:
    path = "llama.triton_kernel.token_attention_nopad_"
    batch, q = Batch(), randn(2, HEADS, WIDTH, seed=2)
    whole = [(x * 30).round().clamp(-127, 127).to(torch.int8) for x in (batch.k, batch.v)]
    scale = [randn(64, 2, 1, seed=s).abs() / 30 for s in (5, 6)]
    batch.k, batch.v = (w * s for w, s in zip(whole, scale, strict=True))
    where = (batch.tokens, batch.requests, batch.starts, batch.lengths, max(LENGTHS))
    scores = torch.empty(HEADS, sum(LENGTHS))
    function(path + "att1", "token_att_fwd_int8k")(q, whole[0], scale[0], scores, *where)
    close(scores, batch.scores(q))
    shares = torch.cat([p.softmax(1) for p in scores.split(LENGTHS, 1)], 1)
    o = torch.empty_like(q)
    function(path + "reduceV", "token_att_fwd2_int8v")(shares, whole[1], scale[1], o, *where)
    close(o, batch.decoded(q))


@pytest.mark.parametrize("fused", [False, True])
def test_decoding_in_a_window(fused: bool) -> None:
    window, path = 16, "mistral.triton_kernel."
    batch, q = Batch(), randn(2, HEADS, WIDTH, seed=2)
    seen = torch.empty_like(batch.lengths)
    function(path + "init_att_sliding_window_info", "init_att_window_info_fwd")(
        2, batch.lengths, seen, window
    )
    same(seen, batch.lengths.clamp(max=window))
    starts = torch.tensor([0, 5], dtype=torch.int32)
    where = (batch.tokens, batch.requests, batch.starts, batch.lengths, starts, seen, window)
    scores = torch.empty(HEADS, int(seen.sum()))
    function(path + "token_attention_nopad_att1", "token_att_fwd")(q, batch.k, scores, *where)
    o = torch.empty_like(q)
    if fused:
        function(path + "token_attention_softmax_and_reducev", "token_softmax_reducev_fwd")(
            scores, batch.v, o, *where
        )
    else:
        shares = torch.cat([p.softmax(1) for p in scores.split(seen.tolist(), 1)], 1)
        # The function that launches it misspells one of its parameters.
        kernel = function(path + "token_attention_nopad_reduceV", "_fwd_kernel_token_att2")
        strides = [n for x in (batch.tokens, shares, batch.v, o) for n in x.stride()]
        kernel[(2, HEADS)](
            shares,
            batch.v,
            o,
            *where[:-1],
            *strides,
            kv_group_num=2,
            sliding_window=window,
            BLOCK_DMODEL=WIDTH,
            BLOCK_N=128,
        )
    close(o, batch.decoded(q, window=window))


# ---- one query per request, keys in blocks that are put together afterwards


@pytest.mark.parametrize("module", ["llama:", "llama:gqa_", "phi3:"])
def test_decoding_in_blocks(module: str) -> None:
    model, kind = module.split(":")
    path = f"{model}.triton_kernel.{kind}flash_decoding_stage"
    batch, q = Batch(), randn(2, HEADS, WIDTH, seed=2)
    parts = torch.empty(2, HEADS, 3, WIDTH)
    weights = torch.empty(2, HEADS, 3)
    where = (batch.tokens, batch.requests, batch.lengths, max(LENGTHS))
    function(path + "1", "flash_decode_stage1")(q, batch.k, batch.v, *where, parts, weights, 16)
    o = torch.empty_like(q)
    function(path + "2", "flash_decode_stage2")(parts, weights, batch.lengths, o, 16)
    close(o, batch.decoded(q))


def test_decoding_of_groups() -> None:
    forward = function(
        "llama.triton_kernel.gqa_decode_flashattention_nopad", "gqa_decode_attention_fwd"
    )
    batch, q = Batch(), randn(2, HEADS, WIDTH, seed=2)
    o = torch.empty_like(q)
    forward(q, batch.k, batch.v, o, batch.tokens, batch.requests, batch.lengths)
    close(o, batch.decoded(q))


def state(batch: Batch) -> SimpleNamespace:
    return SimpleNamespace(
        batch_size=2,
        max_len_in_batch=max(LENGTHS),
        total_token_num=sum(LENGTHS),
        req_manager=SimpleNamespace(req_to_token_indexs=batch.tokens),
        b_req_idx=batch.requests,
        b_seq_len=batch.lengths,
    )


STAGES = {
    "stage1_num_warps": 4,
    "stage1_num_stages": 2,
    "stage2_num_warps": 4,
    "stage2_num_stages": 1,
}


def test_decoding_by_virtual_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("lightllm.models.llama.triton_kernel.gqa_flash_decoding_vsm")
    monkeypatch.setattr(module, "emstimate_stage1_vsm", lambda *_, **__: 3)
    batch, q = Batch(), randn(2, HEADS, WIDTH, seed=2)
    config = {"BLOCK_N": 16, "BLOCK_Q_HEAD": 16, **STAGES}
    got = module.gqa_token_decode_attention_flash_decoding_vsm(
        q, batch.k, batch.v, state(batch), **config
    )
    # As it is written: a block's sum over values is not divided by its share of the softmax.
    wanted = []
    for b in range(2):
        s = (q[b].double()[:, None] @ batch.of(batch.k, b).mT)[:, 0] * WIDTH**-0.5
        blocks = list(zip(s.split(16, 1), batch.of(batch.v, b).split(16, 1), strict=True))
        share = torch.stack([x.logsumexp(1) for x, _ in blocks]).softmax(0)
        sums = [((x - x.amax(1, keepdim=True)).exp()[:, None] @ v)[:, 0] for x, v in blocks]
        wanted.append((share[..., None] * torch.stack(sums)).sum(0))
    close(got, torch.stack(wanted))


# ---- DeepSeek: one head of keys in two parts, the first of which is the values too


def latent(width: int = 64, rotary: int = 16) -> tuple[Batch, torch.Tensor, torch.Tensor]:
    batch = Batch(1, width + rotary)
    return batch, batch.k[..., :width].contiguous(), batch.k[..., width:].contiguous()


SCALE = 0.11


def latent_reference(batch: Batch, q: torch.Tensor, width: int, new: tuple[int, ...]) -> Any:
    out, at = [], 0
    for b in range(2):
        k = batch.of(batch.k, b)
        part = q[at : at + new[b]].transpose(0, 1)
        got = attention(part, k, k[..., :width], scale=SCALE, causal=True)
        out.append(got.transpose(0, 1))
        at += new[b]
    return torch.cat(out)


@pytest.mark.parametrize("kind", ["cached", "float8"])
def test_latent_prefill(kind: str) -> None:
    batch, nope, rope = latent()
    q = randn(sum(NEW), HEADS, 80, seed=2)
    q_nope, q_rope = q[..., :64].contiguous(), q[..., 64:].contiguous()
    o, starts = torch.empty_like(q_nope), torch.tensor([0, NEW[0]], dtype=torch.int32)
    tail = (batch.requests, starts, batch.lengths, batch.cached, max(NEW), batch.tokens, SCALE)
    path = "deepseek2.triton_kernel.context_flashattention_nopad"
    if kind == "cached":
        function(path, "context_attention_fwd")(q_nope, q_rope, nope, rope, o, *tail)
    else:
        scale = randn(64, 1, 1, seed=9).abs() + 0.5
        nope, rope = nope.to(torch.float8_e4m3fn), rope.to(torch.float8_e4m3fn)
        batch.k = torch.cat((nope.float(), rope.float()), -1) * scale
        function(path + "_fp8", "context_attention_fwd_fp8")(
            q_nope, q_rope, nope, rope, scale, o, *tail
        )
    close(o, latent_reference(batch, q, 64, NEW), factor=1 if kind == "cached" else 200)


def test_latent_prefill_without_cache() -> None:
    forward = function(
        "deepseek2.triton_kernel.context_flashattention_nopad",
        "context_attention_fwd_no_prompt_cache",
    )
    q, k = randn(sum(LENGTHS), HEADS, 80, seed=2), randn(sum(LENGTHS), 1, 80)
    starts = torch.tensor([0, LENGTHS[0]], dtype=torch.int32)
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    parts = [x.contiguous() for y in (q, k) for x in (y[..., :64], y[..., 64:])]
    o = torch.empty_like(parts[0])
    forward(*parts, o, starts, lengths, max(LENGTHS), SCALE)
    out = []
    for a, b in zip(q.split(LENGTHS), k.split(LENGTHS), strict=True):
        keys = b.transpose(0, 1).expand(HEADS, -1, -1)
        got = attention(a.transpose(0, 1), keys, keys[..., :64], scale=SCALE, causal=True)
        out.append(got.transpose(0, 1))
    close(o, torch.cat(out))


def test_latent_prefill_with_values() -> None:
    forward = function(
        "deepseek2.triton_kernel.context_flashattention_nopad_with_v",
        "context_attention_fwd_with_v",
    )
    q = randn(sum(NEW), HEADS, 80, seed=2)
    k, rope = randn(sum(LENGTHS), HEADS, 64), randn(sum(LENGTHS), 1, 16)
    v, o = randn(sum(LENGTHS), HEADS, 64, seed=4), torch.empty(sum(NEW), HEADS, 64)
    starts = [torch.tensor([0, n[0]], dtype=torch.int32) for n in (NEW, LENGTHS)]
    lengths, cached = (torch.tensor(x, dtype=torch.int32) for x in (LENGTHS, CACHED))
    q_nope, q_rope = q[..., :64].contiguous(), q[..., 64:].contiguous()
    forward(q_nope, q_rope, k, rope, v, o, *starts, lengths, cached, max(NEW), SCALE)
    out = []
    keys = torch.cat((k, rope.expand(-1, HEADS, -1)), -1)
    for a, b, c in zip(q.split(NEW), keys.split(LENGTHS), v.split(LENGTHS), strict=True):
        parts = (x.transpose(0, 1) for x in (a, b, c))
        out.append(attention(*parts, scale=SCALE, causal=True).transpose(0, 1))
    close(o, torch.cat(out))


@pytest.mark.parametrize("kind", ["", "_fp8"])
def test_latent_decoding(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "lightllm.models.deepseek2.triton_kernel.gqa_flash_decoding"
    stage = import_module(f"{path}_stage1{kind}")
    monkeypatch.setattr(stage, "calcu_kernel_best_vsm_count", lambda *_, **__: 3)
    batch, nope, rope = latent()
    q = randn(2, HEADS, 80, seed=2)
    scale = []
    if kind:
        scale = [randn(64, 1, 1, seed=9).abs() + 0.5]
        nope, rope = nope.to(torch.float8_e4m3fn), rope.to(torch.float8_e4m3fn)
        batch.k = torch.cat((nope.float(), rope.float()), -1) * scale[0]
    forward = getattr(
        import_module(path + kind), f"gqa_token_decode_attention_flash_decoding{kind}"
    )
    config: dict[str, Any] = {"BLOCK_N": 16, "BLOCK_Q_HEAD": 16, **STAGES}
    config["alloc_tensor_func"] = lambda shape, dtype, device: torch.empty(shape, dtype=dtype)
    q_nope, q_rope = q[..., :64].contiguous(), q[..., 64:].contiguous()
    got = forward(
        q_nope, q_rope, nope, rope, *scale, state(batch), HEADS, 64, 16, 64, SCALE, **config
    )
    close(got, latent_reference(batch, q, 64, (1, 1)), factor=200 if kind else 1)
