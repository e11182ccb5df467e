"""Convolutions on a GPU: matrix products one operand of which is gathered.

The rows of that operand are windows of images (ops/patches.py). Threads copy the elements of a tile
of them to shared memory, asynchronously, whole vectors where neighbouring channels lie side by
side, and zeros outside of the image. Everything else is as in a product: the other operand comes by
the copy engine, instructions multiply what is in shared memory, the epilogue is done to registers.
"""

from __future__ import annotations

from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Fn, Load, Value
from tilewright.ir.types import DType, f32
from tilewright.kernel.defaults.grid_group_products import (
    GroupProduct,
    across,
    group_tiles,
    in_boxes,
)
from tilewright.kernel.defaults.grid_products import plain_operand, same_places, stored
from tilewright.kernel.defaults.grid_warp_products import (
    VECTOR,
    Operand,
    Tile,
    WarpProduct,
    warp_tile,
)
from tilewright.kernel.defaults.inlining import inline_maps
from tilewright.kernel.defaults.scheduler import Scheduler
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.group import Stage
from tilewright.kernel.guards import conditions, copied
from tilewright.kernel.intrinsic import INTRINSICS
from tilewright.kernel.steps.compute_inline import ComputeInline
from tilewright.kernel.steps.compute_with import ComputeWith

BEST = 3  # tiles that are tried, by their estimated time


def schedule_convolution(s: Scheduler) -> bool:
    """Takes a group that is one product with a gathered operand, and maps of its results."""
    if not s.target.products or s.group.precision == "strict":
        return False
    stages = inline_maps(s)
    sums = [x for x in stages if x.is_reduce]
    outs = [x for x in stages if s.group.buffer(x.name).scope == "out"]
    if len(sums) != 1 or not outs or any(x.ordered for x in stages) or sums[0] in outs:
        return False
    c, y = sums[0], outs[0]
    if len(c.axes) != 2 or len(c.raxes) != 1 or c.combine != "add":
        return False
    found = _operands(s, c, {x.name for x in stages if x is not c and x not in outs})
    if found is None or not same_places(s, c, outs):
        return False
    for x in stages:
        if x is not c and x not in outs and x.name not in (found[0].buffer, found[1].buffer):
            s.do(ComputeInline(x.name))
    for x in outs[1:]:  # several results of one sum are stored together
        s.do(ComputeWith(x.name, s.path(y.name)[-1].name))
    for make, tile, instruction in _candidates(s, c, found):
        before = s.nest, list(s.trace)
        try:
            make(s, c, y.name, *found, tile, instruction, len(outs) > 1).schedule()
            return True
        except Refused:  # the next one starts again
            s.nest, s.trace[:] = before
    return False


def _operands(s: Scheduler, c: Stage, stages: set[str]) -> tuple[Operand, Operand] | None:
    """Both operands, the one with the rows of the results first; one of them is gathered."""
    i, j, k = (p.var for p in s.path(c.name))
    found: dict[Sym, Operand] = {}
    for x in _factors(s.store(c.name).value):
        own = [v for v in (i, j) if v in x.symbols()]
        if len(own) != 1 or own[0] in found or k not in x.symbols():
            return None
        (row,) = own
        at = _matrix(s, x, row, k)
        at = at or _gathered(s, c, x, row, k, stages)
        if at is None:
            return None
        found[row] = at
    if len(found) < 2 or not any(x.gathered for x in found.values()):
        return None
    a, b = found[i], found[j]
    same = a.buffer != b.buffer and _dtype(s, a) is _dtype(s, b)
    return (a, b) if same else None


def _matrix(s: Scheduler, x: Value, row: Sym, deep: Sym) -> Operand | None:
    """An operand that is an argument, and no other order of its elements."""
    if not isinstance(x, Load) or s.nest.buffer(str(x.source)).scope != "in":
        return None
    return plain_operand(x, row, deep, set())


def _factors(v: Value) -> list[Value]:
    """What a product multiplies, without the casts to the dtype of its sum."""
    if not isinstance(v, Fn) or v.name != "mul":
        return []
    return [x.args[0] if isinstance(x, Fn) and x.name == "cast" else x for x in v.args]


def _dtype(s: Scheduler, x: Operand) -> DType:
    return s.nest.buffer(x.buffer).dtype


