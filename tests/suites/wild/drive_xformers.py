"""xformers: rotary embedding of queries, keys and a cache, as its masks describe them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from reference import close, randn, rotated, same


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("wide", ["", "f64"])
def test_rotary_into_a_cache(pairs: bool, wide: str) -> None:
    """Two sequences of 3 and 2 new tokens; their keys end at places 7 and 4 of 8."""
    from xformers.ops.rope_padded import rope_padded

    new, ends, most, width = [3, 2], [7, 4], 8, 32
    starts = torch.tensor([0, 3, 5], dtype=torch.int32)
    # Its own masks are in another package: this much of them is used.
    mask = SimpleNamespace(
        q_seqinfo=SimpleNamespace(seqstart=starts, seqstart_py=[0, 3, 5], max_seqlen=3),
        k_seqinfo=SimpleNamespace(
            seqstart=torch.tensor([0, most, 2 * most], dtype=torch.int32),
            seqstart_py=[0, most, 2 * most],
            seqlen=torch.tensor(ends, dtype=torch.int32),
        ),
    )
    q, k, v = randn(1, 5, 4, width), randn(1, 5, 2, width), randn(1, 5, 2, width, seed=1)
    keys, values = torch.zeros(1, 2 * most, 2, width), torch.zeros(1, 2 * most, 2, width)
    got = rope_padded(q, k, v, keys, values, mask, adjacents=pairs, internal_dtype=wide)
    slow = 10000.0 ** (-torch.arange(0, width, 2).double() / width)
    at = torch.cat([torch.arange(end - n, end) for n, end in zip(new, ends, strict=True)])
    angle = (at.double()[:, None] * slow)[:, None]
    close(got[0], rotated(q[0], angle.cos(), angle.sin(), pairs))
    places = at + torch.tensor([0, 0, 0, most, most])
    close(keys[0, places], rotated(k[0], angle.cos(), angle.sin(), pairs))
    same(values[0, places], v[0])
    kept = torch.ones(2 * most, dtype=torch.bool)
    kept[places] = False
    assert not keys[0, kept].any() and not values[0, kept].any(), "the rest of the cache"
