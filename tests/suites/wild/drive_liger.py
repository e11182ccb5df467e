"""Liger-Kernel: what its own tests skip, or compare with versions of transformers that are gone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from reference import close, compare_gradients, randn, rms_norm, rotated, same


def angles(length: int, width: int) -> torch.Tensor:
    slow = 100.0 ** (-torch.arange(width // 2).double() * 2 / width)
    return torch.arange(length).double()[:, None] * slow


def test_rotary() -> None:
    from liger_kernel.ops.rope import LigerRopeFunction

    angle = angles(7, 32)
    cos, sin = (torch.cat((t, t), 1).float()[None] for t in (angle.cos(), angle.sin()))
    for k in range(2):
        compare_gradients(
            lambda q, other, k=k: LigerRopeFunction.apply(q, other, cos, sin)[k],
            lambda q, other, k=k: (
                rotated((q, other)[k], angle.cos(), angle.sin(), False)
                + 0 * (q.sum() + other.sum())
            ),
            [randn(2, 4, 7, 32), randn(2, 2, 7, 32)],
        )


def test_rotary_of_complex_numbers() -> None:
    from liger_kernel.ops.llama4_rope import LigerLlama4RopeFunction

    angle = angles(7, 32)
    turn = torch.polar(torch.ones_like(angle), angle).to(torch.complex64)
    q, k = randn(2, 7, 4, 32), randn(2, 7, 2, 32)
    got = LigerLlama4RopeFunction.apply(q.clone(), k.clone(), turn)  # it may write over them
    for x, y in zip((q, k), got, strict=True):
        close(y, rotated(x, angle.cos()[:, None], angle.sin()[:, None], True))


def test_rotary_of_time_height_and_width() -> None:
    from liger_kernel.ops.qwen2vl_mrope import LigerQwen2VLMRopeFunction

    section = [4, 6, 6]
    angle = torch.stack([angles(7, 32) * (s + 1) for s in range(3)])[:, None]  # (3, 1, length, 16)
    cos, sin = (torch.cat((t, t), -1).float() for t in (angle.cos(), angle.sin()))
    q, k = randn(1, 4, 7, 32), randn(1, 2, 7, 32)
    got = LigerQwen2VLMRopeFunction.apply(q.clone(), k.clone(), cos, sin, section)
    one = torch.cat([t[s] for s, t in enumerate(angle.split(section, -1))], -1)
    for x, y in zip((q, k), got, strict=True):
        close(y, rotated(x, one.cos(), one.sin(), False))


def test_embedding() -> None:
    from liger_kernel.ops.experimental.embedding import LigerEmbeddingFunction

    rows = torch.tensor([[3, 0, 3], [7, 1, 2]])
    compare_gradients(
        lambda w: LigerEmbeddingFunction.apply(w, rows),
        lambda w: F.embedding(rows, w),
        [randn(9, 40)],
    )


def test_product_with_2_bits() -> None:
    from liger_kernel.ops.experimental.mm_int8int2 import matmul, unpack_weights

    generator = torch.Generator().manual_seed(0)
    a = torch.randint(-127, 127, (20, 1024), generator=generator, dtype=torch.int8)
    packed = torch.randint(0, 255, (24, 256), generator=generator, dtype=torch.uint8)
    wide = unpack_weights(packed.T, bits=2).double()
    same(matmul(a, packed.T.contiguous()), a.double() @ wide)


def test_rms_norm_of_many_rows() -> None:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    compare_gradients(
        lambda x, w: LigerRMSNormFunction.apply(x, w, 1e-5, 0.0, "llama", False, False),
        lambda x, w: rms_norm(x, w, 1e-5),
        [randn(32768, 16), randn(16)],
        factor=30,  # the gradient of the weight is a sum over all rows
    )


def test_product_and_gate_without_gradients() -> None:
    from liger_kernel.ops.mlp import gemm_swiglu

    x, gate, up = randn(1, 20, 64), randn(96, 64) / 8, randn(96, 64, seed=1) / 8
    got = gemm_swiglu(x, gate, up, 1.0, store_preact=False)[0]
    wide = x.double()
    close(got, F.silu(wide @ gate.double().T) * (wide @ up.double().T), factor=20)


def test_cross_entropy_of_a_vocabulary_in_parts() -> None:
    """One part, which is all of it."""
    from liger_kernel.ops.vocab_parallel_cross_entropy import LigerVocabParallelCEFunction

    labels = torch.tensor([[3], [0], [49], [-100], [7]])
    compare_gradients(
        lambda x: LigerVocabParallelCEFunction.apply(
            x, labels, None, -100, 0.0, "uniform", "distributed"
        ),
        lambda x: F.cross_entropy(x.flatten(0, 1), labels.flatten(), reduction="none").view(5, 1),
        [randn(5, 1, 50)],
    )


@pytest.mark.parametrize("tiled", [False, True])
def test_gated_activation(tiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One block of a row, or many, as on GPUs of which it asks the name."""
    from liger_kernel.ops import swiglu

    monkeypatch.setattr(swiglu, "_should_tile", lambda n: tiled)
    monkeypatch.setattr(swiglu, "_swiglu_tile_settings", lambda n: (64, 4))
    compare_gradients(
        lambda a, b: swiglu.LigerSiLUMulFunction.apply(a, b, 0.7, 1.5),
        lambda a, b: F.silu(a * 0.7) * b * 1.5,
        [randn(2, 3, 200), randn(2, 3, 200, seed=1)],
    )


