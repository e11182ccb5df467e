from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir import dim as D
from tilewright.kernel.nest import Loop, Nest, Stmt, on_loops, substitute_all
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class Complete(Step):
    """A ragged loop has as many iterations as it can have at most, or `count` of them; those that
    are too many do nothing. So it can be fused and dealt out like any other.

    for i.1 in min(16, 100-16*i.0):      for i.1 in 16:
      y[16*i.0+i.1] = …                    for i.1.there in min(1, max(100-16*i.0-i.1, 0)):
                                             y[16*i.0+i.1] = …
    """

    stays: ClassVar[bool] = True
    loop: str
    count: int = 0

    def apply(self, n: Nest) -> Nest:
        for x, _ in self.loops(n, self.loop):
            self.need(x.kind == "serial", f"{self.loop} is already {x.kind}", "complete it first")
            bounded = D.bounds(x.extent)[1] < D.INF
            self.need(bounded, f"the extent of {self.loop} has no constant bound", "Split first")
            most = D.bounds(x.extent)[1]
            enough = isinstance(self.count, int) and (self.count == 0 or self.count >= most)
            self.need(enough, f"{self.loop} has up to {most} iterations, not {self.count}")

        def one(x: Loop) -> tuple[Stmt, ...]:
            count = self.count or int(D.bounds(x.extent)[1])
            if x.extent == count:
                return (x,)
            v = D.var(self.loop, count)
            left = D.minimum(1, D.maximum(x.extent - v, 0))
            there = D.the_sym(D.var(f"{self.loop}.there", left))
            inside = Loop(there, "serial", tuple(substitute_all(x.body, {x.var: v})))
            return (replace(x, var=D.the_sym(v), body=(inside,)),)

        return on_loops(n, self.loop, one)
