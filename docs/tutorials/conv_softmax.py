"""Convolution and softmax: several stages, and where each of them is computed.

    python docs/tutorials/conv_softmax.py
    python docs/tutorials/conv_softmax.py --loops

Read docs/tutorials/matmul.py first; it explains the steps used there. Real programs are chains of
stages: a convolution with what comes before and after it, a softmax with four passes over a row.
This page takes both from one nest per stage to few loops around everything. As before, every
version is checked against float64 before it is timed.
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
from tilewright.targets import default

LANES = default().vector_bits // 32


@dataclass(frozen=True)
class Version:
    """A schedule and the tensors that its function takes, the result last."""

    schedule: te.Schedule
    args: list[te.Tensor]


# ---- 1. A convolution, and what networks do with it
#
# The image is padded, convolved with 3 x 3 filters, shifted by a bias and clipped at zero: four
# stages. `if_then_else` reads only where its condition holds, so padding never leaves the image.


@dataclass(frozen=True)
class Conv:
    x: te.Tensor  # [channels, height, width]
    w: te.Tensor  # [filters, channels, 3, 3]
    bias: te.Tensor
    pad: te.Tensor
    conv: te.Tensor
    biased: te.Tensor
    y: te.Tensor

    @property
    def args(self) -> list[te.Tensor]:
        return [self.x, self.w, self.bias, self.y]


def convolution(n: int, channels: int = 16, filters: int = 32) -> Conv:
    x = te.placeholder((channels, n, n), name="X")
    w = te.placeholder((filters, channels, 3, 3), name="W")
    bias = te.placeholder((filters,), name="bias")
    pad = te.compute(
        (channels, n + 2, n + 2),
        lambda c, i, j: te.if_then_else(
            te.all(i >= 1, i <= n, j >= 1, j <= n), x[c, i - 1, j - 1], 0.0
        ),
        name="pad",
    )
    c = te.reduce_axis((0, channels), "c")
    p, q = te.reduce_axis((0, 3), "p"), te.reduce_axis((0, 3), "q")
    shape = (filters, n, n)
    conv = te.compute(
        shape,
        lambda o, i, j: te.sum(pad[c, i + p, j + q] * w[o, c, p, q], axis=[c, p, q]),
        name="conv",
    )
    biased = te.compute(shape, lambda o, i, j: conv[o, i, j] + bias[o], name="biased")
    y = te.compute(shape, lambda o, i, j: te.max(biased[o, i, j], 0.0), name="Y")
    return Conv(x, w, bias, pad, conv, biased, y)


def conv_naive(n: int) -> Version:
    """one nest per stage"""
    # Every stage writes all of its result to memory, and the next one reads it back.
    t = convolution(n)
    return Version(te.create_schedule(t.y.op), t.args)


# ---- 2. Stages that disappear
#
# Bias and clipping are one operation per element: they belong where the sum is finished.
# `compute_inline` writes a stage into those that read it. Padding could be inlined as well, but
# then every product of the convolution would test whether it is inside the image.


def conv_inlined(n: int) -> Version:
    """bias written into what reads it"""
    t = convolution(n)
    s = te.create_schedule(t.y.op)
    s[t.biased].compute_inline()
    return Version(s, t.args)


# ---- 3. Stages that move
#
# `compute_at` computes a stage inside a loop of the one that reads it, and only the part that is
# read there. One row of one filter is summed up in a buffer of a single row, then clipped and
# stored: `conv` shrinks from filters x n x n numbers to n. `s.show()` shows the size of every
# buffer. The time hardly changes yet, because these loops do one multiplication at a time and
# memory keeps up with that easily; the next two sections rest on this one.


@dataclass(frozen=True)
class Placed:
    t: Conv
    s: te.Schedule
    filters: te.IterVar
    rows: te.IterVar
    columns: te.IterVar


def placed(n: int) -> Placed:
    t = convolution(n)
    s = te.create_schedule(t.y.op)
    s[t.biased].compute_inline()
    o, i, j = t.y.op.axis
    s[t.conv].compute_at(s[t.y], i)
    return Placed(t, s, o, i, j)


def conv_placed(n: int) -> Version:
    """the sum inside the rows of the result"""
    p = placed(n)
    return Version(p.s, p.t.args)


# ---- 4. Vectors along the row
#
# Neighbours in a row need neighbours of the padded image and one common weight. With the sums over
# c, p and q outside, the row is the innermost loop; a part of it is lanes.


def lanes_along_the_row(p: Placed) -> None:
    t, s = p.t, p.s
    _, _, column = s[t.conv].op.axis
    outer, inner = s[t.conv].split(column, factor=4 * LANES)
    s[t.conv].reorder(outer, *s[t.conv].op.reduce_axis, inner)
    s[t.conv].vectorize(inner)
    _, inner = s[t.y].split(p.columns, factor=4 * LANES)
    s[t.y].vectorize(inner)


def conv_vectors(n: int) -> Version:
    """lanes along the row"""
    p = placed(n)
    lanes_along_the_row(p)
    return Version(p.s, p.t.args)


# ---- 5. Several filters at a time
#
# Each element of the image that was loaded is multiplied with one weight only. Four filters in the
# same loops use it four times: the axis over filters is split, and the stage is computed for four
# of them at once. Their sums, four rows of a few vectors each, fit into registers.


def several_filters(n: int, block: int = 4) -> tuple[Placed, te.IterVar]:
    t = convolution(n)
    s = te.create_schedule(t.y.op)
    s[t.biased].compute_inline()
    o, i, j = t.y.op.axis
    oo, oi = s[t.y].split(o, factor=block)
    width = min(n, 4 * LANES)
    jo, ji = s[t.y].split(j, factor=width)
    s[t.y].reorder(oo, i, jo, oi, ji)
    s[t.conv].compute_at(s[t.y], jo)
    fo, _, column = s[t.conv].op.axis
    s[t.conv].reorder(*s[t.conv].op.reduce_axis, fo, column)
    s[t.conv].set_scope("register")
    if n % width:
        s[t.y].peel(jo)
    s[t.conv].unroll(fo)
    s[t.conv].vectorize(column)
    s[t.y].unroll(oi)
    s[t.y].vectorize(ji)
    return Placed(t, s, oo, i, ji), oo


def conv_filters(n: int) -> Version:
    """four filters share what they load"""
    p, _ = several_filters(n)
    return Version(p.s, p.t.args)


def conv_threads(n: int) -> Version:
    """filters on all threads"""
    # The padding is done once, before, by all threads as well: one channel each.
    p, oo = several_filters(n)
    p.s[p.t.pad].parallel(p.t.pad.op.axis[0])
    p.s[p.t.y].parallel(oo)
    return Version(p.s, p.t.args)


# ---- 6. Softmax
#
# Each row of y is exp(x - its maximum) divided by the sum of that. Four stages again, each over the
# whole matrix: with the naive schedule the matrix goes through memory four times.


@dataclass(frozen=True)
class Softmax:
    x: te.Tensor
    top: te.Tensor
    e: te.Tensor
    total: te.Tensor
    y: te.Tensor

    @property
    def args(self) -> list[te.Tensor]:
        return [self.x, self.y]


def softmax(rows: int, n: int) -> Softmax:
    x = te.placeholder((rows, n), name="X")
    k, r = te.reduce_axis((0, n), "k"), te.reduce_axis((0, n), "r")
    top = te.compute((rows,), lambda i: te.max(x[i, k], axis=k), name="top")
    e = te.compute((rows, n), lambda i, j: te.exp(x[i, j] - top[i]), name="e")
    total = te.compute((rows,), lambda i: te.sum(e[i, r], axis=r), name="total")
    y = te.compute((rows, n), lambda i, j: e[i, j] / total[i], name="Y")
    return Softmax(x, top, e, total, y)


def softmax_naive(n: int) -> Version:
    """one nest per stage"""
    t = softmax(n, n)
    return Version(te.create_schedule(t.y.op), t.args)


# ---- 7. A row at a time
#
# All stages move into the rows of the result. What is read by several others moves last, so that
# everything that reads it is there already. A row now stays in the cache from the maximum to the
# division, and e is a buffer of one row.


def in_rows(n: int) -> tuple[Softmax, te.Schedule]:
    t = softmax(n, n)
    s = te.create_schedule(t.y.op)
    for stage in (t.total, t.e, t.top):
        s[stage].compute_at(s[t.y], t.y.op.axis[0])
    return t, s


def softmax_rows(n: int) -> Version:
    """a row at a time"""
    t, s = in_rows(n)
    return Version(s, t.args)


# ---- 8. Vectors in a sum: rfactor
#
# e and y are maps: their elements are independent, and lanes are one call. A maximum or a sum is
# not: every element changes one number. `vectorize` refuses to guess. `rfactor` says what is meant:
# partial sums, one per lane, and one short sum over those at the end. That is another order of
# additions, which floats notice in the last digits; te.create_schedule(…, precision="strict") would
# refuse it.


def lanes_everywhere(t: Softmax, s: te.Schedule) -> None:
    for stage, column in ((t.e, t.e.op.axis[1]), (t.y, t.y.op.axis[1])):
        _, inner = s[stage].split(column, factor=4 * LANES)
        s[stage].vectorize(inner)


def softmax_vectors(n: int) -> Version:
    """partial results per lane"""
    t, s = in_rows(n)
    for stage in (t.top, t.total):
        (k,) = s[stage].op.reduce_axis
        _, lane = s[stage].split(k, factor=4 * LANES)
        parts = s.rfactor(stage, lane)
        lane, (outer,) = s[parts].op.axis[0], s[parts].op.reduce_axis
        s[parts].reorder(outer, lane)
        s[parts].vectorize(lane)
    lanes_everywhere(t, s)
    return Version(s, t.args)


def softmax_threads(n: int) -> Version:
    """rows on all threads"""
    v = softmax_vectors(n)
    y = v.args[-1]
    v.schedule[y].parallel(y.op.axis[0])
    return v


# ---- Checking and measuring

CONVOLUTION = (conv_naive, conv_inlined, conv_placed, conv_vectors, conv_filters, conv_threads)
SOFTMAX = (softmax_naive, softmax_rows, softmax_vectors, softmax_threads)
Steps = Sequence[Callable[[int], Version]]


@dataclass(frozen=True)
class Result:
    name: str
    what: str
    seconds: float
    error: float  # the largest, relative to the largest element of the result


def inputs_and_answer(steps: Steps, n: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Random inputs, and what float64 makes of them."""
    rng = np.random.default_rng(0)
    shapes = [[int(str(d)) for d in a.shape] for a in steps[0](n).args]
    given = [rng.standard_normal(s, "f4") for s in shapes[:-1]]
    wide = [a.astype("f8") for a in given]
    if steps is SOFTMAX:
        e = np.exp(wide[0] - wide[0].max(1, keepdims=True))
        return given, e / e.sum(1, keepdims=True)
    x, w, bias = wide
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    summed = np.einsum("cijpq,ocpq->oij", windows, w, optimize=True)
    return given, np.maximum(summed + bias[:, None, None], 0)


