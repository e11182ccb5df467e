"""torchao: tensors brought to 8 bits per head, row, column, group or block, and their products."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from reference import close, hadamard, randn, rotated, same

FP8 = torch.float8_e4m3fn
LARGEST = 448.0
half = torch.bfloat16


def named(module: str, name: str) -> Any:
    return getattr(import_module(f"torchao.{module}"), name)


def quantised(codes: torch.Tensor, x: torch.Tensor, of_one: torch.Tensor) -> None:
    """Codes of 8 bits stand for `x` where one of them is worth `of_one`."""
    assert codes.dtype == FP8 and codes.shape == x.shape
    x, of_one = x.double(), of_one.double().expand(x.shape)
    off = (codes.double() * of_one - x).abs()
    allowed = 0.07 * x.abs() + 0.002 * of_one  # half a step of three bits, and of subnormals
    assert (off <= allowed).all(), f"off by {off.max()}"


def per_head(codes: torch.Tensor, x: torch.Tensor, worth: torch.Tensor) -> None:
    """(batch, head, length, width): one scale for the heads of a group."""
    groups = x.shape[1] // worth.shape[1]
    largest = x.double().abs().unflatten(1, (-1, groups)).amax((2, 3, 4))
    close(worth, largest / LARGEST, factor=100)  # what it is taken from was rounded to 16 bits
    quantised(codes, x, worth.repeat_interleave(groups, 1)[..., None, None])


def heads(q: int, kv: int, length: int = 20, width: int = 32) -> list[torch.Tensor]:
    return [randn(2, n, length, width, dtype=half, seed=s) for s, n in enumerate((q, kv, kv))]


ATTENTION = "prototype.attention.quantization."


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("transformed", [False, True])
def test_attention(groups: int, transformed: bool) -> None:
    module, name = (
        ("triton_hadamard_qkv_quantization", "triton_fp8_hadamard_sdpa_quantize")
        if transformed
        else ("triton_qkv_quantization", "triton_fp8_sdpa_quantize")
    )
    given = heads(2 * groups, 2)
    got = named(ATTENTION + module, name)(*given, num_chunks=2)
    for codes, worth, x in zip(got[:3], got[3:], given, strict=True):
        per_head(codes, hadamard(x) if transformed else x, worth)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("transformed", [False, True])
def test_attention_after_rotation(pairs: bool, groups: int, transformed: bool) -> None:
    module, name = (
        ("triton_hadamard_rope_qkv_quantization", "triton_fp8_hadamard_rope_sdpa_quantize")
        if transformed
        else ("triton_rope_qkv_quantization", "triton_fp8_rope_sdpa_quantize")
    )
    q, k, v = heads(2 * groups, 2)
    angle = torch.arange(20).double()[:, None] * torch.rand(1, 16).double()
    wide = angle.repeat_interleave(2, 1) if pairs else torch.cat((angle, angle), 1)
    last = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    function = named(ATTENTION + module, name)
    got = function(
        *last, wide.cos().float(), wide.sin().float(), num_chunks=2, rope_interleaved=pairs
    )
    wanted = [rotated(x, angle.cos(), angle.sin(), pairs) for x in (q, k)] + [v.double()]
    for codes, worth, x in zip(got[:3], got[3:], wanted, strict=True):
        per_head(codes, hadamard(x) if transformed else x, worth)


def test_hadamard_transform() -> None:
    x = randn(2, 3, 20, 32, dtype=half)
    got = named(ATTENTION + "triton_hadamard_utils", "inverse_hadamard_transform")(x, 2)
    close(got, hadamard(x))


@pytest.mark.parametrize("keys", [20, 37])
def test_attention_for_inference(keys: int) -> None:
    """Lengths that differ take other kernels."""
    given = [randn(2, 3, n, 32, dtype=half, seed=s) for s, n in enumerate((20, keys, keys))]
    module = "prototype.fp8_sdpa_inference.fp8_sdpa_quantization"
    got = named(module, "fp8_sdpa_quantize_func")(*given, num_chunks=2)
    for codes, worth, x in zip(got[:3], got[3:], given, strict=True):
        per_head(codes, x, worth)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bound", ["compute_bound", "max_autotune"])
def test_product_with_4_bits(transposed: bool, bound: str) -> None:
    """(rows, K) times (K, columns) of 4 bits with a scale and a zero per group of K; transposed:
    (rows, columns) times its transpose."""
    k, columns, group = 128, 64, 64
    codes = torch.randint(0, 16, (k, columns), dtype=torch.uint8)
    packed = named("prototype.hqq.mixed_mm", "pack_2xint4")(codes)
    scale, zero = randn(k // group, columns).abs() / 10, 8 + randn(k // group, columns, seed=1)
    wide = scale.double().repeat_interleave(group, 0) * (
        codes.double() - zero.double().repeat_interleave(group, 0)
    )
    a = randn(32, columns if transposed else k)
    got = named("prototype.hqq.mixed_mm", "triton_mixed_mm")(
        a, packed, scale.T.contiguous().T, zero.T.contiguous().T, group, transposed,
        kernel_type=bound,
    )  # fmt: skip
    close(got, a.double() @ (wide.T if transposed else wide), factor=20)


def test_product_of_8_bit_integers() -> None:
    a, b = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((40, 96), (96, 72)))
    row, column = randn(40).abs() / 100, randn(72).abs() / 100
    function = named("prototype.quantized_training.int8_mm", "scaled_int8_mm_cuda")
    wanted = a.double() @ b.double() * row.double()[:, None]
    close(function(a, b, row, column), wanted * column.double(), factor=10)
    close(function(a, b, row, column[:1]), wanted * column[0].double(), factor=10)


def test_blocks_and_their_product() -> None:
    x, w = randn(24, 256), randn(128, 256, seed=1)
    codes, worth = named("prototype.blockwise_fp8_inference.kernels", "fp8_blockwise_act_quant")(x)
    close(worth, x.double().unflatten(1, (2, 128)).abs().amax(-1) / LARGEST)
    quantised(codes, x, worth.repeat_interleave(128, 1))
    weight, of_one = w.to(FP8), randn(1, 2).abs()
    module = "quantization.quantize_.workflows.float8.kernels"
    got = named(module, "_blockwise_fp8_gemm")(codes, worth, weight, of_one)
    a = codes.double() * worth.double().repeat_interleave(128, 1)
    b = weight.double() * of_one.double().repeat_interleave(128, 1)
    close(got, a @ b.T, factor=10)


BLOCKWISE = "prototype.blockwise_fp8_training.kernels"
# Of (rows, columns): how large the blocks are, and whether the result is transposed.
QUANTISERS = {
    "act_quant_lhs": ((1, 128), False),
    "act_quant_rhs": ((128, 1), False),
    "act_quant_transposed_lhs": ((128, 1), True),
    "weight_quant_rhs": ((128, 128), False),
    "weight_quant_transposed_rhs": ((128, 128), True),
}


@pytest.mark.parametrize("kind", QUANTISERS)
def test_blocks_for_training(kind: str) -> None:
    (rows, columns), transposed = QUANTISERS[kind]
    x = randn(256, 128)
    codes, worth = named(BLOCKWISE, f"triton_fp8_blockwise_{kind}")(x)
    largest = x.double().abs().unflatten(0, (-1, rows)).unflatten(2, (-1, columns)).amax((1, 3))
    if transposed:
        x, largest, rows, columns = x.T, largest.T, columns, rows
    close(worth, largest / LARGEST)
    quantised(codes, x, worth.repeat_interleave(rows, 0).repeat_interleave(columns, 1))


@pytest.mark.parametrize("columns", [1, 128])
def test_product_of_blocks_for_training(columns: int) -> None:
    a, b = randn(32, 256).to(FP8), randn(256, 128).to(FP8)
    b = b.T.contiguous().T  # columns lie together
    one, other = randn(32, 2).abs(), randn(2, 128 // columns, seed=3).abs()
    got = named(BLOCKWISE, f"triton_fp8_gemm_1x128_128x{columns}")(
        a, b, one.T.contiguous().T, other.T.contiguous().T if columns > 1 else other
    )
    wide = b.double() * other.double().repeat_interleave(128, 0).repeat_interleave(columns, 1)
    close(got, a.double() * one.double().repeat_interleave(128, 1) @ wide, factor=10)


@pytest.mark.parametrize("kind", ["forward", "dgrad"])
def test_blocks_of_experts(kind: str) -> None:
    w = randn(2, 256, 128).transpose(1, 2)  # (experts, K, N), K lies together
    module = "prototype.blockwise_fp8_training.grouped_weight_quant"
    function = named(module, f"triton_fp8_blockwise_weight_quant_grouped_{kind}_rhs")
    codes, worth = function(w)
    x = w.transpose(1, 2) if kind == "forward" else w
    blocks = x.double().abs().unflatten(1, (-1, 128)).unflatten(3, (-1, 128))
    close(worth, blocks.amax((2, 4)) / LARGEST)
    quantised(codes, x, worth.repeat_interleave(128, 1).repeat_interleave(128, 2))


def test_blocks_of_groups_of_rows() -> None:
    x, ends = randn(384, 128), torch.tensor([128, 384], dtype=torch.int32)
    module = "prototype.blockwise_fp8_training.deepgemm_quant"
    codes, worth = named(module, "triton_fp8_blockwise_act_quant_k_grouped_deepgemm")(x, ends)
    close(worth, x.double().abs().unflatten(0, (3, 128)).amax(1).T / LARGEST)
    flat = codes.split([128 * 128, 256 * 128])
    for part, rows, blocks in zip(flat, x.split([128, 256]), worth.split([1, 2], 1), strict=True):
        quantised(part.view(128, -1), rows.T, blocks.repeat_interleave(128, 1))


def scale_of(x: torch.Tensor, dim: int, power: bool) -> torch.Tensor:
    scale = LARGEST / x.double().abs().amax(dim, keepdim=True).clamp(min=1e-12)
    return torch.exp2(torch.floor(torch.log2(scale))) if power else scale


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "rowwise_3d_transpose_rhs",
        "rowwise_3d_transpose_rhs_fused_reduction",
        "colwise_3d_scale_and_cast",
        "rowwise_2d_scale_and_cast",
    ],
)
def test_rows_and_columns(name: str, power: bool) -> None:
    x = randn(32, 64) if "2d" in name else randn(2, 32, 64)
    function = named("prototype.moe_training.kernels.float8_rowwise", f"triton_fp8_{name}")
    codes, got = function(x, output_dtype=FP8, round_scales_to_power_of_2=power)
    scale = scale_of(x, 1 if "colwise" in name else -1, power)
    if "transpose" in name:
        x, scale = x.transpose(1, 2), scale.transpose(1, 2)
    close(got.reshape(scale.shape), scale)
    quantised(codes, x, 1 / scale)


@pytest.mark.parametrize("rows", [48, 400])  # groups of 200 rows fit one tile of another kernel
def test_columns_of_groups(rows: int) -> None:
    power, cut = rows == 48, [16, 32] if rows == 48 else [200, 200]
    x, y = randn(rows, 32), randn(rows, 64)
    ends = torch.tensor([cut[0], rows], dtype=torch.int32)
    module = "prototype.moe_training.kernels.jagged_float8_scales"
    one = named(module, "triton_fp8_per_group_colwise_scales")(x, ends, FP8, power)
    both = named(module, "triton_fp8_per_group_colwise_scales_dual")(x, y, ends, FP8, power)
    for (codes, got), of in zip((one, both[:2], both[2:]), (x, x, y), strict=True):
        parts = of.split(cut)
        scales = [scale_of(p, 0, power) for p in parts]
        close(got, torch.cat([s.flatten() for s in scales]))
        for c, p, s in zip(codes.split(cut), parts, scales, strict=True):
            quantised(c, p, 1 / s)


def test_rows_of_groups() -> None:
    """The function that launches it gives the strides of a result of which columns lie together."""
    import triton
    import triton.language as tl

    module = "prototype.moe_training.kernels.jagged_float8_scales"
    x, ends = randn(32, 48), torch.tensor([16, 48], dtype=torch.int32)
    codes, scales = torch.empty(32, 48, dtype=FP8), torch.empty(64)
    named(module, "_triton_fp8_per_group_rowwise_scales_kernel")[
        lambda meta: (triton.cdiv(32, meta["BLOCK_SIZE"]), 2)
    ](
        *(x, ends, codes, scales, 32, 48, 2, 48, 1, -LARGEST, LARGEST, tl.float32, tl.float8e4nv),
        *(False,),
        EPS=1e-12,
        STRIDE_OUTPUT_ROW=48,
        STRIDE_INPUT_COL=1,
    )
    for c, p, s in zip(
        codes.split([16, 32], 1), x.split([16, 32], 1), scales.split(32), strict=True
    ):
        close(s, scale_of(p, 1, False)[:, 0])
        quantised(c, p, 1 / s[:, None])


def test_rows_go_back_to_where_they_were() -> None:
    module = "prototype.moe_training.ep.permute"
    g, at = randn(6, 40), torch.tensor([3, 0, -1, 4, 1, -1])
    got = named(module, "_triton_permute_bwd")(g, at, 5, 40)
    wanted = torch.zeros(5, 40)
    wanted[at[at >= 0]] = g[at >= 0]
    same(got, wanted)


def test_indices_of_experts() -> None:
    module = "prototype.moe_training.ep.kernels"
    tokens = torch.tensor([4, 2, 1, 3, 1, 2, 3, 4], dtype=torch.int32)
    start = tokens.cumsum(0).int() - tokens
    write = torch.tensor([0, 8, 16, 24], dtype=torch.int32)
    given = (tokens, start, write, 4, 2, 40)
    same(named(module, "fill_indices_wrapper")(*given), named(module, "fill_indices_cpu")(*given))


@pytest.mark.parametrize("algorithm", ["ATOMIC_MAX", "REDUCTION"])
def test_scale_of_a_tensor(algorithm: str) -> None:
    import triton.language as tl

    module = "prototype.float8nocompile.kernels.fp8_dynamic_tensorwise"
    how = getattr(named(module, "KernelAlgorithm"), algorithm)
    x = randn(40, 70)
    got = named(module, "_hp_tensor_to_scale")(x, tl.float32, LARGEST, how)
    close(got.reshape(()), LARGEST / x.double().abs().max())


SCALES = "prototype.moe_training.kernels.mxfp8.quant"


@pytest.mark.parametrize("along", ["2d_M_groups", "2d_K_groups", "per_group_3d"])
def test_scales_in_the_order_of_tensor_cores(along: str) -> None:
    """Bytes are moved: as the library's own functions of torch move them."""
    bytes_ = torch.randint(1, 255, (2, 256, 8) if "3d" in along else (256, 8), dtype=torch.uint8)
    scales = bytes_.view(torch.float8_e8m0fnu)
    ends = {"2d_M_groups": [96, 256], "2d_K_groups": [3, 8], "per_group_3d": []}[along]
    more = [torch.tensor(ends, dtype=torch.int32)] if ends else []
    wanted = named(SCALES, f"torch_to_blocked_{along}")(scales, *more)
    wanted = wanted[0] if isinstance(wanted, tuple) else wanted
    got = named(SCALES, f"triton_mx_block_rearrange_{along}")(scales, *more)
    same(got.view(torch.uint8), wanted.view(torch.uint8))


def test_largest_after_a_transform_of_long_groups() -> None:
    """Of groups with 1024 rows and more, which take a kernel of their own."""
    module = "prototype.moe_training.nvfp4_training."
    signs = [1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1]
    x, ends = randn(2176, 128, dtype=half), torch.tensor([1024, 2176], dtype=torch.int32)
    function = named(module + "group_hadamard_amax_triton", "triton_group_rht_amax")
    columns, rows = function(x, signs, ends, 2, 2176, 128, 1)
    matrix = named(module + "hadamard_utils", "get_rht_matrix")(
        tuple(signs), str(x.device), half, 16
    )
    for k, part in enumerate((x[:1024], x[1024:])):
        close(rows[k], part.double().abs().max())
        turned = part.double().T.unflatten(1, (-1, 16)) @ matrix.double()
        assert (columns[k] - turned.abs().max()).abs() < 0.01 * columns[k]
