"""Memory behind pointers: only what the conditions in force choose is touched.

Of a pointer nothing but the address is known, so no address can be kept inside a buffer as it is
for other arguments. What is read under a `select`, or written under an `If`, is read and written
under a branch (one value) or a mask (lanes). Where lanes may all choose alike the nest has versions
without a mask (kernel/legal/masks.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from tilewright.ir import dim as D
from tilewright.ir.dim import Data, Dim, Quo, Sym
from tilewright.ir.expr import Fn, Value
from tilewright.kernel.dependence import split_terms
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import Store
from tilewright.llvm.scalars import memory_type, register_type, suffix, vector
from tilewright.llvm.values import Values
from tilewright.llvm.writer import Test


class Masked(Values):
    masks = True  # the machine has masked accesses
    keeping = ""  # how functions are called that leave most vector registers alone

    # ---- conditions

    @contextmanager
    def _testing(self, tests: tuple[Test, ...]) -> Iterator[None]:
        """These conditions are in force."""
        saved, self.under = self.under, tests
        yield
        self.under = saved

    @contextmanager
    def _settled_by_branch(self) -> Iterator[None]:
        """A branch has settled all conditions."""
        saved, self.under = self.under, ()
        yield
        self.under = saved

    def _not(self, x: str, w: int) -> str:
        return self.put(f"xor {vector('i1', w)} {x}, {self.arith.splat_literal('true', 'i1', w)}")

    def _and(self, xs: list[str], w: int) -> str:
        total = xs[0]
        for x in xs[1:]:
            total = self.put(f"and {vector('i1', w)} {total}, {x}")
        return total

    def _varies(self, t: Test) -> bool:
        return self.lane is not None and (t.lanes is not None or self.is_vector(t.condition))

    def _one(self, t: Test) -> str:
        """Whether a test is passed, where that is one bit."""
        if t.lanes is not None:
            assert t.lane is not None
            return self.put(f"extractelement <{t.width} x i1> {t.lanes}, i64 {self.env[t.lane]}")
        x = self.value(t.condition, True)
        return x if t.holds else self._not(x, 1)

    def _each(self, t: Test, w: int) -> str:
        """Which lanes pass a test."""
        if t.lanes is not None:
            return t.lanes
        x = self.lanes_of(t.condition, True)
        return x if t.holds else self._not(x, w)

    def _every(self) -> Iterator[Test]:
        """The conditions in force, each while those before it are."""
        for k, t in enumerate(self.under):
            with self._testing(self.under[:k]):
                yield t

    def passed(self) -> str:
        """Are all conditions in force fulfilled? One bit: outside lanes, or in one of them."""
        return self._and([self._one(t) for t in self._every()], 1)

    def mask(self, w: int) -> str:
        """The lanes that fulfil all conditions in force."""
        return self._and([self._each(t, w) for t in self._every()], w)

    def across(self, how: str, mask: str, w: int) -> str:
        """`and` or `or` of the lanes of a mask."""
        name = f"@llvm.vector.reduce.{how}.{suffix('i1', w)}"
        self.arith.declares.add(f"declare i1 {name}(<{w} x i1>)")
        return self.put(f"call i1 {name}(<{w} x i1> {mask})")

    # ---- reading

    def choose(self, v: Fn, condition: Value, w: int, guarded: bool) -> str:
        """A choice where one of both is behind a pointer: that is read where it is chosen."""
        t = vector(register_type(v.dtype), w)
        yes, no = ((*self.under, Test(condition, holds)) for holds in (True, False))
        if not self.under and not self.is_vector(condition):
            c = self.value(condition, guarded)
            return self._either(c, t, *(partial(self._settled_arm, x, w) for x in v.args[1:]))

        c = self.lanes_of(condition, guarded) if w > 1 else self.value(condition, guarded)
        arms: list[str] = []
        for tests, x in ((yes, v.args[1]), (no, v.args[2])):
            with self._testing(tests):
                arms.append(self._arm(x, w))
        return self.arith.apply("select", v.dtype, w, [c, *arms])

    def _arm(self, v: Value, w: int) -> str:
        return self.lanes_of(v, True) if w > 1 else self.value(v, True)

    def _settled_arm(self, v: Value, w: int) -> str:
        with self._settled_by_branch():
            return self._arm(v, w)

    def load_through(self, b: Buffer, index: tuple[Dim, ...], w: int) -> str:
        """What is behind a pointer, where the conditions in force hold; zeros elsewhere."""
        if not self.under:
            return self._load_at(b, index, w)
        t = vector(register_type(b.dtype), w)

        def plain() -> str:
            with self._settled_by_branch():
                return self._load_at(b, index, w)

        def zero() -> str:
            return self.arith.const(0, b.dtype, w)

        if self.lane is None or not any(map(self._varies, self.under)):
            return self._either(self.passed(), t, plain, zero)
        lanes = self.lane[1]
        if w == 1:
            return self._either(self.across("or", self.mask(lanes), lanes), t, plain, zero)
        return self._load_masked(b, index, w)

    def _load_masked(self, b: Buffer, index: tuple[Dim, ...], w: int) -> str:
        m = self.mask(w)
        lin = self._linear(b, index)
        const, terms, lane = self._terms(lin)
        if lane == b.unit:
            x = self._masked_load(b, self.pointer(b, const, terms), m, w)
        elif lane is not None:
            x = self._masked_gather(b, self.addresses(b, lin, w), m, w)
        else:
            x = self._either(
                self._beside(b, lin, w),
                f"<{w} x {memory_type(b.dtype)}>",
                lambda: self._masked_load(b, self._first(b, lin), m, w),
                lambda: self._masked_gather(b, self.addresses(b, lin, w), m, w),
            )
        return self.arith.widen(x, b.dtype, w)

    def _masked_load(self, b: Buffer, p: str, m: str, w: int) -> str:
        v = f"<{w} x {memory_type(b.dtype)}>"
        name = f"@llvm.masked.load.{suffix(memory_type(b.dtype), w)}.p0"
        self.arith.declares.add(f"declare {v} {name}(ptr, i32, <{w} x i1>, {v})")
        given = f"ptr {{}}, i32 {b.dtype.bytes}, <{w} x i1> {{}}, {v} zeroinitializer"
        return self.put(self._access(v, name, given, (("ptr", p), (f"<{w} x i1>", m))))

    def _masked_gather(self, b: Buffer, p: str, m: str, w: int) -> str:
        v = f"<{w} x {memory_type(b.dtype)}>"
        name = f"@llvm.masked.gather.{suffix(memory_type(b.dtype), w)}.v{w}p0"
        self.arith.declares.add(f"declare {v} {name}(<{w} x ptr>, i32, <{w} x i1>, {v})")
        given = f"<{w} x ptr> {{}}, i32 {b.dtype.bytes}, <{w} x i1> {{}}, {v} zeroinitializer"
        return self.put(self._access(v, name, given, ((f"<{w} x ptr>", p), (f"<{w} x i1>", m))))

    def _access(self, result: str, name: str, given: str, args: tuple[tuple[str, str], ...]) -> str:
        """A call of a masked access. A machine without masks asks for every lane with a branch of
        its own, which is nothing to have in every place: there it is a function, once."""
        if self.masks:
            return f"call {result} {name}({given.format(*(v for _, v in args))})"
        own = name.replace("@llvm.", "@tw.")
        inner = given.format(*(f"%a{k}" for k in range(len(args))))
        call, back = f"call {result} {name}({inner})", "ret void"
        if result != "void":
            call, back = f"%r = {call}", f"ret {result} %r"
        head = ", ".join(f"{t} %a{k}" for k, (t, _) in enumerate(args))
        self.arith.defines[own] = (
            f"define internal {self.keeping}{result} {own}({head}) noinline cold nounwind {{\n"
            f"  {call}\n  {back}\n}}"
        )
        return f"call {self.keeping}{result} {own}({', '.join(f'{t} {v}' for t, v in args)})"

    def gather(self, b: Buffer, index: tuple[Dim, ...], w: int) -> str:
        """One read for every lane, at addresses that are computed together; one for all where they
        turn out to be neighbours."""
        t = memory_type(b.dtype)
        lin = self._linear(b, index)

        def each() -> str:
            at = self.addresses(b, lin, w)
            xs: list[str] = []
            for k in range(w):
                p = self.put(f"extractelement <{w} x ptr> {at}, i64 {k}")
                xs.append(self.put(f"load {t}, ptr {p}, align {b.dtype.bytes}"))
            return self._build(xs, t)

        def whole() -> str:
            p = self._first(b, lin)
            return self.put(f"load <{w} x {t}>, ptr {p}, align {b.dtype.bytes}")

        known = self._terms(lin)[2] is not None
        x = each() if known else self._either(self._beside(b, lin, w), f"<{w} x {t}>", whole, each)
        return self.arith.widen(x, b.dtype, w)

    # ---- addresses of lanes

    def _beside(self, b: Buffer, lin: Dim, w: int) -> str:
        """Do all lanes, at an index that is no function of theirs before it is computed, lie one
        after the other?"""
        assert self.lane is not None
        step = D.coefficient(lin, self.lane[0])
        if step is not None:
            return self.put(f"icmp eq i64 {self.dim(step)}, {b.unit}")
        moving = split_terms(lin, {self.lane[0]})[1]
        epochs = self._epochs_of_dim(moving)
        key = ("beside", moving, w, b.unit, self._constants(D.symbols(moving)), epochs)
        for level in self.levels[: self.depth + 1]:
            if key in level.memo:
                return level.memo[key]
        level = min(self._level_of_dim(moving), self.depth)
        v = f"<{w} x i64>"
        with self._Hoist(self, level):
            x = self._dim_lanes(moving, w)
            first = self.put(f"shufflevector {v} {x}, {v} poison, <{w} x i32> zeroinitializer")
            steps = ", ".join(f"i64 {k * b.unit}" for k in range(w))
            wanted = self.put(f"add {v} {first}, <{steps}>")
            r = self.across("and", self.put(f"icmp eq {v} {x}, {wanted}"), w)
        self.levels[level].memo[key] = r
        return r

    def _first(self, b: Buffer, lin: Dim) -> str:
        """Where the first lane is."""
        const, terms, _ = self._with_lane(0, lambda: self._terms(lin))
        return self.pointer(b, const, terms)

    def addresses(self, b: Buffer, lin: Dim, w: int) -> str:
        x = self._dim_lanes(lin, w)
        if b.scope == "memory":
            return self.put(f"inttoptr <{w} x i64> {x} to <{w} x ptr>")
        t = memory_type(b.dtype)
        return self.put(f"getelementptr {t}, ptr {self.base[b.name][0]}, <{w} x i64> {x}")

    def _dim_lanes(self, x: Dim, w: int) -> str:
        """An index function for every lane."""
        assert self.lane is not None
        if self.lane[0] not in D.symbols(x):
            return self.arith.splat(self.dim(x), "i64", w)
        if self._terms(x)[2] is not None:
            return self._index_vector(x, w)
        assert isinstance(x, D.Int)
        v = f"<{w} x i64>"
        same: Dim = 0
        total = ""
        for mono, c in x.terms:
            fixed: Dim = c
            moving: list[str] = []
            for atom in mono:
                if self.lane[0] in D.symbols(D.from_atom(atom)):
                    moving.append(self._atom_lanes(atom, w))
                else:
                    fixed = fixed * D.from_atom(atom)
            if not moving:
                same = same + fixed
                continue
            if fixed != 1:
                moving.append(self.arith.splat(self.dim(fixed), "i64", w))
            p = moving[0]
            for f in moving[1:]:
                p = self.put(f"mul {v} {p}, {f}")
            total = p if not total else self.put(f"add {v} {total}, {p}")
        if same == 0:
            return total
        return self.put(f"add {v} {total}, {self.arith.splat(self.dim(same), 'i64', w)}")

    def _atom_lanes(self, atom: D.Atom, w: int) -> str:
        """An atom that differs between lanes."""
        v = f"<{w} x i64>"
        if isinstance(atom, Sym):
            return self._index_vector(D.as_int(atom), w)
        if isinstance(atom, Data):
            d = atom.value.dtype
            x = self.lanes_of(atom.value)
            if d.bits == 64 and not d.is_bool:
                return x
            how = "sext" if d.kind == "i" else "zext"
            return self.put(f"{how} {vector(register_type(d), w)} {x} to {v}")
        assert isinstance(atom, Quo)
        if atom.op in ("min", "max"):
            a, b = self._dim_lanes(atom.a, w), self._dim_lanes(atom.b, w)
            return self.arith.intrinsic(f"s{atom.op}", "i64", w, a, b)
        whole = D.from_atom(atom)
        return self._build([self._with_lane(k, lambda: self.dim(whole)) for k in range(w)], "i64")

    # ---- writing

    def store_masked(self, s: Store, b: Buffer, lin: Dim, w: int) -> None:
        """A store of the lanes that are chosen."""
        assert self.lane is not None, f"{s.stage} is masked outside lanes"
        x = self.lanes_of(s.value, True)
        m = self.mask(w)
        const, terms, lane = self._terms(lin)
        if lane == b.unit:
            p = self.pointer(b, const, terms)
            if s.function:
                old = self.arith.widen(self._masked_load(b, p, m, w), b.dtype, w)
                x = self.arith.combine(s.function, b.dtype, w, [old, x])
            self._store_interleaved(b, self.arith.narrow(x, b.dtype, w), p, m, w)
            return
        if lane is None and b.pointer and not s.function:
            x = self.arith.narrow(x, b.dtype, w)
            self.branch(
                self._beside(b, lin, w),
                lambda: self._store_interleaved(b, x, self._first(b, lin), m, w),
                lambda: self._scatter(b, x, lin, m, w),
            )
            return
        if lane != 0 and not s.function:
            self._scatter(b, self.arith.narrow(x, b.dtype, w), lin, m, w)
            return
        r = vector(register_type(b.dtype), w)
        for k in range(w):
            bit = self.put(f"extractelement <{w} x i1> {m}, i64 {k}")
            y = self.put(f"extractelement {r} {x}, i64 {k}")
            self.under_branch(bit, partial(self._store_lane, s, b, lin, k, y))

    def _store_lane(self, s: Store, b: Buffer, lin: Dim, k: int, y: str) -> None:
        t = memory_type(b.dtype)
        const, terms, _ = self._with_lane(k, lambda: self._terms(lin))
        p = self.pointer(b, const, terms)
        if s.function:
            old = self.put(f"load {t}, ptr {p}, align {b.dtype.bytes}")
            old = self.arith.widen(old, b.dtype, 1)
            y = self.arith.combine(s.function, b.dtype, 1, [old, y])
        y = self.arith.narrow(y, b.dtype, 1)
        self.line(f"store {t} {y}, ptr {p}, align {b.dtype.bytes}")

    def _store_interleaved(self, b: Buffer, x: str, p: str, m: str, w: int) -> None:
        t = memory_type(b.dtype)
        if b.dtype.bytes < 4 or t == "i32":
            m = self._unknown_mask(p, m, w)
        name = f"@llvm.masked.store.{suffix(t, w)}.p0"
        self.arith.declares.add(f"declare void {name}(<{w} x {t}>, ptr, i32, <{w} x i1>)")
        given = f"<{w} x {t}> {{}}, ptr {{}}, i32 {b.dtype.bytes}, <{w} x i1> {{}}"
        args = ((f"<{w} x {t}>", x), ("ptr", p), (f"<{w} x i1>", m))
        self.line(self._access("void", name, given, args))

    def _unknown_mask(self, p: str, m: str, w: int) -> str:
        """The same mask, by a condition that always holds and is not known to. Where LLVM for x86
        knows that one lane is stored it stores the wider number of which the lane was cut: 64 bits
        for an int32 that comes out of an int64 (issue 179489 of llvm-project)."""
        holds = self.put(f"icmp ne ptr {p}, inttoptr (i64 1 to ptr)")
        one = self.put(f"insertelement <{w} x i1> poison, i1 {holds}, i64 0")
        zeros = f"<{w} x i32> zeroinitializer"
        all_ = self.put(f"shufflevector <{w} x i1> {one}, <{w} x i1> poison, {zeros}")
        return self.put(f"and <{w} x i1> {m}, {all_}")

    def _scatter(self, b: Buffer, x: str, lin: Dim, m: str, w: int) -> None:
        t = memory_type(b.dtype)
        p = self.addresses(b, lin, w)
        name = f"@llvm.masked.scatter.{suffix(t, w)}.v{w}p0"
        self.arith.declares.add(f"declare void {name}(<{w} x {t}>, <{w} x ptr>, i32, <{w} x i1>)")
        given = f"<{w} x {t}> {{}}, <{w} x ptr> {{}}, i32 {b.dtype.bytes}, <{w} x i1> {{}}"
        args = ((f"<{w} x {t}>", x), (f"<{w} x ptr>", p), (f"<{w} x i1>", m))
        self.line(self._access("void", name, given, args))

    def scatter(self, b: Buffer, x: str, lin: Dim, w: int) -> None:
        """A store of all lanes (as they lie in memory) at addresses that have to be computed."""
        t = memory_type(b.dtype)

        def each() -> None:
            at = self.addresses(b, lin, w)
            for k in range(w):
                p = self.put(f"extractelement <{w} x ptr> {at}, i64 {k}")
                y = self.put(f"extractelement <{w} x {t}> {x}, i64 {k}")
                self.line(f"store {t} {y}, ptr {p}, align {b.dtype.bytes}")

        def whole() -> None:
            p = self._first(b, lin)
            self.line(f"store <{w} x {t}> {x}, ptr {p}, align {b.dtype.bytes}")

        self.branch(self._beside(b, lin, w), whole, each)

    def branch(
        self,
        condition: str,
        then: Callable[[], None],
        other: Callable[[], None] | None = None,
        likely: bool = False,
    ) -> None:
        raise AssertionError("branches are written by the emitter")

    def under_branch(self, bit: str, f: Callable[[], None]) -> None:
        raise AssertionError("branches are written by the emitter")
