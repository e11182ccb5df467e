"""The state of lowering a tile kernel: buffers, statements, what each value is.

A tile is stored in a buffer where it is a sum, a product or a scan, where a loop carries it, where
it is expensive and used more than once, or where memory it reads may have changed before its use;
all others are expressions where they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tilewright.ir import dim as D
from tilewright.ir.atom import Atom
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import load
from tilewright.ir.types import DType, i32, i64
from tilewright.kernel.group import Buffer, pointer_buffer
from tilewright.kernel.nest import Alloc, Loop, Nest, Stmt, Store, wrap
from tilewright.lang.tile import ir
from tilewright.lang.tile.lowering.carried import Uses
from tilewright.lang.tile.lowering.positions import Bound, Positions
from tilewright.lang.tile.lowering.tiles import (
    AnyTile,
    At,
    Pointers,
    Tile,
    buffered,
    flattened,
    whole,
)
from tilewright.lang.tile.lowering.waiting import waiting_loops

GRID = ("grid0", "grid1", "grid2")
# Limits on the number of chained operations: that every reader with loops of its own recomputes; in
# one expression; as functions that call each other before they become an expression.
FEW, LONGEST, CALLS = 6, 96, 32
MEMORY = "memory"  # the buffer of absolute addresses, one for each element


@dataclass(frozen=True)
class Given:
    """How an argument of the kernel reaches the nest: as the memory that it points to, as the
    symbol of a dimension (a multiple of `unit`), or in memory of its own."""

    kind: str  # "pointer", "dim", "scalar"
    name: str
    element: ir.Element
    unit: int = 1


@dataclass(frozen=True)
class Site:
    """What a Report of the nest says, by its number."""

    kind: str
    message: str
    types: tuple[ir.TileType, ...]
    place: ir.Place | None


@dataclass(frozen=True)
class Aliasing:
    """Which arguments of a launch are into the same memory, by their numbers: `same` begin at the
    same element, `near` may overlap anywhere. What is not named has memory of its own."""

    same: tuple[tuple[int, int], ...] = ()  # (the one that is used for it, argument)
    near: tuple[tuple[int, int], ...] = ()


APART = Aliasing()


@dataclass(frozen=True)
class Lowered:
    nest: Nest
    given: tuple[Given, ...]
    addresses: dict[str, int]  # arguments of the nest that hold an address, and whose
    sites: tuple[Site, ...]
    bounds: tuple[Bound, ...] = ()  # of the symbols of a launch, else numbers overflow
    places: Mapping[str, ir.Place] = field(default_factory=dict)  # the lines that stages are from
    # Functions of a launch's symbols that have to be positive, or not too large.
    least: tuple[Dim, ...] = ()
    most: tuple[Dim, ...] = ()


@dataclass
class Lowering:
    kernel: ir.Kernel
    operations: Mapping[str, Callable[[Lowering, ir.Operation], None]]
    aliasing: Aliasing = APART
    positions: Positions = field(default_factory=Positions)
    threads: bool = False  # do threads share every tile? Then scans are maps of whole tiles
    rounds: bool = False  # are factors of float32 rounded where a kernel says so?
    buffers: dict[str, Buffer] = field(default_factory=dict)
    tiles: dict[ir.Value, AnyTile] = field(default_factory=dict)
    given: list[Given] = field(default_factory=list)
    dims: dict[str, Sym] = field(default_factory=dict)
    addresses: dict[str, int] = field(default_factory=dict)
    sites: list[Site] = field(default_factory=list)
    places: dict[str, ir.Place] = field(default_factory=dict)
    roles: list[tuple[str, str]] = field(default_factory=list)  # of stages, loops, arguments
    place: ir.Place | None = None  # of the operation that is being lowered
    count: int = 0

    def __post_init__(self) -> None:
        self.uses = Uses.of(self.kernel)
        self.made = self.uses.made
        self.waiting = waiting_loops(self.kernel)
        self.out: list[Stmt] = []
        # Lengths of chains of operations since a value was stored: all, and those that are no
        # index.
        self.lengths: tuple[dict[ir.Value, int], dict[ir.Value, int]] = ({}, {})
        self.lazy: list[ir.Value] = []  # values that read memory when they are evaluated
        for g in GRID:
            self.dims[g] = D.the_sym(D.sym(g, 1))
        g0, g1 = (D.as_int(self.dims[g]) for g in GRID[:2])
        total = g0 * g1 * D.as_int(self.dims[GRID[2]])
        program = D.var("program", total)
        self.program = D.the_sym(program)
        self.pids = (
            D.mod(program, g0),
            D.mod(D.floordiv(program, g0), g1),
            D.floordiv(program, g0 * g1),
        )
        for k, a in enumerate(self.kernel.arguments):
            self.tiles[a] = self._argument(k, a)
        self.positions.known = self._known()
        self.neighbours: dict[str, set[str]] = {}  # arguments that may be into the same memory
        for a, b in self.aliasing.near:
            one, other = self.given[a].name, self.given[b].name
            self.neighbours.setdefault(one, set()).add(other)
            self.neighbours.setdefault(other, set()).add(one)

    def has_role(self, role: str, name: str) -> None:
        """What a stage, a loop or an argument is, as the kernel says it."""
        if (role, name) not in self.roles:
            self.roles.append((role, name))

    def done(self) -> Lowered:
        self.block(self.kernel.body)
        programs = Loop(self.program, "independent", tuple(self.out))
        args = [b for b in self.buffers.values() if b.scope in ("in", "out")]
        rest = [b for b in self.buffers.values() if b.scope not in ("in", "out")]
        dims = tuple(sorted(self.dims.values(), key=lambda x: x.name))
        nest = Nest(self.kernel.name, (*args, *rest), (programs,), dims, roles=tuple(self.roles))
        return Lowered(
            nest,
            tuple(self.given),
            self.addresses,
            tuple(self.sites),
            self.positions.bounds(),
            self.places,
            tuple(self.positions.least),
            self.positions.most(),
        )

    def _known(self) -> dict[Atom, str]:
        """Dims, and what is less than one of them: the ids of a program."""
        found: dict[Atom, str] = {s: name for name, s in self.dims.items()}
        for g, pid in zip(GRID, self.pids, strict=True):
            if not isinstance(pid, int):
                ((atoms, _),) = pid.terms
                found[atoms[0]] = g
        return found

    def _argument(self, k: int, a: ir.Value) -> AnyTile:
        name = f"{a.name or 'arg'}_{k}"
        divisors, positive = self.kernel.divisors, self.kernel.positive
        unit = divisors[k] if k < len(divisors) else 1
        e = a.element
        if isinstance(e, ir.Pointer):
            first = next((a for a, b in self.aliasing.same if b == k), None)
            if first is not None:
                name = self.given[first].name
            else:
                aligned = unit if self.threads and unit > 1 else 0
                self.buffers[name] = pointer_buffer(name, e.to, "out", aligned)
            self.given.append(Given("pointer", name, e))
            return Pointers((), e.to, name, lambda i: 0)
        if e in (i32, i64):
            # A known divisor is a factor: what is a multiple of it can be seen.
            low = 1 if k < len(positive) and positive[k] else -(1 << (e.bits - 1))
            sym = D.sym(name, low, (1 << (e.bits - 1)) - 1)
            self.dims[name] = D.the_sym(sym)
            self.given.append(Given("dim", name, e, max(1, unit)))
            return whole((), e, lambda i: max(1, unit) * sym)
        self.buffers[name] = Buffer(name, e, (), "in")
        self.given.append(Given("scalar", name, e))
        return Tile((), e, lambda i: load(name, (), e))

    def fresh(self, stem: str = "t") -> str:
        self.count += 1
        name = f"{stem}{self.count - 1}"
        if self.place is not None:
            self.places[name] = self.place
        return name

    def local(self, shape: tuple[int, ...], dtype: DType) -> str:
        name = self.fresh()
        self.buffers[name] = Buffer(name, dtype, shape, "local")
        self.out.append(Alloc(name))
        return name

    def loops(
        self, shape: tuple[int, ...], body: Callable[[str, At], Stmt], stem: str = "s"
    ) -> None:
        """Loops over all indices of a tile around one statement."""
        name = self.fresh(stem)
        axes = tuple(D.the_sym(D.var(f"{name}.i{k}", n)) for k, n in enumerate(shape))
        at = tuple(0 if n == 1 else D.as_int(a) for a, n in zip(axes, shape, strict=True))
        inside = tuple(a for a, n in zip(axes, shape, strict=True) if n != 1)
        self.out.append(wrap(inside, body(name, at)))

    def fill(self, buffer: str, t: Tile) -> None:
        self.loops(t.shape, lambda s, i: Store(s, buffer, i, t.at(i)))

    def stored(self, t: Tile) -> Tile:
        """The same tile, stored in a buffer."""
        if t.buffer:
            return t
        name = self.local(t.shape, t.dtype)
        self.fill(name, t)
        return buffered(name, t.shape, t.dtype)

    def stored_offsets(self, p: Pointers) -> Pointers:
        """The same addresses, their offsets stored in a buffer."""
        offsets = self.stored(whole(p.shape, i64, p.at))
        return replace(p, at=offsets.index, reads=frozenset())

    def inner(self, run: Callable[[], None]) -> tuple[Stmt, ...]:
        """Statements of a body of their own. Nothing of it is used after it but what it assigns."""
        saved, self.out = (self.out, self.lazy), []
        self.lazy = []
        outer = dict(self.tiles)
        run()
        found = tuple(self.out)
        self.out, self.lazy = saved
        self.tiles.update(outer)  # what was stored inside exists only if the body was run
        return found

    def tile(self, v: ir.Value) -> Tile:
        t = self.tiles[v]
        assert isinstance(t, Tile), f"{v.type} where numbers are needed"
        return t

    def pointers(self, v: ir.Value) -> Pointers:
        t = self.tiles[v]
        assert isinstance(t, Pointers), f"{v.type} where pointers are needed"
        return t

    def define(self, v: ir.Value, t: AnyTile) -> None:
        """Define a value as a tile, which is stored in a buffer where that pays."""
        args = self.made[v].args if v in self.made else ()
        depth, work = (
            1 + max((found.get(a, 0) for a in args), default=0) for found in self.lengths
        )
        if isinstance(t, Pointers) or t.dim is not None:
            work = 0  # an address or an index: no work on data
        if isinstance(t, Tile) and not t.buffer:
            often = self.uses.count(v) > 1 or v in self.uses.inside_loops
            # One number is computed where it is first needed, and only once, by the emitter.
            costs = bool(t.reads) or (t.expensive and bool(t.shape))
            worth = costs and (often or not t.shape)
            if self.uses.count(v) and (worth or self._is_too_long(v, t, depth, work)):
                t = self.stored(t)
        if isinstance(t, Tile) and t.buffer:
            depth = work = 0
        elif depth % CALLS == 0:
            t = flattened(t)
        self.tiles[v] = t
        for found, length in zip(self.lengths, (depth, work), strict=True):
            found[v] = length
        if t.reads:
            self.lazy.append(v)

    def _is_too_long(self, v: ir.Value, t: Tile, depth: int, work: int) -> bool:
        """Is the chain of operations since the last stored value so long that this tile is stored,
        too: because several readers would each recompute it, or the expression would be too
        large?"""
        shared = self.uses.count(v) > 1
        if depth > (LONGEST // 2 if t.reads else LONGEST) // (2 if shared else 1):
            return True
        again = shared and v in self.uses.elsewhere
        return again and work > FEW and bool(t.shape)

    def overlaps(self, changed: str, reads: frozenset[str]) -> bool:
        """May a change of one argument's memory change what is read?"""
        if changed in reads or changed == MEMORY:
            return bool(reads)
        return MEMORY in reads or not self.neighbours.get(changed, frozenset()).isdisjoint(reads)

    def store_readers(self, changed: str | None = None) -> None:
        """Memory is about to change (that of one argument, or any): values that read it and are not
        evaluated yet are stored in buffers first."""
        later: list[ir.Value] = []
        here = self.place
        for v in self.lazy:
            t = self.tiles[v]
            if not self.uses.left(v):
                continue
            if changed is None or self.overlaps(changed, t.reads):
                self.place = self.made[v].place if v in self.made else here
                self.tiles[v] = self.stored(t) if isinstance(t, Tile) else self.stored_offsets(t)
            else:
                later.append(v)
        self.lazy, self.place = later, here

    def block(self, b: ir.Block) -> None:
        for o in b.operations:
            self.place = o.place
            self.operations[o.name](self, o)
            self.uses.consumed(o)

    def addresses_of(self, p: Pointers) -> Tile:
        """Pointers as numbers of bytes."""
        at, size = p.at, p.to.bytes
        if p.buffer is None:
            return replace(whole(p.shape, i64, at), reads=p.reads)
        name = f"{p.buffer}_address"
        if name not in self.buffers:
            self.buffers[name] = Buffer(name, i64, (), "in")
            self.addresses[name] = next(k for k, g in enumerate(self.given) if g.name == p.buffer)
        base = load(name, (), i64).as_dim()
        return replace(whole(p.shape, i64, lambda i: base + at(i) * size), reads=p.reads)
