"""vLLM: numbers of few bits: making them, and products with them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from drive_vllm import LAYERS, function, ints
from drive_vllm_experts import FOURS
from drive_vllm_lora import EIGHT, squeezed
from reference import close, randn, same

UTILS = LAYERS + "quantization.utils."


def near(got: torch.Tensor, scale: torch.Tensor, wanted: torch.Tensor, steps: float) -> None:
    """Numbers times their scales are what was meant, up to a rounding of so many steps."""
    off = (got.double() * scale.double() - wanted.double()).abs()
    assert (off <= steps * scale.double() + wanted.double().abs() * 2**-4 * 1.01).all()


def integers_near(
    got: torch.Tensor, scale: torch.Tensor, wanted: torch.Tensor, steps: float = 0.51
) -> None:
    off = (got.double() * scale.double() - wanted.double()).abs()
    assert (off <= steps * scale.double() + 1e-9).all()


@pytest.mark.parametrize("major", ["row", "column"])
@pytest.mark.parametrize("powers", [False, True])
def test_groups_in_8_bit_floats(major: str, powers: bool) -> None:
    x = randn(5, 160)[:, :128]  # not contiguous: otherwise it asks a GPU
    got, scale = function(UTILS + "fp8_utils", "per_token_group_quant_fp8")(
        x, 64, column_major_scales=major == "column", use_ue8m0=powers
    )
    groups = x.double().reshape(5, 2, 64)
    right = groups.abs().amax(-1) / 448
    close(scale, right.log2().ceil().exp2() if powers else right)
    near(got.view(5, 2, 64), scale[..., None], groups, 2**-9)


def test_gate_and_groups_in_8_bit_floats() -> None:
    x = randn(16, 64, dtype=torch.bfloat16)
    got, scale = function(UTILS + "fp8_utils", "silu_mul_per_token_group_quant_fp8_colmajor")(
        x, use_ue8m0=False, group_size=16
    )
    gate, up = x.double().chunk(2, -1)
    y = (F.silu(gate) * up).view(16, 2, 16)
    close(scale, y.abs().amax(-1) / 448, 100)
    near(got.view(16, 2, 16), scale[..., None], y, 2**-9 + 2)


def test_gate_and_groups_with_shared_exponents() -> None:
    x = randn(5, 256, dtype=torch.bfloat16)
    got, packed = function(UTILS + "fp8_utils", "silu_mul_quant_fp8_packed_triton")(x, 32)
    gate, up = x.double().chunk(2, -1)
    y = (F.silu(gate) * up).view(5, 4, 32)
    scale = 2.0 ** ((packed[..., None] >> torch.arange(0, 32, 8)) & 255).view(5, 4).sub(127)
    top = y.abs().amax(-1) / 448
    assert (scale >= top * 0.98).all() and (scale <= 2.04 * top).all()
    near(got.view(5, 4, 32), scale[..., None], y, 2**-9 + 2)


def test_products_of_blocks_of_8_bit_floats() -> None:
    a, by = squeezed(randn(5, 2, 128), (2,))
    b, on = squeezed(randn(1, 128, 2, 128), (1, 3))
    got = function(UTILS + "fp8_utils", "w8a8_triton_block_scaled_mm")(
        a.view(5, 256), b.view(128, 256), by.view(5, 2), on.view(1, 2), [128, 128], torch.float32
    )
    wide = (a.double() * by).view(5, 256), (b.double() * on).view(128, 256)
    close(got, wide[0] @ wide[1].T, 50)


def test_rows_in_8_bit_integers() -> None:
    path, x = UTILS + "int8_utils", randn(5, 96)
    got, scale = function(path, "per_token_quant_int8")(x)
    close(scale, x.double().abs().amax(-1, keepdim=True) / 127)
    integers_near(got, scale, x)
    got, scale = torch.zeros(5, 96, dtype=torch.int8), torch.zeros(5, 3)
    function(path, "_per_token_group_quant_int8")[(15,)](
        x, got, scale, 32, 32, 1e-10, -128, 127, BLOCK=32
    )
    groups = x.double().view(5, 3, 32)
    close(scale, groups.abs().amax(-1) / 127)
    integers_near(got.view(5, 3, 32), scale[..., None], groups, 1.01)  # towards zero


@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("each", [False, True])
def test_products_with_scales(kind: str, each: bool) -> None:
    if kind == "int8":
        a, b = (torch.randint(-99, 99, s).to(torch.int8) for s in ((33, 64), (64, 48)))
    else:
        a, b = randn(33, 64).to(EIGHT), randn(64, 48).to(EIGHT)
    by, on = (torch.rand(33, 1), torch.rand(48, 1)) if each else (torch.rand(1, 1),) * 2
    bias = randn(48)
    got = function(LAYERS + "quantization.compressed_tensors.triton_scaled_mm",
                   "triton_scaled_mm")(a, b, by, on, torch.float32, bias)  # fmt: skip
    wanted = (a.double() @ b.double()) * by.double() * on.double().T + bias
    torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-2)


ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where a column of eight is in a word


def packed(x: torch.Tensor, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    words = x.long().unflatten(-1, (-1, 8))
    out = sum(words[..., k] << 4 * place for k, place in enumerate(order))
    return torch.as_tensor(out).to(torch.int64).sub(1 << 32).where(
        torch.as_tensor(out) >= 1 << 31, torch.as_tensor(out)
    ).int()  # fmt: skip


def whole(rows: int, columns: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 16, (rows, columns), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("parts", [1, 2])
def test_weights_of_4_bits_by_columns(parts: int) -> None:
    path = LAYERS + "quantization.awq_triton"
    w, zero = whole(64, 64, 0), whole(2, 64, 1)
    scale = (torch.rand(2, 64) + 0.5).half()
    given = packed(w, ORDER), scale, packed(zero, ORDER)
    wide = (w - zero.repeat_interleave(32, 0)) * scale.double().repeat_interleave(32, 0)
    close(function(path, "awq_dequantize_triton")(*given), wide)
    x = randn(9, 64, dtype=torch.float16) / 8
    got = function(path, "awq_gemm_triton")(x, *given, parts)
    close(got, x.double() @ wide, 4)


@pytest.mark.parametrize("zeros", [False, True])
def test_weights_of_4_bits_in_order(zeros: bool) -> None:
    w, zero = whole(64, 64, 2), whole(2, 64, 3)
    scale, x = (torch.rand(2, 64) + 0.5).half(), randn(9, 64, dtype=torch.float16) / 8
    got = function("model_executor.kernels.linear.mixed_precision.triton_w4a16",
                   "triton_w4a16_gemm")(
        x, packed(w), scale, packed(zero) if zeros else None, 32
    )  # fmt: skip
    shift = zero.repeat_interleave(32, 0) if zeros else 8
    close(got, x.double() @ ((w - shift) * scale.double().repeat_interleave(32, 0)), 4)


@pytest.mark.parametrize("groups", [1, 2])
def test_embeddings_of_4_bits(groups: int) -> None:
    w, scale, ids = whole(10, 64, 4), torch.rand(10, groups) + 0.5, ints(3, 9, 0)
    got = function(LAYERS + "quantization.compressed_tensors.compressed_tensors_embedding",
                   "_dequant_gather_triton")(ids, packed(w), scale, 64, 4)  # fmt: skip
    wide = (w - 8) * scale.double().repeat_interleave(64 // groups, 1)
    close(got, wide[ids.long()])


def test_scales_in_blocks() -> None:
    kernel = function(LAYERS + "quantization.qutlass_utils", "triton_scale_swizzle")
    x = torch.randint(0, 255, (200, 6)).byte()
    out = torch.zeros(2 * 2 * 512, dtype=torch.uint8)
    kernel[(2, 2)](x, 200, 6, out, 6, 2 * 512, BLOCK_ROWS=128, BLOCK_COLS=4)
    wide = F.pad(x, (0, 2, 0, 56)).view(2, 4, 32, 2, 4)  # block, quarter, row, block, column
    same(out, wide.permute(0, 3, 2, 1, 4).flatten())


def fours(x: torch.Tensor) -> torch.Tensor:
    """The nearest floats of 4 bits, ties to the even one."""
    order = (x.double().abs()[..., None] - FOURS.double()).abs()
    order = order + torch.tensor([0, 1e-9] * 4)  # odd ones lose ties
    return FOURS.double()[order.argmin(-1)] * x.double().sign()


def test_4_bit_floats_and_back() -> None:
    path = UTILS + "nvfp4_emulation_utils"
    code = whole(6, 64, 5)
    values = FOURS[code & 7] * torch.where(code > 7, -1.0, 1.0)
    scale, factor = (torch.rand(6, 4) + 0.5).to(EIGHT), torch.tensor(0.3)
    got = function(path, "_triton_dequantize_nvfp4")(
        (code[:, ::2] | code[:, 1::2] << 4).byte(), scale, factor, torch.float32
    )
    exact = values.view(6, 4, 16).double() * scale.double()[..., None] * 0.3
    close(got, exact.view(6, 64))
    x = randn(5, 64)
    got = function(path, "_triton_nvfp4_quant_dequant")(x, torch.tensor(2.0), 16)
    groups = x.view(5, 4, 16)
    by = (2.0 * groups.abs().amax(-1) / 6).to(EIGHT).double()[..., None]
    wanted = fours((groups.double() * (2.0 / by)).clamp(-6, 6)) * by / 2
    assert ((got.double() - wanted.view(5, 64)).abs() < 1e-4).double().mean() > 0.99


def test_4_bit_floats_with_shared_exponents() -> None:
    x = randn(9, 64, dtype=torch.bfloat16)
    got, scale, _ = function(UTILS + "mxfp4_utils", "downcast_to_mxfp")(x, 1)
    code = torch.stack((got & 15, got >> 4), -1).flatten(1).long()
    values = FOURS[code & 7] * torch.where(code > 7, -1.0, 1.0)
    by = 2.0 ** (scale.double() - 127)
    groups = x.double().view(9, 2, 32)
    # The largest of a group is between 3.5 and 7 of its steps: a quarter rounds up.
    share = groups.abs().amax(-1) / by
    assert ((share >= 3.5) & (share < 7)).all()
    wanted = fours((groups / by[..., None]).clamp(-6, 6))
    same(values.view(9, 2, 32), wanted)


def test_8_bit_floats_with_shared_exponents() -> None:
    x = randn(9, 64, dtype=torch.bfloat16)
    got, scale = function(UTILS + "mxfp8_utils", "_mxfp8_e4m3_quantize_triton")(x)
    groups = x.double().view(9, 2, 32)
    exponent = (groups.abs().amax(-1) / 448).log2().ceil()
    same(scale, exponent + 127)
    same(got.view(9, 2, 32).float(), (groups / exponent.exp2()[..., None]).to(EIGHT).float())


@pytest.mark.parametrize("scaled", [False, True])
def test_heads_in_8_bit_floats(scaled: bool) -> None:
    x = randn(3, 4, 3 * 20)[..., 20:40]
    got = function("kernels.triton.qkv_padded_fp8_quant", "quantize_fp8_pad_head_dim_triton")(
        x, torch.tensor([0.5]), skip_scale=not scaled
    )
    wanted = F.pad(x / 0.5 if scaled else x, (0, 12)).to(EIGHT)
    same(got.float(), wanted.float())
