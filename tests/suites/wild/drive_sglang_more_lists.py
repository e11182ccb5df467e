"""SGLang: lengths and pages for sparse attention, and keys on their way into caches."""

from __future__ import annotations

import pytest
import torch
from reference import close, randn, rms_norm, rotated, same
from sglang_parts import (
    drawn,
    function,
    ints,
    longs,
    mixed,
    narrow_parts,
    nearest,
    read_pages,
    sums,
)

DSA = "attention.dsa_metadata"
TABLE = mixed(5, 400).int()
REQUESTS, LENGTHS = longs(3, 0, 4), (4, 300, 130)
TOP, LONGEST, PAGE = 64, 384, 16


class Lists:
    """What is filled in: lengths and their sums, and one page or slot for each token or page."""

    def __init__(self, rows: int, wide: bool) -> None:
        def blank(*shape: int) -> torch.Tensor:
            return torch.full(shape, -7, dtype=torch.int32)

        self.lengths, self.sums = blank(3), blank(4)
        self.each, self.few, self.few_sums = blank(rows), blank(rows), blank(rows + 1)
        self.slots, self.pages = (
            blank(rows, LONGEST) if wide else None,
            blank(rows, LONGEST // PAGE),
        )

    def check(self, lengths: list[int], each: list[int], requests: list[int]) -> None:
        """Of each query the length that it sees; of its request the pages up to its end."""
        assert self.lengths.tolist() == lengths
        same(self.sums, sums(tuple(lengths)))
        few = [min(n, TOP) for n in each]
        assert self.few.tolist() == few
        same(self.few_sums, sums(tuple(few)))
        last = dict(zip(REQUESTS.tolist(), lengths, strict=True))
        for k, request in enumerate(requests):
            tokens = TABLE[request, : min(last[request], LONGEST)]
            if self.slots is not None:
                same(self.slots[k, : len(tokens)], tokens)
            pages = tokens[::PAGE] // PAGE
            same(self.pages[k, : len(pages)], pages)


@pytest.mark.parametrize("wide", [False, True])
def test_lists_for_new_tokens(wide: bool) -> None:
    x = Lists(3, wide)
    function(DSA, "fused_dsa_decode_metadata")(
        ints(*LENGTHS), REQUESTS, TABLE, x.lengths, x.sums, x.slots, x.few, x.few_sums, x.pages,
        3, LONGEST, TOP, PAGE,
    )  # fmt: skip
    x.check(list(LENGTHS), list(LENGTHS), REQUESTS.tolist())


@pytest.mark.parametrize("wide", [False, True])
def test_lists_for_drafts(wide: bool) -> None:
    x, ends = Lists(6, wide), torch.full((3, 2), -7, dtype=torch.int32)
    function(DSA, "fused_dsa_target_verify_metadata")(
        ints(*LENGTHS), REQUESTS, TABLE, x.lengths, x.sums, x.slots, x.each, x.few, x.few_sums,
        x.pages, 3, LONGEST, TOP, PAGE, 2, ends,
    )  # fmt: skip
    each = [n + k for n in LENGTHS for k in (1, 2)]
    assert x.each.tolist() == each
    x.check([n + 2 for n in LENGTHS], each, REQUESTS.repeat_interleave(2).tolist())
    same(ends, (ints(*LENGTHS) + 2)[:, None].expand(3, 2))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("new", [(2, 2, 2), (3, 0, 1)])
def test_lists_for_accepted_tokens(wide: bool, new: tuple[int, ...]) -> None:
    x = Lists(sum(new), wide)
    function(DSA, "fused_dsa_draft_extend_metadata")(
        ints(*LENGTHS), ints(*new), REQUESTS, TABLE, x.lengths, x.sums, x.slots, x.each, x.few,
        x.few_sums, x.pages, 3, sum(new), LONGEST, TOP, PAGE, 4, 12, new[0] == new[1],
    )  # fmt: skip
    each = [n - m + k + 1 for n, m in zip(LENGTHS, new, strict=True) for k in range(m)]
    assert x.each.tolist() == each
    requests = [r for r, m in zip(REQUESTS.tolist(), new, strict=True) for _ in range(m)]
    x.check(list(LENGTHS), each, requests)


def test_old_and_new_slots() -> None:
    old, new = (5, 0, 200), (3, 130, 2)
    before, after = drawn(999, sum(old)), drawn(999, sum(new), seed=1)
    starts, slots, lengths = function("attention.extend_attention", "build_unified_kv_indices")(
        sums(old), before, sums(new)[:3], ints(*new), after, 3
    )
    assert lengths.tolist() == list(old)
    same(starts, sums(tuple(a + b for a, b in zip(old, new, strict=True))))
    parts = zip(before.split(old), after.split(new), strict=True)
    same(slots, torch.cat([x for pair in parts for x in pair]))


@pytest.mark.parametrize("tokens", [2, 10, 20])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_packed_keys(tokens: int, dtype: torch.dtype) -> None:
    whole = 40 * randn(tokens, 3, 128, dtype=torch.bfloat16)
    low, v = whole.split((64, 64), 2)  # views
    high = randn(tokens, 1, 32, dtype=torch.bfloat16)
    path = "attention.mla_kv_pack_quantize_fp8"
    keys, values = function(path, "mla_kv_pack_quantize_fp8")(
        low, high, v, 0.5, 2.0, fp8_dtype=dtype
    )
    wanted = torch.cat((low, high.expand(tokens, 3, 32)), 2).float() / 2
    same(keys.view(torch.uint8), wanted.to(dtype).view(torch.uint8))
    same(values.view(torch.uint8), (v.float() * 2).to(dtype).view(torch.uint8))


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("kept", ["", "narrow", "wide"])
def test_turned_queries_and_keys(parts: int, kept: str) -> None:
    """Queries may be sums that are not yet made; keys are changed in place, and stored."""
    tokens, heads = 6, 2
    q = randn(parts, tokens, heads * 512, dtype=torch.bfloat16)
    kv, before = (randn(tokens, 512, dtype=torch.bfloat16, seed=1) for _ in range(2))
    weights, angles = [randn(512, seed=s) for s in range(2)], randn(40, 32)
    at, slots = longs(3, 39, 0, 7, 7, 20), ints(0, 15, 16, 40, 63, 33)
    cache = None
    if kept:
        shape = (64, 512) if kept == "wide" else (4, PAGE * 584)
        cache = torch.zeros(shape, dtype=torch.bfloat16 if kept == "wide" else torch.uint8)
    got = function("attention.fused_qk_norm_rope_store", "fused_qk_norm_rope_swa_store")(
        q if parts > 1 else q[0], kv, *weights, 1e-5, 1e-6, 64, angles.cos(), angles.sin(), at,
        cache, slots if kept else None, PAGE, bf16_store=kept == "wide",
    )  # fmt: skip

    def turned(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        return torch.cat((x[..., :448], rotated(x[..., 448:], turn.cos(), turn.sin(), True)), -1)

    turn = angles[at].double()
    whole = q.double().sum(0).unflatten(1, (heads, 512))
    close(got, turned(rms_norm(whole, weights[0], 1e-5), turn[:, None]))
    close(kv, turned(rms_norm(before, weights[1], 1e-6), turn))
    if kept == "wide":
        assert cache is not None
        same(cache[slots.long()], kv)
    elif kept == "narrow":
        assert cache is not None
        low, high, scales = (x[slots.long()] for x in read_pages(cache, PAGE))
        wanted, exponents = narrow_parts(kv)
        nearest(low, wanted)
        same(scales, exponents)
        same(high, kv[:, 448:])
