"""Groups of four warps that take turns: each has a barrier, at which it waits and the one before it
arrives.

The last group arrives at the barrier of the first one before all else, and the first one waits
there once more at the end: so as many arrive as wait.
"""

from __future__ import annotations

from tilewright.kernel.nest import Stmt, Turn, walk
from tilewright.llvm.positions import Positions
from tilewright.llvm.writer import Writer

FIRST = 2  # barriers before it are those of all threads
GROUP, THREADS = 4, 128  # warps of a group, and its threads


class Turns:
    def __init__(
        self,
        w: Writer,
        positions: Positions,
        launch: tuple[Stmt, ...],
        threads: tuple[int, int, int],
    ) -> None:
        self.w, self.positions = w, positions
        taken = any(isinstance(s, Turn) for s, _ in walk(launch))
        self.groups = threads[2] // GROUP if taken else 1

    def begin(self) -> None:
        if self.groups > 1:
            last = self.w.put(f"icmp eq i32 {self._group()}, {self.groups - 1}")
            self.w.branch(last, lambda: self._barrier("arrive", str(FIRST)))

    def end(self) -> None:
        if self.groups > 1:
            first = self.w.put(f"icmp eq i32 {self._group()}, 0")
            self.w.branch(first, lambda: self._barrier("sync", str(FIRST)))

    def take(self, s: Turn) -> None:
        if self.groups == 1:
            return
        group = self._group()
        if s.passes:
            after = self.w.put(f"add i32 {group}, 1")
            group = self.w.put(f"urem i32 {after}, {self.groups}")
        name = self.w.put(f"add i32 {group}, {FIRST}")
        self._barrier("arrive" if s.passes else "sync", name)

    def _group(self) -> str:
        return self.w.put(f"lshr i32 {self.positions.short('thread.z')}, 2")

    def _barrier(self, what: str, name: str) -> None:
        function = f"@llvm.nvvm.barrier.cta.{what}.aligned.count"
        self.w.arith.declares.add(f"declare void {function}(i32, i32)")
        self.w.line(f"call void {function}(i32 {name}, i32 {2 * THREADS})")
