"""One value of every thread, combined among the threads of a block.

Lanes of a warp exchange values directly; warps leave theirs in shared memory, and every thread
combines those in the same order, so that all have the same result to the last bit.
"""

from __future__ import annotations

from math import prod

from tilewright.base.errors import Unsupported
from tilewright.ir.types import DType
from tilewright.kernel.nest import THREADS
from tilewright.llvm.positions import Positions
from tilewright.llvm.scalar_types import register_type
from tilewright.llvm.shared_memory import Shared
from tilewright.llvm.writer import Writer

WARP = 32
OWN_BARRIER = 1  # of some threads of a block; number 0 is that of all


class ThreadSums:
    def __init__(
        self,
        w: Writer,
        positions: Positions,
        shared: Shared,
        threads: tuple[int, int, int],
        some: bool = False,
    ) -> None:
        self.some = some  # does the block have more threads than these?
        self.w, self.put, self.arith = w, w.put, w.arith
        self.positions, self.shared, self.threads = positions, shared, threads
        self.cluster = False  # do the blocks of a cluster write each other's shared memory?

    def barrier(self) -> None:
        """All threads of the block that take part wait for one another; of a cluster, those of all
        its blocks."""
        if self.some:
            self._own_barrier(prod(self.threads))
            return
        self.everyone()

    def meet(self) -> None:
        """All threads have come, of a cluster those of all its blocks: where kernels begin and
        end. What they have written need not be seen by other blocks, and nothing that they have
        sent to those may be on its way."""
        self.everyone(".relaxed")

    def everyone(self, order: str = "") -> None:
        """The same of all threads, also of those that do not take part."""
        if self.cluster:
            for what in (f"arrive{order}", "wait"):
                name = f"@llvm.nvvm.barrier.cluster.{what}.aligned"
                self.arith.declares.add(f"declare void {name}()")
                self.w.line(f"call void {name}()")
            return
        name = "@llvm.nvvm.barrier.cta.sync.aligned.all"
        self.arith.declares.add(f"declare void {name}(i32)")
        self.w.line(f"call void {name}(i32 0)")

    def _own_barrier(self, count: int) -> None:
        if count == 1:
            return
        name, given = "@llvm.nvvm.bar.warp.sync", (2**count - 1,)
        if count > WARP:
            name, given = "@llvm.nvvm.barrier.cta.sync.aligned.count", (OWN_BARRIER, count)
            if count % WARP:
                raise Unsupported(f"{count} threads of a block wait for each other: no whole warps")
        self.arith.declares.add(f"declare void {name}({', '.join('i32' for _ in given)})")
        self.w.line(f"call void {name}({', '.join(f'i32 {x}' for x in given)})")

    def among_threads(self, x: str, function: str, d: DType, over: list[str]) -> str:
        """x of all threads along these axes, combined; every one of them has the result."""
        count = prod(self.threads)
        size: dict[str, int] = dict(zip(THREADS, self.threads, strict=True))
        own = [a for a in over if size[a] > 1]
        among = prod(size[a] for a in own)
        if among == 1:
            return x
        # Threads that lie evenly: every axis between the first and the last of these is among
        # them, or has one place. Their numbers differ by multiples of `apart`.
        places = sorted(map(THREADS.index, own))
        first, last = places[0], places[-1]
        even = all(a in own or size[a] == 1 for a in THREADS[first:last])
        apart = prod(self.threads[:first])
        reach = apart * among
        if not even or count % WARP or WARP % apart or (reach % WARP and WARP % reach):
            return self._through_memory(x, function, d, own)
        step = min(reach, WARP) // 2
        while step >= apart:
            x = self.arith.apply(function, d, 1, [x, self._exchanged(x, d, step)])
            step //= 2
        return x if reach <= WARP else self._among_warps(x, function, d, reach // WARP, apart)

    def _exchanged(self, x: str, d: DType, step: int) -> str:
        """The value of the lane whose number differs by one bit."""
        t = register_type(d)
        if t == "float":
            return self._shuffle(x, "float", step)
        if t == "double" or d.bits == 64:
            bits = self.put(f"bitcast {t} {x} to i64") if t == "double" else x
            low = self.put(f"trunc i64 {bits} to i32")
            high = self.put(f"trunc i64 {self.put(f'lshr i64 {bits}, 32')} to i32")
            low, high = (self._shuffle(y, "i32", step) for y in (low, high))
            wide = self.put(f"shl i64 {self.put(f'zext i32 {high} to i64')}, 32")
            r = self.put(f"or i64 {wide}, {self.put(f'zext i32 {low} to i64')}")
            return self.put(f"bitcast i64 {r} to double") if t == "double" else r
        if t == "i32":
            return self._shuffle(x, "i32", step)
        wide = self.put(f"zext {t} {x} to i32")
        return self.put(f"trunc i32 {self._shuffle(wide, 'i32', step)} to {t}")

    def _shuffle(self, x: str, t: str, step: int) -> str:
        name = f"@llvm.nvvm.shfl.sync.bfly.{'f32' if t == 'float' else 'i32'}"
        self.arith.declares.add(f"declare {t} {name}(i32, {t}, i32, i32)")
        return self.put(f"call {t} {name}(i32 -1, {t} {x}, i32 {step}, i32 {WARP - 1})")

    def _number(self) -> str:
        """The number of a thread in its block."""
        x, y, z = self.threads
        total = self.positions.short("thread.x")
        for axis, stride in (("thread.y", x), ("thread.z", x * y)):
            if (y if axis == "thread.y" else z) > 1:
                part = self.put(f"mul i32 {self.positions.short(axis)}, {stride}")
                total = self.put(f"add i32 {total}, {part}")
        return total

    def _among_warps(self, x: str, function: str, d: DType, warps: int, apart: int) -> str:
        """The same of so many warps, in each of which the first `apart` lanes have a value."""
        number = self._number()
        warp = self.put(f"lshr i32 {number}, 5")
        lane = self.put(f"and i32 {number}, {WARP - 1}")
        memory, t = self._memory(d, prod(self.threads) // WARP * apart)
        first = self.put(f"icmp ult i32 {lane}, {apart}")
        place, own = warp, ""
        if apart > 1:
            own = self.put(f"and i32 {lane}, {apart - 1}")
            place = self.put(f"add i32 {self.put(f'mul i32 {warp}, {apart}')}, {lane}")
        self._in_turn()
        self.leave(first, memory, place, t, self._as_byte(x, d))
        self.barrier()
        group = self.put(f"udiv i32 {warp}, {warps}")
        start = self.put(f"mul i32 {group}, {warps * apart}")
        start = self.put(f"add i32 {start}, {own}") if own else start
        return self._gathered(memory, t, [(start, k * apart) for k in range(warps)], function, d)

    def _through_memory(self, value: str, function: str, d: DType, own: list[str]) -> str:
        """Any threads of the block, each of which reads the values of all."""
        number = self._number()
        memory, t = self._memory(d, prod(self.threads))
        self._in_turn()
        self.leave("true", memory, number, t, self._as_byte(value, d))
        self.barrier()
        x, y, _ = self.threads
        strides: dict[str, int] = dict(zip(THREADS, (1, x, x * y), strict=True))
        size: dict[str, int] = dict(zip(THREADS, self.threads, strict=True))
        start = number
        offsets = [0]
        for a in own:
            here = self.put(f"mul i32 {self.positions.short(a)}, {strides[a]}")
            start = self.put(f"sub i32 {start}, {here}")
            offsets = [k + j * strides[a] for k in offsets for j in range(size[a])]
        return self._gathered(memory, t, [(start, k) for k in offsets], function, d)

    def _in_turn(self) -> None:
        """In a loop, no thread may still be reading what the iteration before has left."""
        if self.w.depth:
            self.barrier()

    def leave(self, condition: str, memory: str, at: str, t: str, x: str) -> None:
        n = self.w.fresh("w")
        self.w.line(f"br i1 {condition}, label %{n}.then, label %{n}.end")
        self.w.label(f"{n}.then")
        p = self.put(f"getelementptr {t}, ptr addrspace(3) {memory}, i32 {at}")
        self.w.line(f"store {t} {x}, ptr addrspace(3) {p}")
        self.w.line(f"br label %{n}.end")
        self.w.label(f"{n}.end")

    def _gathered(
        self, memory: str, t: str, places: list[tuple[str, int]], function: str, d: DType
    ) -> str:
        total = ""
        for start, k in places:
            at = self.put(f"add i32 {start}, {k}") if k else start
            p = self.put(f"getelementptr {t}, ptr addrspace(3) {memory}, i32 {at}")
            x = self._of_byte(self.put(f"load {t}, ptr addrspace(3) {p}"), d)
            total = self.arith.apply(function, d, 1, [total, x]) if total else x
        return total

    def _memory(self, d: DType, count: int) -> tuple[str, str]:
        t = "i8" if d.is_bool else register_type(d)
        return self.shared.variable(count, t), t

    def _as_byte(self, x: str, d: DType) -> str:
        return self.put(f"zext i1 {x} to i8") if d.is_bool else x

    def _of_byte(self, x: str, d: DType) -> str:
        return self.put(f"trunc i8 {x} to i1") if d.is_bool else x
