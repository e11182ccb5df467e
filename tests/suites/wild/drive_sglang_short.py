"""SGLang: short convolutions of Inkling, and linear attention over segments."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from reference import close, randn, same
from sglang_parts import function, ints, longs, sums

CONV, SEGMENTS = ".srt.models.inkling_common.kernels.sconv", "attention.linear.seg_la"
LENGTHS, SLOTS = (5, 1, 20), ints(4, -1, 2)
TAPS, WIDE = 4, 40


def convolved(past: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """(length, width) with the taps before it."""
    return F.conv1d(past.double().T[None], w.double()[:, None], groups=WIDE)[0].T


def test_places_of_steps() -> None:
    starts, known, about = function(CONV, "fused_decode_sconv_metadata")(3, SLOTS)
    same(starts, ints(0, 1, 2, 3))
    assert known.all()
    same(about["cache_mask"].flatten(), SLOTS >= 0)
    same(about["safe_idx"], SLOTS.clamp(min=0))
    same(about["cu"], longs(0, 1, 2, 3))
    same(about["si"], ints(0, 1, 2))


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_places_of_sequences(mode: int) -> None:
    source = longs(0, 3, 1) if mode == 1 else longs(5, 4, 20)
    lengths = (4, 4, 4) if mode == 3 else LENGTHS
    starts, known, about = function(CONV, "fused_extend_sconv_metadata")(
        B=3, T=sum(lengths), cache_indices=SLOTS, his_mode=mode, extend_seq_lens=ints(*LENGTHS),
        his_src=source, draft_token_num=4,
    )  # fmt: skip
    wanted = ([False] * 3, [False, True, True], [False, True, False], [True] * 3)[mode]
    assert known.tolist() == wanted
    same(starts, sums(lengths))
    same(about["cu"], sums(lengths))
    same(about["cache_mask"].flatten(), known & (SLOTS >= 0))
    same(about["safe_idx"], SLOTS.clamp(min=0))
    same(about["si"], torch.arange(3).repeat_interleave(torch.tensor(lengths)))


@pytest.mark.parametrize("silu", [False, True])
def test_sequences(silu: bool) -> None:
    x, w, cache = randn(26, WIDE), randn(WIDE, TAPS), randn(6, TAPS - 1, WIDE)
    known = torch.tensor([True, False, True])
    use = known & (SLOTS >= 0)
    index = torch.arange(3).repeat_interleave(torch.tensor(LENGTHS)).int()
    got = function(CONV, "causal_conv1d")(
        x, w, cache, use[:, None, None], SLOTS.clamp(min=0).long(), sums(LENGTHS).long(), index,
        activation="silu" if silu else None,
    )  # fmt: skip
    parts, before = [], cache.clone()
    for k, part in enumerate(x.split(LENGTHS)):
        past = torch.cat((before[max(int(SLOTS[k]), 0)] * use[k], part))
        y = convolved(past, w)
        parts.append((F.silu(y) if silu else y) + part)
    close(got, torch.cat(parts))
    known[0] = False
    function(CONV, "update_sconv_cache")(x, cache, SLOTS, known, sums(LENGTHS))
    for k, part in enumerate(x.split(LENGTHS)):
        if SLOTS[k] >= 0:
            past = torch.cat((before[SLOTS[k]] * known[k], part))
            before[SLOTS[k]] = past[-(TAPS - 1) :]
    same(cache, before)


@pytest.mark.parametrize("tracked", [False, True])
def test_steps(tracked: bool) -> None:
    x, w, cache = randn(3, WIDE), randn(WIDE, TAPS), randn(6, TAPS - 1, WIDE)
    before, use = cache.clone(), torch.tensor([True, False, True])
    more = {"track_mask": torch.tensor([True, True, False]), "track_indices": longs(0, 1, 3)}
    got = function(CONV, "fused_causal_conv1d_update_decode")(
        x, w, cache, SLOTS, use[:, None, None], "silu", **(more if tracked else {})
    )
    for k in range(3):
        past = torch.cat((before[max(int(SLOTS[k]), 0)] * use[k], x[k : k + 1]))
        close(got[k], F.silu(convolved(past, w))[0] + x[k])
        if SLOTS[k] >= 0:
            same(cache[SLOTS[k]], past[1:])
            if tracked and k == 0:
                same(cache[0], past[1:])


def test_windows_of_drafts() -> None:
    x, cache, out = randn(3, 5, WIDE), randn(6, TAPS - 1, WIDE), torch.zeros(3, 5, TAPS - 1, WIDE)
    function(CONV, "save_intermediate_conv_windows")(cache, x, SLOTS, out, 3, 5)
    for k in (0, 2):
        past = torch.cat((cache[SLOTS[k]], x[k]))
        for t in range(5):
            same(out[k, t], past[t + 1 : t + TAPS])
    assert (out[1] == 0).all()


# ---- linear attention over segments

HEADS, DEEP = 2, 128
RATES = torch.tensor([0.05, 0.3])


def recurrence(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """(time, heads, width) with a state (heads, width, width); the state after each step too."""
    state, out, states = state.double(), [], []
    for t in range(len(q)):
        pair = torch.einsum("hk,hv->hkv", k[t].double(), v[t].double())
        state = state * (-RATES.double()).exp()[:, None, None] + pair
        out.append(torch.einsum("hk,hkv->hv", q[t].double() * 0.1, state))
        states.append(state)
    return torch.stack(out), states


def test_single_steps() -> None:
    q, k, v = (randn(3, HEADS, DEEP, seed=s) for s in range(3))
    state = randn(5, HEADS, DEEP, DEEP)
    before, about = state.clone(), SimpleNamespace(batch_size=3, s_offsets=longs(4, 0, 2))
    got = function(SEGMENTS, "seg_la_fwd")(q, k, v, state, RATES, about, softmax_scale=0.1)
    for b, slot in enumerate((4, 0, 2)):
        wanted, states = recurrence(q[b][None], k[b][None], v[b][None], before[slot])
        close(got[b], wanted[0], factor=10)
        close(state[slot], states[-1], factor=10)


@pytest.mark.parametrize("kept", [False, True])
def test_segments(kept: bool) -> None:
    lengths = (4, 4) if kept else (40, 9)
    total = sum(lengths)
    q, k, v = (randn(total, HEADS, DEEP, seed=s) / 8 for s in range(3))
    state, caches = randn(5, HEADS, DEEP, DEEP), torch.zeros(2, 4, HEADS, DEEP, DEEP)
    before = state.clone()
    about = SimpleNamespace(
        batch_size=2, s_offsets=longs(4, 2), q_offsets=sums(lengths)[:2], q_lengths=ints(*lengths),
        s_scales=torch.tensor([1.0, 1.0]), mask=None,
    )  # fmt: skip
    more = {"caches": caches, "cache_indices": longs(1, 0)} if kept else {}
    got = function(SEGMENTS, "seg_la_fwd")(q, k, v, state, RATES, about, softmax_scale=0.1, **more)
    at = 0
    for b, slot in enumerate((4, 2)):
        part = slice(at, at + lengths[b])
        wanted, states = recurrence(q[part], k[part], v[part], before[slot])
        close(got[part], wanted, factor=10)
        if kept:
            close(caches[1 - b], torch.stack(states), factor=10)
        else:
            close(state[slot], states[-1], factor=10)
        at += lengths[b]


def test_sums_of_parts() -> None:
    x, out = randn(4, 6, 256), torch.empty(6, 256)
    function(SEGMENTS, "seg_la_sum_kernel")[(6,)](x, out, DIM=256, NUM_BLOCK=4)
    close(out, x.double().sum(0))
