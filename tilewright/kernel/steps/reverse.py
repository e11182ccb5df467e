from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.ir import dim as D
from tilewright.kernel.nest import BLOCKS, Loop, Nest, Stmt, on_loops, substitute_all
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class Reverse(Step):
    """The blocks of a grid in the other order: the last iterations of a loop, which may be the
    longest, begin first.

    block.x i in n: y[i] = …(i)             block.x i in n: y[n-1-i] = …(n-1-i)
    """

    stays: ClassVar[bool] = True
    loop: str

    def apply(self, n: Nest) -> Nest:
        for x, _ in self.loops(n, self.loop):
            blocks = x.kind in BLOCKS
            self.need(blocks, f"{self.loop} is {x.kind}", "Bind it to blocks, which have no order")

        def one(x: Loop) -> tuple[Stmt, ...]:
            last = x.extent - 1 - D.as_int(x.var)
            return (x.around(tuple(substitute_all(x.body, {x.var: last}))),)

        return on_loops(n, self.loop, one)
