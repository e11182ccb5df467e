"""Gradients of depthwise convolutions' weights: sums over all pixels, with taps of a window as
rows and channels as lanes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.kernel.fuzz import Judge
from tests.seeds import drawn
from tilewright.ir.register_tile import window_rows
from tilewright.kernel.group import Group
from tilewright.kernel.nest import Loop, Nest, Store, walk
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.text import parse_group
from tilewright.targets import default, get

AVX512 = replace(get("x86-64-v4"), cores=4)


def gradient(images: int, side: int, channels: int, taps: int = 3) -> Group:
    around, c = side + taps - 1, channels
    return parse_group(f"""
group gradient
  in g: f32[{images},{side},{side},{c}]
  in x: f32[{images},{around},{around},{c}]
  out y: f32[{c},{taps},{taps}]
  local t: f32[{c},{taps},{taps}]
  t[t.i0,t.i1,t.i2] add= g[t.r0,t.r1,t.r2,t.i0] * x[t.r0,t.i1+t.r1,t.i2+t.r2,t.i0] \
for t.i0 in {c}, t.i1 in {taps}, t.i2 in {taps}, t.r0 in {images}, t.r1 in {side}, t.r2 in {side} \
from 0.0
  y[y.i0,y.i1,y.i2] = t[y.i0,y.i1,y.i2] for y.i0 in {c}, y.i1 in {taps}, y.i2 in {taps}
""")


def shared(n: Nest) -> list[Loop]:
    return [x for x, _ in walk(n.body) if isinstance(x, Loop) and x.kind == "parallel"]


@pytest.mark.parametrize("side", [7, 28])
def test_all_taps_are_summed_at_once_and_threads_share_channels(side: int) -> None:
    n = default_schedule(gradient(8, side, 192), AVX512)[1]
    writes = [x for x, _ in walk(n.body) if isinstance(x, Store) and x.buffer == "y"]
    assert len(writes) == 1, "some taps read everything again"
    (loop,) = shared(n)
    assert isinstance(loop.extent, int) and loop.extent >= AVX512.cores


def test_long_lines_load_a_pixel_once_for_all_taps() -> None:
    n = default_schedule(gradient(2, 28, 192), AVX512)[1]
    paths = [p for x, p in walk(n.body) if isinstance(x, Store) and x.stage in ("t", "tb")]
    inmost = max(paths, key=len)
    kinds = [q.name for q in inmost]
    taps = next(k for k, q in enumerate(inmost) if q.name.endswith(".p"))
    assert all("r2" not in name for name in kinds[taps:])


def test_few_taps_are_one_tile_where_registers_hold_them() -> None:
    assert window_rows(AVX512, 2, 9) == 9
    assert window_rows(AVX512, 2, 25) <= 8  # too many: equal parts of them
    assert window_rows(get("x86-64-v3"), 2, 9) <= 4


@pytest.mark.parametrize("seed", drawn(range(12), quick=4))
def test_results(seed: int) -> None:
    r = random.Random(seed)
    sizes = r.randint(1, 3), r.choice((2, 5, 9)), r.choice((16, 24, 40)), r.choice((1, 2, 3))
    print(f"seed {seed}: {sizes}")
    g = gradient(*sizes)
    judge = Judge(g, [{}], seed)
    judge.exact = False
    n = default_schedule(g, default())[1]
    judge.nest(n)
    judge.native(n)
