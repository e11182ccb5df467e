from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.kernel.intrinsic import INTRINSICS
from tilewright.kernel.nest import Loop, Nest, Stmt, Turn, Wait, on_loops, walk
from tilewright.kernel.step import Step
from tilewright.kernel.threads import block_size, launches

GROUP = 4  # warps, which are along thread.z


@dataclass(frozen=True)
class TakeTurns(Step):
    """Groups of warps begin the first products of an iteration one after the other, so that one
    computes while another one multiplies. Synchronise first.

    for k in n:                             for k in n:
      s = a * b[k]                            turn
      wait products 0                         s = a * b[k]
      p = f(s)                                pass turn
                                              wait products 0
                                              p = f(s)
    """

    stays: ClassVar[bool] = True
    loop: str

    def apply(self, n: Nest) -> Nest:
        for launch in launches(n.body):
            own = [s for s, _ in walk(launch) if isinstance(s, Loop) and s.name == self.loop]
            warps = block_size(launch)["thread.z"] if own else 2 * GROUP
            several = warps % GROUP == 0 and warps > GROUP
            self.need(several, f"{warps} warps are not several groups of {GROUP}")
        for x, path in self.loops(n, self.loop):
            plain = x.kind == "serial" and all(q.kind not in ("thread.z",) for q in path)
            self.need(plain, f"{self.loop} is {x.kind}, or inside of threads")
            taken = any(isinstance(s, Turn) for s in x.body)
            self.need(not taken, f"groups of warps take turns in {self.loop} already")
            begin, end = _products(x)
            self.need(begin < end, f"{self.loop} begins no products that it waits for")

        def one(x: Loop) -> tuple[Stmt, ...]:
            begin, end = _products(x)
            body = x.body
            return (
                replace(x, body=(*body[:begin], Turn(), *body[begin:end], Turn(True), *body[end:])),
            )

        return on_loops(n, self.loop, one)


def _products(x: Loop) -> tuple[int, int]:
    """Where the first asynchronous products of a loop stand, and the wait behind them."""
    begin = next((k for k, s in enumerate(x.body) if _multiplies(s)), len(x.body))
    for k in range(begin, len(x.body)):
        s = x.body[k]
        if isinstance(s, Wait) and s.products:
            return begin, k
    return begin, begin


def _multiplies(s: Stmt) -> bool:
    found = (
        INTRINSICS[q.instruction] for q, _ in walk((s,)) if isinstance(q, Loop) and q.instruction
    )
    return any(i.asynchronous and not i.engine for i in found)
