"""What launches of a GPU cost, counted from their loops: a floor, and an estimate that says what a
bad schedule would wait for. For finding schedules that are far from their floor, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Fn, Value, extent, loads
from tilewright.ir.target import Grid, Target
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.group import Buffer
from tilewright.kernel.library import library_calls, without_library
from tilewright.kernel.nest import (
    BLOCKS,
    THREADS,
    Alloc,
    Atomic,
    Loop,
    Nest,
    Path,
    Stmt,
    Store,
    walk,
)
from tilewright.kernel.threads import launches

# Of an H200: instructions that multiply matrices of 16 bits, by cuBLAS; copies; the cache that all
# multiprocessors share; cycles of memory and of instructions that wait for each other.
PRODUCTS, FLOPS = 790e12, 60e12
MEMORY, CACHE = 4.2e12, 5.5e12
CLOCK = 1.7e9
SECTOR = 32  # bytes that memory gives at least
FAR, NEAR = 600, 30
ISSUED = 4  # instructions of warps in a cycle of a multiprocessor
LAUNCH = 2.5e-6
REACHED = 0.6  # of the floor's rate, where instructions multiply matrices


@dataclass(frozen=True)
class Cost:
    """Of one launch, or of a library's call (no threads): seconds at least, estimated seconds, and
    what takes them."""

    blocks: int
    threads: int
    flops: int
    moved: int
    floor: float
    estimate: float
    why: str


def costs(n: Nest, target: Target) -> list[Cost]:
    """Of a library's call, then of the launches of a nest, in their order."""
    assert target.grid is not None
    found = [_library(n)] if library_calls(n) else []
    plain = without_library(n)
    for launch in launches(plain.body):
        if any(not isinstance(s, Alloc) for s in launch):
            found.append(_Launch(plain, launch, target.grid).cost())
    return found


def _library(n: Nest) -> Cost:
    call = library_calls(n)[0]
    moved = sum(_size(v.shape) * v.dtype.bytes for v in call.views)
    body = [x for x in n.body if isinstance(x, Loop) and x.kind == "library"]
    sums = [p for s, p in walk(tuple(body)) if isinstance(s, Store) and s.combine]
    flops = 2 * sum(_size([x.extent for x in p]) for p in sums)
    floor = max(moved / MEMORY, flops / PRODUCTS)
    return Cost(0, 0, flops, moved, floor, floor / REACHED + LAUNCH, call.function)


def _size(shape: object) -> int:
    assert isinstance(shape, (tuple, list))
    return prod(D.bounds(d)[1] for d in shape)


