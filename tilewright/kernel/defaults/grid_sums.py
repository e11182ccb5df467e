"""Reductions of a GPU in launches of their own.

Where neighbours in memory are reduced, a block has each result and its threads have partial ones:
they read vectors, several of which are on their way at a time. Else a thread has a result. Few
results of many numbers are first reduced in pieces.
"""

from __future__ import annotations

from math import isqrt, prod

from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.kernel.axis import moved
from tilewright.kernel.defaults.grid_lanes import vector_lanes
from tilewright.kernel.defaults.scheduler import Scheduler, contiguous
from tilewright.kernel.nest import Loop
from tilewright.kernel.steps.bind import Bind
from tilewright.kernel.steps.cache_write import CacheWrite
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.init_at import InitAt
from tilewright.kernel.steps.relayout import Relayout
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize

THREADS = 256
BLOCKS = 8  # of a multiprocessor, which has room for so many
LOADS = 4  # of a thread that are on their way at a time
TURN = THREADS * LOADS  # vectors that a block has on their way
# Numbers of one result that a block, or a thread, is worth starting for.
BLOCK_WORK = 4096
THREAD_WORK = 16
BESIDE = 4  # partial results of one thread, which do not wait for each other


def schedule_sum(s: Scheduler, stage: str) -> bool:
    """The loops of a reduction as blocks and threads; False (and no step) where that fails."""
    before = s.nest, list(s.trace)
    try:
        _scheduled(s, stage)
    except Refused:
        s.nest, s.trace[:] = before
        return False
    return True


def _scheduled(s: Scheduler, stage: str) -> None:
    data, reduced = _loops(s, stage)
    if not reduced:
        raise Refused(f"{stage} has nothing to reduce")
    r = _fused(s, stage, [p.name for p in reduced], "q")
    results = prod(p.extent if isinstance(p.extent, int) else 1 << 20 for p in data)
    if contiguous(s, s.store(stage), s.loops(r)[0].var):
        _neighbours(s, stage, r, results)
    else:
        _columns(s, stage, [p.name for p in data], r, results)


def _neighbours(s: Scheduler, stage: str, r: str, results: int) -> None:
    """Blocks for the results, or for pieces of them."""
    loop, lane, part = s.loops(r)[0], "", f"{stage}c"
    lanes = vector_lanes(s, [stage], loop.var)
    if lanes > 1 and D.known_eq(D.mod(loop.extent, lanes), 0):
        s.do(Split(r, lanes))
        r, lane = f"{r}.0", f"{r}.1"
    turns = _turns(s, r, results, lanes if lane else 1)
    if turns:
        s.do(Split(r, TURN))
        r, inner = f"{r}.0", f"{r}.1"
        if turns > 1:
            s.do(Split(r, turns))
            r = f"{r}.0"
        s.do(RFactor(stage, (r,), part))
        _block_each(s, part, inner, lane, pieces=True)
        lane = ""
    _block_each(s, stage, r, lane)


def _columns(s: Scheduler, stage: str, data: list[str], r: str, results: int) -> None:
    """Threads for the results, or for pieces of them."""
    piece = _piece(s, s.loops(r)[0], results)
    if piece:
        part = f"{stage}c"
        s.do(Split(r, piece))
        s.do(RFactor(stage, (f"{r}.0",), part))
        over = [moved(f"{r}.0", part)]
        if data:
            # Threads run over results: their partial ones of one piece are adjacent.
            axes = [f"i{k}" for k in range(len(s.nest.buffer(part).shape))]
            flat = _fused(s, part, [moved(x, part) for x in data], "d")
            s.attempt(Relayout(part, f"{', '.join(axes)} -> {', '.join((axes[-1], *axes[:-1]))}"))
            s.do(Reorder((*over, flat)))
            over.append(flat)
        _thread_each(s, part, over, moved(f"{r}.1", part))
        r = f"{r}.0"
    if data:
        _thread_each(s, stage, [_fused(s, stage, data, "d")], r)
    else:
        _block_each(s, stage, r, "")


def _loops(s: Scheduler, stage: str) -> tuple[list[Loop], list[Loop]]:
    index = s.store(stage).index
    along = set().union(*(D.symbols(i) for i in index)) if index else set()
    path = s.path(stage)
    return [p for p in path if p.var in along], [p for p in path if p.var not in along]


