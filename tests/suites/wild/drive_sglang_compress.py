"""SGLang: keys of the fourth DeepSeek, of which several tokens share one, and narrow indexers."""

from __future__ import annotations

import pytest
import torch
from reference import close, hadamard, randn, rms_norm, rotated, same
from sglang_parts import function, ints, longs, mixed

COMPRESS = "attention.dsv4.fused_compress_triton"
PLANS = "attention.dsv4.compress_old"
WIDE = 48


def pooled(rows: torch.Tensor, bias: torch.Tensor, at: int, ratio: int) -> torch.Tensor:
    """The tokens before and at a place, weighted by the softmax of their scores. Blocks of four
    overlap: a token has a value and a score for its own block, and others for the next one."""
    window = 2 * ratio if ratio == 4 else ratio
    parts = rows.double().unflatten(1, (-1, bias.shape[1]))
    values, scores = [], []
    for slot in range(window):
        token = at - window + 1 + slot
        if token < 0:
            continue
        late = int(ratio == 4 and slot >= ratio)
        values.append(parts[token, late])
        scores.append(parts[token, (2 if ratio == 4 else 1) + late] + bias[slot].double())
    weights = torch.softmax(torch.stack(scores), 0)
    return (weights * torch.stack(values)).sum(0)


class Stored:
    """Requests with their tokens, of which the states are in pages of as many as a block has."""

    def __init__(self, lengths: tuple[int, ...], ratio: int) -> None:
        self.ratio, self.lengths = ratio, lengths
        wide = (4 if ratio == 4 else 2) * WIDE
        self.rows = [randn(n, wide, seed=s).bfloat16() for s, n in enumerate(lengths)]
        self.bias = randn((2 if ratio == 4 else 1) * ratio, WIDE)
        self.pages = mixed(len(lengths), -(-max(lengths) // ratio))
        self.buffer = randn(self.pages.numel() + 1, ratio, wide)

    def page(self, request: int, token: int) -> int:
        return int(self.pages[request, max(token, 0) // self.ratio])

    def keep(self, request: int, tokens: range, buffer: torch.Tensor) -> None:
        for t in tokens:
            buffer[self.page(request, t), t % self.ratio] = self.rows[request][t].float()


@pytest.mark.parametrize("ratio", [4, 128])
def test_compressed_steps(ratio: int) -> None:
    lengths = (4, 12, 15, 8, 6) if ratio == 4 else (128, 300, 5, 256)
    x = Stored(lengths, ratio)
    for r, n in enumerate(lengths):
        x.keep(r, range(n - 1), x.buffer)
    last = torch.stack([x.rows[r][n - 1] for r, n in enumerate(lengths)])
    pages = ints(*(x.page(r, n - 1) for r, n in enumerate(lengths)))
    before = ints(*(x.page(r, n - 1 - ratio) for r, n in enumerate(lengths)))
    if ratio == 4:
        before, pages[4] = before[:, None], -1  # a row without a request
    wanted = x.buffer.clone()
    for r, n in enumerate(lengths):
        if pages[r] >= 0:
            x.keep(r, range(n - 1, n), wanted)
    plan = function(PLANS, "CompressorDecodePlan")(ratio, ints(*lengths))
    out = function(COMPRESS, "hip_compress_forward")(
        kv_score_buffer=x.buffer, kv_score_input=last, ape=x.bias, indices=pages, plan=plan,
        extra_data=before, head_dim=WIDE, compress_ratio=ratio,
    )  # fmt: skip
    same(x.buffer, wanted)
    for r, n in enumerate(lengths):
        if ratio == 128 or n % 4 == 0:  # who asks in the middle of a block does not use the answer
            close(out[r], pooled(x.rows[r], x.bias, n - 1, ratio))


@pytest.mark.parametrize("ratio", [4, 128])
@pytest.mark.parametrize("wider", [False, True])
def test_compressed_prompts(ratio: int, wider: bool) -> None:
    lengths, new = (
        ((23, 9, 16, 30), (23, 3, 7, 5)) if ratio == 4 else ((300, 150, 130, 20), (300, 50, 1, 10))
    )
    x = Stored(lengths, ratio)
    compressed, written, starts, extra = [], [], 0, []
    wanted = x.buffer.clone()
    for r, (n, m) in enumerate(zip(lengths, new, strict=True)):
        past, end = n - m, (n - 1) // ratio * ratio
        window = 2 * ratio if ratio == 4 else ratio
        x.keep(r, range(past), x.buffer)
        for t in range(past, n):
            place = starts + t - past
            if t % ratio == ratio - 1:
                compressed.append((place, r, t, min(max(past - (t - window + 1), 0), window)))
            if t >= end - (ratio if ratio == 4 else 0):
                written.append((place, r, t, 0))
        last = (past - 1) // ratio * ratio
        extra.append((x.page(r, last - ratio), x.page(r, last), x.page(r, end - ratio), end))
        starts += m
    wanted.copy_(x.buffer)
    for _, r, t, _ in written:
        x.keep(r, range(t, t + 1), wanted)
    compressed.append((-1, 0, 0, 0))  # plans are padded
    written.append((-1, 0, 0, 0))
    plans = [torch.tensor(p, dtype=torch.int32).view(torch.uint8) for p in (compressed, written)]
    rows = torch.cat(
        [x.rows[r][n - m :] for r, (n, m) in enumerate(zip(lengths, new, strict=True))]
    )
    more = torch.tensor(extra, dtype=torch.int32)
    out = torch.empty(len(rows), WIDE, dtype=torch.float32 if wider else torch.bfloat16)
    function(COMPRESS, "hip_compress_forward")(
        kv_score_buffer=x.buffer, kv_score_input=rows, ape=x.bias,
        indices=ints(*(x.page(r, n - 1) for r, n in enumerate(lengths))),
        plan=function(PLANS, "CompressorPrefillPlan")(ratio, *plans),
        extra_data=more if ratio == 4 else more[:, 1].contiguous(), head_dim=WIDE,
        compress_ratio=ratio, out=out,
    )  # fmt: skip
    same(x.buffer, wanted)
    for place, r, t, _ in compressed[:-1]:
        close(out[place], pooled(x.rows[r], x.bias, t, ratio))
    assert int((out == 10000).all(1).sum()) == len(rows) - len(compressed) + 1


def turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """The last elements are rotated, as pairs of neighbours."""
    part = 2 * angles.shape[-1]
    last = rotated(x[..., -part:], angles.double().cos(), angles.double().sin(), True)
    return torch.cat((x[..., :-part], last), -1)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("ratio", [4, 16])
def test_gathered_blocks(overlap: bool, ratio: int) -> None:
    times = 2 if overlap else 1
    x, bias = randn(3, ratio * times, 2 * times * WIDE), randn(ratio, times * WIDE)
    x[0, : ratio * times // 2, times * WIDE :] = -torch.inf  # tokens that there are not
    angles, weight = randn(3, 8), randn(WIDE)
    got = function(COMPRESS, "fused_ape_pool_norm_rope")(
        x, bias, weight, 1e-6, torch.view_as_real(torch.polar(torch.ones(3, 8), angles)).flatten(1),
        WIDE, 16, ratio, overlap,
    )  # fmt: skip
    parts = x.double().unflatten(2, (2 * times, WIDE))
    late = torch.arange(ratio * times) // ratio
    values, scores = (parts[:, torch.arange(ratio * times), late + s] for s in (0, times))
    places = bias.double().unflatten(1, (times, WIDE)).transpose(0, 1).flatten(0, 1)
    mean = (torch.softmax(scores + places, 1) * values).sum(1)
    close(got, turned(rms_norm(mean, weight, 1e-6), angles))


@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize("mixes", [False, True])
def test_norms_of_compressed_keys(steps: bool, mixes: bool) -> None:
    """In place, turned by the first token of a block; and mixed by Hadamard's matrix."""
    wide, ratio = (64 if mixes else WIDE), 4
    x, weight, angles = randn(5, wide), randn(wide), randn(40, 8)
    if steps:
        plan = function(PLANS, "CompressorDecodePlan")(ratio, ints(4, 9, 40, 17, 1))
        rows, first = longs(0, 1, 2, 3, 4), longs(0, 8, 36, 16, 0)
    else:
        listed = torch.tensor(
            [(3, 0, 7, 0), (0, 1, 39, 0), (-1, 0, 0, 0), (2, 0, 3, 0)], dtype=torch.int32
        ).view(torch.uint8)
        plan = function(PLANS, "CompressorPrefillPlan")(ratio, listed, listed)
        rows, first = longs(3, 0, 2), longs(4, 36, 0)
    wanted = x.double()
    wanted[rows] = turned(rms_norm(x[rows], weight, 1e-6), angles[first])
    if mixes:
        wanted[rows] = hadamard(wanted[rows])
    given = x, weight, 1e-6, torch.polar(torch.ones(40, 8), angles), plan
    if mixes:
        function(COMPRESS, "hip_compress_fused_norm_rope_hadamard_inplace")(*given, wide)
    else:
        function(COMPRESS, "hip_compress_fused_norm_rope_inplace")(*given)
    close(x, wanted)


def test_keys_of_four_bits() -> None:
    """32 elements have one scale, a power of two; 4 bits are a sign and one of 8 sizes."""
    x = randn(7, 128) * torch.logspace(-6, 3, 7)[:, None]
    x[0] = 0
    sizes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6]).double()
    groups = x.double().view(7, 4, 32)
    power = torch.log2((groups.abs().amax(-1) / 6).clamp(min=1e-4)).ceil()
    scaled = groups / power.exp2()[..., None]
    code = (scaled.abs()[..., None] - sizes).abs().argmin(-1)
    code = (code + 8 * ((scaled < 0) & (code > 0))).view(7, 64, 2)
    wanted = (code[..., 0] + 16 * code[..., 1]).to(torch.uint8)
    path = "attention.dsv4.fp4_indexer"
    codes, scales = function(path, "quantize_fp4_indexer_tensor")(x)
    same(codes.view(torch.uint8), wanted)
    same(scales.view(torch.uint8).view(7, 4), power + 127)
    cache, slots = torch.full((3, 16 * 68), 9, dtype=torch.uint8), longs(0, 15, 16, 30, 40, 47, 5)
    known = cache.clone()
    for k, slot in enumerate(slots.tolist()):
        page, row = divmod(slot, 16)
        known[page, row * 64 : row * 64 + 64] = wanted[k]
        known[page, 1024 + row * 4 : 1024 + row * 4 + 4] = power[k] + 127
    function(path, "store_fp4_index_k_cache")(x, cache, slots, page_size=16)
    same(cache, known)
