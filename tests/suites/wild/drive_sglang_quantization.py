"""SGLang: numbers of eight and four bits, and products of them."""

from __future__ import annotations

import pytest
import torch
from reference import close, randn, same
from sglang_parts import drawn, function, ints, longs, mixed, nearest, sums, uniform

FP8, INT8, MX = (f"quantization.{x}" for x in ("fp8_kernel", "int8_kernel", "mxfp8_quant"))
NARROW = torch.float8_e4m3fn
MOST = 448.0


def scaled(x: torch.Tensor, group: int, most: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Groups of the last dimension divided by what makes their largest number `most`."""
    parts = x.double().unflatten(-1, (-1, group))
    scale = parts.abs().amax(-1) / most
    return (parts / scale[..., None]).flatten(-2), scale


def test_rounding() -> None:
    x = randn(5, 64, dtype=torch.bfloat16)
    forward = function("quantization.fp8_quantize", "fp8_quantize")
    for narrow in (NARROW, torch.float8_e5m2):
        got = forward(x, 2.0, fp8_dtype=narrow)
        same(got.float(), (x.float() * 2).to(narrow).float())


@pytest.mark.parametrize("narrow", [NARROW, torch.int8])
def test_groups(narrow: torch.dtype) -> None:
    x, most = randn(6, 384), 127.0 if narrow == torch.int8 else MOST
    wanted, scale = scaled(x, 128, most)
    forward = function(FP8, "per_token_group_quant_8bit")
    for more in ({}, {"column_major_scales": True}):
        got, found = forward(x, 128, narrow, **more)
        close(found, scale)
        if narrow == torch.int8:  # it is cut off, not rounded
            assert ((got.double() - wanted).abs() < 1 + 1e-4).all()
        else:
            nearest(got, wanted)


def test_groups_with_powers_as_scales() -> None:
    x, group = randn(6, 256), 128
    got, found = torch.empty(6, 256, dtype=NARROW), torch.empty(2, 6)
    function(FP8, "_per_token_group_quant_8bit_colmajor")[(12,)](
        x, got, found, group, 256, 6, 1e-10, -MOST, MOST, BLOCK=128, SCALE_UE8M0=True
    )
    power = (x.double().unflatten(-1, (-1, group)).abs().amax(-1) / MOST).log2().ceil().exp2()
    same(found.T, power)
    nearest(got, x.double() / power.repeat_interleave(group, -1))


@pytest.mark.parametrize("repeated", [False, True])
def test_static(repeated: bool) -> None:
    x, scale = 3 * randn(6, 300), torch.tensor([0.02])
    got, found = function(FP8, "static_quant_fp8")(x, scale, repeated)
    nearest(got, (x.double() / 0.02).clamp(-MOST, MOST))
    same(found, torch.full((6, 1), 0.02) if repeated else scale)


def test_latent_attention() -> None:
    x, scale = randn(3, 5, 96), torch.zeros(1)
    got, found = function(FP8, "per_tensor_quant_mla_fp8")(x.transpose(0, 1), scale)
    close(found, x.double().abs().max()[None] / MOST)
    nearest(got, x.transpose(0, 1).double() / found.double())
    got, found, count, m, _ = function(FP8, "per_token_group_quant_mla_deep_gemm_masked_fp8")(
        randn(3, 5, 256)
    )
    wanted, scale = scaled(randn(3, 5, 256), 128, MOST)
    same(count, ints(5, 5, 5))
    close(found[:, :m], scale)
    nearest(got[:, :m], wanted)


def test_groups_of_experts() -> None:
    lengths = (5, 0, 20)
    x = randn(25, 256)
    sizes = torch.tensor([[n, 64, 256] for n in lengths], dtype=torch.int32)
    got, found = function(FP8, "per_token_group_quant_fp8_hopper_moe_mn_major")(
        x, sums(lengths), sizes, 128
    )
    wanted, scale = scaled(x, 128, MOST)
    nearest(got, wanted)
    flat = torch.cat([part.T.flatten() for part in scale.split(lengths)])
    close(found.flatten(), flat)
    same(
        function(FP8, "per_group_transpose")(x, sums(lengths)).flatten(),
        torch.cat([part.T.flatten() for part in x.split(lengths)]),
    )


@pytest.mark.parametrize("whole", [False, True])
def test_scaled_products(whole: bool) -> None:
    a, b, bias = randn(20, 96), randn(96, 40), randn(40)
    if whole:
        a, b = drawn(255, 20, 96) - 127, drawn(255, 96, 40) - 127
        a, b = a.to(torch.int8), b.to(torch.int8)
    else:
        a, b = a.to(NARROW), b.to(NARROW)
    sa, sb = uniform(20, 1), uniform(40, 1)
    forward = function(FP8, "triton_scaled_mm")
    got = forward(a, b, sa, sb, torch.float32, bias, use_heuristic=False)
    wanted = (a.double() @ b.double()) * sa.double() * sb.double().T + bias.double()
    close(got, wanted, factor=10)


def test_products_of_blocks() -> None:
    a, b = drawn(255, 20, 96) - 127, drawn(255, 40, 96) - 127
    sa, sb = uniform(20, 3), uniform(2, 3)
    wide_a = a.double() * sa.double().repeat_interleave(32, 1)
    wide_b = b.double() * sb.double().repeat_interleave(32, 1).repeat_interleave(32, 0)[:40]
    got = function(INT8, "w8a8_block_int8_matmul")(
        a.to(torch.int8), b.to(torch.int8), sa, sb, [32, 32], torch.float32
    )
    close(got, wide_a @ wide_b.T, factor=10)
    x, y = a.float().to(NARROW), b.float().to(NARROW)
    wide_a = x.double() * sa.double().repeat_interleave(32, 1)
    wide_b = y.double() * sb.double().repeat_interleave(32, 1).repeat_interleave(32, 0)[:40]
    got = function(FP8, "w8a8_block_fp8_matmul_triton")(x, y, sa, sb, [32, 32], torch.float32)
    close(got, wide_a @ wide_b.T, factor=10)


def test_whole_numbers() -> None:
    x = randn(6, 300)
    got, found, total = function(INT8, "per_token_quant_int8")(x, cal_sum=True)
    wanted = x.double() / x.double().abs().amax(-1, keepdim=True) * 127
    close(found, x.double().abs().amax(-1, keepdim=True) / 127)
    assert ((got.double() - wanted).abs() <= 0.5 + 1e-4).all()
    close(total, x.double().sum(-1))
    x = randn(6, 256)
    got, found = function(INT8, "per_token_group_quant_int8")(x, 128)
    wanted, scale = scaled(x, 128, 127.0)
    close(found, scale)
    assert ((got.double() - wanted).abs() < 1 + 1e-4).all()


# ---- four bits

ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # which of eight numbers is column k


def four_bits(rows: int, columns: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of four bits, and eight of them in each number of 32 bits."""
    x = drawn(16, rows, columns, seed=seed)
    packed = torch.zeros(rows, columns // 8, dtype=torch.int64)
    for k, place in enumerate(ORDER):
        packed |= x[:, k::8] << 4 * place
    return x, (packed & 0xFFFFFFFF).to(torch.uint32).view(torch.int32)


def test_four_bits() -> None:
    path = "quantization.awq_triton"
    x, packed = four_bits(64, 80, 1)
    zero, zeros = four_bits(2, 80, 2)
    scale = uniform(2, 80).half()
    wanted = (x - zero.repeat_interleave(32, 0)) * scale.double().repeat_interleave(32, 0)
    close(function(path, "awq_dequantize_triton")(packed, scale, zeros), wanted)
    a = randn(5, 64, dtype=torch.float16)
    got = function(path, "awq_gemm_triton")(a, packed, scale, zeros, 2)
    close(got / 100, a.double() @ wanted / 100)


# ---- blocks of 32 with a power of two each


def powers(x: torch.Tensor) -> torch.Tensor:
    return (x.double().abs() / MOST).log2().ceil().clamp(-127, 127)


def test_blocks_of_32() -> None:
    x = 100 * randn(5, 3, 96)
    got = function(MX, "to_mxfp8")(x)
    power = powers(x.unflatten(-1, (3, 32)).abs().amax(-1))
    same(got.scale, power + 127)
    nearest(got.data, x.double() / power.exp2().repeat_interleave(32, -1))


def placed(at: torch.Tensor, heads: int, pages: int) -> torch.Tensor:
    """Where the four scales of a token and head are among pages of 128 tokens."""
    page, inside = at // 128, at % 128
    first = (page[:, None] * heads + torch.arange(heads)) * 128
    return first + ((inside % 32) * 4 + inside // 32)[:, None]


def test_scales_in_pages() -> None:
    scales, at = drawn(255, 6, 2, 4, dtype=torch.uint8), longs(0, 33, 127, 128, 200, 255)
    out = torch.zeros(2, 2 * 128 * 4, dtype=torch.uint8)
    function("quantization.mxfp8_interleave_sf", "store_sf_interleaved")(scales, out, at)
    wanted = torch.zeros(512, 4, dtype=torch.uint8)
    wanted[placed(at, 2, 2)] = scales
    same(out.view(512, 4), wanted)


def test_stored_blocks() -> None:
    k, v, at = randn(6, 2, 128), 9 * randn(6, 2, 128, seed=1), longs(0, 33, 127, 128, 200, 255)
    cache_k, cache_v = (torch.zeros(256, 2, 128).to(NARROW) for _ in range(2))
    scale_k, scale_v = (torch.zeros(2 * 2 * 128 * 4, dtype=torch.uint8) for _ in range(2))
    function(MX, "quant_store_kv_mxfp8")(k, v, at, cache_k, cache_v, scale_k, scale_v)
    for x, cache, scale in ((k, cache_k, scale_k), (v, cache_v, scale_v)):
        power = powers(x.unflatten(-1, (4, 32)).abs().amax(-1))
        same(scale.view(-1, 4)[placed(at, 2, 2)], power + 127)
        nearest(cache[at], x.double() / power.exp2().repeat_interleave(32, -1))


def test_blocks_along_tokens() -> None:
    """Values have a scale for each 32 tokens and element."""
    v = randn(6, 2, 64) * 4.0 ** mixed(6, 1, 1)
    cache, scale = torch.zeros(2, 64, 2, 64).to(NARROW), torch.zeros(2, 2, 64, 2).to(torch.uint8)
    at = longs(32, 33, 34, 96, 97, -1)
    forward = function(MX, "update_mxfp8_v_cache_seqblocked")
    forward(v[:2], at[:2], cache, scale)
    forward(v[2:], at[2:], cache, scale)
    for page, block, tokens in ((0, 1, [0, 1, 2]), (1, 1, [3, 4])):
        power = powers(v[tokens].abs().amax(0))
        same(scale[page, :, :, block], power + 127)
        got = cache[page, block * 32 : block * 32 + len(tokens)].double()
        # What is there is rounded again when a larger number comes.
        off = (got * power.exp2() - v[tokens].double()).abs()
        assert (off <= v[tokens].double().abs() / 7 + power.exp2() * 2.0**-8).all()
