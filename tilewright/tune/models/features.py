"""What a learned model sees of a nest: numbers that the analytic model counts, of which parts its
cycles and bytes are made, and for the stores that take most of the time what their loops, strides,
registers and reuse look like. All are logarithms or shares, so that a shape is like another one
twice its size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from math import log2

import numpy as np

from tilewright.ir import dim as D
from tilewright.ir.dim import Sym
from tilewright.ir.target import Target
from tilewright.kernel.cost import (
    EXIT,
    ITERATION,
    REMEMBERED,
    CostModel,
    computed,
    cost,
    index_symbols,
    step_along,
)
from tilewright.kernel.nest import Loop, Nest, Prefetch, Store, Work
from tilewright.kernel.schedule import default_schedule

STORES = 3  # that are looked at closely: those that take most of the time
LEVELS = 4  # loops around each, from inside, whose memory is counted
KINDS = ("serial", "parallel", "unroll", "lane", "tensor")
_WRITTEN_OUT = ("unroll", "lane", "tensor")
PAGE = 4096
Named = tuple[str, float]
Path = tuple[Loop, ...]


def _log(x: float) -> float:
    return log2(1.0 + x) if x > 0.0 else 0.0


def features(nest: Nest, target: Target) -> np.ndarray:
    parts = _Features(CostModel(nest, target), nest).parts()
    return np.array([v for _, part in parts for _, v in part], np.float32)


def relative(rows: np.ndarray, default: np.ndarray) -> np.ndarray:
    """Features of schedules, and how they differ from those of their group's default schedule:
    which is what times are compared with too."""
    return np.concatenate([rows, rows - default], axis=1)


def rows_of(nests: Sequence[Nest], default: Nest, target: Target) -> np.ndarray:
    """What a model is trained on and asked with: a row for each nest."""
    rows = np.stack([features(n, target) for n in nests])
    return relative(rows, features(default, target))


@lru_cache(64)
def default_nest(work: Work, target: Target) -> Nest:
    return default_schedule(work, target)[1]


@lru_cache(64)
def default_features(work: Work, target: Target) -> np.ndarray:
    return features(default_nest(work, target), target)


def named(nest: Nest, target: Target) -> list[Named]:
    """All features with their names."""
    parts = _Features(CostModel(nest, target), nest).parts()
    return [(f"{of}{name}", v) for of, part in parts for name, v in part]


@lru_cache(REMEMBERED)
def _walked(index: tuple[D.Dim, ...], sizes: tuple[int, ...], along: Sym) -> tuple[str, int]:
    """How memory is walked along a loop, and by how many elements a step of it; 0 where steps are
    not even."""
    if along not in index_symbols(index):
        return "still", 0
    step = step_along(index, sizes, along)
    if any(D.data_values(i) for i in index):
        kind = "anywhere"
    elif step is None:
        kind = "strided"
    else:
        kind = "still" if step == 0 else "adjacent" if abs(step) == 1 else "strided"
    return kind, abs(step or 0)


class _Features:
    """The features of one nest. Paths are the loops around a statement, the outermost first."""

    def __init__(self, model: CostModel, nest: Nest) -> None:
        self.model, self.nest, self.target = model, nest, model.target
        self.cost = cost(nest, self.target, model)
        self.stores: list[tuple[Store, Path]] = []
        self.prefetches = 0.0
        self.around: dict[int, float] = {}  # how often the body of a loop runs
        for s, path in model.walked:
            if isinstance(s, Loop):
                before = self.around[id(path[-1])] if path else 1.0
                self.around[id(s)] = before * max(1, model.trips[s.var])
            elif isinstance(s, Store):
                self.stores.append((s, path))
            elif isinstance(s, Prefetch):
                self.prefetches += self.runs(path) * s.lines

    def runs(self, path: Path) -> float:
        return self.around[id(path[-1])] if path else 1.0

    def trips(self, path: Path, *kinds: str) -> float:
        """Iterations of the loops of some kinds, all of them together."""
        n = 1.0
        for q in path:
            if q.kind in kinds:
                n *= max(1, self.model.trips[q.var])
        return n

    def parts(self) -> Iterator[tuple[str, Iterable[Named]]]:
        """All features, in parts, and how the names of each begin."""
        yield "", self.whole()
        yield "", self.instructions()
        yield "", self.threads()
        weights = [self.weight(s, p) for s, p in self.stores]
        order = sorted(range(len(weights)), key=lambda k: (-weights[k], k))
        total = sum(weights) or 1.0
        yield "", self.accesses(weights, total)
        for k in range(STORES):
            found = self.stores[order[k]] if k < len(order) else None
            share = weights[order[k]] / total if found else 0.0
            yield f"store {k}: ", self.store(found, share)

    def whole(self) -> Iterator[Named]:
        c, t = self.cost, self.target
        yield "cycles", _log(c.cycles)
        yield "compute", _log(c.compute)
        yield "products", _log(c.products)
        rates = (t.l2_bandwidth, t.l3_bandwidth, t.memory_bandwidth)
        for k, (moved, rate) in enumerate(zip(c.moved, rates, strict=True)):
            yield f"bytes into cache {k}", _log(moved)
            yield f"waiting for cache {k}", moved / rate / max(1.0, c.compute + moved / rate)
        yield "bytes touched", _log(c.once)
        yield "arithmetic intensity", _log(c.products * t.fma_pipes / max(1.0, c.once) * 16)
        yield "waiting", c.waiting(t)
        yield "stalling", c.stalling(t)
        for name, size in (("first", t.l1), ("second", t.l2), ("third", t.l3)):
            yield f"bytes touched by the {name} cache", _log(c.once / max(1, size))
        yield "lanes of a register", float(t.lanes(32))
        yield "registers", float(t.vector_registers)

    def instructions(self) -> Iterator[Named]:
        """Of which instructions the cycles are made, and what they wait for."""
        t = self.target
        fma = loads = stores = other = chain = exits = issue = overhead = longest = 0.0
        for around, line in self.model.lines:
            n = 1.0 if around is None else self.around.get(id(around), 1.0)
            count = line.fma + line.loads + line.stores + line.other
            fma += n * line.fma / t.fma_pipes
            other += n * line.other / t.fma_pipes
            loads += n * line.loads / t.load_ports
            stores += n * line.stores
            issue += n * count / t.issue
            units = max((line.fma + line.other) / t.fma_pipes, line.loads / t.load_ports)
            chain += n * max(0.0, line.chain - units)
            exits += n * line.exits
            overhead += n * ITERATION if around is not None else 0.0
            longest = max(longest, count)
        for loop in (s for s, _ in self.model.walked if isinstance(s, Loop)):
            if loop.kind not in _WRITTEN_OUT:
                exits += EXIT * self.around[id(loop)] / max(1, self.model.trips[loop.var])
        total = max(1.0, fma + other + loads + stores + chain + exits + overhead)
        found = {
            "multiply-adds": fma, "other arithmetic": other, "loads": loads, "stores": stores,
            "waiting sums": chain, "exits and spills": exits, "loop overhead": overhead,
        }  # fmt: skip
        for name, n in found.items():
            yield f"cycles of {name}", _log(n)
            yield f"share of {name}", n / total
        yield "issue", _log(issue)
        yield "longest body", _log(longest)
        yield "loads of a multiply-add", _log(loads * t.load_ports / max(1.0, fma * t.fma_pipes))
        yield "prefetches", _log(self.prefetches)

    def threads(self) -> Iterator[Named]:
        model, cores = self.model, max(1, self.target.cores)
        regions = {q.name: (q, p) for _, p in self.stores for q in p if q.kind == "parallel"}
        pieces = [max(1, -(-model.trips[q.var] // max(1, q.grain))) for q, _ in regions.values()]
        begun = all_pieces = 0.0
        for (q, _), count in zip(regions.values(), pieces, strict=True):
            times = self.around[id(q)] / max(1, model.trips[q.var])
            begun += times
            all_pieces += times * count
        local = [b for b in self.nest.buffers if b.scope == "local"]
        yield "threads", self.cost.threads
        yield "cores", float(cores)
        yield "stores in the nest", float(len(self.stores))
        yield "regions of threads", _log(begun)
        yield "pieces in all", _log(all_pieces)
        yield "pieces for a thread", _log(min(pieces, default=0) / cores)
        yield "left over", max((-n % cores) / n for n in pieces) if pieces else 1.0
        cycles = self.cost.cycles * self.cost.threads
        yield "cycles of a piece", _log(cycles / max(1, max(pieces, default=1)))
        sizes = [model.number(b.size) * b.dtype.bytes for b in local]
        yield "bytes of local buffers", _log(sum(sizes))
        yield "local buffers", float(len(local))
        written = [self.trips(p, "unroll", "tensor") for _, p in self.stores]
        yield "written out", _log(sum(written))
        yield "most written out", _log(max(written, default=0.0))

    def weight(self, s: Store, path: Path) -> float:
        """About how many instructions a store and what it computes are, in all."""
        each = 1.0 + computed(s.value).cost
        vectors = self.lanes_of(s) if any(q.kind in ("lane", "tensor") for q in path) else 1
        return self.runs(path) * each / vectors

    def lanes_of(self, s: Store) -> int:
        return self.target.lanes(max(8, self.model.buffers[s.buffer].dtype.bits))

    def accesses(self, weights: Sequence[float], total: float) -> Iterator[Named]:
        """Of all loads and stores, weighed by how often they run: how they walk through memory."""
        parts = {"still": 0.0, "adjacent": 0.0, "strided": 0.0, "anywhere": 0.0}
        stored = dict(parts)
        scalar = ragged = guarded = changing = 0.0
        for (s, path), w in zip(self.stores, weights, strict=True):
            along = self.along(path)
            for x in self.model.loads(s):
                parts[self.walked(str(x.source), x.index, along)[0]] += w
            stored[self.walked(s.buffer, s.index, along)[0]] += w
            lane = [q for q in path if q.kind in ("lane", "tensor")]
            scalar += w if not lane else 0.0
            ragged += w if any(not isinstance(q.extent, int) for q in lane) else 0.0
            length = [q for q in path if not isinstance(q.extent, int)]
            guarded += w if any(q.kind in ("unroll", "tensor") for q in length) else 0.0
            changing += w if length else 0.0
        for kind, n in parts.items():
            yield f"all loads that are {kind}", n / total
        for kind, n in stored.items():
            yield f"all stores that are {kind}", n / total
        yield "all without lanes", scalar / total
        yield "all in ragged lanes", ragged / total
        yield "all written out with guards", guarded / total
        yield "all in loops of changing length", changing / total

    def along(self, path: Path) -> Sym | None:
        """The loop whose iterations are neighbours in time: lanes, or the innermost."""
        lane = [q for q in path if q.kind == "lane"] or [q for q in path if q.kind == "tensor"]
        found = lane[-1:] or list(path[-1:])
        return found[0].var if found else None

    def store(self, found: tuple[Store, Path] | None, share: float) -> Iterator[Named]:
        s, path = found if found is not None else (None, ())
        model = self.model
        yield "share of all", share
        yield "runs", _log(self.runs(path)) if s else 0.0
        for kind in KINDS:
            yield f"iterations of {kind} loops", _log(self.trips(path, kind) - 1)
        inner = [q for q in path if q.kind not in _WRITTEN_OUT][-1:]
        lane = [q for q in path if q.kind == "lane"][-1:]
        yield (
            "iterations of the innermost loop",
            _log(self.trips(tuple(inner), "serial", "parallel")),
        )
        lanes = model.trips[lane[0].var] if lane else 0
        yield "lanes", float(lanes)
        width = self.lanes_of(s) if s else 1
        yield "vectors of the lanes", -(-lanes // width)
        yield "filled lanes", lanes / max(1, -(-lanes // width) * width)
        yield "ragged lanes", float(bool(lane) and not isinstance(lane[0].extent, int))
        yield (
            "innermost changes in length",
            float(bool(inner) and not isinstance(inner[0].extent, int)),
        )
        written = index_symbols(s.index) if s else frozenset[Sym]()
        sums = tuple(q for q in path if q.var not in written) if s and s.combine is not None else ()
        yield "sums", _log(self.trips(sums, *KINDS) - 1)
        yield "sums along lanes", _log(self.trips(sums, "lane") - 1)
        yield "sums written out", _log(self.trips(sums, "unroll", "tensor") - 1)
        yield "sums innermost", float(bool(sums and inner) and inner[0] in sums)
        yield from self.registers(s, path, written, width)
        yield from self.values(s, path, lane[0].var if lane else None, inner)
        yield from self.reuse(path)

    def registers(
        self, s: Store | None, path: Path, written: frozenset[Sym], width: int
    ) -> Iterator[Named]:
        """Results that are under way at once, in vectors, against registers."""
        rows = tuple(q for q in path if q.kind in ("unroll", "tensor") and q.var in written)
        lane = tuple(q for q in path if q.kind == "lane" and q.var in written)
        vectors = self.trips(rows, "unroll", "tensor")
        vectors *= -(-self.trips(lane, "lane") // width) if lane else 1.0
        if s is not None and any(q.kind == "tensor" for q in rows):
            vectors /= width
        yield (
            "to a register",
            float(s is not None and self.model.buffers[s.buffer].scope == "register"),
        )
        yield "results at once", _log(vectors)
        yield "results by the registers", vectors / self.target.vector_registers
        room = self.target.fma_pipes * self.target.fma_latency
        yield "results to hide a latency", min(4.0, vectors / room)

    def values(
        self, s: Store | None, path: Path, lane: Sym | None, inner: list[Loop]
    ) -> Iterator[Named]:
        """What is computed, and how memory is walked along lanes and along the innermost loop."""
        inside = computed(s.value) if s else None
        loads = inside.loads if inside else ()
        yield "functions", float(len(inside.functions) if inside else 0)
        yield "cost of functions", _log(inside.cost if inside else 0)
        yield "loads", float(len(loads))
        loop = inner[0].var if inner else None
        for name, along in (("lanes", lane), ("the loop", loop)):
            kinds = {"still": 0, "adjacent": 0, "strided": 0, "anywhere": 0}
            far = 0.0
            for x in loads:
                kind, step = self.walked(str(x.source), x.index, along)
                kinds[kind] += 1
                far = max(far, step * self.model.buffers[str(x.source)].dtype.bytes)
            for kind, n in kinds.items():
                yield f"loads along {name} that are {kind}", float(n)
            yield f"longest stride along {name}", _log(far)
            yield f"strides of pages along {name}", float(far >= PAGE)
        at = self.walked(s.buffer, s.index, lane or loop)[0] if s else "still"
        yield "stored apart", float(at in ("strided", "anywhere"))
        scopes = [self.model.buffers[str(x.source)].scope for x in loads]
        yield "registers read", float(sum(x == "register" for x in scopes))
        yield "local buffers read", float(sum(x == "local" for x in scopes))

    def reuse(self, path: Path) -> Iterator[Named]:
        """Bytes that each loop touches, from inside, and which of them stay in which cache."""
        model, t = self.model, self.target
        around = [q for q in reversed(path) if q.kind not in _WRITTEN_OUT]
        sizes = [sum(model.touched(q).values()) for q in around]
        for k in range(LEVELS):
            size = sizes[k] if k < len(sizes) else (sizes[-1] if sizes else 0.0)
            yield f"bytes of loop {k} from inside", _log(size)
            trips = model.trips[around[k].var] if k < len(around) else 1
            yield f"iterations of loop {k} from inside", _log(trips - 1)
            # Bytes of an iteration by bytes of the loop: 1 where iterations share all they touch.
            inside = sizes[k - 1] if 0 < k < len(sizes) else None
            yield f"shared by loop {k} from inside", inside / max(1.0, size) if inside else 0.0
        for k, room in enumerate((t.l1, t.l2, t.l3)):
            fits = [size for size in sizes if size <= 0.8 * room]
            yield f"loops that fit cache {k}", float(len(fits))
            inside = 1.0
            for q in around[: len(fits)]:
                inside *= max(1, model.trips[q.var])
            yield f"iterations within cache {k}", _log(inside)
            yield f"part of cache {k}", max(fits, default=0.0) / max(1, room)

    def walked(self, buffer: str, index: tuple[D.Dim, ...], along: Sym | None) -> tuple[str, int]:
        if along is None:
            return "still", 0
        return _walked(index, self.model.shape(self.model.buffers[buffer]), along)


@cache
def feature_names() -> tuple[str, ...]:
    """The names of the columns that `rows_of` makes, which are the same for every nest."""
    target = Target("any", "any", "any")
    names = [name for name, _ in named(Nest("nothing", (), ()), target)]
    return (*names, *(f"{name} beyond the default" for name in names))
