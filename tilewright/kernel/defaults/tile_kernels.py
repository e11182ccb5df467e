"""The default schedule of tile kernels: lanes in every stage's loops, instructions in products.

The nest comes from lang/tile/lower.py: one parallel loop over the programs of the grid, and in it,
in order, loops that fill one buffer each. What is fused was decided there; this decides how each of
them runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import dim as D
from tilewright.ir.expr import Fn, Load
from tilewright.ir.target import Target
from tilewright.kernel.defaults.rows import reduction_lanes
from tilewright.kernel.defaults.scheduler import Scheduler, accesses, lanes_for, vector_loop
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.intrinsic import INTRINSICS
from tilewright.kernel.nest import Atomic, Loop, Nest, Path, Report, Store, walk
from tilewright.kernel.step import Step
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.tensorize import Tensorize


@dataclass
class _Stages:
    order: list[str]
    stores: dict[str, Store]
    paths: dict[str, Path]


def schedule_tiles(n: Nest, target: Target) -> tuple[tuple[Step, ...], Nest]:
    """The default trace of a tile kernel and the nest that it leads to."""
    s = Scheduler.of(n, target)
    found = _stages(n)
    for name in found.order:
        store, path = found.stores[name], found.paths[name]
        own = [p for p in path if p.name.startswith(f"{name}.")]
        if not own:
            continue
        if store.combine is not None and _over(store, own):
            if not _product(s, name, store, own):
                reduction_lanes(s, name)
        else:
            _lanes(s, name, own)
    return tuple(s.trace), s.nest


def _stages(n: Nest) -> _Stages:
    found = _Stages([], {}, {})
    left_out: set[str] = set()
    for x, path in walk(n.body):
        if isinstance(x, (Atomic, Report)):
            left_out |= {p.name.split(".")[0] for p in path}
        elif isinstance(x, Store):
            if x.stage not in found.stores:
                found.order.append(x.stage)
            found.stores[x.stage], found.paths[x.stage] = x, path
    found.order = [s for s in found.order if s not in left_out]
    return found


def _over(store: Store, own: list[Loop]) -> list[Loop]:
    """Loops that are reduced over."""
    used = frozenset().union(*(D.symbols(i) for i in store.index)) if store.index else frozenset()
    return [p for p in own if p.var not in used]


def _lanes(s: Scheduler, stage: str, own: list[Loop]) -> None:
    """Lanes along the axis that most of what is read and written has beside each other."""
    store = s.store(stage)
    best, most = own[-1], -1.0
    for p in reversed(own):
        if not isinstance(p.extent, int) or p.extent < 2:
            continue
        score = 0.0
        for k, (b, idx) in enumerate(accesses(s, store)):
            c = D.coefficient(linear_index(b, idx), p.var) if len(idx) == len(b.shape) else None
            weight = 2.0 if k == 0 else 1.0
            if b.pointer:
                weight *= 2
            score += weight if c in (0, 1) else 0
        if score > most:
            best, most = p, score
    if best is not own[-1]:
        order = (*(p.name for p in own if p is not best), best.name)
        if not s.attempt(Reorder(order)):
            best = own[-1]
    vector_loop(s, best.name, lanes_for(s, stage))


def _product(s: Scheduler, stage: str, store: Store, own: list[Loop]) -> bool:
    """A product of two tiles by the target's instruction, a register tile at a time."""
    over = _over(store, own)
    v = store.value
    if len(over) != 1 or not (isinstance(v, Fn) and v.name == "mul"):
        return False
    if not all(isinstance(x, Load) for x in v.args) or len(own) < 3:
        return False
    rows, columns = own[-3], own[-2]
    if not (isinstance(columns.extent, int) and isinstance(rows.extent, int)):
        return False
    for name in s.target.instructions:
        limits = _limits(name, s.nest.buffer(store.buffer).dtype.name)
        if limits is None:
            continue
        height, width = _register_tile(s.target, (rows.extent, columns.extent), limits)
        saved = s.nest, list(s.trace)
        inside = [rows.name, columns.name]
        steps: list[Step] = []
        if height < rows.extent:
            steps.append(Split(rows.name, height))
            inside[0] = f"{rows.name}.1"
        if width < columns.extent:
            steps.append(Split(columns.name, width))
            inside[1] = f"{columns.name}.1"
        outer = [f"{columns.name}.0"] if width < columns.extent else []
        outer += [f"{rows.name}.0"] if height < rows.extent else []
        steps.append(Reorder((*outer, *inside, over[0].name)))
        steps.append(Tensorize(inside[0], name))
        if all(map(s.attempt, steps)):
            return True
        s.nest, s.trace[:] = saved
    return False


def _limits(instruction: str, dtype: str) -> tuple[int, int] | None:
    """The most rows and columns of an instruction that multiplies and adds such numbers."""
    (stage,) = INTRINSICS[instruction].group.stages
    c = INTRINSICS[instruction].group.buffer(stage.name)
    if c.dtype.name != dtype or len((*stage.axes, *stage.raxes)) != 3:
        return None
    rows, columns = (D.bounds(d)[1] for d in c.shape)
    return rows, columns


def _register_tile(
    target: Target, extents: tuple[int, int], limits: tuple[int, int]
) -> tuple[int, int]:
    """Rows and columns of sums in registers: whole tiles if there are any, then as many sums as
    hide an instruction's latency, then as little to load for each."""
    lanes = target.lanes(32)
    most = target.vector_registers - target.vector_registers // 4

    def fits(extent: int, limit: int, step: int) -> list[int]:
        sizes = list(range(step, min(extent, limit) + 1, step)) or [min(extent, limit)]
        return [n for n in sizes if extent % n == 0] or sizes[-1:]

    def worth(tile: tuple[int, int]) -> tuple[bool, float]:
        height, width = tile
        vectors = -(-width // lanes)
        sums = height * vectors
        loads = vectors + height / lanes
        return sums <= most, min(sums, 16) - loads * 16 / max(sums, 1)

    found = [
        (h, w) for h in fits(extents[0], limits[0], 1) for w in fits(extents[1], limits[1], lanes)
    ]
    return max(found, key=worth)