def _fused(s: Scheduler, stage: str, loops: list[str], letter: str) -> str:
    flat = loops[0]
    for k, inner in enumerate(loops[1:]):
        s.do(Fuse(flat, inner, f"{stage}.{letter}{k}"))
        flat = f"{stage}.{letter}{k}"
    return flat


def _turns(s: Scheduler, r: str, results: int, lanes: int) -> int:
    """How often threads of a piece read their vectors, where there are too few results for all
    multiprocessors; 0: there are no pieces."""
    assert s.target.grid is not None
    extent = s.loops(r)[0].extent
    if not isinstance(extent, int):
        return 0
    wanted = -(-s.target.grid.multiprocessors * BLOCKS // results)
    turns = -(-extent // TURN)
    least = -(-BLOCK_WORK // (TURN * lanes))
    each = max(least, -(-turns // wanted))
    return each if each < turns else 0


def _piece(s: Scheduler, loop: Loop, results: int) -> int:
    """Numbers that are reduced first, where there are too few results for all multiprocessors."""
    assert s.target.grid is not None
    if not isinstance(loop.extent, int):
        return 0
    wanted = s.target.grid.multiprocessors * BLOCKS * THREADS
    pieces = min(-(-loop.extent // THREAD_WORK), -(-wanted // results))
    pieces = min(pieces, isqrt(loop.extent))  # a thread adds up the pieces of a result, too
    return -(-loop.extent // pieces) if pieces > 1 else 0


def _block_each(s: Scheduler, stage: str, r: str, lane: str, pieces: bool = False) -> None:
    """A block for every result; its threads read vectors (`lane`) or single numbers. The last axis
    of results may be `pieces` of them. Where there is one result, one block has it."""
    axes = len(s.nest.buffer(stage).shape)
    over: list[str] = []
    if axes:  # threads have the sum, and memory gets it once
        own = f"{stage}s"
        s.do(CacheWrite(stage, own))
        over = [f"{stage}.i{k}" for k in range(axes)]
        last = over[-1:] if pieces else []
        first = over[: axes - len(last)]
        over = [*([_fused(s, stage, first, "d")] if first else []), *last]
        s.do(ComputeAt(own, over[-1]))
        stage = own
    r, lane = moved(r, stage), moved(lane, stage) if lane else ""
    extent = s.loops(r)[0].extent
    if isinstance(extent, int) and extent > TURN:
        s.do(Split(r, TURN))
        r = f"{r}.1"
    s.do(Split(r, THREADS))
    own, part = f"{r}.1", f"{stage}p"
    s.do(RFactor(stage, (own,), part))
    for loop, axis in zip(over, ("block.x", "block.y")):
        s.do(Bind(loop, axis))
    width = len(s.nest.buffer(part).shape) - 1
    for loop in (f"{part}.init.i{width}", moved(own, part), own):
        s.do(Bind(loop, "thread.x"))
    again = moved(f"{r}.0", part)
    if s.loops(again) and D.bounds(s.loops(again)[0].extent)[1] <= LOADS:
        s.do(Unroll(again, not isinstance(s.loops(again)[0].extent, int)))
    if lane:
        s.do(Vectorize(moved(lane, part)))


def _thread_each(s: Scheduler, stage: str, data: list[str], r: str) -> None:
    """A thread for every result, with a few partial ones."""
    if not data:
        raise Refused(f"{stage} has one result")
    *pieces, flat = data
    s.do(InitAt(stage, flat))
    s.do(Split(flat, THREADS))
    s.do(Split(r, BESIDE))
    own, part = f"{r}.1", f"{stage}q"
    s.do(RFactor(stage, (own,), part))
    width = len(s.nest.buffer(part).shape) - 1
    mine = moved(own, part)
    for loop in (f"{part}.init.i{width}", mine, own):
        if s.loops(loop):
            s.do(Unroll(loop, not isinstance(s.loops(loop)[0].extent, int)))
    for loop in pieces:
        s.do(Bind(loop, "block.y"))
    s.do(Bind(f"{flat}.0", "block.x"))
    s.do(Bind(f"{flat}.1", "thread.x"))
