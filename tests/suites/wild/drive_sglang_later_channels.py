"""SGLang: parts of the delta rule with a decay for each channel, chunk by chunk, and how
projections are divided into heads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from reference import close, randn, same
from sglang_parts import function, longs, sums, uniform

HEADS, WIDE, DEEP, CHUNK, SCALE = 2, 64, 32, 64, 0.3
LENGTHS = (70, 9)
ROUGH = 20  # times the tolerance of float32: that of sums below one of 16 bits


def chunks(apart: bool) -> Iterator[slice]:
    """Of one sequence of 79, or of two in one row."""
    at = 0
    for n in LENGTHS if apart else (79,):
        for first in range(at, at + n, CHUNK):
            yield slice(first, min(first + CHUNK, at + n))
        at += n


def drawn_channels(apart: bool) -> tuple[torch.Tensor, ...]:
    """Queries, keys, values, the sum of logarithms to base 2 within each chunk, beta."""
    q, k = (randn(1, 79, HEADS, WIDE, seed=s) / 8 for s in range(2))
    decay, beta = uniform(1, 79, HEADS, WIDE) / -4, uniform(1, 79, HEADS)
    sums = torch.cat([decay[:, part].cumsum(1) for part in chunks(apart)], 1)
    return q, k, randn(1, 79, HEADS, DEEP), sums, beta


def products(a: torch.Tensor, b: torch.Tensor, g: torch.Tensor, part: slice) -> torch.Tensor:
    """(heads, time, time): each row with each other one, faded by the steps between them."""
    at = g[0, part].double()
    fade = (at[:, None] - at[None]).exp2()
    return torch.einsum("thk,shk,tshk->hts", a[0, part].double(), b[0, part].double(), fade)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_products(apart: bool, scaled: bool) -> None:
    q, k, _, g, beta = drawn_channels(apart)
    given = {"cu_seqlens": sums(LENGTHS).long()} if apart else {}
    got, other = function("attention.fla.kda", "chunk_kda_scaled_dot_kkt_fwd")(
        q, k, g * 2 if scaled else g, beta, SCALE, 0.5 if scaled else 1.0, **given
    )
    wanted, known = (torch.zeros(79, HEADS, CHUNK).double() for _ in range(2))
    for part in chunks(apart):
        long = part.stop - part.start
        wanted[part, :, :long] = products(k, k, g, part).tril(-1).transpose(0, 1)
        wanted[part] *= beta[0, part, :, None]
        known[part, :, :long] = products(q, k, g, part).tril().transpose(0, 1) * SCALE
    close(got[0], wanted)
    close(other[0], known)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("safe", [False, True])
def test_solutions(apart: bool, safe: bool) -> None:
    """What the values and keys of a chunk become once each sees those before it. Products of
    different parts of a chunk are of 16 bits: of 64 channels that sum up to less than one."""
    q, k, v, g, beta = drawn_channels(apart)
    given = {"cu_seqlens": sums(LENGTHS).long()} if apart else {}
    w, u, _, kept, scores, inverse = function("attention.fla.chunk_intra", "chunk_kda_fwd_intra")(
        q, k, v, g, beta, SCALE, safe_gate=safe, **given
    )
    for part in chunks(apart):
        long = part.stop - part.start
        lower = torch.ones(long, long).tril().bool()
        one = products(k, k, g, part).tril(-1) * beta[0, part].T.double()[..., None]
        solved = torch.linalg.inv(one + torch.eye(long).double())
        close(inverse[0, part, :, :long].transpose(0, 1), solved, ROUGH)
        found = scores[0, part, :, :long].transpose(0, 1)
        close(found[:, lower], (products(q, k, g, part) * SCALE)[:, lower], ROUGH)
        b, at = beta[0, part, :, None].double(), g[0, part].double()
        close(u[0, part], torch.einsum("hts,shv->thv", solved, b * v[0, part]), ROUGH)
        keys = b * k[0, part] * at.exp2()
        close(w[0, part], torch.einsum("hts,shk->thk", solved, keys), ROUGH)
        close(kept[0, part], k[0, part] * (at[-1:] - at).exp2())


def test_scaled_keys() -> None:
    q, k = (randn(79, HEADS, WIDE, seed=s) for s in range(2))
    decay = uniform(79, HEADS, WIDE) / -16
    got = function("attention.linear.kda_blackwell.prologue", "kda_prologue")(
        q, k, decay, SCALE, sums(LENGTHS), longs(0, 0, 0, 1, 1, 0).view(3, 2), 3
    )
    parts = [decay[part].double().cumsum(0) for part in chunks(True)]
    g, last = torch.cat(parts), torch.cat([x[-1:].expand_as(x) for x in parts])
    left = (g - last).exp()
    wanted = k * left, k / left, k * g.exp(), q * g.exp() * SCALE, q * left * SCALE, g
    for a, b in zip(got, wanted, strict=True):
        close(a, b)


# ---- projections


@pytest.mark.parametrize("share", [1, 2, 3])
def test_projections(share: int) -> None:
    path, values, rows = "attention.triton_gdn_fused_proj", 2 * share, 5
    q, k = (randn(rows, 2, 32, seed=s) for s in range(2))
    v, z = (randn(rows, values, 16, seed=s) for s in range(2))
    b, a = (randn(rows, values, seed=s) for s in range(2))
    wanted = torch.cat([x.flatten(1) for x in (q, k, v)], 1), z, b, a
    sides = torch.cat([x.flatten(1) for x in (q, k, v, z)], 1), torch.cat((b, a), 1)
    for got, x in zip(
        function(path, "fused_qkvzba_split_reshape_cat_contiguous")(*sides, 2, values, 32, 16),
        wanted,
        strict=True,
    ):
        same(got, x)
    # A view of a wider row.
    wide = torch.cat((wanted[0], z.flatten(1)), 1)[:, : wanted[0].shape[1]]
    found = function(path, "fused_qkv_split_gdn_prefill")(wide, 2, 2, values, 32, 32, 16)
    for got, x in zip(found, (q, k, v), strict=True):
        same(got[0], x)
    if share == 3:
        return  # the kernel for mixed rows moves powers of two
    groups = torch.cat([q, k, *(x.reshape(rows, 2, -1) for x in (v, z))], 2).flatten(1)
    small = torch.cat([x.view(rows, 2, share) for x in (b, a)], 2).flatten(1)
    found = function(path, "fused_qkvzba_split_reshape_cat")(groups, small, 2, values, 32, 16)
    for got, x in zip(found, wanted, strict=True):
        same(got, x)
