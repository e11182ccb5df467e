from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.kernel.intrinsic import INTRINSICS, Mismatch, marked, match
from tilewright.kernel.nest import Loop, Nest, Stmt, Wait, on_loops, walk
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class Tensorize(Step):
    """A loop and all inside it is one use of a declared instruction, which is proved first. The
    loops stay and say what it computes; the emitter writes the instruction in their place. One
    that is asynchronous is waited for at once; Pipeline with slack lets it go on.

    for i in 4:                            tensor i in 4 by arm64.sdot:
      for p in 4:                            tensor p in 4:
        c[i] add= a[p] * b[i,p]                c[i] add= a[p] * b[i,p]
    """

    stays: ClassVar[bool] = True
    loop: str
    instruction: str

    def apply(self, n: Nest) -> Nest:
        i = INTRINSICS.get(self.instruction)
        known = ", ".join(sorted(INTRINSICS))
        self.need(i, f"there is no instruction {self.instruction}", f"one of {known}")
        assert i is not None
        allowed = i.exact or n.precision != "strict"
        self.need(
            allowed, f"{i.name} rounds differently from its loops, and the precision is strict"
        )
        for x, _ in self.loops(n, self.loop):
            for y, _ in walk((x,)):
                plain = not isinstance(y, Loop) or y.kind == "serial"
                what = f"{getattr(y, 'name', '')} is already {getattr(y, 'kind', '')}"
                self.need(plain, what, "Tensorize instead of it")
            found = match(i, n, x)
            wrong = found.reason if isinstance(found, Mismatch) else ""
            self.need(not wrong, f"this is not {i.name}: {wrong}", f"it computes {_shown(i.name)}")

        def mark(x: Loop) -> tuple[Stmt, ...]:
            after = (Wait(0, products=True),) if i.asynchronous else ()
            return marked(x, self.instruction), *after

        return on_loops(n, self.loop, mark)


def _shown(name: str) -> str:
    return INTRINSICS[name].expression.strip().splitlines()[-1].strip()
