"""Nest → LLVM text. Loops, their kinds, scopes and shapes are given, and none is changed here.

This is how a processor runs one; the statements are written by llvm/body.py. Kernels are
`void name(ptr args, ptr dims)`; a parallel loop becomes a function of one chunk that `tw_parallel`
calls.
"""

from __future__ import annotations

from tilewright.base.errors import Unsupported
from tilewright.ir import dim as D
from tilewright.ir.target import Target
from tilewright.kernel.group import Buffer
from tilewright.kernel.legal import legalise
from tilewright.kernel.legal.hoist import is_let
from tilewright.kernel.nest import (
    WAITS,
    Alloc,
    Barrier,
    Commit,
    Loop,
    Nest,
    Stmt,
    Wait,
    mentions,
    walk,
    writes,
)
from tilewright.llvm.body import Body
from tilewright.llvm.scalars import Arith, memory_type
from tilewright.llvm.writer import Metadata


def emit(n: Nest, target: Target) -> str:
    """The module of one kernel."""
    return emit_legal(legalise(n, target), target)


def emit_legal(n: Nest, target: Target) -> str:
    """The module of one kernel, whose nest is legal for the target (kernel/legal/)."""
    return _Module(n, target).text()


class _Module:
    def __init__(self, n: Nest, target: Target) -> None:
        self.n, self.target = n, target
        self.arith = Arith(target.has_fma, n.precision == "strict", target.has_bf16)
        self.args = [b for b in n.buffers if b.scope in ("in", "out")]
        allocated = [s.buffer for s in n.body if isinstance(s, Alloc)]
        self.shared = [x for x in allocated if n.buffer(x).scope != "let"]
        self.functions: list[str] = []
        asked = any(dict(s.pragmas).get("unroll") for s, _ in walk(n.body) if isinstance(s, Loop))
        self.metadata = Metadata(asked)

    def text(self) -> str:
        main = _Function(self.n, self.arith, self.args, self.target)
        main.metadata = self.metadata
        main.enter("%args", "%dims")
        ctx = [*self.shared]
        body = [s for s in self.n.body if not isinstance(s, Alloc)]
        pieces = [s for s in body if isinstance(s, Loop) and s.kind == "parallel"]
        for name in ctx:
            main.allocate(name)
        if pieces:
            main.line(f"%ctx = alloca [{2 + len(ctx)} x ptr], align 8", entry=True)
            for k, p in enumerate(["%args", "%dims", *(main.base[c][0] for c in ctx)]):
                slot = main.put(f"getelementptr ptr, ptr %ctx, i64 {k}")
                main.line(f"store ptr {p}, ptr {slot}")
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
        main.release(ctx)
        head = f"define void @{self.n.name}(ptr %args, ptr %dims) nounwind {{"
        self.functions.append("\n".join([head, *main.around()]))
        a = self.arith
        extra = set(a.declares)
        for s in pieces:
            extra.add(f"declare void @{_runner(s)}(ptr, ptr, i64)")
        if any("@malloc" in f for f in self.functions):
            extra |= {"declare ptr @malloc(i64)", "declare void @free(ptr)"}
        code = [*sorted(extra), *a.definitions(), *self.functions]
        return "\n".join([*code, *self.metadata.lines]) + "\n"

    def _parallel(
        self, main: _Function, s: Loop, lets: list[Stmt], name: str, ctx: list[str]
    ) -> None:
        extent = main.dim(s.extent)
        grain = s.grain
        up = main.put(f"add i64 {extent}, {grain - 1}")
        chunks = main.put(f"udiv i64 {up}, {grain}")
        main.line(f"call void @{_runner(s)}(ptr @{name}, ptr %ctx, i64 {chunks})")
        main.touch(s)
        f = _Function(self.n, self.arith, self.args, self.target)
        f.metadata = self.metadata
        for k, p in enumerate(["args", "dims", *(f"l{i}" for i in range(len(ctx)))]):
            f.line(f"%{p}.slot = getelementptr ptr, ptr %ctx, i64 {k}")
            f.line(f"%{p} = load ptr, ptr %{p}.slot, align 8")
        f.enter("%args", "%dims")
        for i, c in enumerate(ctx):
            f.base[c] = (f"%l{i}", 0)
        lo = f.put(f"mul i64 %chunk, {grain}")
        end = f.put(f"add i64 {lo}, {grain}")
        hi = f.arith_call("smin", end, f.dim(s.extent))
        f.block(tuple(lets))
        f.loop(s, lo, hi)
        head = f"define internal void @{name}(ptr %ctx, i64 %chunk) nounwind {{"
        self.functions.append("\n".join([head, *f.around()]))
        self.arith.put = main.put


def _runner(s: Loop) -> str:
    """The function that runs the chunks of a parallel loop."""
    return "tw_concurrent" if WAITS in s.marks else "tw_parallel"


class _Function(Body):
    """The statements of a nest on a processor."""

    steps_apart = True

    def __init__(self, n: Nest, arith: Arith, args: list[Buffer], target: Target) -> None:
        super().__init__(n, arith, args, target)
        self.masks = target.has_masks
        self.keeping = f"{target.vector_convention} ".lstrip()

    def allocate(self, name: str) -> None:
        b = self.buffers[name]
        if b.scope == "shared":
            what = f"{name} is shared by the threads of a block, which a CPU does not have"
            raise Unsupported(what, hint=f"SetScope('{name}', 'local')")
        if b.scope != "heap":
            ssa, size = f"%{self.fresh('m')}", max(D.bounds(b.size)[1], 1)
            self.line(f"{ssa} = alloca [{size} x {memory_type(b.dtype)}], align 64", entry=True)
            self.base[name] = (ssa, 0)
        else:
            total = self.put(f"mul i64 {self.dim(b.size)}, {b.dtype.bytes}")
            total = self.put(f"add i64 {total}, 64")
            self.base[name] = (self.put(f"call ptr @malloc(i64 {total})"), self.depth)
            self.freed.add(name)
        self.epoch[name] = self.epoch.get(name, 0) + 1

    def release(self, names: list[str]) -> None:
        for name in names:
            if name in self.freed:
                self.line(f"call void @free(ptr {self.base[name][0]})")
                self.freed.discard(name)

    def bound(self, s: Loop) -> None:
        hint = "make it Parallel instead, or compile for a GPU"
        raise Unsupported(f"{s.name} is bound to {s.kind}, which a CPU does not have", hint=hint)

    def synchronise(self, s: Barrier | Commit | Wait) -> None:
        if isinstance(s, Barrier):  # copies arrive at once here
            raise Unsupported("a barrier between threads: a CPU has no thread blocks")
