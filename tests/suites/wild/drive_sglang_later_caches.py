"""SGLang: caches of keys, values and convolutions in the layouts that attention asks for."""

from __future__ import annotations

import pytest
import torch
from reference import close, randn, rotated, same
from sglang_parts import drawn, function, ints, longs, mixed

SLOTS = longs(37, 4, -1, 63, 20)  # of 64, in pages of 16
CONV = ".srt.models.inkling_common.sconv"


def places(cache: torch.Tensor, slot: int, side: str) -> torch.Tensor:
    """What a cache in pages, heads and groups of 8 holds at a slot: (heads, width)."""
    page, at = divmod(slot, 16)
    if side == "keys":
        return cache[page, :, :, at].flatten(1)
    return cache[page, :, at // 8, :, at % 8] if cache.ndim == 5 else cache[page, :, :, at]


@pytest.mark.parametrize("mapped", [False, True])
def test_groups_of_elements(mapped: bool) -> None:
    heads, wide = 6, 24
    k, v = (randn(5, heads, wide, seed=s).bfloat16() for s in range(2))
    keys, values = torch.zeros(4, heads, 3, 16, 8).bfloat16(), torch.zeros(4, heads, 2, wide, 8)
    values, table, slots = values.bfloat16(), mixed(64), SLOTS.clone()
    if mapped:
        slots[2] = 9
        table[9] = -1
    path = "attention.utils"
    function(path, "launch_reshape_and_cache_shuffle_5d")(
        k, v, keys, values, slots, table if mapped else None
    )
    there = longs(0, 1, 3, 4)
    found = table[slots[there]] if mapped else slots[there]
    for i, slot in zip(there.tolist(), found.tolist(), strict=True):
        same(places(keys, slot, "keys"), k[i])
        same(places(values, slot, "values"), v[i])
    assert keys.count_nonzero() == k[there].count_nonzero()
    assert values.count_nonzero() == v[there].count_nonzero()
    again = function(path, "launch_gather_shuffle_5d_to_linear")(keys, values, found)
    same(again[0], k[there])
    same(again[1], v[there])


@pytest.mark.parametrize("layout", ["rows", "pages", "groups"])
@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("more", [False, True])
def test_rotated_keys(layout: str, pairs: bool, more: bool) -> None:
    """`more`: positions are moved, slots are mapped, what is stored is divided by a scale."""
    heads, wide = 2, 32
    q, (k, v) = randn(5, 2 * heads, wide), (randn(5, heads, wide, seed=s) for s in range(2))
    table, at, moved = randn(50, wide), longs(3, 40, 0, 7, 7), longs(1, 0, 2, 0, 5)
    if layout == "rows":
        keys, values = (torch.zeros(4, 16, heads, wide) for _ in range(2))
    else:
        keys = torch.zeros(4, heads, wide // 8, 16, 8)
        shape = (2, wide, 8) if layout == "groups" else (wide, 16)
        values = torch.zeros(4, heads, *shape)
    slots, mapping = SLOTS.where(SLOTS >= 0, 9) if more else SLOTS, mixed(64)
    mapping[9] = -1
    scales = torch.tensor([0.5]), torch.tensor([4.0])
    kept = torch.zeros(5, heads, wide)
    turned, _, _, _, zeros = function("kvcache.rope_cache", "fused_qk_rope_reshape_and_cache")(
        q, k, v, keys, values, slots, at, table, *scales, not pairs, layout == "rows", more,
        moved if more else None, k_out=kept, swa_slot_mapping=mapping if more else None,
    )  # fmt: skip
    cos, sin = (x[:, None] for x in table[at + moved if more else at].chunk(2, -1))
    close(turned.view(q.shape), rotated(q, cos, sin, pairs))
    assert (zeros == 0).all() and zeros.shape == q.shape
    wanted, where = rotated(k, cos, sin, pairs), (mapping[slots] if more else slots).tolist()
    for i, slot in enumerate(where):
        if slot < 0:
            assert (kept[i] == 0).all()
            continue
        close(kept[i], wanted[i])
        if layout == "rows":
            stored = keys[slot // 16, slot % 16], values[slot // 16, slot % 16]
        else:
            stored = places(keys, slot, "keys"), places(values, slot, "values")
        close(stored[0], wanted[i] / (0.5 if more else 1))
        close(stored[1], v[i] / (4.0 if more else 1))
    assert keys.count_nonzero() == values.count_nonzero() == 4 * heads * wide


# ---- windows of convolutions


def test_windows_of_tokens() -> None:
    x, cache = randn(20, 1500), randn(6, 3, 1500)
    wanted, rows = cache.clone(), drawn(20, 3, 3)
    use, slots = torch.tensor([True, False, True]), longs(4, 1, 0)
    function(CONV, "fused_gather_scatter_to_sconv_cache")(x, cache, rows, use, slots)
    for b in (0, 2):
        wanted[slots[b]] = x[rows[b]]
    same(cache, wanted)


@pytest.mark.parametrize("tracked", [False, True])
def test_windows_of_drafts(tracked: bool) -> None:
    x, cache, slots = randn(4, 5, 1500), randn(9, 3, 1500), ints(4, 0, 2, 7)
    wanted, accepted = cache.clone(), ints(5, 1, -1, 0)
    about = {
        "do_tracking": True, "crossed": torch.tensor([True, True, True, False]),
        "track_step": ints(2, 4, 1, 1), "mamba_track_indices": longs(1, 3, 5, 6),
    }  # fmt: skip
    function(CONV, "fused_draft_extend_sconv_cache")(
        x.flatten(0, 1), cache, slots, accepted, 5, **(about if tracked else {})
    )
    for b in (0, 1, 3):
        whole = torch.cat((wanted[slots[b]].clone(), x[b]))
        if tracked and b < 2:
            step = (2, 4)[b]
            wanted[(1, 3)[b]] = whole[step : step + 3]
        wanted[slots[b]] = whole[int(accepted[b]) :][:3]
    same(cache, wanted)


# ---- attention to chosen tokens


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_chosen_tokens(dtype: torch.dtype) -> None:
    heads, wide, tail, count = 16, 64, 16, 70
    q, r = randn(5, heads, wide).to(dtype), randn(5, heads, tail).to(dtype)
    kv, chosen = randn(90, 1, wide + tail).to(dtype), mixed(5 * 90)[: 5 * count].view(5, 1, count)
    chosen = (chosen % 90).int()
    chosen[:, :, 50:60], chosen[3] = -1, -1
    got = function("attention.dsa.triton_sparse_mla", "triton_sparse_mla_fwd")(
        q, r, kv, chosen, 0.2, wide
    )[0]
    assert got.dtype is torch.bfloat16
    whole = torch.cat((q.double(), r.double()), -1)
    for t in range(5):
        if t == 3:
            assert (got[t] == 0).all()
            continue
        rows = kv[chosen[t, 0][chosen[t, 0] >= 0].long(), 0].double()
        odds = torch.softmax(whole[t] @ rows.T * 0.2, -1)
        wanted, size = odds @ rows[:, :wide], odds @ rows[:, :wide].abs()
        # Odds are rounded to the type of the queries, results to 16 bits.
        step = 2.0**-4 if dtype.itemsize == 1 else 2.0**-9
        off = (got[t].double() - wanted).abs() - (step * size + 2.0**-8 * wanted.abs() + 1e-3)
        assert (off <= 0).all(), f"off by {off.max()}"
