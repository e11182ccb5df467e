"""vLLM: norms, gates, rotations, products in one order, masks of indices."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from drive_vllm import LAYERS, function
from drive_vllm_drafts import longs
from reference import close, randn, rms_norm, rotated, same


@pytest.mark.parametrize("blocks", [1, 2])
def test_products_in_one_order(blocks: int) -> None:
    path, a, b = LAYERS + "batch_invariant", randn(33, 40), randn(40, 50)
    bias = randn(50) if blocks == 2 else None
    close(function(path, "matmul_persistent")(a, b, bias), a.double() @ b.double() + (
        0 if bias is None else bias), 10)  # fmt: skip
    x, y = randn(2, 20, 40), randn(2, 40, 30)
    close(function(path, "bmm_batch_invariant")(x, y), x.double() @ y.double(), 10)
    w = randn(40)
    close(function(path, "rms_norm_batch_invariant")(a, w, 1e-5), rms_norm(a, w, 1e-5))


def test_limited_gate_by_steps() -> None:
    x, out = 3 * randn(5, 80), torch.zeros(5, 40)
    function(LAYERS + "activation", "swiglustep_and_mul_triton")(out, x, 2.0)
    gate, up = x.double().chunk(2, -1)
    close(out, F.silu(gate).clamp(max=2) * up.clamp(-2, 2))


def test_embeddings_with_norms() -> None:
    path, table, ids = LAYERS + "fused_embed_norm", randn(20, 72), longs(3, 19, 0, 7)
    w, v, before = randn(72), randn(72, seed=1), randn(4, 72)
    rows, normed = function(path, "fused_embed_norm")(ids, table, w, 1e-5)
    same(rows, table[ids])
    close(normed, rms_norm(table[ids], w, 1e-5))
    got = function(path, "fused_embed_eh_norm")(longs(5, 0, 1, 2), ids, table, before, w, v, 1e-5)
    shown = table[ids] * torch.tensor([1, 0, 1, 1])[:, None]
    close(got, torch.cat((rms_norm(shown, w, 1e-5), rms_norm(before, v, 1e-5)), 1))


def test_queries_with_gates() -> None:
    x, k, qw, kw = (
        randn(*n, dtype=torch.bfloat16) for n in ((5, 2 * 2 * 48), (5, 48), (48,), (48,))
    )
    cache, at = randn(10, 32), longs(3, 9, 0, 1, 2)
    q, key, gate = function(LAYERS + "fused_qk_norm_rope", "fused_qk_rmsnorm_rope_gate")(
        x, k, qw, kw, cache, at, 1e-5, 2, 1, 48, 32
    )
    both = x.view(5, 2, 2, 48)
    cos, sin = cache[at].chunk(2, -1)

    def turned(y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = rms_norm(y, w, 1e-5)
        return torch.cat((rotated(y[..., :32], cos[:, None], sin[:, None], False), y[..., 32:]), -1)

    close(q.view(5, 2, 48), turned(both[:, :, 0], qw))
    close(key.view(5, 1, 48), turned(k.view(5, 1, 48), kw))
    same(gate.view(5, 2, 48), both[:, :, 1])


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
def test_rotation_by_three_positions(halves: bool, mixed: bool) -> None:
    q, k = randn(5, 3 * 40), randn(5, 40)
    cos, sin = randn(3, 5, 16), randn(3, 5, 16, seed=1)
    got = function(LAYERS + "rotary_embedding.mrope", "triton_mrope")(
        q.clone(), k.clone(), cos, sin, [6, 5, 5], 40, 32, mixed, halves
    )
    place = torch.arange(16)
    if mixed:
        which = torch.where((place % 3 == 1) & (place <= 15), 1, 0)
        which = torch.where((place % 3 == 2) & (place <= 15), 2, which)
    else:
        which = torch.where(place < 6, 0, torch.where(place < 11, 1, 2))
    c, s = (x[which, :, place].T[:, None] for x in (cos, sin))
    for out, x, heads in zip(got, (q, k), (3, 1), strict=True):
        y = x.view(5, heads, 40)
        wanted = torch.cat((rotated(y[..., :32], c, s, not halves), y[..., 32:].double()), -1)
        close(out.view(5, heads, 40), wanted)


def test_norms_of_parts_on_ranks() -> None:
    path, x = LAYERS + "minimax_rms_norm.rms_norm_tp", randn(5, 96 + 40 + 40)
    w, v, var = randn(96), randn(40), torch.zeros(5, 2)
    function(path, "_minimax_qk_var_kernel")[(5,)](x, var, 176, 96, 40, BLOCK=64)
    q, k = x[:, :96].double(), x[:, 96:136].double()
    close(var, torch.stack((q.square().mean(1), k.square().mean(1)), 1))
    a, b = torch.zeros(5, 96), torch.zeros(5, 40)
    function(path, "_minimax_rms_apply_kernel")[(5,)](
        x, 2 * var, w, v, a, b, 176, 96, 40, 2, 1e-5, BLOCK=64
    )
    close(a, rms_norm(q, w, 1e-5))
    close(b, rms_norm(k, v, 1e-5))


def test_streams_become_one() -> None:
    x, fn, base = randn(5, 4, 72), randn(4, 4 * 72) / 16, randn(4)
    out = torch.zeros(5, 72)
    function("model_executor.kernels.mhc.triton", "hc_head_reduce_triton_kernel")(
        x, fn, torch.tensor(0.7), base, out, 1e-5, 1e-3
    )
    flat = rms_norm(x.flatten(1), torch.ones(288), 1e-5)
    mix = torch.sigmoid(flat @ fn.double().T * 0.7 + base) + 1e-3
    close(out, (mix[..., None] * x.double()).sum(1), 10)


@pytest.mark.parametrize("requests", [1, 2])
def test_masks_of_chosen_tokens(requests: int) -> None:
    lengths = [3] if requests == 1 else [2, 3]
    chosen = [torch.tensor([[0, 33, -1], [70, 5, 31], [-1, -1, 2]], dtype=torch.int32)[:n]
              for n in lengths]  # fmt: skip
    out = torch.full((requests, 4, 3), -1, dtype=torch.int32)
    got = function(LAYERS + "attention.sparse_mla_attention", "_build_topk_mask")(
        chosen, lengths, 4, 80, out
    )
    bits = (got.long()[..., None] >> torch.arange(32) & 1).flatten(2)
    wanted = torch.zeros(requests, 4, 96, dtype=torch.long)
    for request, rows in enumerate(chosen):
        for row, ids in enumerate(rows.tolist()):
            wanted[request, row, [i for i in ids if i >= 0]] = 1
    same(bits, wanted)
