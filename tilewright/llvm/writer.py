"""Writing a function of LLVM text: where code goes, integers, addresses.

Every loop around the code being written is a level. A value is written at the outermost level at
which all it depends on is known (before the loops that do not change it), once, and remembered
there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tilewright.ir import dim as D
from tilewright.ir.dim import Data, Dim, Quo, Sym
from tilewright.ir.expr import Value
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import Nest, Stmt, writes
from tilewright.llvm.opaque import DECLARATION, opaque
from tilewright.llvm.scalars import Arith, memory_type, register_type

LANE = "lane"
# From so many constant steps on an address is kept apart from them: see llvm/opaque.py.
MANY_STEPS = 6

_ON_NUMBERS: dict[str, Callable[[int, int], int]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "min": min,
    "max": max,
}


@dataclass(frozen=True)
class Test:
    """A condition under which memory is read or written, and whether it is to hold. One that was
    settled for the lanes has its vector: what it read may have changed since."""

    condition: Value
    holds: bool
    lanes: str | None = None
    lane: Sym | None = None  # the variable of those lanes
    width: int = 1  # how many they are


class _Moving:
    """The line of an address that a loop changes, and how many constant steps are taken from it."""

    def __init__(self, line: str) -> None:
        self.lines, self.steps = [line], 0


@dataclass
class Level:
    """One loop around the code being written: what was computed in it, what goes before it."""

    pre: list[Any]
    memo: dict[Any, Any] = field(default_factory=dict)


@dataclass
class Let:
    """A buffer that is a register (kernel/legal/hoist.py), or one per iteration of the unrolled
    loops around it."""

    level: int = 0  # where it was set
    lanes: int | None = None  # the axis along which it is a vector
    registers: dict[tuple[Any, ...], str] = field(default_factory=dict)


class Metadata:
    """The numbered metadata of a module."""

    def __init__(self, unrolls: bool = False) -> None:
        self.lines: list[str] = []
        self.unrolls = unrolls  # some loop of the module asks to be unrolled

    def node(self, content: str) -> str:
        """The number of a node, which is shared by all who ask for this content."""
        for line in self.lines:
            number, _, known = line.partition(" = ")
            if known == content:
                return number
        self.lines.append(f"!{len(self.lines)} = {content}")
        return f"!{len(self.lines) - 1}"

    def unroll(self, count: int | None) -> str:
        """What the branch of a loop that is unrolled so many times says; where LLVM unrolls at all,
        all others say that they are not. Each loop has a node of its own."""
        if not self.unrolls:
            return ""
        how = f'!"llvm.loop.unroll.count", i32 {count}' if count else '!"llvm.loop.unroll.disable"'
        times = self.node(f"!{{{how}}}")
        own = f"!{len(self.lines)}"
        self.lines.append(f"{own} = distinct !{{{own}, {times}}}")
        return f", !llvm.loop {own}"


def _flat(code: list[Any]) -> Iterator[str]:
    for x in code:
        if isinstance(x, list):
            yield from _flat(x)
        else:
            yield x


class Writer:
    def __init__(self, n: Nest, arith: Arith, args: list[Buffer]) -> None:
        self.n, self.arith, self.args = n, arith, args
        self.entry: list[Any] = []
        self.out: list[Any] = []
        self.code = [self.entry, self.out]
        self.count = 0
        self.levels = [Level([])]
        self.depth = 0  # where code is being written; less than len(levels)-1 while hoisting
        self.env: dict[Sym, Any] = {}  # (ssa, level) | int | LANE
        self.base: dict[str, tuple[str, int]] = {}
        self.buffers: dict[str, Buffer] = {b.name: b for b in n.buffers}
        self.epoch: dict[str, int] = {}
        self.lane: tuple[Sym, int] | None = None
        self.freed: set[str] = set()
        self.lets: dict[str, Let] = {b.name: Let() for b in n.buffers if b.scope == "let"}
        self.under: tuple[Test, ...] = ()  # of pointers only what these choose may be touched
        self.metadata = Metadata()
        self.streams = False  # results go past the caches
        self.linear: dict[Any, Dim] = {}
        self.zeros: dict[str, str] = {}  # memory that holds them, by type
        self.pointers = frozenset(b.name for b in n.buffers if b.pointer)
        self.base.update((b.name, ("null", 0)) for b in n.buffers if b.scope == "memory")
        self.mutable = self.changed(n.body)
        self._reads: dict[frozenset[Any], tuple[str, ...]] = {}
        self._moving: dict[str, _Moving] = {}  # addresses that a loop changes
        arith.put = self.put

    # ---- text

    def put(self, text: str) -> str:
        self.count += 1
        r = f"%v{self.count}"
        self.out.append(f"  {r} = {text}")
        return r

    def line(self, text: str, entry: bool = False) -> None:
        (self.entry if entry else self.out).append("  " + text)

    def label(self, name: str) -> None:
        self.out.append(f"{name}:")

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def likely(self) -> str:
        """What a branch says that nearly always goes to its first place: the other one spills."""
        weights = '!{!"branch_weights", i32 1000, i32 1}'
        return f", !prof {self.metadata.node(weights)}"

    def lines(self) -> list[str]:
        return list(_flat(self.code))

    def arith_call(self, name: str, a: str, b: str) -> str:
        return self.arith.intrinsic(name, "i64", 1, a, b)

    def enter(self, args: str, dims: str) -> None:
        for k, b in enumerate(self.args):
            slot = self.put(f"getelementptr ptr, ptr {args}, i64 {k}")
            self.base[b.name] = (self.put(f"load ptr, ptr {slot}, align 8"), 0)
        for k, s in enumerate(self.n.dims):
            slot = self.put(f"getelementptr i64, ptr {dims}, i64 {k}")
            self.env[s] = (self.put(f"load i64, ptr {slot}, align 8"), 0)

    # ---- where code goes

    def _at(self, level: int) -> list[Any]:
        return self.out if level >= self.depth else self.levels[level + 1].pre

    class _Hoist:
        def __init__(self, f: Writer, level: int) -> None:
            self.f, self.level = f, min(level, f.depth)

        def __enter__(self) -> None:
            self.saved = (self.f.out, self.f.depth)
            self.f.out, self.f.depth = self.f._at(self.level), self.level

        def __exit__(self, *_: object) -> None:
            self.f.out, self.f.depth = self.saved

    def touch(self, s: Stmt) -> None:
        """Memory written by s is new from here on."""
        for name in self.changed((s,)):
            self.epoch[name] = self.epoch.get(name, 0) + 1

    def changed(self, body: tuple[Stmt, ...]) -> frozenset[str]:
        """The buffers that statements may change: pointers may be into the same memory."""
        found = writes(body)
        return frozenset(found | self.pointers if found & self.pointers else found)

    # ---- integers

    def dim(self, x: Dim) -> str:
        """An i64; no lane in it."""
        if isinstance(x, int):
            return str(x)
        key = (x, self._constants(D.symbols(x)), self._epochs_of_dim(x))
        for level in self.levels[: self.depth + 1]:
            if key in level.memo:
                return level.memo[key]
        const, terms, lane = self._terms(x)
        assert lane == 0, f"{x} has a lane where a scalar is needed"
        total = ""
        where = 0
        for level in sorted(terms):
            where = level
            with self._Hoist(self, level):
                part = self._sum(terms[level])
                total = part if not total else self.put(f"add i64 {total}, {part}")
        if not total:
            return str(const)
        if const:
            with self._Hoist(self, where):
                total = self.put(f"add i64 {total}, {const}")
        self.levels[min(where, self.depth)].memo[key] = total
        return total

    def _sum(self, terms: list[tuple[int, tuple[str, ...]]]) -> str:
        total = ""
        for c, factors in terms:
            p = factors[0]
            for f in factors[1:]:
                p = self.put(f"mul i64 {p}, {f}")
            if c != 1:
                p = self.put(f"mul i64 {p}, {c}")
            total = p if not total else self.put(f"add i64 {total}, {p}")
        return total

    def _offset(self, terms: list[tuple[int, tuple[str, ...]]], level: int) -> str:
        """A sum of terms, shared between the addresses that need it."""
        key = ("sum", tuple(terms))
        for l in self.levels[: self.depth + 1]:
            if key in l.memo:
                return l.memo[key]
        with self._Hoist(self, level):
            r = self.levels[min(level, self.depth)].memo[key] = self._sum(terms)
        return r

    def _constants(self, syms: frozenset[Sym]) -> tuple[Any, ...]:
        return tuple((s, e) for s in syms if isinstance(e := self.env.get(s), int))

    def _epochs_of_dim(self, x: Dim) -> tuple[Any, ...]:
        vals = list(D.data_values(x))
        return tuple(e for v in vals for e in (*self._epochs(v), *self._masks(v))) if vals else ()

    def _terms(
        self, x: Dim
    ) -> tuple[int, dict[int, list[tuple[int, tuple[str, ...]]]], int | None]:
        """(constant, terms by level, coefficient of the lane; None where it is not affine)."""
        const, lane = 0, 0
        terms: dict[int, list[tuple[int, tuple[str, ...]]]] = {}
        if isinstance(x, int):
            return x, terms, 0
        for mono, c in x.terms:
            factors: list[str] = []
            level, lanes = 0, 0
            for atom in mono:
                if isinstance(atom, Sym):
                    e = self.env[atom]
                    if isinstance(e, int):
                        c *= e
                        continue
                    if e == LANE:
                        lanes += 1
                        continue
                    ssa, lv = e
                else:
                    if self.lane and self.lane[0] in D.symbols(D.from_atom(atom)):
                        return 0, {}, None
                    got = self._atom(atom)
                    if isinstance(got, int):
                        c *= got
                        continue
                    ssa, lv = got
                factors.append(ssa)
                level = max(level, lv)
            if lanes:
                if lanes > 1 or factors:
                    return 0, {}, None
                lane += c
            elif not factors:
                const += c
            elif c:
                terms.setdefault(level, []).append((c, tuple(factors)))
        return const, terms, lane

    def _level_of_dim(self, x: Dim) -> int:
        level = 0
        for s in D.symbols(x):
            e = self.env.get(s)
            if isinstance(e, tuple):
                level = max(level, e[1])
        for v in D.data_values(x):
            level = max(level, self._level(v))
        return level

    def _atom(self, atom: Any) -> Any:
        if isinstance(atom, Data):
            level = min(self._level(atom.value), self.depth)
            with self._Hoist(self, level):
                ssa = self.value(atom.value)
                d = atom.value.dtype
                if d.bits < 64 or d.is_bool:
                    ext = "sext" if d.kind == "i" else "zext"
                    ssa = self.put(f"{ext} {register_type(d)} {ssa} to i64")
            return ssa, level
        assert isinstance(atom, Quo)
        whole = D.from_atom(atom)
        level = min(self._level_of_dim(whole), self.depth)
        key = ("atom", atom, self._constants(D.symbols(whole)), self._epochs_of_dim(whole))
        for lv, l in enumerate(self.levels[: self.depth + 1]):
            if key in l.memo:
                found = l.memo[key]
                return found if isinstance(found, int) else (found, lv)
        with self._Hoist(self, level):
            a, b = self.dim(atom.a), self.dim(atom.b)
            if a.lstrip("-").isdigit() and b.lstrip("-").isdigit():
                r: Any = _ON_NUMBERS[atom.op](int(a), int(b))
                self.levels[level].memo[key] = r
                return r
            if atom.op in ("min", "max"):
                r = self.arith_call("s" + atom.op, a, b)
            elif D.bounds(atom.a)[0] >= 0:
                code = "udiv" if atom.op == "floordiv" else "urem"
                r = (
                    self._short(code, a, b)
                    if self._fits(atom)
                    else self.put(f"{code} i64 {a}, {b}")
                )
            else:
                q = self.put(f"sdiv i64 {a}, {b}")
                rem = self.put(f"sub i64 {a}, {self.put(f'mul i64 {q}, {b}')}")
                neg = self.put(f"icmp slt i64 {rem}, 0")
                if atom.op == "floordiv":
                    r = self.put(f"select i1 {neg}, i64 {self.put(f'sub i64 {q}, 1')}, i64 {q}")
                else:
                    r = self.put(
                        f"select i1 {neg}, i64 {self.put(f'add i64 {rem}, {b}')}, i64 {rem}"
                    )
        self.levels[level].memo[key] = r
        return r, level

    short_division = False  # half as many bits take the machine much less time

    def _fits(self, q: Quo) -> bool:
        ends = (*D.bounds(q.a), *D.bounds(q.b))
        return self.short_division and all(0 <= e < 1 << 32 for e in ends)

    def _short(self, code: str, a: str, b: str) -> str:
        a, b = (x if x.isdigit() else self.put(f"trunc i64 {x} to i32") for x in (a, b))
        return self.put(f"zext i32 {self.put(f'{code} i32 {a}, {b}')} to i64")

    # ---- addresses

    steps_apart = False  # may addresses be opaque to LLVM?

    def _linear(self, b: Buffer, index: tuple[Dim, ...]) -> Dim:
        key = (b.name, index)
        found = self.linear.get(key)
        if found is None:
            found = self.linear[key] = linear_index(b, index)
        return found

    def pointer(
        self, b: Buffer, const: int, terms: dict[int, list[tuple[int, tuple[str, ...]]]]
    ) -> str:
        """Partial addresses are written where they stop changing, outermost first."""
        if b.scope == "memory":
            parts = [self._offset(terms[level], level) for level in sorted(terms)]
            total = str(const)
            for x in parts:
                total = self.put(f"add i64 {x}, {total}")
            return self.put(f"inttoptr i64 {total} to ptr")
        p, level0 = self.base[b.name]
        t = memory_type(b.dtype)
        key: tuple[Any, ...] = ("ptr", b.name, p)
        reached = level0
        for level in sorted(terms):
            reached = max(reached, level)
            key = (*key, tuple(terms[level]))
            found = None
            for l in self.levels[: self.depth + 1]:
                found = l.memo.get(key)
                if found is not None:
                    break
            if found is None:
                at = self._offset(terms[level], level)
                with self._Hoist(self, reached):
                    found = self.put(f"getelementptr {t}, ptr {p}, i64 {at}")
                    if reached and self.steps_apart:
                        self._moving[found] = cell = _Moving(self.out.pop())
                        self.out.append(cell.lines)
                self.levels[min(reached, self.depth)].memo[key] = found
            p = found
        if not const:
            return p
        if (cell := self._moving.get(p)) is not None:
            cell.steps += 1
            if cell.steps == MANY_STEPS:
                self.arith.declares.add(DECLARATION)
                moved = cell.lines[0].replace(p, f"{p}.at", 1)
                cell.lines[:] = [moved, f"  {p} = {opaque(f'{p}.at')}"]
        return self.put(f"getelementptr {t}, ptr {p}, i64 {const}")

    # ---- what a value depends on

    def _reads_of(self, v: Value) -> tuple[str, ...]:
        """The buffers that v reads, in a fixed order."""
        hit = self._reads.get(v.sources)
        if hit is None:
            hit = self._reads[v.sources] = tuple(sorted(map(str, v.sources)))
        return hit

    def _epochs(self, v: Value) -> tuple[Any, ...]:
        return tuple((b, self.epoch.get(b, 0)) for b in self._reads_of(v) if b in self.mutable)

    def reads_pointers(self, v: Value) -> bool:
        return bool(self.pointers) and any(b in self.pointers for b in self._reads_of(v))

    def _masks(self, v: Value) -> tuple[Any, ...]:
        """What v depends on where it is read under conditions."""
        if not self.under or not self.reads_pointers(v):
            return ()
        tests = ((t, t.condition) for t in self.under)
        return tuple((t, self._constants(c.symbols()), self._epochs(c)) for t, c in tests)

    def _level(self, v: Value) -> int:
        """Memory is read where the nest reads it; arithmetic goes as far out as it can."""
        level = 0
        for b in self._reads_of(v):
            if b not in self.lets:
                return self.depth
            level = max(level, self.lets[b].level)
        for s in v.symbols():
            e = self.env.get(s)
            if isinstance(e, tuple) and e[1] > level:
                level = e[1]
        return level

    def in_range(self, b: Buffer, index: tuple[Dim, ...]) -> bool:
        inside = (D.nonneg(i) and D.known_lt(i, n) for i, n in zip(index, b.shape, strict=True))
        return not b.pointer and all(inside)

    def value(self, v: Value, guarded: bool = False) -> str:
        raise AssertionError("values are written by the emitter")
