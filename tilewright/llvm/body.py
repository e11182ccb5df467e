"""The body of a kernel as LLVM text, whatever launches it: loops, branches, statements.

Whatever does not change inside a loop is written before it, because the short LLVM pipeline moves
nothing out of loops. Inside lanes a condition that is the same for all of them is a branch; one
that differs is a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.base.errors import Unsupported
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Const, Load, Value, const, load, loads
from tilewright.ir.target import Target
from tilewright.ir.types import b1
from tilewright.kernel.atomic import in_one
from tilewright.kernel.group import Buffer
from tilewright.kernel.legal import check_legal
from tilewright.kernel.legal.accesses import EDGES
from tilewright.kernel.legal.interleave import is_interleaved
from tilewright.kernel.legal.lanes import vector_lanes
from tilewright.kernel.legal.masks import is_likely
from tilewright.kernel.nest import (
    BLOCKS,
    RAGGED,
    THREADS,
    Alloc,
    Atomic,
    If,
    Loop,
    Nest,
    Prefetch,
    Report,
    Stmt,
    Store,
    While,
)
from tilewright.kernel.scans import SCAN, scan_in
from tilewright.llvm.accesses import Accesses
from tilewright.llvm.addresses import Addresses
from tilewright.llvm.atomics import Atomics
from tilewright.llvm.context import LANE, Context, Test
from tilewright.llvm.counters import Counters
from tilewright.llvm.indices import Indices
from tilewright.llvm.instructions import Instructions
from tilewright.llvm.machine import Machine, Traits
from tilewright.llvm.scalar_types import register_type
from tilewright.llvm.scalars import Arith
from tilewright.llvm.stores import Stores
from tilewright.llvm.values import Values
from tilewright.llvm.writer import Metadata, Writer

FEW_LINES = 8  # prefetches that are written one after the other


class Body:
    """The statements of a nest in one function, and the parts that write them."""

    def __init__(
        self,
        n: Nest,
        arith: Arith,
        args: list[Buffer],
        target: Target,
        metadata: Metadata,
        traits: Traits,
        machine: Callable[[Body], Machine],
    ) -> None:
        w = self.writer = Writer(arith, metadata)
        c = self.context = Context(n, args, traits.barriers)
        self.indices = Indices(w, c, traits.short)
        a = self.addresses = Addresses(w, c, self.indices, traits)
        self.accesses = Accesses(w, c, traits)
        v = self.values = Values(w, c, self.indices, a, self.accesses)
        self.stores = Stores(w, c, v, a, self.accesses)
        self.atomics = Atomics(w, c, v, a, traits.scope, target)
        self.traits, self.target, self.arith = traits, target, arith
        self.machine = machine(self)
        self.instructions = Instructions(w, c, a, target, self.machine)

    def statement(self, s: Stmt) -> None:
        self.machine.before(s)
        if isinstance(s, Loop):
            self.loop(s)
        elif isinstance(s, Store):
            if s.atomic:
                self.atomics.atomic(in_one(s))
            elif not (s.asynchronous and self.machine.copy(s)):
                self.stores.store(s)
        elif isinstance(s, Alloc):
            if s.buffer not in self.context.lets:
                self.allocate(s.buffer)
        elif isinstance(s, If):
            self._if(s)
        elif isinstance(s, While):
            self._while(s)
        elif isinstance(s, Atomic):
            self.atomics.atomic(s)
        elif isinstance(s, Report):
            self.machine.refuse(s)
            self.values.masks.lane_by_lane(lambda: self._report(s))
        elif not isinstance(s, Prefetch):  # of those `block` takes care
            self.machine.synchronise(s)

    def block(self, body: tuple[Stmt, ...]) -> None:
        waiting: list[Prefetch] = []  # those right before the statement
        own = [s.buffer for s in body if isinstance(s, Alloc)]
        around = {x: self.addresses.base[x] for x in own if x in self.addresses.base}
        for s in body:
            if isinstance(s, Prefetch):
                waiting.append(s)
                continue
            taken = [x for x in waiting if self.instructions.asks(s, x)]
            self._prefetches([x for x in waiting if x not in taken])
            waiting = []
            if taken:
                assert isinstance(s, Loop)
                self.instructions.call(s, taken)
            else:
                self.statement(s)
        self._prefetches(waiting)
        self.machine.release(own)
        if around:  # memory of the same names, which is meant again from here on
            self.addresses.base |= around
            self.context.renew(frozenset(around))

    def allocate(self, name: str) -> None:
        self.machine.allocate(name)
        self.context.renew(frozenset({name}))

    def lines(self) -> list[str]:
        """The function's body, to its end."""
        return self.instructions.around()

    # ---- loops

    def loop(self, s: Loop, lo: str = "0", hi: str | None = None) -> None:
        """A loop; with `hi`, the iterations from `lo` to before it."""
        if dict(s.pragmas).get("nontemporal") and not self.stores.streams:
            self.stores.streams = True
            self.loop(s, lo, hi)
            self.stores.streams = False
            # Other threads see such stores after a full fence only.
            self.writer.line("fence seq_cst")
        elif s.kind == "unroll":
            self._unrolled(s)
        elif s.kind == "lane":
            self._lanes(s)
        elif s.kind == "tensor":
            if not self.machine.tile(s):
                self.instructions.call(s)
        elif s.kind == "parallel" and hi is None:
            self.machine.parallel(s)
        elif s.kind in (*BLOCKS, *THREADS):
            self.machine.bound(s)
        elif hi is None and s.extent == 1:
            self.iteration(s, 0)
        elif hi is None and dict(s.pragmas).get(SCAN) and self._scanned(s):
            return
        elif hi is None and D.bounds(s.extent) == (0, 1):
            there = self.writer.put(f"icmp sgt i64 {self.indices.dim(s.extent)}, 0")
            self.writer.branch(there, lambda: self.iteration(s, 0))
        else:
            self._serial(s, lo, hi)

    def iteration(self, s: Loop, at: Any) -> None:
        """A loop's body with its variable at a number, or in a register of some level."""
        self.context.env[s.var] = at
        self.block(s.body)
        del self.context.env[s.var]

    def _serial(self, s: Loop, lo: str, hi: str | None) -> None:
        w = self.writer
        sure = hi is None and D.bounds(s.extent)[0] >= 1
        end = hi if hi is not None else self.indices.dim(s.extent)
        n = w.fresh("L")
        pre: list[Any] = []
        w.out.append(pre)
        w.line(f"br label %{n}.pre")
        w.label(f"{n}.pre")
        if sure:
            w.line(f"br label %{n}")
        else:
            some = w.put(f"icmp slt i64 {lo}, {end}")
            w.line(f"br i1 {some}, label %{n}, label %{n}.exit")
        self.context.touch(s)
        counters = Counters(w, n, s.var, lo) if self.traits.counts else None
        with w.inside(pre, counters):
            w.label(n)
            iv, nx = f"%{n}.i", f"%{n}.next"
            w.line(f"{iv} = phi i64 [ {lo}, %{n}.pre ], [ {nx}, %{n}.latch ]")
            if counters is not None:
                w.out.append(counters.first)
            self.iteration(s, (iv, w.depth))
            w.line(f"br label %{n}.latch")
            w.label(f"{n}.latch")
            if counters is not None:
                counters.steps()
            w.line(f"{nx} = add nuw nsw i64 {iv}, 1")
            more = w.put(f"icmp slt i64 {nx}, {end}")
            times = w.metadata.unroll(dict(s.pragmas).get("unroll"))
            w.line(f"br i1 {more}, label %{n}, label %{n}.exit{times}")
            w.label(f"{n}.exit")
        self.context.touch(s)

    def _unrolled(self, s: Loop) -> None:
        """Every iteration written out; those that may not exist under a condition."""
        c = self.context
        if is_interleaved(s) and c.lane is not None and not c.under:
            self.stores.interleaved(s)
            return
        least, most = D.bounds(s.extent)
        end = self.indices.dim(s.extent)
        for k in range(most):
            if k < least:
                self.iteration(s, k)
            else:
                there = self.writer.put(f"icmp sgt i64 {end}, {k}")
                self.writer.branch(there, lambda k=k: self.iteration(s, k))

    def _lanes(self, s: Loop) -> None:
        c = self.context
        if c.lane is not None:
            raise Unsupported(f"lane loop {s.name} is inside lane loop {c.lane[0].name}")
        width = vector_lanes(s)
        if width is None:
            check_legal(c.n, self.target)
            raise AssertionError(f"{s.name} is no vector")
        c.lane = (s.var, width) if width > 1 else None
        c.hints = frozenset(key for key, value in s.pragmas if value)
        if RAGGED in c.hints and width > 1:
            self._ragged(s, width)
        else:
            self.iteration(s, LANE if width > 1 else 0)
        c.lane = None

    def _ragged(self, s: Loop, width: int) -> None:
        """The lanes below an extent, which is known at a call only, under a mask."""
        c, put = self.context, self.writer.put
        count = put(f"trunc i64 {self.indices.dim(s.extent)} to i32")
        below = self.arith.splat(count, "i32", width)
        numbers = ", ".join(f"i32 {k}" for k in range(width))
        mask = put(f"icmp slt <{width} x i32> <{numbers}>, {below}")
        c.existing = s.extent, mask
        with c.testing((*c.under, Test(const(True, b1), True, mask, s.var, width))):
            self.iteration(s, LANE)
        c.existing = None

    def _scanned(self, s: Loop) -> bool:
        """A scan whose elements are lanes; False where it is a plain loop after all."""
        c, width, found = self.context, s.extent, scan_in(s)
        if c.lane is not None or c.under or not isinstance(width, int) or found is None:
            return False
        c.lane, c.hints, c.env[s.var] = (s.var, width), frozenset({EDGES}), LANE
        done = self.stores.scanned(*found)
        c.lane = None
        del c.env[s.var]
        return done

    def _prefetches(self, asks: Sequence[Prefetch]) -> None:
        for x in asks if self.traits.prefetches else ():
            self._prefetch(x)

    def _prefetch(self, s: Prefetch) -> None:
        if self.context.lane is not None:
            self.context.with_lane(0, lambda: self._prefetch(s))
            return
        b = self.context.buffers[str(s.load.source)]

        def line(k: Dim) -> Load:
            at = (*s.load.index[:-1], s.load.index[-1] + k * (64 // b.dtype.bytes))
            return load(b.name, at, b.dtype)

        if s.lines > FEW_LINES:
            k = D.var(self.writer.fresh("lines"), s.lines)
            self.loop(Loop(D.the_sym(k), "serial", (Prefetch(line(k), level=s.level),)))
        elif s.lines == 1:
            self.instructions.prefetch(s.load, s.level)
        else:
            for k in range(s.lines):
                self.instructions.prefetch(line(k), s.level)

    # ---- branches

    def _if(self, s: If) -> None:
        c, w = self.context, self.writer
        condition = c.simplified(s.condition)
        if isinstance(condition, Const):
            self.block(s.then if condition.value else s.other)
            return
        other = (lambda: self.block(s.other)) if s.other else None
        if not c.is_vector(condition):
            bit = self.values.value(condition)
            self._before_mask(s)
            w.branch(bit, lambda: self.block(s.then), other, likely=is_likely(s))
            return
        assert c.lane is not None
        lane, width = c.lane
        before = c.under
        lanes = self.values.lanes_of(condition)
        rest = w.negated(lanes, width) if s.other else lanes
        for body, chosen, holds in ((s.then, lanes, True), (s.other, rest, False)):
            with c.testing((*before, Test(condition, holds, chosen, lane, width))):
                self.block(body)

    def _before_mask(self, s: If) -> None:
        """What a store under a condition shares with others is computed before: the address, and a
        value that takes next to nothing."""
        x = s.then[0] if len(s.then) == 1 and not s.other else None
        if not self.traits.early or not isinstance(x, Store):
            return
        known, a = self.context.buffers, self.addresses
        a.early(known[x.buffer], x.index)
        there = all(a.in_range(known[str(r.source)], r.index) for r in loads(x.value))
        if x.combine is None and there and self.arith.is_light(x.value):
            self.values.value(x.value)

    def _while(self, s: While) -> None:
        w, c = self.writer, self.context
        if s.waits:
            self.machine.refuse(s)
        if c.lane is not None:
            raise Unsupported(f"while {s.name} is inside the lanes {c.lane[0].name}")
        n = w.fresh("W")
        if s.waits:
            self._begin_waiting(n)
        pre: list[Any] = []
        w.out.append(pre)
        w.line(f"br label %{n}")
        c.touch(s)
        with w.inside(pre):
            w.label(n)
            more = self.values.value(s.condition)
            w.line(f"br i1 {more}, label %{n}.body, label %{n}.exit")
            w.label(f"{n}.body")
            self.block(s.body)
            if s.waits:
                hopeless = w.put(f"call i1 @tw_wait(ptr %{n}.polls)")
                w.line(f"br i1 {hopeless}, label %{n}.exit, label %{n}")
            else:
                w.line(f"br label %{n}")
            w.label(f"{n}.exit")
        if s.waits:
            w.line(f"call void @tw_waited(ptr %{n}.polls)")
        c.touch(s)

    def _begin_waiting(self, n: str) -> None:
        """The number of polls so far, which the runtime counts (runtime/concurrent_ir.py)."""
        w = self.writer
        w.arith.declares |= {"declare i1 @tw_wait(ptr)", "declare void @tw_waited(ptr)"}
        w.line(f"%{n}.polls = alloca i64, align 8", entry=True)
        w.line(f"store i64 0, ptr %{n}.polls, align 8")

    # ---- reports

    def _report(self, s: Report) -> None:
        if s.condition is None:
            self._tell(s)
            return
        condition = self.context.simplified(s.condition)
        if isinstance(condition, Const):
            if not condition.value:
                self._tell(s)
            return
        fails = self.writer.negated(self.values.value(condition), 1)
        self.writer.branch(fails, lambda: self._tell(s))

    def _tell(self, s: Report) -> None:
        w = self.writer
        w.arith.declares.add("declare void @tw_report(i64, i64, ptr)")
        where = "null"
        if s.values:
            where = f"%{w.fresh('report')}"
            w.line(f"{where} = alloca [{len(s.values)} x i64], align 8", entry=True)
        for k, v in enumerate(s.values):
            at = w.put(f"getelementptr i64, ptr {where}, i64 {k}")
            w.line(f"store i64 {self._word(v)}, ptr {at}, align 8")
        w.line(f"call void @tw_report(i64 {s.site}, i64 {len(s.values)}, ptr {where})")

    def _word(self, v: Value) -> str:
        """A value in eight bytes: an integer, or a double."""
        put, d, r, x = self.writer.put, v.dtype, register_type(v.dtype), self.values.value(v)
        if not d.is_float:
            if d.bits == 64 and not d.is_bool:
                return x
            return put(f"{'sext' if d.kind == 'i' else 'zext'} {r} {x} to i64")
        if r != "double":
            x = put(f"fpext {r} {x} to double")
        return put(f"bitcast double {x} to i64")