class _Launch:
    def __init__(self, n: Nest, launch: tuple[Stmt, ...], grid: Grid) -> None:
        self.n, self.grid = n, grid
        found = list(walk(launch))
        loops = [s for s, _ in found if isinstance(s, Loop)]
        self.blocks = prod(
            max((_size([x.extent]) for x in loops if x.kind == kind), default=1) for kind in BLOCKS
        )
        self.threads = prod(
            max((_size([x.extent]) for x in loops if x.kind == kind), default=1) for kind in THREADS
        )
        self.stores = [
            (Store(s.stage, s.buffer, s.index, s.value, "add") if isinstance(s, Atomic) else s, p)
            for s, p in found
            if isinstance(s, (Store, Atomic))
        ]
        outermost = {s.buffer for s in n.body if isinstance(s, Alloc)}
        self.memory = {
            b.name: b
            for b in n.buffers
            if b.scope in ("in", "out") or (b.name in outermost and b.scope != "shared")
        }

    def cost(self) -> Cost:
        flops = tensor = issued = sectors = 0
        waits: dict[str, float] = {}
        for s, path in self.stores:
            times = _size([p.extent for p in path])
            if any(p.kind == "tensor" for p in path):
                tensor += 2 * times if s.combine else 0
                sectors += times // 16 if not s.combine else 0
                continue
            work = _functions(s.value) + (1 if s.combine else 0)
            flops += times * work
            lanes = prod(_size([p.extent]) for p in path if p.kind == "lane")
            warps = times // lanes // min(self.grid.warp, self.threads) or 1
            reads = list(self._accesses(s, path))
            issued += warps * (work * lanes + 2 * len(reads) + 2)
            sectors += sum(warps * x for x in reads)
            name, cycles = self._waits(path, bool(reads))
            waits[name] = max(waits.get(name, 0.0), cycles)
        moved = self._moved()
        floor = max(moved / MEMORY, tensor / PRODUCTS, flops / FLOPS)
        busy = min(self.grid.multiprocessors, self.blocks)
        rounds = -(-self.blocks * self.threads // (busy * self.grid.threads))
        name, cycles = max(waits.items(), key=lambda x: x[1], default=("", 0.0))
        parts = {
            "memory": moved / MEMORY,
            "products": tensor / PRODUCTS / REACHED,
            f"reads of {sectors * SECTOR / max(moved, 1):.0f}x the bytes": sectors * SECTOR / CACHE,
            f"instructions on {busy}": issued / (busy * ISSUED * CLOCK),
            name: rounds * cycles / CLOCK,
        }
        why = max(parts, key=lambda x: parts[x])
        both = self.blocks, self.threads, flops + tensor, moved
        return Cost(*both, floor, max(floor, parts[why]) + LAUNCH, why)

    def _moved(self) -> int:
        """Bytes of all arguments; of one that is read at places in data, what is read of it."""
        total: dict[str, int] = {}
        for s, path in self.stores:
            for name, index in (
                (s.buffer, s.index),
                *((x.source, x.index) for x in loads(s.value)),
            ):
                b = self.memory.get(str(name))
                if b is None:
                    continue
                own = {v for i in index for v in D.symbols(i)}
                own |= {v for i in index for d in D.data_values(i) for v in _symbols(d)}
                times = _size([p.extent for p in path if p.var in own])
                size = min(times, D.bounds(b.size)[1]) * b.dtype.bytes
                total[b.name] = max(total.get(b.name, 0), size)
        return sum(total.values())

    def _accesses(self, s: Store, path: Path) -> Iterator[int]:
        """Sectors of memory that a warp touches, for each read and for the store."""
        found = [(str(x.source), x.index) for x in loads(s.value)]
        for name, index in (*found, (s.buffer, s.index)):
            b = self.memory.get(name)
            if b is not None:
                yield self._sectors(b, index, path)

    def _sectors(self, b: Buffer, index: tuple[Dim, ...], path: Path) -> int:
        place = linear_index(b, index)
        lanes = [p for p in path if p.kind == "lane"]
        wide = prod(_size([p.extent]) for p in lanes)
        bytes_ = wide * b.dtype.bytes
        if any(_step(place, p.var) not in (0, 1) for p in lanes):
            bytes_ = wide * SECTOR
        along = next((p for p in path if p.kind == "thread.x"), None)
        step = 0 if along is None else _step(place, along.var)
        threads = min(self.grid.warp, 1 if along is None else _size([along.extent]))
        rows = min(self.grid.warp, self.threads) // threads or 1
        if step == 0:
            return rows * max(1, bytes_ // SECTOR)
        apart = step * b.dtype.bytes if step is not None else SECTOR
        if apart >= max(SECTOR, bytes_ + 1):
            return rows * threads * max(1, bytes_ // SECTOR)
        return rows * max(1, threads * max(apart, bytes_) // SECTOR)

    def _waits(self, path: Path, reads: bool) -> tuple[str, float]:
        """Iterations of one thread that wait for each other, and their cycles."""
        own = [p for p in path if p.kind in ("serial", "independent", "parallel")]
        count = _size([p.extent for p in own])
        return f"{count} steps of a thread", float(count * (FAR if reads else NEAR))


def _step(place: Dim, v: Sym) -> int | None:
    """The distance of neighbours; None where it is not constant."""
    found = D.coefficient(place, v)
    if found is None:
        least = D.substitute(place, {v: 0})
        moved = D.substitute(place, {v: 1}) if D.bounds(extent(v))[1] > 1 else least
        found = moved - least
    return found if isinstance(found, int) else None


def _functions(v: Value) -> int:
    """Scalar functions of a value, each counted once."""
    seen: set[int] = set()
    todo, count = [v], 0
    while todo:
        x = todo.pop()
        if id(x) in seen:
            continue
        seen.add(id(x))
        count += isinstance(x, Fn) and x.name != "cast"
        todo += x.operands()
    return count


def _symbols(v: object) -> set[Sym]:
    return set(v.symbols()) if isinstance(v, Value) else set()
