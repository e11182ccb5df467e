"""Nest → LLVM text. Loops, their kinds, scopes and shapes are given, and none is changed here.

This is how a processor runs one; the statements are written by llvm/body.py. Kernels are
`void name(ptr args, ptr dims)`; a parallel loop becomes a function of one chunk that `tw_parallel`
calls.
"""

from __future__ import annotations

from functools import partial

from tilewright.base.errors import Unsupported
from tilewright.ir import dim as D
from tilewright.ir.target import Target
from tilewright.kernel.intrinsic import Operand
from tilewright.kernel.legal.hoist import is_let
from tilewright.kernel.nest import (
    WAITS,
    Alloc,
    Barrier,
    Fence,
    Loop,
    Nest,
    Report,
    Stmt,
    Store,
    While,
    mentions,
    walk,
    writes,
)
from tilewright.kernel.usual import ENOUGH, PIECES, usual_of, work_at, work_inside
from tilewright.llvm.body import Body
from tilewright.llvm.instead import Has
from tilewright.llvm.machine import Traits
from tilewright.llvm.scalar_types import memory_type
from tilewright.llvm.scalars import Arith
from tilewright.llvm.writer import Metadata


def emit(n: Nest, target: Target) -> str:
    """The module of one kernel, whose nest is legal for the target (kernel/legal/)."""
    return _Module(n, target).text()


class _Module:
    def __init__(self, n: Nest, target: Target) -> None:
        self.n, self.target = n, target
        strict = n.precision == "strict"
        self.arith = Arith(target.has_fma, strict, target.has_bf16, Has.of(target))
        allocated = [s.buffer for s in n.body if isinstance(s, Alloc)]
        self.shared = [x for x in allocated if n.buffer(x).scope != "let"]
        self.functions: list[str] = []
        unrolls = any(dict(s.pragmas).get("unroll") for s, _ in walk(n.body) if isinstance(s, Loop))
        self.metadata = Metadata(unrolls)
        self.traits = Traits(
            counts=True,
            keeping=f"{target.vector_convention} ".lstrip(),
            steps_apart=True,
            short=target.pointer_bits < 64,
            masked_bytes=target.masked_bytes if target.has_masks else 0,
        )

    def text(self) -> str:
        main = self._function()
        w = main.writer
        self._enter(main)
        body = [s for s in self.n.body if not isinstance(s, Alloc)]
        pieces = [s for s in body if isinstance(s, Loop) and s.kind == "parallel"]
        for name in self.shared:
            main.allocate(name)
        # What no piece reads or writes may be a register: its address is not passed on. Lets are
        # set again in pieces that need them.
        passed = [mentions(s) for s in (*pieces, *(x for x in body if is_let(self.n, x)))]
        ctx = [x for x in self.shared if any(x in names for names in passed)]
        if pieces:
            w.line(f"%ctx = alloca [{2 + len(ctx)} x ptr]", entry=True)
            for k, p in enumerate(["%args", "%dims", *(main.addresses.base[c][0] for c in ctx)]):
                slot = w.put(f"getelementptr ptr, ptr %ctx, i64 {k}")
                w.line(f"store ptr {p}, ptr {slot}")
        count = 0
        lets: list[Stmt] = []
        for s in body:
            if is_let(self.n, s):
                lets.append(s)
                continue
            # What a loop reads before it begins, every chunk of a parallel one reads for itself.
            own = [x for x in lets if not writes((x,)).isdisjoint(mentions(s))]
            if isinstance(s, Loop) and s.kind == "parallel":
                self._parallel(main, s, own, f"{self.n.name}.p{count}", ctx)
                count += 1
            else:
                main.block((*own, s))
        main.machine.release(self.shared)
        head = f"define void @{self.n.name}(ptr %args, ptr %dims) nounwind {{"
        self.functions.append("\n".join([head, *main.lines()]))
        a = self.arith
        extra = set(a.declares)
        for s in pieces:
            extra.add(f"declare void @{_runner(s)}(ptr, ptr, i64)")
        if any("@malloc" in f for f in self.functions):
            size = f"i{self.target.pointer_bits}"
            extra |= {f"declare ptr @malloc({size})", "declare void @free(ptr)"}
        code = [*sorted(extra), *a.definitions(), *self.functions]
        return "\n".join([*code, *self.metadata.lines]) + "\n"

    def _function(self) -> Body:
        args = [b for b in self.n.buffers if b.scope in ("in", "out")]
        return Body(self.n, self.arith, args, self.target, self.metadata, self.traits, _Processor)

    def _enter(self, f: Body) -> None:
        """The addresses and sizes that a function is called with."""
        put = f.writer.put
        for k, b in enumerate(f.context.args):
            slot = put(f"getelementptr ptr, ptr %args, i64 {k}")
            f.addresses.base[b.name] = (put(f"load ptr, ptr {slot}"), 0)
        for k, s in enumerate(self.n.dims):
            slot = put(f"getelementptr i64, ptr %dims, i64 {k}")
            f.context.env[s] = (put(f"load i64, ptr {slot}, align 8"), 0)

    def _grain(self, f: Body, s: Loop) -> str:
        """How many iterations are one piece: of sizes above usual ones fewer, since each is more
        work. Of smaller ones there are no more: a few pieces are hard to share evenly."""
        usual, work = usual_of(s), work_inside(s)
        if not usual or isinstance(work, int):
            return str(s.grain)
        put, piece = f.writer.put, s.grain * work_at(work, usual)
        found = put(f"udiv i64 {piece}, {f.indices.dim(D.maximum(work, 1))}")
        cores = max(1, self.target.cores)
        enough, most = (
            f.indices.dim(D.maximum(D.floordiv(s.extent, n * cores), 1)) for n in (ENOUGH, PIECES)
        )
        found = f.writer.integer("smax", found, enough)
        found = f.writer.integer("smin", found, str(s.grain))
        return f.writer.integer("smax", found, most)

    def _parallel(self, main: Body, s: Loop, lets: list[Stmt], name: str, ctx: list[str]) -> None:
        """A call that runs the chunks of a loop, and the function of one of them."""
        grain = self._grain(main, s)
        up = main.writer.put(f"add i64 {main.indices.dim(s.extent)}, {_one_less(main, grain)}")
        chunks = main.writer.put(f"udiv i64 {up}, {grain}")
        main.writer.line(f"call void @{_runner(s)}(ptr @{name}, ptr %ctx, i64 {chunks})")
        main.context.touch(s)
        f = self._function()
        w = f.writer
        for k, p in enumerate(["args", "dims", *(f"l{i}" for i in range(len(ctx)))]):
            w.line(f"%{p}.slot = getelementptr ptr, ptr %ctx, i64 {k}")
            w.line(f"%{p} = load ptr, ptr %{p}.slot")
        self._enter(f)
        for i, c in enumerate(ctx):
            f.addresses.base[c] = (f"%l{i}", 0)
        grain = self._grain(f, s)
        lo = w.put(f"mul i64 %chunk, {grain}")
        end = w.put(f"add i64 {lo}, {grain}")
        hi = w.integer("smin", end, f.indices.dim(s.extent))
        f.block(tuple(lets))
        f.loop(s, lo, hi)
        head = f"define internal void @{name}(ptr %ctx, i64 %chunk) nounwind {{"
        self.functions.append("\n".join([head, *f.lines()]))
        self.arith.put = main.writer.put


