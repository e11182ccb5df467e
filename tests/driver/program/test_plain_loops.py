"""Kernels that the default schedules leave to plain loops are told, never in silence."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tilewright as tw
from tests.kernel.test_tile_blocks import convolution
from tilewright.base.errors import Refused
from tilewright.kernel import schedule
from tilewright.kernel.schedule import adds_singly, default_schedule
from tilewright.kernel.text import parse_group, parse_nest
from tilewright.targets import default

SIZES = (1, 24, 24, 32, 32)


def refuse(*_: object) -> bool:
    raise Refused("this does not fit")


def test_a_chain_says_why_it_has_no_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    g = convolution(SIZES, 2, default())
    assert not default_schedule(g, default())[1].unscheduled
    monkeypatch.setattr(schedule, "schedule_tiles", refuse)
    assert default_schedule(g, default())[1].unscheduled == "this does not fit"
    monkeypatch.setattr(schedule, "schedule_tiles", lambda *_: False)
    assert "no register tile" in default_schedule(g, default())[1].unscheduled
    few = convolution((1, 3, 3, 2, 2), 2, default())
    assert not default_schedule(few, default())[1].unscheduled


def test_sums_of_products_in_plain_loops_are_seen() -> None:
    text = """
nest k
  in a: f32[64,64]
  in b: f32[64,64]
  out y: f32[64,64]
  for i in 64:
    for j in 64:
      {kind} k in 64:
        y: y[i,j] add= a[i,k] * b[k,j]
"""
    assert adds_singly(parse_nest(text.format(kind="for").strip()))
    assert not adds_singly(parse_nest(text.format(kind="lane").strip()))
    group = """
group k
  in a0: f32[64,64]
  in a1: f32[64,64]
  out y0: f32[64,64]
  local t0: f32[64,64]
  t0[t0.i0,t0.i1] add= a0[t0.i0,t0.r0] * a1[t0.r0,t0.i1] for t0.i0 in 64, t0.i1 in 64, \
t0.r0 in 64 from 0.0
  y0[y0.i0,y0.i1] = t0[y0.i0,y0.i1] for y0.i0 in 64, y0.i1 in 64
"""
    assert not default_schedule(parse_group(group.strip()), default())[1].unscheduled


def test_the_user_is_told_with_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "schedule_tiles", refuse)
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    weight = torch.randn(32, 32, 3, 3)

    def net(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv2d(x, weight, padding=1)

    x = torch.randn(1, 32, 24, 24)
    with torch.no_grad():
        fast = tw.compile(net, x, dynamic=False, choose="default")
    (told,) = (e for e in fast.log if e.kind == "plain-loops")
    assert told.message.endswith("this does not fit")
    assert "test_plain_loops.py" in str(told.where)
    said = str(tw.explain(fast))
    assert "slow kernel" in said and "this does not fit" in said
