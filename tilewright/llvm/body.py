"""The body of a kernel as LLVM text, whatever launches it: loops, stores, instructions.

What depends on the machine is asked of its own emitter (llvm/emit.py for processors, llvm/grid.py
for GPUs): how a kernel begins, where buffers lie, what bound loops and barriers become.

Whatever does not change inside a loop is written before it, because the short LLVM pipeline moves
nothing out of loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.base.errors import Unsupported
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Load, load
from tilewright.ir.target import Target
from tilewright.kernel.group import Buffer
from tilewright.kernel.intrinsic import INTRINSICS, Intrinsic, Match, Operand, match
from tilewright.kernel.legal.interleave import is_interleaved
from tilewright.kernel.legal.lanes import vector_lanes
from tilewright.kernel.nest import (
    BLOCKS,
    BRANCHES,
    THREADS,
    Alloc,
    Barrier,
    Commit,
    Loop,
    Nest,
    Prefetch,
    Stmt,
    Store,
    Wait,
)
from tilewright.llvm.branches import Branches
from tilewright.llvm.opaque import DECLARATION
from tilewright.llvm.scalars import Arith, memory_type, register_type, vector
from tilewright.llvm.writer import LANE, Level


class Body(Branches):
    """The statements of a nest."""

    def __init__(self, n: Nest, arith: Arith, args: list[Buffer], target: Target) -> None:
        super().__init__(n, arith, args)
        self.target = target
        self.used: dict[str, Intrinsic] = {}  # instructions in this function

    def statement(self, s: Stmt) -> None:
        if isinstance(s, Loop):
            self.loop(s)
        elif isinstance(s, Store):
            self.store(s)
        elif isinstance(s, Alloc):
            if s.buffer not in self.lets:
                self.allocate(s.buffer)
        elif isinstance(s, Prefetch):
            self._prefetch(s)
        elif isinstance(s, BRANCHES):
            self.branching(s)
        else:
            self.synchronise(s)

    def block(self, body: tuple[Stmt, ...]) -> None:
        for k, s in enumerate(body):
            if k and isinstance(ask := body[k - 1], Prefetch) and self._asks(s, ask):
                assert isinstance(s, Loop)
                self._instruction(s, ask)
            elif not (isinstance(s, Prefetch) and k + 1 < len(body) and self._asks(body[k + 1], s)):
                self.statement(s)
        self.release([s.buffer for s in body if isinstance(s, Alloc)])

    # ---- what the machine decides

    def allocate(self, name: str) -> None:
        """Memory for a buffer, from here to the end of the enclosing body."""
        raise AssertionError("memory is the machine's")

    def release(self, names: list[str]) -> None:
        """The end of such buffers."""

    def bound(self, s: Loop) -> None:
        """A loop over the blocks of a grid or the threads of a block."""
        raise AssertionError("grids are the machine's")

    def synchronise(self, s: Barrier | Commit | Wait) -> None:
        """Threads wait for one another, or for copies."""
        raise AssertionError("threads are the machine's")

    # ---- statements

    def _asks(self, s: Stmt, ask: Prefetch) -> bool:
        """Does an instruction ask for lines ahead while it runs?"""
        if not isinstance(s, Loop) or s.kind != "tensor" or ask.lines == 1:
            return False
        found = match(INTRINSICS[s.instruction], self.n, s)
        if INTRINSICS[s.instruction].ahead is None or not isinstance(found, Match):
            return False
        return all(isinstance(k, int) for k in found.sizes.values())

    def _prefetch(self, s: Prefetch) -> None:
        """Only an address is computed, so it does not matter where it points."""
        if self.lane is not None:
            self._with_lane(0, lambda: self._prefetch(s))
            return
        if s.lines > 1:
            b = self.buffers[str(s.load.source)]
            k = D.var(self.fresh("lines"), s.lines)
            at = (*s.load.index[:-1], s.load.index[-1] + k * (64 // b.dtype.bytes))
            self.loop(Loop(D.the_sym(k), "serial", (Prefetch(load(b.name, at, b.dtype)),)))
            return
        p = self._address(s.load)
        self.arith.declares.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self.line(f"call void @llvm.prefetch.p0(ptr {p}, i32 0, i32 3, i32 1)")

    def _address(self, x: Load) -> str:
        b = self.buffers[str(x.source)]
        const, terms, _ = self._terms(self._linear(b, x.index))
        return self.pointer(b, const, terms)

    def loop(self, s: Loop, lo: str = "0", hi: str | None = None) -> None:
        if dict(s.pragmas).get("nontemporal") and not self.streams:
            self.streams = True
            self.loop(s, lo, hi)
            self.streams = False
            self.line("fence seq_cst")  # other threads see such stores after a full fence only
            return
        if s.kind == "unroll":
            self._unrolled(s)
            return
        if s.kind == "lane":
            self._lanes(s)
            return
        if s.kind == "tensor":
            self._instruction(s)
            return
        if s.kind == "parallel" and hi is None:
            raise Unsupported(f"parallel loop {s.name} is not outermost")
        if s.kind in (*BLOCKS, *THREADS):
            self.bound(s)
            return
        if hi is None and s.extent == 1:
            self.env[s.var] = 0
            self.block(s.body)
            del self.env[s.var]
            return
        self._serial(s, lo, hi)

    def _serial(self, s: Loop, lo: str, hi: str | None) -> None:
        sure = hi is None and D.bounds(s.extent)[0] >= 1
        end = hi if hi is not None else self.dim(s.extent)
        n = self.fresh("L")
        pre: list[Any] = []
        self.out.append(pre)
        self.line(f"br label %{n}.pre")
        self.label(f"{n}.pre")
        if sure:
            self.line(f"br label %{n}")
        else:
            some = self.put(f"icmp slt i64 {lo}, {end}")
            self.line(f"br i1 {some}, label %{n}, label %{n}.exit")
        self.touch(s)
        self.levels.append(Level(pre))
        self.depth += 1
        assert self.depth == len(self.levels) - 1
        self.label(n)
        iv, nx = f"%{n}.i", f"%{n}.next"
        self.line(f"{iv} = phi i64 [ {lo}, %{n}.pre ], [ {nx}, %{n}.latch ]")
        self.env[s.var] = (iv, self.depth)
        self.block(s.body)
        self.line(f"br label %{n}.latch")
        self.label(f"{n}.latch")
        self.line(f"{nx} = add nuw nsw i64 {iv}, 1")
        more = self.put(f"icmp slt i64 {nx}, {end}")
        times = self.metadata.unroll(dict(s.pragmas).get("unroll"))
        self.line(f"br i1 {more}, label %{n}, label %{n}.exit{times}")
        self.label(f"{n}.exit")
        self.levels.pop()
        self.depth -= 1
        del self.env[s.var]
        self.touch(s)

    def _unrolled(self, s: Loop) -> None:
        """Every iteration written out; those that may not exist under a condition."""
        if is_interleaved(s) and self.lane is not None and not self.under:
            self._interleaved_stores(s)
            return
        least, most = D.bounds(s.extent)
        end = self.dim(s.extent)
        for k in range(most):
            self.env[s.var] = k
            if k < least:
                self.block(s.body)
            else:
                there = self.put(f"icmp sgt i64 {end}, {k}")
                self.branch(there, lambda: self.block(s.body))
            del self.env[s.var]

    def _interleaved_stores(self, s: Loop) -> None:
        """Iterations that fill the places between lanes: their vectors become one store."""
        store, parts = s.body[0], s.extent
        assert isinstance(store, Store) and isinstance(parts, int) and self.lane is not None
        b, w = self.buffers[store.buffer], self.lane[1]
        self.env[s.var] = 0
        const, terms, _ = self._terms(self._linear(b, store.index))
        p = self.pointer(b, const, terms)
        del self.env[s.var]
        vectors: list[str] = []
        for k in range(parts):
            self.env[s.var] = k
            x = self.lanes_of(store.value)
            vectors.append(self.arith.narrow(x, b.dtype, w))
            del self.env[s.var]
        t = memory_type(b.dtype)
        x = self._interleaved(vectors, t, w)
        self.line(f"store <{parts * w} x {t}> {x}, ptr {p}, align {b.dtype.bytes}")
        self.touch(s)

    def _interleaved(self, vectors: list[str], t: str, w: int) -> str:
        """The first lanes of all vectors, then the second ones, and so on."""
        while len(vectors) > 1:
            half = len(vectors) // 2
            zipped = [k + side * w for k in range(w) for side in (0, 1)]
            pairs = zip(vectors[:half], vectors[half:], strict=True)
            vectors = [self._shuffled(x, y, t, w, zipped) for x, y in pairs]
            w *= 2
        return vectors[0]

    def _shuffled(self, x: str, y: str, t: str, size: int, places: Sequence[int]) -> str:
        v, which = f"<{size} x {t}>", ", ".join(f"i32 {k}" for k in places)
        return self.put(f"shufflevector {v} {x}, {v} {y}, <{len(places)} x i32> <{which}>")

    def _instruction(self, s: Loop, ask: Prefetch | None = None) -> None:
        """A call of the declared instruction, which is inlined; it asks for lines as it goes."""
        i = INTRINSICS[s.instruction]
        lacking = [f for f in i.features if not self.target.has(f)]
        if lacking:
            what = f"{i.name} needs {', '.join(lacking)}, which {self.target.name} does not have"
            raise Unsupported(what, hint="leave out the Tensorize for this target")
        found = match(i, self.n, s)
        assert isinstance(found, Match), found.reason
        args: list[tuple[str, str, str]] = []
        for x in found.operands:
            args.append(("ptr", f"%{x.name}", self.operand_address(x)))
            for k, d in enumerate(x.strides):
                args.append(("i64", f"%{x.name}.{k}", self.dim(d)))
        for axis, size in found.sizes.items():
            if not isinstance(size, int):
                args.append(("i64", f"%size.{axis}", self.dim(size)))
        sizes = "_".join(str(n) if n is not None else "n" for n in found.constants.values())
        name = f"{i.name}.{sizes}"
        if ask is not None and i.ahead is not None:
            name += f".{ask.lines}"
            args.append(("ptr", "%ahead", self._address(ask.load)))
            body = i.ahead(found.constants, ask.lines).rstrip()
            self.arith.declares.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        else:
            body = i.emission(found.constants).rstrip()
        head = ", ".join(f"{t} {name}" for t, name, _ in args)
        self.arith.defines[name] = (
            f'define internal void @"{name}"({head}) alwaysinline nounwind {{\n{body}\n}}'
        )
        self.arith.declares |= {*i.declares, DECLARATION}
        self.line(f'call void @"{name}"({", ".join(f"{t} {v}" for t, _, v in args)})')
        self.used[i.name] = i
        self.touch(s)

    def operand_address(self, x: Operand) -> str:
        """Where an operand of an instruction begins."""
        const, terms, _ = self._terms(x.base)
        return self.pointer(self.buffers[x.buffer], const, terms)

    def around(self) -> list[str]:
        """The function's lines between what its instructions need where it begins and ends."""
        enter = [f"  {x}" for i in self.used.values() for x in i.enter]
        leave = [f"  {x}" for i in self.used.values() for x in i.leave]
        return [*enter, *self.lines(), *leave, "  ret void", "}"]

    def _lanes(self, s: Loop) -> None:
        if self.lane is not None:
            raise Unsupported(f"lane loop {s.name} is inside lane loop {self.lane[0].name}")
        width = vector_lanes(s)
        assert width is not None, f"{s.name} is no vector"
        self.env[s.var] = 0
        if width > 1:
            self.env[s.var] = LANE
            self.lane = (s.var, width)
        self.block(s.body)
        self.lane = None
        del self.env[s.var]

    def _let(self, s: Store) -> None:
        let, at = self.lets[s.buffer], [self.env[D.the_sym(i)] for i in s.index]
        let.lanes = at.index(LANE) if LANE in at else None
        x = self.value(s.value) if let.lanes is None else self.lanes_of(s.value)
        let.level = self.depth
        let.registers[tuple(e for e in at if e != LANE)] = x
        self.touch(s)

    def store(self, s: Store) -> None:
        if s.buffer in self.lets:
            self._let(s)
            return
        b = self.buffers[s.buffer]
        w = self.lane[1] if self.lane else 1
        lin = self._linear(b, s.index)
        const, terms, lane = self._terms(lin)
        if self.under:
            self.store_masked(s, b, lin, w)
        elif w == 1 or lane == 0:
            self._store_one(s, b, const, terms, w)
        else:
            self._store_lanes(s, b, lin, const, terms, lane, w)
        self.touch(s)

    def _store_one(self, s: Store, b: Buffer, const: int, terms: Any, w: int) -> None:
        t = memory_type(b.dtype)
        if w > 1 and s.function:
            x = self.arith.horizontal(s.function, self.lanes_of(s.value), b.dtype, w)
        elif w > 1 and self.is_vector(s.value):
            lanes = f"{vector(register_type(b.dtype), w)} {self.value(s.value)}"
            x = self.put(f"extractelement {lanes}, i64 {w - 1}")
        else:
            x = self.value(s.value)
        p = self.pointer(b, const, terms)
        if s.function:
            old = self.arith.widen(
                self.put(f"load {t}, ptr {p}, align {b.dtype.bytes}"), b.dtype, 1
            )
            x = self.arith.combine(s.function, b.dtype, 1, [old, x])
        x = self.arith.narrow(x, b.dtype, 1)
        self.line(f"store {t} {x}, ptr {p}, align {b.dtype.bytes}{self._past_caches(b)}")

    def _past_caches(self, b: Buffer) -> str:
        """Only results: what stays inside the kernel is about to be read again."""
        streams = self.streams and b.scope == "out"
        return f", !nontemporal {self.metadata.node('!{i32 1}')}" if streams else ""

    def _store_lanes(
        self, s: Store, b: Buffer, lin: Dim, const: int, terms: Any, lane: int | None, w: int
    ) -> None:
        t = memory_type(b.dtype)
        x = self.lanes_of(s.value)
        if lane == b.unit:
            p = self.pointer(b, const, terms)
            align = self.alignment(b, lin, w)
            if s.function:
                old = self.put(f"load <{w} x {t}>, ptr {p}, align {align}")
                old = self.arith.widen(old, b.dtype, w)
                x = self.arith.combine(s.function, b.dtype, w, [old, x])
            x = self.arith.narrow(x, b.dtype, w)
            hint = self._past_caches(b)
            self.line(f"store <{w} x {t}> {x}, ptr {p}, align {align}{hint}")
            return
        if b.pointer and lane is None and not s.function:
            self.scatter(b, self.arith.narrow(x, b.dtype, w), lin, w)
            return
        r = register_type(b.dtype)
        for k in range(w):
            y = self.put(f"extractelement {vector(r, w)} {x}, i64 {k}")

            def where() -> tuple[int, Any, Any]:
                return self._terms(lin)

            c, tm, _ = self._with_lane(k, where)
            p = self.pointer(b, c, tm)
            if s.function:
                old = self.arith.widen(
                    self.put(f"load {t}, ptr {p}, align {b.dtype.bytes}"), b.dtype, 1
                )
                y = self.arith.combine(s.function, b.dtype, 1, [old, y])
            y = self.arith.narrow(y, b.dtype, 1)
            self.line(f"store {t} {y}, ptr {p}, align {b.dtype.bytes}{self._past_caches(b)}")
