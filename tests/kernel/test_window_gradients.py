"""Gradients of depthwise convolutions' weights: sums over all pixels, with taps of a window as
rows and channels as lanes."""

from __future__ import annotations

import random
from dataclasses import replace
from math import prod

import pytest

from tests.kernel.fuzz import Judge
from tests.seeds import drawn
from tilewright.ir.dim import Sym
from tilewright.ir.expr import Fn, Value
from tilewright.ir.expr import walk as value_walk
from tilewright.ir.positions import static
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


@pytest.mark.parametrize("side", [7, 14])
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


def padded(images: int, sides: tuple[int, int], channels: int, taps: int, stride: int) -> Group:
    """Of images with zeros around them, whose axes are in another order than they lie."""
    h, w = sides
    c, edge = channels, taps // 2
    p, q = (h + 2 * edge - taps) // stride + 1, (w + 2 * edge - taps) // stride + 1
    return parse_group(f"""
group gradient
  in g: f32[{images},{p},{q},{c}]
  in x: f32[{images},{h},{w},{c}]
  out y: f32[{c},{taps},{taps}]
  local e: f32[{images},{c},{h + 2 * edge},{w + 2 * edge}]
  local t: f32[{c},{taps},{taps}]
  e[e.i0,e.i1,e.i2,e.i3] = select((#(e.i2) >= {edge}) & (#(e.i2) < {h + edge}) & \
(#(e.i3) >= {edge}) & (#(e.i3) < {w + edge}), x[e.i0,e.i2-{edge},e.i3-{edge},e.i1], 0.0) \
for e.i0 in {images}, e.i1 in {c}, e.i2 in {h + 2 * edge}, e.i3 in {w + 2 * edge}
  t[t.i0,t.i1,t.i2] add= g[t.r0,t.r1,t.r2,t.i0] * \
e[t.r0,t.i0,t.i1+{stride}*t.r1,t.i2+{stride}*t.r2] \
for t.i0 in {c}, t.i1 in {taps}, t.i2 in {taps}, t.r0 in {images}, t.r1 in {p}, t.r2 in {q} \
from 0.0
  y[y.i0,y.i1,y.i2] = t[y.i0,y.i1,y.i2] for y.i0 in {c}, y.i1 in {taps}, y.i2 in {taps}
""")


def inmost(n: Nest) -> list[Loop]:
    """The loops around a product."""
    products = [p for x, p in walk(n.body) if isinstance(x, Store) and x.stage in ("t", "tb", "tl")]
    return list(max(products, key=len))


def test_all_taps_pass_by_a_line_of_images_that_no_cache_holds() -> None:
    made = padded(8, (56, 56), 144, 3, 1)
    n = default_schedule(made, replace(AVX512, cores=2))[1]
    names = [q.name for q in inmost(n)]
    taps = [k for k, x in enumerate(names) if x in ("tc.i1", "tc.i2")]
    assert len(taps) == 2 and names.index("tc.r1") < min(taps)  # lines are around taps
    assert names.index("tl.r2") > max(taps)
    # Threads share images, and read each from one end to the other.
    assert inmost(n)[0].kind == "parallel" and inmost(n)[0].name.startswith("tc.r0")
    # Edges shorten the loop over pixels: no pixel of it is tested.
    (products,) = [
        x for x, _ in walk(n.body) if isinstance(x, Store) and x.combine and x.stage == "tl"
    ]
    loop = next(q for q in inmost(n) if q.name == "tl.r2")
    tested = {v for i in _conditions(products.value) for v in i}
    assert loop.var not in tested


def _conditions(v: Value) -> list[set[Sym]]:
    return [
        set(x.args[0].symbols()) for x in value_walk(v) if isinstance(x, Fn) and x.name == "select"
    ]


def test_a_few_images_are_cut_for_threads() -> None:
    for images, sides in ((1, (224, 224)), (3, (57, 100)), (2, (113, 112))):
        n = default_schedule(padded(images, sides, 96, 3, 1), AVX512)[1]
        first = inmost(n)[0]
        assert first.kind == "parallel" and isinstance(first.extent, int)
        assert first.extent >= 4 * AVX512.cores


def test_images_that_a_cache_holds_are_read_by_all_taps_in_turn() -> None:
    for side, held in ((7, True), (14, True), (56, False)):
        n = default_schedule(padded(8, (side, side), 192, 3, 1), AVX512)[1]
        assert any(b.name == "tl" for b in n.buffers) != held


def test_windows_of_large_images_are_no_long_sums() -> None:
    """The convolution itself sums few numbers, of images that no cache holds either."""
    n = default_schedule(
        parse_group("""
group windows
  in x: f32[8,58,58,144]
  in w: f32[3,3,144]
  out y: f32[8,56,56,144]
  local t: f32[8,56,56,144]
  t[t.i0,t.i1,t.i2,t.i3] add= x[t.i0,t.i1+t.r0,t.i2+t.r1,t.i3] * w[t.r0,t.r1,t.i3] \
for t.i0 in 8, t.i1 in 56, t.i2 in 56, t.i3 in 144, t.r0 in 3, t.r1 in 3 from 0.0
  y[y.i0,y.i1,y.i2,y.i3] = t[y.i0,y.i1,y.i2,y.i3] \
for y.i0 in 8, y.i1 in 56, y.i2 in 56, y.i3 in 144
"""),
        AVX512,
    )[1]
    assert {b.name for b in n.buffers} == {"x", "w", "y", "t"}


@pytest.mark.parametrize("seed", drawn(range(16), quick=3))
def test_results_by_lines(seed: int) -> None:
    """On a machine with a small cache, so that small images are by lines, too."""
    r = random.Random(seed)
    sides = r.randint(3, 12), r.randint(3, 12)
    sizes = (
        r.randint(1, 4),
        sides,
        r.choice((8, 16, 24, 40, 72)),
        r.choice((1, 3, 5)),
        r.randint(1, 2),
    )
    print(f"seed {seed}: {sizes}")
    made = padded(*sizes)
    target = default()
    target = replace(target, l2=64, cores=r.choice((1, 2, 4)))
    n = default_schedule(made, target)[1]
    # Of few pixels, sums of their own are not worth their bytes.
    many = prod(static(made.buffer("g").shape[:3])) >= 8 * sizes[3] ** 2
    if sizes[2] >= target.lanes(32) and many:
        assert any(b.name == "tl" for b in n.buffers), "not by lines"
    judge = Judge(made, [{}], seed)
    judge.exact = False
    judge.nest(n)
    judge.native(n)


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
