from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.dim import Int
from tilewright.kernel.nest import Nest
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class SetScope(Step):
    """Where a stage's buffer lives: "local" memory or "register" (then every index must become a
    constant)."""

    buffer: str
    scope: str

    def apply(self, n: Nest) -> Nest:
        self.need(
            self.scope in ("local", "register"), f"{self.scope} is not a scope", "local or register"
        )
        b = self.internal(n, self.buffer)
        fixed = not any(isinstance(d, Int) for d in b.shape)
        self.need(self.scope == "local" or fixed, f"the size of {self.buffer} is not a constant")
        return n.with_buffer(replace(b, scope=self.scope))
