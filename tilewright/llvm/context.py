"""What is known where code is being written: variables, lanes, conditions, which memory changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Value
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import Nest, Stmt, Store, walk, writes
from tilewright.kernel.roles import shows_others

LANE = "lane"

T = TypeVar("T")


@dataclass(frozen=True)
class Test:
    """A condition under which memory is read or written, and whether it is to hold. One that was
    evaluated for the lanes has its vector: what it read may have changed since."""

    condition: Value
    holds: bool
    lanes: str | None = None
    lane: Sym | None = None  # the variable of those lanes
    width: int = 1  # how many they are


@dataclass
class Let:
    """A buffer that is a register (kernel/legal/hoist.py), or one per iteration of the unrolled
    loops around it."""

    level: int = 0  # where it was set
    lanes: int | None = None  # the axis along which it is a vector
    registers: dict[tuple[Any, ...], str] = field(default_factory=dict)


class Context:
    def __init__(self, n: Nest, args: list[Buffer], barriers: bool) -> None:
        self.n, self.args = n, args
        self.env: dict[Sym, Any] = {}  # (ssa, level) | int | LANE
        self.buffers: dict[str, Buffer] = {b.name: b for b in n.buffers}
        self.lane: tuple[Sym, int] | None = None
        self.existing: tuple[Dim, str] | None = None  # how many lanes exist, which; None: all
        self.hints = frozenset[str]()  # how these lanes touch memory: kernel/legal/accesses.py
        self.under: tuple[Test, ...] = ()  # of pointers only what these choose may be touched
        self.lets: dict[str, Let] = {b.name: Let() for b in n.buffers if b.scope == "let"}
        self.pointers = frozenset(b.name for b in n.buffers if b.pointer)
        self.epoch: dict[str, int] = {}
        self.barriers = barriers  # nests may have some
        self.mutable = self.changed(n.body)
        self._reads: dict[frozenset[Any], tuple[str, ...]] = {}

    @property
    def width(self) -> int:
        """How many lanes there are."""
        return self.lane[1] if self.lane else 1

    # ---- memory that changes

    def changed(self, body: tuple[Stmt, ...]) -> frozenset[str]:
        """The buffers that statements may change for this thread: pointers may be into the same
        memory, and at a barrier it sees all that others have written."""
        if self.barriers and any(shows_others(s) for s, _ in walk(body)):
            return frozenset(writes(self.n.body))
        one = body[0] if len(body) == 1 else None
        # Most are single stores, in the thousands where loops are unrolled: they need no walk.
        found = {one.buffer} if isinstance(one, Store) else writes(body)
        return frozenset(found | self.pointers if found & self.pointers else found)

    def touch(self, s: Stmt) -> None:
        """Memory written by s is new from here on."""
        self.renew(self.changed((s,)))

    def renew(self, names: frozenset[str]) -> None:
        for name in names:
            self.epoch[name] = self.epoch.get(name, 0) + 1

    # ---- what a value depends on

    def reads_of(self, v: Value) -> tuple[str, ...]:
        """The buffers that v reads, in a fixed order."""
        hit = self._reads.get(v.sources)
        if hit is None:
            hit = self._reads[v.sources] = tuple(sorted(map(str, v.sources)))
        return hit

    def epochs(self, v: Value) -> tuple[Any, ...]:
        return tuple((b, self.epoch.get(b, 0)) for b in self.reads_of(v) if b in self.mutable)

    def reads_pointers(self, v: Value) -> bool:
        return bool(self.pointers) and any(b in self.pointers for b in self.reads_of(v))

    def masks(self, v: Value) -> tuple[Any, ...]:
        """What v depends on where it is read under conditions."""
        if not self.under or not self.reads_pointers(v):
            return ()
        tests = ((t, t.condition) for t in self.under)
        return tuple((t, self.constants(c.symbols()), self.epochs(c)) for t, c in tests)

    def constants(self, syms: frozenset[Sym]) -> tuple[Any, ...]:
        return tuple((s, e) for s in syms if isinstance(e := self.env.get(s), int))

    def level(self, v: Value, here: int) -> int:
        """Memory is read where the nest reads it; arithmetic goes as far out as it can."""
        level = 0
        for b in self.reads_of(v):
            if b not in self.lets:
                return here
            level = max(level, self.lets[b].level)
        for s in v.symbols():
            e = self.env.get(s)
            if isinstance(e, tuple) and e[1] > level:
                level = e[1]
        return min(level, here)

    # ---- lanes

    def is_vector(self, v: Value) -> bool:
        return self.lane is not None and self.lane[0] in v.symbols()

    def with_lane(self, k: int, f: Callable[[], T]) -> T:
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

    # ---- conditions

    def simplified(self, condition: Value) -> Value:
        """A condition, simplified by what is known of unrolled loops."""
        at = {s: self.env.get(s) for s in condition.symbols()}
        table: dict[Sym, Dim] = {s: k for s, k in at.items() if isinstance(k, int)}
        if not table or condition.sources:
            return condition
        return condition.substitute(table)

    @contextmanager
    def testing(self, tests: tuple[Test, ...]) -> Iterator[None]:
        """These conditions are in force; none of them where a branch has decided all."""
        saved, self.under = self.under, tests
        yield
        self.under = saved
