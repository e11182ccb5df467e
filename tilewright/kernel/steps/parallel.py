from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.kernel.dependence import apart_hint, carried
from tilewright.kernel.nest import WAITS, Loop, Nest, on_loops
from tilewright.kernel.step import Step
from tilewright.kernel.usual import USUAL_PRAGMA


@dataclass(frozen=True)
class Parallel(Step):
    """The iterations may run on several threads, `grain` of them as one piece of work.

    With `usual`, the grain is right where all sizes that are not known are as large: where the
    sizes of the call are larger, code has fewer iterations in a piece, of as much work.

    Outermost loops only. Of a loop over the programs of a grid nothing has to be proved.
    """

    stays: ClassVar[bool] = True
    loop: str
    grain: int = 1
    usual: int = 0

    def apply(self, n: Nest) -> Nest:
        self.need(
            isinstance(self.grain, int) and self.grain >= 1, f"{self.grain} is not a positive grain"
        )
        fits = isinstance(self.usual, int) and self.usual >= 0
        self.need(fits, f"{self.usual} is no usual size")
        for x, path in self.loops(n, self.loop):
            self.need(x.kind in ("serial", "independent"), f"{self.loop} is already {x.kind}")
            self.need(
                not path,
                f"{self.loop} is inside {path[-1].name if path else ''}",
                "reorder or fuse it outwards",
            )
            self.need(any(s is x for s in n.body), f"{self.loop} is inside a branch")
            alone = (self.grain == 1 and not self.usual) or WAITS not in x.marks
            what = f"iterations of {self.loop} wait for each other: each has to be able to start"
            self.need(alone, what, "a grain of 1")
            if x.kind == "serial":
                bad = carried(n, x)
                self.keep(n, bad, hint=apart_hint(n, bad))
        hints = ((USUAL_PRAGMA, self.usual),) if self.usual else ()

        def shared(s: Loop) -> tuple[Loop, ...]:
            return (replace(s, kind="parallel", grain=self.grain, pragmas=(*s.pragmas, *hints)),)

        return on_loops(n, self.loop, shared)
