from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.kernel.nest import Nest
from tilewright.kernel.step import Step
from tilewright.kernel.swizzle import Swizzled


@dataclass(frozen=True)
class Swizzle(Step):
    """Elements of a shared buffer lie elsewhere, so that threads which touch a column of it find
    them in different banks: `bits` bits of an element's place from bit `base` on are combined with
    those `shift` bits further up (kernel/swizzle.py). Loops and indices stay as they are.

    shared t: bf16[128,64]   Swizzle('t', 3, 3, 3)   shared t: bf16[128,64] swizzled 3,3,3

    Place first, Relayout before: it is for the buffer as it lies in memory.
    """

    stays: ClassVar[bool] = True
    buffer: str
    bits: int
    base: int
    shift: int

    def apply(self, n: Nest) -> Nest:
        b = self.internal(n, self.buffer)
        hint = f"SetScope('{self.buffer}', 'shared') first"
        self.need(b.scope == "shared", f"{self.buffer} is not shared memory, which has banks", hint)
        self.need(b.swizzle is None, f"{self.buffer} is swizzled by {b.swizzle} already")
        by = Swizzled(self.bits, self.base, self.shift)
        for what in by.faults(b.size):
            self.need(False, f"{self.buffer} cannot be swizzled so: {what}")
        return n.with_buffer(replace(b, swizzle=by))
