"""Adding vectors: the smallest kernel that is worth one.

A launch runs a kernel once for every program of a grid. A program knows its number and works on a
whole tile of elements at once; here on BLOCK neighbours. Where the length is no multiple of BLOCK,
the last program has elements too many: a mask keeps it from touching them.

There is nothing to compute, so this is as fast as memory is. What matters is that the compiler
finds out that neighbours lie side by side and that only the last block needs a mask.
"""

from __future__ import annotations

import torch

import tilewright as tw
import tilewright.language as tl
from examples.tiles.measuring import Case, Verdict, curve, judge, moved

# On a CPU a program is a piece of a loop: large enough that its start costs nothing, small enough
# that all threads get some.
BLOCK = 4096


@tw.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside)
    tl.store(out + at, total, mask=inside)


def add(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    out = torch.empty_like(x) if out is None else out
    n = x.numel()
    add_kernel[(tw.cdiv(n, BLOCK),)](x, y, out, n, BLOCK=BLOCK)
    return out


def check(quick: bool) -> list[Verdict]:
    found = []
    for n in (1, BLOCK, 3 * BLOCK + 17):
        x, y = torch.randn(n), torch.randn(n)
        found.append(judge(f"add {n}", add(x, y), x + y, x.double() + y.double()))
    return found


def case(n: int) -> Case:
    x, y = torch.randn(n), torch.randn(n)
    out, out_peer = torch.empty(n), torch.empty(n)
    # Both write into memory that is there: fresh pages would cost more than adding does.
    return moved(
        f"add {n / 2**20:g} M",
        lambda: add(x, y, out),
        lambda: torch.add(x, y, out=out_peer),
        x,
        y,
        out,
    )


def cases(quick: bool) -> list[Case]:
    return [case(1 << 16)] if quick else [case(1 << 24).ought(0.95)]


def plot(quick: bool, rounds: int) -> tw.testing.Mark:
    sizes = [1 << k for k in ((12, 14, 16) if quick else range(12, 25, 2))]
    return curve("add", "n", sizes, "elements", case, rounds)
