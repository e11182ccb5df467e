"""flash-linear-attention: norms, shifts and quantised layers, of rows for one program and wider."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from reference import close, compare_gradients, randn, rotated


@pytest.mark.parametrize("width", [60, 600])
def test_unit_rows(width: int) -> None:
    from fla.modules.l2norm import l2norm

    compare_gradients(
        lambda x: l2norm(x),
        lambda x: x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt(),
        [randn(2, 5, width)],
    )


@pytest.mark.parametrize("width", [60, 600])
def test_layer_norm(width: int) -> None:
    from fla.modules.layernorm import layer_norm

    compare_gradients(
        lambda x, w, b, r: layer_norm(x, w, b, residual=r),
        lambda x, w, b, r: F.layer_norm(x + r, (width,), w, b, 1e-5),
        [randn(2, 5, width), randn(width), randn(width, seed=1), randn(2, 5, width, seed=1)],
        factor=10,
    )


@pytest.mark.parametrize("width", [60, 600])
@pytest.mark.parametrize("activation", ["swish", "sigmoid"])
def test_gated_layer_norm(width: int, activation: str) -> None:
    from fla.modules.fused_norm_gate import layer_norm_gated

    gate = {"swish": F.silu, "sigmoid": torch.sigmoid}[activation]
    compare_gradients(
        lambda x, g, w, b: layer_norm_gated(x, g, w, b, activation),
        lambda x, g, w, b: F.layer_norm(x, (width,), w, b, 1e-6) * gate(g),
        [randn(2, 5, width), randn(2, 5, width, seed=1), randn(width), randn(width, seed=1)],
        factor=10,
    )


@pytest.mark.parametrize("before", [False, True])
def test_layer_norm_of_groups_with_gate(before: bool) -> None:
    from fla.modules.layernorm_gated import layernorm_fn

    def reference(
        x: torch.Tensor, z: torch.Tensor, w: torch.Tensor, b: torch.Tensor
    ) -> torch.Tensor:
        x = x if before else x * F.silu(z)
        normed = F.layer_norm(x.view(2, 5, 3, 20), (20,), eps=1e-6).view(2, 5, 60) * w + b
        return normed * F.silu(z) if before else normed

    compare_gradients(
        lambda x, z, w, b: layernorm_fn(x, w, b, z, 1e-6, 20, before),
        reference,
        [randn(2, 5, 60), randn(2, 5, 60, seed=1), randn(60), randn(60, seed=1)],
        factor=10,
    )


@pytest.mark.parametrize("length", [9, 4100])
def test_shift_of_tokens(length: int) -> None:
    """What each token differs in from the one before it."""
    from fla.modules.token_shift import token_shift

    compare_gradients(
        lambda x: token_shift(x),
        lambda x: F.pad(x, (0, 0, 1, 0))[:, :-1] - x,
        [randn(2, length, 16)],
    )


@pytest.mark.parametrize("length", [9, 4100])
def test_update_of_keys(length: int) -> None:
    from fla.ops.rwkv7.fused_k_update import fused_k_rwkv7

    compare_gradients(
        lambda k, a, ka: fused_k_rwkv7(k, a, ka),
        lambda k, a, ka: k * (1 + (a - 1) * ka),
        [randn(2, length, 16), randn(2, length, 16, seed=1), randn(16)],
        factor=30,  # the gradient of the last is a sum over all tokens
    )


def test_linear_layer_of_three_values() -> None:
    """Activations are rounded to 8 bits; gradients go through the rounding."""
    from fla.modules.fused_bitlinear import rms_norm_linear_quant

    x, w, m = randn(6, 40), randn(40, seed=1), randn(24, 40)
    scale = 1 / m.abs().mean()
    ternary = ((m * scale).round().clamp(-1, 1) / scale).double()
    leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
    got = rms_norm_linear_quant(*leaves, None, m, None)
    wide = [x.double().requires_grad_(), w.double().requires_grad_()]
    normed = F.rms_norm(wide[0], (40,), wide[1], 1e-5)
    step = normed.detach().abs().amax(-1, keepdim=True) / 127
    # Where a value lies between two steps, either may be taken.
    most = step * ternary.abs().sum(1) * 0.51 + 1e-4
    assert ((got - normed @ ternary.T).abs() <= most).all()
    slope = randn(6, 24, seed=2)
    got.backward(slope)
    (normed @ ternary.T).backward(slope.double())
    for a, b in zip(leaves, wide, strict=True):
        assert a.grad is not None and b.grad is not None
        close(a.grad, b.grad, factor=10)


def test_gated_activation() -> None:
    from fla.modules.activations import swiglu, swish

    compare_gradients(lambda x: swish(x), lambda x: F.silu(x), [randn(3, 40)])
    compare_gradients(
        lambda x, y: swiglu(x, y),
        lambda x, y: F.silu(x) * y,
        [randn(3, 40), randn(3, 40, seed=1)],
    )


def test_channel_mixing() -> None:
    from fla.ops.rwkv7.channel_mixing import channel_mixing_rwkv7

    before = torch.zeros(2, 16)

    def reference(
        x: torch.Tensor, mix: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        shifted = F.pad(x, (0, 0, 1, 0))[:, :-1]
        return ((x + (shifted - x) * mix) @ key).relu().square() @ value

    compare_gradients(
        lambda x, mix, key, value: channel_mixing_rwkv7(x, before, mix, key, value, False)[0],
        reference,
        [randn(2, 9, 16), randn(16), randn(16, 32) / 4, randn(32, 16) / 6],
        factor=20,
    )


def test_cross_entropy() -> None:
    from fla.modules.fused_cross_entropy import FusedCrossEntropyLoss

    labels = torch.tensor([3, 0, 49, -100, 7])
    compare_gradients(
        lambda x: FusedCrossEntropyLoss(reduction="none")(x, labels),
        lambda x: F.cross_entropy(x, labels, reduction="none"),
        [randn(5, 50)],
    )


def test_cross_entropy_of_a_linear_layer() -> None:
    from fla.modules.fused_linear_cross_entropy import FusedLinearCrossEntropyLoss

    labels = torch.tensor([3, 0, 49, -100, 7])
    compare_gradients(
        lambda x, w, b: 2 * FusedLinearCrossEntropyLoss(num_chunks=2)(x, labels, w, b),
        lambda x, w, b: 2 * F.cross_entropy(F.linear(x, w, b), labels),
        [randn(5, 32), randn(50, 32), randn(50)],
        factor=10,
    )


@pytest.mark.parametrize("pairs", [False, True])
def test_rotary(pairs: bool) -> None:
    from fla.modules.rotary import rotary_embedding

    angle = torch.arange(7)[:, None] * torch.linspace(0.1, 1, 16).double()
    cos, sin = angle.cos(), angle.sin()
    compare_gradients(
        lambda x: rotary_embedding(x, cos.float(), sin.float(), interleaved=pairs),
        lambda x: rotated(x, cos[:, None], sin[:, None], pairs),
        [randn(2, 7, 3, 32)],
    )


def test_gated_power() -> None:
    """x^(m / (1 + sqrt x)) where x is positive, and swish elsewhere."""
    from fla.modules.activations import powglu, powglu_linear

    def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        positive = torch.where(x > 0, x, 1.0)
        power = positive ** (3 / (positive.sqrt() + 1))
        return torch.where(x > 0, power * x.sigmoid(), F.silu(x)) * y

    x, y = randn(3, 40), randn(3, 40, seed=1)
    compare_gradients(lambda x, y: powglu(x, y), reference, [x, y], factor=10)
    compare_gradients(
        lambda x, y, w, b: powglu_linear(x, y, w, b),
        lambda x, y, w, b: F.linear(reference(x, y), w, b),
        [x, y, randn(24, 40), randn(24)],
        factor=10,
    )


def test_divergence_of_linear_layers() -> None:
    """From a teacher's distribution, which has no gradient."""
    from fla.modules.fused_kl_div import FusedKLDivLoss

    teacher, head = randn(5, 32, seed=1), randn(50, 32, seed=1)
    wanted = F.linear(teacher.double(), head.double()).log_softmax(-1)
    compare_gradients(
        lambda x, w: 2 * FusedKLDivLoss()(x, teacher, w, head),
        lambda x, w: (
            2
            * F.kl_div(
                F.linear(x, w).log_softmax(-1), wanted, reduction="batchmean", log_target=True
            )
        ),
        [randn(5, 32), randn(50, 32)],
        factor=10,
    )


