from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.kernel.intrinsic import INTRINSICS
from tilewright.kernel.nest import Loop, Nest, Stmt, Wait, on_loops, sources, writes
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class WaitOnce(Step):
    """Asynchronous instructions of a loop, each of which adds to the same results, are waited for
    after the loop.

    unroll k in 2:                           unroll k in 2:
      tensor i in 64: c += a[k] * b[k]         tensor i in 64: c += a[k] * b[k]
      wait products 0                        wait products 0
    """

    loop: str

    def apply(self, n: Nest) -> Nest:
        for x, _ in self.loops(n, self.loop):
            *uses, last = x.body
            waits = uses and last == Wait(0, products=True)
            self.need(waits, f"{self.loop} does not end with a wait for products")
            for s in uses:
                instruction = INTRINSICS.get(s.instruction) if isinstance(s, Loop) else None
                alone = instruction is not None and instruction.asynchronous
                self.need(alone, f"{self.loop} does something else than asynchronous instructions")
                made = writes((s,))
                reads = any(made & sources(y) for y in uses)
                self.need(not reads, f"{self.loop} reads what an earlier iteration computes")

        def one(x: Loop) -> tuple[Stmt, ...]:
            return replace(x, body=x.body[:-1]), x.body[-1]

        return on_loops(n, self.loop, one)
