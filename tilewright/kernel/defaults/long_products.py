"""Products of few results with long sums, such as the gradient of thin weights: threads share the
sum.

A panel of columns that all terms pass by brings each operand in once more for every panel, and few
results are few pieces for threads. Here each thread takes pieces of the sum, and all results pass
by a short part of a piece while a cache has it, so each operand comes from memory once, as it lies:

    parallel k.0:                                # a piece of the sum, with results of its own
      for k.1: for j.0: for i.0:
        for k.2: i.1, lane j.1: c[i,j] += a[k,i] * b[k,j]                       # in registers
        i.1, lane j.1: p[k.0,i,j] += c[i,j]
    for k.0: i, lane j: t[i,j] += p[k.0,i,j]
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.ir.expr import Load, extent
from tilewright.ir.register_tile import Shared, shared_sum
from tilewright.kernel.axis import moved
from tilewright.kernel.defaults.choices import Choices
from tilewright.kernel.defaults.maps import schedule_alone
from tilewright.kernel.defaults.scheduler import Scheduler, vector_loop
from tilewright.kernel.defaults.tiles import Tile, fill_sums, lanes_of_tile
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.permute import Permute
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll

# Vectors at a time of what adds up the results of pieces.
VECTORS = 4


def schedule_long_product(s: Scheduler, t: Tile, ops: tuple[Load, Load]) -> bool:
    """False, and no step, where the product is not of this kind."""
    st = s.group.stage(t.acc)
    if len(st.axes) != 2 or len(st.raxes) != 1 or t.group or not t.plain:
        return False
    if s.choices != Choices() or s.group.precision == "strict" or t.chain:
        return False
    sizes = [extent(x) for x in (st.axes[t.row], st.axes[t.col], st.raxes[0])]
    rows, columns, terms = (x if isinstance(x, int) else 0 for x in sizes)
    for x in ops:  # each lies in rows, one for a term
        b, own = s.nest.buffer(str(x.source)), [a for a in st.axes if a in x.symbols()]
        if b.dtype is not s.nest.buffer(t.acc).dtype or len(own) != 1:
            return False
        if D.coefficient(linear_index(b, x.index), own[0]) != 1:
            return False
    found = shared_sum(s.target, s.nest.buffer(t.acc).dtype, rows, columns, terms)
    if found is None:
        return False
    before = s.nest, list(s.trace)
    try:
        _shared(s, t, found, [str(x.source) for x in ops])
    except Refused:  # a shape that does not fit
        s.nest, s.trace[:] = before
        return False
    return True


def _shared(s: Scheduler, t: Tile, found: Shared, names: Sequence[str]) -> None:
    whole, piece, part = t.acc, f"{t.acc}c", f"{t.acc}b"
    (terms,) = [q.name for q in s.reduced(whole)]
    s.do(Split(terms, found.piece))
    s.do(RFactor(whole, (f"{terms}.0",), piece))
    # The results of a piece lie together, in rows: each thread writes lines of its own.
    s.do(Permute(piece, (2, t.row, t.col)))
    (inner,) = [q.name for q in s.reduced(piece)]
    s.do(Split(inner, found.part))
    s.do(RFactor(piece, (f"{inner}.0",), part))
    own = [moved(f"{whole}.{t.axes[k]}", piece) for k in (t.row, t.col)]
    outer = [q.name for q in s.axes(piece)[0] if q.name not in own]
    s.do(Split(own[0], found.rows))
    s.do(Split(own[1], found.columns))
    tiles = (f"{own[1]}.0", f"{own[0]}.0")
    s.do(Reorder((*outer, f"{inner}.0", *tiles, f"{own[0]}.1", f"{own[1]}.1")))
    s.do(ComputeAt(part, tiles[1]))
    fill_sums(s, part, [moved(x, part) for x in own], t.lanes)
    s.do(Unroll(f"{own[0]}.1"))
    lanes_of_tile(s, f"{own[1]}.1", t.lanes)
    (top,) = outer
    for x in names:
        s.prefetch(x, f"{inner}.0", tiles[1], 2)
    s.parallel(top, found.piece * found.results // 8)
    if t.col < t.row:
        s.do(Permute(whole, (1, 0)))
    rows, columns = (f"{whole}.{t.axes[k]}" for k in (t.row, t.col))
    s.do(Reorder((*(q.name for q in s.reduced(whole)), rows, columns)))
    vector_loop(s, columns, VECTORS * t.lanes)
    for stage in (piece, whole):
        outer = range(2, len(s.nest.buffer(stage).shape))
        loops = [f"{stage}.init.i{k}" for k in (*outer, t.row, t.col)]
        s.do(Reorder(tuple(loops)))
        vector_loop(s, loops[-1], VECTORS * t.lanes)
    schedule_alone(s, t.host)
