"""Values of a nest as LLVM text: what is computed, and how memory is read for it.

Evaluating an index function under the lane variable tells how memory is touched: no lane, one
scalar; a lane with coefficient one, a vector; anything else, one access per lane.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.base.traverse import operands_first
from tilewright.ir import dim as D
from tilewright.ir.conditions import parts_of
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Const, Fn, Index, Load, Value, load, rewrite
from tilewright.ir.types import i64
from tilewright.kernel.group import Buffer
from tilewright.llvm.scalars import memory_type, register_type, vector
from tilewright.llvm.writer import LANE, Writer

# Values that ask for operands in turn, at most: each is a few calls of Python's.
DEEP = 64

_FAR = 1 << 61  # half of what 64 bits hold, and room for a few sums


def _whole_number(v: Value) -> int | None:
    """A constant that an index can be compared with."""
    if not isinstance(v, Const) or v.dtype.kind not in "iu":
        return None
    return int(v.value) if i64.lowest <= v.value <= i64.highest else None


def _is_far(x: Dim) -> bool:
    """May an index function be so large that a difference does not fit 64 bits? Programs and loops
    are not counted so far; an argument or a number out of memory may be anything it can hold."""
    if isinstance(x, int):
        return abs(x) >= _FAR
    if any(abs(c) >= _FAR for _, c in x.terms):
        return True
    ends = (e for s in D.symbols(x) for e in (s.lo, s.hi))
    if any(isinstance(e, int) and abs(e) >= _FAR for e in ends):
        return True
    return any(v.dtype.bits == 64 for v in D.data_values(x))


class Values(Writer):
    def is_vector(self, v: Value) -> bool:
        return self.lane is not None and self.lane[0] in v.symbols()

    def value(self, v: Value, guarded: bool = False) -> str:
        """SSA of v: a vector if it depends on the lane, else a scalar."""
        if isinstance(v, Const):
            return self.arith.const(v.value, v.dtype, 1)
        key = self._key(v, guarded)
        found = self._found(key)
        if found is not None:
            return found
        if v.depth > DEEP:
            self._below(v, guarded)
        level = min(self._level(v), self.depth)
        with self._Hoist(self, level):
            r = self._emit(v, guarded)
        self.levels[level].memo[key] = r
        return r

    def _key(self, v: Value, guarded: bool) -> Any:
        return v, guarded, self._constants(v.symbols()), self._epochs(v), *self._masks(v)

    def _found(self, key: Any) -> str | None:
        for level in self.levels[: self.depth + 1]:
            found = level.memo.get(key)
            if found is not None:
                return found
        return None

    def _below(self, v: Value, guarded: bool) -> None:
        """Writes what a deep value is made of, operands first: none of it asks for more than a few
        others then. Only what is computed anyway, and in the same circumstances."""
        known: set[tuple[Value, bool]] = set()

        def operands(pair: tuple[Value, bool]) -> list[tuple[Value, bool]]:
            x, inside = pair
            wanted = [(y, more or inside) for y, more in self._surely(x) if y.depth > DEEP]
            return [p for p in wanted if p not in known and self._found(self._key(*p)) is None]

        for pair in operands_first((v, guarded), operands, known):
            known.add(pair)
            if pair[0] is not v:
                self.value(*pair)

    def _surely(self, v: Value) -> list[tuple[Value, bool]]:
        """The operands that `_emit` asks for in any case, and whether as something guarded."""
        if not isinstance(v, Fn) or v.name != "select":
            return [(x, False) for x in v.args]
        condition = self._settled(v.args[0])
        if isinstance(condition, Const):
            return [(v.args[1] if condition.value else v.args[2], False)]
        if any(map(self.reads_pointers, v.args[1:])):
            return [(condition, False)]
        return [(condition, False), (v.args[1], True), (v.args[2], True)]

    def lanes_of(self, v: Value, guarded: bool = False) -> str:
        """v as a vector of the current number of lanes (or a scalar outside lane loops)."""
        if self.lane is None:
            return self.value(v, guarded)
        w = self.lane[1]
        if isinstance(v, Const):
            return self.arith.const(v.value, v.dtype, w)
        x = self.value(v, guarded)
        if self.is_vector(v) or w == 1:
            return x
        key = ("splat", x, w)
        for level in self.levels[: self.depth + 1]:
            if key in level.memo:
                return level.memo[key]
        level = min(self._level(v), self.depth)
        with self._Hoist(self, level):
            r = self.arith.splat(x, register_type(v.dtype), w)
        self.levels[level].memo[key] = r
        return r

    def _emit(self, v: Value, guarded: bool) -> str:
        vec = self.is_vector(v)
        w = self.lane[1] if vec and self.lane else 1
        get = self.lanes_of if vec else self.value
        if isinstance(v, Index):
            return self._index_vector(v.dim, w) if vec else self.dim_value(v.dim)
        if isinstance(v, Load):
            return self._load(v, w if vec else 1, guarded)
        assert isinstance(v, Fn), f"{v!r} cannot be emitted"
        if v.name == "cast":
            x = get(v.args[0], guarded)
            return self.arith.cast(x, v.args[0].dtype, v.dtype, w)
        if v.name == "select":
            condition = self._settled(v.args[0])
            if isinstance(condition, Const):
                return get(v.args[1] if condition.value else v.args[2], guarded)
            if any(map(self.reads_pointers, v.args[1:])):
                return self.choose(v, condition, w, guarded)
            if vec and not self.is_vector(condition) and self._is_zero(v.args[2]):
                found = self._load_or_zero(v.args[1], condition, w)
                if found is not None:
                    return found
            if vec and self._between(condition) and self._neighbours(v.args[1], w):
                return self._load_inside(v, condition, w)
            c = get(condition, guarded)
            a, b = get(v.args[1], True), get(v.args[2], True)
            return self.arith.apply("select", v.dtype, w, [c, a, b])
        if vec and w > 1 and (found := self._lanes_before(v, w)) is not None:
            return found
        args = [get(a, guarded) for a in v.args]
        return self.arith.apply(v.name, v.args[-1].dtype, w, args)

    def _lanes_before(self, v: Fn, w: int) -> str | None:
        """A comparison of two index functions that differ by the lane and one number: the lanes
        before or after that number. Numbers of lanes are small where indices have 64 bits."""
        dims = [x.dim if isinstance(x, Index) else _whole_number(x) for x in v.args]
        if v.name not in ("lt", "le", "gt", "ge") or None in dims or self.lane is None:
            return None
        a, b = (x for x in dims if x is not None)
        small, large = (a, b) if v.name in ("lt", "le") else (b, a)
        lane = self._terms(large - small)[2]
        if lane not in (1, -1):
            return None
        more = self._more(small, large, int(v.name in ("le", "ge")))
        if more is None:
            return None
        low, high = (0, w) if lane == -1 else (1 - w, 1)
        base = self.arith_call("smin", self.arith_call("smax", more, str(low)), str(high))
        limit = self.arith.splat(self.put(f"trunc i64 {base} to i32"), "i32", w)
        numbers = ", ".join(f"i32 {-lane * k}" for k in range(w))
        return self.put(f"icmp slt <{w} x i32> <{numbers}>, {limit}")

    def _more(self, small: Dim, large: Dim, one: int) -> str | None:
        """By how much one index function is more than another in lane 0, and one more if asked for.
        Of numbers that need all 64 bits the difference may not fit: then the most that does."""
        assert self.lane is not None
        first = {self.lane[0]: 0}
        if not _is_far(large) and not _is_far(small):
            return self.dim(D.substitute(large - small, first) + one)
        if self._terms(small)[2] is None or self._terms(large)[2] is None:
            return None
        ends = (self.dim(D.substitute(x, first)) for x in (large, small))
        more = self.arith_call("ssub.sat", *ends)
        return self.arith_call("sadd.sat", more, "1") if one else more

    def _settled(self, condition: Value) -> Value:
        """A condition, as far as unrolled loops have not settled it."""
        at = {s: self.env.get(s) for s in condition.symbols()}
        table: dict[Sym, Dim] = {s: k for s, k in at.items() if isinstance(k, int)}
        if not table or condition.sources:
            return condition
        return condition.substitute(table)

    @staticmethod
    def _is_zero(v: Value) -> bool:
        return isinstance(v, Const) and v.value == 0 and not str(v.value).startswith("-")

    def _load_or_zero(self, v: Value, condition: Value, w: int) -> str | None:
        """Neighbours in memory where one condition holds for all of them, else zeros: the address
        is chosen, not the result. None where there are no such neighbours."""
        if not self._neighbours(v, w):
            return None
        assert isinstance(v, Load) and isinstance(v.source, str)
        b = self.buffers[v.source]
        const, terms, _ = self._terms(self._linear(b, v.index))
        t = f"<{w} x {memory_type(b.dtype)}>"
        c = self.value(condition, True)
        zeros = self.zeros.get(t)
        if zeros is None:
            zeros = self.zeros[t] = f"%{self.fresh('zeros')}"
            self.line(f"{zeros} = alloca {t}, align 64", entry=True)
            self.line(f"store {t} zeroinitializer, ptr {zeros}, align 64", entry=True)
        p = self.put(f"select i1 {c}, ptr {self.pointer(b, const, terms)}, ptr {zeros}")
        return self.arith.widen(self.put(f"load {t}, ptr {p}, align {b.dtype.bytes}"), b.dtype, w)

    def _neighbours(self, v: Value, w: int) -> bool:
        """Is it a read of as many neighbours in memory?"""
        if (
            not isinstance(v, Load)
            or v.source in self.lets  # a register
            or w == 1
            or any(True for i in v.index for _ in D.data_values(i))
        ):
            return False
        b = self.buffers[str(v.source)]
        return self._terms(self._linear(b, v.index))[2] == b.unit

    @staticmethod
    def _between(condition: Value) -> bool:
        """Does a condition hold for all lanes if it does for the first and the last?"""
        for part in parts_of(condition):
            if not isinstance(part, Fn) or part.name not in ("lt", "le", "gt", "ge"):
                return False
            for x in part.args:
                affine = isinstance(x, Const) or (
                    isinstance(x, Index) and all(isinstance(a, Sym) for a in D.atoms(x.dim))
                )
                if not affine:
                    return False
        return True

    def _load_inside(self, v: Fn, condition: Value, w: int) -> str:
        """A choice between neighbours in memory and something else: one vector where all lanes
        choose the former, a choice for each lane elsewhere."""
        x = v.args[1]
        assert isinstance(x, Load) and self.lane is not None
        b = self.buffers[str(x.source)]
        ends = [self._with_lane(k, lambda: self.value(condition, True)) for k in (0, w - 1)]
        inside = self.put(f"and i1 {ends[0]}, {ends[1]}")

        def slow() -> str:
            c, other = self.lanes_of(condition, True), self.lanes_of(v.args[2], True)
            edge = self._load_at(b, self._clamped(b, x.index), w)
            return self.arith.apply("select", v.dtype, w, [c, edge, other])

        t = vector(register_type(v.dtype), w)
        return self._either(inside, t, lambda: self._load_at(b, x.index, w), slow)

    def _either(self, c: str, t: str, yes: Callable[[], str], no: Callable[[], str]) -> str:
        """One of two computations; nearly always the first."""
        n = self.fresh("g")
        self.line(f"br i1 {c}, label %{n}.in, label %{n}.edge{self.likely()}")
        level = self.levels[self.depth]
        saved = dict(level.memo)
        results = []
        for name, compute in (("in", yes), ("edge", no)):
            self.label(f"{n}.{name}")
            level.memo = dict(saved)
            results.append(compute())
            self.line(f"br label %{n}.{name}.end")
            self.label(f"{n}.{name}.end")
            self.line(f"br label %{n}.join")
        level.memo = saved
        self.label(f"{n}.join")

        def chosen(v: str, fast: str, slow: str) -> str:
            return f"phi {v} [ {fast}, %{n}.in.end ], [ {slow}, %{n}.edge.end ]"

        r = self.put(chosen(t, *results))
        lanes = int(t[1:].split(" x ")[0]) if t.startswith("<") else 1
        self.arith.joined(r, results, lanes, chosen)
        return r

    # ---- through pointers: llvm/masked.py

    def choose(self, v: Fn, condition: Value, w: int, guarded: bool) -> str:
        raise AssertionError("pointers are read by the emitter")

    def load_through(self, b: Buffer, index: tuple[Dim, ...], w: int) -> str:
        raise AssertionError("pointers are read by the emitter")

    def gather(self, b: Buffer, index: tuple[Dim, ...], w: int) -> str:
        raise AssertionError("pointers are read by the emitter")

    def dim_value(self, x: Dim) -> str:
        return self.dim(x)

    def _index_vector(self, x: Dim, w: int) -> str:
        assert self.lane is not None
        const, terms, lane = self._terms(x)
        if lane is None:
            return self._build([self._with_lane(k, lambda: self.dim(x)) for k in range(w)], "i64")
        steps = (
            "<" + ", ".join(f"i64 {const + lane * k}" for k in range(w)) + ">"
            if w > 1
            else str(const)
        )
        if not terms:
            return steps
        rest = x - lane * D.as_int(self.lane[0]) - const
        base = self.dim(rest)
        if w == 1:
            return self.put(f"add i64 {base}, {steps}")
        v = self.arith.splat(base, "i64", w)
        return self.put(f"add <{w} x i64> {v}, {steps}")

    def _with_lane(self, k: int, f: Any) -> Any:
        """Run f with the lane fixed to k: everything is scalar."""
        assert self.lane is not None
        s, saved = self.lane[0], self.lane
        self.lane = None
        self.env[s] = k
        try:
            return f()
        finally:
            self.lane = saved
            self.env[s] = LANE

    def _build(self, xs: list[str], t: str) -> str:
        if len(xs) == 1:
            return xs[0]
        v = vector(t, len(xs))
        r = "poison"
        for k, x in enumerate(xs):
            r = self.put(f"insertelement {v} {r}, {t} {x}, i64 {k}")
        return r

    def _load(self, v: Load, w: int, guarded: bool) -> str:
        assert isinstance(v.source, str)
        if v.source in self.lets:
            return self._let_value(v)
        b = self.buffers[v.source]
        if b.pointer:
            return self.load_through(b, self._indices_inside(v.index) if guarded else v.index, w)
        if guarded and not self.in_range(b, v.index):
            return self._guarded_load(b, self._indices_inside(v.index), w)
        return self._load_at(b, v.index, w)

    def _let_value(self, v: Load) -> str:
        """What a let was set to."""
        let, at = self.lets[str(v.source)], [self.env[D.the_sym(i)] for i in v.index]
        lane = None if let.lanes is None else at.pop(let.lanes)
        x = let.registers[tuple(at)]
        if lane is None or lane == LANE:
            return x
        shape = self.buffers[str(v.source)].shape[let.lanes or 0]
        assert isinstance(shape, int)
        t = vector(register_type(v.dtype), shape)
        return self.put(f"extractelement {t} {x}, i64 {lane}")

    def _indices_inside(self, index: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Where an index is itself read from memory, that read is kept inside its buffer too."""

        def inside(x: Load) -> Value:
            b = self.buffers[str(x.source)]
            return x if b.pointer else load(b.name, self._clamped(b, x.index), x.dtype)

        return tuple(
            D.substitute(i, {}, lambda v: rewrite(v, on_load=inside))
            if any(True for _ in D.data_values(i))
            else i
            for i in index
        )

    def _load_at(self, b: Buffer, index: tuple[Dim, ...], w: int) -> str:
        lin = self._linear(b, index)
        t = memory_type(b.dtype)
        if w == 1 and self.lane is None:
            const, terms, _ = self._terms(lin)
            p = self.pointer(b, const, terms)
            return self.arith.widen(
                self.put(f"load {t}, ptr {p}, align {b.dtype.bytes}"), b.dtype, 1
            )
        const, terms, lane = self._terms(lin)
        if lane is not None and b.unit > 1:
            lane = lane // b.unit if lane % b.unit == 0 else None
        if lane == 0:
            p = self.pointer(b, const, terms)
            x = self.arith.widen(self.put(f"load {t}, ptr {p}, align {b.dtype.bytes}"), b.dtype, 1)
            return self.arith.splat(x, register_type(b.dtype), w) if w > 1 else x
        if lane is not None and 1 <= abs(lane) <= 4 and w > 1:
            span = (w - 1) * abs(lane) + 1
            first = const if lane > 0 else const + lane * (w - 1) * b.unit
            p = self.pointer(b, first, terms)
            align = self.alignment(b, lin, w) if lane == 1 else b.dtype.bytes
            x = self.put(f"load <{span} x {t}>, ptr {p}, align {align}")
            if lane != 1:
                pick = range(0, span, abs(lane)) if lane > 0 else range(span - 1, -1, -abs(lane))
                mask = ", ".join(f"i32 {k}" for k in pick)
                x = self.put(
                    f"shufflevector <{span} x {t}> {x}, <{span} x {t}> poison, <{w} x i32> <{mask}>"
                )
            return self.arith.widen(x, b.dtype, w)
        if b.pointer:
            return self.gather(b, index, w)
        xs = [self._with_lane(k, lambda: self._load_at(b, index, 1)) for k in range(w)]
        return self._build(xs, register_type(b.dtype))

    def alignment(self, b: Buffer, lin: Dim, w: int) -> int:
        """What the address of so many neighbours is known to be a multiple of."""
        return b.dtype.bytes

    def _clamped(self, b: Buffer, index: tuple[Dim, ...]) -> tuple[Dim, ...]:
        out = []
        for i, n in zip(index, b.shape, strict=True):
            if not D.known_lt(i, n):
                i = D.minimum(i, n - 1)
            if not D.nonneg(i):
                i = D.maximum(i, 0)
            out.append(i)
        return tuple(out)

    def _guarded_load(self, b: Buffer, index: tuple[Dim, ...], w: int) -> str:
        """A read only used where a condition holds: its address is kept inside the buffer."""
        safe = self._clamped(b, index)
        if w == 1 or self.lane is None:
            return self._load_at(b, safe, 1)
        s = self.lane[0]
        moving = [k for k, i in enumerate(index) if s in D.symbols(i)]
        _, _, lane = self._terms(self._linear(b, index))
        if lane != 1 or len(moving) != 1 or D.coefficient(index[moving[0]], s) != 1:
            return self._load_at(b, safe, w)
        # One vector where all lanes are inside, one access per lane at the edges.
        k = moving[0]
        first = self._with_lane(0, lambda: self.dim(index[k]))
        last = self._with_lane(w - 1, lambda: self.dim(index[k]))
        low = self.put(f"icmp sge i64 {first}, 0")
        high = self.put(f"icmp slt i64 {last}, {self.dim(b.shape[k])}")
        inside = self.put(f"and i1 {low}, {high}")
        mixed = tuple(index[j] if j == k else i for j, i in enumerate(safe))
        return self._either(
            inside,
            vector(register_type(b.dtype), w),
            lambda: self._load_at(b, mixed, w),
            lambda: self._load_at(b, safe, w),
        )
