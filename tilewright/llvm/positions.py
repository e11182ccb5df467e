"""A thread's place in its block, and its block's place in the grid."""

from __future__ import annotations

from math import prod

from tilewright.kernel.nest import THREADS
from tilewright.llvm.writer import Writer


class Positions:
    def __init__(self, w: Writer, threads: tuple[int, int, int], task: bool = False) -> None:
        """Of a task, the block's place is given, and threads have one number each."""
        self.w, self.threads, self.task = w, threads, task
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
        if self.task:
            self._in_task(kind, what, axis)
            self.w.line(f"%{kind} = zext nneg i32 %{kind}.32 to i64", entry=True)
            return
        name = f"llvm.nvvm.read.ptx.sreg.{'ctaid' if what == 'block' else 'tid'}.{axis}"
        most = self.threads[THREADS.index(kind)] if what == "thread" else 2**31 - 1
        self.w.arith.declares.add(f"declare i32 @{name}()")
        self.w.line(f"%{kind}.32 = call range(i32 0, {most}) i32 @{name}()", entry=True)
        self.w.line(f"%{kind} = zext nneg i32 %{kind}.32 to i64", entry=True)

    def _in_task(self, kind: str, what: str, axis: str) -> None:
        if what == "block":
            self.w.line(f"%{kind}.32 = add i32 %task.{axis}, 0", entry=True)
            return
        name = "llvm.nvvm.read.ptx.sreg.tid.x"
        self.w.arith.declares.add(f"declare i32 @{name}()")
        k = THREADS.index(kind)
        number = f"%number.{axis}"
        count = prod(self.threads)
        self.w.line(f"{number} = call range(i32 0, {count}) i32 @{name}()", entry=True)
        self.w.line(f"{number}.0 = udiv i32 {number}, {prod(self.threads[:k])}", entry=True)
        self.w.line(f"%{kind}.32 = urem i32 {number}.0, {self.threads[k]}", entry=True)
