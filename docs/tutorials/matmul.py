"""From three loops to a fast matrix product, one step at a time.

    python docs/tutorials/matmul.py            # 480 x 480, a few seconds
    python docs/tutorials/matmul.py --size 1024 --loops

What is computed is written once, as a tensor expression. How it is computed is a schedule: each
section below adds one idea to the one before, and the table at the end shows what it brought on
your machine. Every version gives the same product; that is checked before anything is timed.

Read `loops(s)` (or run with --loops) after each section: a schedule has no hidden part, what it
prints is what runs. `s.show(html="page.html")` shows every step with the loops before and after it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import tilewright as tw
from tilewright import te
from tilewright.ir.target import Target
from tilewright.targets import default


@dataclass(frozen=True)
class Machine:
    """What a schedule has to know: the numbers of one vector unit."""

    lanes: int  # float32 numbers in a vector
    vectors: int  # of the tile's columns
    rows: int  # of the tile

    @property
    def columns(self) -> int:
        return self.lanes * self.vectors

    @staticmethod
    def here() -> Machine:
        return Machine.of(default())

    @staticmethod
    def of(target: Target) -> Machine:
        """A tile of sums that fills the registers, and leaves some for what is read.

        32 registers of 4 lanes (NEON): 8 rows of 3 vectors are 24 sums, 3 hold a row of B, and
        the elements of A come from memory. 16 registers of 8 lanes (AVX2): 6 rows of 2 vectors.
        """
        lanes = target.vector_bits // 32
        vectors = 3 if lanes == 4 and target.vector_registers >= 32 else 2
        rows = {16: 6, 32: 8 if vectors == 3 else 12}.get(target.vector_registers, 4)
        return Machine(lanes, vectors, rows)


@dataclass(frozen=True)
class Version:
    """A schedule and the tensors that its function takes."""

    schedule: te.Schedule
    args: list[te.Tensor]


# ---- 1. What is computed
#
# `te.placeholder` is an input, `te.reduce_axis` an index that is summed over, and `te.compute` says
# what one element of the result is. There is no loop in this function.


def product(n: int) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    a, b = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    k = te.reduce_axis((0, n), "k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return a, b, c


def naive(n: int, m: Machine) -> Version:
    """three loops"""
    # The naive schedule: for i, for j, for k. Each step of k reads the next row of
    # B, n floats further on: almost every read is a cache miss, and nothing runs as a vector.
    a, b, c = product(n)
    return Version(te.create_schedule(c.op), [a, b, c])


# ---- 2. Blocking
#
# A block of 32 x 32 results needs 32 rows of A and 32 columns of B. Computed together, each element
# that was fetched is used 32 times while it is still in the cache. `tile` splits both axes and puts
# the blocks outside; `reorder` then runs a few k for all of the block, so that the innermost loop
# walks along rows of B and C, next neighbour after next neighbour.


def blocked_schedule(n: int) -> tuple[Version, te.IterVar]:
    a, b, c = product(n)
    s = te.create_schedule(c.op)
    xo, yo, xi, yi = s[c].tile(c.op.axis[0], c.op.axis[1], 32, 32)
    (k,) = s[c].op.reduce_axis
    ko, ki = s[c].split(k, factor=4)
    s[c].reorder(xo, yo, ko, xi, ki, yi)
    return Version(s, [a, b, c]), yi


def blocked(n: int, m: Machine) -> Version:
    """blocks of 32 x 32, rows innermost"""
    return blocked_schedule(n)[0]


# ---- 3. Vectors
#
# The innermost loop now does the same to neighbours: one instruction can do several of them. The
# loop is not split any more, its 32 iterations are 32 lanes, as many vectors as that takes.


def vectorized(n: int, m: Machine) -> Version:
    """the same, innermost loop as vectors"""
    version, inner = blocked_schedule(n)
    s, c = version.schedule, version.args[-1]
    s[c].vectorize(inner)
    return version


# ---- 4. Packing
#
# A block of B is 32 short pieces of rows, far apart in memory: each piece is on a page of its own
# for large n. A copy of B in panels, `[n / columns, n, columns]`, makes one block one stretch of
# memory. The copy is a tensor like any other: it is computed, and C reads it. Alone it changes
# little while B fits the caches anyway; the tile of the next section is what reads it well.


def packed_product(n: int, columns: int) -> tuple[te.Tensor, te.Tensor, te.Tensor, te.Tensor]:
    a, b = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    k = te.reduce_axis((0, n), "k")
    panels = te.compute(
        (-(-n // columns), n, columns),
        lambda p, r, j: te.if_then_else(p * columns + j < n, b[r, p * columns + j], 0.0),
        name="panels",
    )
    c = te.compute(
        (n, n),
        lambda i, j: te.sum(a[i, k] * panels[j // columns, k, j % columns], axis=k),
        name="C",
    )
    return a, b, panels, c


def pack(s: te.Schedule, panels: te.Tensor, m: Machine) -> te.IterVar:
    """The copy runs as vectors too; its panels are returned, for threads."""
    p, _, j = panels.op.axis
    jo, ji = s[panels].split(j, factor=m.lanes)
    s[panels].unroll(jo)
    s[panels].vectorize(ji)
    return p


def packed(n: int, m: Machine) -> Version:
    """B copied into panels"""
    a, b, panels, c = packed_product(n, 32)
    s = te.create_schedule(c.op)
    pack(s, panels, m)
    xo, yo, xi, yi = s[c].tile(c.op.axis[0], c.op.axis[1], 32, 32)
    (k,) = s[c].op.reduce_axis
    ko, ki = s[c].split(k, factor=4)
    s[c].reorder(yo, xo, ko, xi, ki, yi)
    s[c].vectorize(yi)
    return Version(s, [a, b, c])


# ---- 5. A tile of registers
#
# So far each multiply-add loads a piece of C and stores it back. Registers hold a small tile of C
# while all of k passes by: `cache_write` computes C in a buffer of its own, `compute_at` narrows
# that buffer to the tile of one iteration, and scope "register" puts it into registers. They have
# no addresses, so the loops over the tile are written out (`unroll`) or lanes (`vectorize`).
#
# One step of k then loads one row of a panel (a few vectors), takes one element of A per row of the
# tile, and does rows x vectors multiply-adds: with 8 x 3 of them for 3 + 8 loads, arithmetic wins.


@dataclass(frozen=True)
class Tiled:
    """A schedule with a register tile, and the axes that later sections go on with."""

    version: Version
    panels: te.IterVar  # the axis over panels of the copy
    columns: te.IterVar  # and of C
    tile: te.Tensor
    k: te.IterVar


def tiled(n: int, m: Machine) -> Tiled:
    a, b, panels, c = packed_product(n, m.columns)
    s = te.create_schedule(c.op)
    p = pack(s, panels, m)
    tile = s.cache_write(c, "register")
    xo, yo, xi, yi = s[c].tile(c.op.axis[0], c.op.axis[1], m.rows, m.columns)
    s[c].reorder(yo, xo, xi, yi)  # a panel stays in the cache while the rows pass by
    s[tile].compute_at(s[c], xo)
    (k,) = s[tile].op.reduce_axis
    i, j = s[tile].op.axis
    s[tile].reorder(k, i, j)
    peel_tails(s, c, [(xo, n % m.rows), (yo, n % m.columns)])
    for stage, row, column in ((tile, i, j), (c, xi, yi)):
        write_out(s, stage, row, column, m)
    return Tiled(Version(s, [a, b, c]), p, yo, tile, k)


def peel_tails(s: te.Schedule, c: te.Tensor, axes: list[tuple[te.IterVar, int]]) -> None:
    """Where the tile does not divide n, the last one is smaller: a copy of its own for that one
    keeps the others free of questions."""
    for axis, left in axes:
        if left:
            s[c].peel(axis)


def write_out(
    s: te.Schedule, stage: te.Tensor, row: te.IterVar, column: te.IterVar, m: Machine
) -> None:
    outer, inner = s[stage].split(column, factor=m.lanes)
    s[stage].unroll(row)
    s[stage].unroll(outer)
    s[stage].vectorize(inner)


def register_tile(n: int, m: Machine) -> Version:
    """a tile of C in registers"""
    return tiled(n, m).version


# ---- 6. Unrolling
#
# Four steps of k per iteration: fewer jumps and counters, and loads of the next step can start
# while the multiplications of this one are under way.


def unrolled(n: int, m: Machine) -> Version:
    """the same, four steps of k written out"""
    t = tiled(n, m)
    s = t.version.schedule
    _, ki = s[t.tile].split(t.k, factor=4)
    s[t.tile].unroll(ki)
    return t.version


# ---- 7. Blocks of k
#
# For large n a panel of B (n x columns) no longer fits the first cache. `rfactor` sums over blocks
# of k apart: partial sums of one block are the register tile, and C adds them up. The part of a
# panel that one block needs stays in the cache while all rows of A pass by.

DEPTH = 256


def in_blocks_of_k(n: int, m: Machine) -> tuple[Version, te.IterVar, te.IterVar]:
    a, b, panels, c = packed_product(n, m.columns)
    s = te.create_schedule(c.op)
    p = pack(s, panels, m)
    ko, _ = s[c].split(c.op.reduce_axis[0], factor=min(DEPTH, n))
    tile = s.rfactor(c, ko)
    (kb,) = s[c].op.reduce_axis
    xo, yo, xi, yi = s[c].tile(c.op.axis[0], c.op.axis[1], m.rows, m.columns)
    s[c].reorder(yo, kb, xo, xi, yi)
    s[tile].compute_at(s[c], xo)
    s[tile].set_scope("register")
    (ki,) = s[tile].op.reduce_axis
    _, i, j = s[tile].op.axis
    s[tile].reorder(ki, i, j)
    _, last = s[tile].split(ki, factor=4)
    peel_tails(s, c, [(xo, n % m.rows), (yo, n % m.columns)])
    s[tile].unroll(last)
    for stage, row, column in ((tile, i, j), (c, xi, yi)):
        write_out(s, stage, row, column, m)
    return Version(s, [a, b, c]), p, yo


def blocks_of_k(n: int, m: Machine) -> Version:
    """k in blocks that stay in the cache"""
    return in_blocks_of_k(n, m)[0]


# ---- 8. Threads
#
# Panels are independent: each thread takes some of them, first to copy, then to multiply.


def threads(n: int, m: Machine) -> Version:
    """panels on all threads"""
    version, p, yo = in_blocks_of_k(n, m)
    s, c = version.schedule, version.args[-1]
    (panels,) = [t for t in c.op.input_tensors if t.name == "panels"]
    s[panels].parallel(p)
    s[c].parallel(yo)
    return version


STEPS: tuple[Callable[[int, Machine], Version], ...] = (
    naive,
    blocked,
    vectorized,
    packed,
    register_tile,
    unrolled,
    blocks_of_k,
    threads,
)


# ---- Checking and measuring


@dataclass(frozen=True)
class Result:
    name: str
    what: str
    seconds: float
    error: float  # the largest, relative to the largest element of the product


def measure(n: int, rounds: int = 3, m: Machine | None = None) -> list[Result]:
    """Every version: checked against float64, then timed in turns, so that what disturbs the
    machine disturbs all of them; the best time counts."""
    m = m or Machine.here()
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, n), "f4") for _ in range(2))
    want = a.astype("f8") @ b.astype("f8")
    built, errors = [], []
    for step in STEPS:
        v = step(n, m)
        f = tw.build(v.schedule, v.args)
        c = np.full((n, n), np.nan, "f4")
        f(a, b, c)
        errors.append(float(np.abs(c - want).max() / np.abs(want).max()))
        built.append(f)
    best = [float("inf")] * len(STEPS)
    for _ in range(rounds):
        for k, f in enumerate(built):
            times = f.time_evaluator(repeat=1 if k == 0 else 3)(a, b, c)
            best[k] = min(best[k], times.min)
    rows = zip(STEPS, best, errors, strict=True)
    return [Result(s.__name__, s.__doc__ or "", t, e) for s, t, e in rows]


def table(results: Sequence[Result], n: int) -> Table:
    out = Table(title=f"C = A @ B, {n} x {n}, float32, {tw.get_threads()} threads at the end")
    out.add_column("step", no_wrap=True)
    out.add_column("what is new")
    for title in ("ms", "of naive", "gain"):
        out.add_column(title, justify="right", no_wrap=True)
    before = first = results[0].seconds
    for r in results:
        share, gain = f"{r.seconds / first:.3f}", f"{before / r.seconds:.2f}"
        out.add_row(r.name, r.what, f"{1e3 * r.seconds:.2f}", share, gain)
        before = r.seconds
    return out


def draw(results: Sequence[Result], title: str, path: Path) -> None:
    """Bars of milliseconds, one per step; matplotlib is imported only here."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 3.6), layout="constrained")
    bars = axes.barh([r.name for r in results], [1e3 * r.seconds for r in results])
    axes.bar_label(bars, fmt="%.2f", padding=4)
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds, on a logarithmic scale")
    axes.set_title(title)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    figure.savefig(path)
    pyplot.close(figure)


def loops(v: Version) -> str:
    return str(tw.lower(v.schedule, v.args, simple_mode=True))


def main(argv: Sequence[str] | None = None) -> list[Result]:
    parser = argparse.ArgumentParser(description=__doc__, add_help=True)
    parser.add_argument("--size", type=int, default=480, help="rows and columns of the matrices")
    parser.add_argument("--rounds", type=int, default=3, help="how often each version is timed")
    parser.add_argument("--loops", action="store_true", help="show the loops of every step")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the times, as SVG or PNG")
    given = parser.parse_args(argv)
    console = Console()
    if given.loops:
        for step in STEPS:
            console.rule(f"{step.__name__}: {step.__doc__}")
            console.print(loops(step(given.size, Machine.here())), highlight=False, markup=False)
    results = measure(given.size, given.rounds)
    console.rule("what every step costs")
    console.print(table(results, given.size))
    if given.plot:
        draw(results, f"C = A @ B, {given.size} x {given.size}, float32", given.plot)
    return results


if __name__ == "__main__":
    main()
