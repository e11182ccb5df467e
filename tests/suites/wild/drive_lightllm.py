"""lightllm: norms, rotary embedding, activations, copies into a cache, narrow numbers, experts."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from reference import close, randn, rms_norm, rotated, same

BASE = "common.basemodel.triton_kernel."


def function(path: str, name: str) -> Any:
    return getattr(import_module(f"lightllm.{path}"), name)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


# ---- norms, activations, rotary embedding


def test_norms() -> None:
    x, w = randn(3, 48), randn(48)
    close(function("models.llama.triton_kernel.rmsnorm", "rmsnorm_forward")(x, w, 1e-5),
          rms_norm(x, w, 1e-5))  # fmt: skip
    close(function("models.vit.triton_kernel.rms_norm_vit", "rms_norm")(x, w), rms_norm(x, w, 1e-5))


def test_layer_norm_by_heads() -> None:
    x, w = randn(3, 4, 48), randn(4, 48)
    got = function("models.cohere.triton_kernels.layernorm", "layernorm_forward")(x, w, 1e-5)
    close(got, F.layer_norm(x.double(), (48,), eps=1e-5) * w.double())


def test_layer_norm() -> None:
    kernel = function("models.bloom.triton_kernel.layernorm", "_layer_norm_fwd_fused")
    x, w, b = randn(3, 200), randn(200), randn(200, seed=1)
    y = torch.empty_like(x)
    kernel[(3,)](x, y, w, b, 200, 200, 1e-5, BLOCK_SIZE=128)
    close(y, F.layer_norm(x.double(), (200,), w.double(), b.double(), 1e-5))


@pytest.mark.parametrize(
    "path, name, activation",
    [
        ("models.llama.triton_kernel.silu_and_mul", "silu_and_mul_fwd", F.silu),
        ("common.fused_moe.moe_silu_and_mul", "silu_and_mul_fwd", F.silu),
        ("models.gemma_2b.triton_kernel.gelu_and_mul", "gelu_and_mul_fwd", "tanh"),
    ],
)
def test_gated_activation(path: str, name: str, activation: Any) -> None:
    x, out = randn(5, 80), torch.empty(5, 40)
    config = {"BLOCK_M": 8, "BLOCK_N": 32, "num_warps": 4} if "moe" in path else {}
    function(path, name)(x, out, **config)
    gate, up = x.double().chunk(2, -1)
    gate = F.gelu(gate, approximate="tanh") if activation == "tanh" else activation(gate)
    close(out, gate * up)


def test_gelu() -> None:
    x = randn(5, 40)
    close(function("models.vit.triton_kernel.gelu_vit", "gelu_fwd")(x), F.gelu(x.double()))


@pytest.mark.parametrize(
    "model, pairs",
    [("llama", False), ("phi3", False), ("cohere", True), ("chatglm2", True), ("deepseek2", True)],
)
def test_rotary(model: str, pairs: bool) -> None:
    folder = "triton_kernels" if model == "cohere" else "triton_kernel"
    forward = function(f"models.{model}.{folder}.rotary_emb", "rotary_emb_fwd")
    q, k = randn(7, 4, 32), randn(7, 2, 32)
    part = 16 if model == "chatglm2" else 32  # the rest is left as it is
    angle = torch.rand(7, part // 2, generator=torch.Generator().manual_seed(1))
    cos, sin = angle.cos(), angle.sin()
    wide = (x.repeat_interleave(2, -1) if model == "cohere" else x for x in (cos, sin))
    got = [q.clone(), k.clone()]
    forward(*got, *(x.contiguous() for x in wide))
    for x, y in zip((q, k), got, strict=True):
        turned = rotated(x[..., :part], cos[:, None], sin[:, None], pairs)
        close(y, torch.cat((turned, x[..., part:].double()), -1))


def test_embedding() -> None:
    weight, out = randn(10, 40), torch.empty(5, 40)
    ids = ints(20, 25, 3, 29, 30)
    function("models.llama.triton_kernel.embedding", "embedding")(ids, weight, 20, 30, out)
    here = (ids >= 20) & (ids < 30)
    same(out, torch.where(here[:, None], weight[(ids - 20).clamp(0, 9).long()], 0))


def test_embedding_of_images() -> None:
    text, images, out = randn(10, 40), randn(6, 40, seed=1), torch.zeros(6, 40)
    ids = ints(3, 100, 101, 9, 200, 201)
    function(BASE + "multimodal_emb", "multimodal_emb")(
        out, ids, text, images, ints(2, 2), ints(100, 200), ints(0, 3), 0, 10
    )
    same(out, torch.stack((text[3], images[0], images[1], text[9], images[3], images[4])))


# ---- penalties of sampling


def penalised(logits: torch.Tensor, counts: torch.Tensor, m: Any, at: torch.Tensor) -> torch.Tensor:
    x, seen = logits.double(), counts > 0
    factor = m.req_to_repetition_penalty[at].double()[:, None]
    x = torch.where(seen, torch.where(x > 0, x / factor, x * factor), x)
    x = x - counts * m.req_to_frequency_penalty[at].double()[:, None]
    return x - seen * m.req_to_presence_penalty[at].double()[:, None]


@pytest.mark.parametrize("cached", [False, True])
def test_penalties(cached: bool) -> None:
    counts = torch.randint(0, 3, (2, 50), generator=torch.Generator().manual_seed(0)).int()
    at, length, ended = ints(2, 1), ints(1, 3), torch.tensor([True, False])
    stored = torch.zeros(4, 50, dtype=torch.int32)
    stored[at.long()] = counts
    names = ("presence", "frequency", "repetition", "exponential_decay_length")
    m = SimpleNamespace(
        vocab_size=50,
        req_to_out_token_id_counter=stored,
        **{f"req_to_{x}_penalty": randn(4, seed=k).abs() + 1 for k, x in enumerate(names)},
    )
    logits, ends = randn(2, 50), ints(7, 9)
    got = logits.clone()
    if cached:
        forward = function(BASE + "apply_penalty_gpu_cache", "apply_penalty_gpu_cache")
        forward(got, at, length, ended, ends, m)
    else:
        ids = [row.nonzero()[:, 0].int() for row in counts]
        sums = ints(0, len(ids[0]), len(ids[0]) + len(ids[1]))
        times = torch.cat([row[i.long()] for row, i in zip(counts, ids, strict=True)])
        function(BASE + "apply_penalty", "apply_penalty")(
            got, at, length, ended, torch.cat(ids), times, sums, ends, m
        )
    wanted = penalised(logits, counts, m, at.long())
    grow = m.req_to_exponential_decay_length_penalty[at.long()].double() ** length - 1
    for e in (7, 9):
        late = wanted[:, e] + wanted[:, e].abs() * grow
        wanted[:, e] = torch.where(ended, -10000000.0, late)
    close(got, wanted)


# ---- copies


def test_index_of_last_token() -> None:
    table = torch.zeros(4, 8, dtype=torch.int32)
    forward = function(BASE + "copy_kv_index_to_req", "copy_kv_index_to_req")
    forward(table, ints(3, 1), ints(5, 2), ints(40, 41))
    assert table[3, 4] == 40 and table[1, 1] == 41 and table.sum() == 81


AT = (4, 0, 6)


@pytest.mark.parametrize("where", [BASE, "models.phi3.triton_kernel."])
def test_copies_into_a_cache(where: str) -> None:
    k = randn(3, 4, 48 if "phi3" in where else 32)
    out = torch.zeros(8, *k.shape[1:])
    function(where + "destindex_copy_kv", "destindex_copy_kv")(k, ints(*AT), out)
    same(out[list(AT)], k)
    whole, scale = out.to(torch.int8) * 0, torch.zeros(8, 4, 1)
    forward = function(where + "destindex_copy_kv", "destindex_copy_quantize_kv")
    forward(k, ints(*AT), whole, scale)
    close(scale[list(AT)], k.double().abs().amax(-1, keepdim=True) / 127)
    near(whole[list(AT)], k.double() / scale[list(AT)].double())


def near(got: torch.Tensor, exact: torch.Tensor) -> None:
    """Integers that a value was cut to; at a whole number either side may be met."""
    assert (got.double() - exact).abs().max() < 1.001


def test_copies_by_groups() -> None:
    path = "models.llama.triton_kernel.ppl_quant_copy_kv"
    k = randn(3, 2, 32)
    whole, scale = torch.zeros(8, 2, 32, dtype=torch.int8), torch.zeros(8, 2, 4)
    function(path, "destindex_copy_quantize_kv")(k, ints(*AT), whole, scale)
    groups = k.double().view(3, 2, 4, 8)
    close(scale[list(AT)], groups.abs().amax(-1) / 127)
    near(whole[list(AT)].view(3, 2, 4, 8), groups / scale[list(AT)].double()[..., None])
    table, out = ints(*AT)[None].contiguous(), torch.zeros(1, 2, 3, 32)
    function(path, "destindex_copy_dequantize_kv")(whole, scale, table, ints(3), ints(0), 3, out)
    restored = whole.double().view(8, 2, 4, 8) * scale.double()[..., None]
    close(out[0], restored.view(8, 2, 32)[list(AT)].transpose(0, 1))


def test_copies_of_four_bits() -> None:
    path = "models.llama.triton_kernel.ppl_int4kv_copy_kv"
    kernel = function(path, "_fwd_kernel_destindex_copy_quantize_int4_kv")
    k = randn(3, 2, 4, 8)
    out, scale = torch.zeros(8, 2, 4, 4, dtype=torch.int8), torch.zeros(8, 2, 4)
    kernel[(3, 2)](
        k, ints(*AT), out, scale, *k.stride(), *out.stride(), *scale.stride(), 4,
        BLOCK_GROUP_NUM=4, BLOCK_GROUP_DIM=8,
    )  # fmt: skip
    close(scale[list(AT)], k.double().abs().amax(-1) / 7)
    byte = out[list(AT)].int()
    both = torch.stack((byte << 28 >> 28, byte >> 4), -1).flatten(-2)
    near(both, k.double() / scale[list(AT)].double()[..., None])


def test_latent_copies() -> None:
    path = "models.deepseek2.triton_kernel."
    nope, rope = randn(3, 1, 32), randn(3, 1, 16)
    out = [torch.zeros(8, 1, 32), torch.zeros(8, 1, 16)]
    function(path + "destindex_copy_kv", "destindex_copy_kv")(nope, rope, ints(*AT), *out)
    same(out[0][list(AT)], nope)
    same(out[1][list(AT)], rope)
    both, table = torch.cat(out, -1), ints(*AT)[None].contiguous()
    got = [torch.zeros(3, 1, 32), torch.zeros(3, 1, 16)]
    function(path + "sample_kv", "sample_kv")(both, *got, ints(0), 3, ints(3), table, ints(0))
    same(torch.cat(got, -1), both[list(AT)])
    wide = torch.zeros(3, 4, 16)
    function(path + "repeat_rope", "repeat_rope")(wide, rope)
    same(wide, rope.expand(-1, 4, -1))


def test_moves_between_caches() -> None:
    x, out = randn(8, 4, 100), torch.zeros(8, 4, 100)
    forward = function("common.kv_trans_kernel.kv_trans", "kv_trans")
    forward(x, ints(*AT), out, ints(1, 2, 3))
    same(out[[1, 2, 3]], x[list(AT)])
    dest = torch.zeros(8, 4, 100)
    function("utils.custom_kernel_utis", "tensor_copy_3dim")(dest, x)
    same(dest, x)


# ---- products of narrow numbers


def packed_weight(k: int, n: int, group: int) -> tuple[torch.Tensor, ...]:
    """Eight weights of four bits in an int32, and what they stand for."""
    generator = torch.Generator().manual_seed(k + n)
    w = torch.randint(0, 16, (k, n), generator=generator)
    zero = torch.randint(0, 16, (k // group, n), generator=generator)
    scale = randn(k // group, n).abs() / 8
    shift = 4 * torch.arange(8)
    rows = (w.view(k // 8, 8, n) << shift[:, None]).sum(1)
    columns = (zero.view(-1, n // 8, 8) << shift).sum(-1)
    wide = (w - zero.repeat_interleave(group, 0)) * scale.double().repeat_interleave(group, 0)
    wrap = [torch.where(x > 2**31 - 1, x - 2**32, x).int() for x in (rows, columns)]
    return wrap[0].contiguous(), scale, wrap[1].contiguous(), wide


@pytest.mark.parametrize("kind", ["s1", "s2", "gptq"])
def test_product_with_four_bits(kind: str) -> None:
    forward = function(BASE + "dequantize_gemm_int4", f"matmul_dequantize_int4_{kind}")
    w, scale, zero, wide = packed_weight(256, 256, 128)
    x = randn(16, 256, dtype=torch.float16)
    got = forward(x, w, scale.half(), zero, 128)
    close(got, x.double() @ wide, factor=8)


def test_product_with_bytes() -> None:
    w = torch.randint(-127, 128, (64, 48), generator=torch.Generator().manual_seed(0))
    w, scale, x = w.to(torch.int8), randn(48).abs() / 64, randn(8, 64)
    forward = function(BASE + "dequantize_gemm_int8", "matmul_dequantize_int8")
    close(forward(x, w, scale[None]), x.double() @ (w.double() * scale.double()))


def test_product_of_bytes() -> None:
    path = BASE + "quantize_gemm_int8"
    x = randn(16, 256)
    whole, scale = function(path, "quantize_int8_perrow")(x)
    close(scale, x.double().abs().amax(1) / 127)
    near(whole, x.double() / scale.double()[:, None])
    w = torch.randint(-127, 128, (256, 128), generator=torch.Generator().manual_seed(0))
    w, w_scale = w.to(torch.int8), randn(128).abs() / 127
    got = function(path, "matmul_int8")(whole, scale, w, w_scale)
    wide = whole.double() * scale.double()[:, None]
    close(got, wide @ (w.double() * w_scale.double()), factor=4)


F8 = torch.float8_e4m3fn


def test_products_of_floats_of_8_bits() -> None:
    a, b = randn(2, 16, 128).to(F8), randn(2, 32, 128, seed=1).to(F8).transpose(1, 2)
    a_scale, b_scale = randn(2, 16, 1).abs(), randn(2, 32, 1, seed=1).abs()
    config = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 2}
    c = torch.empty(2, 16, 32)
    function(BASE + "bmm_scaled_fp8", "bmm_scaled_fp8")(
        a, a_scale, b, b_scale, c, **config, num_stages=1, num_warps=4
    )
    close(c, a.double() @ b.double() * a_scale * b_scale.mT, factor=10)


def test_products_of_blocks() -> None:
    path = "common.quantization.triton_quant.fp8.fp8w8a8_block_gemm_kernel"
    a, b = randn(16, 256).to(F8), randn(128, 256, seed=1).to(F8).T
    a_scale, b_scale = randn(16, 2).abs(), randn(2, 1).abs()
    config = {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 128, "GROUP_M": 2}
    c = torch.empty(16, 128)
    function(path, "w8a8_block_fp8_matmul")(
        a, b, a_scale, b_scale, c, (128, 128), **config, num_stages=1, num_warps=4
    )
    wide = a.double() * a_scale.double().repeat_interleave(128, 1)
    close(c, wide @ (b.double() * b_scale.double().repeat_interleave(128, 0)), factor=10)


def test_rounding_to_floats_of_8_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "common.quantization.triton_quant.fp8."
    module = import_module(f"lightllm.{path}fp8act_quant_kernel")
    # It is a function of DeepGEMM's, which is not installed.
    monkeypatch.setattr(module, "ceil_div", lambda a, b: -(-a // b), raising=False)
    x = randn(4, 256)
    y, scale = torch.empty(4, 256, dtype=F8), torch.empty(4, 2)
    forward = function(path + "fp8act_quant_kernel", "lightllm_per_token_group_quant_fp8")
    forward(x, 128, y, scale)
    close(scale, x.double().view(4, 2, 128).abs().amax(-1) / 448)
    close(y, x.double() / scale.double().repeat_interleave(128, 1))
    same(function(path + "fp8act_quant_kernel", "tma_align_input_scale")(scale), scale)
    w = randn(256, 128)
    y, scale = function(path + "fp8w8a8_block_quant_kernel", "mm_weight_quant")(w)
    close(scale, w.double().view(2, 128, 1, 128).abs().amax((1, 3)) / 448)
    close(y, w.double() / scale.double().repeat_interleave(128, 0))
    back = function("models.deepseek2.triton_kernel.weight_dequant", "weight_dequant")(y, scale)
    close(back, y.double() * scale.double().repeat_interleave(128, 0))


# ---- experts


def test_softmax_of_experts() -> None:
    x = randn(5, 40)
    got, ids = function("common.fused_moe.softmax_topk", "softmax_topk")(x, 3, True)
    weights, wanted = x.double().softmax(-1).topk(3)
    same(ids, wanted)
    close(got, weights / weights.sum(-1, keepdim=True))


def test_sum_over_experts() -> None:
    x, out = randn(5, 3, 40), torch.empty(5, 40)
    config = {"BLOCK_M": 1, "BLOCK_DIM": 32, "NUM_STAGE": 1, "num_warps": 2}
    function("common.fused_moe.moe_sum_reduce", "moe_sum_reduce")(x, out, **config)
    close(out, x.double().sum(1))


def test_activation_of_experts() -> None:
    x, counts = randn(2, 4, 256), ints(3, 4)
    out, scale = torch.zeros(2, 4, 128, dtype=F8), torch.zeros(2, 4, 1)
    forward = function(
        "common.fused_moe.moe_silu_and_mul_mix_quant_ep", "silu_and_mul_masked_post_quant_fwd"
    )
    forward(x, out, scale, 128, counts)
    gate, up = x.double().chunk(2, -1)
    wanted = F.silu(gate) * up
    for e, n in enumerate(counts.tolist()):
        close(scale[e, :n], wanted[e, :n].abs().amax(-1, keepdim=True) / 448)
        close(out[e, :n], wanted[e, :n] / scale[e, :n].double())


def test_scatter_to_experts_and_back() -> None:
    path = "common.fused_moe.deepep_scatter_gather"
    x, x_scale = randn(5, 1024), randn(5, 8)
    ids = torch.tensor([[0, 1], [1, -1], [2, 0], [1, 2], [-1, 0]])
    counts, starts = ints(128, 128, 128), torch.empty(3, dtype=torch.int32)
    out, out_scale = torch.zeros(384, 1024), torch.zeros(384, 8)
    owner = torch.full((384,), -1, dtype=torch.int32)
    at = torch.full((5, 2), -1, dtype=torch.int32)
    function(path, "ep_scatter")(x, x_scale, ids, counts, starts, out, out_scale, owner, at)
    same(owner, torch.arange(3).repeat_interleave(128))
    weight = randn(5, 2).abs()
    wanted = torch.zeros(5, 1024, dtype=torch.float64)
    for t in range(5):
        for k in range(2):
            if ids[t, k] >= 0:
                assert int(at[t, k]) // 128 == ids[t, k]
                same(out[at[t, k]], x[t])
                same(out_scale[at[t, k]], x_scale[t])
                wanted[t] += x[t].double() * weight[t, k]
    back = torch.empty(5, 1024)
    function(path, "ep_gather")(out, ids, weight, at, back)
    close(back, wanted)


@pytest.mark.parametrize("weighted", [False, True])
def test_products_of_experts(weighted: bool) -> None:
    path = "common.fused_moe.grouped_fused_moe"
    tokens, experts, top = 6, 4, 2
    x, w = randn(tokens, 64).half(), randn(experts, 32, 64).half()
    ids = torch.stack([torch.randperm(experts)[:top] for _ in range(tokens)]).int()
    share = randn(tokens, top).abs()
    table = torch.empty(experts, tokens * top, dtype=torch.int32)
    function(path, "moe_align")(ids, table)
    weights, counts = torch.empty(experts, tokens * top), torch.empty(experts, dtype=torch.int32)
    function(path, "moe_align1")(table, share, weights, counts, top)
    config = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 1}
    out = torch.empty(tokens * top, 32, dtype=torch.float16)
    function(path, "grouped_matmul")(
        tokens * top, x, None, counts, table, weights, w, None, top, out, weighted, False,
        **config, num_warps=4, num_stages=1,
    )  # fmt: skip
    wanted = torch.einsum("tk,tjnk->tjn", x.double(), w.double()[ids.long()])
    wanted = wanted * share.double()[..., None] if weighted else wanted
    close(out, wanted.flatten(0, 1), factor=4)