def _gathered(
    s: Scheduler, c: Stage, x: Value, row: Sym, deep: Sym, stages: set[str]
) -> Operand | None:
    """An operand that is copied from elsewhere element by element, as a stage of its own."""
    if isinstance(x, Load) and all(
        D.coefficient(d, v) is not None for d in x.index for v in (row, deep)
    ):
        if x.source not in stages:
            return None  # a part of a wider matrix: the copy engine brings it
    if not (isinstance(x, Load) and x.source in stages):
        into = f"{c.name}_{'a' if row is s.path(c.name)[0].var else 'b'}"
        source = copied(x)
        if source is None:
            return None
        try:
            axes = [deep, row] if stored(s, c, x, source, row, deep, into) else [row, deep]
        except Refused:
            return None
    else:
        into = str(x.source)
        if not all(D.is_sym(d) for d in x.index):
            return None
        axes = [D.the_sym(d) for d in x.index]
        if len(axes) != 2 or {*axes} != {row, deep}:
            return None
    if copied(s.store(into).value) is None:
        return None
    return Operand(
        into, axes.index(row), axes.index(deep), 2, gathered=True, lanes=lanes_together(s, into)
    )


def lanes_together(s: Scheduler, stage: str) -> int:
    """How many neighbours of a copy's last axis are neighbours where they come from, begin at a
    multiple of their number, and are all there or all zero."""
    store, last = s.store(stage), s.path(stage)[-1]
    source = copied(store.value)
    assert source is not None
    place = linear_index(s.nest.buffer(str(source.source)), source.index)
    lanes = VECTOR
    while lanes > 1:
        inner = D.var("lane", lanes)
        table: dict[Sym, Dim] = {last.var: lanes * D.var("vector", last.extent // lanes) + inner}
        there = D.substitute(place, table)
        lane = D.the_sym(inner)
        apart = any(lane in x.substitute(table).symbols() for x in conditions(store.value))
        whole = isinstance(last.extent, int) and last.extent % lanes == 0 and not apart
        if whole and D.coefficient(there, lane) == 1 and D.divisor(there - inner) % lanes == 0:
            return lanes
        lanes //= 2
    return 1


def _candidates(
    s: Scheduler, c: Stage, operands: tuple[Operand, Operand]
) -> list[tuple[type[WarpProduct], Tile, str]]:
    """Ways to multiply, the best first."""
    kind = _dtype(s, operands[0])
    sizes = [p.extent for p in s.path(c.name)]
    groups: list[tuple[float, Tile, str]] = []
    out: list[tuple[type[WarpProduct], Tile, str]] = []
    order = tuple(x.deep < x.row for x in operands)
    boxes = all(x.gathered or in_boxes(s, x) for x in operands)
    for p in s.target.products:
        i = INTRINSICS[p.instruction]
        if p.dtypes != (kind, kind, f32):
            continue
        if not i.tiles:
            tile = warp_tile(s, sizes, operands)
            out += [(WarpProduct, tile, i.name)] if tile is not None else []
        elif across(i) == order and boxes:
            tiles = group_tiles(s, i, sizes, kind.bytes, _bytes(s, operands))
            groups += [(time, t, i.name) for time, t in tiles if _divided(t, sizes, operands)]
    groups.sort(key=lambda x: x[0])
    found = [*((GroupProduct, t, name) for _, t, name in groups[:BEST]), *out]
    return found[s.choices.tile or 0 :]


def _divided(t: Tile, sizes: list[Dim], operands: tuple[Operand, Operand]) -> bool:
    """Are tiles whole along the last axis of what is gathered? Zeros after its end would be told
    from others by each lane."""
    lengths = (t.rows, t.columns, t.deep * t.steps)
    for k, x in enumerate(operands):
        last = k if x.deep < x.row else 2
        size = sizes[last - 3]
        if x.gathered and not (isinstance(size, int) and size % lengths[last] == 0):
            return False
    return True


def _bytes(s: Scheduler, operands: tuple[Operand, Operand]) -> int:
    """That are read of memory: windows overlap, and are read of the image."""
    total = 0
    for x in operands:
        b = s.nest.buffer(x.buffer)
        if x.gathered:
            source = copied(s.store(x.buffer).value)
            assert source is not None
            b = s.nest.buffer(str(source.source))
        total += D.bounds(b.size)[1] * b.dtype.bytes
    return total
