from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.kernel.nest import BLOCKS, Loop, Nest, Stmt, on_loops, substitute_all
from tilewright.kernel.step import Step
from tilewright.kernel.threads import grid_of


@dataclass(frozen=True)
class Walk(Step):
    """Fewer blocks, each of which does several iterations of a loop that is bound to blocks, one
    after the other, so that what one block begins with and ends with is done next to the rest.
    Blocks are in no order, so any may do any of them. Bind first, Roles and Synchronise afterwards.

    block.x t in 10:            block.x t.1 in 4:
      y[t] = …                    for t.0 in (13-t.1)//4:
                                    y[4*t.0+t.1] = …
    """

    loop: str
    blocks: int

    def apply(self, n: Nest) -> Nest:
        for x, _ in self.loops(n, self.loop):
            self.need(x.kind in BLOCKS, f"{self.loop} is {x.kind}, not blocks", "Bind it first")
            some = isinstance(self.blocks, int) and self.blocks >= 1
            self.need(some, f"{self.blocks} blocks", "1 or more")
            fewer = isinstance(x.extent, int) and self.blocks < x.extent
            self.need(fewer, f"{self.blocks} are no fewer blocks than {x.extent}")
            together = dict(x.pragmas).get("cluster", 1)
            even = self.blocks % together == 0 and x.extent % together == 0
            what = f"blocks of a cluster of {together} would have different numbers of iterations"
            self.need(even, what, f"a multiple of {together}")
            for q in grid_of((x,))[0][1:]:
                free = x.var not in D.symbols(q.extent)
                self.need(free, f"the extent of {q.name} depends on {self.loop}")
        for name in (f"{self.loop}.0", f"{self.loop}.1"):
            self.fresh(n, name)
        return on_loops(n, self.loop, self._one)

    def _one(self, s: Loop) -> tuple[Stmt, ...]:
        here = D.var(f"{self.loop}.1", self.blocks)
        even = D.mod(s.extent, self.blocks) == 0
        last: Dim = 0 if even else self.blocks - 1 - here
        turn = D.var(f"{self.loop}.0", D.floordiv(s.extent + last, self.blocks))
        grid, each = grid_of((s,))
        inside = substitute_all(each, {s.var: self.blocks * turn + here})
        body: tuple[Stmt, ...] = inside
        if D.is_sym(turn):
            body = (Loop(D.the_sym(turn), "serial", inside),)
        for q in reversed(grid[1:]):
            body = (q.around(body),)
        return (replace(s, var=D.the_sym(here), body=body),)
