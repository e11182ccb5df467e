"""Register tiles and prefetch distances by racing the compiler's own kernels: products of matrices
by default schedules for targets that differ in these numbers alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import lcm
from statistics import median
from typing import Protocol

from tilewright.base.errors import TilewrightError
from tilewright.ir.product import Product, TileShape
from tilewright.ir.target import Target
from tilewright.kernel.group import Group
from tilewright.kernel.nest import Nest
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.text import parse_group
from tilewright.runtime import pool
from tilewright.runtime.device import HOST
from tilewright.tune.measure import ROUNDS, SAMPLE_SECONDS, Arguments

# Another tile or distance has to be faster by this part: one product stands for many kernels.
CLEARLY = 0.08
# Heights that are as good as the best one, within this part.
ALIKE = 0.04
MOST_ROWS, MOST_VECTORS = 16, 4
# Rows (most tiles leave nothing over), rows whose elements are adjacent, and steps of each sum:
# operands stay in the second cache.
ROWS, ADJACENT, DEEP = 420, 120, 256
DISTANCES = (0, 1, 2, 4)


class Racing(Protocol):
    """Whoever times nests of one group, or with arguments of the same sizes, on one thread."""

    def __call__(self, nests: Sequence[Nest], target: Target) -> Sequence[float]: ...


def raced(nests: Sequence[Nest], target: Target) -> list[float]:
    """Seconds of a call of each nest, by the clock of this thread, which does all of the work:
    medians over rounds in which they take turns."""
    threads = pool.get_threads()
    pool.set_threads(1)
    try:
        return _raced(nests, target)
    finally:
        pool.set_threads(threads)


def _raced(nests: Sequence[Nest], target: Target) -> list[float]:
    kernels = [HOST.kernel(n, target) for n in nests]
    arguments = Arguments(nests[0], target, HOST)
    calls = [arguments.launches(f) for f in kernels]
    samples: list[list[float]] = [[] for _ in calls]
    repeats = [1] * len(calls)
    for number in range(-2, ROUNDS):  # the first two are for the caches, and to see how many
        for k, launches in enumerate(calls):
            began = time.thread_time()
            for r in range(repeats[k]):
                launches[r % len(launches)]()
            took = (time.thread_time() - began) / repeats[k]
            if number < 0:
                repeats[k] = max(1, min(1000, int(SAMPLE_SECONDS / max(took, 1e-7))))
            else:
                samples[k].append(took)
    calls.clear()
    for f in kernels:
        f.close()
    return [median(x) for x in samples]


def product(m: int, k: int, n: int, wide: int, adjacent: bool = False) -> Group:
    """A product with columns packed in blocks; `adjacent`: elements of rows are, in memory."""
    x, at = (f"{k},{m}", "t.r0,t.i0") if adjacent else (f"{m},{k}", "t.i0,t.r0")
    return parse_group(f"""
