"""Nest with blocks and threads → LLVM text for a GPU: a kernel per launch, and how it is launched.

What bound loops, shared memory and barriers mean is said in kernel/threads.py; the statements
inside are written by llvm/body.py. A kernel's parameters are the addresses of the buffers that it
uses and the sizes that are not known before. A private buffer of which every thread touches its own
part has memory for that part only, which are registers where its indices are constants.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

from tilewright.base.errors import Unsupported
from tilewright.ir import dim as D
from tilewright.ir.combine import identity
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Value
from tilewright.ir.target import Grid, Target
from tilewright.kernel.fragments import LANE, WARP
from tilewright.kernel.group import Buffer
from tilewright.kernel.intrinsic import INTRINSICS, Operand
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import (
    BLOCKS,
    THREADS,
    Alloc,
    Barrier,
    Commit,
    Loop,
    Nest,
    Prefetch,
    Report,
    Stmt,
    Store,
    Wait,
    While,
    mentions,
    walk,
    writes,
)
from tilewright.kernel.threads import block_size, combined, grid_of, launches, thread_chain
from tilewright.llvm.async_copies import AsyncCopies
from tilewright.llvm.combine import ThreadSums
from tilewright.llvm.grid_math import GridArith
from tilewright.llvm.own_parts import PRIVATE, own_parts
from tilewright.llvm.scalars import memory_type
from tilewright.llvm.shared_memory import Shared, bytes_of, check_lanes
from tilewright.llvm.writer import Metadata

# Bytes of one thread's own buffer; beyond this it is no use of a GPU.
PRIVATE_LIMIT = 64 * 1024
# Calls of one scalar function in a kernel that are written out: a call costs registers and time.
INLINED = 1024


@dataclass(frozen=True)
class Launch:
    """One kernel: its name, its blocks (functions of the sizes), the threads of a block, bytes of
    shared memory to ask for, the buffers that it is given."""

    symbol: str
    blocks: tuple[Dim, Dim, Dim]
    threads: tuple[int, int, int]
    shared: int
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Kernels:
    """A nest as code for a GPU. `scratch` is memory that launches hand on to each other, `dims` the
    sizes that each kernel takes after its buffers. All addresses are multiples of `alignment`."""

    text: str
    launches: tuple[Launch, ...]
    arguments: tuple[Buffer, ...]
    scratch: tuple[Buffer, ...]
    dims: tuple[str, ...]
    alignment: int


def emit_kernels(n: Nest, target: Target, alignment: int = 16) -> Kernels:
    """The module of a nest. Arguments whose addresses are not multiples of 16 bytes need one that
    was made with a smaller `alignment`."""
    grid = target.grid
    if grid is None:
        raise Unsupported(f"{target.name} has no grid", hint="compile for a target such as cuda:90")
    n = legalise(n, target)
    metadata = Metadata()
    found = [
        _Module(n, target, grid, launch, alignment, metadata)
        for launch in launches(n.body)
        if any(not isinstance(s, Alloc) for s in launch)
    ]
    made: list[Launch] = []
    texts: list[str] = []
    declares: set[str] = set()
    for k, m in enumerate(found):
        name = n.name if len(found) == 1 else f"{n.name}_{k}"
        lines, launch = m.kernel(_identifier(name))
        made.append(launch)
        texts += lines
        declares |= m.arith.declares
    defines: dict[str, str] = {}
    for m in found:
        defines.update(zip(m.arith.defines, m.arith.definitions(), strict=True))
    arguments = tuple(b for b in n.buffers if b.scope in ("in", "out", "memory"))
    outermost = {s.buffer for s in n.body if isinstance(s, Alloc)}
    used = {name for x in made for name in x.arguments}
    scratch = tuple(b for b in n.buffers if b.name in outermost and b.name in used)
    text = "\n".join([*sorted(declares), *defines.values(), *texts, *metadata.lines]) + "\n"
    dims = tuple(s.name for s in n.dims)
    return Kernels(text, tuple(made), arguments, scratch, dims, alignment)


def _identifier(name: str) -> str:
    """A name that PTX takes."""
    plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
    return plain if plain[:1].isalpha() else f"k_{plain}"


class _Module:
    """One launch of a nest."""

    def __init__(
        self,
        n: Nest,
        target: Target,
        grid: Grid,
        launch: tuple[Stmt, ...],
        alignment: int,
        metadata: Metadata,
    ) -> None:
        self.n, self.target, self.grid, self.alignment = n, target, grid, alignment
        self.metadata = metadata
        self.launch = launch
        results = [b.dtype for b in n.buffers if b.scope == "out"]
        short = all(d.is_float and d.bits <= 16 for d in results)
        strict = n.precision == "strict"
        self.arith = GridArith(True, strict, "bf16" in grid.has, often=INLINED, short=short)
        self.threads = _threads_of(launch, grid)

    def kernel(self, symbol: str) -> tuple[list[str], Launch]:
        used = frozenset().union(*(mentions(s) for s in self.launch))
        outermost = {s.buffer for s in self.n.body if isinstance(s, Alloc)}
        own = {s.buffer for s in self.launch if isinstance(s, Alloc)}
        args = [
            b
            for b in self.n.buffers
            if b.name in used
            and (b.scope in ("in", "out") or (b.scope in PRIVATE and b.name in outermost))
        ]
        k = _Kernel(self, symbol, args)
        k.metadata = self.metadata
        k.enter_kernel()
        k.block(tuple(s for s in self.launch if not (isinstance(s, Alloc) and s.buffer in own)))
        loops, _ = grid_of(self.launch)
        blocks = {x.kind: _count(x, set(self.n.dims)) for x in loops}
        size = ",".join(map(str, self.threads))
        head = f"define ptx_kernel void @{symbol}({', '.join(k.parameters())})"
        lines = [
            *k.shared.globals(),
            f'{head} "nvvm.reqntid"="{size}" nounwind {{',
            *k.around(),
        ]
        gx, gy, gz = (blocks.get(axis, 1) for axis in BLOCKS)
        names = tuple(b.name for b in args)
        return lines, Launch(symbol, (gx, gy, gz), self.threads, k.shared.dynamic, names)


def _threads_of(launch: tuple[Stmt, ...], grid: Grid) -> tuple[int, int, int]:
    size = block_size(launch)
    x, y, z = (size[a] for a in THREADS)
    whole = -(-x // grid.warp) * grid.warp
    # Whole warps exchange values; threads without an iteration skip it. Where no loop is bound to
    # thread.x, what one thread does would be done by several. Parts of a warp do too, if as many
    # are in each.
    parts = grid.warp % x == 0 and x * y * z % grid.warp == 0
    if x > 1 and not parts and combined(launch) and whole * y * z <= grid.block_threads:
        x = whole
    if x * y * z > grid.block_threads or z > 64:
        raise Unsupported(
            f"a block of {x} x {y} x {z} threads is too large",
            hint=f"at most {grid.block_threads} in all, 64 along thread.z: Split before Bind",
        )
    return x, y, z


def _count(x: Loop, dims: set[D.Sym]) -> Dim:
    """Blocks along a loop: of a ragged one, as many as it has at most."""
    if D.symbols(x.extent) <= dims:
        return x.extent
    most = D.bounds(x.extent)[1]
    if most >= D.INF:
        raise Unsupported(f"the number of blocks of {x.name} is not known before the launch")
    return most


class _Kernel(ThreadSums, AsyncCopies):
    """The statements of one launch."""

    scope = 'syncscope("device") '
    short_division = True

    def __init__(self, m: _Module, symbol: str, args: list[Buffer]) -> None:
        super().__init__(m.n, m.arith, args, m.target)
        self.threads, self.aligned = m.threads, m.alignment
        self.masks = True
        allocated = [s.buffer for s, _ in walk(m.launch) if isinstance(s, Alloc)]
        in_shared = [self.buffers[x] for x in allocated if self.buffers[x].scope == "shared"]
        shared = list(dict.fromkeys(in_shared))
        self.shared = Shared(symbol, shared, m.grid)
        for b in shared:
            self.base[b.name] = (self.shared.places[b.name], 0)
        self.over = {id(c.store): c.over for c in combined(m.launch)}
        given = {b.name for b in args}  # memory from outside the launch is common to all
        local = {x: b for x, b in self.buffers.items() if x not in given}
        self.own = own_parts(m.n, m.launch, local)
        self.registers: dict[str, str] = {}
        check_lanes(m.launch, self.buffers)
        self.tiles = any(
            isinstance(s, Loop) and s.instruction and INTRINSICS[s.instruction].tiles
            for s, _ in walk(m.launch)
        )
        self.divergent = 0  # conditions that not all threads of the block fulfil alike

    # ---- the kernel's beginning

    def parameters(self) -> list[str]:
        out: list[str] = []
        for k, b in enumerate(self.args):
            aligned = self.aligned if not b.pointer else b.dtype.bytes
            alone = "" if b.pointer else "noalias "
            read = "readonly " if b.scope == "in" else ""
            out.append(f"ptr addrspace(1) {alone}{read}align {aligned} %arg{k}")
        return [*out, *(f"i64 %dim{k}" for k in range(len(self.n.dims)))]

    def enter_kernel(self) -> None:
        for k, b in enumerate(self.args):
            self.line(f"%base{k} = addrspacecast ptr addrspace(1) %arg{k} to ptr", entry=True)
            self.base[b.name] = (f"%base{k}", 0)
        for k, s in enumerate(self.n.dims):
            self.env[s] = (f"%dim{k}", 0)

    def position(self, kind: str) -> str:
        """A thread's place in its block, or its block's place in the grid, as an i64."""
        return self._register(kind)[0]

    def position32(self, kind: str) -> str:
        return self._register(kind)[1]

    def _register(self, kind: str) -> tuple[str, str]:
        what, _, axis = kind.partition(".")
        name = f"llvm.nvvm.read.ptx.sreg.{'ctaid' if what == 'block' else 'tid'}.{axis}"
        wide, short = f"%{kind}", f"%{kind}.32"
        if kind not in self.registers:
            most = self.threads[THREADS.index(kind)] if what == "thread" else 2**31 - 1
            self.arith.declares.add(f"declare i32 @{name}()")
            self.line(f"{short} = call range(i32 0, {most}) i32 @{name}()", entry=True)
            self.line(f"{wide} = zext nneg i32 {short} to i64", entry=True)
            self.registers[kind] = wide
        return wide, short

    # ---- loops

    def loop(self, s: Loop, lo: str = "0", hi: str | None = None) -> None:
        if s.kind == "parallel":  # in any order: also one after the other
            s = replace(s, kind="serial")
        super().loop(s, lo, hi)

    def bound(self, s: Loop) -> None:
        if self.lane is not None:
            raise Unsupported(f"{s.kind} {s.name} is inside the lanes {self.lane[0].name}")
        if s.kind in THREADS:
            chain = thread_chain(s)
            last = chain[-1].body[-1]
            if id(last) in self.over and isinstance(last, Store):
                self._combining(chain, last)
                return
        # The only block is a constant, in indices of registers too.
        one = s.kind in BLOCKS and s.extent == 1
        self.env[s.var] = 0 if one else (self.position(s.kind), 0)
        self._where(self.missing(s), partial(self.block, s.body), s.kind in THREADS)
        del self.env[s.var]

    def missing(self, s: Loop) -> str | None:
        """The condition under which a block or thread has an iteration; None where all do."""
        fixed = {v: k for v in D.symbols(s.extent) if isinstance(k := self.env.get(v), int)}
        count = D.substitute(s.extent, fixed)
        if s.kind in THREADS and count == self.threads[THREADS.index(s.kind)]:
            return None
        if s.kind in BLOCKS and D.symbols(s.extent) <= set(self.n.dims):
            return None
        return self.put(f"icmp slt i64 {self.position(s.kind)}, {self.dim(count)}")

    def _where(self, condition: str | None, f: Any, divides: bool) -> None:
        if condition is None:
            f()
            return
        self.divergent += divides
        self.branch(condition, f)
        self.divergent -= divides

    def _combining(self, chain: list[Loop], s: Store) -> None:
        """Thread loops that end in an update which combines the values of threads: all threads
        reach it, those without an iteration with a neutral value."""
        if self.divergent:
            raise Unsupported(f"{s.stage} combines values of threads which not all get there")
        over = self.over[id(s)]
        tests: list[str] = []
        kept: list[str] = []
        for q in chain:
            self.env[q.var] = (self.position(q.kind), 0)
            found = self.missing(q)
            if found is not None:
                tests.append(found)
                kept += [found] if q not in over else []
        there = self._and(tests, 1) if tests else None
        before = chain[-1].body[:-1]
        if before:
            self._where(there, partial(self.block, before), True)
        b = self.buffers[s.buffer]
        x = self.one_of(there, s.value, identity(str(s.function), b.dtype))
        x = self.among_threads(x, str(s.function), b.dtype, [q.kind for q in over])
        if b.scope not in PRIVATE or b.name in {y.name for y in self.args}:
            first = [self.put(f"icmp eq i32 {self.position32(q.kind)}, 0") for q in over]
            kept = [*kept, *first]
        self._where(self._and(kept, 1) if kept else None, partial(self._update, s, x), True)
        self.touch(s)
        for q in chain:
            del self.env[q.var]

    def one_of(self, there: str | None, value: Value, other: Value) -> str:
        if there is None:
            return self.value(value)
        t = self.register(value.dtype)
        return self._either(there, t, lambda: self.value(value), lambda: self.value(other))

    def _update(self, s: Store, x: str) -> None:
        b = self.buffers[s.buffer]
        t = memory_type(b.dtype)
        const, terms, _ = self._terms(self._linear(b, s.index))
        p = self.pointer(b, const, terms)
        old = self.put(f"load {t}, ptr {p}, align {b.dtype.bytes}")
        x = self.arith.apply(str(s.function), b.dtype, 1, [self.arith.widen(old, b.dtype, 1), x])
        self.line(f"store {t} {self.arith.narrow(x, b.dtype, 1)}, ptr {p}, align {b.dtype.bytes}")

    def operand_address(self, x: Operand) -> str:
        """Of an instruction of a whole warp: the thread's own registers, or the address that it
        gives."""
        if not x.index:
            return super().operand_address(x)
        b = self.buffers[x.buffer]
        own = {(k, axis) for k, (axis, _) in self.own.get(b.name, {}).items()}
        if not own.issuperset(x.owners):
            raise Unsupported(
                f"{b.name} is used by other threads than those of an instruction's fragment",
                hint="bind the loops over it to the threads that own its elements",
            )
        if LANE not in self.env:
            along = [self.position(a) for a in WARP]
            rows, lane = "%lane.rows", "%lane"
            self.line(f"{rows} = mul nuw nsw i64 {along[1]}, {WARP['thread.x']}", entry=True)
            self.line(f"{lane} = add nuw nsw i64 {rows}, {along[0]}", entry=True)
            self.env[LANE] = (lane, 0)
        const, terms, _ = self._terms(self._linear(b, x.index))
        return self.pointer(b, const, terms)

    # ---- memory

    def changed(self, body: tuple[Stmt, ...]) -> frozenset[str]:
        """What statements may change for this thread: at a barrier, all that others write."""
        waits = any(isinstance(s, Barrier) for s, _ in walk(body))
        return frozenset(writes(self.n.body)) if waits else super().changed(body)

    def allocate(self, name: str) -> None:
        b = self.buffers[name]
        self.epoch[name] = self.epoch.get(name, 0) + 1
        if b.scope == "shared":
            return
        b = self._part(b)
        size = bytes_of(b, "a thread's own memory")
        if size > PRIVATE_LIMIT:
            raise Unsupported(
                f"{name} takes {size:,} bytes in every thread",
                hint=f"SetScope('{name}', 'shared'), or place it further inside",
            )
        ssa = f"%{self.fresh('m')}"
        count = max(1, size // b.dtype.bytes)
        self.line(f"{ssa} = alloca [{count} x {memory_type(b.dtype)}], align 16", entry=True)
        self.base[name] = (ssa, 0)

    def _part(self, b: Buffer) -> Buffer:
        """What one thread has of a private buffer."""
        own = self.own.get(b.name, {})
        return replace(b, shape=tuple(own.get(k, (d,))[-1] for k, d in enumerate(b.shape)))

    def _linear(self, b: Buffer, index: tuple[Dim, ...]) -> Dim:
        own = self.own.get(b.name)
        if not own:
            return super()._linear(b, index)
        rest: list[Dim] = list(index)
        for k, (axis, size) in own.items():
            here = (self.position(axis), 0)
            found = [v for v in D.symbols(index[k]) if self.env.get(v) == here]
            # A fragment of an instruction begins at the first place of every thread.
            rest[k] = index[k] - size * D.as_int(found[0]) if found else index[k]
        return super()._linear(self._part(b), tuple(rest))

    def alignment(self, b: Buffer, lin: Dim, w: int) -> int:
        """As much of 16 bytes as every term of the index is a multiple of."""
        if b.pointer or self.lane is None:
            return b.dtype.bytes
        fixed = {s: k for s in D.symbols(lin) if isinstance(k := self.env.get(s), int)}
        first = D.substitute(lin, {**fixed, self.lane[0]: 0})
        whole = self.aligned if b.scope in ("in", "out") else 16
        counts = [first] if isinstance(first, int) else [c for _, c in first.terms]
        bytes_ = min(whole, w * b.dtype.bytes)
        while bytes_ > b.dtype.bytes and any(c * b.dtype.bytes % bytes_ for c in counts):
            bytes_ //= 2
        return max(bytes_, b.dtype.bytes)

    def pointer(
        self, b: Buffer, const: int, terms: dict[int, list[tuple[int, tuple[str, ...]]]]
    ) -> str:
        """In swizzled memory: of what moves elements alike, only the rest is looked at."""
        by = b.swizzle
        if by is None:
            return super().pointer(b, const, terms)
        near: dict[int, list[tuple[int, tuple[str, ...]]]] = {}
        far: dict[int, list[tuple[int, tuple[str, ...]]]] = {}
        for level, parts in terms.items():
            for c, factors in parts:
                side = far if c % by.period == 0 else near
                side.setdefault(level, []).append((c, factors))
        total = str(const % by.period)
        for level in sorted(near):
            total = self.put(f"add i64 {self._offset(near[level], level)}, {total}")
        other = self.put(f"lshr i64 {total}, {by.base + by.shift}")
        other = self.put(f"and i64 {other}, {(1 << by.bits) - 1}")
        other = self.put(f"shl i64 {other}, {by.base}")
        place = self.put(f"xor i64 {total}, {other}")
        p = super().pointer(b, const - const % by.period, far)
        return self.put(f"getelementptr {memory_type(b.dtype)}, ptr {p}, i64 {place}")

    def addresses(self, b: Buffer, lin: Dim, w: int) -> str:
        if b.swizzle is not None:
            raise Unsupported(f"lanes far apart in the swizzled {b.name}", hint="no swizzle")
        return super().addresses(b, lin, w)

    def _load_or_zero(self, v: Value, condition: Value, w: int) -> str | None:
        return None  # zeros in memory would be a thread's own, and no faster

    def _prefetch(self, s: Prefetch) -> None:
        """Other threads run while one waits for memory."""

    # ---- waiting and telling

    def shared_variable(self, count: int, t: str) -> str:
        return self.shared.variable(count, t)

    def synchronise(self, s: Barrier | Commit | Wait) -> None:
        if isinstance(s, Barrier):
            if self.divergent:
                raise Unsupported("a barrier that not all threads of a block reach")
            if self.tiles:  # what threads have written is seen by instructions that read tiles
                text = "fence.proxy.async.shared::cta;"
                self.line(f'call void asm sideeffect "{text}", "~{{memory}}"()')
            self.barrier()
            for name in self.mutable:  # what others have written is seen from here on
                self.epoch[name] = self.epoch.get(name, 0) + 1
        elif isinstance(s, Wait):
            self.wait_for_copies(s.pending)
        else:
            self.commit_copies()

    def _while(self, s: While) -> None:
        if s.waits:
            raise Unsupported(f"while {s.name} waits for another block, which may not be running")
        super()._while(s)

    def _report(self, s: Report) -> None:
        raise Unsupported("reports and assertions inside code for a GPU")


def shared_bytes(k: Kernels) -> int:
    """What the launches ask for, the most of them."""
    return max((x.shared for x in k.launches), default=0)


def blocks_of(x: Launch, sizes: dict[str, int]) -> tuple[int, int, int]:
    """How many blocks a launch has for given sizes."""
    a, b, c = (int(D.evaluate(d, sizes)) for d in x.blocks)
    return a, b, c


def scratch_bytes(b: Buffer, sizes: dict[str, int]) -> int:
    return prod(int(D.evaluate(d, sizes)) for d in b.shape) * b.dtype.bytes
