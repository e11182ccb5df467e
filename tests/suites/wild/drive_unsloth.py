"""unsloth: norms, rotary embedding, gated activations, cross entropy, floats of 8 bits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from reference import close, compare_gradients, randn, rms_norm, rotated


@pytest.mark.parametrize("gemma", [False, True])
def test_rms_norm(gemma: bool) -> None:
    from unsloth.kernels.rms_layernorm import Fast_RMS_Layernorm

    w = randn(48)
    compare_gradients(
        lambda x: Fast_RMS_Layernorm.apply(x, w, 1e-5, gemma),
        lambda x: rms_norm(x, w + 1 if gemma else w, 1e-5),
        [randn(2, 5, 48)],
    )


def test_layer_norm() -> None:
    from unsloth.kernels.layernorm import Fast_Layernorm

    w, b = randn(48), randn(48, seed=1)
    compare_gradients(
        lambda x: Fast_Layernorm.apply(x, w, b, 1e-5),
        lambda x: F.layer_norm(x, (48,), w.double(), b.double(), 1e-5),
        [randn(2, 5, 48)],
    )


def angles(length: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    angle = torch.arange(length).double()[:, None] * torch.rand(1, width // 2).double()
    angle = torch.cat((angle, angle), -1)
    return angle.cos().float(), angle.sin().float()


def test_rotary() -> None:
    from unsloth.kernels.rope_embedding import Fast_RoPE_Embedding

    cos, sin = angles(7, 32)
    compare_gradients(
        lambda q: Fast_RoPE_Embedding.apply(q, cos, sin),
        lambda q: rotated(q, cos[:, None, :16], sin[:, None, :16], False),
        [randn(2, 7, 4, 32)],
    )


@pytest.mark.parametrize("indices", [False, True])
def test_rotary_of_queries_and_keys(indices: bool) -> None:
    from unsloth.kernels.rope_embedding import Fast_RoPE_Embedding_QK

    cos, sin = angles(12, 32)
    at = torch.tensor([[0, 1, 2, 0, 1, 5, 6]] * 2, dtype=torch.int32)
    q, k = randn(2, 4, 7, 32), randn(2, 2, 7, 32)
    got = Fast_RoPE_Embedding_QK.apply(q.clone(), k.clone(), cos, sin, at if indices else None)
    rows = at[0].long() if indices else torch.arange(7)
    for x, y in zip((q, k), got, strict=True):
        close(y, rotated(x, cos[rows, :16], sin[rows, :16], False))


GATED = {
    "geglu_exact": lambda e: F.gelu(e),
    "geglu_approx": lambda e: F.gelu(e, approximate="tanh"),
    "swiglu": lambda e: F.silu(e),
}


@pytest.mark.parametrize("kind", sorted(GATED))
def test_gated_activation(kind: str) -> None:
    from unsloth.kernels import geglu, swiglu

    e, g = randn(2, 3, 40), randn(2, 3, 40, seed=1)
    forward = {
        "geglu_exact": geglu.geglu_exact_forward_kernel,
        "geglu_approx": geglu.geglu_approx_forward_kernel,
        "swiglu": swiglu.swiglu_fg_kernel,
    }[kind]
    close(forward(e, g), GATED[kind](e.double()) * g.double())


@pytest.mark.parametrize("kind", sorted(GATED))
def test_gradient_of_gated_activation(kind: str) -> None:
    """It gives the product, and the gradients of the up and of the gate, in place."""
    from unsloth.kernels import geglu, swiglu

    slope, e, g = randn(6, 40), randn(6, 40, seed=1), randn(6, 40, seed=2)
    backward = {
        "geglu_exact": geglu.geglu_exact_backward_kernel,
        "geglu_approx": geglu.geglu_approx_backward_kernel,
        "swiglu": swiglu.swiglu_DWf_DW_dfg_kernel,
    }[kind]
    gate = e.double().requires_grad_()
    activated = GATED[kind](gate)
    h = activated * g.double()
    (d_gate,) = torch.autograd.grad(h, gate, slope.double())
    got = backward(slope.clone(), e.clone(), g.clone())
    for x, y in zip(got, (h, slope.double() * activated, d_gate), strict=True):
        close(x, y)


@pytest.mark.parametrize("softcap", [0.0, 30.0])
def test_cross_entropy(softcap: float) -> None:
    from unsloth.kernels.cross_entropy_loss import Fast_CrossEntropyLoss

    labels = torch.tensor([3, 0, 49, -100, 7])

    def reference(x: torch.Tensor) -> torch.Tensor:
        x = softcap * torch.tanh(x / softcap) if softcap else x
        return F.cross_entropy(x, labels, reduction="none")

    compare_gradients(
        lambda x: Fast_CrossEntropyLoss.apply(x, labels, softcap, 0.0), reference, [randn(5, 50)]
    )


def test_cross_entropy_in_chunks() -> None:
    from unsloth.kernels.cross_entropy_loss import Fast_CrossEntropyLoss

    labels = torch.tensor([3, 70000])
    compare_gradients(
        lambda x: Fast_CrossEntropyLoss.apply(x, labels, 0.0, 0.0),
        lambda x: F.cross_entropy(x, labels, reduction="none"),
        [randn(2, 70001)],
    )


def test_dequantised_weight() -> None:
    from unsloth.kernels.fp8 import weight_dequant_block

    x = randn(256, 128).to(torch.float8_e4m3fn)
    scale = randn(2, 1).abs()
    got = weight_dequant_block(x, scale, 128, torch.float32)
    close(got, x.double() * scale.double().repeat_interleave(128, 0))


def test_quantised_activation() -> None:
    from unsloth.kernels.fp8 import act_quant

    x = randn(4, 256)
    y, scale = act_quant(x, 128)
    close(scale, x.double().view(4, 2, 128).abs().amax(-1) / 448)
    restored = y.double().view(4, 2, 128) * scale.double()[..., None]
    assert (restored.view(4, 256) - x).abs().max() < 0.07 * x.abs().max()


def test_product_of_floats_of_8_bits() -> None:
    from unsloth.kernels.fp8 import w8a8_block_fp8_matmul_triton

    a = randn(16, 256).to(torch.float8_e4m3fn)
    b = randn(128, 256).to(torch.float8_e4m3fn)
    a_scale, b_scale = randn(16, 2).abs(), randn(1, 2).abs()
    got = w8a8_block_fp8_matmul_triton(a, b, a_scale, b_scale, [128, 128], torch.float32)
    wide = a.double() * a_scale.double().repeat_interleave(128, 1)
    other = b.double() * b_scale.double().repeat_interleave(128, 1)
    close(got, wide @ other.T, factor=10)


@pytest.mark.parametrize("permuted", ["", "x", "y"])
def test_products_of_experts(permuted: str) -> None:
    """Rows in the order of their experts, or of tokens before (x) or after (y) the product. The
    functions that launch these ask for tensors on a GPU, so they are launched as those do."""
    from unsloth.kernels.moe.grouped_gemm.kernels import backward, forward

    tokens, most, experts, n, k = 10, 2, 3, 64, 32
    sizes = torch.tensor([6, 0, 14], dtype=torch.int32)
    at = torch.randperm(tokens * most, generator=torch.Generator().manual_seed(0)).int()
    x = randn(tokens if permuted == "x" else tokens * most, k)
    w, d_y = randn(experts, n, k) / 8, randn(tokens * most, n, seed=1)
    known = {
        "m_sizes_ptr": sizes, "gather_indices_ptr": at, "NUM_TOKENS": tokens, "TOPK": most,
        "NUM_EXPERTS": experts, "N": n, "K": k, "NUM_SMS": 4, "PERMUTE_X": permuted == "x",
        "PERMUTE_Y": permuted == "y", "FLATTEN": True, "BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32,
        "BLOCK_SIZE_K": 32, "USE_TMA_STORE": False,
    }  # fmt: skip
    y, d_x, d_w = torch.zeros(20, n), torch.zeros(20, k), torch.zeros(experts, n, k)
    forward._grouped_gemm_forward_kernel[(4,)](
        x_ptr=x, w_ptr=w.view(-1, k), topk_weights_ptr=None, y_ptr=y, FUSE_MUL_POST=False,
        USE_TMA_LOAD_W=False, USE_TMA_LOAD_X=False, **known,
    )  # fmt: skip
    backward._grouped_gemm_dX_kernel[(4,)](
        dY_ptr=d_y, w_ptr=w.view(-1, k), dX_ptr=d_x, USE_TMA_LOAD_dY=False, USE_TMA_LOAD_W=False,
        **known,
    )  # fmt: skip
    backward._grouped_gemm_dW_kernel[(4,)](
        x_ptr=x, dY_ptr=d_y, dW_ptr=d_w, USE_TMA_LOAD_dY=False, USE_TMA_LOAD_X=False, **known
    )
    rows = torch.arange(20)
    read = at.long() // most if permuted == "x" else at.long() if permuted == "y" else rows
    write = at.long() if permuted == "y" else rows
    if permuted == "y":
        read = rows
    of = torch.repeat_interleave(torch.arange(experts), sizes.long())
    wanted = [torch.zeros(20, n).double(), torch.zeros(20, k).double(), d_w.double() * 0]
    for row in range(20):
        e, weight = of[row], w[of[row]].double()
        wanted[0][write[row]] = weight @ x[read[row]].double()
        slope = d_y[write[row]].double()
        wanted[1][at[row] if permuted == "x" else row] = slope @ weight
        wanted[2][e] += slope[:, None] * x[read[row]].double()
    for got, right in zip((y, d_x, d_w), wanted, strict=True):
        close(got, right, factor=10)
