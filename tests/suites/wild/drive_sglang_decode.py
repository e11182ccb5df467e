"""SGLang: attention of new tokens to keys of the fourth DeepSeek, chosen one by one."""

from __future__ import annotations

import pytest
import torch
from reference import close, randn, same
from sglang_parts import drawn, function, ints, whole_pages

NSA = "attention.nsa_triton_decode.triton_mla_kernels_decode_fused"
SM120 = "attention.flash_mla_sm120"
SCALE = 0.05


def pages_of(count: int, page: int, seed: int = 0) -> torch.Tensor:
    """Pages as they are stored, with a few bytes of padding."""
    size = -(-page * 584 // 576) * 576
    buffer = torch.zeros(count, size, dtype=torch.uint8)
    tokens = buffer[:, : page * 576].view(count, page, 576)
    low = (4 * randn(count, page, 448, seed=seed)).to(torch.float8_e4m3fn)
    tokens[..., :448] = low.view(torch.uint8)
    tokens[..., 448:] = randn(count, page, 64, seed=seed + 1).bfloat16().view(torch.uint8)
    scales = buffer[:, page * 576 : page * 584].view(count, page, 8)
    scales[...] = drawn(3, count, page, 8, seed=seed, dtype=torch.uint8) + 124
    return buffer


def attended(
    q: torch.Tensor, keys: torch.Tensor, sink: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of (heads, width) to (tokens, width), which are the values too; and what the scores sum to.
    A sink is one more score, without a value; it is not in the sum."""
    scores = q.double() @ keys.T * SCALE
    ends = scores if sink is None else torch.cat((scores, sink.double()[:, None]), 1)
    weights = torch.softmax(ends, 1)[:, : len(keys)]
    return weights @ keys, scores.logsumexp(1)


class Scope:
    """A cache, and tokens of it for each query: some of them are none, and lists end early."""

    def __init__(self, queries: int, most: int, page: int, seed: int) -> None:
        self.buffer, self.page = pages_of(3, page, seed), page
        self.chosen = drawn(3 * page, queries, most, seed=seed, dtype=torch.int32)
        self.chosen[drawn(5, queries, most, seed=seed + 1) == 0] = -1
        self.keys = whole_pages(self.buffer, page)

    def of(self, query: int, length: int | None) -> torch.Tensor:
        listed = self.chosen[query, :length].long()
        return self.keys[listed[listed >= 0]]


def check(
    got: torch.Tensor,
    total: torch.Tensor,
    q: torch.Tensor,
    keys: list[torch.Tensor],
    sink: torch.Tensor | None,
) -> None:
    for t, some in enumerate(keys):
        if len(some) == 0:
            assert (got[t] == 0).all() and (total[t] == torch.inf).all()
            continue
        wanted, score = attended(q[t], some, sink)
        close(got[t], wanted)
        close(total[t], score)


@pytest.mark.parametrize("sunk, ends", [(False, False), (True, True)])
@pytest.mark.parametrize("split", [False, True])
def test_one_cache(sunk: bool, ends: bool, split: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # Lists are cut into four where they are long.
    monkeypatch.setattr(f"sglang.kernels.ops.{NSA}.SPLITK_TOPK_THRESHOLD", 64 if split else 999)
    heads, lengths = 20, [150, 33, 0]  # of two queries each
    q, sink = randn(6, heads, 512, dtype=torch.bfloat16), randn(heads) if sunk else None
    scope = Scope(6, 150, 32, 0)
    scope.chosen[1] = -1
    got, total = function(NSA, "fused_gather_attn_decode_dsv4")(
        q, scope.buffer, scope.chosen, 32, SCALE, ints(*lengths) if ends else None, sink, 2
    )
    keys = [scope.of(t, lengths[t // 2] if ends else None) for t in range(6)]
    check(got, total, q, keys, sink)


@pytest.mark.parametrize("queries, more", [(4, 100), (2, 1000), (6, 1000), (10, 1000)])
@pytest.mark.parametrize("sunk, ends", [(False, False), (True, True)])
def test_two_caches(queries: int, more: int, sunk: bool, ends: bool) -> None:
    """How many queries and tokens there are decides how the lists are cut."""
    heads, first, second = 5, [70, 3, 0, 64, 9], [99, 900, 0, 0, 1000]
    q, sink = randn(queries, heads, 512, dtype=torch.bfloat16), randn(heads) if sunk else None
    one, two = Scope(queries, 70, 32, 0), Scope(queries, more, 64, 5)
    one.chosen[1] = two.chosen[1] = -1
    a, b = (ints(*x[: queries // 2]) if ends else None for x in (first, second))
    results = []
    for name in ("", "_low_overhead"):
        results.append(
            function(NSA, f"fused_gather_attn_decode_dsv4_dual_scope{name}")(
                q, one.buffer, one.chosen, 32, two.buffer, two.chosen, 64, SCALE, a, b, sink, 2
            )
        )
    keys = [
        torch.cat(
            (
                one.of(t, first[t // 2] if ends else None),
                two.of(t, second[t // 2] if ends else None),
            )
        )
        for t in range(queries)
    ]
    for got, total in results:
        check(got, total, q, keys, sink)


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("both", [False, True])
def test_without_tensor_cores(ends: bool, both: bool) -> None:
    heads, first, second = 3, [40, 7, 0], [100, 0, 0]
    q, sink = randn(3, 1, heads, 512, dtype=torch.bfloat16), randn(heads)
    one, two = Scope(3, 40, 32, 0), Scope(3, 100, 64, 5)
    views = [
        x.buffer.view(torch.float8_e4m3fn).as_strided(
            (3, x.page, 1, 584), (x.buffer.stride(0), 584, 584, 1)
        )
        for x in (one, two)
    ]
    a, b = (ints(*x) if ends else None for x in (first, second))
    got, total = function(f"{SM120}_triton", "flash_mla_sparse_decode_triton")(
        q, views[0], one.chosen[:, None], a, sink, 512, SCALE,
        *((views[1], two.chosen[:, None], b) if both else ()),
    )  # fmt: skip
    for t in range(3):
        keys = one.of(t, first[t] if ends else None)
        if both:
            keys = torch.cat((keys, two.of(t, second[t] if ends else None)))
        wanted, score = attended(q[t, 0], keys, sink)
        close(got[t, 0], wanted)
        close(total[t, :, 0], torch.logaddexp(score, sink.double()))


def test_smaller_pages() -> None:
    """Of 256 tokens into four of 64, those only that someone needs."""

    def split(buffer: torch.Tensor, *needed: torch.Tensor) -> torch.Tensor:
        pages = function(SM120, "_split_kv_pages_to_64")(buffer, 256, *needed)
        return whole_pages(pages.as_strided((12, pages.stride(0)), (pages.stride(0), 1)), 64)

    buffers = [pages_of(3, 256, seed) for seed in range(2)]
    first, wanted = (whole_pages(buffer, 256) for buffer in buffers)
    same(split(buffers[0]), first)
    wanted[256:512] = first[256:512]  # nobody needs the page in the middle
    same(split(buffers[1], ints(-1, 700, 513, -1, 3).view(1, 5)), wanted)
