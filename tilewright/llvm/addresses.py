"""Where elements of buffers lie: addresses of one element, and of one for every lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.base.errors import Unsupported
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Load, Value, load, rewrite
from tilewright.kernel.dependence import linear_index, split_terms
from tilewright.kernel.group import Buffer
from tilewright.llvm.context import Context
from tilewright.llvm.indices import Indices, Terms
from tilewright.llvm.machine import Traits
from tilewright.llvm.opaque import DECLARATION, opaque
from tilewright.llvm.scalar_types import memory_type
from tilewright.llvm.writer import Writer

# From so many constant steps on an address is opaque to LLVM: see llvm/opaque.py.
MANY_STEPS = 6
# Of two numbers that are less than this the difference has 32 bits.
HALF = 1 << 30

# A buffer and an index as the current thread has them.
Part = Callable[[Buffer, tuple[Dim, ...]], tuple[Buffer, tuple[Dim, ...]]]


class _Moving:
    """The line of an address that a loop changes, and how many constant steps are taken from it."""

    def __init__(self, line: str) -> None:
        self.lines, self.steps = [line], 0


def _one_remainder(x: Dim, own: Sym) -> bool:
    """Is it a multiple of one remainder of what grows with the lanes?"""
    if isinstance(x, int) or len(x.terms) != 1:
        return False
    lanes = [a for a in x.terms[0][0] if own in D.symbols(D.from_atom(a))]
    if len(lanes) != 1 or not isinstance(lanes[0], D.Quo) or lanes[0].op != "mod":
        return False
    step = D.coefficient(lanes[0].a, own)
    return isinstance(step, int) and step > 0 and own not in D.symbols(lanes[0].b)


def _is_plain(x: Dim) -> bool:
    """Is it made of sizes and variables only, and nothing divided by what may be 0? It can be
    computed whatever they are."""
    return all(
        isinstance(a, Sym)
        or (isinstance(a, D.Quo) and (a.op in ("min", "max") or D.bounds(a.b)[0] >= 1))
        for a in D.atoms(x)
    )


class Addresses:
    def __init__(self, w: Writer, c: Context, indices: Indices, traits: Traits) -> None:
        self.w, self.c, self.indices, self.traits = w, c, indices, traits
        self.put = w.put
        self.base = {b.name: ("null", 0) for b in c.n.buffers if b.scope == "memory"}
        self.part: Part | None = None  # of what each thread has a part only
        self.aligned: Callable[[Buffer], int] = lambda b: b.dtype.bytes
        self._linear: dict[Any, Dim] = {}
        self._moving: dict[str, _Moving] = {}  # addresses that a loop changes

    # ---- one element

    def linear(self, b: Buffer, index: tuple[Dim, ...]) -> Dim:
        """The place of an element in its buffer."""
        if self.part is not None:
            b, index = self.part(b, index)
        key = (b.name, index)
        found = self._linear.get(key)
        if found is None:
            found = self._linear[key] = linear_index(b, index)
        return found

    def at(self, b: Buffer, lin: Dim) -> str:
        """The address of an element that is the same for all lanes."""
        const, terms, _ = self.indices.terms(lin)
        return self.pointer(b, const, terms)

    def of(self, b: Buffer, index: tuple[Dim, ...]) -> str:
        return self.at(b, self.linear(b, index))

    def early(self, b: Buffer, index: tuple[Dim, ...]) -> None:
        """Before a condition under which an element behind a pointer is accessed: its address but
        for the constant. Elements with conditions of their own then share it."""
        known = all(s in self.c.env for i in index for s in D.symbols(i))
        plain = b.pointer and b.scope != "memory" and b.swizzle is None
        if self.traits.early and known and plain and all(map(_is_plain, index)):
            lin = self.linear(b, index)
            if self.c.lane is None:
                self.pointer(b, 0, self.indices.terms(lin)[1])
            else:
                self.pointer(b, 0, self.c.with_lane(0, lambda: self.indices.terms(lin)[1]))

    def pointer(self, b: Buffer, const: int, terms: Terms) -> str:
        return (self._plain if b.swizzle is None else self._swizzled)(b, const, terms)

    def _plain(self, b: Buffer, const: int, terms: Terms) -> str:
        """Partial addresses are written where they stop changing, outermost first."""
        if b.scope == "memory":
            parts = [self.indices.offset(terms[level], level) for level in sorted(terms)]
            total = str(const)
            for x in parts:
                total = self.put(f"add i64 {x}, {total}")
            return self.put(f"inttoptr i64 {total} to ptr")
        p, reached = self.base[b.name]
        t = memory_type(b.dtype)
        key: tuple[Any, ...] = ("ptr", b.name, p)
        for level in sorted(terms):
            reached = max(reached, level)
            key = (*key, tuple(terms[level]))
            found = self.w.known(key)
            if found is None:
                at = self.indices.offset(terms[level], level)
                with self.w.at(reached):
                    found = self.put(f"getelementptr {t}, ptr {p}, i64 {at}")
                    if reached and self.traits.steps_apart:
                        self._moving[found] = cell = _Moving(self.w.out.pop())
                        self.w.out.append(cell.lines)
                self.w.remember(key, reached, found)
            p = found
        if not const:
            return p
        if (cell := self._moving.get(p)) is not None:
            cell.steps += 1
            if cell.steps == MANY_STEPS:
                self.w.arith.declares.add(DECLARATION)
                moved = cell.lines[0].replace(p, f"{p}.at", 1)
                cell.lines[:] = [moved, f"  {p} = {opaque(f'{p}.at')}"]
        return self.put(f"getelementptr {t}, ptr {p}, i64 {const}")

    def _swizzled(self, b: Buffer, const: int, terms: Terms) -> str:
        """Terms that move whole periods are left out of the swizzle, and so is the place in a block
        of elements that stay together: neighbours have one address and a constant each."""
        by = b.swizzle
        assert by is not None
        near: Terms = {}
        far: Terms = {}
        for level, parts in terms.items():
            for c, factors in parts:
                side = far if c % by.period == 0 else near
                side.setdefault(level, []).append((c, factors))
        whole = all(c % by.block == 0 for parts in near.values() for c, _ in parts)
        inside = const % by.block if whole else 0
        total = str(const % by.period - inside)
        for level in sorted(near):
            total = self.put(f"add i64 {self.indices.offset(near[level], level)}, {total}")
        other = self.put(f"lshr i64 {total}, {by.base + by.shift}")
        other = self.put(f"and i64 {other}, {(1 << by.bits) - 1}")
        other = self.put(f"shl i64 {other}, {by.base}")
        place = self.put(f"xor i64 {total}, {other}")
        p = self._plain(b, const - const % by.period, far)
        p = self.put(f"getelementptr {memory_type(b.dtype)}, ptr {p}, i64 {place}")
        return (
            self.put(f"getelementptr {memory_type(b.dtype)}, ptr {p}, i64 {inside}")
            if inside
            else p
        )

    def alignment(self, b: Buffer, lin: Dim, w: int) -> int:
        """What the address of so many neighbours is known to be a multiple of: as much of its
        memory's alignment as every term of the index is a multiple of."""
        least = b.dtype.bytes
        bytes_ = min(self.aligned(b), w * least)
        if bytes_ <= least or self.c.lane is None:
            return least
        fixed = {s: k for s in D.symbols(lin) if isinstance(k := self.c.env.get(s), int)}
        first = D.substitute(lin, {**fixed, self.c.lane[0]: 0})
        while bytes_ > least and D.mod(first, max(1, bytes_ // least)) != 0:
            bytes_ //= 2
        return max(bytes_, least)

    def neighbours_alignment(self, b: Buffer, lin: Dim) -> int:
        """The alignment of one element of shared memory, which is read as a vector with its
        neighbours where these are read next."""
        if b.scope != "shared":
            return b.dtype.bytes
        most = self.traits.aligned_vector // b.dtype.bytes
        return self.alignment(b, lin, most if b.swizzle is None else min(most, b.swizzle.block))

    # ---- indices that stay inside a buffer

    def has_vector(self, b: Buffer, lin: Dim, w: int) -> bool:
        """Is memory of a buffer's own known to have so many neighbours from the first lane on?"""
        assert self.c.lane is not None
        if b.scope in ("in", "out", "memory") or b.pointer:
            return False
        first = D.substitute(lin, {self.c.lane[0]: 0})
        return D.nonneg(first) and D.known_le(first + w * b.unit, b.size)

    def in_range(self, b: Buffer, index: tuple[Dim, ...]) -> bool:
        inside = (D.nonneg(i) and D.known_lt(i, n) for i, n in zip(index, b.shape, strict=True))
        return not b.pointer and all(inside)

    def clamped(self, b: Buffer, index: tuple[Dim, ...]) -> tuple[Dim, ...]:
        out = []
        for i, n in zip(index, b.shape, strict=True):
            if not D.known_lt(i, n):
                i = D.minimum(i, n - 1)
            if not D.nonneg(i):
                i = D.maximum(i, 0)
            out.append(i)
        return tuple(out)

    def indices_inside(self, index: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Where an index is itself read from memory, that read is clamped into its buffer too."""

        def inside(x: Load) -> Value:
            b = self.c.buffers[str(x.source)]
            return x if b.pointer else load(b.name, self.clamped(b, x.index), x.dtype)

        return tuple(
            D.substitute(i, {}, lambda v: rewrite(v, on_load=inside))
            if any(True for _ in D.data_values(i))
            else i
            for i in index
        )

    # ---- one for every lane

    def lanes(self, b: Buffer, lin: Dim, w: int) -> str:
        x = self._apart(b, lin, w)
        if b.scope == "memory":
            return self.put(f"inttoptr <{w} x i64> {x} to <{w} x ptr>")
        t = memory_type(b.dtype)
        return self.put(f"getelementptr {t}, ptr {self.base[b.name][0]}, <{w} x i64> {x}")

    def near(self, b: Buffer, lin: Dim, w: int) -> str:
        """The same of a buffer with a base: what is equal in all lanes is added to that, and the
        rest has 32 bits where that is enough."""
        assert self.c.lane is not None
        same, moving = split_terms(lin, {self.c.lane[0]})
        x, t = self.indices.lanes(moving, w), "i64"
        ends = (*D.bounds(same), *D.bounds(b.size))
        if all(abs(e) < HALF for e in ends):
            x, t = self.put(f"trunc <{w} x i64> {x} to <{w} x i32>"), "i32"
        return self.put(
            f"getelementptr {memory_type(b.dtype)}, ptr {self.at(b, same)}, <{w} x {t}> {x}"
        )

    def each(self, b: Buffer, lin: Dim, w: int) -> list[str]:
        """The same as one address each: LLVM loses the kind of memory of vectors of addresses."""
        x, t = self._apart(b, lin, w), memory_type(b.dtype)
        own = [self.put(f"extractelement <{w} x i64> {x}, i64 {k}") for k in range(w)]
        if b.scope == "memory":
            return [self.put(f"inttoptr i64 {i} to ptr") for i in own]
        base = self.base[b.name][0]
        return [self.put(f"getelementptr {t}, ptr {base}, i64 {i}") for i in own]

    def _apart(self, b: Buffer, lin: Dim, w: int) -> str:
        if b.swizzle is not None:
            raise Unsupported(f"lanes far apart in the swizzled {b.name}", hint="no swizzle")
        return self.indices.lanes(lin, w)

    def first(self, b: Buffer, lin: Dim) -> str:
        """Where the first lane is."""
        const, terms, _ = self.c.with_lane(0, lambda: self.indices.terms(lin))
        return self.pointer(b, const, terms)

    def _each_adjacent(self, b: Buffer, moving: Dim, w: int) -> str:
        v = f"<{w} x i64>"
        x = self.indices.lanes(moving, w)
        first = self.put(f"shufflevector {v} {x}, {v} poison, <{w} x i32> zeroinitializer")
        steps = ", ".join(f"i64 {k * b.unit}" for k in range(w))
        wanted = self.put(f"add {v} {first}, <{steps}>")
        return self.w.across("and", self.put(f"icmp eq {v} {x}, {wanted}"), w)

    def adjacent(self, b: Buffer, lin: Dim, w: int) -> str:
        """Do all lanes, at an index that is no function of theirs before it is computed, lie one
        after the other?"""
        assert self.c.lane is not None
        own = self.c.lane[0]
        step = D.coefficient(lin, own)
        if step is not None:
            return self.put(f"icmp eq i64 {self.indices.dim(step)}, {b.unit}")
        moving = split_terms(lin, {own})[1]
        epochs = self.indices.epochs(moving)
        key = ("adjacent", moving, w, b.unit, self.c.constants(D.symbols(moving)), epochs)
        if (found := self.w.known(key)) is not None:
            return found
        level = self.indices.level(moving)
        with self.w.at(level):
            if _one_remainder(moving, own) and D.wrapped_coefficient(moving, own) == b.unit:
                # It wraps around between the first lane and the last one, or nowhere.
                ends = [self.c.with_lane(k, lambda: self.indices.dim(moving)) for k in (0, w - 1)]
                far = self.put(f"sub i64 {ends[1]}, {ends[0]}")
                r = self.put(f"icmp eq i64 {far}, {(w - 1) * b.unit}")
            else:
                r = self._each_adjacent(b, moving, w)
        self.w.remember(key, level, r)
        return r
