"""Matrix products of a GPU: which groups are one, and by which instructions.

Groups of warps that read shared memory come first, by the estimate of their tiles
(grid_group_products.py), then single warps (grid_warp_products.py).
"""

from __future__ import annotations

from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Fn, Load, Value
from tilewright.ir.types import bf16, f16, f32
from tilewright.kernel.defaults.grid_group_products import (
    GroupProduct,
    across,
    group_tiles,
    in_boxes,
)
from tilewright.kernel.defaults.grid_warp_products import (
    Operand,
    Tile,
    WarpProduct,
    warp_tile,
)
from tilewright.kernel.defaults.inlining import inline_maps
from tilewright.kernel.defaults.scheduler import Scheduler
from tilewright.kernel.group import Stage
from tilewright.kernel.intrinsic import INTRINSICS
from tilewright.kernel.steps.compute_inline import ComputeInline


def schedule_product(s: Scheduler) -> bool:
    """Takes a group that is one product and maps of its results."""
    if not s.target.products or s.group.precision == "strict":
        return False
    kept = inline_maps(s)
    sums = [x for x in kept if x.is_reduce]
    outs = [x for x in kept if s.group.buffer(x.name).scope == "out"]
    if len(sums) != 1 or len(outs) != 1 or any(x.ordered for x in kept) or sums[0] is outs[0]:
        return False
    for x in kept:
        if x is not sums[0] and x is not outs[0]:
            s.do(ComputeInline(x.name))
    c, y = sums[0], outs[0]
    found = _operands(s, c)
    if found is None or not _same_places(s, c, y):
        return False
    sizes = [p.extent for p in s.path(c.name)]
    kind = s.nest.buffer(found[0].buffer).dtype
    fits = [x for x in s.target.products if x.dtypes == (kind, kind, f32)]
    for make, tile, instruction in _candidates(s, [x.instruction for x in fits], sizes, found):
        before = s.nest, list(s.trace)
        try:
            make(s, c, y.name, *found, tile, instruction).schedule()
            return True
        except Refused:  # the next one starts again
            s.nest, s.trace[:] = before
    return False


def _candidates(
    s: Scheduler, names: list[str], sizes: list[Dim], operands: tuple[Operand, Operand]
) -> list[tuple[type[WarpProduct], Tile, str]]:
    """Ways to multiply, the best first; a chooser that measures passes over the first ones."""
    return _ways(s, names, sizes, operands)[s.choices.tile or 0 :]


def _ways(
    s: Scheduler, names: list[str], sizes: list[Dim], operands: tuple[Operand, Operand]
) -> list[tuple[type[WarpProduct], Tile, str]]:
    """Ways to multiply, the best first."""
    groups: list[tuple[float, Tile, str]] = []
    out: list[tuple[type[WarpProduct], Tile, str]] = []
    order = tuple(x.deep < x.row for x in operands)
    for name in names:
        i = INTRINSICS[name]
        if not i.tiles:
            tile = warp_tile(s, sizes)
            out += [(WarpProduct, tile, name)] if tile is not None else []
        elif across(i) == order:
            item = s.nest.buffer(operands[0].buffer).dtype.bytes
            # Threads that copy tiles themselves have registers for small ones only.
            if i.warps == 4 or all(in_boxes(s, x) for x in operands):
                groups += [(time, t, name) for time, t in group_tiles(s, i, sizes, item)]
    groups.sort(key=lambda x: x[0])
    return [*((GroupProduct, t, name) for _, t, name in groups[:2]), *out]


def _same_places(s: Scheduler, c: Stage, y: Stage) -> bool:
    """Does each result depend on the sum at its own place?"""
    path, store = s.path(y.name), s.store(y.name)
    here = tuple(D.as_int(p.var) for p in path)
    loads = [x for x in _loads(store.value) if x.source == c.name]
    return bool(loads) and store.index == here and all(x.index == here for x in loads)


def _loads(v: Value) -> list[Load]:
    out: list[Load] = []
    todo = [v]
    while todo:
        x = todo.pop()
        out += [x] if isinstance(x, Load) else []
        todo += x.operands()
    return out


def _operands(s: Scheduler, c: Stage) -> tuple[Operand, Operand] | None:
    """The operands of a sum of products of 16-bit floats: the one with its rows, the one with its
    columns."""
    path, value = s.path(c.name), s.store(c.name).value
    if c.combine != "add" or len(c.raxes) != 1 or len(c.axes) < 2 or len(path) < 3:
        return None
    if not isinstance(value, Fn) or value.name != "mul":
        return None
    i, j, k = (p.var for p in path[-3:])
    found: list[Operand | None] = [None, None]
    for x in value.args:
        inner = x.args[0] if isinstance(x, Fn) and x.name == "cast" else x
        if not isinstance(inner, Load) or inner.dtype not in (bf16, f16):
            return None
        for which, (own, other) in enumerate(((i, j), (j, i))):
            at = _operand(s, inner, own, other, k, {p.var for p in path[:-3]})
            if at is not None:
                found[which] = at
    a, b = found
    if a is None or b is None or a.buffer == b.buffer:
        return None
    return (a, b) if s.nest.buffer(a.buffer).dtype is s.nest.buffer(b.buffer).dtype else None


def _operand(
    s: Scheduler, x: Load, row: Sym, other: Sym, deep: Sym, outer: set[Sym]
) -> Operand | None:
    """An operand that is an input and has its row and its step of the sum last, in either order."""
    if s.nest.buffer(str(x.source)).scope != "in" or not all(D.is_sym(d) for d in x.index):
        return None
    variables = [D.the_sym(d) for d in x.index]
    if len(variables) < 2 or set(variables[-2:]) != {row, deep} or other in variables:
        return None
    if not set(variables[:-2]) <= outer:
        return None
    return Operand(str(x.source), variables.index(row), variables.index(deep), len(variables))
