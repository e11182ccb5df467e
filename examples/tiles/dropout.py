"""Dropout from a seed: no mask in memory, and the same one again whenever it is needed.

A mask that is stored has to be written forward and read backward. Numbers that are a function of a
seed and of an element's place need no memory: the backward pass computes them again. `tl.rand` is
such a function (philox, the same bits on every machine and for every number of threads).

One round of philox gives four numbers. `tl.rand` takes one of them; the second kernel takes all
four and so does a quarter of the work per element.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

import tilewright as tw
import tilewright.language as tl
from examples.tiles.measuring import Case, Verdict, curve, equal, moved

BLOCK = 1024


@tw.jit
def dropout_kernel(x, out, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    keep = tl.rand(seed, at) >= p
    values = tl.load(x + at, mask=inside)
    tl.store(out + at, tl.where(keep, values / (1 - p), 0.0), mask=inside)


@tw.jit
def dropped(x, out, at, random, n, p):
    inside = at < n
    values = tl.load(x + at, mask=inside)
    tl.store(out + at, tl.where(random >= p, values / (1 - p), 0.0), mask=inside)


@tw.jit
def dropout4_kernel(x, out, n, p, seed, BLOCK: tl.constexpr):
    block = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    first, second, third, fourth = tl.rand4x(seed, block * BLOCK + lanes)
    at = block * (4 * BLOCK) + lanes
    dropped(x, out, at, first, n, p)
    dropped(x, out, at + BLOCK, second, n, p)
    dropped(x, out, at + 2 * BLOCK, third, n, p)
    dropped(x, out, at + 3 * BLOCK, fourth, n, p)


def dropout(x: torch.Tensor, p: float, seed: int) -> torch.Tensor:
    out = torch.empty_like(x)
    n = x.numel()
    dropout4_kernel[(tw.cdiv(n, 4 * BLOCK),)](x, out, n, p, seed, BLOCK=BLOCK)
    return out


def simple_dropout(x: torch.Tensor, p: float, seed: int) -> torch.Tensor:
    """The same with one number of each four. Another mask, as its numbers are others."""
    out = torch.empty_like(x)
    n = x.numel()
    dropout_kernel[(tw.cdiv(n, BLOCK),)](x, out, n, p, seed, BLOCK=BLOCK)
    return out


def check(quick: bool) -> list[Verdict]:
    n, p = 100_003, 0.3
    x = torch.randn(n) + 10  # no element is 0 by itself
    found = []
    for f in (dropout, simple_dropout):
        out = f(x, p, seed=7)
        kept = out != 0
        # The count of numbers that are not dropped is binomial: five standard deviations are passed
        # once in two million seeds.
        off = abs(kept.sum().item() - n * (1 - p)) / (n * p * (1 - p)) ** 0.5
        found.append(Verdict(f"{f.__name__}: share that is kept", off, 5.0))
        scaled = (x / (1 - p))[kept]
        found.append(equal(f"{f.__name__}: kept and scaled", torch.allclose(out[kept], scaled)))
        found.append(equal(f"{f.__name__}: by its seed", torch.equal(out, f(x, p, seed=7))))
        other = f(x, p, seed=8) != 0
        found.append(equal(f"{f.__name__}: another seed", not torch.equal(kept, other)))
        found.append(equal(f"{f.__name__}: nothing to drop", torch.equal(f(x, 0.0, 1), x)))
    return found


def case(n: int, p: float = 0.5) -> Case:
    x = torch.randn(n)
    return moved(
        f"dropout {n / 2**20:g} M", lambda: dropout(x, p, 1), lambda: F.dropout(x, p), x, x
    )


def cases(quick: bool) -> list[Case]:
    return [case(1 << 14)] if quick else [case(1 << 24).ought(1.0)]


def plot(quick: bool, rounds: int) -> tw.testing.Mark:
    sizes = [1 << k for k in ((10, 12) if quick else range(12, 25, 2))]
    return curve("dropout", "n", sizes, "elements", case, rounds)
