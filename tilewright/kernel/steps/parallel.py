from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.kernel.dependence import apart_hint, carried
from tilewright.kernel.nest import WAITS, Nest, on_loops
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class Parallel(Step):
    """The iterations may run on several threads, `grain` of them as one piece of work.

    Outermost loops only. Of a loop over the programs of a grid nothing has to be proved.
    """

    stays: ClassVar[bool] = True
    loop: str
    grain: int = 1

    def apply(self, n: Nest) -> Nest:
        self.need(
            isinstance(self.grain, int) and self.grain >= 1, f"{self.grain} is not a positive grain"
        )
        for x, path in self.loops(n, self.loop):
            self.need(x.kind in ("serial", "independent"), f"{self.loop} is already {x.kind}")
            self.need(
                not path,
                f"{self.loop} is inside {path[-1].name if path else ''}",
                "reorder or fuse it outwards",
            )
            self.need(any(s is x for s in n.body), f"{self.loop} is inside a branch")
            alone = self.grain == 1 or WAITS not in x.marks
            what = f"iterations of {self.loop} wait for each other: each has to be able to start"
            self.need(alone, what, "a grain of 1")
            if x.kind == "serial":
                bad = carried(n, x)
                self.keep(n, bad, hint=apart_hint(n, bad))
        return on_loops(n, self.loop, lambda s: (replace(s, kind="parallel", grain=self.grain),))
