"""Nest with blocks and threads → LLVM text for a GPU: a kernel per launch, and how it is launched.

What bound loops, shared memory and barriers mean is said in kernel/threads.py; the statements
inside are written by llvm/body.py. A kernel's parameters are the addresses of the buffers that it
uses and the sizes that are not known before. A private buffer of which every thread touches its own
part has memory for that part only, which are registers where its indices are constants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tilewright.base.errors import Unsupported
from tilewright.ir import dim as D
from tilewright.ir.combine import identity
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Load, Value
from tilewright.ir.target import Grid, Target
from tilewright.kernel.early import early_inputs
from tilewright.kernel.fragments import LANE, WARP
from tilewright.kernel.group import Buffer
from tilewright.kernel.intrinsic import Operand
from tilewright.kernel.nest import (
    BLOCKS,
    THREADS,
    Acquire,
    Alloc,
    Await,
    Barrier,
    Fence,
    Loop,
    Nest,
    Release,
    Report,
    Stmt,
    Store,
    Wait,
    While,
    mentions,
    walk,
)
from tilewright.kernel.roles import consumers, producer, role_loop
from tilewright.kernel.softmax_terms import softmax_terms
from tilewright.kernel.threads import (
    apart_in_time,
    block_size,
    combined,
    grid_of,
    launches,
    thread_chain,
)
from tilewright.llvm.async_copies import AsyncCopies
from tilewright.llvm.awaiting import AWAITED, Awaiting
from tilewright.llvm.body import Body
from tilewright.llvm.bulk_copies import BARRIER, MAP, BulkCopies, barriers
from tilewright.llvm.combine import ThreadSums
from tilewright.llvm.grid_math import GridArith, only_terms, rounds_factors
from tilewright.llvm.launch import Kernels, Launch
from tilewright.llvm.machine import Traits
from tilewright.llvm.own_parts import PRIVATE, own_parts
from tilewright.llvm.positions import Positions
from tilewright.llvm.scalar_types import memory_type, register_type
from tilewright.llvm.shared_memory import Shared, bytes_of, check_lanes
from tilewright.llvm.staging import Staging
from tilewright.llvm.tile_fences import TileFences
from tilewright.llvm.writer import Metadata

# Bytes of one thread's own buffer; beyond this it is no use of a GPU.
PRIVATE_LIMIT = 64 * 1024
# Calls of one scalar function in a kernel that are written out: a call costs registers and time.
INLINED = 1024
# The shared memory of a kernel that runs tasks, which these use one after the other.
SHARED = "tw_tasks"
# Warps of a producer that gives up registers, which a group does together, and what it keeps.
PRODUCERS, FEWEST = 4, 24
# What is memory of all blocks, where it is allocated outside of them.
GLOBAL = (*PRIVATE, "counter")
# Nothing is prefetched: other threads run while one waits.
TRAITS = Traits(
    short=True,
    early=True,
    scope='syncscope("device") ',
    prefetches=False,
    barriers=True,
    aligned_vector=16,
)


def emit_kernels(
    n: Nest, target: Target, alignment: int = 16, tasks: bool = False, waits: bool = False
) -> Kernels:
    """The module of a nest that is legal for the target (kernel/legal/). Arguments whose addresses
    are not multiples of 16 bytes need one that was made with a smaller `alignment`. As `tasks` its
    launches are functions that a block of another kernel calls (llvm/tasks.py). A kernel that
    `waits` for earlier ones itself does it where it begins, unless its nest says where."""
    grid = target.grid
    if grid is None:
        raise Unsupported(f"{target.name} has no grid", hint="compile for a target such as cuda:90")
    metadata = Metadata()
    found = [
        _Module(n, target, grid, launch, alignment, metadata, tasks, waits)
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
        task: bool,
        waits: bool,
    ) -> None:
        self.task = task
        self.n, self.target, self.grid, self.alignment = n, target, grid, alignment
        self.metadata = metadata
        self.launch = launch
        results = [b.dtype for b in n.buffers if b.scope == "out"]
        short = all(d.is_float and d.bits <= 16 for d in results) or rounds_factors(launch)
        strict = n.precision == "strict"
        terms = frozenset() if strict else only_terms(launch)
        has_bf16 = "bf16" in grid.has
        softmax = frozenset() if strict or short else softmax_terms(n, launch)
        self.arith = GridArith(
            True, strict, has_bf16, often=INLINED, short=short, terms=terms, softmax=softmax
        )
        self.early = early_inputs(grid_of(launch)[1])
        said = any(isinstance(s, Await) for s, _ in walk(launch))
        possible = "dependents" in grid.has and not task
        self.waits = possible and (said or waits)
        self.waits_first = possible and waits and not said
        self.threads = x, y, z = _threads_of(launch, grid)
        self.roles = role_loop(launch) is not None
        # Registers of the threads, some of which the producer gives them.
        self.registers = _pragma(launch, "registers") if self.roles else 0
        # The producer is a warp behind those of the block's threads; a group gives up registers.
        more = PRODUCERS if self.registers else 1
        self.all_threads = (x, y, z + more) if self.roles else self.threads
        if self.roles and (task or x * y != grid.warp):
            raise Unsupported("a loop with roles in a task, or where warps are not along thread.z")

    def kernel(self, symbol: str) -> tuple[list[str], Launch]:
        used = frozenset().union(*(mentions(s) for s in self.launch))
        outermost = {s.buffer for s in self.n.body if isinstance(s, Alloc)}
        own = {s.buffer for s in self.launch if isinstance(s, Alloc)}
        args = [
            b
            for b in self.n.buffers
            if b.name in used
            and (b.scope in ("in", "out") or (b.scope in GLOBAL and b.name in outermost))
        ]
        make = partial(_Thread, self, symbol)
        body = Body(self.n, self.arith, args, self.target, self.metadata, TRAITS, make)
        k = body.machine
        assert isinstance(k, _Thread)
        k.enter()
        k.bulk.enter()
        if self.waits_first:
            k.awaiting.meet()
        k.run(tuple(s for s in self.launch if not (isinstance(s, Alloc) and s.buffer in own)))
        k.leave()
        loops, _ = grid_of(self.launch)
        blocks = {x.kind: _count(x, set(self.n.dims)) for x in loops}
        resident = _pragma(self.launch, "resident") or min(self.registers, 1)
        more = f' "nvvm.minctasm"="{resident}"' if resident else ""
        head = self._head(symbol, k.parameters(), f"{k.bulk.attribute}{more}")
        lines = [*k.shared.globals(), head, *k.fences.kept(body.lines())]
        gx, gy, gz = (blocks.get(axis, 1) for axis in BLOCKS)
        names, boxes = tuple(b.name for b in args), tuple(k.bulk.boxes)
        shared, together = k.shared.dynamic, k.bulk.cluster_blocks
        early = tuple(x for x in names if x in self.early)
        size = (gx, gy, gz), self.all_threads
        made = Launch(symbol, *size, shared, names, boxes, together, early, self.waits)
        if self.task and boxes:
            raise Unsupported(f"{symbol} takes tensor maps, which belong to a launch")
        if self.task and any(b.scope == "counter" for b in args):
            raise Unsupported(f"{symbol} counts its blocks, which end one by one")
        return lines, made

    def _head(self, symbol: str, parameters: list[str], more: str) -> str:
        if self.task:
            place = ", ".join(f"i32 %task.{axis}" for axis in "xyz")
            given = ", ".join((*parameters, place, *([AWAITED] if self.early else [])))
            return f"define internal void @{symbol}({given}) convergent noinline nounwind {{"
        size = ",".join(map(str, self.all_threads))
        head = f"define ptx_kernel void @{symbol}({', '.join(parameters)})"
        return f'{head} "nvvm.reqntid"="{size}"{more} nounwind {{'


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


def _pragma(launch: tuple[Stmt, ...], key: str) -> int:
    """What the loops over blocks say; 0: nothing."""
    return max((dict(x.pragmas).get(key, 0) for x in grid_of(launch)[0]), default=0)


def _count(x: Loop, dims: set[D.Sym]) -> Dim:
    """Blocks along a loop: of a ragged one, as many as it has at most."""
    if D.symbols(x.extent) <= dims:
        return x.extent
    most = D.bounds(x.extent)[1]
    if most >= D.INF:
        raise Unsupported(f"the number of blocks of {x.name} is not known before the launch")
    return most


class _Thread:
    """How a thread of a grid runs the statements of one launch."""

    def __init__(self, m: _Module, symbol: str, body: Body) -> None:
        self.body, self.w, self.c, self.a = body, body.writer, body.context, body.addresses
        self.threads, self.aligned = m.threads, m.alignment
        # Memory that earlier launches may write until they are waited for.
        waits = bool(m.early) or m.waits
        self.changing = {b.name for b in body.context.args if waits and b.name not in m.early}
        buffers = self.c.buffers
        # Numbers of a tile kernel are given themselves, not as memory.
        tile = any(b.pointer for b in m.n.buffers)
        self.values = {b.name for b in self.c.args if tile and b.scope == "in" and not b.shape}
        allocated = [s.buffer for s, _ in walk(m.launch) if isinstance(s, Alloc)]
        in_shared = [buffers[x] for x in allocated if buffers[x].scope == "shared"]
        shared = list(dict.fromkeys(in_shared))
        self.staging = Staging(m.n, m.launch, m.threads[2])
        self.shared = Shared(
            SHARED if m.task else symbol,
            shared,
            m.grid,
            apart_in_time(m.n, m.launch),
            BARRIER * barriers(m.launch),
            self.staging.bytes,
            common=m.task,
        )
        for b in shared:
            self.a.base[b.name] = (self.shared.places[b.name], 0)
        self.over = {id(c.store): c.over for c in combined(m.launch)}
        given = {b.name for b in self.c.args}  # memory from outside the launch is common to all
        local = {x: b for x, b in buffers.items() if x not in given}
        self.own = own_parts(m.n, m.launch, local)
        self.positions = Positions(self.w, m.all_threads, m.task)
        self.awaiting = Awaiting(self.w, self.positions, self.c.args, m.task, m.waits)
        some = m.task or m.roles
        self.sums = ThreadSums(self.w, self.positions, self.shared, m.threads, some)
        self.roles, self.registers = m.roles, m.registers
        copies = AsyncCopies(self.w, self.c, self.a, body.values, m.grid)
        self.bulk = BulkCopies(body, m.launch, self, copies, self.shared.barriers)
        self.sums.cluster = self.bulk.cluster is not None
        self.a.part, self.a.aligned = self._own_place, self._alignment
        check_lanes(m.launch, buffers)
        self.fences = TileFences(self.w, m.launch, *self.bulk.tiles_of_threads())
        self.divergent = 0  # conditions that not all threads of the block fulfil alike
        self.in_order = _begun_early(m.launch)

    # ---- the kernel's beginning

    def parameters(self) -> list[str]:
        out: list[str] = []
        for k, b in enumerate(self.c.args):
            if b.name in self.values:
                out.append(f"i64 %arg{k}")
                continue
            aligned = self.aligned if not b.pointer else max(b.alignment, b.dtype.bytes)
            changing = b.name in self.changing
            alone = "" if b.pointer or changing else "noalias "
            read = b.scope == "in" and b.name not in self.in_order and not changing
            read = "readonly " if read else ""
            out.append(f"ptr addrspace(1) {alone}{read}align {aligned} %arg{k}")
        out += [f"i64 %dim{k}" for k in range(len(self.c.n.dims))]
        return [*out, *(f"{MAP} %map{k}" for k in range(len(self.bulk.boxes)))]

    def enter(self) -> None:
        for k, b in enumerate(self.c.args):
            if b.name in self.values:
                self.w.line(f"%base{k} = alloca i64, align 8", entry=True)
                self.w.line(f"store i64 %arg{k}, ptr %base{k}, align 8", entry=True)
            else:
                cast = f"addrspacecast ptr addrspace(1) %arg{k} to ptr"
                self.w.line(f"%base{k} = {cast}", entry=True)
            self.a.base[b.name] = (f"%base{k}", 0)
        for k, s in enumerate(self.c.n.dims):
            self.c.env[s] = (f"%dim{k}", 0)

    def run(self, body: tuple[Stmt, ...]) -> None:
        """What the threads do; next to them, the producer of a loop with roles."""
        if not self.roles:
            self.body.block(body)
            return
        z = self.positions.short("thread.z")
        mine = self.w.put(f"icmp eq i32 {z}, {self.threads[2]}")
        with_copies = partial(self.bulk.produce, producer(body))
        threads = partial(self.body.block, consumers(body))
        if not self.registers:
            self.w.branch(mine, with_copies, threads)
            return

        def others() -> None:
            self._registers("dec", FEWEST)
            self.w.branch(mine, with_copies)

        def own() -> None:
            self._registers("inc", self.registers)
            threads()

        self.w.branch(self.w.put(f"icmp uge i32 {z}, {self.threads[2]}"), others, own)

    def _registers(self, more: str, count: int) -> None:
        text = f"setmaxnreg.{more}.sync.aligned.u32 {count};"
        self.w.line(f'call void asm sideeffect "{text}", "~{{memory}}"() convergent')

    def leave(self) -> None:
        """A block of a cluster stays until all have got what it has asked for; where there are
        roles its producer waits for that."""
        if self.sums.cluster and not self.roles:
            self.sums.meet()

    # ---- loops

    def parallel(self, s: Loop) -> None:
        """Iterations in any order: also one after the other."""
        self.body.loop(replace(s, kind="serial"))

    def bound(self, s: Loop) -> None:
        if self.c.lane is not None:
            raise Unsupported(f"{s.kind} {s.name} is inside the lanes {self.c.lane[0].name}")
        if s.kind in THREADS:
            chain = thread_chain(s)
            last = chain[-1].body[-1]
            if id(last) in self.over and isinstance(last, Store):
                self._combining(chain, last)
                return
        # The only block is a constant, in indices of registers too.
        one = s.extent == 1  # whoever runs it is number 0
        self.c.env[s.var] = 0 if one else (self.positions.long(s.kind), 0)
        self._where(self.missing(s), partial(self.body.block, s.body), s.kind in THREADS)
        del self.c.env[s.var]

    def missing(self, s: Loop) -> str | None:
        """The condition under which a block or thread has an iteration; None where all do."""
        fixed = {v: k for v in D.symbols(s.extent) if isinstance(k := self.c.env.get(v), int)}
        count = D.substitute(s.extent, fixed)
        if s.kind in THREADS and count == self.threads[THREADS.index(s.kind)]:
            return None
        if s.kind in BLOCKS and D.symbols(s.extent) <= set(self.c.n.dims):
            return None
        here, end = self.positions.long(s.kind), self.body.indices.dim(count)
        return self.w.put(f"icmp slt i64 {here}, {end}")

    def _where(self, condition: str | None, f: Callable[[], None], divides: bool) -> None:
        if condition is None:
            f()
            return
        self.divergent += divides
        self.w.branch(condition, f)
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
            self.c.env[q.var] = (self.positions.long(q.kind), 0)
            found = self.missing(q)
            if found is not None:
                tests.append(found)
                kept += [found] if q not in over else []
        there = self.w.all_of(tests, 1) if tests else None
        before = chain[-1].body[:-1]
        if before:
            self._where(there, partial(self.body.block, before), True)
        b, function = self.c.buffers[s.buffer], str(s.function)
        x = self.one_of(there, s.value, identity(function, b.dtype))
        x = self.sums.among_threads(x, function, b.dtype, [q.kind for q in over])
        if b.scope not in PRIVATE or b.name in {y.name for y in self.c.args}:
            kept += [self.w.put(f"icmp eq i32 {self.positions.short(q.kind)}, 0") for q in over]
        condition = self.w.all_of(kept, 1) if kept else None
        self._where(condition, lambda: self._update(s, b, x), True)
        self.c.touch(s)
        for q in chain:
            del self.c.env[q.var]

    def one_of(self, there: str | None, value: Value, other: Value) -> str:
        values = self.body.values
        if there is None:
            return values.value(value)
        t = register_type(value.dtype)
        return self.w.either(there, t, lambda: values.value(value), lambda: values.value(other))

    def _update(self, s: Store, b: Buffer, x: str) -> None:
        self.body.accesses.store(b, x, self.a.of(b, s.index), 1, s.function)

    def fragment(self, x: Operand) -> str:
        """Of an instruction of a whole warp: the thread's own registers, or the address that it
        gives."""
        b = self.c.buffers[x.buffer]
        own = {(k, axis) for k, (axis, _) in self.own.get(b.name, {}).items()}
        if not own.issuperset(x.owners):
            raise Unsupported(
                f"{b.name} is used by other threads than those of an instruction's fragment",
                hint="bind the loops over it to the threads that own its elements",
            )
        if LANE not in self.c.env:
            along = [self.positions.long(a) for a in WARP]
            rows, lane = "%lane.rows", "%lane"
            self.w.line(f"{rows} = mul nuw nsw i64 {along[1]}, {WARP['thread.x']}", entry=True)
            self.w.line(f"{lane} = add nuw nsw i64 {rows}, {along[0]}", entry=True)
            self.c.env[LANE] = (lane, 0)
        return self.a.of(b, x.index)

    def staged(self) -> str:
        return self.staging.address(self.w, self.positions, self.shared.staged)

    # ---- memory

    def allocate(self, name: str) -> None:
        b = self.c.buffers[name]
        if b.scope == "shared":
            return
        b = self.part(b)
        size = bytes_of(b, "a thread's own memory")
        if size > PRIVATE_LIMIT:
            raise Unsupported(
                f"{name} takes {size:,} bytes in every thread",
                hint=f"SetScope('{name}', 'shared'), or place it further inside",
            )
        ssa = f"%{self.w.fresh('m')}"
        count = max(1, size // b.dtype.bytes)
        self.w.line(f"{ssa} = alloca [{count} x {memory_type(b.dtype)}], align 16", entry=True)
        self.a.base[name] = (ssa, 0)

    def before(self, s: Stmt) -> None:
        self.fences.before(s)

    def release(self, names: list[str]) -> None:
        """A thread's memory is there as long as the thread."""

    def part(self, b: Buffer) -> Buffer:
        """What one thread has of a private buffer."""
        own = self.own.get(b.name, {})
        return replace(b, shape=tuple(own.get(k, (d,))[-1] for k, d in enumerate(b.shape)))

    def _own_place(self, b: Buffer, index: tuple[Dim, ...]) -> tuple[Buffer, tuple[Dim, ...]]:
        own = self.own.get(b.name)
        if not own:
            return b, index
        rest: list[Dim] = list(index)
        for k, (axis, size) in own.items():
            here = (self.positions.long(axis), 0)
            found = [v for v in D.symbols(index[k]) if self.c.env.get(v) == here]
            # A fragment of an instruction begins at the first place of every thread.
            rest[k] = index[k] - size * D.as_int(found[0]) if found else index[k]
        return self.part(b), tuple(rest)

    def _alignment(self, b: Buffer) -> int:
        if b.pointer:
            return b.alignment
        return self.aligned if b.scope in ("in", "out") else 16

    def copy(self, s: Store) -> bool:
        done = self.bulk.plain.copy(s)
        if not done:
            self.fences.not_copied(s)
        return done

    def tile(self, s: Loop) -> bool:
        return self.bulk.tile(s)

    # ---- waiting and reporting

    def synchronise(self, s: Fence) -> None:
        if isinstance(s, Barrier):
            if self.divergent:
                raise Unsupported("a barrier that not all threads of a block reach")
            self.fences.barrier(s)
            self.sums.barrier()
            self.c.renew(self.c.mutable)  # what others have written is seen from here on
        elif isinstance(s, Wait) and s.products:
            self.bulk.wait_for_products(s)
        elif isinstance(s, Wait):
            self.bulk.wait(s.pending)
        elif isinstance(s, Acquire):
            self.bulk.acquire(s.versions)
        elif isinstance(s, Release):
            self.bulk.release(s.pending)
        elif isinstance(s, Await):
            self.awaiting.wait(s)
            if self.awaiting.task:
                self.sums.barrier()
        else:
            self.bulk.commit()

    def refuse(self, s: While | Report) -> None:
        if isinstance(s, While):
            raise Unsupported(f"while {s.name} waits for another block, which may not be running")
        raise Unsupported("reports and assertions inside code for a GPU")


def _begun_early(launch: tuple[Stmt, ...]) -> frozenset[str]:
    """Buffers that are read at places that are read themselves, for later: two reads one after the
    other, begun early on purpose. Of memory that it knows to be constant the assembler would begin
    them where they are used, after barriers."""
    found: set[str] = set()
    for s, _ in walk(launch):
        if isinstance(s, Store) and isinstance(s.value, Load):
            if any(True for i in s.value.index for _ in D.data_values(i)):
                found |= set(map(str, s.value.sources))
    return frozenset(found)
