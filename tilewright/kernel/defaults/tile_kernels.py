"""The default schedule of tile kernels: lanes in every stage's loops, instructions in products.

The nest comes from lang/tile/lowering/: one loop over the programs of the grid, and in it, in
order, loops that fill one buffer each. What is fused was decided there; this decides how each of
them runs, and how threads share the programs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import gcd, prod

from tilewright.ir import dim as D
from tilewright.ir.expr import Fn, Load, loads
from tilewright.ir.expr import walk as walk_value
from tilewright.ir.register_tile import operand_level
from tilewright.ir.target import Target
from tilewright.kernel.defaults.rows import reduction_lanes
from tilewright.kernel.defaults.scheduler import Scheduler, accesses, lanes_for, vector_loop
from tilewright.kernel.defaults.tile_dots import Products, grouped_products
from tilewright.kernel.defaults.tile_operands import hold_operands
from tilewright.kernel.defaults.tile_products import in_panels, multiplies, reduced
from tilewright.kernel.defaults.windows import Windows
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.nest import (
    TENSOR,
    WAITS,
    Atomic,
    Loop,
    Nest,
    Path,
    Report,
    Stmt,
    Store,
    own_loops,
    reads,
    stages_in,
    walk,
    writes,
)
from tilewright.kernel.step import Step, Trace
from tilewright.kernel.steps.join import Join
from tilewright.kernel.steps.parallel import Parallel
from tilewright.kernel.steps.prefetch import Prefetch
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize

# Four vectors of the widest machine, and what suits every one. With one vector of 512 bits at a
# time a softmax of 1,024 columns took half as long again.
MOST_LANES, FEW_LANES = 64, 16
MOST_WRITTEN_OUT = 8  # more cost more time to compile than they save
MOST_JOINED = 16  # stages in one loop: more need more registers than there are
MOST_BETWEEN = 2  # loops between two that become one
# Programs that threads claim together are about this many operations of whole vectors, some
# microseconds: at a fourth of it claiming took a twentieth of a layer normalisation.
PIECE = 16384
PAGE = 4096  # bytes, beyond which no processor looks ahead by itself


@dataclass
class _Stages:
    order: list[str]
    stores: dict[str, Store]
    paths: dict[str, Path]
    left_out: set[str] = field(default_factory=set)  # that have something else in their loops

    def own(self, name: str) -> list[Loop]:
        return own_loops(self.paths[name], name)

    def is_sum(self, name: str) -> bool:
        """Is it reduced over a loop of its own?"""
        store = self.stores[name]
        return store.combine is not None and bool(reduced(store, self.own(name)))


def schedule_programs(n: Nest, target: Target) -> tuple[Trace, Nest]:
    """The default trace of a tile kernel and the nest that it leads to."""
    s = Scheduler(n, target)
    hold_operands(s)
    _share(s)
    found = _stages(s.nest)
    panels = in_panels(s, {x: found.stores[x] for x in found.order}, found.paths)
    narrow = grouped_products(s, found.stores, found.paths)
    products: list[str] = []
    windows = Windows.of(s.nest)
    done: list[Nest] = []
    for piece in windows.pieces:
        part = Scheduler(piece, target)
        names = _stages(piece).order if len(windows.pieces) > 1 else found.order
        names = [x for x in names if x not in found.left_out]
        # Products first: they take what they read, and where they start from, into their loops.
        alone = len(windows.pieces) == 1
        sums = [x for x in names if found.is_sum(x)]
        own_products = [x for x in sums if _multiplied(part, x, found, narrow, alone)]
        for name in names:
            own = own_loops(part.path(name), name)
            if name in own_products or not own or own[-1].kind == "lane":
                continue
            if name in sums:
                reduction_lanes(part, name, _many_lanes(part, name, own))
            elif not narrow.fills(part, name, part.store(name), own):
                _lanes(part, name, own, panels.get(found.stores[name].buffer))
        products += own_products
        _join(part)
        done.append(part.nest)
        s.trace += part.trace
    s.nest = windows.joined(done)
    for name in products:
        _prefetch(s, name, found)
    _prefetch_rows(s)
    return tuple(s.trace), s.nest


def _multiplied(s: Scheduler, name: str, found: _Stages, narrow: Products, alone: bool) -> bool:
    """A sum as a product of tiles, if it is one."""
    own = found.own(name)
    return narrow.multiplies(s, name, own) or multiplies(s, name, found.stores[name], own, alone)


def _share(s: Scheduler) -> None:
    """Threads share the programs of the grid, enough of them at a time. Programs that wait for each
    other are claimed one by one: each has to be able to start."""
    for loop in s.nest.body:
        if isinstance(loop, Loop) and loop.kind == "independent":
            piece = max(1, PIECE * s.target.lanes(32) // max(1, _work(loop.body)))
            s.do(Parallel(loop.name, 1 if WAITS in loop.marks else piece))


def _work(body: tuple[Stmt, ...]) -> int:
    """Rough operations of a program; a loop of unknown length is taken for a long one."""
    total = 0
    for x, path in walk(body):
        if isinstance(x, Store):
            points = 1
            for p in path:
                points *= p.extent if isinstance(p.extent, int) else 64
            total += points * (1 + sum(isinstance(v, (Fn, Load)) for v in walk_value(x.value)))
    return total


def _join(s: Scheduler) -> None:
    """Neighbouring loops that use the same buffers become one: what one of them reads or computes
    is still in a register for the next."""
    tried: set[tuple[str, str]] = set()
    while pair := next((p for p in _following(s.nest.body) if p not in tried), None):
        tried.add(pair)
        s.attempt(Join(*pair))


def _following(body: tuple[Stmt, ...]) -> Iterator[tuple[str, str]]:
    """Loops that run equally often, one after the other or with few others between them, that have
    a buffer in common."""
    loops = [s for s in body if isinstance(s, Loop)]
    serial = [s for s in loops if s.kind == "serial" and not s.axis.first]
    for k, a in enumerate(serial):
        near = serial[k + 1 : k + 2 + MOST_BETWEEN]
        b = next((x for x in near if x.extent == a.extent), None)
        if b is not None and not any(map(_is_product, (a, b))):
            small = len(stages_in(a)) + len(stages_in(b)) <= MOST_JOINED
            if small and not _used(a).isdisjoint(_used(b)):
                yield a.name, b.name
    for s in loops:
        yield from _following(s.body)


def _used(s: Loop) -> set[str]:
    return writes((s,)) | {str(r.source) for r in reads(s)}


def _is_product(s: Loop) -> bool:
    return TENSOR in s.marks


def plain_products(n: Nest) -> list[str]:
    """Events for products of tiles that run by no instruction."""
    out: list[str] = []
    products = n.are("product")
    for x, path in walk(n.body):
        if not isinstance(x, Store) or x.combine != "add" or x.stage not in products:
            continue
        own = own_loops(path, x.stage)
        if all(p.kind != "tensor" for p in own):
            sizes = "x".join(str(p.extent) for p in own)
            out.append(f"the product {x.stage} ({sizes}, {x.value.dtype}) runs by no instruction")
    return out


def _prefetch(s: Scheduler, product: str, found: _Stages) -> None:
    """The next tiles of a loop arrive while the current ones are multiplied: each register tile
    prefetches a share of what the copies of the operands will read, and the sums of the next."""
    stores = (p for x, p in walk(s.nest.body) if isinstance(x, Store) and x.stage == product)
    path = max(stores, key=len)  # not the one of the last, smaller register tile
    own = own_loops(path, product)
    around = [p.name for p in own if p.kind == "serial"]
    outside = [p for p in path if p not in own]
    if not around or not outside or outside[-1].kind != "serial":
        return
    store = found.stores[product]
    level = operand_level(s.target, next(p.instruction for p in own if p.instruction))
    operands = {str(x.source) for x in loads(store.value)}
    for name in found.order:
        shared = [p for p in s.path(name) if p.name in (q.name for q in path)]
        if found.stores[name].buffer not in operands or len(shared) < len(outside):
            continue
        loop = shared[-1]  # of a panel that is filled in its turn, the one over panels
        for x in loads(s.store(name).value):
            moves = any(loop.var in D.symbols(i) for i in x.index)
            followed = len(shared) > len(outside) and _is_followed(s, name, x)
            if s.nest.buffer(str(x.source)).pointer and moves and not followed:
                s.prefetch(str(x.source), loop.name, around[-1], level)
    sums = s.nest.buffer(store.buffer)
    elements = prod(k for k in sums.shape if isinstance(k, int))
    if level > 1 and elements * sums.dtype.bytes > s.target.l1 // 2:
        s.attempt(Prefetch(sums.name, around[-1], 1, around[-1]))


def _prefetch_rows(s: Scheduler) -> None:
    """The next program's rows arrive while this one computes: no processor looks ahead from one
    page to the next, and a row of a page's size or more begins with a wait for memory."""
    found = _stages(s.nest)
    for name in found.order:
        path, own = found.paths[name], found.own(name)
        if len(path) != len(own) + 1 or path[0].kind != "parallel" or len(own) < 2:
            continue
        extents = [p.extent for p in own if isinstance(p.extent, int)]
        for x in loads(found.stores[name].value):
            b = s.nest.buffer(str(x.source))
            long = len(extents) == len(own) and prod(extents) * b.dtype.bytes >= PAGE
            if b.pointer and long and any(path[0].var in D.symbols(i) for i in x.index):
                s.prefetch(b.name, path[0].name, own[-2].name)