def measure(steps: Steps, n: int, rounds: int = 3) -> list[Result]:
    """Every version: checked, then timed in turns; the best time counts."""
    given, want = inputs_and_answer(steps, n)
    built, errors = [], []
    out = np.empty(want.shape, "f4")
    for step in steps:
        v = step(n)
        f = tw.build(v.schedule, v.args)
        out[:] = np.nan
        f(*given, out)
        errors.append(float(np.abs(out - want).max() / np.abs(want).max()))
        built.append(f)
    best = [float("inf")] * len(steps)
    for _ in range(rounds):
        for k, f in enumerate(built):
            best[k] = min(best[k], f.time_evaluator(repeat=3)(*given, out).min)
    rows = zip(steps, best, errors, strict=True)
    return [Result(s.__name__, s.__doc__ or "", t, e) for s, t, e in rows]


def table(results: Sequence[Result], title: str) -> Table:
    out = Table(title=title)
    out.add_column("step", no_wrap=True)
    out.add_column("what is new")
    for name in ("ms", "of naive", "gain"):
        out.add_column(name, justify="right", no_wrap=True)
    before = first = results[0].seconds
    for r in results:
        share, gain = f"{r.seconds / first:.3f}", f"{before / r.seconds:.2f}"
        out.add_row(r.name, r.what, f"{1e3 * r.seconds:.2f}", share, gain)
        before = r.seconds
    return out


