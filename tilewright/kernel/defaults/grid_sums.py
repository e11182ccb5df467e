"""Reductions of a GPU in launches of their own.

Where neighbours in memory are reduced, a block has each result and its threads have partial ones;
else a thread has a result. Few results of many numbers are first reduced in pieces.
"""

from __future__ import annotations

from math import isqrt, prod

from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.kernel.axis import moved
from tilewright.kernel.defaults.scheduler import Scheduler, contiguous
from tilewright.kernel.nest import Loop
from tilewright.kernel.steps.bind import Bind
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.init_at import InitAt
from tilewright.kernel.steps.relayout import Relayout
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll

THREADS = 256
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
    loop = s.loops(r)[0]
    rows = contiguous(s, s.store(stage), loop.var)
    results = prod(p.extent if isinstance(p.extent, int) else 1 << 20 for p in data)
    piece = _piece(s, loop, results, rows)
    names = [p.name for p in data]
    if piece:
        # Before loops over results are fused: pieces have the same axes.
        part = f"{stage}c"
        s.do(Split(r, piece))
        s.do(RFactor(stage, (f"{r}.0",), part))
        own = [moved(f"{r}.0", part), moved(f"{r}.1", part)]
        over = [_fused(s, part, [moved(x, part) for x in names], "d")] if names else []
        if over and not rows:
            # Threads run over results: their partial ones of one piece are adjacent.
            axes = [f"i{k}" for k in range(len(s.nest.buffer(part).shape))]
            s.attempt(Relayout(part, f"{', '.join(axes)} -> {', '.join((axes[-1], *axes[:-1]))}"))
            s.do(Reorder((own[0], *over)))
            over = [own[0], *over]
        else:
            over = [*over, own[0]]
        _shared(s, part, over, own[1], rows)
        r = f"{r}.0"
        rows = not names
    _shared(s, stage, [_fused(s, stage, names, "d")] if names else [], r, rows)


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


def _piece(s: Scheduler, loop: Loop, results: int, rows: bool) -> int:
    """Numbers that are reduced first, where there are too few results for all multiprocessors."""
    assert s.target.grid is not None
    if not isinstance(loop.extent, int):
        return 0
    least = BLOCK_WORK if rows else THREAD_WORK
    wanted = s.target.grid.multiprocessors * (8 if rows else 8 * THREADS)
    pieces = min(-(-loop.extent // least), -(-wanted // results))
    if not rows:  # a thread adds up the pieces of a result, too
        pieces = min(pieces, isqrt(loop.extent))
    return -(-loop.extent // pieces) if pieces > 1 else 0


def _shared(s: Scheduler, stage: str, data: list[str], r: str, rows: bool) -> None:
    if rows:
        _block_each(s, stage, data, r)
    else:
        _thread_each(s, stage, data, r)


def _block_each(s: Scheduler, stage: str, data: list[str], r: str) -> None:
    """A block for every result."""
    if data:
        s.do(InitAt(stage, data[-1]))
    s.do(Split(r, THREADS))
    own, part = f"{r}.1", f"{stage}p"
    s.do(RFactor(stage, (own,), part))
    for loop, axis in zip(data, ("block.x", "block.y")):
        s.do(Bind(loop, axis))
    width = len(s.nest.buffer(part).shape) - 1
    for loop in (f"{part}.init.i{width}", moved(own, part), own):
        s.do(Bind(loop, "thread.x"))


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