group packed
  in x: f32[{x}]
  in w: f32[{n // wide},{k},{wide}] laid out by k, j -> j//{wide}, k, j%{wide}
  out y: f32[{m},{n}]
  local t: f32[{m},{n}]
  t[t.i0,t.i1] add= x[{at}] * w[t.i1//{wide},t.r0,t.i1%{wide}] \
    for t.i0 in {m}, t.i1 in {n}, t.r0 in {k} from 0.0
  y[y.i0,y.i1] = max(t[y.i0,y.i1], 0.0) for y.i0 in {m}, y.i1 in {n}
""")


def shapes(target: Target) -> list[TileShape]:
    """Tiles that registers hold, with most of these in use, and those of the target first."""
    known = [replace(t, most=0) for t in target.tiles]
    found = []
    for vectors in range(1, MOST_VECTORS + 1):
        most = min(MOST_ROWS, (target.vector_registers - 1 - vectors) // vectors)
        adjacent = next((t.adjacent for t in known if t.vectors == vectors), most)
        found += [TileShape(r, vectors, adjacent) for r in range(most, max(1, most // 2), -1)]
    return list(dict.fromkeys([*known, *found]))


def _single(target: Target, tile: TileShape) -> Target:
    """One thread, and a tile alone."""
    return replace(target, tiles=(tile,), cores=1)


def tiles(
    target: Target, race: Racing = raced, tick: Callable[[], None] = lambda: None
) -> tuple[TileShape, ...]:
    """The register tiles of a target, the widest first: the best of all that fit, and narrower ones
    where the target has such, each with the rows that are best for it."""
    lanes = target.lanes(32)
    columns = lcm(*range(1, MOST_VECTORS + 1)) * lanes
    every = shapes(target)
    nests = [
        default_schedule(product(ROWS, DEEP, columns, t.vectors * lanes), _single(target, t))[1]
        for t in every
    ]
    took = dict(zip(every, race(nests, _single(target, every[0])), strict=True))
    tick()
    widest = _best(took, every[0])
    narrower = sorted({t.vectors for t in target.tiles if t.vectors < widest.vectors}, reverse=True)
    out = []
    for vectors in (widest.vectors, *narrower):
        alike = {t: s for t, s in took.items() if t.vectors == vectors}
        known = next((t for t in every if t.vectors == vectors), widest)
        best = widest if vectors == widest.vectors else _best(alike, known)
        most = max(t.rows for t, s in alike.items() if s <= (1 + ALIKE) * took[best])
        out.append(
            _with_adjacent(target, replace(best, most=most if most > best.rows else 0), race)
        )
        tick()
    return tuple(out)


def _best(took: dict[TileShape, float], known: TileShape) -> TileShape:
    """The fastest, or the known one where none is clearly faster."""
    best = min(took, key=lambda t: took[t])
    return best if took[best] < (1 - CLEARLY) * took[known] else known


def _with_adjacent(target: Target, tile: TileShape, race: Racing) -> TileShape:
    """The tile with the rows that are best where their elements are adjacent in memory."""
    lanes = target.lanes(32)
    wide = tile.vectors * lanes
    group = product(ADJACENT, DEEP, 4 * wide, wide, adjacent=True)
    most = min(MOST_ROWS, (target.vector_registers - 1 - tile.vectors) // tile.vectors)
    heights = list(dict.fromkeys([tile.adjacent, *range(max(2, most // 2), most + 1)]))
    heights = [h for h in heights if h <= most]
    known = [replace(tile, adjacent=h) for h in heights]
    if len(known) < 2:
        return tile
    nests = [default_schedule(group, _single(target, t))[1] for t in known]
    took = dict(zip(known, race(nests, _single(target, tile)), strict=True))
    return _best(took, known[0])


def prefetch(target: Target, race: Racing = raced) -> int:
    """Iterations before they are used that operands in no cache should be prefetched."""
    wide = target.tiles[0].vectors * target.lanes(32)
    deep = 1024
    columns = -(-4 * target.l2 // (4 * deep * wide)) * wide
    group = product(8 * target.tiles[0].rows, deep, columns, wide)
    known = list(dict.fromkeys([target.prefetch, *DISTANCES]))
    made = [replace(target, prefetch=d, cores=1) for d in known]
    took = race([default_schedule(group, t)[1] for t in made], made[0])
    best = min(range(len(known)), key=lambda k: took[k])
    return known[best] if took[best] < (1 - CLEARLY) * took[0] else known[0]


def narrow(p: Product, m: int, k: int, n: int, wide: int) -> Group:
    """A product of operands as an instruction takes them: groups of a sum are adjacent."""
    g, zero = p.group, f"0:{p.c}" if p.c.is_int else "0.0"
    layout = f"j//{wide}, k//{g}, j%{wide}, k%{g}"
    return parse_group(f"""
group narrow
  in x: {p.a}[{m},{k}]
  in w: {p.b}[{n // wide},{k // g},{wide},{g}] laid out by k, j -> {layout}
  out y: {p.c}[{m},{n}]
  local t: {p.c}[{m},{n}]
  t[t.i0,t.i1] add= cast<{p.c}>(x[t.i0,t.r0]) \
    * cast<{p.c}>(w[t.i1//{wide},t.r0//{g},t.i1%{wide},t.r0%{g}]) \
    for t.i0 in {m}, t.i1 in {n}, t.r0 in {k} from {zero}
  y[y.i0,y.i1] = t[y.i0,y.i1] for y.i0 in {m}, y.i1 in {n}
""")


def peaks(target: Target, race: Racing = raced) -> dict[str, str]:
    """Billions of operations a second, two per multiply-add, of one thread by the best kernels for
    operands of each dtype that the target has instructions for."""
    out = {}
    for p in target.products:
        said = f"G operations/s of products of {p.a} by {p.b}, one thread"
        if said in out:
            continue
        wide = target.tiles[0].vectors * p.lanes if p.tile is None else p.columns
        m, k, n = 240, 512, 4 * wide
        alone = replace(target, cores=1)
        group = product(m, k, n, wide) if p.group == 1 else narrow(p, m, k, n, wide)
        try:
            (took,) = race([default_schedule(group, alone)[1]], alone)
        except TilewrightError as why:
            out[said] = f"not measured: {why.what}"
            continue
        out[said] = f"{2e-9 * m * k * n / took:.1f}"
    return out
