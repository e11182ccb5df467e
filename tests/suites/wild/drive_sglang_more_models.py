"""SGLang: what single models and servers need: images in patches, rows of drafts, scans."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from reference import close, randn, rms_norm, rotated, same
from sglang_parts import drawn, function, ints, longs, sums, uniform


def test_images_and_texts() -> None:
    """One after the other, those of the image rotated."""
    whole, other = (randn(2, n, 3, 3, 48, dtype=torch.bfloat16) for n in (5, 3))
    images, texts = whole.unbind(2), other.unbind(2)  # views
    angles = randn(6, 24)
    got = function("diffusion.rope.hunyuan_qkv_pack_triton", "hunyuan_qkv_rope_pack")(
        *images, *texts, angles.cos(), angles.sin()
    )
    turn = angles[:5, None].double()
    for k, (out, image, text) in enumerate(zip(got, images, texts, strict=True)):
        same(out[:, 5:], text)
        if k == 2:
            same(out[:, :5], image)
        else:
            close(out[:, :5], rotated(image, turn.cos(), turn.sin(), True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_patches(dtype: torch.dtype) -> None:
    x, scale, bias = randn(2, 3, 21, 30, dtype=dtype), uniform(3), randn(3)
    got = function("mm.process.image", "normalize_and_patchify")(
        x, scale.view(1, 3, 1, 1), bias.view(1, 3, 1, 1), 8, 24, 32
    )
    wide = F.pad(x.double(), (0, 2, 0, 3)) * scale.view(3, 1, 1).double() + bias.view(3, 1, 1)
    parts = wide.unflatten(3, (4, 8)).unflatten(2, (3, 8)).permute(0, 2, 4, 1, 3, 5)
    close(got, parts.flatten(1, 2))


@pytest.mark.parametrize("hidden", [False, True])
def test_rows_of_drafts(hidden: bool) -> None:
    at = longs(4, 0, 4, 2, 1, 1)[::2]
    buffers = randn(5, 3), drawn(99, 5, 3), drawn(99, 5, dtype=torch.int32)
    more = randn(5, 1100, dtype=torch.bfloat16) if hidden else None
    found = function("speculative.gather_spec_extras", "gather_spec_extras")(at, *buffers, more)
    for got, buffer in zip(found, (*buffers, more), strict=True):
        if buffer is None:
            assert got is None
        else:
            same(got, buffer[at])


def test_adapters_of_tokens() -> None:
    lengths, who, ranks = (3, 0, 70), ints(2, 1, 0), ints(8, 4, 0, 16)
    enabled, whose = ints(0, 0, 0, 0), ints(*[-9] * 75)
    # Its own function asks where a tensor is, which is no GPU here.
    function(".srt.lora.backend.base_backend", "_compute_moe_lora_info_kernel")[(9,)](
        sums(lengths), ranks, who, enabled, whose, 3, 70, BLOCK_SIZE=32
    )
    same(whose, torch.cat((who.repeat_interleave(ints(*lengths)), ints(-9, -9))))
    same(enabled, ints(1, 1, 0, 0))  # the last one is nobody's


@pytest.mark.parametrize("length", [1, 6])
def test_accepted_drafts(length: int) -> None:
    guessed, right = drawn(9, 4, length), drawn(9, 4, length, seed=1)
    guessed[0, 1:] = right[0, :-1]
    if length > 1:
        guessed[1, 1:4], guessed[1, 4] = right[1, :3], right[1, 3] + 1
    path = ".srt.speculative.dflash_utils"
    count, bonus = function(path, "compute_dflash_correct_drafts_and_bonus")(
        candidates=guessed, target_predict=right
    )
    for b in range(4):
        n = 0
        while n < length - 1 and guessed[b, n + 1] == right[b, n]:
            n += 1
        assert (count[b], bonus[b]) == (n, right[b, n])


def test_turned_in_place() -> None:
    x = randn(5, 7 * 32, dtype=torch.bfloat16)
    before, weights = x.clone(), [randn(32, seed=s).bfloat16() for s in range(2)]
    at, angles = longs(3, 0, 39, 7, 7), randn(40, 16)
    function(".srt.speculative.dflash_utils", "table_qk_norm_rope_")(
        x, at, *weights, torch.cat((angles.cos(), angles.sin()), 1), 3, 2, 32, 1e-6
    )
    heads, turn = before.unflatten(1, (7, 32)), angles[at, None].double()
    for part, w in ((slice(0, 3), weights[0]), (slice(3, 5), weights[1])):
        normed = rms_norm(heads[:, part], w, 1e-6)
        close(x.unflatten(1, (7, 32))[:, part], rotated(normed, turn.cos(), turn.sin(), False))
    same(x[:, 5 * 32 :], before[:, 5 * 32 :])


# ---- state spaces


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("drafts", ["", "chain", "tree"])
def test_scans(tied: bool, drafts: str) -> None:
    """A rate for each element and state, or one for each head. States of drafts are kept one by
    one, and each draft goes on from its parent."""
    heads, wide, groups, deep, time = 4, 20, 2, 24, 4 if drafts else 1
    slots, state = ints(3, -1, 1), randn(5, heads, wide, deep)
    x, z = (randn(3, time, heads, wide, seed=s) for s in range(2))
    b, c = (randn(3, time, groups, deep, seed=s) for s in range(2))
    if tied:
        dt = randn(3, time, heads, 1).expand(3, time, heads, wide)
        rate = -uniform(heads, 1, 1).expand(heads, wide, deep)
        bias = randn(heads, 1).expand(heads, wide)
    else:
        dt, rate = randn(3, time, heads, wide, seed=2), -uniform(heads, wide, deep)
        bias = randn(heads, wide)
    skip, out, before = randn(heads, wide), torch.zeros(3, time, heads, wide), state.clone()
    parents = [[0, 0, 0, 1]] * 3 if drafts == "tree" else [[0, 0, 1, 2]] * 3
    each = torch.zeros(3, 5, heads, wide, deep)
    more = {}
    if drafts:
        more = {
            "disable_state_update": True,
            "intermediate_states_buffer": each,
            "cache_steps": 5,
            "intermediate_state_indices": ints(2, 1, 0),
            "retrieve_parent_token": torch.tensor(parents) if drafts == "tree" else None,
        }
    function("mamba.triton_ops.mamba_ssm", "selective_state_update")(
        state, x, dt, rate, b, c, skip, z, bias, True, slots, out=out, **more
    )
    wanted, steps = before.double(), F.softplus(dt.double() + bias)
    share = heads // groups
    for n, slot, kept in ((0, 3, 2), (2, 1, 0)):
        after: list[torch.Tensor] = []
        for t in range(time):
            old = after[parents[n][t]] if t else before[slot].double()
            step = steps[n, t][..., None]
            inputs, reads = (y[n, t].double().repeat_interleave(share, 0)[:, None] for y in (b, c))
            new = old * (rate.double() * step).exp() + step * inputs * x[n, t].double()[..., None]
            after.append(new)
            result = (new * reads).sum(-1) + skip * x[n, t].double()
            close(out[n, t], result * F.silu(z[n, t].double()))
            if drafts:
                close(each[kept, t], new)
        if not drafts:
            wanted[slot] = after[-1]
    close(state, wanted)
    assert not each[1].any()
