from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.ir import dim as D
from tilewright.kernel.dependence import apart_hint, carried
from tilewright.kernel.nest import Loop, Nest, Stmt, on_loops, substitute_all
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class Backwards(Step):
    """The iterations of a loop in the other order, the last one first. What is reduced may be
    rounded otherwise.

    for r in t+1:                     for r in t+1:
      s += x[r]                         s += x[t-r]
    """

    stays: ClassVar[bool] = True
    loop: str

    def apply(self, n: Nest) -> Nest:
        for x, _ in self.loops(n, self.loop):
            self.need(x.kind == "serial", f"{self.loop} is already {x.kind}", "do this first")
            lax = n.precision != "strict"
            bad = [f for f in carried(n, x) if f.kind != "reduction" or not lax]
            self.keep(n, bad, hint=apart_hint(n, bad))

        def one(x: Loop) -> tuple[Stmt, ...]:
            last = x.extent - 1 - D.as_int(x.var)
            return (x.around(tuple(substitute_all(x.body, {x.var: last}))),)

        return on_loops(n, self.loop, one)