@pytest.mark.parametrize("inplace", [False, True])
def test_policy_loss(inplace: bool) -> None:
    """Advantages of tokens that were drawn, less their divergence from a reference model."""
    from fla.modules.grpo import fused_grpo_loss

    ids = torch.randint(1500, (2, 9), generator=torch.Generator().manual_seed(0))
    before, gain = randn(2, 6) - 7, randn(2)
    counted = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])

    def reference(x: torch.Tensor) -> torch.Tensor:
        drawn = x[:, :-1].log_softmax(-1).gather(-1, ids[:, 3:, None])[..., 0]
        divergence = (before - drawn).exp() - (before - drawn) - 1
        ratio = (drawn - drawn.detach()).exp()
        loss = 0.1 * divergence - gain[:, None] * ratio
        return torch.cat((loss, divergence)) * counted.repeat(2, 1)

    def ours(x: torch.Tensor) -> torch.Tensor:
        return torch.cat(
            fused_grpo_loss(x, before, ids, gain, 0.1, counted, save_kl=True, inplace=inplace)
        )

    # The divergence is for a report: it has no gradient.
    logits = randn(2, 7, 1500)
    close(ours(logits), reference(logits.double()))
    compare_gradients(lambda x: ours(x)[:2], lambda x: reference(x)[:2], [logits], factor=10)


@pytest.mark.parametrize("activation", [None, "swish"])
@pytest.mark.parametrize("ends", [None, [0, 3, 70, 140]])
def test_causal_convolution(activation: str | None, ends: list[int] | None) -> None:
    """Over time, after a state; the state after it are the last inputs, and before them a column
    of padding without a gradient."""
    from fla.modules.conv import causal_conv1d

    length, width, rows = 140, 20, 1 if ends is None else 3
    spans = list(pairwise(ends)) if ends else [(0, length)]

    def reference(
        x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor, h: torch.Tensor
    ) -> torch.Tensor:
        found, states = [], []
        for n, (begin, end) in enumerate(spans):
            seen = torch.cat((h[n], x[0, begin:end].T), 1)
            y = F.conv1d(seen[:, 1:][None], w[:, None], b, groups=width)[0].T
            found.append((y if activation is None else F.silu(y)) + r[0, begin:end])
            states.append(seen[:, -3:])
        return torch.cat([y.flatten() for y in (*found, *states)])

    def ours(
        x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor, h: torch.Tensor
    ) -> torch.Tensor:
        places = None if ends is None else torch.tensor(ends)
        y, last = causal_conv1d(x, w, b, r, h, True, activation, cu_seqlens=places)
        return torch.cat((y.flatten(), last[..., 1:].flatten()))

    x, r = randn(1, length, width), randn(1, length, width, seed=1)
    start = randn(rows, width, 4)
    compare_gradients(ours, reference, [x, randn(width, 4), randn(width), r, start], factor=10)
