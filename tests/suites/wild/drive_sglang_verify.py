"""SGLang: attention of drafted tokens over a long prefix that is split among programs."""

from __future__ import annotations

import pytest
import torch
from reference import attention, close, randn
from sglang_parts import function, mixed, sums

DRAFTS = 5


def drafted(
    path: str,
    name: str,
    heads: tuple[int, int],
    wide: tuple[int, int],
    prefixes: tuple[int, ...],
    causal: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the function gives for queries, and float64: keys and values of the prefix are stored
    with scales of their own, those of the drafts are not."""
    count, total = len(prefixes), len(prefixes) * DRAFTS
    q, k = randn(total, heads[0], wide[0]), randn(total, heads[1], wide[0])
    v = randn(total, heads[1], wide[1], seed=1)
    keys, values = randn(400, heads[1], wide[0]), randn(400, heads[1], wide[1], seed=1)
    places, out = mixed(400)[: sum(prefixes)], torch.full((total, heads[0], wide[1]), torch.nan)
    assert function(path, name)(
        q, k, v, out, keys, values, sums((DRAFTS,) * count), sums(prefixes), places, None, causal,
        None, DRAFTS, 0.5, 2.0, 0.3,
    )  # fmt: skip
    wanted = []
    for b, old in enumerate(places.split(prefixes)):
        part = slice(b * DRAFTS, (b + 1) * DRAFTS)
        whole = torch.cat((keys[old] / 2, k[part])), torch.cat((values[old] * 2, v[part]))
        to, of = (x.repeat_interleave(heads[0] // heads[1], 1).transpose(0, 1) for x in whole)
        wanted.append(attention(q[part].transpose(0, 1), to, of, 0.3, causal).transpose(0, 1))
    return out, torch.cat(wanted)


@pytest.mark.parametrize("heads", [(4, 4), (6, 2)])
def test_split_prefixes(heads: tuple[int, int]) -> None:
    close(*drafted("attention.verify_splitkv", "verify_splitkv_fwd", heads, (48, 48), (9, 37, 300)))


@pytest.mark.parametrize("heads", [(6, 1), (8, 4)])
@pytest.mark.parametrize("wide", [(96, 64), (64, 64)])
@pytest.mark.parametrize("causal", [False, True])
def test_shared_keys(heads: tuple[int, int], wide: tuple[int, int], causal: bool) -> None:
    """Queries wider than values are those of compressed keys, with their rotated part."""
    got, wanted = drafted(
        "attention.verify_mla", "verify_shared_kv_fwd", heads, wide, (9, 90, 300), causal
    )
    close(got.bfloat16(), wanted)  # what the parts give is kept in 16 bits
