"""SGLang: elements, norms, rotations and layouts of models that make pictures and films."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from reference import close, randn, rms_norm, rotated, same
from sglang_parts import drawn, function, longs

HALF = torch.bfloat16


def part(path: str, name: str) -> Any:
    return function(f"diffusion.{path}", name)


def half(*shape: int, seed: int = 0) -> torch.Tensor:
    return randn(*shape, dtype=HALF, seed=seed)


# ---- elements


def test_gates() -> None:
    x, bias = half(2, 40, 3, 5), half(40)
    x = x.contiguous(memory_format=torch.channels_last)
    path = "activation.sana_conv_post_triton"
    biased = (x + bias[:, None, None]).double()
    close(part(path, "fused_bias_silu")(x, bias), F.silu(biased))
    hidden, gate = biased.chunk(2, 1)
    close(part(path, "fused_bias_glu")(x, bias), hidden * F.silu(gate))
    a, b, out = half(3, 700), half(3, 700, seed=1), half(3, 700)
    path = "activation.silu_mul_bitexact"
    part(path, "_silu_mul_kernel")[(3,)](out, a, b, 2100, BLOCK=1024)
    close(out, F.silu(a.double()) * b.double())
    x = half(2, 3, 600)
    gate, up = x.double().chunk(2, -1)
    close(part(path, "fused_packed_silu_mul_bitexact")(x), F.silu(gate) * up)


def test_indexed_modulation() -> None:
    path, at = "modulate.indexed_modulation_triton", longs(2, 0, 0, 1, 2)
    x, shift, scale, gate = half(5, 300), half(3, 300), half(3, 300, seed=1), half(3, 300, seed=2)
    wanted = x.double() * (1 + scale[at].double()) + shift[at].double()
    close(part(path, "indexed_scale_shift_bf16_")(x, shift, scale, at), wanted)
    x, y = half(5, 300), half(5, 300, seed=1)
    wanted = x.double() + gate[at].double() * y.double()
    close(part(path, "indexed_gate_bf16")(x, gate, y, at), wanted)


def test_values_of_tables() -> None:
    table, x = half(9, 256), half(2, 3, 9 * 256)
    outs = part("modulate.ltx2_ada_values_triton", "ltx2_ada_values9")(table, x)
    for k, out in enumerate(outs):
        same(out, x[..., k * 256 : (k + 1) * 256] + table[k])
    table, x, out = randn(6, 300), randn(4, 6, 300), torch.empty(6, 4, 300)
    kernel = part("modulate.wan_temb_table_slices_triton", "_temb_table_slices_kernel")
    kernel[(4, 6)](out, x, table, 4, D=300, BLOCK=128, NCHUNK=3)
    same(out, (x + table).transpose(0, 1))


@pytest.mark.parametrize("whole", [False, True])
def test_scales_and_shifts(whole: bool) -> None:
    path, x = "modulate.scale_shift_triton", randn(2, 6, 200)
    scale, shift, out = randn(2, 3, 200), randn(2, 6, 200, seed=1), torch.empty(2, 6, 200)
    part(path, "_fused_scale_shift_4d_kernel")[lambda c: (12, -(-200 // c["BLOCK_N"]))](
        out, x, scale, shift, 1.0, 200, 6, 3, 2
    )
    close(out, x.double() * (1 + scale.repeat_interleave(2, 1).double()) + shift)
    one = torch.tensor([0.3])
    s, h = (one, one) if whole else (scale[:, :1].expand(2, 6, 200), shift)
    part(path, "fuse_scale_shift_kernel_blc_opt")[(1, 2, 2)](
        x, h, s, 1.0, out, 2, 6, 200, *x.stride(), *((0, 0, 0) if whole else h.stride()),
        *((0, 0, 0) if whole else s.stride()), SCALE_IS_SCALAR=whole, SHIFT_IS_SCALAR=whole,
        BLOCK_L=8, BLOCK_C=128,
    )  # fmt: skip
    close(out, x.double() * (1 + s.double()) + h.double())


@pytest.mark.parametrize("weighed", [False, True])
def test_norms_that_select(weighed: bool) -> None:
    path, x, r, g = "modulate.scale_shift_triton", *(randn(2, 5, 200, seed=s) for s in range(3))
    w, b = (randn(200), randn(200, seed=1)) if weighed else (None, None)
    pairs = [randn(2, 200, seed=s) for s in range(6)]  # scale, shift, gate; and again
    which = drawn(2, 2, 5)
    pick = [torch.where(which[..., None] > 0, pairs[k + 3][:, None], pairs[k][:, None]).double()
            for k in range(3)]  # fmt: skip
    wide = None if w is None else w.double()
    for added in (False, True):
        whole = r.double() + g.double() * x if added else x.double()
        normed = F.layer_norm(whole, (200,), wide, None if b is None else b.double())
        name = "residual_layernorm" if added else "layernorm"
        given = (x, r, g) if added else (x,)
        found = part(path, f"fuse_{name}_scale_shift_gate_select01_kernel")(
            *given, w, b, *pairs, which, 1e-5
        )
        close(found[0], normed * (1 + pick[0]) + pick[1])
        close(found[-1], pick[2])
        if added:
            close(found[1], whole)


# ---- norms


def test_narrow_norms() -> None:
    path, x, w = "norm.native_bf16_rmsnorm_triton", half(2, 6, 300), half(300)
    scale, gate, r = half(2, 300), half(2, 300, seed=1), half(2, 6, 300, seed=2)
    normed = rms_norm(x, w, 1e-5)
    close(part(path, "rmsnorm_scale")(x, w, scale, 1e-5), normed * scale.double()[:, None], 2)
    got = part(path, "rmsnorm_tanh_residual")(x, gate, r, w, 1e-5)
    close(got, r.double() + gate.double().tanh()[:, None] * normed, 2)
    x, w, out = half(2, 5, 3, 128), half(128), torch.empty(2, 5, 3, 128, dtype=HALF)
    part("norm.zimage_qk_rmsnorm_triton", "_qk_rmsnorm_native_kernel")[(4,)](
        out, x, w, 384, 3, 30, 128, 1e-5, rows_per_prog=8
    )
    close(out, rms_norm(x, w, 1e-5), 2)


def test_norms() -> None:
    x, w, b, out = randn(20, 96), randn(96), randn(96, seed=1), torch.empty(20, 96)
    part("norm.rmsnorm_onepass_triton", "_rms_norm_tiled_onepass")[(5,)](
        out, x, w, 20, 96, 1e-5, BLOCK_SIZE_DIM=128, BLOCK_SIZE_SEQ=4
    )
    close(out, rms_norm(x, w, 1e-5))
    for root in (False, True):
        part("norm.norm_triton", "_norm_infer_kernel")[(20,)](
            x, out, w, b, 96, 96, 20, 96, 1e-5, IS_RMS_NORM=root, HAS_WEIGHT=True, HAS_BIAS=True,
            BLOCK_N=128,
        )  # fmt: skip
        wide = x.double()
        plain = F.layer_norm(wide, (96,), w.double(), b.double())
        close(out, rms_norm(x, w, 1e-5) + b if root else plain)


@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize("second", [False, True])
def test_norms_with_residuals(root: bool, second: bool) -> None:
    x, r, y = (randn(20, 96, seed=s) for s in range(3))
    w, b, u = randn(96), randn(96, seed=1), randn(96, seed=2)
    out, other, kept = (torch.empty(20, 96) for _ in range(3))
    mean, inverse = torch.empty(20), torch.empty(20)
    given = (y, u, None, other) if second else (None, None, None, None)
    part("norm.norm_triton", "_layer_norm_fwd_1pass_kernel")[(20,)](
        x, out, w, b, r, *given, kept, None, None, None, None, mean, inverse,
        96, 96, 96, 96, 96 if second else 0, 96 if second else 0, 20, 96, 1e-5, 0.0, 0, root, 128,
        True, True, True, True, False, False, False, HAS_X1=second, HAS_W1=second, HAS_B1=False,
    )  # fmt: skip
    whole = x.double() + r + (y if second else 0)
    close(kept, whole)
    centred = whole if root else whole - whole.mean(-1, keepdim=True)
    hat = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    close(out, hat * w + b)
    if second:
        close(other, hat * u)


@pytest.mark.parametrize("biased", [False, True])
def test_norms_of_films(biased: bool) -> None:
    x = randn(2, 40, 3, 4, 5).contiguous(memory_format=torch.channels_last_3d)
    w, b, out = randn(40), randn(40, seed=1), torch.empty_like(x)
    part("norm.wan_rmsnorm_silu_triton", "_wan_rmsnorm_silu_kernel")[(120,)](
        x, w, b, out, 40, 3, 4, 5, *x.stride(), *out.stride(), 40**0.5, 1e-12, biased, 64
    )
    wide = F.normalize(x.double(), dim=1) * 40**0.5 * w.double().view(40, 1, 1, 1)
    close(out, F.silu(wide + b.double().view(40, 1, 1, 1) if biased else wide))


# ---- rotations


def test_rotations() -> None:
    x, cos, sin = half(2, 5, 3 * 48), half(2, 3, 5, 24), half(2, 3, 5, 24, seed=1)
    got = part("rope.ltx2_rotary_triton", "apply_ltx2_split_rotary_emb")(x, cos, sin)
    rows = x.view(2, 5, 3, 48)
    wanted = rotated(rows, cos.transpose(1, 2), sin.transpose(1, 2), False)
    close(got.view(2, 5, 3, 48), wanted)
    x, cos, sin = half(2, 5, 3, 48), half(10, 32), half(10, 32, seed=1)
    out = torch.empty_like(x)
    part("rope.rope_rotate_half_bitexact", "_rope_rotate_half_kernel")[(10,)](
        out, x, cos, sin, 3, D=48, ROT=32, HALF=16, H_BLOCK=4, HALF_BLOCK=16, TAIL_BLOCK=16
    )
    wide, c, s = x.double(), cos.double().view(2, 5, 1, 32), sin.double().view(2, 5, 1, 32)
    a, b = wide[..., :16], wide[..., 16:32]
    low, high = a * c[..., :16] - b * s[..., :16], b * c[..., 16:] + a * s[..., 16:]
    close(out, torch.cat((low, high, wide[..., 32:]), -1))
    x, cos, sin = randn(2, 5, 3, 48), randn(5, 24), randn(5, 24, seed=1)
    out = torch.empty_like(x)
    part("rope.rotary_triton", "_rotary_embedding_kernel")[
        lambda c: (10, -(-3 // c["BLOCK_HEADS"]))
    ](out, x, cos, sin, 3, 48, 5, 144, 48, 144, 48, 24, 24)
    close(out, rotated(x, cos[:, None], sin[:, None], True))


# ---- layouts


def test_packed_heads() -> None:
    q, k, v = (randn(5, 6, 40, seed=s) for s in range(3))
    got = part("layout.ulysses_qkv_triton", "pack_qkv_destination_major")(q, k, v, 3)
    whole = torch.cat((q, k, v), -1).view(5, 3, 2, 120)
    same(got, whole.transpose(0, 1))
    path = "layout.varlen_pack_pad_triton"
    q, k, v = (randn(2, 5, 3, 40, seed=s) for s in range(3))
    at = longs(0, 1, 4, 5, 6, 7)
    for got, x in zip(part(path, "fused_pack_qkv")(q, k, v, at), (q, k, v), strict=True):
        same(got, x.view(10, 3, 40)[at])
    places, x = part(path, "build_inv_indices")(at, 10), randn(6, 3, 40)
    wanted = torch.zeros(10, 3, 40)
    wanted[at] = x
    same(part(path, "fused_scatter_to_padded")(x, places, 2, 5), wanted.view(2, 5, 3, 40))


def test_padded_films() -> None:
    x, old = randn(2, 7, 3, 4, 5), randn(2, 7, 2, 4, 5, seed=1)
    wanted = F.pad(torch.cat((old, x), 2), (1, 1, 2, 2, 1, 0))
    path = "layout.causal_conv3d_cat_pad_triton"
    same(part(path, "fused_causal_conv3d_cat_pad")(x, old, (1, 1, 2, 2, 3, 0)), wanted)
    path = "layout.wan_causal_cache_triton"
    got, kept = part(path, "cat_pad_channels_last_3d")(x, old, (1, 1, 2, 2, 3, 0), 2)
    same(got, wanted)
    same(kept, x[:, :, -2:])
    same(part(path, "cat_pad_channels_last_3d")(x, None, (1, 1, 2, 2, 3, 0)),
         F.pad(x, (1, 1, 2, 2, 3, 0)))  # fmt: skip


@pytest.mark.parametrize("dropped", [False, True])
def test_larger_films(dropped: bool) -> None:
    x = randn(2, 8, 3, 4, 5)
    # Each channel is repeated twice; eight of them are two frames of two by two pixels.
    whole = x.repeat_interleave(2, 1).view(2, 2, 2, 2, 2, 3, 4, 5)
    whole = whole.permute(0, 1, 5, 2, 6, 3, 7, 4).reshape(2, 2, 6, 8, 10)
    whole = whole[:, :, 1:] if dropped else whole
    y = randn(*whole.shape, seed=1)
    got = part("layout.wan_causal_cache_triton", "dup_up3d_add")(y, x, 2, 2, 2, dropped)
    close(got, y.double() + whole)


@pytest.mark.parametrize("chunked", [False, True])
def test_norms_of_groups(chunked: bool) -> None:
    path, x, w, b = "norm.group_norm_silu_triton", randn(2, 8, 5, 300), randn(8), randn(8, seed=1)
    wanted = F.silu(F.group_norm(x.double(), 2, w.double(), b.double(), 1e-5))
    close(
        part(path, "_launch_chunked" if chunked else "_launch_one_pass")(x, w, b, 2, 1e-5), wanted
    )
    path = "norm.group_norm_silu_twopass_triton"
    rows = x.flatten(2).transpose(1, 2).contiguous()
    got = part(path, "_gn_silu_rows")(rows, w, b, 2, 1e-5, chunked)
    plain = F.group_norm(x.double(), 2, w.double(), b.double(), 1e-5)
    close(got.transpose(1, 2).view(x.shape), wanted if chunked else plain)


def test_norms_of_large_groups() -> None:
    """Chunks that lie within one channel each."""
    path = "norm.group_norm_silu_triton"
    x, w, b, out = randn(1, 4, 512), randn(4), randn(4, seed=1), torch.empty(1, 4, 512)
    wide = x.double().view(2, 1024)
    stats = torch.stack((wide.mean(1), (wide.var(1, correction=0) + 1e-5).rsqrt()), 1).float()
    part(path, "_group_norm_apply_scalar_affine_kernel")[(2, 4)](
        x, w, b, out, stats, 4, 512, 2, 2, 1024, 4, BLOCK_SIZE=128, BLOCKS_PER_PROGRAM=2
    )
    close(out, F.silu(F.group_norm(x.double(), 2, w.double(), b.double(), 1e-5)))


def test_modulated_norms() -> None:
    x, scale, shift = half(2, 3, 600), half(2, 600), half(2, 600, seed=1)
    got = part("norm.layernorm_modulate_triton", "fused_layernorm_modulate_raw")(
        x, scale, shift, 1e-5
    )
    normed = F.layer_norm(x.double(), (600,))
    close(got, normed * (1 + scale.double()[:, None]) + shift.double()[:, None], 2)


def test_norms_of_heads() -> None:
    q, k = half(20, 96), half(20, 96, seed=1)
    out, other = torch.empty_like(q), torch.empty_like(k)
    part("norm.layernorm_modulate_triton", "_qk_ln_head_kernel")[(3, 2)](
        out, other, q, k, 20, 1e-5, D=96, D_POW2=128, ROWS=8
    )
    close(out, F.layer_norm(q.double(), (96,)))
    close(other, F.layer_norm(k.double(), (96,)))


@pytest.mark.parametrize("gated", [False, True])
def test_norms_bit_by_bit(gated: bool) -> None:
    x, r, w = half(3, 2048), half(3, 2048, seed=1), half(2048)
    gate, scale, shift = (half(1, 2048, seed=s) for s in range(3))
    out, kept = torch.empty_like(x), torch.empty_like(x)
    part("norm.rmsnorm_scale_shift_bitexact", "_rmsnorm_scale_shift_kernel")[(3,)](
        out, kept, x, r, gate, w, scale, shift, 3, 1e-5, D=2048, TPR=32, WPR=1, HAS_GATE=gated
    )
    whole = r.double() + gate.double() * x.double() if gated else x.double()
    close(out, rms_norm(whole, w, 1e-5) * (1 + scale.double()) + shift.double(), 2)
    if gated:
        close(kept, whole)


def test_scaled_residuals() -> None:
    r, x, w, out = randn(5, 300), half(5, 300), randn(300), torch.empty(5, 300)
    kernel = part("modulate.scale_shift_triton", "_fused_scaled_residual_add_exact_kernel")
    kernel[(2,)](out, r, x, w, numel=1500, width=300, BLOCK_SIZE=1024)
    close(out, r.double() + x.double() * w.double())
