"""flash-attention's Triton code: norms, rotary embedding, cross entropy, linear and attention."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from reference import attention, close, compare_gradients, randn, rms_norm, rotated


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("residual", [False, True])
def test_layer_norm(dtype: torch.dtype, residual: bool) -> None:
    from flash_attn.ops.triton.layer_norm import layer_norm_fn

    x, r = randn(6, 40, dtype=dtype), randn(6, 40, dtype=dtype, seed=1)
    w, b = randn(40, dtype=dtype), randn(40, dtype=dtype, seed=2)
    if residual:
        compare_gradients(
            lambda x, w, b, r: layer_norm_fn(x, w, b, residual=r, eps=1e-5),
            lambda x, w, b, r: F.layer_norm(x + r, (40,), w, b, 1e-5),
            [x, w, b, r],
        )
    else:
        compare_gradients(
            lambda x, w, b: layer_norm_fn(x, w, b, eps=1e-5),
            lambda x, w, b: F.layer_norm(x, (40,), w, b, 1e-5),
            [x, w, b],
        )


def test_rms_norm() -> None:
    from flash_attn.ops.triton.layer_norm import rms_norm_fn

    compare_gradients(
        lambda x, w: rms_norm_fn(x, w, None, eps=1e-5),
        lambda x, w: rms_norm(x, w, 1e-5),
        [randn(5, 48), randn(48)],
    )


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("offset", [0, 3])
def test_rotary(pairs: bool, offset: int) -> None:
    from flash_attn.ops.triton.rotary import apply_rotary

    x = randn(2, 9, 3, 32)
    angle = torch.arange(16).double()[:, None] * torch.rand(1, 16).double()
    cos, sin = angle.cos().float(), angle.sin().float()
    got = apply_rotary(x, cos, sin, seqlen_offsets=offset, interleaved=pairs)
    at = slice(offset, offset + 9)
    close(got, rotated(x, cos[at, None], sin[at, None], pairs))


def test_rotary_of_sequences_of_many_lengths() -> None:
    from flash_attn.ops.triton.rotary import apply_rotary

    x = randn(11, 2, 32)
    bounds = torch.tensor([0, 4, 11], dtype=torch.int32)
    angle = torch.arange(16).double()[:, None] * torch.rand(1, 16).double()
    cos, sin = angle.cos().float(), angle.sin().float()
    got = apply_rotary(x, cos, sin, cu_seqlens=bounds, max_seqlen=7)
    parts = [
        rotated(x[a:b], cos[: b - a, None], sin[: b - a, None], False) for a, b in ((0, 4), (4, 11))
    ]
    close(got, torch.cat(parts))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(smoothing: float) -> None:
    from flash_attn.ops.triton.cross_entropy import cross_entropy_loss

    labels = torch.tensor([3, 0, 49, -100, 7])
    compare_gradients(
        lambda x: cross_entropy_loss(x, labels, label_smoothing=smoothing)[0],
        lambda x: F.cross_entropy(x, labels, label_smoothing=smoothing, reduction="none"),
        [randn(5, 50)],
    )


@pytest.mark.parametrize("activation", ["id", "gelu", "gelu_approx", "squared_relu"])
def test_linear(activation: str) -> None:
    from flash_attn.ops.triton.linear import triton_linear_act

    x, w, b = randn(16, 64), randn(32, 64) / 8, randn(32)
    got = triton_linear_act(x, w, b, activation=activation)
    y = x.double() @ w.double().T + b.double()
    wanted = {
        "id": lambda: y,
        "gelu": lambda: F.gelu(y),
        "gelu_approx": lambda: F.gelu(y, approximate="tanh"),
        "squared_relu": lambda: F.relu(y) ** 2,
    }[activation]()
    close(got, wanted, factor=20)


def test_gradient_of_linear() -> None:
    from flash_attn.ops.triton.linear import triton_dgrad_act

    g, w, x = randn(16, 32), randn(32, 64) / 8, randn(16, 64)
    got = triton_dgrad_act(g, w, activation="squared_relu", act_input=x)
    close(got, g.double() @ w.double() * 2 * F.relu(x.double()), factor=20)


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal: bool) -> None:
    from flash_attn.flash_attn_triton import flash_attn_func

    q, k, v = (randn(1, 40, 2, 32, dtype=torch.float16, seed=s) for s in range(3))
    compare_gradients(
        lambda q, k, v: flash_attn_func(q, k, v, None, causal),
        lambda q, k, v: attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal=causal
        ).transpose(1, 2),
        [q, k, v],
    )


def test_attention_with_bias() -> None:
    from flash_attn.flash_attn_triton import flash_attn_func

    q, k, v = (randn(1, 40, 2, 32, dtype=torch.float16, seed=s) for s in range(3))
    bias = randn(1, 2, 1, 40, dtype=torch.float16)
    got = flash_attn_func(q, k, v, bias, False)
    wanted = attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), bias=bias)
    close(got, wanted.transpose(1, 2))


def test_first_attention() -> None:
    """The file that it all began with, as Triton's tutorial was then."""
    from flash_attn.flash_attn_triton_og import attention as theirs

    q, k, v = (randn(1, 2, 128, 32, dtype=torch.float16, seed=s) for s in range(3))
    close(theirs(q, k, v, 1 / math.sqrt(32)), attention(q, k, v, causal=True))
