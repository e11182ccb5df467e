"""Where a block waits for earlier launches, and what comes to the cache meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import THREADS, Await
from tilewright.llvm.positions import Positions
from tilewright.llvm.writer import Writer

# The function that a task waits by, and what it is given (llvm/tasks.py).
AWAIT = "tw_await"
AWAITED = "i32 %waits, ptr addrspace(3) %record, ptr addrspace(1) %counters"
LINE = 128  # bytes that one instruction fetches


@dataclass(frozen=True)
class Awaiting:
    w: Writer
    positions: Positions
    arguments: Sequence[Buffer]
    task: bool
    launch: bool  # does a launch wait for those before it itself?

    def wait(self, s: Await) -> None:
        """A task waits for the phases before it. A launch waits for those before it, if it was made
        to begin earlier (runtime/cuda/replay.py), and lets the next one begin."""
        self._fetch(s.fetched)
        if self.task:
            self.w.line(f"call void @{AWAIT}({AWAITED}) convergent")
        elif self.launch:
            self.meet()

    def meet(self) -> None:
        for what in ("launch_dependents", "wait"):
            text = f'asm sideeffect "griddepcontrol.{what};", "~{{memory}}"()'
            self.w.line(f"call void {text}")

    def _fetch(self, names: tuple[str, ...]) -> None:
        """Whole inputs, a line by each thread."""
        if not names:
            return
        number, count = "0", 1
        for kind, size in zip(THREADS, self.positions.threads, strict=True):
            if size > 1:
                part = self.w.put(f"mul nuw i64 {self.positions.long(kind)}, {count * LINE}")
                number = self.w.put(f"add nuw i64 {number}, {part}")
            count *= size
        for k, b in enumerate(self.arguments):
            size = b.size * b.dtype.bytes if b.name in names and isinstance(b.size, int) else 0
            for start in range(0, size, count * LINE):
                at = self.w.put(f"add nuw i64 {number}, {start}")
                inside = self.w.put(f"icmp ult i64 {at}, {size}")
                at = self.w.put(f"select i1 {inside}, i64 {at}, i64 0")
                place = self.w.put(f"getelementptr i8, ptr addrspace(1) %arg{k}, i64 {at}")
                text = 'asm sideeffect "prefetch.global.L2 [$0];", "l"'
                self.w.line(f"call void {text}(ptr addrspace(1) {place})")
