"""Gradients of strided depthwise convolutions for their images: windows over an image with zeros
between its pixels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kernel.fuzz import Judge
from tilewright.kernel.defaults.choices import Choices
from tilewright.kernel.group import Group
from tilewright.kernel.nest import Loop, Nest, walk
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import Trace
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.text import group_text, parse_group
from tilewright.targets import default, get

AVX512 = replace(get("x86-64-v4"), cores=2)


def spread(stride: int, pixels: int, channels: int, kernel: int = 3, lines: int = 3) -> Group:
    """`lines` by `pixels` pixels with zeros between them, summed in windows of all channels."""
    (a, b), k = (((n - 1) * stride + 1) for n in (lines, pixels)), kernel - 1
    inside = " & ".join(
        f"#(p.i{d}-{k}) >= 0 & #(p.i{d}-{k}) < {n}" for d, n in ((1, a), (2, b)) if k
    )
    return parse_group(f"""
group spread
  in g: f32[2,{lines},{pixels},{channels}]
  in w: f32[{kernel},{kernel},{channels}]
  out y: f32[2,{a + k},{b + k},{channels}]
  local z: f32[2,{a},{b},{channels}]
  local p: f32[2,{a + 2 * k},{b + 2 * k},{channels}]
  local t: f32[2,{a + k},{b + k},{channels}]
  z[z.i0,z.i1,z.i2,z.i3] = select(#((z.i1%{stride})) == 0 & #((z.i2%{stride})) == 0, \
g[z.i0,(z.i1//{stride}),(z.i2//{stride}),z.i3], 0.0) \
for z.i0 in 2, z.i1 in {a}, z.i2 in {b}, z.i3 in {channels}
  p[p.i0,p.i1,p.i2,p.i3] = select({inside}, z[p.i0,p.i1-{k},p.i2-{k},p.i3], 0.0) \
for p.i0 in 2, p.i1 in {a + 2 * k}, p.i2 in {b + 2 * k}, p.i3 in {channels}
  t[t.i0,t.i1,t.i2,t.i3] add= p[t.i0,t.i1+t.r0,t.i2+t.r1,t.i3] * w[t.r0,t.r1,t.i3] \
for t.i0 in 2, t.i1 in {a + k}, t.i2 in {b + k}, t.i3 in {channels}, \
t.r0 in {kernel}, t.r1 in {kernel} from 0.0
  y[y.i0,y.i1,y.i2,y.i3] = t[y.i0,y.i1,y.i2,y.i3] \
for y.i0 in 2, y.i1 in {a + k}, y.i2 in {b + k}, y.i3 in {channels}
""")


def is_written_out(trace: Trace) -> bool:
    """Has each result modulo the stride code of its own, with all taps?"""
    loops = {x.loop for x in trace if isinstance(x, Unroll)}
    return {"y.i2.1", "t.r0", "t.r1"} <= loops


def threads(n: Nest) -> list[Loop]:
    return [x for x, _ in walk(n.body) if isinstance(x, Loop) and x.kind == "parallel"]


@pytest.mark.parametrize(
    ("group", "written"),
    [
        (spread(2, 6, 96), True),
        (spread(3, 5, 40), True),  # pixels and channels are left over
        (spread(2, 6, 8), False),  # channels fill no vector
        (spread(2, 6, 96, kernel=7), False),  # very many taps
    ],
)
def test_results_modulo_the_stride_have_code_of_their_own(group: Group, written: bool) -> None:
    trace, nest = default_schedule(group, AVX512)
    assert is_written_out(trace) == written
    if written:
        (shared,) = threads(nest)
        lines = group.buffer("y").shape[1]
        assert shared.extent == 2 * lines  # of all images
    assert not is_written_out(default_schedule(group, AVX512, Choices(vectors=1))[0])


def test_means_of_pixels_are_not() -> None:
    """Such as those that tiles make, which are told apart modulo the tile's size, too."""
    text = group_text(spread(2, 6, 96))
    means = text.replace(" * w[t.r0,t.r1,t.i3]", " * 0.25")
    assert means != text and not is_written_out(default_schedule(parse_group(means), AVX512)[0])


@pytest.mark.parametrize("stride, pixels, channels", [(2, 4, 32), (2, 3, 20), (3, 3, 16)])
def test_they_are_right(stride: int, pixels: int, channels: int) -> None:
    group = spread(stride, pixels, channels, lines=2)
    judge = Judge(group, [{}])
    judge.exact = False
    judge.nest(default_schedule(group, default())[1])
