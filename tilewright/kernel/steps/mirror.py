from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir import dim as D
from tilewright.kernel.nest import BLOCKS, Loop, Nest, Stmt, on_loops, substitute_all
from tilewright.kernel.step import Step
from tilewright.kernel.threads import grid_of


@dataclass(frozen=True)
class Mirror(Step):
    """Half as many blocks, each of which does two iterations of a loop that is bound to blocks: of
    so many iterations each time, the first and the last, the second and the last but one. Where
    each takes longer than the one before by the same, all blocks take as long. Blocks are in no
    order, so any may do any of them. Bind first, Roles and Synchronise afterwards.

    Mirror('t', 8):
    block.x t in 8:            block.x t.0 in 4:
      y[t] = …                   for t.1 in 2:
                                   y[t.0 + t.1*(7-2*t.0)] = …
    """

    stays: ClassVar[bool] = True
    loop: str
    of: int

    def apply(self, n: Nest) -> Nest:
        some = isinstance(self.of, int) and self.of > 0 and self.of % 2 == 0
        self.need(some, f"{self.of} iterations are no pairs", "an even number")
        for x, _ in self.loops(n, self.loop):
            self.need(x.kind in BLOCKS, f"{self.loop} is {x.kind}, not blocks", "Bind it first")
            whole = isinstance(x.extent, int) and x.extent % self.of == 0
            self.need(whole, f"{self.loop} has {x.extent} iterations, no multiple of {self.of}")
            for q in grid_of((x,))[0][1:]:
                free = x.var not in D.symbols(q.extent)
                self.need(free, f"the extent of {q.name} depends on {self.loop}")
        for name in (f"{self.loop}.0", f"{self.loop}.1"):
            self.fresh(n, name)
        return self.bounded(on_loops(n, self.loop, self._one))

    def _one(self, s: Loop) -> tuple[Stmt, ...]:
        pairs = self.of // 2
        here = D.var(f"{self.loop}.0", D.floordiv(s.extent, 2))
        which = D.var(f"{self.loop}.1", 2)
        pair = D.mod(here, pairs)
        there = self.of * D.floordiv(here, pairs) + pair + which * (self.of - 1 - 2 * pair)
        grid, each = grid_of((s,))
        body: tuple[Stmt, ...] = tuple(substitute_all(each, {s.var: there}))
        body = (Loop(D.the_sym(which), "serial", body),)
        for q in reversed(grid[1:]):
            body = (q.around(body),)
        return (replace(s, var=D.the_sym(here), body=body),)
