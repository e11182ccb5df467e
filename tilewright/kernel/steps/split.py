from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import dim as D
from tilewright.kernel.nest import Loop, Nest, Stmt, on_loops, substitute
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class Split(Step):
    """One loop becomes two; the inner one has `factor` iterations, fewer in a ragged tail.

    for i in 100:            for i.0 in 7:
      y[i] = …                 for i.1 in min(16, 100-16*i.0):
                                 y[16*i.0+i.1] = …
    """

    loop: str
    factor: int

    def apply(self, n: Nest) -> Nest:
        self.need(
            isinstance(self.factor, int) and self.factor >= 1,
            f"{self.factor} is not a positive factor",
        )
        for found, _ in self.loops(n, self.loop):
            self.need(found.kind == "serial", f"{self.loop} is already {found.kind}", "split first")

        def one(s: Loop) -> tuple[Stmt, ...]:
            outer = D.var(f"{self.loop}.0", D.ceildiv(s.extent, self.factor))
            tail = D.minimum(self.factor, s.extent - outer * self.factor)
            least, most = D.bounds(tail)
            inner = D.var(f"{self.loop}.1", most if least == most else tail)
            table = {s.var: outer * self.factor + inner}
            body = tuple(substitute(b, table) for b in s.body)
            return (Loop(D.the_sym(outer), "serial", (Loop(D.the_sym(inner), "serial", body),)),)

        return self.bounded(on_loops(n, self.loop, one))
