"""Maps that read an operand across, as a transposed matrix is: a tile of it is copied first, in
vectors along the operand, which are turned in registers (llvm/transpose.py).

    for i.0: for j.0:
      lane c in 16: unroll r in 16: t[c,r] = x[j+r,i+c]
      for i.1 in 16: lane j.1 in 16: y[i,j] = … t[i.1,j.1]
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tilewright.base.errors import Refused
from tilewright.graph.classify import guess
from tilewright.ir import dim as D
from tilewright.ir.expr import Load
from tilewright.ir.target import Target
from tilewright.kernel.defaults.result_tiles import share
from tilewright.kernel.defaults.scheduler import Applied, Scheduler, store_reads, work_per_point
from tilewright.kernel.defaults.tiles import lanes_of_tile, reorder
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.group import Group
from tilewright.kernel.nest import Loop
from tilewright.kernel.step import Trace
from tilewright.kernel.steps.cache_read import CacheRead
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.permute import Permute
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize
from tilewright.tune.space.tiling import begun


def turned_operands(group: Group, target: Target, applied: Applied) -> Iterator[Trace]:
    s, inner, host = begun(group, target, applied)
    if host is None or inner or len(s.path(host.name)) < 2:
        return
    *others, last = s.path(host.name)
    for x in store_reads(s.store(host.name)):
        for along in others:
            if not _is_across(s, x, along, last):
                continue
            s, inner, host = begun(group, target, applied)
            assert host is not None
            try:
                _schedule(s, host.name, x, along, last)
            except Refused:
                continue
            yield tuple(s.trace)
            return


def _is_across(s: Scheduler, x: Load, along: Loop, last: Loop) -> bool:
    """Are an operand's neighbours those along another axis than the results'? The two are indices
    of their own, so that a tile of it is one too."""
    if not isinstance(x.source, str):
        return False
    b = s.nest.buffer(x.source)
    steps = [D.coefficient(linear_index(b, x.index), p.var) for p in (along, last)]
    plain = all(_place(x, p) is not None for p in (along, last))
    return plain and b.scope == "in" and steps[0] == 1 and steps[1] not in (None, 0, 1)


def _place(x: Load, loop: Loop) -> int | None:
    """Which index of a read is a loop's variable."""
    found = [k for k, i in enumerate(x.index) if D.is_sym(i) and D.the_sym(i) is loop.var]
    return found[0] if len(found) == 1 else None


def _schedule(s: Scheduler, host: str, x: Load, along: Loop, last: Loop) -> None:
    lanes, path = s.target.lanes(32), s.path(host)
    wide = max(lanes, s.target.cache_line // 4)  # all of a line that is read
    work = work_per_point(s, host) * prod(guess(p.extent) for p in path)
    tile, a, b = f"{x.source}_t", along.name, last.name
    column, row = _place(x, along), _place(x, last)
    assert column is not None and row is not None
    s.do(CacheRead(str(x.source), host, tile))
    s.do(Split(a, wide))
    s.do(Split(b, lanes))
    rest = [p for p in path if p not in (along, last)]
    several = [p.name for p in rest if p.extent != 1]
    around = [*several, f"{a}.0", *(p.name for p in rest if p.extent == 1), f"{b}.0"]
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