def draw(found: dict[str, list[Result]], path: Path) -> None:
    """Bars of milliseconds, one per step; matplotlib is imported only here."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, parts = pyplot.subplots(len(found), figsize=(8, 5.4), layout="constrained")
    for axes, (what, results) in zip(parts, found.items(), strict=True):
        bars = axes.barh([r.name for r in results], [1e3 * r.seconds for r in results])
        axes.bar_label(bars, fmt="%.2f", padding=4)
        axes.set_xscale("log")
        axes.set_xlabel("milliseconds, on a logarithmic scale")
        axes.set_title(what)
        axes.invert_yaxis()
        axes.margins(x=0.15)
    figure.savefig(path)
    pyplot.close(figure)


def loops(v: Version) -> str:
    return str(tw.lower(v.schedule, v.args, simple_mode=True))


def main(argv: Sequence[str] | None = None) -> dict[str, list[Result]]:
    parser = argparse.ArgumentParser(description="Convolution and softmax, step by step.")
    parser.add_argument("--image", type=int, default=64, help="height and width of the image")
    parser.add_argument("--rows", type=int, default=1024, help="rows and columns of the softmax")
    parser.add_argument("--rounds", type=int, default=3, help="how often each version is timed")
    parser.add_argument("--loops", action="store_true", help="show the loops of every step")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the times, as SVG or PNG")
    given = parser.parse_args(argv)
    console, found = Console(), {}
    cases = (("convolution", CONVOLUTION, given.image), ("softmax", SOFTMAX, given.rows))
    for what, steps, n in cases:
        for step in steps if given.loops else ():
            console.rule(f"{step.__name__}: {step.__doc__}")
            console.print(loops(step(n)), highlight=False, markup=False)
        found[what] = measure(steps, n, given.rounds)
        console.rule("what every step costs")
        console.print(table(found[what], f"{what}, {n} x {n}, float32"))
    if given.plot:
        draw(found, given.plot)
    return found


if __name__ == "__main__":
    main()
