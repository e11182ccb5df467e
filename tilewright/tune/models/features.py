"""What a learned model sees of a nest: numbers that the analytic model counts, and for the stores
that run most often what their loops, strides and reuse look like. All are logarithms or shares, so
that a shape is like another one twice its size."""

from __future__ import annotations

from collections.abc import Iterator
from math import log2

import numpy as np

from tilewright.ir import dim as D
from tilewright.ir.dim import Sym
from tilewright.ir.expr import Fn, Load
from tilewright.ir.expr import walk as walk_value
from tilewright.ir.scalar import cost_of
from tilewright.ir.target import Target
from tilewright.kernel.cost import CostModel, cost
from tilewright.kernel.nest import Loop, Nest, Store, store_loads, walk

STORES = 3  # that are looked at closely: those that run most often
LEVELS = 4  # loops around each, from inside, whose memory is counted
KINDS = ("serial", "parallel", "unroll", "lane", "tensor")


def _log(x: float) -> float:
    return log2(1.0 + max(0.0, x))


def features(nest: Nest, target: Target) -> np.ndarray:
    return np.array([v for _, v in named(nest, target)], np.float32)


def named(nest: Nest, target: Target) -> list[tuple[str, float]]:
    """All features with their names."""
    model = CostModel(nest, target)
    c = cost(nest, target)
    out = [
        ("cycles", _log(c.cycles)),
        ("compute", _log(c.compute)),
        ("products", _log(c.products)),
        ("bytes into the first cache", _log(c.moved[0])),
        ("bytes into the second cache", _log(c.moved[1])),
        ("bytes into the third cache", _log(c.moved[2])),
        ("bytes touched", _log(c.once)),
        ("threads", c.threads),
        ("cores", float(target.cores)),
        ("lanes of a register", float(target.lanes(32))),
        ("waiting", c.waiting(target)),
        ("stalling", c.stalling(target)),
    ]
    stores = [(s, p) for s, p in walk(nest.body) if isinstance(s, Store)]
    runs = [_runs(model, p) for _, p in stores]
    order = sorted(range(len(stores)), key=lambda k: -runs[k])
    total = sum(runs) or 1.0
    parallel = {q.name: q for _, p in stores for q in p if q.kind == "parallel"}
    pieces = [max(1, -(-model.trips[q.var] // max(1, q.grain))) for q in parallel.values()]
    local = [b for b in nest.buffers if b.scope == "local"]
    out += [
        ("stores", float(len(stores))),
        ("regions of threads", float(len(parallel))),
        ("pieces for a thread", _log(min(pieces, default=0) / max(1, target.cores))),
        ("left over", max((-n % target.cores) / n for n in pieces) if pieces else 1.0),
        ("bytes of local buffers", _log(sum(model.number(b.size) * b.dtype.bytes for b in local))),
        ("written out", _log(sum(_written(model, p) for _, p in stores))),
    ]
    for k in range(STORES):
        found = stores[order[k]] if k < len(order) else None
        share = runs[order[k]] / total if found else 0.0
        out += [(f"store {k}: {n}", v) for n, v in _store(model, found, share)]
    return out


def _runs(model: CostModel, path: tuple[Loop, ...]) -> float:
    n = 1.0
    for q in path:
        n *= max(1, model.trips[q.var])
    return n


def _written(model: CostModel, path: tuple[Loop, ...]) -> float:
    n = 1.0
    for q in path:
        if q.kind in ("unroll", "tensor"):
            n *= max(1, model.trips[q.var])
    return n


def _store(
    model: CostModel, found: tuple[Store, tuple[Loop, ...]] | None, share: float
) -> Iterator[tuple[str, float]]:
    s, path = found if found is not None else (None, ())
    yield "share of all", share
    yield "runs", _log(_runs(model, path)) if s else 0.0
    for kind in KINDS:
        n = 1.0
        for q in path:
            n *= max(1, model.trips[q.var]) if q.kind == kind else 1
        yield f"iterations of {kind} loops", _log(n - 1)
    inner = [q for q in path if q.kind == "serial"][-1:]
    lane = [q for q in path if q.kind == "lane"][-1:]
    yield "iterations of the innermost serial loop", _log(model.trips[inner[0].var]) if inner else 0
    lanes = model.trips[lane[0].var] if lane else 0
    yield "lanes", float(lanes)
    yield "lanes by the register", lanes / max(1, model.target.lanes(32))
    yield "ragged lanes", float(bool(lane) and not isinstance(lane[0].extent, int))
    written = frozenset().union(*map(D.symbols, s.index)) if s and s.index else frozenset[Sym]()
    sums = [q for q in path if q.var not in written]
    yield "sums", _log(_runs(model, tuple(sums)) - 1) if s and s.combine is not None else 0.0
    inside = {q.kind for q in sums}
    yield "sums along lanes", float("lane" in inside)
    yield "sums written out", float("unroll" in inside)
    yield "to a register", float(s is not None and model.buffers[s.buffer].scope == "register")
    yield from _values(model, s, lane[0].var if lane else inner[0].var if inner else None)
    sizes = [sum(model.touched(q).values()) for q in reversed(path) if q.kind not in ("lane",)]
    caches = (model.target.l1, model.target.l2, model.target.l3)
    for k in range(LEVELS):
        size = sizes[k] if k < len(sizes) else (sizes[-1] if sizes else 0.0)
        yield f"bytes of loop {k} from inside", _log(size)
    for k, cache in enumerate(caches):
        fits = sum(1 for size in sizes if size <= cache)
        yield f"loops that fit cache {k}", fits / max(1, len(sizes))


def _values(model: CostModel, s: Store | None, along: Sym | None) -> Iterator[tuple[str, float]]:
    """What is computed, and how memory is walked through along the innermost loop."""
    functions = [v for v in walk_value(s.value) if isinstance(v, Fn)] if s else []
    yield "functions", float(len(functions))
    yield "cost of functions", _log(sum(cost_of(v.name) for v in functions))
    loads = [x for x in store_loads(s) if isinstance(x.source, str)] if s else []
    kinds = {"still": 0, "adjacent": 0, "strided": 0, "anywhere": 0}
    for x in loads:
        kinds[_walked(model, x, along)] += 1
    for kind, n in kinds.items():
        yield f"loads that are {kind}", float(n)
    yield (
        "registers read",
        float(sum(model.buffers[str(x.source)].scope == "register" for x in loads)),
    )


def _walked(model: CostModel, x: Load, along: Sym | None) -> str:
    if along is None or not any(along in D.symbols(i) for i in x.index):
        return "still"
    if any(True for i in x.index for _ in D.data_values(i)):
        return "anywhere"
    step = model.step(model.buffers[str(x.source)], x.index, along)
    return "still" if step == 0 else "adjacent" if step == 1 else "strided"