def _is_followed(s: Scheduler, copy: str, x: Load) -> bool:
    """Do rows that are copied follow each other so closely that a processor looks ahead itself?"""
    steps = [D.coefficient(x.index[-1], p.var) for p in s.own(copy)] if x.index else []
    return all(isinstance(c, int) and c * x.dtype.bytes < PAGE for c in steps)


def _stages(n: Nest) -> _Stages:
    found = _Stages([], {}, {})
    for x, path in walk(n.body):
        if isinstance(x, (Atomic, Report)):
            found.left_out |= {p.axis.stage for p in path}
        elif isinstance(x, Store):
            if x.stage not in found.stores:
                found.order.append(x.stage)
            found.stores[x.stage], found.paths[x.stage] = x, path
    found.order = [s for s in found.order if s not in found.left_out]
    return found


def _lanes(s: Scheduler, stage: str, own: list[Loop], panel: int | None) -> None:
    """Lanes along the axis that is contiguous in most of what is read and written, no more of them
    than a panel that is filled has."""
    store = s.store(stage)
    best, most = own[-1], -1.0
    for p in reversed(own):
        if not isinstance(p.extent, int) or p.extent < 2:
            continue
        score = 0.0
        for k, (b, idx) in enumerate(accesses(s, store)):
            if panel and k == 0:
                continue  # it is filled either way: by whole vectors, or turned round
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
    if panel and _turned(s, stage, own, best, panel):
        return
    lanes = min(lanes_for(s, stage, MOST_LANES), panel) if panel else _many_lanes(s, stage, [best])
    vectors = vector_loop(s, best.name, lanes)
    if vectors and panel:
        _written_out(s, vectors, [p.name for p in own if p is not best])


