"""A group says how its packed operands lie, and schedules take it from there."""

from __future__ import annotations

import pytest

from tests.graph.build import arg, build, graph, weight
from tilewright.base.events import Log
from tilewright.graph.fold import split_weights
from tilewright.graph.fuse import fuse
from tilewright.graph.pack import PackOperands
from tilewright.ir.maps import Map
from tilewright.kernel.check import CheckFailed, verify
from tilewright.kernel.defaults.contractions import find_tile
from tilewright.kernel.defaults.scheduler import Scheduler
from tilewright.kernel.defaults.tiles import Tile
from tilewright.kernel.group import build_group
from tilewright.kernel.steps.relayout import Relayout
from tilewright.kernel.text import group_text, parse_group
from tilewright.targets import get

ARM = get("arm64")
PRODUCT = """
group product
  in x: f32[64,96]
  in w: f32{w}
  out y: f32[64,192]
  local t: f32[64,192]
  t[t.i0,t.i1] add= x[t.i0,t.r0] * {read} for t.i0 in 64, t.i1 in 192, t.r0 in 96 from 0.0
  y[y.i0,y.i1] = max(t[y.i0,y.i1], 0.0) for y.i0 in 64, y.i1 in 192
"""
BY = "k, j -> j//8, k, j%8"


def tile(w: str, read: str) -> Tile | None:
    group = parse_group(PRODUCT.format(w=w, read=read))
    verify(group)
    return find_tile(Scheduler(group, ARM), group.stage("t"), "y")


def test_the_layout_that_packing_chose_is_in_the_group() -> None:
    y = build.matmul(arg("x", 64, 96), weight("w", 96, 192))
    _, main = split_weights(PackOperands.of(ARM).apply(graph(y), Log()))
    (c,) = fuse(main, ARM, Log()).clusters
    group = build_group("k", c.nodes, c.inputs, c.outputs)
    assert [b.layout for b in group.inputs if b.layout] == [
        Map.parse("a0, a1 -> a1//12, a0, a1%12")
    ]
    assert parse_group(group_text(group)) == group


def test_tiles_are_as_wide_as_the_panels() -> None:
    found = tile(f"[24,96,8] laid out by {BY}", "w[t.i1//8,t.r0,t.i1%8]")
    assert found is not None and not found.plain and found.lanes * found.vectors == 8


def test_a_repeated_matrix_is_not_a_packed_one() -> None:
    assert tile("[96,8]", "w[t.r0,t.i1%8]") is None


def test_groups_of_steps_are_read_off_the_layout() -> None:
    by = "k, j -> j//8, k//2, j%8, k%2"
    read = "w[t.i1//8,t.r0//2,t.i1%8,t.r0%2]"
    found = tile(f"[24,48,8,2] laid out by {by}", read)
    assert found is not None and found.group == 2


def test_what_is_laid_out_anew_has_no_known_layout() -> None:
    w, read = f"[24,96,8] laid out by {BY}", "w[t.i1//8,t.r0,t.i1%8]"
    s = Scheduler(parse_group(PRODUCT.format(w=w, read=read)), ARM)
    s.do(Relayout("w", "a, k, j -> k, a, j"))
    assert s.nest.buffer("w").layout is None


@pytest.mark.parametrize(
    ("by", "says"),
    [
        ("k, j -> j//8, k", "w has 3 axes, its layout k, j -> j//8, k has 2"),
        ("k, j -> j//8, k, k%8", "w cannot be laid out by k, j -> j//8, k, k%8"),
    ],
)
def test_a_wrong_layout_is_refused(by: str, says: str) -> None:
    text = PRODUCT.format(w=f"[24,96,8] laid out by {by}", read="w[t.i1//8,t.r0,t.i1%8]")
    with pytest.raises(CheckFailed, match=says):
        verify(parse_group(text))
