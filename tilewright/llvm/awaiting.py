"""Where a block waits for earlier launches, and what comes to the cache meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import THREADS, Await
from tilewright.llvm.positions import Positions
from tilewright.llvm.writer import Writer

# The function that a task waits by, and what it is given (llvm/tasks.py).
AWAIT = "tw_await"
AWAITED = "i32 %waits, ptr addrspace(3) %record, ptr addrspace(1) %counters"
LINE = 128  # bytes that one instruction fetches
PIECE = 4096  # the same, of the copy engine
RANGES = 2  # of memory, each an address and bytes of a block, that a launch fetches for later ones


@dataclass(frozen=True)
class Awaiting:
    w: Writer
    positions: Positions
    arguments: Sequence[Buffer]
    task: bool
    launch: bool  # does a launch wait for those before it itself?
    ranges: int  # that it fetches for later launches
    fetches_later: bool  # not here, but at a Fetch

    def parameters(self) -> list[str]:
        """What it takes for that: where each range begins, and how much of it every block has."""
        return [f"i64 %fetch{k}.{x}" for k in range(self.ranges) for x in ("at", "size")]

    def wait(self, s: Await) -> None:
        """A task waits for the phases before it. A launch waits for those before it, if it was made
        to begin earlier (runtime/cuda/replay.py), and lets the next one begin."""
        self._fetch(s.fetched)
        if not self.fetches_later:
            self.fetch()
        if self.task:
            self.w.line(f"call void @{AWAIT}({AWAITED}) convergent")
        elif self.launch:
            self.meet()

    def fetch(self) -> None:
        """What it was told to fetch for later launches."""
        for k in range(self.ranges):
            self._fetch_range(k)

    def meet(self) -> None:
        for what in ("launch_dependents", "wait"):
            text = f'asm sideeffect "griddepcontrol.{what};", "~{{memory}}"()'
            self.w.line(f"call void {text}")

    def _fetch(self, names: tuple[str, ...]) -> None:
        """Whole inputs, a line by each thread."""
        if not names:
            return
        number, count = self._place(LINE), prod(self.positions.threads)
        for k, b in enumerate(self.arguments):
            size = b.size * b.dtype.bytes if b.name in names and isinstance(b.size, int) else 0
            for start in range(0, size, count * LINE):
                at = self.w.put(f"add nuw i64 {number}, {start}")
                inside = self.w.put(f"icmp ult i64 {at}, {size}")
                at = self.w.put(f"select i1 {inside}, i64 {at}, i64 0")
                place = self.w.put(f"getelementptr i8, ptr addrspace(1) %arg{k}, i64 {at}")
                text = 'asm sideeffect "prefetch.global.L2 [$0];", "l"'
                self.w.line(f"call void {text}(ptr addrspace(1) {place})")

    def _place(self, step: int) -> str:
        """The number of a thread in its block, times a step."""
        number, count = "0", 1
        for kind, size in zip(THREADS, self.positions.threads, strict=True):
            if size > 1:
                part = self.w.put(f"mul nuw i64 {self.positions.long(kind)}, {count * step}")
                number = self.w.put(f"add nuw i64 {number}, {part}")
            count *= size
        return number

    def _fetch_range(self, k: int) -> None:
        """The block's share of a range comes to the cache, a piece by each thread: later launches
        read it, and memory has nothing else to do while a block waits."""
        put, size = self.w.put, f"%fetch{k}.size"
        start = self._place(PIECE)

        def fetch() -> None:
            before = put(f"mul nuw i64 {self.positions.long('block.x')}, {size}")
            own = put(f"add nuw i64 {before}, {start}")
            place = put(f"add nuw i64 %fetch{k}.at, {own}")
            pointer = put(f"inttoptr i64 {place} to ptr addrspace(1)")
            left = put(f"sub nuw i64 {size}, {start}")
            short = put(f"icmp ult i64 {left}, {PIECE}")
            count = put(f"select i1 {short}, i64 {left}, i64 {PIECE}")
            count = put(f"trunc i64 {count} to i32")
            text = 'asm sideeffect "cp.async.bulk.prefetch.L2.global [$0], $1;", "l,r"'
            self.w.line(f"call void {text}(ptr addrspace(1) {pointer}, i32 {count})")

        self.w.branch(put(f"icmp ult i64 {start}, {size}"), fetch)
