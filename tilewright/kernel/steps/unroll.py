from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.kernel.nest import Loop, Nest, Stmt, on_loops
from tilewright.kernel.step import Step

# Beyond this the code no longer fits the instruction cache and compile time grows.
MAX_UNROLL = 64


@dataclass(frozen=True)
class Unroll(Step):
    """The iterations are written out one after the other. Copies with a run-time extent stay serial."""

    loop: str

    def apply(self, n: Nest) -> Nest:
        found = self.loops(n, self.loop)
        const = [x for x, _ in found if isinstance(x.extent, int)]
        self.need(const, f"the extent of {self.loop} is not a constant", "Split and Peel first")
        for x in const:
            self.need(x.kind == "serial", f"{self.loop} is already {x.kind}")
            small = isinstance(x.extent, int) and x.extent <= MAX_UNROLL
            self.need(small, f"{x.extent} copies are too many", f"Split by at most {MAX_UNROLL} first")

        def one(s: Loop) -> tuple[Stmt, ...]:
            return (replace(s, kind="unroll"),) if isinstance(s.extent, int) else (s,)

        return on_loops(n, self.loop, one)
