"""Tile kernels on a GPU: a program is a block, its threads share every tile.

Products get their instructions (grid_tile_products.py) and loops their layouts
(grid_tile_layouts.py); then operands are fetched ahead of their use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import gcd, prod

from tilewright.base.errors import Refused, Unsupported
from tilewright.ir import dim as D
from tilewright.ir.expr import Load
from tilewright.ir.target import Grid, Target
from tilewright.kernel.banks import conflicts
from tilewright.kernel.box_copies import engine_of
from tilewright.kernel.defaults.grid_tile_copies import Copies, not_ahead, only_engine
from tilewright.kernel.defaults.grid_tile_layouts import THREAD_AXES, VECTOR, Layouts
from tilewright.kernel.defaults.grid_tile_products import (
    Products,
    Refusals,
    beside,
    lay_out_operands,
)
from tilewright.kernel.defaults.scheduler import Scheduler
from tilewright.kernel.distribution import Distribution, on_blocks, programs_of
from tilewright.kernel.fragments import WARP
from tilewright.kernel.group_products import is_group, is_group_step
from tilewright.kernel.guards import copied
from tilewright.kernel.intrinsic import INTRINSICS
from tilewright.kernel.layouts import layout_text
from tilewright.kernel.nest import (
    Alloc,
    Loop,
    Nest,
    Path,
    Stmt,
    Store,
    Wait,
    mentions,
    reads,
    walk,
)
from tilewright.kernel.pieces import pieces_in
from tilewright.kernel.shared_places import shared_places
from tilewright.kernel.step import Step, Trace
from tilewright.kernel.steps.barrier import Synchronise
from tilewright.kernel.steps.distribute import Distribute
from tilewright.kernel.steps.gather_store import ROLE as GATHERED
from tilewright.kernel.steps.gather_store import GatherStore
from tilewright.kernel.steps.pipeline import Pipeline
from tilewright.kernel.steps.roles import Roles
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.swizzle import Swizzle
from tilewright.kernel.steps.unroll import MAX_UNROLL, Unroll
from tilewright.kernel.threads import apart_in_time, block_size, has_threads

WARPS = 4
WRITTEN_OUT = 1024  # multiplications of a thread, at most
SPARE = 4096  # bytes of shared memory that sums over threads may take
RESERVED = 1024  # bytes of shared memory that every block takes besides its own
OTHER_REGISTERS = 40  # of a thread, besides the sums of products
SLACK = 1  # products that go on while the next iteration begins
GATHER = True  # are results stored through shared memory where they are in pairs?
# They are also where a loop brings operands again, which cannot have the same memory: there are
# fewer versions of those then, and it is a tenth faster all the same.
GATHER_BESIDE = True
FRAGMENT_LANES = 2  # neighbours that a thread has of an instruction's results
BOTH = True  # may warps share rows and columns of a product, where each does it by itself?
LATE = True  # are copies issued at the end of an iteration where that saves a version?
BEHIND = False  # are copies behind products that each warp does by itself?
DENSER = True  # rather more blocks of a multiprocessor than more versions of operands?
# Also a second block rather than as many versions as a launch asks for, but for three? It hides
# what the first one waits for; of a third one nothing is left to hide.
CROWDED = True


def schedule_tile_grid(
    n: Nest,
    target: Target,
    warps: int = WARPS,
    stages: int = 3,
    near: tuple[str, ...] = (),
    gather: bool | None = None,
) -> tuple[Trace, Nest]:
    """The default trace of a tile kernel for a GPU and the nest that it leads to. `near` are pairs
    of arguments that may be into the same memory. Results are gathered (`gather`) where there is
    shared memory for them."""
    gathers = GATHER if gather is None else gather
    grid = target.grid
    assert grid is not None
    programs = programs_of(n)
    if programs is None:
        raise Unsupported(f"{n.name} is no tile kernel: there is no loop over its programs")
    if warps * grid.warp > grid.block_threads:
        raise Unsupported(
            f"{n.name} is launched with {warps} warps, {target.name} has at most "
            f"{grid.block_threads // grid.warp} in a block",
            hint="num_warps=4 is the usual number",
        )
    refused: Refusals = frozenset()
    both = BOTH
    while True:
        s = Scheduler(n, target)
        try:
            lost = _distributed(s, warps, refused, gathers, near, both)
        except Refused:
            if not both:
                raise
            both = False  # something of a row or of a column is in registers, say
            continue
        if lost:
            refused |= frozenset() if both else lost
            both = False
            continue
        swizzle_operands(s)
        if not has_threads(s.nest.body):  # a kernel that does nothing
            return tuple(s.trace), s.nest
        write_out_sums(s)
        fetched(s, stages, near)
        waiting = not_ahead(s.nest)
        lost = frozenset(x for x in brought_in(s.trace) if x[0] in waiting)
        if not lost:
            break
        refused |= lost
    if not _has_room(s.nest, grid):
        if gathers:
            return schedule_tile_grid(n, target, warps, stages, near, gather=False)
        if stages > 1:
            return schedule_tile_grid(n, target, warps, stages - 1, near, gather)
    return tuple(s.trace), s.nest


def write_out_sums(s: Scheduler) -> None:
    """Steps of products that threads add up by themselves are written out, as many as are not too
    much code: what a thread reads of neighbouring steps are then vectors, and all that is left
    beside its multiplications are these reads."""
    products, sums = s.nest.are("product"), dict[Loop, int]()
    for x, path in walk(s.nest.body):
        if isinstance(x, Store) and x.stage in products and not any(q.instruction for q in path):
            along = set().union(*(D.symbols(i) for i in x.index))
            own = [q for q in path if q.axis.stage == x.stage]
            each = prod(D.bounds(q.extent)[1] for q in own if q.kind in ("unroll", "lane"))
            sums |= {q: each for q in own if q.kind == "serial" and q.var not in along}
    for x, each in sums.items():
        steps = gcd(x.extent, MAX_UNROLL) if isinstance(x.extent, int) else 1
        while steps > 1 and steps * each > WRITTEN_OUT:
            steps //= 2
        if steps == x.extent:
            s.attempt(Unroll(x.name))
        elif steps > 1 and s.attempt(Split(x.name, steps)):
            s.attempt(Unroll(f"{x.name}.1"))


def _has_room(n: Nest, grid: Grid) -> bool:
    """Is there shared memory for all, with one place for what is used at different times?"""
    buffers = [n.buffer(x) for x in _shared(n)]
    sizes = {b.name: bytes_of(n, b.name) for b in buffers}
    return shared_places(buffers, sizes, apart_in_time(n, n.body))[1] <= grid.block_shared - SPARE


def fetched(s: Scheduler, stages: int, near: tuple[str, ...]) -> None:
    """Operands ahead of their use, and barriers. Where a product that goes on is in the way of
    something after all, it is waited for."""
    before, done = s.nest, list(s.trace)
    for slack in sorted({SLACK, 0}, reverse=True):
        s.nest, s.trace = before, list(done)
        fetch_ahead(s, stages, slack)
        last = Synchronise(near, tiles=True)
        if slack == 0:
            s.do(last)
        elif s.attempt(last):
            return


def brought_in(trace: list[Step]) -> Refusals:
    """The stages that the copy engine brings, with its instructions."""
    said = (text for x in trace if isinstance(x, Distribute) for text in x.products)
    pairs = (text.split(" = ") for text in said)
    return frozenset((stage, name) for stage, name in pairs if engine_of(name) is not None)


def _distributed(
    s: Scheduler,
    warps: int,
    refused: Refusals,
    gathers: bool,
    near: tuple[str, ...] = (),
    both: bool = False,
) -> Refusals:
    """Shares the tiles among threads; returns the products that this way cannot be done. With
    `both`, warps may share rows and columns of products."""
    grid = s.target.grid
    assert grid is not None
    x, y = WARP["thread.x"], WARP["thread.y"]
    threads = (x, y, warps * grid.warp // (x * y))
    wanted = Products(s.nest, s.target, warps).chosen(refused)
    lay_out_operands(s, wanted)
    copies = Copies(s.nest, s.target, wanted, refused, near).chosen
    if gathers:
        gather_stores(s, wanted)
    programs = programs_of(s.nest)
    assert programs is not None
    _, body = on_blocks(s.nest, programs)
    found = Layouts(s.nest, body, dict(zip(THREAD_AXES, threads, strict=True)), wanted, both)
    layouts = found.chosen()
    lost = wanted.keys() - found.products.keys()
    lost |= {
        p.stage
        for p in pieces_in(body)
        if p.stage in found.products
        and "a" in INTRINSICS[found.products[p.stage]].fragments
        and is_group(found.products[p.stage])
        and not is_group_step(layouts.get(p.loops[-1].name, ()))
    }
    lost |= _lost_sums(Distribution(s.nest, body, threads, layouts, found.products), body)
    if lost:
        return frozenset((stage, wanted[stage]) for stage in lost)
    mine = {x.name for p in pieces_in(body) if p.stage in copies for x in p.loops}
    said = tuple(f"{x} = {layout_text(l)}" for x, l in layouts.items() if l and x not in mine)
    products = tuple(f"{stage} = {name}" for stage, name in {**found.products, **copies}.items())
    share = Distribute(threads, said, products)
    if copies and not s.attempt(share):
        return frozenset(copies.items())
    grouped = frozenset(x for x in found.products.items() if is_group(x[1]))
    if not copies and grouped and not s.attempt(share):
        return grouped  # operands that lie otherwise than these instructions need them
    if not copies and not grouped:
        s.do(share)
    return frozenset(
        (stage, name)
        for stage, name in found.products.items()
        if is_group(name) and not all(beside(s.nest, b) for b in _tiles(s.nest, stage))
    )


def gather_stores(s: Scheduler, wanted: Mapping[str, str]) -> None:
    """What an instruction leaves in pairs of neighbours is stored in whole vectors, through shared
    memory."""
    programs = programs_of(s.nest)
    assert programs is not None
    layouts = Layouts(s.nest, programs.body, {}, {})
    sums = {p.writes()[0][0] for p in layouts.pieces if p.stage in wanted}
    for p in layouts.pieces:
        x = p.statement
        if not isinstance(x, Store) or len(p.loops) != 2:
            continue
        if sums & x.value.sources and layouts.vector(p, layouts.inner(p)) > FRAGMENT_LANES:
            s.attempt(GatherStore(p.stage))


def _tiles(n: Nest, stage: str) -> set[str]:
    """What an instruction reads in shared memory by itself."""
    stores = [x for x, _ in walk(n.body) if isinstance(x, Store) and x.stage == stage]
    read = {str(r.source) for x in stores for r in reads(x)}
    return {b.name for b in n.buffers if b.name in read and b.scope == "shared"}


def _lost_sums(d: Distribution, body: tuple[Stmt, ...]) -> set[str]:
    """Products whose sums would not be in registers: others use them with another layout."""
    return {
        p.stage
        for p in pieces_in(body)
        if p.stage in d.products and p.writes()[0][0] not in d.registers
    }


def fetch_ahead(s: Scheduler, stages: int, slack: int) -> None:
    """Operands of products that a loop copies from memory are on their way some iterations before
    they are needed, as many as fit. The last product of a loop may go on while the next iteration
    begins: of what it reads there is one version more."""
    special = _specialised(s.nest)
    for loop in [x for x, _ in walk(s.nest.body) if isinstance(x, Loop) and x.kind == "serial"]:
        made = [x.buffer for x in loop.body if isinstance(x, Alloc)]
        wanted = [b for b in made if s.nest.buffer(b).scope == "shared" and _copied(loop, b)]
        longer = _going_on(s.nest, loop) & set(wanted) if slack else set[str]()
        versions, more, fewer = _versions(s, stages, wanted, longer)
        if loop.name in special and versions > 1 and only_engine(s.nest, loop):
            own = slack if longer else 0
            if s.attempt(Roles(loop.name, versions + (more and own), own)):
                continue
        late = LATE and fewer
        ahead = versions if late else versions - 1
        last = late or (BEHIND and not longer)
        for b in wanted if versions > 1 else ():
            own = slack if more and b in longer else 0
            s.attempt(Pipeline(loop.name, b, ahead, asynchronous=True, slack=own, late=last))


def _specialised(n: Nest) -> set[str]:
    """The loops whose copies a warp of their own should issue: those that a kernel says so of, and
    the loops in them."""
    asked = n.are("specialised")
    loops = [x for x, _ in walk(n.body) if isinstance(x, Loop)]
    around = [x for x in loops if x.name in asked]
    return asked | {y.name for x in around for y, _ in walk(x.body) if isinstance(y, Loop)}


def _versions(
    s: Scheduler, stages: int, wanted: list[str], longer: set[str]
) -> tuple[int, bool, bool]:
    """How many versions of operands there are, whether there is one more of what a product reads
    that goes on, and whether copies wait for the end of an iteration to save a version: versions as
    the launch says, and one more where that leaves a multiprocessor as many blocks; else one of
    those is the one more. Where three leave room for a second block there are three, and copies do
    not wait: products of the other block go on meanwhile."""
    grid = s.target.grid
    assert grid is not None
    own, more = (sum(bytes_of(s.nest, b) for b in x) for x in (wanted, longer))
    # What is gathered after the loop has the memory of operands, if these are not brought again.
    again = {x.buffer for x, path in walk(s.nest.body) if isinstance(x, Alloc) and _repeats(path)}
    later = s.nest.are(GATHERED) - (again if GATHER_BESIDE else set())
    apart = [b for b in _shared(s.nest) if b not in later]
    others = sum(bytes_of(s.nest, b) for b in apart) - own
    by_registers = grid.registers // max(1, _registers(s.nest))

    def fits(k: int, extra: int) -> bool:
        return others + own * k + extra <= grid.block_shared - SPARE

    def blocks(k: int, extra: int) -> int:
        return min(by_registers, grid.shared // (others + own * k + extra + RESERVED))

    while stages > 1 and not fits(stages, 0):
        stages -= 1
    crowded = CROWDED and stages > 3 and blocks(stages, 0) < 2 <= blocks(3, 0)
    stages = 3 if crowded else stages
    if longer and fits(stages, more):
        if blocks(stages, more) >= blocks(stages, 0) or not DENSER:
            return stages, True, False
    return (stages - 1, True, not crowded) if longer and stages > 2 else (stages, False, False)


def _repeats(path: Path) -> bool:
    return any(q.kind == "serial" for q in path)


def _registers(n: Nest) -> int:
    """Registers of a block's threads, roughly: their tiles, and some for all else."""
    count = block_size(n.body)
    threads = count["thread.x"] * count["thread.y"] * count["thread.z"]
    sums = {
        x.buffer
        for x, path in walk(n.body)
        if isinstance(x, Store) and any(q.instruction for q in path)
    }
    tiles = [b for b in n.buffers if b.name in sums and b.scope == "local"]
    return sum(bytes_of(n, b.name) // 4 for b in tiles) + OTHER_REGISTERS * threads


def _going_on(n: Nest, loop: Loop) -> set[str]:
    """What the last product of a loop reads in shared memory, if nothing else touches its sums or
    its operand in registers before all products are waited for, in the next iteration at the
    latest."""
    waits = [k for k, x in enumerate(loop.body) if isinstance(x, Wait) and x.products]
    last = waits[-1] if waits else 0
    inside = [
        x
        for x, path in walk(loop.body[max(0, last - 1) : last])
        if isinstance(x, Store) and any(q.instruction and is_group(q.instruction) for q in path)
    ]
    used = {x.buffer for x in inside} | {str(r.source) for x in inside for r in reads(x)}
    held = {b for b in used if n.buffer(b).scope == "local"}
    early = loop.body[: waits[0]] if len(waits) > 1 else loop.body[: max(0, last - 1)]
    others = [x for x in (*early, *loop.body[last + 1 :]) if not isinstance(x, Alloc)]
    if any(held & mentions(x) for x in others):
        return set()
    return used - held


def _copied(loop: Loop, buffer: str) -> bool:
    """Is a buffer filled by one copy out of an argument's memory and read by instructions only?"""
    stores = [x for x, _ in walk(loop.body) if isinstance(x, Store) and x.buffer == buffer]
    return len(stores) == 1 and copied(stores[0].value) is not None


def _shared(n: Nest) -> list[str]:
    return [b.name for b in n.buffers if b.scope == "shared"]


def bytes_of(n: Nest, name: str) -> int:
    b = n.buffer(name)
    return D.bounds(b.size)[1] * b.dtype.bytes


def swizzle_operands(s: Scheduler) -> None:
    """Rows that instructions read by the addresses of their threads are in different banks."""
    used = s.nest.are(GATHERED) & set(_shared(s.nest))  # others have a place of another buffer
    for x, _ in walk(s.nest.body):
        if isinstance(x, Loop) and x.instruction and INTRINSICS[x.instruction].addresses:
            used |= {str(r.source) for r in reads(x)}
    used |= _read_by_threads(s.nest) | _in_turns(s.nest)
    for name in sorted(used):
        b = s.nest.buffer(name)
        width, each = b.shape[-1], VECTOR // b.dtype.bytes
        vectors = width // each if isinstance(width, int) else 1
        bits = min(3, vectors.bit_length() - 1)
        if b.scope == "shared" and bits and vectors & (vectors - 1) == 0 and beside(s.nest, name):
            unit = each.bit_length() - 1
            first = Swizzle(name, bits, unit, max(vectors.bit_length() - 1, 3))
            if s.attempt(first):
                _better_swizzle(s, first)


def _better_swizzle(s: Scheduler, first: Swizzle) -> None:
    """Where threads still meet at banks, as those that read single words of four rows do, twice as
    many elements stay together, if that is better."""
    found = conflicts(s.nest, first.buffer)
    if not found or first.bits < 2:
        return
    plain = s.nest.with_buffer(replace(s.nest.buffer(first.buffer), swizzle=None))
    other = replace(first, bits=first.bits - 1, base=first.base + 1, shift=first.shift - 1)
    made = other.apply(plain)
    lost, left = (sum(c.turns.conflicts for c in x) for x in (found, conflicts(made, first.buffer)))
    if left < lost:
        s.nest = made
        s.trace[-1] = other


def _in_turns(n: Nest) -> set[str]:
    """Operands of products that threads add up by themselves, for which these wait at the banks."""
    products = n.are("product")
    plain = [
        x
        for x, path in walk(n.body)
        if isinstance(x, Store) and x.stage in products and not any(q.instruction for q in path)
    ]
    operands = {str(r.source) for x in plain for r in reads(x)} & set(_shared(n))
    return {b for b in operands if any(not c.writes for c in conflicts(n, b))}


def _read_by_threads(n: Nest) -> set[str]:
    """What threads read out of shared memory, each its own elements, for an instruction."""
    inside = [x for x, _ in walk(n.body) if isinstance(x, Loop) and x.instruction]
    held = {str(r.source) for x in inside for r in reads(x)}
    stores = [x for x, _ in walk(n.body) if isinstance(x, Store) and x.buffer in held]
    plain = [x.value for x in stores if isinstance(x.value, Load)]
    return {str(v.source) for v in plain} & set(_shared(n)) - held
