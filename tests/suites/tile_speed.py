"""How fast tile kernels are that were slow once, compared with torch: one thread, in turn.

    python -m tests.suites.tile_speed                   # all of them
    python -m tests.suites.tile_speed "ragged layer norm" --rounds 200

Each line has the least time of both over all rounds, the ratio of these, the ratio of the medians,
and the bytes that have to be moved in a nanosecond of the least time. On a machine that does other
things as well, the least times are those to look at.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

import tilewright as tw
import tilewright.language as tl

ROUNDS = 300


@tw.jit
def layer_norm(x, w, b, out, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < n
    values = tl.load(x + row * n + at, mask=inside, other=0.0)
    middle = tl.sum(values, axis=0) / n
    off = tl.where(inside, values - middle, 0.0)
    scale = 1 / tl.sqrt(tl.sum(off * off, axis=0) / n + eps)
    weights = tl.load(w + at, mask=inside)
    shifts = tl.load(b + at, mask=inside)
    tl.store(out + row * n + at, off * scale * weights + shifts, mask=inside)


@tw.jit
def residual_layer_norm(x, residual, w, b, out, total, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < n
    values = tl.load(x + row * n + at, mask=inside, other=0.0)
    values += tl.load(residual + row * n + at, mask=inside, other=0.0)
    tl.store(total + row * n + at, values, mask=inside)
    middle = tl.sum(values, axis=0) / n
    off = tl.where(inside, values - middle, 0.0)
    scale = 1 / tl.sqrt(tl.sum(off * off, axis=0) / n + eps)
    weights = tl.load(w + at, mask=inside)
    shifts = tl.load(b + at, mask=inside)
    tl.store(out + row * n + at, off * scale * weights + shifts, mask=inside)


@tw.jit
def online_softmax(x, out, n, BLOCK: tl.constexpr):
    """Maximum and sum in one pass over a row, block by block, then the results in another."""
    row = tl.program_id(0)
    most = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        values = tl.load(x + row * n + at, mask=at < n, other=float("-inf"))
        larger = tl.maximum(most, values)
        total = total * tl.exp(most - larger) + tl.exp(values - larger)
        most = larger
    largest = tl.max(most, axis=0)
    whole = tl.sum(total * tl.exp(most - largest), axis=0)
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        values = tl.load(x + row * n + at, mask=at < n, other=float("-inf"))
        tl.store(out + row * n + at, tl.exp(values - largest) / whole, mask=at < n)


@tw.jit
def cumsum(x, out, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * n + at, mask=at < n, other=0.0)
    tl.store(out + row * n + at, tl.cumsum(values, 0), mask=at < n)


@tw.jit
def added(a, b):
    return a + b


@tw.jit
def associative_cumsum(x, out, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * n + at, mask=at < n, other=0.0)
    tl.store(out + row * n + at, tl.associative_scan(values, 0, added), mask=at < n)


@tw.jit
def combined(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    delta = mean_b - mean_a
    count = count_a + count_b
    share = tl.where(count == 0.0, 0.0, count_b / count)
    return (
        mean_a + delta * share,
        m2_a + m2_b + delta * delta * count_a * share,
        count,
    )


@tw.jit
def welford(x, mean_out, var_out, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    mean = tl.zeros((BLOCK,), tl.float32)
    m2 = tl.zeros((BLOCK,), tl.float32)
    count = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < n
        values = tl.load(x + row * n + at, mask=inside, other=0.0)
        more = count + 1
        delta = values - mean
        new = mean + delta / more
        m2 = tl.where(inside, m2 + delta * (values - new), m2)
        mean = tl.where(inside, new, mean)
        count = tl.where(inside, more, count)
    mean, m2, count = tl.reduce((mean, m2, count), 0, combined)
    tl.store(mean_out + row, mean)
    tl.store(var_out + row, m2 / count)


@dataclass(frozen=True)
class Case:
    ours: Callable[[], Any]
    peer: Callable[[], Any]
    results: Callable[[], Sequence[torch.Tensor]]  # of ours, after a call
    wanted: Callable[[], Sequence[torch.Tensor]]
    moved: int  # bytes that have to be read or written


def _norm(rows: int, n: int) -> Case:
    x, w, b = torch.randn(rows, n), torch.rand(n) + 0.5, torch.randn(n)
    out = torch.empty_like(x)
    block = tw.next_power_of_2(n)
    return Case(
        lambda: layer_norm[(rows,)](x, w, b, out, n, 1e-5, BLOCK=block),
        lambda: F.layer_norm(x, (n,), w, b),
        lambda: (out,),
        lambda: (F.layer_norm(x, (n,), w, b),),
        8 * rows * n,
    )


def _residual(rows: int, n: int) -> Case:
    x, y, w, b = torch.randn(rows, n), torch.randn(rows, n), torch.rand(n) + 0.5, torch.randn(n)
    out, total = torch.empty_like(x), torch.empty_like(x)
    block = tw.next_power_of_2(n)
    return Case(
        lambda: residual_layer_norm[(rows,)](x, y, w, b, out, total, n, 1e-5, BLOCK=block),
        lambda: F.layer_norm(x + y, (n,), w, b),
        lambda: (out, total),
        lambda: (F.layer_norm(x + y, (n,), w, b), x + y),
        16 * rows * n,
    )


def _softmax(rows: int, n: int) -> Case:
    x, out = torch.randn(rows, n), torch.empty(rows, n)
    return Case(
        lambda: online_softmax[(rows,)](x, out, n, BLOCK=1024),
        lambda: torch.softmax(x, 1),
        lambda: (out,),
        lambda: (torch.softmax(x, 1),),
        8 * rows * n,
    )


def _scan(kernel: Any, rows: int, n: int) -> Case:
    x, out = torch.randn(rows, n), torch.empty(rows, n)
    block = tw.next_power_of_2(n)
    return Case(
        lambda: kernel[(rows,)](x, out, n, BLOCK=block),
        lambda: torch.cumsum(x, 1),
        lambda: (out,),
        lambda: (torch.cumsum(x, 1),),
        8 * rows * n,
    )


def _welford(rows: int, n: int) -> Case:
    x, mean, var = torch.randn(rows, n), torch.empty(rows), torch.empty(rows)
    return Case(
        lambda: welford[(rows,)](x, mean, var, n, BLOCK=1024),
        lambda: torch.var_mean(x, 1, correction=0),
        lambda: (var, mean),
        lambda: torch.var_mean(x, 1, correction=0),
        4 * rows * n,
    )


CASES: dict[str, Callable[[], Case]] = {
    "layer norm 32x4096": lambda: _norm(32, 4096),
    "ragged layer norm 32x3000": lambda: _norm(32, 3000),
    "ragged layer norm 32x3001": lambda: _norm(32, 3001),
    "layer norm with residual 32x4096": lambda: _residual(32, 4096),
    "online softmax 16x8192": lambda: _softmax(16, 8192),
    "online softmax 16x8000": lambda: _softmax(16, 8000),
    "cumsum 64x1024": lambda: _scan(cumsum, 64, 1024),
    "cumsum by associative_scan 64x1024": lambda: _scan(associative_cumsum, 64, 1024),
    "Welford 16x8192": lambda: _welford(16, 8192),
}


def check(case: Case) -> None:
    case.ours()
    for found, wanted in zip(case.results(), case.wanted(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def timed(case: Case, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of calls of ours and of torch's, in turn; who begins changes."""
    found: tuple[list[float], list[float]] = ([], [])
    calls = (case.ours, case.peer)
    for call in calls:
        call()
    for k in range(rounds):
        for who in (0, 1) if k % 2 else (1, 0):
            began = perf_counter()
            calls[who]()
            found[who].append(perf_counter() - began)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.suites.tile_speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", help="cases whose names contain one of these")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    tw.set_threads(1)
    torch.manual_seed(0)
    table = Table(title="tile kernels and torch, 1 thread", box=SIMPLE_HEAD)
    table.add_column("case", no_wrap=True)
    for heading in ("ours µs", "torch µs", "× torch", "× (medians)", "bytes/ns"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, make in CASES.items():
        if given.names and not any(part in name for part in given.names):
            continue
        case = make()
        check(case)
        ours, peer = timed(case, given.rounds)
        table.add_row(
            name,
            f"{1e6 * min(ours):.0f}",
            f"{1e6 * min(peer):.0f}",
            f"{min(peer) / min(ours):.2f}",
            f"{median(peer) / median(ours):.2f}",
            f"{case.moved / min(ours) / 1e9:.1f}",
        )
    Console(width=110).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
