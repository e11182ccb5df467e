"""What a nest would cost on a target: cycles from counted instructions and from bytes moved.

Instructions are counted where loops are written out (unrolled loops, lanes, the loops of an
instruction): what does not depend on a loop is computed once for all of it, multiply-adds share the
target's pipes, and sums that are too few to hide a latency wait for it. Bytes are counted per level
of the caches: a loop whose body's memory fits a cache brings in what it touches once, any other
loop what its body brings in, times its iterations. Good for comparing schedules of one group, not
for promises.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from tilewright.graph.classify import guess
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Int, Quo, Sym
from tilewright.ir.expr import Fn, Load, Value
from tilewright.ir.expr import walk as walk_value
from tilewright.ir.scalar import cost_of
from tilewright.ir.target import Target
from tilewright.kernel.group import Buffer
from tilewright.kernel.intrinsic import INTRINSICS
from tilewright.kernel.nest import Loop, Nest, Stmt, Store, bodies, walk

# Part of a cache that the data can use: lines of other arrays and of the code take the rest.
SHARE = 0.8
# A line that is written comes in before and goes out afterwards.
WRITTEN = 2.0
# Cycles when a loop ends: the branch is mispredicted, and the pipeline drains.
EXIT = 14
# Cycles of an iteration of a loop that is not written out: count, compare, branch.
ITERATION = 1
# Of what does not set the pace, this part is not hidden behind what does (measured).
EXPOSED = 0.25
# Cycles of a register that a step of a sum stores and loads again, as measured: all wait for it.
SPILL = 1.5
_WRITTEN_OUT = ("unroll", "lane", "tensor")
_NONE: frozenset[Sym] = frozenset()


@dataclass(frozen=True)
class Cost:
    """Cycles of one call, and what they come from."""

    cycles: float
    compute: float  # cycles of instructions, on one thread
    products: float  # and of the multiply-adds among them alone
    moved: tuple[float, float, float]  # bytes into the first, second and third cache
    once: float  # bytes that the nest touches, each counted once
    threads: float  # how many threads' work it is, when the busiest one sets the pace

    def seconds(self, target: Target) -> float:
        return self.cycles / (target.mhz * 1e6)

    def waiting(self, target: Target) -> float:
        """The part of the time that is spent on bytes which could have stayed in the second cache
        or the third."""
        here = together(self.compute, self.moved, target)
        best = (self.moved[0], self.once, self.once)
        return 1 - together(self.compute, best, target) / max(1.0, here)

    def stalling(self, target: Target) -> float:
        """The part of the time that goes into instructions other than multiply-adds, and into
        waiting for their results."""
        here = together(self.compute, self.moved, target)
        return 1 - together(self.products, self.moved, target) / max(1.0, here)


def together(compute: float, moved: tuple[float, ...], target: Target) -> float:
    """Cycles of instructions and of bytes that move at the same time: what takes longest sets the
    pace, and of the rest a part is not hidden."""
    rates = (target.l2_bandwidth, target.l3_bandwidth, target.memory_bandwidth)
    waits = [b / rate for b, rate in zip(moved, rates, strict=True)]
    slowest = max(compute, *waits)
    return slowest + EXPOSED * (compute + sum(waits) - slowest)


def cost(nest: Nest, target: Target, model: CostModel | None = None) -> Cost:
    """An estimate for one call of a nest; symbolic sizes are guessed. A `model` of the nest keeps
    what it counted for others who ask."""
    model = model or CostModel(nest, target)
    total = alone = compute = products = 0.0
    moved = [0.0, 0.0, 0.0]
    touched: dict[str, float] = {}
    for s in nest.body:
        if not isinstance(s, (Loop, Store)):
            continue
        here = model.cycles(s, None)
        levels = tuple(sum(model.traffic(s, size).values()) for size in model.sizes)
        share, regions = model.shared(s)
        own = together(here, levels, target)
        total += own * share + regions * target.region
        alone += own
        compute += here
        products += model.products(s)
        moved = [a + b for a, b in zip(moved, levels, strict=True)]
        for b, n in model.touched(s).items():
            touched[b] = max(touched.get(b, 0), n)
    once = sum(n for b, n in touched.items() if model.buffers[b].scope in ("in", "out"))
    return Cost(
        total,
        compute,
        products,
        (moved[0], moved[1], moved[2]),
        once,
        alone / max(1.0, total),
    )


@dataclass
class Count:
    """Instructions of straight-line code."""

    fma: float = 0
    loads: float = 0
    stores: float = 0
    other: float = 0
    chain: float = 0  # cycles that sums wait for one another
    exits: float = 0

    def add(self, o: Count) -> None:
        self.fma += o.fma
        self.loads += o.loads
        self.stores += o.stores
        self.other += o.other
        self.chain = max(self.chain, o.chain)
        self.exits += o.exits


@dataclass(frozen=True)
class _Leaf:
    """A store in loops that are written out: which of them are lanes or an instruction's."""

    path: tuple[Loop, ...]
    trips: Mapping[Sym, int]
    at: frozenset[Sym]  # what chooses the place that is stored to
    tensor: list[Loop]
    lane: Loop | None
    lanes: int

    def times(self, symbols: frozenset[Sym], vectors: bool = True) -> float:
        """How often something that depends on these symbols is computed."""
        n = 1.0
        for q in self.path:
            if q.var in symbols:
                trips = max(1, self.trips[q.var])
                n *= -(-trips // self.lanes) if q is self.lane and vectors else trips
        return n

    @property
    def columns(self) -> float:
        """Vectors of a row: of its lanes, and of unrolled loops right around them."""
        n = 1.0
        for q in reversed(self.path):
            trips = max(1, self.trips[q.var])
            if q is self.lane:
                n *= -(-trips // self.lanes)
            elif q.kind == "unroll" and self.lane is not None and q.var in self.at:
                return n * trips
        return n

    @property
    def depth(self) -> float:
        """Sums that go into the same place."""
        n = 1.0
        for q in self.path:
            n *= 1 if q.var in self.at else max(1, self.trips[q.var])
        return n

    @property
    def spreads(self) -> bool:
        """Does the instruction load the elements of rows one by one?"""
        used = (INTRINSICS.get(q.instruction) for q in self.tensor if q.instruction)
        found = next((i for i in used if i is not None), None)
        return found is not None and found.product is not None and found.product.loads == "each"


# What follows from values and indices alone is remembered: the nests that a search compares have
# most of theirs in common.
REMEMBERED = 8192
# How far each loop moves an index that is a sum of multiples of loops.
_Steps = tuple[tuple[Sym, float], ...]


@dataclass(frozen=True)
class Computed:
    """What a value is computed of, each once."""

    values: tuple[Value, ...]
    functions: tuple[Fn, ...]
    loads: tuple[Load, ...]  # of buffers
    cost: int  # of the functions


@lru_cache(REMEMBERED)
def computed(v: Value) -> Computed:
    values = tuple(walk_value(v))
    functions = tuple(x for x in values if isinstance(x, Fn))
    read = tuple(x for x in values if isinstance(x, Load) and isinstance(x.source, str))
    return Computed(values, functions, read, sum(cost_of(x.name) for x in functions))


@lru_cache(REMEMBERED)
def index_symbols(index: tuple[Dim, ...]) -> frozenset[Sym]:
    return frozenset().union(*map(D.symbols, index))


@lru_cache(REMEMBERED)
def _multiples(x: Int) -> tuple[tuple[Sym, int], ...] | None:
    """The symbols of a sum of their multiples; None where it is none."""
    out = []
    for mono, c in x.terms:
        if len(mono) == 1 and isinstance(mono[0], Sym):
            out.append((mono[0], abs(c)))
        elif mono:
            return None
    return tuple(out)


@lru_cache(REMEMBERED)
def step_along(index: tuple[Dim, ...], sizes: tuple[int, ...], v: Sym) -> int | None:
    """How far apart in a buffer of such sizes neighbouring iterations of a loop are; None: not
    evenly."""
    total, stride = 0, 1
    for i, size in zip(reversed(index), reversed(sizes), strict=True):
        if not isinstance(i, int) and v in D.symbols(i):
            c = D.coefficient(i, v)
            if not isinstance(c, int):
                return None
            total += c * stride
        stride *= size
    return total


@dataclass
class _Access:
    """One use of memory: the place, and per axis how far the variables of loops reach; None where
    the index is no sum of multiples of them."""

    buffer: Buffer
    index: tuple[Dim, ...]
    symbols: frozenset[Sym]
    sizes: tuple[int, ...]  # of the buffer's axes
    steps: tuple[_Steps | None, ...]
    weight: float = 1.0
    known: dict[frozenset[Sym], float] = field(default_factory=dict)


# An access, and those loops around it that choose its place.
_Reach = tuple[_Access, frozenset[Sym]]


class CostModel:
    """Counts instructions and bytes of one nest."""

    def __init__(self, nest: Nest, target: Target) -> None:
        self.nest, self.target = nest, target
        self.buffers = {b.name: b for b in nest.buffers}
        self.sizes = [SHARE * s for s in (target.l1, target.l2, target.l3)]
        self.trips: dict[Sym, int] = {}
        self.middle: dict[str, int] = {s.name: guess(D.as_int(s)) for s in nest.dims}
        self.walked = list(walk(nest.body))
        self._sizes: dict[str, tuple[int, ...]] = {}
        self._places: dict[tuple[str, tuple[Dim, ...], float], _Access] = {}
        self._uses: dict[int, list[_Access]] = {}
        self._reaches: dict[int, list[_Reach]] = {}
        self._touched: dict[int, dict[str, float]] = {}
        self._bodies: dict[int, float] = {}
        # Straight-line code that was counted, and the loop right around it.
        self.lines: list[tuple[Loop | None, Count]] = []
        for s, _ in self.walked:
            if isinstance(s, Loop):
                n = max(0, self.number(s.extent))
                self.trips[s.var] = n
                # What depends on a loop is counted as it is in the middle of it.
                self.middle[s.name] = max(0, n - 1) // 2

    def number(self, x: Dim) -> int:
        if isinstance(x, int):
            return x
        if any(s.name not in self.middle for s in D.symbols(x)):
            return guess(x)
        return int(D.evaluate(x, self.middle, lambda _: 0))

    def shape(self, b: Buffer) -> tuple[int, ...]:
        found = self._sizes.get(b.name)
        if found is None:
            found = self._sizes[b.name] = tuple(map(self.number, b.shape))
        return found

    def loads(self, s: Store) -> list[Load]:
        """What a store reads from buffers, in its value and its indices."""
        out = list(computed(s.value).loads)
        for i in s.index:
            for v in D.data_values(i):
                out += computed(v).loads
        return out

    # ---- memory

    def accesses(self, s: Store) -> list[_Access]:
        found = self._uses.get(id(s))
        if found is None:
            places = {(s.buffer, s.index): WRITTEN}
            for x in self.loads(s):
                places.setdefault((str(x.source), x.index), 1.0)
            found = self._uses[id(s)] = [
                self._access(self.buffers[b], i, weight)
                for (b, i), weight in places.items()
                if self.buffers[b].scope != "register"
            ]
        return found

    def _access(self, b: Buffer, index: tuple[Dim, ...], weight: float) -> _Access:
        key = b.name, index, weight
        found = self._places.get(key)
        if found is None:
            steps = tuple(map(self._steps, index))
            found = _Access(b, index, index_symbols(index), self.shape(b), steps, weight)
            self._places[key] = found
        return found

    def _steps(self, x: Dim) -> _Steps | None:
        if isinstance(x, int):
            return ()
        found, trips = _multiples(x), self.trips
        if found is None:
            return None
        return tuple([(v, float(c * (trips[v] - 1))) for v, c in found if trips.get(v, 1) > 1])

    def touched(self, s: Stmt) -> dict[str, float]:
        """Bytes of each buffer, in whole lines, that a statement touches while the loops in it
        run."""
        found = self._touched.get(id(s))
        if found is None:
            found = self._touched[id(s)] = {}
            for a, free in self._reach(s):
                size, name = self.bytes_of(a, free), a.buffer.name
                if size > found.get(name, 0):
                    found[name] = size
        return found

    def _reach(self, s: Stmt) -> list[_Reach]:
        """All accesses of a statement, with the loops inside it that choose their places."""
        found = self._reaches.get(id(s))
        if found is None:
            if isinstance(s, Store):
                found = [(a, _NONE) for a in self.accesses(s)]
            else:
                found = [r for body in bodies(s) for x in body for r in self._reach(x)]
            if isinstance(s, Loop):
                v, one = s.var, frozenset((s.var,))
                found = [(a, free | one) if v in a.symbols else (a, free) for a, free in found]
            self._reaches[id(s)] = found
        return found

    def bytes_of(self, a: _Access, free: frozenset[Sym]) -> float:
        """Bytes that an access touches while loops run, of those that choose its place."""
        found = a.known.get(free)
        if found is None:
            points = box = run = 1.0
            for v in free:
                points *= max(1, self.trips.get(v, 1))
            whole = True  # so far all of the innermost axes
            for k in range(len(a.index) - 1, -1, -1):
                steps, size, n = a.steps[k], a.sizes[k], 1.0
                if steps is None:
                    n += self.span(a.index[k], free)
                else:
                    for v, step in steps:
                        if v in free:
                            n += step
                if n > size:
                    n = max(1, size)
                box *= n
                if whole:
                    run *= n
                    whole = n >= size
            lines = max(self.target.cache_line, run * a.buffer.dtype.bytes)
            found = a.known[free] = max(1.0, min(points, box) / run) * lines * a.weight
        return found

    def span(self, x: Dim, free: frozenset[Sym]) -> float:
        """How far an index moves while variables run over their loops."""
        if isinstance(x, int):
            return 0
        total = 0.0
        for mono, c in x.terms:
            wide = 1.0
            moves = False
            for a in mono:
                w = self.atom_span(a, free)
                moves = moves or w > 0
                wide *= w if w > 0 else 1
            if moves:
                total += abs(c) * wide
        return total

    def atom_span(self, a: D.Atom, free: frozenset[Sym]) -> float:
        if isinstance(a, Sym):
            return max(0, self.trips.get(a, 1) - 1) if a in free else 0
        if isinstance(a, Quo):
            w = self.span(a.a, free)
            if a.op == "floordiv":
                by = max(1, self.number(a.b))
                return -(-w // by) if w else 0
            if a.op == "mod":
                return min(w, max(0, self.number(a.b) - 1))
            return max(w, self.span(a.b, free))
        return float(D.INF)  # read from memory: anywhere

    def traffic(self, s: Stmt, size: float) -> Mapping[str, float]:
        """Bytes of each buffer that come into a cache of `size` while a statement runs."""
        if not isinstance(s, Loop):
            return self.touched(s) if isinstance(s, Store) else {}
        if s.kind in _WRITTEN_OUT:  # in whatever order suits
            return self.touched(s)
        if self._body(s) <= size:
            return self.touched(s)
        trips = self.trips[s.var]
        out: dict[str, float] = {}
        for x in s.body:
            for b, n in self.traffic(x, size).items():
                out[b] = out.get(b, 0) + n * trips
        return out

    def _body(self, s: Loop) -> float:
        """Bytes that an iteration touches."""
        found = self._bodies.get(id(s))
        if found is None:
            each: dict[str, float] = {}
            for x in s.body:
                for b, n in self.touched(x).items():
                    each[b] = max(each.get(b, 0), n)
            found = self._bodies[id(s)] = sum(each.values())
        return found

    # ---- instructions

    def cycles(self, s: Stmt, around: Loop | None) -> float:
        """Cycles of the instructions of a statement, in a loop that is not written out."""
        if isinstance(s, Loop) and s.kind not in _WRITTEN_OUT:
            each = self.all_cycles(s.body, s) + ITERATION
            return self.trips[s.var] * each + (EXIT if self.trips[s.var] > 1 else 0)
        return self.all_cycles((s,), around)

    def all_cycles(self, body: Iterable[Stmt], around: Loop | None) -> float:
        """Statements one after the other; straight-line ones share the processor's units."""
        total = 0.0
        line = Count()
        for s in body:
            if isinstance(s, Store) or (isinstance(s, Loop) and s.kind in _WRITTEN_OUT):
                line.add(self.count(s, (), around))
            elif isinstance(s, Loop):
                total += self.cycles(s, s)
        self.lines.append((around, line))
        return total + self.line_cycles(line)

    def products(self, s: Stmt) -> float:
        """Cycles of the multiply-adds alone, if nothing delayed them."""
        total = 0.0
        for x, p in walk((s,)):
            if isinstance(x, Store) and x.combine is not None and isinstance(x.value, Fn):
                lanes = self.target.lanes(max(8, self.buffers[x.buffer].dtype.bits))
                n = 1.0 / lanes if any(q.kind in ("lane", "tensor") for q in p) else 1.0
                for q in p:
                    n *= max(1, self.trips[q.var])
                total += n / self.target.fma_pipes
        return total

    def line_cycles(self, c: Count) -> float:
        t = self.target
        units = max(
            (c.fma + c.other) / t.fma_pipes,
            c.loads / t.load_ports,
            c.stores,
            (c.fma + c.other + c.loads + c.stores) / t.issue,
        )
        return max(units, c.chain) + c.exits

    def count(self, s: Stmt, path: tuple[Loop, ...], around: Loop | None) -> Count:
        """Instructions of a statement in loops that are written out."""
        if isinstance(s, Store):
            return self.count_store(s, path, around)
        out = Count()
        if isinstance(s, Loop):
            if s.kind not in _WRITTEN_OUT:  # a loop inside lanes: as often as it runs
                out.other = self.cycles(s, s) * self.target.fma_pipes
                for q in path:
                    out.other *= max(1, self.trips[q.var])
                return out
            for x in s.body:
                out.add(self.count(x, (*path, s), around))
        return out

    def count_store(self, s: Store, path: tuple[Loop, ...], around: Loop | None) -> Count:
        out = Count()
        target = self.buffers[s.buffer]
        leaf = self.leaf(s, path)
        fused = self.target.has_fma and isinstance(s.value, Fn) and s.value.name == "mul"
        if s.combine is not None:
            out.fma += leaf.times(leaf.at | s.value.symbols())
            if target.scope != "register":
                out.loads += leaf.times(leaf.at)
        inside = computed(s.value)
        for f in inside.functions:
            if not (fused and s.combine is not None and f is s.value):
                out.other += cost_of(f.name) * leaf.times(f.symbols())
        for x in inside.loads:
            b = self.buffers[str(x.source)]
            if b.scope != "register":
                out.loads += self.load_count(x, b, leaf)
        if target.scope != "register":
            out.stores += leaf.times(leaf.at)
        if s.combine is not None:
            self.chained(out, leaf, around)
            if leaf.tensor or target.scope == "register":
                self.spilled(out, s, leaf)
        if leaf.tensor:
            out.exits += EXIT
        return out

    def leaf(self, s: Store, path: tuple[Loop, ...]) -> _Leaf:
        b = self.buffers[s.buffer]
        tensor = [q for q in path if q.kind == "tensor"]
        lane = next((q for q in path if q.kind == "lane"), None)
        if lane is None and tensor:
            lane = self.adjacent(b, s.index, tensor)
        at = index_symbols(s.index)
        return _Leaf(path, self.trips, at, tensor, lane, self.target.lanes(max(8, b.dtype.bits)))

    def adjacent(self, b: Buffer, index: tuple[Dim, ...], loops: Iterable[Loop]) -> Loop | None:
        """The loop whose iterations are adjacent in a buffer."""
        return next((q for q in loops if self.step(b, index, q.var) == 1), None)

    def step(self, b: Buffer, index: tuple[Dim, ...], v: Sym) -> int | None:
        """How far apart in a buffer neighbouring iterations of a loop are; None: not evenly."""
        return step_along(index, self.shape(b), v)

    def load_count(self, v: Load, b: Buffer, leaf: _Leaf) -> float:
        symbols = v.symbols()
        if leaf.tensor:
            along = self.adjacent(b, v.index, leaf.tensor)
            n = leaf.times(symbols, vectors=False)
            if along is None or (leaf.spreads and along is not leaf.lane):
                return n
            return n / min(leaf.lanes, max(1, self.trips[along.var]))
        if leaf.lane is None or leaf.lane.var not in symbols:
            return leaf.times(symbols)
        one = self.step(b, v.index, leaf.lane.var) == 1
        return leaf.times(symbols) if one else 2 * leaf.times(symbols, vectors=False)

    def chained(self, out: Count, leaf: _Leaf, around: Loop | None) -> None:
        """Sums wait for the one before them: in loops that do not choose where they are stored."""
        steps = leaf.depth
        if steps > 1 or leaf.tensor or (around is not None and around.var not in leaf.at):
            out.chain = steps * self.target.fma_latency

    def spilled(self, out: Count, s: Store, leaf: _Leaf) -> None:
        """Sums that need more registers than there are, with a vector per column and elements of
        the rows, are spilled: stored and loaded in every step."""
        sums, columns = leaf.times(leaf.at), leaf.columns
        rows, elements = sums / columns, 1.0
        if leaf.tensor and not leaf.spreads:
            elements = rows
            for x in computed(s.value).loads:
                along = self.adjacent(self.buffers[str(x.source)], x.index, leaf.tensor)
                if along is not None and along.var in leaf.at and along is not leaf.lane:
                    elements = rows / leaf.lanes  # adjacent rows are one vector
        over = sums + columns + elements - self.target.vector_registers
        if over > 0:
            out.exits += SPILL * over * leaf.depth

    # ---- threads

    def shared(self, s: Stmt) -> tuple[float, float]:
        """(the part of the work that the busiest thread has, how often threads are called)."""
        regions = 1.0
        while isinstance(s, Loop):
            if s.kind == "parallel":
                pieces = max(1, -(-self.trips[s.var] // max(1, s.grain)))
                cores = max(1, self.target.cores)
                if cores == 1 or pieces == 1:
                    return 1.0, 0.0
                return -(-pieces // cores) / pieces, regions
            regions *= max(1, self.trips[s.var])
            inner = [x for x in s.body if isinstance(x, Loop)]
            if len(inner) != 1:
                break
            s = inner[0]
        return 1.0, 0.0
