"""Maps that read an operand across, as a transposed matrix is: a tile of it is copied first, in
vectors along the operand, which are turned in registers (llvm/transpose.py).

    for i.0: for j.0:
      lane c in 16: unroll r in 16: t[c,r] = x[j+r,i+c]
      for i.1 in 16: lane j.1 in 16: y[i,j] = … t[i.1,j.1]

Packing a right operand that lies transposed is such a map too. Its panels take so many rows of the
operand that a processor does not foresee what is read of each next. There tiles that are next to
each other in the operand come first, for a long run of it.

    for panel: for i.0: for j.0: for i.1.0: a tile
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd, prod

from tilewright.base.errors import Refused
from tilewright.graph.classify import guess
from tilewright.ir import dim as D
from tilewright.ir.expr import Load
from tilewright.ir.value_text import value_text
from tilewright.kernel.defaults.result_tiles import share
from tilewright.kernel.defaults.scheduler import Scheduler, store_reads, work_per_point
from tilewright.kernel.defaults.tiles import lanes_of_tile, reorder
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.guards import copied
from tilewright.kernel.nest import Loop, Path
from tilewright.kernel.steps.cache_read import CacheRead
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.materialise import Materialise
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.permute import Permute
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize

# Vectors that both axes have at least. Below that, tiles that are left over take most of the time.
VECTORS = 2
# A vector of a turned tile is loaded, stored and loaded again, beside its shuffles; read across, it
# is a load for each lane. That made 1.3 to 1.9 of it on 16 lanes, in the first cache, 0.7 on 4.
MOVES = 3
# Rows that are read in turn, a line of each, and still arrive before they are needed. Panels of 32
# columns gained nothing by runs, panels of 24 (AVX2) lost a tenth.
STREAMS = 32
# Columns of panels: results of rows next to each other lie in one piece.
WIDEST = 64
# Numbers of a run. Panels of 48 columns took 0.7 of the time from memory, 0.85 from the last cache
# (x86, 2 threads); with 64 it was 0.9, with 1024 and more as with 256 or longer.
RUN = 256
# Lines of a set of the first cache. Those that are its size over this apart are of one set.
WAYS = 4


def schedule_turned(s: Scheduler, host: str) -> bool:
    """False, and no step, where the stage reads nothing across, or where that costs little: few
    lanes, and the first cache keeps what is read for a row of results until the next row needs its
    neighbours."""
    return turn(s, host, _is_worth_it)


def turn(
    s: Scheduler, host: str, wanted: Callable[[Scheduler, Load, Loop, Path], bool] | None = None
) -> bool:
    """Turns the first wanted operand that is read across; False, and no step, if there is none.
    The path that is asked about is that of the loops inside the one along the operand."""
    before = s.nest, list(s.trace)
    path = s.path(host)
    last = path[-1]
    for x in store_reads(s.store(host)):
        for k, along in enumerate(path[:-1]):
            if not _is_across(s, x, along, last):
                continue
            if wanted is None or wanted(s, x, along, tuple(path[k + 1 :])):
                try:
                    _schedule(s, host, x, along, last)
                except Refused:
                    s.nest, s.trace[:] = before
                else:
                    return True
    return False


def _is_worth_it(s: Scheduler, x: Load, along: Loop, inside: Path) -> bool:
    last, lanes = inside[-1], s.target.lanes(32)
    if min(guess(along.extent), guess(last.extent)) < VECTORS * lanes:
        return False
    if lanes > MOVES + lanes.bit_length():
        return True
    b, line = s.nest.buffer(str(x.source)), s.target.cache_line
    step = D.coefficient(linear_index(b, x.index), last.var)
    assert step is not None
    apart = guess(step) * b.dtype.bits // 8
    sets = max(1, s.target.l1 // (line * WAYS))
    used = sets if apart % line else sets // gcd(apart // line, sets)
    return prod(guess(p.extent) for p in inside) * min(apart, line) > used * WAYS * line


def _is_across(s: Scheduler, x: Load, along: Loop, last: Loop) -> bool:
    """Are an operand's neighbours those along another axis than the results'? The two are indices
    of their own, so that a tile of it is one too."""
    if not isinstance(x.source, str) or s.nest.buffer(x.source).dtype.bits != 32:
        return False
    b = s.nest.buffer(x.source)
    steps = [D.coefficient(linear_index(b, x.index), p.var) for p in (along, last)]
    plain = all(_place(x, p) is not None for p in (along, last))
    return plain and b.scope == "in" and steps[0] == 1 and steps[1] not in (None, 0, 1)


def _place(x: Load, loop: Loop) -> int | None:
    """Which index of a read moves with a loop, step by step; None where several do."""
    found = [k for k, i in enumerate(x.index) if loop.var in D.symbols(i)]
    return found[0] if len(found) == 1 and D.coefficient(x.index[found[0]], loop.var) == 1 else None


def _run(s: Scheduler, host: str, along: Loop, last: Loop, wide: int) -> int | None:
    """How much of its rows a panel takes at a time; None where they may be read in turn, of what
    are no panels, and where tiles would be left over."""
    store, length, width = s.store(host), along.extent, last.extent
    if not isinstance(length, int) or not isinstance(width, int):
        return None
    written = linear_index(s.nest.buffer(store.buffer), store.index)
    beside = D.coefficient(written, along.var) == width and D.coefficient(written, last.var) == 1
    if not (STREAMS < width <= WIDEST and width % s.target.lanes(32) == 0 and beside):
        return None
    return next((n for n in range(RUN, RUN // 4, -wide) if length % n == 0), None)


def _schedule(s: Scheduler, host: str, x: Load, along: Loop, last: Loop) -> None:
    lanes, path = s.target.lanes(32), s.path(host)
    wide = max(lanes, s.target.cache_line // 4)  # all of a line that is read
    work = work_per_point(s, host) * prod(guess(p.extent) for p in path)
    tile, a, b = f"{x.source}_t", along.name, last.name
    value = s.store(host).value
    if isinstance(value, Load) or copied(value) is not x:
        column, row = _place(x, along), _place(x, last)
        s.do(CacheRead(str(x.source), host, tile))
    else:
        # Past an edge there is a number: the tile has it too, and is as large as others.
        axes = [p for p in path if p.var in value.symbols()]
        column, row = axes.index(along), axes.index(last)
        s.do(Materialise(host, value_text(value), tile))
    assert column is not None and row is not None
    rest = [p for p in path if p not in (along, last)]
    several, single = ([p.name for p in rest if (p.extent == 1) is one] for one in (False, True))
    around = [*several, f"{a}.0", *single, f"{b}.0"]
    if (run := _run(s, host, along, last, wide)) is not None:
        s.do(Split(a, run))
        a = f"{a}.1"
        around.append(f"{a}.0")
    s.do(Split(a, wide))
    s.do(Split(b, lanes))
    s.do(Reorder((*around, f"{a}.1", f"{b}.1")))
    s.do(ComputeAt(tile, around[-1]))
    rank = len(s.nest.buffer(tile).shape)
    s.do(Permute(tile, (*(k for k in range(rank) if k not in (column, row)), column, row)))
    for loop in (f"{a}.0", f"{b}.0"):
        s.attempt(Peel(loop))
    reorder(s, (f"{tile}.i{column}", f"{tile}.i{row}"))
    s.do(Unroll(f"{tile}.i{row}"))
    lanes_of_tile(s, f"{tile}.i{column}", lanes)
    s.do(Unroll(f"{a}.1"))
    s.do(Vectorize(f"{b}.1"))
    share(s, host, around, work)
