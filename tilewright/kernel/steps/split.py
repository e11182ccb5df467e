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
    the extent must be a constant then. With both, the inner one has at most `factor` iterations,
    and fewer where the outer one's are about a multiple of `parts` then.

    for i in n:              for i.0 in ceil(n/k):      # k = min(16, n//(4*ceil(n/64)) + 1)
      y[i] = …                 for i.1 in min(k, n-k*i.0):
                                 y[k*i.0+i.1] = …

    Of a parallel loop of single iterations, the outer one is parallel.
    """

    stays: ClassVar[bool] = True
    loop: str
    factor: int = 0
    parts: int = 0

    def apply(self, n: Nest) -> Nest:
        given = [x for x in (self.factor, self.parts) if x != 0]
        self.need(given, f"{self.factor} is not a positive factor", "give a factor or parts")
        for k in given:
            positive = isinstance(k, int) and k >= 1
            self.need(positive, f"{k} is not a positive {'factor' if self.factor else 'number'}")
        for found, _ in self.loops(n, self.loop):
            plain = found.kind == "serial" or (found.kind == "parallel" and found.grain == 1)
            self.need(plain, f"{self.loop} is already {found.kind}", "split first")
            fixed = self.factor or isinstance(found.extent, int)
            self.need(fixed, f"{self.loop} has no constant extent to divide", "give a factor")

        def one(s: Loop) -> tuple[Stmt, ...]:
            factor: Dim = self.factor
            if self.factor and self.parts:
                rounds = D.maximum(1, D.ceildiv(s.extent, self.factor * self.parts))
                factor = D.minimum(self.factor, s.extent // (self.parts * rounds) + 1)
            elif self.parts:
                factor = D.maximum(1, D.ceildiv(s.extent, self.parts))
            outer = D.var(f"{self.loop}.0", _constant(D.ceildiv(s.extent, factor)))
            tail = D.minimum(factor, s.extent - outer * factor)
            inner = D.var(f"{self.loop}.1", _constant(tail))
            table = {s.var: outer * factor + inner}
            body = substitute_all(s.body, table)
            of = [s.of and s.of.part(k) for k in (0, 1)]
            shared = s.kind == "parallel"
            inside = Loop(
                D.the_sym(inner), "serial", body, pragmas=() if shared else s.pragmas, of=of[1]
            )
            hints = s.pragmas if shared else ()
            return (Loop(D.the_sym(outer), s.kind, (inside,), pragmas=hints, of=of[0]),)

        return self.bounded(on_loops(n, self.loop, one))


def _constant(extent: Dim) -> Dim:
    """A constant where the extent can be one number only."""
    least, most = D.bounds(extent)
    return int(most) if least == most else extent