@pytest.mark.parametrize("in_place", [False, True])
def test_gated_activation_of_halves(in_place: bool) -> None:
    from liger_kernel.ops.swiglu import LigerFusedGateUpSiLUMulFunction

    compare_gradients(
        lambda y: LigerFusedGateUpSiLUMulFunction.apply(y, in_place),
        lambda y: F.silu(y[..., :50]) * y[..., 50:],
        [randn(6, 100)],
    )


@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "batchmean"])
def test_total_variation(reduction: str) -> None:
    from liger_kernel.ops.tvd import LigerTVDLossFunction

    labels = torch.tensor([3, 0, -100, 7])
    used = (labels != -100)[:, None]
    other = randn(4, 300, seed=1).softmax(-1)
    parts = {"none": 1, "sum": 1, "mean": 3 * 300, "batchmean": 3}[reduction]

    def reference(p: torch.Tensor) -> torch.Tensor:
        loss = 0.5 * (p - other.double()).abs() * used / parts
        return loss if reduction == "none" else loss.sum()

    def ours(p: torch.Tensor) -> torch.Tensor:
        loss = LigerTVDLossFunction.apply(p, other, labels, reduction, -100)
        return loss if reduction == "none" else loss.sum()

    compare_gradients(ours, reference, [randn(4, 300).softmax(-1)])


@pytest.mark.parametrize("gradient", [False, True])
def test_softmax_of_rows_in_blocks(gradient: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from liger_kernel.ops import softmax

    monkeypatch.setattr(softmax, "calculate_settings", lambda n: (128, 4))
    x, slope = randn(3, 1000).double().requires_grad_(), randn(3, 1000, seed=1)
    wanted = x.softmax(-1)
    if gradient:
        wanted.backward(slope.double())
        assert x.grad is not None
        y = wanted.detach().float()
        close(softmax._softmax_backward(slope, y, 128, 4, True), x.grad)
    else:
        close(softmax._softmax_forward(x.detach().float())[0], wanted.detach())


@pytest.mark.parametrize("history", [False, True])
def test_gradient_of_doubly_stochastic_matrix(history: bool) -> None:
    from liger_kernel.ops.mhc import mhc_sinkhorn_bwd, mhc_split_sinkhorn_fwd

    rounds, eps, alpha = 3, 1e-6, torch.tensor([0.8])
    mix, b, slope = randn(5, 24), randn(24), randn(5, 4, 4)
    forward = mhc_split_sinkhorn_fwd(
        mix, b, alpha, alpha, alpha, tmax=rounds, pre_eps=1e-4, sinkhorn_eps=eps,
        post_mult=2.0, return_hist=True,
    )  # fmt: skip
    got = mhc_sinkhorn_bwd(
        mix, b, alpha, slope, tmax=rounds, sinkhorn_eps=eps, hist=forward[3] if history else None
    )
    logits = (mix[:, 8:].double() * alpha.double() + b[8:].double()).view(5, 4, 4).requires_grad_()
    matrix = logits.softmax(-1) + eps
    matrix = matrix / (matrix.sum(-2, keepdim=True) + eps)
    for _ in range(rounds - 1):
        matrix = matrix / (matrix.sum(-1, keepdim=True) + eps)
        matrix = matrix / (matrix.sum(-2, keepdim=True) + eps)
    close(forward[2], matrix.detach())
    matrix.backward(slope.double())
    assert logits.grad is not None
    close(got, logits.grad, factor=10)
