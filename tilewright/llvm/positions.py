"""A thread's place in its block, and its block's place in the grid."""

from __future__ import annotations

from tilewright.kernel.nest import THREADS
from tilewright.llvm.writer import Writer


class Positions:
    def __init__(self, w: Writer, threads: tuple[int, int, int]) -> None:
        self.w, self.threads = w, threads
        self._read: set[str] = set()

    def long(self, kind: str) -> str:
        """The place along an axis in 64 bits."""
        self._register(kind)
        return f"%{kind}"

    def short(self, kind: str) -> str:
        """The same in 32 bits."""
        self._register(kind)
        return f"%{kind}.32"

    def _register(self, kind: str) -> None:
        """Reads a place where the kernel begins, once."""
        if kind in self._read:
            return
        self._read.add(kind)
        what, _, axis = kind.partition(".")
        name = f"llvm.nvvm.read.ptx.sreg.{'ctaid' if what == 'block' else 'tid'}.{axis}"
        most = self.threads[THREADS.index(kind)] if what == "thread" else 2**31 - 1
        self.w.arith.declares.add(f"declare i32 @{name}()")
        self.w.line(f"%{kind}.32 = call range(i32 0, {most}) i32 @{name}()", entry=True)
        self.w.line(f"%{kind} = zext nneg i32 %{kind}.32 to i64", entry=True)
