"""SGLang: states of recurrences moved between slots, and operators that do not see the batch."""

from __future__ import annotations

import pytest
import torch
from reference import close, randn, rms_norm, rotated, same
from sglang_parts import function, ints, longs

SCATTER = "mamba.mamba_state_scatter_triton"
SAME = ".srt.batch_invariant_ops.batch_invariant_ops"


@pytest.mark.parametrize("checked", [False, True])
def test_tracked_states(checked: bool) -> None:
    source, target = ints(0, 3, 2), ints(5, 4, 1)
    use = torch.tensor([True, True, False])
    if checked:
        target[1] = -1
    pairs = [(int(source[k]), int(target[k])) for k in range(2) if target[k] >= 0]
    conv, deep = randn(6, 20, 3), randn(6, 4, 300)
    wanted = [x.clone() for x in (conv, deep)]
    for x, y in zip(wanted, (conv, deep), strict=True):
        for a, b in pairs:
            x[b] = y[a]
    function(SCATTER, "track_mamba_states_if_needed")(conv, deep, source, use, target, 3, checked)
    same(conv, wanted[0])
    same(deep, wanted[1])
    conv, deep = randn(2, 6, 20, 3), randn(2, 6, 4, 300)
    wanted = [x.clone() for x in (conv, deep)]
    for x, y in zip(wanted, (conv, deep), strict=True):
        for a, b in pairs:
            x[:, b] = y[:, a]
    function(SCATTER, "track_mamba_states_all_layers")(conv, deep, source, use, target, 3, checked)
    same(conv, wanted[0])
    same(deep, wanted[1])


def test_scattered_states() -> None:
    target, step = ints(4, 0, 2, 5), ints(1, -1, 2, 0)
    new, out = randn(2, 4, 3, 7, 200), torch.zeros(2, 6, 7, 200)
    function(SCATTER, "fused_mamba_state_scatter_with_mask")(out, new, target, step)
    wanted = torch.zeros(2, 6, 7, 200)
    windows, moved = randn(2, 4, 3, 3, 20).transpose(3, 4), torch.zeros(2, 6, 20, 3)
    function(SCATTER, "fused_conv_window_scatter_with_mask")(moved, windows, target, step)
    known = torch.zeros(2, 6, 20, 3)
    for k in (0, 2, 3):
        wanted[:, target[k]] = new[:, k, step[k]]
        known[:, target[k]] = windows[:, k, step[k]]
    same(out, wanted)
    same(moved, known)


def test_scattered_windows_of_several_kinds() -> None:
    kinds = []
    for wide in (20, 500):
        kinds.append((torch.zeros(2, 6, wide, 3).bfloat16(), randn(2, 4, 3, wide, 3).bfloat16()))
    target, step, other, late = longs(4, 0), longs(1, -1), longs(2, 3), longs(0, 2)
    function(SCATTER, "fused_conv_window_scatter_multi")(kinds, target, step, other, late)
    for out, new in kinds:
        wanted = torch.zeros_like(out)
        wanted[:, 4] = new[:, 0, 1]
        wanted[:, 2] = new[:, 0, 0]
        wanted[:, 3] = new[:, 1, 2]
        same(out, wanted)


@pytest.mark.parametrize("tracked", [False, True])
def test_steps_to_keep(tracked: bool) -> None:
    accepted = longs(0, 2, 3, -1, 4, 5, 6, 7, 8, -1, -1, -1).view(3, 4)
    count, lengths = longs(3, 4, 1), longs(6, 14, 3)
    last, steps = function(SCATTER, "fused_commit_track_indices")(
        accepted, count, lengths if tracked else None, 4, 8
    )
    same(last, longs(3, 3, 0))
    # The first passes 8 with its second token, the second 16 with its second.
    assert steps is None or steps.tolist() == [2, 1, -1]


def test_slots_of_convolutions() -> None:
    path = ".srt.mem_cache.mamba_slot_fused"
    kinds = [randn(2, 6, 20, 3, dtype=torch.bfloat16), randn(2, 6, 700, 3, dtype=torch.bfloat16)]
    before = [x.clone() for x in kinds]
    about = function(path, "build_conv_slot_descriptor")(kinds)
    function(path, "fused_copy_conv_slots")(about, ints(0, 1), ints(4, 5))
    function(path, "fused_clear_conv_slots")(about, ints(3, 0))
    for x, old in zip(kinds, before, strict=True):
        old[:, longs(4, 5)] = old[:, longs(0, 1)]
        old[:, longs(3, 0)] = 0
        same(x, old)


# ---- the same whatever the batch


def test_products() -> None:
    a, b, bias = randn(20, 70), randn(70, 40), randn(40)
    wanted = a.double() @ b.double()
    close(function(SAME, "_matmul_persistent_triton")(a, b, bias), wanted + bias, factor=10)
    close(function(SAME, "_matmul_persistent_triton")(a, b, None), wanted, factor=10)
    x, y = randn(3, 20, 70), randn(3, 70, 40)
    close(function(SAME, "bmm_batch_invariant")(x, y), x.double() @ y.double(), factor=10)


def test_sums() -> None:
    x, w = randn(5, 3000), randn(3000)
    close(function(SAME, "log_softmax")(x), x.double().log_softmax(-1))
    close(function(SAME, "mean_dim")(randn(5, 30, 7), 1), randn(5, 30, 7).double().mean(1))
    close(function(SAME, "rms_norm")(x, w, 1e-5), rms_norm(x, w, 1e-5))


# ---- norms of MiniMax and of gated attention


def test_norms() -> None:
    x, r, w = randn(5, 300), randn(5, 300, seed=1), randn(300)
    path, out, kept = "layernorm.minimax_m3_rmsnorm", torch.empty(5, 300), torch.empty(5, 300)
    kernel = function(path, "_gemma_rmsnorm_kernel")
    kernel[(5,)](x, w, out, 300, 300, 1, 1e-5, BLOCK_N=512)
    close(out, rms_norm(x, w + 1, 1e-5))
    kernel = function(path, "_gemma_fused_add_rmsnorm_kernel")
    kernel[(5,)](x, r, w, out, kept, 300, 300, 1, 300, 1, 1e-5, BLOCK_N=512)
    close(kept, x.double() + r)
    close(out, rms_norm(x.double() + r, w + 1, 1e-5))


@pytest.mark.parametrize("gated", [False, True])
def test_norms_and_rotations(gated: bool) -> None:
    heads, keys, wide, turned = 4, 2, 64, 32
    q = randn(5, heads * wide * (2 if gated else 1), dtype=torch.bfloat16)
    k, u, w = randn(5, keys * wide, dtype=torch.bfloat16), randn(wide), randn(wide, seed=1)
    table, at = randn(50, turned), longs(3, 49, 0, 7, 7)
    path = "attention.fused_qk_rmsnorm_rope_gate"
    got, other, gate = function(path, "fused_qk_gemma_rmsnorm_rope_gate")(
        q, k, u, w, table, at, 1e-5, heads, keys, wide, turned, gated
    )
    cos, sin = (x[:, None] for x in table[at].chunk(2, -1))
    rows = q.view(5, heads, -1)
    for found, x, scale in ((got, rows[..., :wide], u), (other, k.view(5, keys, wide), w)):
        y = rms_norm(x, scale + 1, 1e-5)
        y = torch.cat((rotated(y[..., :turned], cos, sin, False), y[..., turned:]), -1)
        close(found.view(y.shape), y, factor=2)
    if gated:
        same(gate, rows[..., wide:])
