"""Reads that a loop does not change, before the loop.

    for i in 8:                       for i in 8:
      for r in 100:                     alloc h0
        unroll u in 2:                  unroll u in 2:
          y: y[i] add= x[r] * w[i,u]      h0: h0[u] = w[i,u]
                                        for r in 100:
                                          unroll u in 2:
                                            y: y[i] add= x[r] * h0[u]

What is moved goes to a buffer of scope "let": it is set once, where it stands, and is a register
(or one for every iteration of the unrolled and lane loops that its value depends on). An emitter
reads memory where the nest says and nowhere else. It may only move what reads nothing but lets:
that is arithmetic, which cannot fail.

A read leaves a loop if nothing in the loop writes what it reads and its place does not depend on
the loop. Where the loop may not run, or a condition stands between, it has to be proved as well
that the read is inside its buffer: of what is behind a pointer that is never known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright.base.traverse import operands_first
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Fn, Load, Rewriter, Value, load
from tilewright.ir.target import Target
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import (
    ANY_ORDER,
    BLOCKS,
    THREADS,
    Alloc,
    Atomic,
    If,
    Loop,
    Nest,
    Report,
    Stmt,
    Store,
    While,
    bodies,
    mentions,
    own_values,
    reads,
    walk,
    with_bodies,
    writes,
)
from tilewright.kernel.roles import shows_others


def hoist_reads(n: Nest, target: Target) -> Nest:
    """Every read as far out as it may go."""
    h = _Hoister(n)
    # Outside the threads of a grid there is no place that belongs to one of them.
    body = h.body(n.body, target.grid is None)
    return replace(n, buffers=(*n.buffers, *h.lets), body=body)


def is_let(n: Nest, s: Stmt) -> bool:
    """Does a statement do nothing but set lets?"""
    found = writes((s,))
    return bool(found) and all(n.buffer(x).scope == "let" for x in found)


def _repeats(s: Stmt) -> bool:
    """Is it a loop that runs its body again, with code in one place?"""
    if isinstance(s, While):
        return True
    return isinstance(s, Loop) and s.kind in ("serial", *ANY_ORDER) and s.extent != 1


@dataclass(frozen=True)
class _Inside:
    """What is known of a place inside a loop."""

    sure: bool  # it is reached whenever the loop is
    copied: dict[Sym, Loop]  # variables of loops that are written out, or lanes
    changing: frozenset[Sym]  # variables whose values differ while the loop runs


@dataclass(frozen=True)
class _Let:
    name: str
    value: Value
    around: tuple[Loop, ...]  # written out around it, the outermost first

    @property
    def index(self) -> tuple[Dim, ...]:
        return tuple(D.as_int(x.var) for x in self.around)

    def statements(self) -> tuple[Stmt, ...]:
        s: Stmt = Store(self.name, self.name, self.index, self.value)
        for x in reversed(self.around):
            s = Loop(x.var, x.kind, (s,), of=x.of)
        return Alloc(self.name), s


class _Hoister:
    def __init__(self, n: Nest) -> None:
        self.n = n
        self.buffers = {b.name: b for b in n.buffers}
        self.pointers = frozenset(b.name for b in n.buffers if b.pointer)
        self.known = frozenset(b.name for b in n.buffers if b.scope == "let")
        self.written = frozenset(writes(n.body))
        self.lets: list[Buffer] = []
        self.count = 0
        self.valid: dict[Value, bool] = {}

    def body(self, body: tuple[Stmt, ...], here: bool) -> tuple[Stmt, ...]:
        """Statements with their loops' reads before them; `here`: may statements be inserted
        here?"""
        out: list[Stmt] = []
        for s in body:
            if not isinstance(s, (Loop, If, While)) or (isinstance(s, Loop) and s.kind == "tensor"):
                out.append(s)
                continue
            if here and not isinstance(s, If) and _repeats(s):
                lets = _Loop(self, s).lets()
                out += (x for y in lets for x in y.statements())
                s = _with_lets(s, lets)
            bound = isinstance(s, Loop) and s.kind in (*BLOCKS, *THREADS)
            inside = [self.body(x, here or bound) for x in bodies(s)]
            same = all(a is b for x, y in zip(inside, bodies(s)) for a, b in zip(x, y))
            out.append(
                s
                if same and list(map(len, inside)) == list(map(len, bodies(s)))
                else with_bodies(s, inside)
            )
        return tuple(out)

    def let(self, v: Value, around: tuple[Loop, ...]) -> _Let:
        while f"h{self.count}" in self.buffers:
            self.count += 1
        b = Buffer(f"h{self.count}", v.dtype, tuple(x.extent for x in around), "let")
        self.buffers[b.name] = b
        self.known |= {b.name}
        self.lets.append(b)
        return _Let(b.name, v, around)

    def changed(self, s: Stmt) -> frozenset[str]:
        """The buffers that a statement may change: pointers may be into the same memory, and at a
        barrier other threads may have written anything."""
        if any(shows_others(x) for x, _ in walk((s,))):
            return self.written
        found = frozenset(writes((s,)))
        return found | self.pointers if found & self.pointers else found

    def is_valid(self, v: Value) -> bool:
        """Is every read of v proved to be inside its buffer?"""
        for x in operands_first(v, lambda x: x.operands(), self.valid):
            own = not isinstance(x, Load) or self._in_range(self.buffers[str(x.source)], x.index)
            self.valid[x] = own and all(self.valid[y] for y in x.operands())
        return self.valid[v]

    @staticmethod
    def _in_range(b: Buffer, index: tuple[Dim, ...]) -> bool:
        inside = (D.nonneg(i) and D.known_lt(i, n) for i, n in zip(index, b.shape, strict=True))
        return not b.pointer and all(inside)


class _Loop:
    """What leaves one loop."""

    def __init__(self, h: _Hoister, loop: Loop | While) -> None:
        self.h, self.loop = h, loop
        own = {s.buffer for s, _ in walk((loop,)) if isinstance(s, Alloc)}
        self.fixed = h.changed(loop) | own  # reads of these stay
        self.found: dict[Value, _Let] = {}

    def lets(self) -> list[_Let]:
        if mentions(self.loop) <= self.fixed:
            return []
        if isinstance(self.loop, While):
            inside = _Inside(False, {}, frozenset())
            self._look(self.loop.condition, inside)
        else:
            sure = D.bounds(self.loop.extent)[0] >= 1
            inside = _Inside(sure, {}, frozenset({self.loop.var}))
        self._statements(self.loop.body, inside)
        return list(self.found.values())

    def _statements(self, body: tuple[Stmt, ...], at: _Inside) -> None:
        for s in body:
            if isinstance(s, Loop):
                if s.kind != "tensor":
                    self._statements(s.body, self._inside(s, at))
                continue
            if not isinstance(s, Store) or not s.asynchronous:
                for v in own_values(s):
                    self._look(v, at)
            for inside in bodies(s):
                self._statements(inside, replace(at, sure=False))

    @staticmethod
    def _inside(s: Loop, at: _Inside) -> _Inside:
        constant = isinstance(s.extent, int)
        sure = at.sure and D.bounds(s.extent)[0] >= 1 and s.kind not in (*BLOCKS, *THREADS)
        if constant and (s.kind in ("unroll", "lane") or s.extent == 1):
            return _Inside(sure, {**at.copied, s.var: s}, at.changing)
        return _Inside(sure, at.copied, at.changing | {s.var})

    def _look(self, root: Value, at: _Inside) -> None:
        """Finds the largest parts of a value that may leave; under a choice only what is surely
        readable may."""
        seen: set[tuple[Value, bool]] = set()
        stack = [(root, at.sure)]
        while stack:
            v, sure = stack.pop()
            if (v, sure) in seen or v in self.found:
                continue
            seen.add((v, sure))
            if not v.sources - self.h.known:
                continue
            if self._leaves(v, sure, at):
                around = tuple(x for s, x in at.copied.items() if s in v.symbols())
                self.found[v] = self.h.let(v, around)
                continue
            chosen = isinstance(v, Fn) and v.name == "select"
            parts = v.operands()
            stack += ((x, sure and not (chosen and k)) for k, x in reversed(list(enumerate(parts))))

    def _leaves(self, v: Value, sure: bool, at: _Inside) -> bool:
        if not self.fixed.isdisjoint(v.sources) or not at.changing.isdisjoint(v.symbols()):
            return False
        return sure or self.h.is_valid(v)


def _with_lets(s: Loop | While, lets: list[_Let]) -> Loop | While:
    """A loop that reads lets in place of their values."""
    if not lets:
        return s
    new = Rewriter(on_load=lambda x: x)
    new.known({x.value: load(x.name, x.index, x.value.dtype) for x in lets})
    sources = frozenset().union(*(x.value.sources for x in lets))
    made = _rewritten(s, new, sources)
    assert isinstance(made, (Loop, While))
    return made


def _rewritten(s: Stmt, new: Rewriter, sources: frozenset[object]) -> Stmt:
    if sources.isdisjoint(mentions(s)) or (isinstance(s, Loop) and s.kind == "tensor"):
        return s
    if isinstance(s, (Loop, If, While)):
        inside = [tuple(_rewritten(x, new, sources) for x in body) for body in bodies(s)]
        made = with_bodies(s, inside)
        if isinstance(made, Loop):
            return made
        assert isinstance(made, (If, While))
        return replace(made, condition=new(made.condition))
    if isinstance(s, Store) and not s.asynchronous:
        at = tuple(map(new.dim, s.index))
        return replace(s, index=at, value=new(s.value))
    if isinstance(s, Atomic):
        result = None if s.result is None else (s.result[0], tuple(map(new.dim, s.result[1])))
        compare = None if s.compare is None else new(s.compare)
        at = tuple(map(new.dim, s.index))
        return replace(s, index=at, value=new(s.value), compare=compare, result=result)
    if isinstance(s, Report):
        condition = None if s.condition is None else new(s.condition)
        return replace(s, values=tuple(map(new, s.values)), condition=condition)
    return s


def unset(n: Nest, target: Target) -> Iterator[str]:
    """Faults of lets that are not set exactly once before they are read."""
    lets = {b.name for b in n.buffers if b.scope == "let"}
    stores = [s for s, _ in walk(n.body) if isinstance(s, (Store, Atomic)) and s.buffer in lets]
    for name in sorted(lets):
        own = [s for s in stores if s.buffer == name]
        if len(own) != 1 or not isinstance(own[0], Store) or own[0].combine is not None:
            yield f"{name} is a let and is not set by one statement"
    places = [(s.buffer, s.index) for s in stores]
    places += [(str(x.source), x.index) for s in n.body for x in reads(s)]
    for name, index in places:
        if name in lets and not all(D.is_sym(i) for i in index):
            yield f"{name} is a let and is used at {', '.join(map(str, index))}, not at loops"
