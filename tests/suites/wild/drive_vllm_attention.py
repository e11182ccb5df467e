"""vLLM: attention over caches in pages, and what stores and merges."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from drive_vllm import function, ints
from drive_vllm_lora import EIGHT
from reference import attention, close, randn, same

OPS = "v1.attention.ops."
HEADS, GROUPS, WIDTH, PAGE = 4, 2, 32, 16
QUERIES, KEYS = (5, 1, 3), (21, 40, 3)  # of three requests
STARTS = ints(0, 5, 6, 9)
TABLE = torch.tensor([[3, 1, 0], [2, 5, 4], [6, 0, 0]], dtype=torch.int32)
ONE = torch.tensor(1.0)


def caches(width: int = WIDTH) -> tuple[torch.Tensor, torch.Tensor]:
    """(page, token, head, width)"""
    return randn(7, PAGE, GROUPS, WIDTH), randn(7, PAGE, GROUPS, width, seed=1)


def rows(cache: torch.Tensor, request: int, count: int) -> torch.Tensor:
    """What is stored for a request: (token, head, width)."""
    return cache[TABLE[request].long()].flatten(0, 1)[:count]


def attended(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    window: int | None = None,
    sinks: torch.Tensor | None = None,
    slopes: torch.Tensor | None = None,
    cap: float = 0.0,
    queries: tuple[int, ...] = QUERIES,
) -> torch.Tensor:
    """Causal attention of each request in float64; a sink takes weight and gives nothing."""
    out, at = [], 0
    for request, (n, m) in enumerate(zip(queries, KEYS, strict=True)):
        each = HEADS // GROUPS
        k = rows(keys, request, m).double().repeat_interleave(each, 1).transpose(0, 1)
        v = rows(values, request, m).double().repeat_interleave(each, 1).transpose(0, 1)
        s = q[at : at + n].double().transpose(0, 1) @ k.transpose(1, 2) * WIDTH**-0.5
        if cap:
            s = cap * (s / cap).tanh()
        place = torch.arange(m - n, m)[:, None] - torch.arange(m)
        if slopes is not None:
            s = s - slopes.double()[:, None, None] * place
        hidden = place < 0
        if window is not None:
            hidden |= place >= window
        s = s.masked_fill(hidden, -torch.inf)
        if sinks is not None:
            s = torch.cat((s, sinks.double()[:, None, None].expand(-1, n, 1)), -1)
        out.append((s.softmax(-1)[..., :m] @ v).transpose(0, 1))
        at += n
    return torch.cat(out)


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 6},
    "sinks": {"sinks": randn(HEADS)},
    "slopes": {"slopes": torch.tensor([0.5, 0.25, 0.125, 0.0625])},
    "cap": {"cap": 2.0},
}


@pytest.mark.parametrize("kind", KINDS)
def test_attention_of_all_requests(kind: str) -> None:
    more, (k, v), q = KINDS[kind], caches(), randn(9, HEADS, WIDTH)
    out = torch.zeros_like(q)
    function(OPS + "triton_unified_attention", "unified_attention")(
        q, k, v, out, STARTS, 5, ints(*KEYS), 40, WIDTH**-0.5, True,
        (more.get("window", 0) - 1, 0), TABLE, more.get("cap", 0), None, None, None,
        sinks=more.get("sinks"), alibi_slopes=more.get("slopes"),
    )  # fmt: skip
    close(out, attended(q, k, v, **more), 10)


def segments(width: int = WIDTH) -> dict:
    return {
        "seq_threshold_3D": 8,
        "num_par_softmax_segments": 4,
        "softmax_segm_output": torch.zeros(3, HEADS, 4, width),
        "softmax_segm_max": torch.zeros(3, HEADS, 4),
        "softmax_segm_expsum": torch.zeros(3, HEADS, 4),
    }


def test_attention_in_segments() -> None:
    (k, v), q = caches(), randn(3, HEADS, WIDTH)
    out = torch.zeros_like(q)
    function(OPS + "triton_unified_attention", "unified_attention")(
        q, k, v, out, ints(0, 1, 2, 3), 1, ints(*KEYS), 40, WIDTH**-0.5, True, (-1, -1), TABLE, 0,
        None, None, None, **segments(),
    )  # fmt: skip
    close(out, attended(q, k, v, queries=(1, 1, 1)), 10)


@pytest.mark.parametrize("parts", [False, True])
def test_attention_with_other_values(parts: bool) -> None:
    k, v = caches(16)
    queries = (1, 1, 1) if parts else QUERIES
    q, out = randn(sum(queries), HEADS, WIDTH), torch.zeros(sum(queries), HEADS, 16)
    function(OPS + "triton_unified_attention_diffkv", "unified_attention_diffkv")(
        q, k, v, out, ints(0, 1, 2, 3) if parts else STARTS, ints(*KEYS), WIDTH**-0.5, True,
        (-1, -1), TABLE, 0, 1 if parts else 5, **(segments(16) if parts else {}),
    )  # fmt: skip
    close(out, attended(q, k, v, queries=queries), 10)


@pytest.mark.parametrize("kind", ["plain", "window", "slopes", "sinks"])
def test_attention_of_prompts_and_of_single_tokens(kind: str) -> None:
    more, (k, v), q = KINDS[kind], caches(), randn(9, HEADS, WIDTH)
    new = [torch.cat([rows(c, r, m)[m - n :] for r, (n, m) in enumerate(zip(QUERIES, KEYS,
           strict=True))]) for c in (k, v)]  # fmt: skip
    stored_k = k.view(7, PAGE, GROUPS, WIDTH // 8, 8).permute(0, 2, 3, 1, 4).contiguous()
    stored_v = v.permute(0, 2, 3, 1).contiguous()
    out = torch.zeros_like(q)
    function(OPS + "chunked_prefill_paged_decode", "chunked_prefill_paged_decode")(
        q, *new, out, "auto", stored_k, stored_v, TABLE, STARTS, ints(*KEYS), 40, 5, ONE, ONE,
        alibi_slopes=more.get("slopes"), sliding_window=more.get("window"),
        sinks=more.get("sinks"),
    )  # fmt: skip
    close(out, attended(q, k, v, **more), 10)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_without_a_cache(causal: bool) -> None:
    q, k, v = randn(9, HEADS, WIDTH), randn(9, GROUPS, WIDTH), randn(9, GROUPS, WIDTH, seed=1)
    out = torch.zeros_like(q)
    function(OPS + "triton_prefill_attention", "context_attention_fwd")(
        q, k, v, out, STARTS[:3], ints(*QUERIES), 5, is_causal=causal
    )
    wanted = []
    for a, b in pairwise(STARTS.tolist()):
        x, y, z = (t[a:b].transpose(0, 1) for t in (q, k, v))
        y, z = y.repeat_interleave(2, 0), z.repeat_interleave(2, 0)
        wanted.append(attention(x, y, z, causal=causal).transpose(0, 1))
    close(out, torch.cat(wanted), 10)


@pytest.mark.parametrize("groups", [GROUPS, HEADS])
def test_attention_of_single_tokens(groups: int) -> None:
    k, v = randn(7, PAGE, groups, WIDTH), randn(7, PAGE, groups, WIDTH, seed=1)
    q, out, lse = randn(3, HEADS, WIDTH), torch.zeros(3, HEADS, WIDTH), torch.zeros(3, HEADS)
    function(OPS + "triton_decode_attention", "decode_attention_fwd")(
        q, k, v, out, lse, TABLE, ints(*KEYS), torch.zeros(3, HEADS, 4, WIDTH + 1), 4,
        WIDTH**-0.5, PAGE,
    )  # fmt: skip
    each = HEADS // groups
    for request, m in enumerate(KEYS):
        keys = rows(k, request, m).double().repeat_interleave(each, 1)
        values = rows(v, request, m).double().repeat_interleave(each, 1)
        s = torch.einsum("hd,mhd->hm", q[request].double(), keys) * WIDTH**-0.5
        close(out[request], torch.einsum("hm,mhd->hd", s.softmax(-1), values), 10)
        close(lse[request], s.logsumexp(-1), 10)


# ---- partial results


def test_two_partial_results() -> None:
    a, b, x, y = randn(5, 3, 24), randn(5, 3, 24, seed=1), randn(3, 5), randn(3, 5, seed=1)
    x[1, 2] = -torch.inf  # nothing was before it
    out, lse = torch.zeros(5, 3, 24), torch.zeros(3, 5)
    function(OPS + "triton_merge_attn_states", "merge_attn_states")(out, a, x, b, y, lse, 4)
    both = torch.stack((x, y)).double()
    both[0, :, 4] = -torch.inf  # the last token has no context
    share = both.softmax(0).transpose(1, 2)[..., None]
    close(out, share[0] * a + share[1] * b)
    close(lse, both.logsumexp(0))


@pytest.mark.parametrize("natural", [False, True])
def test_partial_results_of_ranks(natural: bool) -> None:
    path, out, sums = OPS + "dcp", randn(5, 4, 16), randn(2, 5, 4)
    got, lse = function(path, "correct_attn_out")(out.clone(), sums, 1, None, natural)
    base = 1.0 if natural else torch.log(torch.tensor(2.0, dtype=torch.float64))
    whole = (sums.double() * base).logsumexp(0) / base
    close(lse, whole)
    close(got, out.double() * ((sums[1].double() - whole) * base).exp()[..., None])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_partial_results_in_one_message(dtype: torch.dtype) -> None:
    path = OPS + "dcp"
    out, lse = randn(5, 4, 16, dtype=dtype), randn(5, 4)
    more = 1 if dtype == torch.float32 else 2
    sent = torch.zeros(2, 5, 2, 16 + more, dtype=dtype)
    function(path, "_dcp_a2a_pack_send")(out, lse.clone(), sent, 2, 2, 16, more)
    for rank in range(2):
        mine = slice(2 * rank, 2 * rank + 2)
        same(sent[rank, ..., :16], out[:, mine])
        same(sent[rank, ..., 16:].contiguous().view(torch.float32)[..., 0], lse[:, mine])
    got, sums = function(path, "_dcp_a2a_unpack_combine")(sent, 16, more, True, True)
    parts = torch.stack((lse[:, :2], lse[:, 2:])).double()
    share = parts.softmax(0)[..., None]
    close(got, share[0] * out[:, :2] + share[1] * out[:, 2:])
    close(sums, parts.logsumexp(0))


def test_rows_of_requests() -> None:
    path, x, lengths = OPS + "common", randn(9, 3, 10), ints(*QUERIES)
    packed = function(path, "pack_seq_triton")(x, lengths, 0.0)
    wanted = torch.zeros(3, 5, 3, 10)
    for request, (n, at) in enumerate(zip(QUERIES, STARTS.tolist(), strict=False)):
        wanted[request, :n] = x[at : at + n]
    same(packed, wanted)
    same(function(path, "unpack_seq_triton")(packed, lengths), x)


# ---- storing

SLOTS = torch.tensor([3, 40, -1, 17, 111])


def placed(cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    out = cache.clone()
    for row, slot in zip(new, SLOTS.tolist(), strict=True):
        if slot >= 0:
            out[slot // PAGE, slot % PAGE] = row
    return out


@pytest.mark.parametrize("major", ["token", "head"])
def test_new_tokens_are_stored(major: str) -> None:
    k, v = caches()
    a, b = randn(5, GROUPS, WIDTH, seed=2), randn(5, GROUPS, WIDTH, seed=3)
    wanted = placed(k, a), placed(v, b)
    forward = function(OPS + "triton_reshape_and_cache_flash", "triton_reshape_and_cache_flash")
    if major == "head":
        k = k.view(7, PAGE, GROUPS, WIDTH // 8, 8).permute(0, 2, 3, 1, 4).contiguous()
        v = v.permute(0, 2, 3, 1).contiguous()
    forward(a, b, k, v, SLOTS, "auto", ONE, ONE)
    if major == "head":
        k, v = k.permute(0, 3, 1, 2, 4).flatten(3), v.permute(0, 3, 1, 2)
    same(k, wanted[0])
    same(v, wanted[1])


def test_tokens_and_values_side_by_side() -> None:
    stored = randn(7, PAGE, GROUPS, WIDTH + 16)
    a, b = randn(5, GROUPS, WIDTH, seed=2), randn(5, GROUPS, 16, seed=3)
    wanted = placed(stored, torch.cat((a, b), -1))
    function(OPS + "triton_reshape_and_cache_flash", "triton_reshape_and_cache_flash_diffkv")(
        a, b, stored, SLOTS, "auto", ONE, ONE
    )
    same(stored, wanted)


def test_new_tokens_in_8_bits() -> None:
    mode = function("v1.kv_cache_interface", "KVQuantMode").INT8_PER_TOKEN_HEAD
    k, v = (torch.zeros(7, PAGE, GROUPS, WIDTH, dtype=torch.int8) for _ in range(2))
    by, on = torch.zeros(7, PAGE, GROUPS), torch.zeros(7, PAGE, GROUPS)
    a, b = randn(5, GROUPS, WIDTH, seed=2), randn(5, GROUPS, WIDTH, seed=3)
    path = OPS + "triton_reshape_and_cache_flash"
    function(path, "triton_reshape_and_cache_flash_per_token_head_quant")(
        a, b, k, v, by, on, SLOTS, mode
    )
    for stored, scale, x in ((k, by, a), (v, on, b)):
        wanted = placed(torch.zeros(7, PAGE, GROUPS), x.abs().amax(-1) / 127)
        close(scale, wanted)
        exact = placed(torch.zeros(7, PAGE, GROUPS, WIDTH), x).double()
        off = (stored.double() * scale.double()[..., None] - exact).abs()
        assert (off <= 0.51 * wanted.double()[..., None] + 1e-6).all()


def test_scores_of_an_index() -> None:
    q, k = randn(5, 16, 32).to(EIGHT), randn(90, 32).to(EIGHT)
    scale, weights = torch.rand(90), randn(5, 16)
    first, last = ints(0, 3, 10, 40, 89), ints(90, 20, 10, 90, 90)
    got = function(OPS + "triton_fp8_mqa_logits", "fp8_mqa_logits_gfx942")(
        q, k, scale, weights, first, last
    )
    s = torch.einsum("mhd,nd->mhn", q.double(), k.double()) * scale.double()
    wanted = (s.clamp(min=0) * weights.double()[..., None]).sum(1)
    place = torch.arange(90)
    seen = (place >= first[:, None]) & (place < last[:, None])
    close(got, wanted.masked_fill(~seen, -torch.inf), 100)
