"""Addresses with many constant steps: LLVM steps one pointer on, and no code is added for it."""

from __future__ import annotations

from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import start
from tilewright.kernel.step import Step, apply
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize
from tilewright.kernel.text import parse_group
from tilewright.llvm.emit import emit
from tilewright.llvm.objects import assembly
from tilewright.targets import default

GROUP = """group rows
  in x: f32[64,16]
  out y: f32[64,16]
  y[y.i0,y.i1] = x[y.i0,y.i1] for y.i0 in 64, y.i1 in 16
"""


def _text(*steps: Step) -> str:
    return emit(legalise(apply(start(parse_group(GROUP)), steps), default()), default())


def test_many_steps_from_an_address_leave_it_opaque() -> None:
    few = _text(Split("y.i1", 4), Vectorize("y.i1.1"), Unroll("y.i1.0"))
    assert "strip.invariant" not in few
    many = _text(Unroll("y.i1"))
    assert many.count("call ptr @llvm.strip.invariant.group") == 2  # x and y
    assert "strip.invariant" not in assembly(many, default())
