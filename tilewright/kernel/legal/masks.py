"""Conditions that differ between lanes: a version for whole vectors, and one with a mask.

Behind a pointer only what a condition chooses may be touched, so lanes that choose differently take
a mask. Nearly always all of them choose alike, and then no mask is needed: that is tested
first. The next test is whether none is chosen, as for all vectors beyond the end of a row.

    lane j in 4:                             alloc m0
      y: y[j] = select(c(j), p[j], 0.0)      if c(0) & c(3):
                                               lane j in 4:
                                                 m0: m0[j] = p[j]
                                             else:
                                               if !c(0) & !c(3):
                                                 lane j in 4:
                                                   m0: m0[j] = 0.0
                                               else:
                                                 lane j in 4 pragma masked 1:
                                                   m0: m0[j] = select(c(j), p[j], 0.0)
                                             lane j in 4:
                                               y: y[j] = m0[j]

An `if` inside lanes becomes three versions of its bodies in the same way. A comparison of index
functions that changes at most once along the lanes holds for all if it does for the first and the
last. Other conditions are evaluated for every lane. What is in masked lanes is not changed again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

from tilewright.ir import dim as D
from tilewright.ir.conditions import parts_of
from tilewright.ir.expr import Fn, Index, Load, Rewriter, Value, const, fn, load
from tilewright.ir.target import Target
from tilewright.ir.types import b1
from tilewright.kernel.group import Buffer
from tilewright.kernel.legal.interleave import is_interleaved
from tilewright.kernel.legal.lanes import vector_lanes
from tilewright.kernel.nest import (
    MASKED,
    Alloc,
    If,
    Loop,
    Nest,
    Stmt,
    Store,
    bodies,
    transform,
    walk,
)


def version_masks(n: Nest, target: Target) -> Nest:
    """Lanes under a condition of their own in versions."""
    v = _Versions(n)
    body = transform(n.body, v.lanes)
    used = {s.buffer for s, _ in walk(body) if isinstance(s, Alloc)}  # not by versions left out
    return replace(n, buffers=(*n.buffers, *(b for b in v.made if b.name in used)), body=body)


def is_masked(s: Loop) -> bool:
    return bool(dict(s.pragmas).get(MASKED))


def is_likely(s: If) -> bool:
    """Is the other side of a test the one with a mask?"""
    return any(isinstance(x, Loop) and is_masked(x) for x, _ in walk(s.other))


@dataclass(frozen=True)
class _Choice:
    """A value that reads memory in some lanes: `read` where the tests hold, `other` elsewhere."""

    tests: tuple[Value, ...]
    read: Value
    other: Value


class _Versions:
    def __init__(self, n: Nest) -> None:
        self.pointers = frozenset(b.name for b in n.buffers if b.pointer)
        self.taken = {b.name for b in n.buffers}
        self.made: list[Buffer] = []
        self.count = 0

    def lanes(self, s: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(s, Loop) or s.kind != "lane" or is_masked(s):
            return (s,)
        width = vector_lanes(s)
        return _Lanes(self, s, width).statements(s.body) if width and width > 1 else (s,)

    def buffer(self, like: Value, shape: tuple[int, ...]) -> str:
        while f"m{self.count}" in self.taken:
            self.count += 1
        b = Buffer(f"m{self.count}", like.dtype, shape, "register")
        self.taken.add(b.name)
        self.made.append(b)
        return b.name

    def reads(self, v: Value) -> bool:
        return not self.pointers.isdisjoint(v.sources)


class _Lanes:
    """The statements of one lane loop."""

    def __init__(self, versions: _Versions, loop: Loop, width: int) -> None:
        self.versions, self.loop, self.width = versions, loop, width
        self.known: dict[int, tuple[Store, dict[Value, _Choice]]] = {}

    def statements(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """Lanes around each run of statements that need no versions, and the versions of others."""
        out: list[Stmt] = []
        run: list[Stmt] = []
        for s in body:
            if not self._differs(s):
                run.append(s)
                continue
            if run:
                out.append(self.loop.around(tuple(run)))
                run = []
            if isinstance(s, Loop) and is_interleaved(s):
                out += self._interleaved(s)
            elif isinstance(s, Loop):
                out.append(s.around(self.statements(s.body)))
            elif isinstance(s, If) and not self._varies(s.condition):
                out.append(If(s.condition, *map(self.statements, bodies(s))))
            elif isinstance(s, If):
                out += self._branch(s)
            else:
                assert isinstance(s, Store)
                allocated, versions, store = self._store(s)
                out += [*allocated, *versions, self._around(store)]
        if run:
            out.append(self.loop.around(tuple(run)))
        return tuple(out)

    def _differs(self, s: Stmt) -> bool:
        """Is there something in a statement for which lanes may choose differently?"""
        if isinstance(s, Store):
            return bool(self._choices(s))
        if isinstance(s, If) and self._varies(s.condition):
            return True
        return any(self._differs(x) for body in bodies(s) for x in body)

    def _varies(self, v: Value) -> bool:
        return self.loop.var in v.symbols()

    # ---- tests

    def _at(self, v: Value, lane: int) -> Value:
        return v.substitute({self.loop.var: lane})

    def _ends(self, v: Value) -> Value:
        return fn("and", self._at(v, 0), self._at(v, self.width - 1))

    def _is_steady(self, part: Value) -> bool:
        """Does a comparison change no more than once along the lanes?"""
        return (
            isinstance(part, Fn)
            and part.name in ("lt", "le", "gt", "ge")
            and all(not self._varies(x) or self._is_affine(x) for x in part.args)
        )

    def _is_affine(self, x: Value) -> bool:
        return isinstance(x, Index) and isinstance(D.coefficient(x.dim, self.loop.var), int)

    def _everywhere(self, tests: tuple[Value, ...]) -> tuple[list[Stmt], Value]:
        """Whether tests hold in all lanes, and what has to be computed for that."""
        bits: list[Value] = []
        rest: list[Value] = []
        for t in tests:
            parts = parts_of(t)
            if not self._varies(t):
                bits.append(t)
            elif all(map(self._is_steady, parts)):
                bits.append(self._ends(t))
            else:
                rest.append(t)
        if not rest:
            return [], _all(bits)
        name = self.versions.buffer(rest[0], ())
        each = Store(name, name, (), _all(rest), "and")
        first = Store(name, name, (), const(True, b1))
        before: list[Stmt] = [Alloc(name), first, self._around(each)]
        return before, _all([*bits, load(name, (), b1)])

    def _nowhere(self, tests: tuple[Value, ...]) -> Value | None:
        """Whether some test holds in no lane; None where the test costs as much as a mask."""
        bits: list[Value] = []
        for t in tests:
            for part in parts_of(t):
                if not self._varies(part):
                    bits.append(_not(part))
                elif self._is_steady(part):
                    ends = (_not(self._at(part, k)) for k in (0, self.width - 1))
                    bits.append(_all(list(ends)))
        return reduce(lambda a, b: fn("or", a, b), bits) if bits else None

    # ---- versions

    def _around(self, *body: Stmt) -> Loop:
        return self.loop.around(body)

    def _masked(self, *body: Stmt) -> Loop:
        return replace(self.loop, body=body, pragmas=(*self.loop.pragmas, (MASKED, 1)))

    def _three(
        self,
        tests: tuple[Value, ...],
        whole: tuple[Stmt, ...],
        none: tuple[Stmt, ...],
        masked: Loop,
    ) -> list[Stmt]:
        before, everywhere = self._everywhere(tests)
        nowhere = self._nowhere(tests)
        rest: Stmt = masked if nowhere is None else If(nowhere, none, (masked,))
        return [*before, If(everywhere, whole, (rest,))]

    def _branch(self, s: If) -> list[Stmt]:
        then, other = (self.statements(x) for x in (s.then, s.other))
        return self._three((s.condition,), then, other, self._masked(s))

    def _interleaved(self, s: Loop) -> list[Stmt]:
        """The stores of all iterations are one: before it, what each of them reads."""
        (store,) = s.body
        assert isinstance(store, Store)
        allocated, versions, store = self._store(store, s)
        whole = replace(s, body=tuple(versions), pragmas=())
        return [*allocated, whole, self._around(s.around((store,)))]

    def _store(self, s: Store, each: Loop | None = None) -> tuple[list[Stmt], list[Stmt], Store]:
        """Memory for what a store reads in some lanes only (of each iteration of a loop), how it is
        read, and the store."""
        allocated: list[Stmt] = []
        out: list[Stmt] = []
        table: dict[Value, Value] = {}
        loops = (each, self.loop) if each is not None else (self.loop,)
        at = tuple(D.as_int(x.var) for x in loops)
        many = each.extent if each is not None else 1
        assert isinstance(many, int)
        shape = (many, self.width) if each is not None else (self.width,)
        for v, choice in self._choices(s).items():
            name = self.versions.buffer(v, shape)
            table[v] = load(name, at, v.dtype)
            chosen = fn("select", _all(list(choice.tests)), choice.read, choice.other)
            one, none, some = (
                Store(name, name, at, x) for x in (choice.read, choice.other, chosen)
            )
            versions = (self._around(one),), (self._around(none),), self._masked(some)
            allocated.append(Alloc(name))
            out += self._three(choice.tests, *versions)
        new = Rewriter(on_load=lambda x: x)
        new.known(table)
        return allocated, out, replace(s, value=new(s.value))

    # ---- reads

    def _choices(self, s: Store) -> dict[Value, _Choice]:
        """The parts of a store's value that read memory behind pointers in some lanes."""
        if id(s) not in self.known:
            self.known[id(s)] = s, self._found(s.value)
        return self.known[id(s)][1]

    def _found(self, root: Value) -> dict[Value, _Choice]:
        found: dict[Value, _Choice] = {}
        seen: dict[Value, tuple[Value, ...]] = {}
        stack: list[tuple[Value, tuple[Value, ...]]] = [(root, ())]
        while stack:
            v, tests = stack.pop()
            if not self.versions.reads(v):
                continue
            if v in seen:
                if seen[v] != tests:
                    return {}  # shared between choices: left to masks
                continue
            seen[v] = tests
            if isinstance(v, Fn) and v.name == "select":
                if self.versions.reads(v.args[0]):
                    return {}  # a condition behind a pointer: as well
                stack += self._chosen(v, tests, found)
            elif isinstance(v, Load) and v.source in self.versions.pointers:
                if any(map(self.versions.reads, v.operands())):
                    return {}
                if any(map(self._varies, tests)):
                    found[v] = _Choice(tests, v, const(0, v.dtype))
            else:
                stack += ((x, tests) for x in v.operands())
        return found

    def _chosen(
        self, v: Fn, tests: tuple[Value, ...], found: dict[Value, _Choice]
    ) -> list[tuple[Value, tuple[Value, ...]]]:
        """The parts of a choice that are still to be visited."""
        condition, yes, no = v.args
        inside = (*tests, condition)
        if _is_read(yes) and not self.versions.reads(no):
            if any(map(self._varies, inside)):
                found[v] = _Choice(inside, yes, no)
            return []
        return [(yes, inside), (no, (*tests, _not(condition)))]


def _is_read(v: Value) -> bool:
    while isinstance(v, Fn) and v.name == "cast":
        v = v.args[0]
    return isinstance(v, Load)


_OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "and": "or", "or": "and"}


def _not(v: Value) -> Value:
    """The opposite of a condition, as comparisons of whole numbers where it is made of such."""
    if isinstance(v, Fn) and v.name in ("and", "or"):
        return fn(_OPPOSITE[v.name], *map(_not, v.args))
    if isinstance(v, Fn) and v.name in _OPPOSITE and not v.args[0].dtype.is_float:
        return fn(_OPPOSITE[v.name], *v.args)
    return fn("not", v)


def _all(bits: list[Value]) -> Value:
    return reduce(lambda a, b: fn("and", a, b), bits)
