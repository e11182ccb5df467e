from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir.dim import Int
from tilewright.kernel.nest import Nest
from tilewright.kernel.step import Step
from tilewright.kernel.threads import thread_faults


@dataclass(frozen=True)
class SetScope(Step):
    """Where a stage's buffer lives: "local" memory, "register" (then every index must become a
    constant) or "shared" (one for all threads of a block, allocated outside them)."""

    stays: ClassVar[bool] = True
    buffer: str
    scope: str

    def apply(self, n: Nest) -> Nest:
        known = self.scope in ("local", "register", "shared")
        self.need(known, f"{self.scope} is not a scope", "local, register or shared")
        b = self.internal(n, self.buffer)
        fixed = not any(isinstance(d, Int) for d in b.shape)
        self.need(self.scope == "local" or fixed, f"the size of {self.buffer} is not a constant")
        out = n.with_buffer(replace(b, scope=self.scope))
        for what, _ in thread_faults(out):
            self.need(False, what, f"ComputeAt('{self.buffer}', …) inside the blocks first")
        return out
