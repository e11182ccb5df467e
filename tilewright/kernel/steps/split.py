from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.kernel.nest import Loop, Nest, Stmt, on_loops, substitute_all
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class Split(Step):
    """One loop becomes two; the inner one has `factor` iterations, fewer in a ragged tail.

    for i in 100:            for i.0 in 7:
      y[i] = …                 for i.1 in min(16, 100-16*i.0):
                                 y[16*i.0+i.1] = …

    With `parts` instead, the outer one has so many iterations (fewer where they would be empty);
    the extent must be a constant then.
    """

    stays: ClassVar[bool] = True
    loop: str
    factor: int = 0
    parts: int = 0

    def apply(self, n: Nest) -> Nest:
        given = [x for x in (self.factor, self.parts) if x != 0]
        self.need(given, f"{self.factor} is not a positive factor", "give a factor or parts")
        self.need(len(given) == 1, "a factor and parts are given", "one follows from the other")
        positive = isinstance(given[0], int) and given[0] >= 1
        self.need(positive, f"{given[0]} is not a positive {'factor' if self.factor else 'number'}")
        for found, _ in self.loops(n, self.loop):
            self.need(found.kind == "serial", f"{self.loop} is already {found.kind}", "split first")
            fixed = self.factor or isinstance(found.extent, int)
            self.need(fixed, f"{self.loop} has no constant extent to divide", "give a factor")

        def one(s: Loop) -> tuple[Stmt, ...]:
            factor = self.factor
            if not factor:
                assert isinstance(s.extent, int)
                factor = max(1, -(-s.extent // self.parts))
            outer = D.var(f"{self.loop}.0", _constant(D.ceildiv(s.extent, factor)))
            tail = D.minimum(factor, s.extent - outer * factor)
            inner = D.var(f"{self.loop}.1", _constant(tail))
            table = {s.var: outer * factor + inner}
            body = substitute_all(s.body, table)
            of = [s.of and s.of.part(k) for k in (0, 1)]
            inside = Loop(D.the_sym(inner), "serial", body, pragmas=s.pragmas, of=of[1])
            return (Loop(D.the_sym(outer), "serial", (inside,), of=of[0]),)

        return self.bounded(on_loops(n, self.loop, one))


def _constant(extent: Dim) -> Dim:
    """A constant where the extent can be one number only."""
    least, most = D.bounds(extent)
    return int(most) if least == most else extent
