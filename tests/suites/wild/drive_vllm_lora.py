"""vLLM: small matrices that are added to large ones, of several users at once."""

from __future__ import annotations

import pytest
import torch
from drive_vllm import function, ints
from reference import close, randn

OPS = "lora.ops.triton_ops."
WHO = ints(1, -1, 0, 0, 1, -1, 0)  # whose matrices each token is for; -1: nobody's
EIGHT = torch.float8_e4m3fn


def meta(tokens: torch.Tensor) -> tuple:
    made = function(OPS + "lora_kernel_metadata", "LoRAKernelMeta").make(
        max_loras=3, max_num_tokens=16, device="cpu"
    )
    made.prepare_tensors(tokens)
    return made.meta_args(len(tokens), specialize_active_lora=False)


def shrunk(x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """(slice, token, rank) of (token, width) and (user, rank, width)."""
    use = (WHO >= 0).double()[:, None]
    return torch.stack(
        [torch.einsum("mk,mrk->mr", x.double(), w.double()[WHO.long()]) * use for w in weights]
    )


def expanded(x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """(token, slices * width) of (slice, token, rank) and (user, width, rank)."""
    use = (WHO >= 0).double()[:, None]
    parts = [
        torch.einsum("mr,mnr->mn", y.double(), w.double()[WHO.long()]) * use
        for y, w in zip(x, weights, strict=True)
    ]
    return torch.cat(parts, -1)


def squeezed(x: torch.Tensor, axes: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Floats of 8 bits, and the scales that they have over some axes."""
    scale = x.abs().amax(axes, keepdim=True) / 448
    return (x / scale).to(EIGHT), scale


@pytest.mark.parametrize("slices", [1, 2])
def test_down(slices: int) -> None:
    x = randn(7, 64, dtype=torch.bfloat16)
    weights = [randn(3, 16, 64, dtype=torch.bfloat16, seed=k) for k in range(slices)]
    out = torch.zeros(slices, 7, 16)
    function(OPS + "lora_shrink_op", "_lora_shrink")(x, weights, out, *meta(WHO), 0.5)
    close(out, 0.5 * shrunk(x, weights), 10)


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("add", [False, True])
def test_up(slices: int, add: bool) -> None:
    x = randn(slices, 7, 16, dtype=torch.bfloat16)
    weights = [randn(3, 48, 16, dtype=torch.bfloat16, seed=k) for k in range(slices)]
    old = randn(7, 48 * slices, dtype=torch.bfloat16, seed=5)
    out = old.clone()
    function(OPS + "lora_expand_op", "_lora_expand")(x, weights, out, *meta(WHO), 0, add)
    wanted = expanded(x, weights)
    kept = old.double() if add else old.double() * (WHO < 0)[:, None]
    close(out, wanted + kept, 4)


@pytest.mark.parametrize("kind", ["tensor", "channel"])
def test_down_with_8_bits(kind: str) -> None:
    channel = kind == "channel"
    x, scale = squeezed(randn(7, 64), (1,) if channel else (0, 1))
    w, by = squeezed(randn(3, 16, 64), (2,) if channel else (1, 2))
    out = torch.zeros(1, 7, 16)
    function(OPS + "lora_shrink_fp8_op", "_lora_shrink_fp8")(
        x, [w], out, *meta(WHO), 0.5, [by.squeeze(-1) if channel else by.flatten()],
        scale if channel else scale.flatten(), use_fp8_w8a8=True, per_channel_quant=channel,
    )  # fmt: skip
    close(out, 0.5 * shrunk(x.double() * scale, [w.double() * by]), 10)


@pytest.mark.parametrize("kind", ["tensor", "channel"])
def test_up_with_8_bits(kind: str) -> None:
    channel = kind == "channel"
    x, scale = squeezed(randn(1, 7, 16), (2,) if channel else (0, 1, 2))
    w, by = squeezed(randn(3, 48, 16), (2,) if channel else (1, 2))
    out = torch.zeros(7, 48, dtype=torch.bfloat16)
    function(OPS + "lora_expand_fp8_op", "_lora_expand_fp8")(
        x, [w], out, *meta(WHO), [by.squeeze(-1) if channel else by.flatten()],
        scale[0] if channel else scale.flatten(), use_fp8_w8a8=True, per_channel_quant=channel,
    )  # fmt: skip
    close(out, expanded(x.double() * scale, [w.double() * by]), 2)


# ---- of experts: two of four for each token

EXPERTS = torch.tensor([[0, 1], [2, 3], [3, 0], [1, 2], [2, 0], [1, 3], [0, 3]], dtype=torch.int32)
BLOCKS = (16, 32, 32, 1, 4, 2, 1)  # of rows, columns and the sum; groups, warps, stages, parts


def paths(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(token, place, width): down and up by the matrices of a user and an expert."""
    who, which = WHO.long()[:, None], EXPERTS.long()
    down = torch.einsum("mk,mtrk->mtr", x.double(), a.double()[who, which])
    up = torch.einsum("mtr,mtnr->mtn", down, b.double()[who, which])
    return up * (WHO >= 0).double()[:, None, None]


def sorted_by_user(block: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For each user the pairs of token and place by expert, filled up to blocks."""
    tokens, blocks, counts = [], [], []
    for user in range(3):
        row, of = [], []
        for expert in range(4):
            mine = [
                2 * t + k
                for t in range(7)
                for k in range(2)
                if WHO[t] == user and EXPERTS[t, k] == expert
            ]
            fill = -len(mine) % block
            row += mine + [14] * fill
            of += [expert] * ((len(mine) + fill) // block)
        counts.append(len(row))
        tokens.append(row + [14] * (4 * block - len(row)))
        blocks.append(of + [-1] * (4 - len(of)))
    return torch.tensor(tokens).int(), torch.tensor(blocks).int(), torch.tensor(counts).int()


@pytest.mark.parametrize("kind", ["few", "one launch", "two launches", "sorted", "sorted in two"])
def test_experts_of_users(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, rank = "vllm." + OPS + "fused_moe_lora_op", 32 if kind == "few" else 80
    run = function(OPS + "fused_moe_lora_op", "_fused_moe_lora")
    x = randn(7, 64, dtype=torch.bfloat16)
    a = randn(3, 4, rank, 64, dtype=torch.bfloat16)
    b = randn(3, 4, 48, rank, dtype=torch.bfloat16) / 8
    old = randn(7, 2, 48, dtype=torch.bfloat16, seed=3)
    out, weights = old.clone(), torch.rand(7, 2)
    order = sorted_by_user(16) if "sorted" in kind else (None, EXPERTS.flatten(), None)
    shared = "two" in kind  # as if ranks were spread over GPUs; here there is one
    monkeypatch.setattr(f"{path}.tensor_model_parallel_all_reduce", lambda y: y)
    monkeypatch.setattr(f"{path}.get_max_shared_memory_bytes", lambda gpu: 1 << 17)
    run(
        out, x, [a], [b], weights, *order, WHO, rank, 2, ints(0, 1, -1, -1), ints(4),
        torch.ones(4, dtype=torch.int32), *BLOCKS, *BLOCKS, fully_sharded=shared,
    )  # fmt: skip
    close(out, old.double() + paths(x, a, b), 6)


def test_experts_of_users_in_another_type() -> None:
    a, b = (randn(3, 4, *s, dtype=torch.bfloat16) for s in ((16, 64), (48, 16)))
    x, out = randn(7, 64, dtype=torch.bfloat16), torch.zeros(7, 2, 48, dtype=torch.bfloat16)
    function(OPS + "fused_moe_lora_fp8_op", "_fused_moe_lora_fp8")(
        out, x, [a], [b], torch.rand(7, 2), None, EXPERTS.flatten(), None, WHO, 16, 2,
        ints(0, 1, -1, -1), 4, torch.ones(4, dtype=torch.int32), *BLOCKS, *BLOCKS, None, None,
    )  # fmt: skip
    close(out, paths(x, a, b), 10)
