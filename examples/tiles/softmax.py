"""Softmax of rows, fused: each element is read once and written once.

Written with whole tensors, a softmax is five passes over memory: the maximum, a difference, an
exponential, a sum, a quotient. A program that holds a row as one tile needs memory twice, and does
the rest where the row is: in the nearest cache.

A tile's size is a power of two, so a row is padded. What the padding holds is chosen such that it
changes nothing: minus infinity never is the maximum, and its exponential adds nothing to the sum.
"""

from __future__ import annotations

import torch

import tilewright as tw
import tilewright.language as tl
from examples.tiles.measuring import Case, Verdict, curve, judge, moved


@tw.jit
def softmax_kernel(x, out, x_stride, out_stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)  # rows times a stride may pass 2**31
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * x_stride + at, mask=inside, other=-float("inf"))
    raised = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * out_stride + at, raised / tl.sum(raised, axis=0), mask=inside)


def softmax(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    out = torch.empty_like(x) if out is None else out
    rows, columns = x.shape
    block = tw.next_power_of_2(columns)
    softmax_kernel[(rows,)](x, out, x.stride(0), out.stride(0), columns, BLOCK=block)
    return out


def check(quick: bool) -> list[Verdict]:
    found = []
    for rows, columns in ((3, 1), (64, 781), (16, 1024)):
        x = 4 * torch.randn(rows, columns)
        exact = torch.softmax(x.double(), -1)
        found.append(judge(f"softmax {rows}x{columns}", softmax(x), torch.softmax(x, -1), exact))
    wide = torch.randn(32, 400)
    part = wide[:, 100:300]  # its rows are further apart than they are long
    exact = torch.softmax(part.double(), -1)
    found.append(judge("softmax of a view", softmax(part), torch.softmax(part, -1), exact))
    return found


def case(columns: int, rows: int = 4096) -> Case:
    x = torch.randn(rows, columns)
    out, out_peer = torch.empty_like(x), torch.empty_like(x)
    return moved(
        f"softmax {rows}x{columns}",
        lambda: softmax(x, out),
        lambda: torch.softmax(x, -1, out=out_peer),
        x,
        out,
    )


def cases(quick: bool) -> list[Case]:
    return [case(128, 64)] if quick else [case(1024).ought(1.1)]


def plot(quick: bool, rounds: int) -> tw.testing.Mark:
    sizes = (64, 100, 256) if quick else (128, 256, 512, 781, 1024, 2048, 4096)
    rows = 64 if quick else 4096
    label = f"columns ({rows} rows)"
    return curve("softmax", "columns", sizes, label, lambda n: case(n, rows), rounds)
