"""vLLM: kernels of single models: routers, embeddings, towers for images and sounds."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from drive_vllm import LAYERS, function
from drive_vllm_drafts import longs
from reference import close, randn, rms_norm, rotated, same

INKLING = "models.inkling.nvidia."


def test_experts_of_gemma() -> None:
    x, scale = randn(5, 24), torch.rand(24) + 0.5
    weights, ids = function("model_executor.models.gemma4", "gemma4_fused_routing_kernel_triton")(
        x, 4, scale
    )
    best = x.double().topk(4)
    same(ids, best.indices)
    close(weights, best.values.softmax(-1) * scale.double()[best.indices])


def test_positions_between_those_of_a_grid() -> None:
    table = randn(5 * 5, 40)
    got = function("model_executor.models.qwen3_vl", "triton_pos_embed_interpolate")(
        table, 2, 4, 6, 5, 2, torch.float32
    )
    grid = table.double().view(5, 5, 40).permute(2, 0, 1)[None]
    wide = F.interpolate(grid, (4, 6), mode="bilinear", align_corners=True)[0].permute(1, 2, 0)
    merged = wide.reshape(2, 2, 3, 2, 40).permute(0, 2, 1, 3, 4).reshape(24, 40)
    close(got, merged.repeat(2, 1), 10)


@pytest.mark.parametrize("halves", [False, True])
def test_queries_of_an_index(halves: bool) -> None:
    q, cache = randn(4, 3, 128, dtype=torch.bfloat16), randn(9, 64)
    at, weights = longs(8, 0, 3, 1), randn(4, 3)
    got, by = function(LAYERS + "sparse_attn_indexer", "fused_indexer_q_rope_quant")(
        at, q, cache, weights, 0.5, 0.25, halves
    )
    cos, sin = (x[:, None] for x in cache[at].chunk(2, -1))
    turned = rotated(q[..., :64], cos, sin, not halves).bfloat16().double()
    wanted = torch.cat((turned, q[..., 64:].double()), -1)
    scale = (wanted.abs().amax(-1) / 448).log2().ceil().exp2()
    close(by, weights.double() * scale * 0.125)
    off = (got.double() * scale[..., None] - wanted).abs()
    assert (off <= wanted.abs() / 15 + scale[..., None] * 2**-9).all()


# ---- Inkling


@pytest.mark.parametrize("width", [72, 4500])
def test_norms_of_inkling(width: int) -> None:
    path, x, w = INKLING + "ops.norm", randn(5, width), randn(width)
    close(function(path, "rmsnorm")(x, w, 1e-5), rms_norm(x, w, 1e-5))
    if width == 72:
        delta = randn(5, width, seed=1)
        y, total = function(path, "add_rmsnorm")(x, delta, w, 1e-5)
        close(total, x.double() + delta)
        close(y, rms_norm(x.double() + delta, w, 1e-5))


@pytest.mark.parametrize("gather", [False, True])
def test_embeddings_of_inkling(gather: bool) -> None:
    path, table, ids = INKLING + "ops.norm", randn(20, 72), longs(3, 19, 0, 7)
    w, v, u, hidden = (randn(72, seed=0), randn(72, seed=1), randn(72, seed=2), randn(4, 72))
    first = rms_norm(table[ids], w, 1e-5)
    out, after = function(path, "embed_rmsnorm")(ids, table, w, 1e-5, v)
    close(out, first)
    close(after, rms_norm(first, v, 1e-5))
    rows = {"input_ids": ids, "embed_table": table} if gather else {"embeds": table[ids]}
    got = function(path, "embed_dual_rmsnorm_cat")(hidden, u, v, 1e-5, pre_norm_weight=w, **rows)
    close(got, torch.cat((rms_norm(hidden, u, 1e-5), rms_norm(first, v, 1e-5)), 1))


@pytest.mark.parametrize("normed", [False, True])
def test_sounds_of_inkling(normed: bool) -> None:
    idx = torch.randint(0, 6, (4, 5), generator=torch.Generator().manual_seed(0)).int()
    table, w = randn(30, 72, dtype=torch.bfloat16), randn(72, dtype=torch.bfloat16)
    got = function(INKLING + "ops.mm_towers", "dmel_embed_sum_norm")(
        idx, table, w if normed else None, 1e-5
    )
    wanted = table.double()[idx.long() + torch.arange(5) * 6].sum(1)
    close(got, rms_norm(wanted, w, 1e-5) if normed else wanted)


@pytest.mark.parametrize("fold", [None, (2, 2)])
def test_images_of_inkling(fold: tuple[int, int] | None) -> None:
    x, w = randn(1, 2, 4, 4, 24, dtype=torch.bfloat16), randn(24, dtype=torch.bfloat16)
    got = function(INKLING + "ops.mm_towers", "rmsnorm_gelu")(x, w, 1e-5, fold=fold)
    wanted = F.gelu(rms_norm(x, w, 1e-5))
    if fold:
        # Two times, two rows and two columns side by side.
        wanted = wanted.view(1, 1, 2, 2, 2, 2, 2, 24).permute(0, 1, 3, 5, 2, 4, 6, 7)
        wanted = wanted.reshape(1, 1, 2, 2, 8 * 24)
    close(got, wanted)


def test_gates_of_inkling() -> None:
    path, x = INKLING + "ops.silu_and_mul", randn(5, 2 * 40)
    pairs = x.double().view(5, 40, 2)
    close(function(path, "silu_and_mul_triton")(x), F.silu(pairs[..., 0]) * pairs[..., 1])
    raw, alpha, gamma, ratio = randn(5, 2 * 2 * 24), torch.rand(2), torch.rand(5, 2), torch.rand(2)
    got = function(path, "sink_silu_mul_epilogue")(raw, alpha, gamma, ratio, 2, torch.float32)
    y = raw.double().view(5, 2, 24, 2) * alpha[:, None, None]
    wanted = F.silu(y[..., 0]) * y[..., 1] * (gamma * ratio).double()[..., None]
    close(got, wanted.view(5, 48))


@pytest.mark.parametrize("biased", [False, True])
def test_experts_of_inkling(biased: bool) -> None:
    x, bias = randn(5, 26), randn(24) if biased else None
    weights, ids = function(INKLING + "moe", "inkling_gate_select")(
        x, 26, 24, 6, 2, bias, 1.5, torch.tensor([0.5])
    )
    score = x[:, :24].double().sigmoid() + (0 if bias is None else bias)
    wanted = torch.cat((score.topk(6).indices, longs(24, 25).expand(5, 2)), 1)
    same(ids, wanted)
    share = x.double().gather(1, wanted).sigmoid()
    close(weights, 0.75 * share / share.sum(1, keepdim=True))
