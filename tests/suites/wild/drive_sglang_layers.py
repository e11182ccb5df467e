"""SGLang: elements, norms and rotations of layers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from reference import close, randn, rms_norm, rotated, same
from sglang_parts import drawn, function, ints, sums

ELEMENTS = "elementwise.elementwise"


def test_gated() -> None:
    x = randn(5, 600)
    gate, up = x.double().chunk(2, -1)
    close(function(ELEMENTS, "silu_and_mul_triton")(x)[0], F.silu(gate) * up)
    close(function(ELEMENTS, "gelu_and_mul_triton")(x)[0], F.gelu(gate) * up)


@pytest.mark.parametrize("tuned", [False, True])
def test_norms(tuned: bool) -> None:
    x, r, u, w = randn(5, 300), randn(5, 300, seed=1), randn(300), randn(300, seed=1)
    got, middle = function(ELEMENTS, "fused_dual_residual_rmsnorm")(x, r, u, w, 1e-5, tuned)
    first = r + rms_norm(x, u, 1e-5)
    close(middle, first)
    close(got, rms_norm(first, w, 1e-5))
    close(function(ELEMENTS, "fused_rmsnorm")(x, w, 1e-5), rms_norm(x, w, 1e-5))


@pytest.mark.parametrize("flat", [False, True])
def test_gates_of_attention(flat: bool) -> None:
    x, gate = randn(5, 120), randn(5, 3, 80)[..., :40]
    gate = gate.reshape(5, 120) if flat else gate
    wanted = x.double() * gate.reshape(5, 120).double().sigmoid()
    close(function(ELEMENTS, "fused_sigmoid_mul")(x, gate), wanted)
    same(function(ELEMENTS, "fused_sigmoid_mul")(x, gate, inplace=True), x)
    close(x, wanted)
    h, w, s, out = randn(5, 96), randn(96) / 8, randn(5, 96, seed=1), randn(5, 96, seed=2)
    wanted = out.double() + torch.sigmoid(h.double() @ w.double())[:, None] * s
    function(ELEMENTS, "fused_gate_sigmoid_mul_add")(h, w, s, out)
    close(out, wanted)


# ---- lengths that differ

LENGTHS = (3, 5, 1)


def test_padded() -> None:
    x, starts = randn(9, 40), sums(LENGTHS)
    parts = x.split(LENGTHS)
    count, out, mask = function("attention.pad", "pad_sequence_with_mask")(
        x, starts[:3], ints(*LENGTHS), 6
    )
    wanted = torch.stack([F.pad(p, (0, 0, 0, 6 - len(p))) for p in parts])
    same(out, wanted)
    same(mask.view(3, 6), torch.arange(6) < ints(*LENGTHS)[:, None])
    assert count == 3
    q = randn(9, 3, 40)
    out = torch.zeros(3, 6, 3, 40)
    function("attention.pad", "pad_draft_extend_query")(q, out, ints(*LENGTHS), starts)
    same(out, torch.stack([F.pad(p, (0, 0, 0, 0, 0, 6 - len(p))) for p in q.split(LENGTHS)]))
    back = function("attention.pad", "unpad_draft_extend_output")(out, starts, ints(*LENGTHS), 9)
    same(back, q)
    got = function("attention.pad", "seqlens_expand_triton")(ints(*LENGTHS), ints(10, 3, 7), 9, 5)
    same(got, ints(8, 9, 10, 0, 0, 1, 2, 3, 7))


def test_scaled_rows() -> None:
    x, tau = randn(5, 3, 80)[..., :40], randn(5)
    forward = function("attention.log_scaling_tau", "apply_log_scaling_tau")
    close(
        forward(randn(5, 3, 40), tau[:, None, None]), randn(5, 3, 40).double() * tau[:, None, None]
    )
    assert x.shape == (5, 3, 40)


# ---- rotations


def test_complex_rotations() -> None:
    q, k = (randn(5, 3, 40, dtype=torch.bfloat16, seed=s) for s in range(2))
    angles = randn(5, 20)
    turn = torch.polar(torch.ones(5, 20), angles)
    got = function("attention.vision_rope", "_fused_qk_complex_rope_kernel")
    freqs = torch.view_as_real(turn).contiguous()
    out_q, out_k = torch.empty_like(q), torch.empty_like(k)
    got[(3,)](
        q, k, freqs, out_q, out_k, 300, 3, 40, *q.stride(), *k.stride(), *freqs.stride(), BLOCK=128
    )
    cos, sin = angles.double().cos()[:, None], angles.double().sin()[:, None]
    close(out_q, rotated(q, cos, sin, True))
    close(out_k, rotated(k, cos, sin, True))


def test_interleaved_positions() -> None:
    x, sections = randn(3, 7, 64), [24, 20, 20]
    got = function("attention.mrope", "apply_interleaved_rope_triton")(x, sections)
    wanted = x[0].clone()
    for axis in (1, 2):
        wanted[:, axis : sections[axis] * 3 : 3] = x[axis, :, axis : sections[axis] * 3 : 3]
    same(got, wanted)


def turned(x: torch.Tensor, at: torch.Tensor, table: torch.Tensor, near: bool) -> torch.Tensor:
    """Heads of (token, heads, width) turned by rows of cosines and sines, one place per element."""
    half = table.shape[1] // 2
    columns = torch.arange(half)
    cos, sin = table[at, columns][:, None], table[at, half + columns][:, None]
    return torch.cat((rotated(x[..., : 2 * half], cos, sin, near), x[..., 2 * half :].double()), -1)


@pytest.mark.parametrize("neox", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
def test_positions_of_three_axes(neox: bool, mixed: bool) -> None:
    q, k, table, at = randn(5, 3 * 48), randn(5, 2 * 48), randn(90, 32), drawn(90, 3, 5)
    before = [x.clone() for x in (q, k)]
    sections = [6, 5, 5]
    function("attention.rotary_triton", "triton_mrope_fused")(
        q, k, table, at, sections, 48, 32, mixed, False, neox, None
    )
    axes = torch.tensor([0] * 6 + [1] * 5 + [2] * 5)
    if mixed:  # the kernel takes one more of each axis than its section says
        axes = torch.arange(16) % 3
        axes[(axes > 0) & (torch.arange(16) > 15)] = 0
    places = at[axes].T
    for got, x in zip((q, k), before, strict=True):
        close(got.view(5, -1, 48), turned(x.view(5, -1, 48), places, table, not neox))


@pytest.mark.parametrize("neox", [False, True])
def test_positions_of_ernie(neox: bool) -> None:
    q, k, table, at = randn(5, 3 * 48), randn(5, 2 * 48), randn(90, 32), drawn(90, 3, 5)
    before = [x.clone() for x in (q, k)]
    function("attention.rotary_triton", "triton_ernie45_rope_fused_inplace")(
        q, k, table, at, [5, 5, 6], 48, 32, neox
    )
    axes = torch.tensor([1, 2] * 5 + [0] * 6)
    for got, x in zip((q, k), before, strict=True):
        close(got.view(5, -1, 48), turned(x.view(5, -1, 48), at[axes].T, table, not neox))


# ---- sums of exponentials


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_of_exponentials(dtype: torch.dtype) -> None:
    x = (4 * randn(4, 20000)).to(dtype)
    x[1, 5], x[2] = torch.inf, x[2].sort().values
    path = ".srt.layers.logsumexp"
    most, log = function(path, "row_logsumexp")(x)
    same(most, x.float().amax(1))
    rest = torch.tensor([0, 2, 3])
    close((most + log)[rest], x[rest].double().logsumexp(1))
    most, log, values, indices = function(path, "row_logsumexp_topk")(x, 5)
    close((most + log)[rest], x[rest].double().logsumexp(1))
    same(values, x.float().topk(5).values)
    same(x.gather(1, indices).float(), values)
    assert all(len(set(row)) == 5 for row in indices.tolist())


# ---- parts of models


def test_mixed_residuals() -> None:
    path, wide = ".srt.layers.attn_residual", 2048
    x, bank, w = randn(3, wide), randn(3, 4, wide), randn(wide)
    scores, out = torch.zeros(3, 16), torch.empty(3, wide)
    function(path, "_score_kernel")[(3, 4)](
        x, bank, w, scores, 3, 1e-5, wide, 4 * wide, wide, 16, H=wide, BLOCK_H=1024
    )
    rows = torch.cat((bank[:, :3], x[:, None]), 1).double()
    wanted = (rms_norm(rows, w, 1e-5)).sum(-1)
    close(scores[:, :4], wanted, factor=10)
    scores = scores / 64
    function(path, "_combine_kernel")[(3, 2)](
        x, bank, scores, out, 3, wide, 4 * wide, wide, 16, wide, BLOCK_H=1024, MAX_ROWS=16
    )
    close(out, (rows * scores[:, :4].double().softmax(-1)[..., None]).sum(1))


def test_windows_of_latents() -> None:
    path = ".srt.layers.attention.swa_mla_fallback.ops"
    cache, lengths = randn(256, 1, 160), ints(5, 130)
    table = ints(2, -1, -1, 3, 0, 1).view(2, 3)
    got, there = function(path, "gather_page64_kv_latent")(cache, table, lengths, 60, 2, 160)
    assert got.shape == (2, 64, 160)
    for b, n in enumerate(lengths.tolist()):
        first = max(n - 64, 0)
        at = torch.arange(first, n)
        slots = table[b][at // 64] * 64 + at % 64
        same(got[b, : len(at)], cache[slots.long(), 0])
        same(there[b], torch.arange(64) < len(at))
    scores = randn(2, 3, 2, 64)
    wanted = scores.clone()
    for b, n in enumerate(lengths.tolist()):
        at = max(n - 64, 0) + torch.arange(64)
        for q in range(2):
            here = n - 2 + q
            seen = there[b] & (at <= here) & (at > here - 60)
            wanted[b, :, q, ~seen] = torch.finfo(torch.float32).min
    same(function(path, "apply_swa_score_mask")(scores, lengths, there, 3, 60, 2), wanted)


def test_gathered_ranks() -> None:
    path = ".srt.layers.dp_attention"
    q, s = randn(5, 384).to(torch.float8_e4m3fn), randn(5, 3)
    out = torch.empty(5, 384, dtype=torch.bfloat16)
    function(path, "_dequant_per_token_group_fp8_kernel")[(5,)](
        q, s, out, HIDDEN=384, NGROUPS=3, GROUP=128, BLOCK=256
    )
    close(out, q.double() * s.double().repeat_interleave(128, 1))
    ids = drawn(9, 6, 5, dtype=torch.int32)
    wanted = ids.clone()
    wanted[torch.tensor([2, 4, 5])] = -1
    function(path, "_mask_dp_pad_topk_ids_kernel")[(6,)](ids, ints(2, 1), 3, TOPK=5, BLOCK=8)
    same(ids, wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_of_queries_and_keys(dtype: torch.dtype) -> None:
    path, u, w = ".srt.models.utils", randn(40), randn(40, seed=1)
    q, k = randn(5, 4 * 40, dtype=dtype), randn(5, 2 * 40, dtype=dtype)
    got = function(path, "fused_qk_gemma_rmsnorm")(q, k, u, w, 1e-5, 40)
    for x, y, scale in zip(got, (q, k), (u, w), strict=True):
        close(x, rms_norm(y.view(-1, 40), scale + 1, 1e-5))
    both = randn(5, 4 * 80, dtype=dtype)
    a, b, c = function(path, "fused_qk_gemma_rmsnorm_with_gate")(both, k, u, w, 1e-5, 40, 4)
    parts = both.view(20, 80)
    close(a, rms_norm(parts[:, :40], u + 1, 1e-5))
    close(b, rms_norm(k.view(-1, 40), w + 1, 1e-5))
    same(c, parts[:, 40:])


def test_norms_in_two_steps() -> None:
    path, x, y = ".srt.models.minimax_m2", randn(5, 100), randn(5, 40)
    u, w = randn(100), randn(40)
    squares = function(path, "rms_sumsq_serial")(x, y)
    close(squares[:10], torch.cat((x.double().square().sum(1), y.double().square().sum(1))))
    a, b = function(path, "rms_apply_serial")(x, y, u, w, squares * 2, 2, 1e-5)
    close(a, rms_norm(x, u, 1e-5))
    close(b, rms_norm(y, w, 1e-5))
