"""How memory is read.

Evaluating an index function under the lane variable shows how memory is touched: no lane, one
scalar; a lane with coefficient one, a vector; anything else, one access per lane.
"""

from __future__ import annotations

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Fn, Load, Value, walk
from tilewright.kernel.group import Buffer
from tilewright.kernel.legal.accesses import ADJACENT, EDGES, GATHER
from tilewright.llvm.accesses import Accesses
from tilewright.llvm.addresses import Addresses
from tilewright.llvm.context import LANE, Context
from tilewright.llvm.indices import Indices
from tilewright.llvm.masks import Masks
from tilewright.llvm.scalar_types import memory_type, register_type, vector
from tilewright.llvm.writer import Writer

VECTOR = 16  # bytes
# Functions of an index that is read from memory and kept within its size, counted from the end or
# not; what is computed takes more.
SIMPLE = 6
# Vectors of neighbours that are read whole for what some lanes need of them.
SPAN = 4
NEAR = range(1, SPAN + 1)  # distances between lanes of which that holds


class Loads:
    def __init__(
        self,
        w: Writer,
        c: Context,
        indices: Indices,
        addresses: Addresses,
        accesses: Accesses,
        masks: Masks,
    ) -> None:
        self.w, self.c, self.put, self.arith = w, c, w.put, w.arith
        self.indices, self.addresses, self.accesses = indices, addresses, accesses
        self.masks = masks

    def load(self, v: Load, w: int, guarded: bool) -> str:
        """A read; one that is `guarded` is only used where a condition holds."""
        assert isinstance(v.source, str)
        if v.source in self.c.lets:
            return self._let(v)
        b, inside = self.c.buffers[v.source], self.addresses.indices_inside
        if b.pointer:
            return self._through(b, inside(v.index) if guarded else v.index, w)
        if guarded and not self.addresses.in_range(b, v.index):
            return self._guarded(b, inside(v.index), w)
        return self.at(b, v.index, w)

    def is_neighbours(self, v: Value, w: int) -> bool:
        """Is it a read of as many neighbours in memory?"""
        return self.direction(v, w) == 1

    def direction(self, v: Value, w: int) -> int:
        """1 for a read of as many neighbours in memory, -1 if the last comes first, 0 for any other
        value."""
        if (
            not isinstance(v, Load)
            or v.source in self.c.lets  # a register
            or w == 1
            or any(True for i in v.index for _ in D.data_values(i))
        ):
            return 0
        b = self.c.buffers[str(v.source)]
        step = self.indices.terms(self.addresses.linear(b, v.index))[2]
        return 1 if step == b.unit else -1 if step == -b.unit else 0

    def _let(self, v: Load) -> str:
        """What a let was set to."""
        let, at = self.c.lets[str(v.source)], [self.c.env[D.the_sym(i)] for i in v.index]
        lane = None if let.lanes is None else at.pop(let.lanes)
        x = let.registers[tuple(at)]
        if lane is None or lane == LANE:
            return x
        shape = self.c.buffers[str(v.source)].shape[let.lanes or 0]
        assert isinstance(shape, int)
        t = vector(register_type(v.dtype), shape)
        return self.put(f"extractelement {t} {x}, i64 {lane}")

    def at(self, b: Buffer, index: tuple[Dim, ...], w: int) -> str:
        """What is at an index."""
        lin = self.addresses.linear(b, index)
        const, terms, lane = self.indices.terms(lin)
        if w == 1 and self.c.lane is None:
            return self.accesses.load(b, self.addresses.pointer(b, const, terms))
        if w > 1 and lane != 0 and self.c.existing is not None:
            if lane != b.unit or not self.addresses.has_vector(b, lin, w):
                return self._existing(b, index, lin, w)
        if lane is not None and b.unit > 1:
            lane = lane // b.unit if lane % b.unit == 0 else None
        if lane == 0:
            align = self.addresses.neighbours_alignment(b, lin)
            x = self.accesses.load(b, self.addresses.pointer(b, const, terms), align=align)
            return self.arith.splat(x, register_type(b.dtype), w) if w > 1 else x
        if lane is not None and 1 <= abs(lane) <= 4 and w > 1:
            t = memory_type(b.dtype)
            span = (w - 1) * abs(lane) + 1
            first = const if lane > 0 else const + lane * (w - 1) * b.unit
            p = self.addresses.pointer(b, first, terms)
            if lane == 1:
                align = self.addresses.alignment(b, lin, w)
                if self.accesses.is_shifted(b, w, align) and self.addresses.aligned(b) >= VECTOR:
                    return self._shifted(b, lin, w, align)
                return self.accesses.load(b, p, w, align)
            pick = range(0, span, abs(lane)) if lane > 0 else range(span - 1, -1, -abs(lane))
            phase = self._phase(b, lin, lane)
            if phase is not None:
                span, pick = w * lane, range(phase, w * lane, lane)
                p = self.addresses.pointer(b, const - phase, terms)
            x = self.put(f"load <{span} x {t}>, ptr {p}, align {b.dtype.bytes}")
            mask = ", ".join(f"i32 {k}" for k in pick)
            x = self.put(
                f"shufflevector <{span} x {t}> {x}, <{span} x {t}> poison, <{w} x i32> <{mask}>"
            )
            return self.arith.widen(x, b.dtype, w)
        if lane is None and w > 1 and self._is_gathered(b, lin):
            p = self.addresses.near(b, lin, w)
            every = self.arith.splat_literal("true", "i1", w)
            x = self.accesses.masked_gather(b, p, every, w)
            return self.arith.widen(x, b.dtype, w)
        if b.pointer or (w > 1 and b.swizzle is None and self._is_costly(lin)):
            return self._gather(b, lin, w)
        apart = self._apart(b, lin, w) if lane is None and w > 1 else None
        if apart is not None:
            return self._span(b, lin, apart)
        xs = [self.c.with_lane(k, lambda: self.at(b, index, 1)) for k in range(w)]
        return self.w.build(xs, register_type(b.dtype))

    def _existing(self, b: Buffer, index: tuple[Dim, ...], lin: Dim, w: int) -> str:
        """What lanes read of which the last may not exist: those read nothing, or what the last one
        that exists reads."""
        assert self.c.lane is not None and self.c.existing is not None
        count, mask = self.c.existing
        const, terms, lane = self.indices.terms(lin)
        a, loads = self.addresses, self.accesses
        if lane == b.unit and loads.has_masks(b):
            x = loads.masked_load(b, a.pointer(b, const, terms), mask, w)
            return self.arith.widen(x, b.dtype, w)
        if lane is None and self._is_gathered(b, lin):
            x = loads.masked_gather(b, a.near(b, lin, w), mask, w)
            return self.arith.widen(x, b.dtype, w)
        own, last = self.c.lane[0], count - 1
        apart = self._apart(b, lin, w) if loads.has_masks(b) else None
        if apart is not None and apart in (sorted(apart), sorted(apart, reverse=True)):
            return self._existing_span(b, lin, apart, last)

        def one(k: int) -> str:
            at = tuple(D.substitute(i, {own: D.minimum(k, last)}) for i in index)
            return self.c.with_lane(k, lambda: self.at(b, at, 1))

        return self.w.build([one(k) for k in range(w)], register_type(b.dtype))

    def _apart(self, b: Buffer, lin: Dim, w: int) -> list[int] | None:
        """How far each lane reads from the first one, where that is known and all are in a few
        vectors of neighbours."""
        assert self.c.lane is not None
        if b.pointer or b.unit != 1 or b.swizzle is not None or isinstance(lin, int):
            return None
        own, found = self.c.lane[0], []
        if any(own in v.symbols() for v in D.data_values(lin)):
            return None
        fixed = {s: k for s in D.symbols(lin) if isinstance(k := self.c.env.get(s), int)}
        lin = D.substitute(lin, fixed)
        first = D.substitute(lin, {own: 0})
        for k in range(w):
            far = D.substitute(lin, {own: k}) - first
            if not isinstance(far, int):
                return None
            found.append(far)
        return found if max(found) - min(found) < SPAN * w else None

    def _span(self, b: Buffer, lin: Dim, apart: list[int]) -> str:
        """All of the memory in which lanes read, and of it what each of them reads."""
        assert self.c.lane is not None
        w, low = len(apart), min(apart)
        span = max(apart) - low + 1
        p = self.addresses.at(b, D.substitute(lin, {self.c.lane[0]: 0}) + low)
        x = self.put(f"load <{span} x {memory_type(b.dtype)}>, ptr {p}, align {b.dtype.bytes}")
        return self._picked(b, x, span, [k - low for k in apart], w)

    def _existing_span(self, b: Buffer, lin: Dim, apart: list[int], last: Dim) -> str:
        """The same of lanes of which those after the `last` one do not exist: nothing is read that
        no lane needs. Lanes read one after the other, up or down."""
        assert self.c.lane is not None
        w, low, own = len(apart), min(apart), self.c.lane[0]
        span = -(-(max(apart) - low + 1) // w) * w
        first = D.substitute(lin, {own: 0})
        p = self.addresses.at(b, first + low)
        far = self.indices.dim(D.substitute(lin, {own: last}) - first - low)
        limit = self.arith.splat(self.put(f"trunc i64 {far} to i32"), "i32", span)
        numbers = ", ".join(f"i32 {k}" for k in range(span))
        mask = self.put(
            f"icmp {'sge' if low else 'sle'} <{span} x i32> <{numbers}>, {limit}",
        )
        if low:  # lanes go down from the first one, and what rounds up the span is after that
            within = ", ".join(f"i1 {'true' if k <= -low else 'false'}" for k in range(span))
            mask = self.put(f"and <{span} x i1> {mask}, <{within}>")
        x = self.accesses.masked_load(b, p, mask, span)
        return self._picked(b, x, span, [k - low for k in apart], w)

    def _picked(self, b: Buffer, x: str, span: int, places: list[int], w: int) -> str:
        v, which = f"<{span} x {memory_type(b.dtype)}>", ", ".join(f"i32 {k}" for k in places)
        x = self.put(f"shufflevector {v} {x}, {v} poison, <{w} x i32> <{which}>")
        return self.arith.widen(x, b.dtype, w)

    def _phase(self, b: Buffer, lin: Dim, lane: int) -> int | None:
        """Where lanes take one element each of groups of `lane` neighbours, which of a group: all
        of it may be read, as whole vectors, once for all elements of it. None where groups are not
        whole, or begin where only a run knows."""
        if lane < 2 or b.pointer or b.unit != 1 or not D.known_eq(D.mod(b.size, lane), 0):
            return None
        assert self.c.lane is not None
        fixed = {s: k for s in D.symbols(lin) if isinstance(k := self.c.env.get(s), int)}
        phase = D.mod(D.substitute(lin, {**fixed, self.c.lane[0]: 0}), lane)
        return phase if isinstance(phase, int) else None

    def _is_gathered(self, b: Buffer, lin: Dim) -> bool:
        """Is it one for the machine's instruction that reads each lane from a place of its own?"""
        assert self.c.lane is not None
        if GATHER not in self.c.hints or b.pointer or b.dtype.bytes not in (4, 8):
            return False
        return any(self.c.is_vector(v) for v in D.data_values(lin))

    def _is_costly(self, lin: Dim) -> bool:
        """Is an index that data decide computed sooner in all lanes at once than lane by lane?"""
        functions = {x for v in D.data_values(lin) for x in walk(v) if isinstance(x, Fn)}
        return len(functions) > SIMPLE

    def _shifted(self, b: Buffer, lin: Dim, w: int, align: int) -> str:
        """A vector that begins anywhere, out of the three halves of vectors that have it. How far
        past the first one it begins is often the same for many: those share what is computed."""
        assert self.c.lane is not None
        half = w // 2
        fixed = {s: k for s in D.symbols(lin) if isinstance(k := self.c.env.get(s), int)}
        first = D.substitute(lin, {**fixed, self.c.lane[0]: 0})
        past = D.mod(first, half)
        halves = [self.addresses.at(b, first - past + k * half) for k in range(2)]
        if D.known_le(first - past + 3 * half, b.size):
            halves.append(self.addresses.at(b, first - past + w))
        else:
            more = self.indices.dim(D.minimum(past, 1) * half)  # nothing past the end of the memory
            t = memory_type(b.dtype)
            halves.append(self.put(f"getelementptr {t}, ptr {halves[1]}, i64 {more}"))
        bytes_ = self.indices.dim(past * b.dtype.bytes)
        return self.accesses.part(b, halves, bytes_, w, align)

    def _guarded(self, b: Buffer, index: tuple[Dim, ...], w: int) -> str:
        """A read only used where a condition holds: its address is clamped into the buffer."""
        safe = self.addresses.clamped(b, index)
        if w == 1 or self.c.lane is None:
            return self.at(b, safe, 1)
        s = self.c.lane[0]
        moving = [k for k, i in enumerate(index) if s in D.symbols(i)]
        _, _, lane = self.indices.terms(self.addresses.linear(b, index))
        hinted, near = EDGES in self.c.hints, lane == 1 or (lane in NEAR and self._spreads(b))
        if not (hinted and near) or len(moving) != 1 or D.coefficient(index[moving[0]], s) != lane:
            return self.at(b, safe, w)
        # One vector where all lanes are inside; at the edges under a mask, or lane by lane.
        k = moving[0]
        first = self.c.with_lane(0, lambda: self.indices.dim(index[k]))
        last = self.c.with_lane(w - 1, lambda: self.indices.dim(index[k]))
        low = self.put(f"icmp sge i64 {first}, 0")
        high = self.put(f"icmp slt i64 {last}, {self.indices.dim(b.shape[k])}")
        inside = self.put(f"and i1 {low}, {high}")
        mixed = tuple(index[j] if j == k else i for j, i in enumerate(safe))
        return self.w.either(
            inside,
            vector(register_type(b.dtype), w),
            lambda: self.at(b, mixed, w),
            lambda: self.edge(b, index, w),
        )

    def edge(self, b: Buffer, index: tuple[Dim, ...], w: int) -> str:
        """What lanes read of which some may be outside of the buffer: those read nothing, or what
        is nearest."""
        safe = self.addresses.clamped(b, index)
        if self.c.lane is None or w == 1 or b.unit != 1 or not self.accesses.has_masks(b):
            return self.at(b, safe, w)
        s, width = self.c.lane
        moving = [k for k, i in enumerate(index) if s in D.symbols(i)]
        step = self.indices.terms(self.addresses.linear(b, index))[2]
        if width != w or b.swizzle is not None or len(moving) != 1:
            return self.at(b, safe, w)
        if step is None or step not in (-1, *NEAR):
            return self.at(b, safe, w)
        k = moving[0]
        if D.coefficient(index[k], s) != step or (step > 1 and not self._spreads(b)):
            return self.at(b, safe, w)
        begin, put = D.substitute(index[k], {s: w - 1 if step == -1 else 0}), self.put
        ends, span = (D.maximum(0 - begin, 0), D.maximum(b.shape[k] - begin, 0)), abs(step) * w
        low, high = (put(f"trunc i64 {self.indices.dim(D.minimum(x, span))} to i32") for x in ends)
        t, numbers = f"<{span} x i32>", ", ".join(f"i32 {j}" for j in range(span))
        above = put(f"icmp sge {t} <{numbers}>, {self.arith.splat(low, 'i32', span)}")
        below = put(f"icmp slt {t} <{numbers}>, {self.arith.splat(high, 'i32', span)}")
        mask = put(f"and <{span} x i1> {above}, {below}")
        first = tuple(begin if j == k else i for j, i in enumerate(safe))
        const, terms, _ = self.indices.terms(self.addresses.linear(b, first))
        x = self.accesses.masked_load(b, self.addresses.pointer(b, const, terms), mask, span)
        if step == 1:
            return self.arith.widen(x, b.dtype, w)
        places = [w - 1 - j if step == -1 else j * step for j in range(w)]
        return self._picked(b, x, span, places, w)

    def _spreads(self, b: Buffer) -> bool:
        """May lanes read parts of several vectors of it?"""
        return b.unit == 1 and b.swizzle is None and not b.pointer and self.accesses.has_masks(b)

    # ---- behind pointers

    def _through(self, b: Buffer, index: tuple[Dim, ...], w: int) -> str:
        """What is behind a pointer, where the conditions in force hold; zeros elsewhere."""
        if not self.c.under:
            return self.at(b, index, w)
        t = vector(register_type(b.dtype), w)

        def plain() -> str:
            with self.c.testing(()):
                return self.at(b, index, w)

        def zero() -> str:
            return self.arith.const(0, b.dtype, w)

        if self.c.lane is None or not self.masks.vary():
            return self.w.either(self.masks.passed(), t, plain, zero)
        lanes = self.c.lane[1]
        if w == 1:
            some = self.w.across("or", self.masks.mask(lanes), lanes)
            return self.w.either(some, t, plain, zero)
        return self._masked(b, index, w)

    def _masked(self, b: Buffer, index: tuple[Dim, ...], w: int) -> str:
        m = self.masks.mask(w)
        lin = self.addresses.linear(b, index)
        const, terms, lane = self.indices.terms(lin)
        loads, a = self.accesses, self.addresses
        if lane == b.unit:
            x = loads.masked_load(b, a.pointer(b, const, terms), m, w)
        elif lane is not None or ADJACENT not in self.c.hints:
            x = loads.masked_gather(b, a.lanes(b, lin, w), m, w)
        else:
            x = self.w.either(
                a.adjacent(b, lin, w),
                f"<{w} x {memory_type(b.dtype)}>",
                lambda: loads.masked_load(b, a.first(b, lin), m, w),
                lambda: loads.masked_gather(b, a.lanes(b, lin, w), m, w),
            )
        return self.arith.widen(x, b.dtype, w)

    def _gather(self, b: Buffer, lin: Dim, w: int) -> str:
        """One read for every lane, at addresses that are computed together; one for all where they
        turn out to be neighbours."""
        t = memory_type(b.dtype)

        def each() -> str:
            at = self.addresses.each(b, lin, w)
            xs = [self.put(f"load {t}, ptr {p}, align {b.dtype.bytes}") for p in at]
            return self.w.build(xs, t)

        def whole() -> str:
            p = self.addresses.first(b, lin)
            return self.put(f"load <{w} x {t}>, ptr {p}, align {b.dtype.bytes}")

        if self.indices.terms(lin)[2] is not None or ADJACENT not in self.c.hints:
            x = each()
        else:
            x = self.w.either(self.addresses.adjacent(b, lin, w), f"<{w} x {t}>", whole, each)
        return self.arith.widen(x, b.dtype, w)
