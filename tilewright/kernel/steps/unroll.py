from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir import dim as D
from tilewright.kernel.nest import Loop, Nest, Stmt, on_loops
from tilewright.kernel.step import Step

# Beyond this the code no longer fits the instruction cache and compile time grows.
MAX_UNROLL = 64


@dataclass(frozen=True)
class Unroll(Step):
    """The iterations are written out one after the other. Copies with a run-time extent stay
    serial, or, with `guarded`, are written out up to their constant bound, each under the condition
    that it exists.

        for u in 3: t[u] = 0                t[0] = 0; t[1] = 0; t[2] = 0
        for u in min(3, n): t[u] = 0        if 0 < n: t[0] = 0; if 1 < n: t[1] = 0; …
    """

    stays: ClassVar[bool] = True
    loop: str
    guarded: bool = False

    def apply(self, n: Nest) -> Nest:
        found = [x for x, _ in self.loops(n, self.loop) if self._bound(x) is not None]
        self.need(found, f"the extent of {self.loop} is not a constant", "Split and Peel first")
        for x in found:
            self.need(x.kind == "serial", f"{self.loop} is already {x.kind}")
            bound = self._bound(x)
            self.need(
                bound is not None and bound <= MAX_UNROLL,
                f"{bound} copies are too many",
                f"Split by at most {MAX_UNROLL} first",
            )

        def one(s: Loop) -> tuple[Stmt, ...]:
            return (s,) if self._bound(s) is None else (replace(s, kind="unroll"),)

        return on_loops(n, self.loop, one)

    def _bound(self, x: Loop) -> int | None:
        if isinstance(x.extent, int):
            return x.extent
        hi = D.bounds(x.extent)[1]
        return hi if self.guarded and hi < D.INF else None