def _turned(s: Scheduler, stage: str, own: list[Loop], rows: Loop, panel: int) -> bool:
    """A panel filled from memory in which its rows are adjacent: as many vectors as it has
    columns, or as there are registers for, are read at a time, and stored turned round."""
    panel = gcd(panel, s.target.vector_registers)
    over = D.symbols(s.store(stage).index[-1])
    columns = [p for p in own if p.var in over]
    lanes = min(s.target.lanes(32), rows.extent if isinstance(rows.extent, int) else 0)
    if len(columns) != 1 or columns[0] is rows or lanes < 2 or rows.extent % lanes:
        return False
    saved, column = (s.nest, list(s.trace)), columns[0].name
    outer = [p.name for p in own if p is not rows and p is not columns[0]]
    steps: list[Step] = []
    few, lane = column, rows.name
    if columns[0].extent != panel:
        steps.append(Split(column, panel))
        outer.append(f"{column}.0")
        few = f"{column}.1"
    if rows.extent != lanes:
        steps.append(Split(lane, lanes))
        outer.append(f"{lane}.0")
        lane = f"{lane}.1"
    steps += (Reorder((*outer, lane, few)), Unroll(few), Vectorize(lane))
    if all(map(s.attempt, steps)):
        return True
    s.nest, s.trace[:] = saved
    return False


def _many_lanes(s: Scheduler, stage: str, own: list[Loop]) -> int:
    """Lanes of several vectors, however wide these are: sums of one vector would wait for
    themselves, and conditions are evaluated once for all. At least two rounds are left where they
    are more than those of any machine."""
    lanes = lanes_for(s, stage, MOST_LANES)
    longest = max((p.extent for p in own if isinstance(p.extent, int)), default=lanes)
    while lanes > FEW_LANES and 2 * lanes > longest:
        lanes //= 2
    return lanes


def _written_out(s: Scheduler, vectors: str, rows: list[str]) -> None:
    """Vectors of several panels one after the other, so that where each begins (a remainder, or
    read from memory) is computed before all rows and not in each."""
    count = s.loops(vectors)[0].extent
    if isinstance(count, int) and count > MOST_WRITTEN_OUT:
        if count % MOST_WRITTEN_OUT or not s.attempt(Split(vectors, MOST_WRITTEN_OUT)):
            return
        if not s.attempt(Reorder((f"{vectors}.0", *rows, f"{vectors}.1"))):
            return
        vectors = f"{vectors}.1"
    s.attempt(Unroll(vectors))
