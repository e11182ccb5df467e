"""What runs asynchronously to the threads of a block on sm_90a: boxes of tensors that the copy
engine brings to shared memory, and products of groups of warps.

One thread issues the copy of a box. Each group of copies has a memory barrier, of a ring of them:
the bytes of the group's copies are counted there, and every thread waits for it. Groups are
numbered by a counter that all threads have, so Commit and Wait need not know of loops. Blocks of
a cluster share the copy of a box that all of them need: each brings some of its rows to all. Their
barriers are those of the cluster, so that none writes what another one still reads. In a loop with
roles (kernel/roles.py) there is one memory barrier more for each version: every warp arrives there
when it has released it, at those of all blocks of its cluster, and the producer waits. Where the
copy engine cannot be used (addresses or rows that are no multiples of 16 bytes) the threads copy
the box.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from tilewright.base.errors import Unsupported
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.kernel.box_copies import by_engine
from tilewright.kernel.fragments import LANES
from tilewright.kernel.group import Buffer
from tilewright.kernel.intrinsic import INTRINSICS, Intrinsic, Match, Operand, match
from tilewright.kernel.nest import (
    THREADS,
    Alloc,
    Loop,
    Stmt,
    Store,
    Wait,
    bodies,
    sources,
    substitute_all,
    walk,
    writes,
)
from tilewright.kernel.roles import role_loop, versions_of
from tilewright.kernel.threads import grid_of
from tilewright.kernel.views import FARTHEST
from tilewright.llvm.async_copies import AsyncCopies
from tilewright.llvm.body import Body
from tilewright.llvm.combine import ThreadSums
from tilewright.llvm.positions import Positions

BARRIER = 8  # bytes of a memory barrier
SHARED = "ptr addrspace(3)"
MAP = 'ptr byval([128 x i8]) align 64 "nvvm.grid_constant"'
LARGEST = 2**31  # of an axis that the copy engine takes
MOST_AXES = 5  # that it takes


@dataclass(frozen=True)
class Box:
    """A tensor map that a launch needs: of which buffer, and the box that is copied at a time, its
    rows swizzled over so many bytes. `strides` are those of an array behind a pointer, in elements,
    `first` the element that it begins with."""

    buffer: str
    dtype: str
    item: int  # bytes of an element
    shape: tuple[Dim, ...]
    box: tuple[int, ...]
    swizzle: int
    strides: tuple[Dim, ...] = ()
    first: Dim = 0

    def described(self, address: int, sizes: Mapping[str, int]) -> tuple[int, list[int], list[int]]:
        """Where the tensor begins, its shape, and its strides but the last in bytes: of these sizes
        of a launch."""
        shape = [int(D.evaluate(d, sizes)) for d in self.shape]
        if self.strides and max(shape) >= FARTHEST:
            raise Unsupported(f"an array {shape} is too long for the copy engine")
        steps = [int(D.evaluate(d, sizes)) * self.item for d in self.strides[:-1]]
        if not self.strides:
            step = self.item
            for n in reversed(shape[1:]):
                step *= n
                steps.insert(0, step)
        return address + self.item * int(D.evaluate(self.first, sizes)), shape, steps


def instructions(launch: tuple[Stmt, ...]) -> list[tuple[Loop, Intrinsic]]:
    """The instructions of a launch, each where it stands."""
    loops = (s for s, _ in walk(launch) if isinstance(s, Loop) and s.instruction)
    return [(s, INTRINSICS[s.instruction]) for s in loops]


def ring(launch: tuple[Stmt, ...]) -> int:
    """How many memory barriers a launch needs, a power of two: groups that are on their way, and
    those that a slow thread may still be waiting for."""
    if not any(i.engine for _, i in instructions(launch)):
        return 0
    if versions_of(launch):
        return versions_of(launch)
    waits = [s.pending for s, _ in walk(launch) if isinstance(s, Wait) and not s.products]
    return 1 << (max(waits, default=0) + 2).bit_length()


def barriers(launch: tuple[Stmt, ...]) -> int:
    """All memory barriers: in a loop with roles, those by which versions are released too."""
    return ring(launch) * (1 if role_loop(launch) is None else 2)


def cluster_of(launch: tuple[Stmt, ...]) -> tuple[Loop | None, int]:
    """The loop over blocks that has clusters, and how many blocks one has."""
    for x in grid_of(launch)[0]:
        size = dict(x.pragmas).get("cluster", 1)
        if size > 1:
            return x, size
    return None, 1


class Block(Protocol):
    """What is known of the block of threads."""

    aligned: int
    threads: tuple[int, int, int]
    positions: Positions
    sums: ThreadSums

    def part(self, b: Buffer) -> Buffer:
        """What one thread has of a private buffer."""
        ...


class BulkCopies:
    def __init__(
        self,
        body: Body,
        launch: tuple[Stmt, ...],
        block: Block,
        plain: AsyncCopies,
        barriers: str,
    ) -> None:
        """`barriers` is the address of the first memory barrier."""
        self.body, self.w, self.c, self.a = body, body.writer, body.context, body.addresses
        self.put, self.line = self.w.put, self.w.line
        self.launch, self.block, self.plain = launch, block, plain
        self.boxes: list[Box] = []
        self.barriers, self.ring = barriers, ring(launch)
        # Clusters are for what the copy engine brings: without it there are none.
        self.cluster, self.cluster_blocks = cluster_of(launch) if self.ring else (None, 1)
        shape = f"{self.cluster_blocks},1,1"
        self.attribute = "" if self.cluster is None else f' "nvvm.cluster_dim"="{shape}"'
        self.elects = False  # is the issuing thread known?
        self.roles = role_loop(launch) is not None
        self.producing = False  # is the producer's code written?
        self.by_hand = False  # are there boxes that threads copy?
        # Are there copies that threads issue themselves?
        self.plain_copies = any(
            isinstance(s, Store) and s.asynchronous and not by_engine(p) for s, p in walk(launch)
        )
        own = {s.buffer for s, _ in walk(launch) if isinstance(s, Alloc)}
        found = [match(i, self.c.n, s) for s, i in instructions(launch) if i.asynchronous]
        names = [x.operands[-1].buffer for x in found if isinstance(x, Match)]
        # Private buffers that asynchronous instructions write.
        self.results = [x for x in dict.fromkeys(names) if x in own]
        self.meanwhile = _meanwhile(launch)
        self.together = _together(launch)
        self.going = 0  # products that are not waited for yet

    # ---- the kernel's beginning

    def enter(self) -> None:
        """Memory barriers, and the counters of groups."""
        if not self.ring:
            return
        for name in ("issued", "arrived", *(["released"] if self.roles else [])):
            self.line(f"%{name} = alloca i32, align 4", entry=True)
            self.line(f"store i32 0, ptr %{name}, align 4", entry=True)
        self._elected(self._made)
        self.block.sums.meet()

    def _made(self) -> None:
        x, y, z = self.block.threads
        warps = x * y * z // LANES * self.cluster_blocks
        for k in range(barriers(self.launch)):
            p = f"getelementptr (i64, {SHARED} {self.barriers}, i64 {k})"
            count = 1 if k < self.ring else warps
            given = f"{SHARED} {p}, i32 {count}"
            self._asm("mbarrier.init.shared::cta.b64 [$0], $1;", "l,n", given)
        self._asm("fence.mbarrier_init.release.cluster;", "", "")

    def _asm(self, text: str, kinds: str, given: str, convergent: bool = False) -> None:
        kinds = f"{kinds},~{{memory}}" if kinds else "~{memory}"
        end = " convergent" if convergent else ""
        self.line(f'call void asm sideeffect "{text}", "{kinds}"({given}){end}')

    def _elected(self, f: Callable[[], None]) -> None:
        """What one thread of the block does: of the first warp the one that it elects, which the
        assembler takes for a single one."""
        if not self.elects:
            self.elects = True
            x, y, z = (self.block.positions.short(a) for a in THREADS)
            if self.block.threads[0] * self.block.threads[1] == LANES:
                name = "@llvm.nvvm.elect.sync"
                self.w.arith.declares.add(f"declare {{ i32, i1 }} {name}(i32) convergent")
                self.line(f"%elected.one = call {{ i32, i1 }} {name}(i32 -1)", entry=True)
                self.line("%elected.lane = extractvalue { i32, i1 } %elected.one, 1", entry=True)
                self.line(f"%elected.warp = icmp eq i32 {z}, 0", entry=True)
                self.line("%elected = and i1 %elected.lane, %elected.warp", entry=True)
            else:
                self.line(f"%elected.xy = or i32 {x}, {y}", entry=True)
                self.line(f"%elected.xyz = or i32 %elected.xy, {z}", entry=True)
                self.line("%elected = icmp eq i32 %elected.xyz, 0", entry=True)
        self.w.branch("%elected.lane" if self.producing else "%elected", f)

    def produce(self, body: tuple[Stmt, ...]) -> None:
        """The code of the producer, which is a warp: one thread of it issues copies. In a cluster
        it stays until everything is released: other blocks arrive here as late as that, and what it
        has asked for is there by then, in all blocks."""
        self.producing = True
        self.body.block(body)
        if self.cluster is not None:
            end = self.put("load i32, ptr %issued, align 4")
            self._up_to("issued", self.put(f"add i32 {end}, {self.ring}"), self._free)
        self.producing = False

    # ---- copies

    def tile(self, s: Loop) -> bool:
        """Writes a copy of the copy engine's; False: it is another instruction."""
        i = INTRINSICS[s.instruction]
        if not i.engine:
            if i.asynchronous:
                self._begin(s, i)
            return False
        found = match(i, self.c.n, s)
        assert isinstance(found, Match), found.reason
        blocks = self._shared_by(found)
        box = self.box_of(found, blocks)
        if box is None:
            self._by_threads(s)
            return True
        self.body.instructions.require(i)
        if box not in self.boxes:
            self.boxes.append(box)
        source, to = found.operands
        into = self.a.at(self.c.buffers[to.buffer], to.base)
        shape = self._shape(source)
        index = [source.index[k] for k in reversed(_axes(shape))]
        places = [self.put(f"trunc i64 {self._in_reach(d)} to i32") for d in index]
        args = [
            ("ptr", "%s", f"%map{self.boxes.index(box)}"),
            ("ptr", "%d", into),
            *(("i32", f"%s.{k}", x) for k, x in enumerate(places)),
            (SHARED, "%arrived", self._of_group(self.put("load i32, ptr %issued, align 4"))),
        ]
        name = f"{i.name}.{len(places)}.{'_'.join(map(str, found.constants.values()))}"
        if blocks > 1:
            name = f"{name}.{blocks}"
            here = self.block.positions.short("block.x")
            args.append(("i32", "%rank", self.put(f"and i32 {here}, {blocks - 1}")))
        head = ", ".join(f"{t} {x}" for t, x, _ in args)
        known = {**found.constants, "cluster": blocks, "axes": len(places)}
        body = i.emission(known).rstrip()
        self.w.arith.defines[name] = (
            f'define internal void @"{name}"({head}) alwaysinline nounwind {{\n{body}\n}}'
        )
        given = ", ".join(f"{t} {v}" for t, _, v in args)
        self._elected(lambda: self.line(f'call void @"{name}"({given})'))
        self.c.touch(s)
        return True

    def _shared_by(self, found: Match) -> int:
        """How many blocks get the same box and bring equal parts of its rows."""
        x, count = self.cluster, self.cluster_blocks
        rows = found.constants["i"] or 0
        source, to = found.operands
        # Swizzled memory repeats after 8 rows; blocks move along the last axis but one.
        if x is None or rows % (8 * count) or source.box[-2:-1] != (rows,):
            return 1
        each = D.the_sym(D.var(self.w.fresh("rank"), count))
        number = count * D.var(self.w.fresh("cluster"), D.floordiv(x.extent, count))
        same = {x.var: number + D.as_int(each)}
        index = [D.substitute(d, same) for d in (*source.index, to.base)]
        return 1 if any(each in D.symbols(d) for d in index) else count

    def _shape(self, source: Operand) -> tuple[Dim, ...]:
        return self.c.buffers[source.buffer].shape if source.view is None else source.view.shape

    def _in_reach(self, d: Dim) -> str:
        """A place as the engine takes it. One that is far outside, which is not known to fit into
        32 bits, stays outside."""
        place = self.body.indices.dim(d)
        low, high = D.bounds(d)
        for far, most, name in ((high, FARTHEST, "smin"), (-low, -FARTHEST, "smax")):
            if far > FARTHEST:
                self.w.arith.declares.add(f"declare i64 @llvm.{name}.i64(i64, i64)")
                place = self.put(f"call i64 @llvm.{name}.i64(i64 {place}, i64 {most})")
        return place

    def box_of(self, found: Match, blocks: int = 1) -> Box | None:
        """The instruction of the copy engine, where it takes the tensor. Blocks of a cluster share
        its rows."""
        source, to = found.operands
        b, given = self.c.buffers[source.buffer], self._shape(source)
        steps: list[Dim] = [b.dtype.bytes]
        for d in reversed(given[1:]):
            steps.append(steps[-1] * d)
        whole = source.view is not None or all(_multiple(x, 16) for x in steps[1:])
        small = source.view is not None or all(D.bounds(d)[1] < LARGEST for d in given)
        axes = _axes(given)
        if self.block.aligned % 16 or not whole or not small or len(axes) > MOST_AXES:
            return None
        box = (
            (*source.box[:-2], source.box[-2] // blocks, source.box[-1])
            if blocks > 1
            else source.box
        )
        swizzle = self.c.buffers[to.buffer].swizzle
        over = 0 if swizzle is None else b.dtype.bytes << (swizzle.base + swizzle.bits)
        shape, sizes = tuple(given[k] for k in axes), tuple(box[k] for k in axes)
        made = Box(b.name, str(b.dtype), b.dtype.bytes, shape, sizes, over)
        if source.view is None:
            return made
        strides = tuple(source.view.strides[k] for k in axes)
        return replace(made, strides=strides, first=source.view.first)

    def _by_threads(self, s: Loop) -> None:
        """The threads of the block, or of the producer, share the elements."""
        self.by_hand = True
        chain = [s]
        while isinstance(inner := chain[-1].body[0], Loop):
            chain.append(inner)
        wide = (*self.block.threads[:2], 1) if self.producing else self.block.threads
        threads, count = wide[0] * wide[1] * wide[2], 1
        for x in chain:
            assert isinstance(x.extent, int)
            count *= x.extent
        me = D.the_sym(D.var(self.w.fresh("me"), threads))
        turn = D.var(self.w.fresh("turn"), -(-count // threads))
        place: Dim = D.as_int(me) + threads * turn
        table: dict[D.Sym, Dim] = {}
        rest = place
        for x in reversed(chain):
            table[x.var] = D.mod(rest, x.extent)
            rest = D.floordiv(rest, x.extent)
        store = chain[-1].body[0]
        assert isinstance(store, Store)
        plain = Store(store.stage, store.buffer, store.index, store.value)
        body = tuple(substitute_all((plain,), table))
        x, y, z = (self.block.positions.long(a) for a in THREADS)
        if not self.producing:
            row = self.put(f"mul nuw nsw i64 {z}, {wide[1]}")
            y = self.put(f"add nuw nsw i64 {row}, {y}")
        row = self.put(f"mul nuw nsw i64 {y}, {wide[0]}")
        self.c.env[me] = (self.put(f"add nuw nsw i64 {row}, {x}"), self.w.depth)
        if count % threads:
            raise Unsupported(f"{s.name} copies {count} elements by {threads} threads")
        self.body.loop(Loop(D.the_sym(turn), "serial", body))
        del self.c.env[me]

    def tiles_of_threads(self) -> tuple[set[str], set[str]]:
        """What threads write in shared memory that instructions read by themselves, and which of it
        not only by asynchronous stores."""
        read: set[str] = set()
        for s, i in instructions(self.launch):
            found = match(i, self.c.n, s)
            if not i.engine and i.tiles and isinstance(found, Match):
                read |= {x.buffer for x in found.operands if x.name in i.tiles}
        written: set[str] = set()
        at_once: set[str] = set()
        for s, p in walk(self.launch):
            if bodies(s) or read.isdisjoint(writes((s,))):
                continue
            whole = next((q for q in p if q.instruction), None)
            found = None if whole is None else match(INTRINSICS[whole.instruction], self.c.n, whole)
            if not by_engine(p) or not isinstance(found, Match) or self.box_of(found) is None:
                written |= writes((s,)) & read
                if not (isinstance(s, Store) and s.asynchronous):
                    at_once |= writes((s,)) & read
        return written, at_once

    # ---- groups of copies

    def _of_group(self, number: str) -> str:
        """The memory barrier of a group."""
        slot = self.put(f"urem i32 {number}, {self.ring}")
        return self.put(f"getelementptr i64, {SHARED} {self.barriers}, i32 {slot}")

    def _of_release(self, number: str) -> str:
        """The memory barrier at which the memory of an iteration is released."""
        return self.put(f"getelementptr i64, {SHARED} {self._of_group(number)}, i32 {self.ring}")

    def _turn(self, number: str) -> str:
        """Which of two turns of its memory barrier a group is."""
        return self.put(f"and i32 {self.put(f'udiv i32 {number}, {self.ring}')}, 1")

    def _await(self, at: str, turn: str) -> None:
        # The labels are the block's own, which is written out as often as it is inlined.
        wait = "mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1;"
        text = f"{{ .reg .pred p; W: {wait} @p bra D; bra W; D: }}"
        self._asm(text, "l,r", f"{SHARED} {at}, i32 {turn}", convergent=True)

    def commit(self) -> None:
        if self.plain_copies:
            self.plain.commit()
        if not self.ring:
            return
        if self.producing and self.by_hand:
            self._asm("fence.proxy.async.shared::cta;", "", "")
            self._warp()
        number = self.put("load i32, ptr %issued, align 4")
        arrived = self._of_group(number)
        text = "{ .reg .b64 t; mbarrier.arrive.shared::cta.b64 t, [$0]; }"
        self._elected(lambda: self._asm(text, "l", f"{SHARED} {arrived}"))
        self.line(f"store i32 {self.put(f'add i32 {number}, 1')}, ptr %issued, align 4")

    def wait(self, pending: int) -> None:
        if self.plain_copies:
            self.plain.wait(pending)
        if not self.ring:
            return
        if self.roles:  # for the copies of the same iteration
            number = self.put("load i32, ptr %arrived, align 4")
            self._await(self._of_group(number), self._turn(number))
            self.line(f"store i32 {self.put(f'add i32 {number}, 1')}, ptr %arrived, align 4")
            self.c.renew(self.c.mutable)  # what has arrived is seen from here on
            return
        end = self.put("load i32, ptr %issued, align 4")
        end = self.put(f"sub i32 {end}, {pending}")
        self._up_to("arrived", end, lambda x: self._await(self._of_group(x), self._turn(x)))

    def _up_to(self, counter: str, end: str, f: Callable[[str], None]) -> None:
        """Each number from a counter on, which is `end` afterwards, if it was less."""
        n = self.w.fresh("W")
        self.line(f"br label %{n}")
        self.w.label(n)
        number = self.put(f"load i32, ptr %{counter}, align 4")
        more = self.put(f"icmp slt i32 {number}, {end}")
        self.line(f"br i1 {more}, label %{n}.one, label %{n}.done")
        self.w.label(f"{n}.one")
        f(number)
        self.line(f"store i32 {self.put(f'add i32 {number}, 1')}, ptr %{counter}, align 4")
        self.line(f"br label %{n}")
        self.w.label(f"{n}.done")

    # ---- roles

    def acquire(self, versions: int) -> None:
        """The producer waits for the memory of its iteration. That of the first ones is free: a new
        memory barrier is behind its other turn, of the rounds before the first."""
        self._free(self.put("load i32, ptr %issued, align 4"), versions)

    def _free(self, number: str, versions: int | None = None) -> None:
        """Waits for the release of what was issued so many before; by default a whole ring."""
        earlier = self.put(f"add i32 {number}, {2 * self.ring - (versions or self.ring)}")
        self._await(self._of_release(earlier), self._turn(earlier))

    def release(self, pending: int) -> None:
        """Every warp arrives for itself, when all its threads have come; one thread for each block
        of the cluster."""
        end = self.put("load i32, ptr %arrived, align 4")
        end = self.put(f"sub i32 {end}, {pending}")
        x, y = (self.block.positions.short(a) for a in THREADS[:2])
        lane = self.put(f"add i32 {self.put(f'mul i32 {y}, {self.block.threads[0]}')}, {x}")
        who = self.put(f"icmp ult i32 {lane}, {self.cluster_blocks}")
        self._warp()

        def arrive(number: str) -> None:
            at = self._of_release(number)
            if self.cluster is None:
                text = "{ .reg .b64 t; mbarrier.arrive.shared::cta.b64 t, [$0]; }"
                self.w.branch(who, lambda: self._asm(text, "l", f"{SHARED} {at}"))
                return
            # Nothing that was written is handed over, only memory that has been read: an arrival
            # that released writes to the cluster would wait for all of the thread's, every time.
            there = "mapa.shared::cluster.u64 r, $0, $1;"
            text = "mbarrier.arrive.shared::cluster.b64 _, [r];"
            text, given = f"{{ .reg .b64 r; {there} {text} }}", f"{SHARED} {at}, i32 {lane}"
            self.w.branch(who, lambda: self._asm(text, "l,r", given))

        self._up_to("released", end, arrive)

    def _warp(self) -> None:
        self.w.arith.declares.add("declare void @llvm.nvvm.bar.warp.sync(i32)")
        self.line("call void @llvm.nvvm.bar.warp.sync(i32 -1)")

    # ---- asynchronous instructions

    def _boundary(self) -> None:
        """The end of a basic block, over which the assembler does not move a wait: it waits for
        copies that are there already."""
        number = self.put("load i32, ptr %arrived, align 4")
        number = self.put(f"sub i32 {number}, 1")
        self._await(self._of_group(number), self._turn(number))

    def _begin(self, s: Loop, i: Intrinsic) -> None:
        """The first of several products: what later ones begin with is in registers before it, or
        the assembler would let those wait for it."""
        if not self.going:
            found = match(i, self.c.n, s)
            own = found.operands[-1].buffer if isinstance(found, Match) else ""
            others = [x for x in self.together.get(id(s), ()) if x in self.a.base and x != own]
            if others:
                self._through("", others)
        self.going += 1

    def wait_for_products(self, s: Wait) -> None:
        """Results but those of the last instructions are there after a wait, which LLVM learns by
        their passing through it."""
        pending = s.pending
        self.going = min(self.going, pending)
        text = f"wgmma.wait_group.sync.aligned {pending};"
        going = self.body.instructions.begun[-pending:] if pending else []
        there = [x for x in self.results if x in self.a.base and x not in going]
        done = [x for x in self.meanwhile.get(id(s), ()) if x in self.a.base and x not in there]
        if done and self.ring:
            self._boundary()
        self._through(text, [*there, *done])

    def _through(self, text: str, names: list[str]) -> None:
        """Private buffers pass through an instruction, so that nothing moves across it."""
        held = [(x, self.block.part(self.c.buffers[x])) for x in names]
        if not held:
            self._asm(text, "", "", convergent=True)
            return
        places: list[tuple[str, str]] = []
        for name, b in held:
            t = "float" if b.dtype.is_float else "i32"
            count = D.bounds(b.size)[1]
            for k in range(count):
                p = self.put(f"getelementptr {t}, ptr {self.a.base[name][0]}, i64 {k}")
                places.append((t, p))
        given = [self.put(f"load {t}, ptr {p}, align 4") for t, p in places]
        kinds = ["=f" if t == "float" else "=r" for t, _ in places]
        kinds += [*(str(k) for k in range(len(places))), "~{memory}"]
        result = f"{{ {', '.join(t for t, _ in places)} }}"
        taken = ", ".join(f"{t} {x}" for (t, _), x in zip(places, given, strict=True))
        made = self.put(
            f'call {result} asm sideeffect "{text}", "{",".join(kinds)}"({taken}) convergent'
        )
        for k, (t, p) in enumerate(places):
            x = self.put(f"extractvalue {result} {made}, {k}")
            self.line(f"store {t} {x}, ptr {p}, align 4")
        self.c.renew(frozenset(name for name, _ in held))


def _meanwhile(launch: tuple[Stmt, ...]) -> dict[int, list[str]]:
    """For waits, what is computed and read later while asynchronous instructions go on: since a
    wait that has left some."""
    out: dict[int, list[str]] = {}
    for body in (launch, *(b for s, _ in walk(launch) for b in bodies(s))):
        begin: int | None = None
        for k, s in enumerate(body):
            if not isinstance(s, Wait) or not s.products:
                continue
            if begin is not None:
                made = writes(body[begin:k])
                read = frozenset().union(*(sources(x) for x in body[k:]))
                out[id(s)] = sorted(made & read)
            begin = k if s.pending else None
    return out


def _together(launch: tuple[Stmt, ...]) -> dict[int, list[str]]:
    """For the first of several products that nothing waits between, what the others write."""
    out: dict[int, list[str]] = {}
    for body in (launch, *(b for s, _ in walk(launch) for b in bodies(s))):
        run: list[Loop] = []
        for s in (*body, Wait(0, products=True)):
            if any(isinstance(x, Wait) and x.products for x, _ in walk((s,))):
                if len(run) > 1:
                    out[id(run[0])] = sorted(writes(tuple(run[1:])) - writes(tuple(run[:1])))
                run = []
            elif isinstance(s, Loop):
                run += [x for x, i in instructions((s,)) if i.asynchronous and not i.engine]
    return out


def _axes(shape: tuple[Dim, ...]) -> list[int]:
    """The axes that the copy engine is told of: the last two, and those of several elements."""
    return [k for k, d in enumerate(shape) if d != 1 or k >= len(shape) - 2]


def _multiple(d: Dim, of: int) -> bool:
    return all(c % of == 0 for _, c in d.terms) if isinstance(d, D.Int) else d % of == 0
