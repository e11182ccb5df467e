from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir import dim as D
from tilewright.kernel.nest import Loop, Nest, Stmt, on_loops
from tilewright.kernel.roles import role_loop
from tilewright.kernel.step import Step
from tilewright.kernel.threads import grid_of

# unroll       so many iterations are written out by LLVM, with a loop for the rest
# nontemporal  results written inside go past the caches (1), or do not (0)
# cluster      so many neighbouring blocks of a GPU run at the same time and share what the copy
#              engine brings to all of them
# resident     so many blocks of a GPU are on a multiprocessor at a time: threads may take all the
#              registers that this leaves, for loads that are on their way together
# registers    a thread of a loop with roles has so many: its producer, a group of four warps, gives
#              up most of its own
PRAGMAS = ("unroll", "nontemporal", "cluster", "resident", "registers")
MAX_COUNT = 64
CLUSTERS = (2, 4, 8)
MOST_RESIDENT = 32
MOST_REGISTERS = 240


@dataclass(frozen=True)
class Pragma(Step):
    """A hint for what comes after the schedule; it changes no result.

    for i in 100: …   Pragma('i', 'unroll', 4)   for i in 100 pragma unroll 4: …

    "unroll": LLVM writes so many iterations out. "nontemporal": with 1, what is written to results
    inside goes past the caches. "cluster": neighbouring blocks along block.x that read one tile get
    it by one copy. "resident": threads may take the registers that so many blocks leave.
    "registers": in a loop with roles, threads take those of the producer's warps.
    """

    stays: ClassVar[bool] = True
    loop: str
    key: str
    value: int = 1

    def apply(self, n: Nest) -> Nest:
        self.need(self.key in PRAGMAS, f"{self.key} is no pragma", f"one of {', '.join(PRAGMAS)}")
        limits = {"unroll": MAX_COUNT, "cluster": CLUSTERS[-1], "resident": MOST_RESIDENT}
        limits["registers"] = MOST_REGISTERS
        most = limits.get(self.key, 1)
        fits = isinstance(self.value, int) and 0 <= self.value <= most
        self.need(fits, f"{self.value} is not a value of {self.key}", f"0 to {most}")
        if self.key == "cluster":
            self._clusters(n)
        elif self.key in ("resident", "registers"):
            self._of_blocks(n)
        if self.key == "registers":
            self.need(self.value % 8 == 0, f"{self.value} registers are no multiple of 8")
            what = "no loop has a producer, whose registers there are"
            self.need(role_loop(n.body) is not None, what, "Roles first")
        for x, _ in self.loops(n, self.loop):
            serial = self.key != "unroll" or x.kind in ("serial", "parallel")
            self.need(serial, f"{self.loop} is already {x.kind}", "only loops can be unrolled")
        given = (self.key, int(self.value))

        def one(s: Loop) -> tuple[Stmt, ...]:
            others = tuple(p for p in s.pragmas if p[0] != self.key)
            return (replace(s, pragmas=(*others, given)),)

        return on_loops(n, self.loop, one)

    def _clusters(self, n: Nest) -> None:
        sizes = f"one of {', '.join(map(str, CLUSTERS))}"
        self.need(self.value in CLUSTERS, f"a cluster of {self.value} blocks", sizes)
        self._of_blocks(n)
        for x, _ in self.loops(n, self.loop):
            whole = D.known_eq(D.mod(x.extent, self.value), 0)
            self.need(whole, f"{self.loop} = {x.extent} are no whole clusters of {self.value}")
            for q in grid_of((x,))[1]:
                walks = isinstance(q, Loop) and q.kind == "serial" and x.var in D.symbols(q.extent)
                what = "blocks of a cluster would have different numbers of iterations"
                self.need(not walks, what, "clusters before Walk")

    def _of_blocks(self, n: Nest) -> None:
        for x, _ in self.loops(n, self.loop):
            bound = x.kind == "block.x"
            self.need(bound, f"{self.loop} is {x.kind}, not block.x", "Bind it first")