def _one_less(f: Body, x: str) -> str:
    return str(int(x) - 1) if x.isdigit() else f.writer.put(f"sub i64 {x}, 1")


# Bytes of a buffer of unknown size for which there is room on the stack, so that rows of usual
# length need no call for memory.
SMALL = 16 << 10


def _runner(s: Loop) -> str:
    """The function that runs the chunks of a parallel loop."""
    return "tw_concurrent" if WAITS in s.marks else "tw_parallel"


class _Processor:
    """How a processor runs a function of a kernel."""

    def __init__(self, body: Body) -> None:
        # Addresses that may be on the heap, each with the one that it has where it is not.
        self.body, self.taken = body, dict[str, str]()
        self.room = body.target.stack // 2  # of a function, for all buffers of unknown size

    def allocate(self, name: str) -> None:
        body, w = self.body, self.body.writer
        b = body.context.buffers[name]
        if b.scope == "shared":
            what = f"{name} is shared by the threads of a block, which a CPU does not have"
            raise Unsupported(what, hint=f"SetScope('{name}', 'local')")
        if b.scope != "heap":
            ssa, size = f"%{w.fresh('m')}", max(D.bounds(b.size)[1], 1)
            w.line(f"{ssa} = alloca [{size} x {memory_type(b.dtype)}], align 64", entry=True)
            body.addresses.base[name] = (ssa, 0)
        else:
            total = w.put(f"mul i64 {body.indices.dim(b.size)}, {b.dtype.bytes}")
            total = w.put(f"add i64 {total}, 64")
            own, room = "null", min(SMALL, body.target.stack // 8)
            if D.bounds(b.size)[0] * b.dtype.bytes > room or self.room < room:
                address = self._from_heap(total)
            else:
                self.room -= room
                own = f"%{w.fresh('m')}"
                w.line(f"{own} = alloca [{room} x i8], align 64", entry=True)
                small = w.put(f"icmp sle i64 {total}, {room}")
                address = w.either(small, "ptr", lambda: own, lambda: self._from_heap(total))
            body.addresses.base[name] = (address, w.depth)
            self.taken[address] = own

    def _from_heap(self, total: str) -> str:
        w, size = self.body.writer, f"i{self.body.target.pointer_bits}"
        if size != "i64":
            total = w.put(f"trunc i64 {total} to {size}")
        return w.put(f"call ptr @malloc({size} {total})")

    def before(self, s: Stmt) -> None:
        """Nothing: a processor's threads see what they stored."""

    def release(self, names: list[str]) -> None:
        for name in names:
            address, w = self.body.addresses.base.get(name, ("", 0))[0], self.body.writer
            if address in self.taken:
                give_back = partial(w.line, f"call void @free(ptr {address})")
                if (own := self.taken.pop(address)) == "null":
                    give_back()
                else:
                    w.branch(w.put(f"icmp ne ptr {address}, {own}"), give_back)

    def parallel(self, s: Loop) -> None:
        raise Unsupported(f"parallel loop {s.name} is not outermost")

    def bound(self, s: Loop) -> None:
        hint = "make it Parallel instead, or compile for a GPU"
        raise Unsupported(f"{s.name} is bound to {s.kind}, which a CPU does not have", hint=hint)

    def synchronise(self, s: Fence) -> None:
        if isinstance(s, Barrier):  # copies arrive at once here
            raise Unsupported("a barrier between threads: a CPU has no thread blocks")

    def copy(self, s: Store) -> bool:
        return False  # it arrives at once

    def tile(self, s: Loop) -> bool:
        return False  # there is no copy engine

    def fragment(self, x: Operand) -> str:
        raise Unsupported(f"{x.buffer} is in fragments of many threads, which a CPU does not have")

    def staged(self) -> str:
        raise Unsupported("shared memory of a warp, which a CPU does not have")

    def refuse(self, s: While | Report) -> None:
        """The runtime has both."""
