"""How memory is written: one element, neighbours, lanes apart, lanes that a mask chooses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.kernel.group import Buffer
from tilewright.kernel.legal.accesses import ADJACENT
from tilewright.kernel.nest import Loop, Store
from tilewright.kernel.scans import GROUPED, Scan, nothing
from tilewright.llvm.accesses import Accesses
from tilewright.llvm.addresses import Addresses
from tilewright.llvm.context import LANE, Context
from tilewright.llvm.indices import Terms
from tilewright.llvm.scalar_types import memory_type, register_type, vector
from tilewright.llvm.transpose import is_square, transposed
from tilewright.llvm.values import Values
from tilewright.llvm.writer import Writer


class Stores:
    def __init__(
        self, w: Writer, c: Context, values: Values, addresses: Addresses, accesses: Accesses
    ) -> None:
        self.w, self.c, self.put, self.arith = w, c, w.put, w.arith
        self.values, self.addresses, self.accesses = values, addresses, accesses
        self.streams = False  # results go past the caches

    def store(self, s: Store) -> None:
        if s.buffer in self.c.lets:
            self._let(s)
        else:
            b = self.c.buffers[s.buffer]
            lin = self.addresses.linear(b, s.index)
            place = self.addresses.indices.terms(lin)
            (self._masked if self.c.under else self._plain)(s, b, lin, *place)
        self.c.touch(s)

    def _let(self, s: Store) -> None:
        let, at = self.c.lets[s.buffer], [self.c.env[D.the_sym(i)] for i in s.index]
        let.lanes = at.index(LANE) if LANE in at else None
        values = self.values
        x = values.value(s.value) if let.lanes is None else values.lanes_of(s.value)
        let.level = self.w.depth
        let.registers[tuple(e for e in at if e != LANE)] = x

    def _past_caches(self, b: Buffer) -> str:
        """Only results: what stays inside the kernel is about to be read again."""
        streams = self.streams and b.scope == "out"
        return f", !nontemporal {self.w.metadata.node('!{i32 1}')}" if streams else ""

    # ---- all lanes

    def _plain(
        self, s: Store, b: Buffer, lin: Dim, const: int, terms: Terms, lane: int | None
    ) -> None:
        w = self.c.width
        if w == 1 or lane == 0:
            x = self._one(s, b, w)
            p = self.addresses.pointer(b, const, terms)
            self.accesses.store(b, x, p, 1, s.function, hint=self._past_caches(b))
            return
        x = self.values.lanes_of(s.value)
        if lane == b.unit:
            p = self.addresses.pointer(b, const, terms)
            align, hint = self.addresses.alignment(b, lin, w), self._past_caches(b)
            self.accesses.store(b, x, p, w, s.function, align, hint)
        elif b.pointer and lane is None and not s.function and ADJACENT in self.c.hints:
            self._scatter(b, self.arith.narrow(x, b.dtype, w), lin, w)
        else:
            for k in range(w):
                self._lane(s, b, lin, k, x, w)

    def _one(self, s: Store, b: Buffer, w: int) -> str:
        """The value of an element that all lanes write: combined, or the last one's."""
        if w > 1 and s.function:
            x = self.values.lanes_of(s.value)
            return self.arith.horizontal(s.function, x, b.dtype, w, s.value)
        x = self.values.value(s.value)
        if w > 1 and self.c.is_vector(s.value):
            lanes = vector(register_type(b.dtype), w)
            return self.put(f"extractelement {lanes} {x}, i64 {w - 1}")
        return x

    def _lane(self, s: Store, b: Buffer, lin: Dim, k: int, x: str, w: int) -> None:
        y = self.put(f"extractelement {vector(register_type(b.dtype), w)} {x}, i64 {k}")
        self._element(s, b, lin, k, y)

    def _element(self, s: Store, b: Buffer, lin: Dim, k: int, y: str) -> None:
        """What one lane writes."""
        const, terms, _ = self.c.with_lane(k, lambda: self.addresses.indices.terms(lin))
        p = self.addresses.pointer(b, const, terms)
        self.accesses.store(b, y, p, 1, s.function, hint=self._past_caches(b))

    def _scatter(self, b: Buffer, x: str, lin: Dim, w: int) -> None:
        """A store of all lanes (as they lie in memory) at addresses that have to be computed."""
        t = memory_type(b.dtype)

        def each() -> None:
            for k, p in enumerate(self.addresses.each(b, lin, w)):
                y = self.put(f"extractelement <{w} x {t}> {x}, i64 {k}")
                self.accesses.raw_store(b, y, p)

        def whole() -> None:
            self.accesses.raw_store(b, x, self.addresses.first(b, lin), w)

        self.w.branch(self.addresses.adjacent(b, lin, w), whole, each)

    # ---- lanes that carry something from one to the next

    def scanned(self, s: Store, scan: Scan) -> bool:
        """Each lane gets what those before it have, too; False (and nothing is written) where the
        elements of a row are no neighbours in memory."""
        if s.buffer in self.c.lets:
            return False
        b, w, d = self.c.buffers[s.buffer], self.c.width, s.value.dtype
        lin = self.addresses.linear(b, s.index)
        start, terms, lane = self.addresses.indices.terms(lin)
        if lane != b.unit or b.pointer:
            return False
        t, name = register_type(d), scan.function
        filled, v = self.arith.const(nothing(name, d), d, w), vector(t, w)
        x, step = self.values.lanes_of(scan.value), 1
        while step < w:
            pick = (*range(w, w + step), *range(w - step))
            mask = ", ".join(f"i32 {k}" for k in pick)
            moved = self.put(f"shufflevector {v} {x}, {v} {filled}, <{w} x i32> <{mask}>")
            x, step = self.arith.combine(name, d, w, [moved, x]), 2 * step
        carried = self.c.with_lane(0, lambda: self.values.value(scan.before))
        x = self.arith.combine(name, d, w, [self.arith.splat(carried, t, w), x])
        align = self.addresses.alignment(b, lin, w)
        self.accesses.store(b, x, self.addresses.pointer(b, start, terms), w, None, align)
        self.c.touch(s)
        if scan.last is not None:
            end = self.put(f"extractelement {v} {x}, i64 {w - 1}")
            own = self.c.buffers[scan.last.buffer]
            self.accesses.store(own, end, self.addresses.first(own, 0))
            self.c.touch(scan.last)
        return True

    # ---- lanes that are chosen

    def _masked(
        self, s: Store, b: Buffer, lin: Dim, const: int, terms: Terms, lane: int | None
    ) -> None:
        assert self.c.lane is not None, f"{s.stage} is masked outside lanes"
        w, a, accesses = self.c.width, self.addresses, self.accesses
        x = self.values.lanes_of(s.value, not self._only_existing())
        m = self.values.masks.mask(w)
        if lane == b.unit and self.c.existing is not None and a.has_vector(b, lin, w):
            # A register stays one: what is in the other lanes is written once more.
            p, align = a.pointer(b, const, terms), a.alignment(b, lin, w)
            old = accesses.load(b, p, w, align)
            new = self.arith.combine(s.function, b.dtype, w, [old, x]) if s.function else x
            new = self.arith.apply("select", b.dtype, w, [m, new, old])
            accesses.store(b, new, p, w, None, align)
        elif lane == 0 and s.function in GROUPED and self._only_existing():
            nothing_there = self.arith.const(nothing(s.function, b.dtype), b.dtype, w)
            x = self.arith.apply("select", b.dtype, w, [m, x, nothing_there])
            one = self.arith.horizontal(s.function, x, b.dtype, w, s.value)
            accesses.store(b, one, a.pointer(b, const, terms), 1, s.function)
        elif lane == b.unit:
            p = a.pointer(b, const, terms)
            if s.function:
                old = self.arith.widen(accesses.masked_load(b, p, m, w), b.dtype, w)
                x = self.arith.combine(s.function, b.dtype, w, [old, x])
            accesses.masked_store(b, self.arith.narrow(x, b.dtype, w), p, m, w)
        elif lane is None and b.pointer and not s.function and ADJACENT in self.c.hints:
            x = self.arith.narrow(x, b.dtype, w)
            self.w.branch(
                a.adjacent(b, lin, w),
                lambda: accesses.masked_store(b, x, a.first(b, lin), m, w),
                lambda: accesses.masked_scatter(b, x, a.lanes(b, lin, w), m, w),
            )
        elif lane != 0 and not s.function:
            x = self.arith.narrow(x, b.dtype, w)
            accesses.masked_scatter(b, x, a.lanes(b, lin, w), m, w)
        else:
            r = vector(register_type(b.dtype), w)
            for k in range(w):
                bit = self.put(f"extractelement <{w} x i1> {m}, i64 {k}")
                y = self.put(f"extractelement {r} {x}, i64 {k}")
                self.values.masks.where(bit, partial(self._element, s, b, lin, k, y))

    def _only_existing(self) -> bool:
        """Is all that is tested whether lanes exist, of which the first does?"""
        return self.c.existing is not None and len(self.c.under) == 1

    # ---- iterations that fill the places between lanes

    def interleaved(self, s: Loop) -> None:
        """Their vectors become one store, or one for each row where they are squares."""
        store, parts, w = s.body[0], s.extent, self.c.width
        assert isinstance(store, Store) and isinstance(parts, int)
        b, env = self.c.buffers[store.buffer], self.c.env
        t = memory_type(b.dtype)
        env[s.var] = 0
        p = self.addresses.of(b, store.index)
        squares = is_square(parts, w, b.dtype.bits)
        # One square after the other: registers hold one of them.
        size = w if squares else parts
        for first in range(0, parts, size):
            vectors: list[str] = []
            for k in range(first, first + size):
                env[s.var] = k
                x = self.values.lanes_of(store.value)
                vectors.append(self.arith.narrow(x, b.dtype, w))
            if not squares:
                self.accesses.raw_store(b, self._zipped(vectors, t, w), p, parts * w)
                continue
            for row, x in enumerate(transposed(self.put, vectors, t)):
                at = self.put(f"getelementptr {t}, ptr {p}, i64 {row * parts + first}")
                self.accesses.raw_store(b, x, at, w)
        del env[s.var]
        self.c.touch(s)

    def _zipped(self, vectors: list[str], t: str, w: int) -> str:
        """The first lanes of all vectors, then the second ones, and so on."""
        if len(vectors) == 3:
            x, y, z = vectors
            pairs = (
                self._shuffled(x, y, t, w, range(2 * w)),
                self._shuffled(z, z, t, w, range(2 * w)),
            )
            places = [k + side * w for k in range(w) for side in range(3)]
            return self._shuffled(*pairs, t, 2 * w, places)
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
