from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.kernel.dependence import carried
from tilewright.kernel.nest import Alloc, Loop, Nest, Stmt, on_loops, walk
from tilewright.kernel.step import Step

# Wider vectors than this compile slowly and run no faster (measured at 64 lanes and beyond).
MAX_LANES = 64


@dataclass(frozen=True)
class Vectorize(Step):
    """The iterations become the lanes of one vector. Copies of the loop with a run-time extent (tails) stay serial.

        for l in 4: y[4*i+l] = exp(x[4*i+l])   →   y[4*i : 4*i+4] = exp(x[4*i : 4*i+4])
    """

    loop: str

    def apply(self, n: Nest) -> Nest:
        found = self.loops(n, self.loop)
        const = [x for x, _ in found if isinstance(x.extent, int)]
        self.need(const, f"the extent of {self.loop} is not a constant", "Split it by the number of lanes and Peel first")
        for x in const:
            self.need(x.kind == "serial", f"{self.loop} is already {x.kind}")
            self.need(isinstance(x.extent, int) and x.extent <= MAX_LANES, f"{x.extent} lanes are too many", f"Split by at most {MAX_LANES} first")  # fmt: skip
            for s, _ in walk(x.body):
                loop = isinstance(s, Loop) and s.kind != "unroll"
                self.need(not loop, f"{getattr(s, 'name', '')} is inside {self.loop}", "reorder it outwards or unroll it")
                self.need(not isinstance(s, Alloc), f"{getattr(s, 'buffer', '')} is allocated per lane")
            bad = [c for c in carried(n, x) if c.kind == "order"]
            self.need(not bad, f"{self.loop} carries an order: {bad[0].reason}" if bad else "")

        def one(s: Loop) -> tuple[Stmt, ...]:
            return (replace(s, kind="lane"),) if isinstance(s.extent, int) else (s,)

        return on_loops(n, self.loop, one)
