"""Where the values that a program stores live, as slots of its entry function."""

from __future__ import annotations

import mmap

from tilewright.base.errors import Invalid
from tilewright.graph.freed import Freed
from tilewright.graph.memory import Plan
from tilewright.ir.node import Constant, Literal, Node
from tilewright.llvm.entry import GiveBack, Slot


class Where:
    """Where each stored value lives."""

    def __init__(self, p: Plan, inputs: dict[Node, int], constants: dict[Literal, int]) -> None:
        self.plan, self.inputs, self.constants = p, inputs, constants

    def __call__(self, n: Node) -> Slot:
        kind, at = self.plan.where(n)
        if kind == "output":
            assert isinstance(at, int)
            return Slot("out", at)
        if isinstance(at, tuple):
            owner, offset = at
            if isinstance(owner, int):
                return Slot("out", owner, offset)
            return Slot("in", self.inputs[owner], offset)
        if not isinstance(at, Node):
            return Slot("arena", at)
        if at in self.inputs:
            return Slot("in", self.inputs[at])
        if isinstance(at.op, Constant):
            return Slot("in", self.constants[at.op.literal])
        raise Invalid(f"{at!r} has no storage")

    def given_back(self, f: Freed) -> GiveBack:
        if f.owner is None:
            return GiveBack(Slot("arena", f.start), f.size, mmap.PAGESIZE)
        return GiveBack(Slot("in", self.inputs[f.owner], f.start), f.size, mmap.PAGESIZE)
