"""Matrix products of a GPU: which groups are one, and by which instructions.

Groups of warps that read shared memory come first, by the estimate of their tiles
(grid_group_products.py), then single warps (grid_warp_products.py), then threads that multiply
numbers (grid_thread_products.py).
"""

from __future__ import annotations

from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Fn, Load, Value
from tilewright.ir.value_text import value_text
from tilewright.kernel.defaults.grid_group_products import (
    PLAIN,
    GroupProduct,
    across,
    group_tiles,
    in_boxes,
)
from tilewright.kernel.defaults.grid_thread_products import ThreadProduct, thread_tiles
from tilewright.kernel.defaults.grid_warp_products import (
    Operand,
    Tile,
    WarpProduct,
    warp_tile,
)
from tilewright.kernel.defaults.inlining import inline_maps
from tilewright.kernel.defaults.scheduler import Scheduler
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.group import Stage
from tilewright.kernel.intrinsic import INTRINSICS
from tilewright.kernel.steps.compute_inline import ComputeInline
from tilewright.kernel.steps.compute_with import ComputeWith
from tilewright.kernel.steps.materialise import Materialise
from tilewright.kernel.steps.reorder import Reorder


def schedule_product(s: Scheduler) -> bool:
    """Takes a group that is one product and maps of its results."""
    if s.group.precision == "strict":
        return False
    kept = inline_maps(s)
    sums = [x for x in kept if x.is_reduce]
    outs = [x for x in kept if s.group.buffer(x.name).scope == "out"]
    if len(sums) != 1 or not outs or any(x.ordered for x in kept) or sums[0] in outs:
        return False
    for x in kept:
        if x is not sums[0] and x not in outs:
            s.do(ComputeInline(x.name))
    c, y = sums[0], outs[0]
    if not same_places(s, c, outs):
        return False
    found = _operands(s, c)
    if found is None:
        return False
    for x in outs[1:]:  # several results of one sum are stored together
        s.do(ComputeWith(x.name, s.path(y.name)[-1].name))
    sizes = [p.extent for p in s.path(c.name)]
    kind, sums_in = s.nest.buffer(found[0].buffer).dtype, s.nest.buffer(c.name).dtype
    fits = [x for x in s.target.products if x.dtypes == (kind, kind, sums_in)]
    for make, tile, instruction in _candidates(s, [x.instruction for x in fits], sizes, found):
        before = s.nest, list(s.trace)
        try:
            make(s, c, y.name, *found, tile, instruction, len(outs) > 1).schedule()
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
    """Ways to multiply, the best first. Where the copy engine cannot bring the tiles, warps come
    before groups of them: their copies are vectors."""
    groups: list[tuple[float, Tile, str]] = []
    warps: list[tuple[type[WarpProduct], Tile, str]] = []
    order = tuple(x.deep < x.row for x in operands)
    item = s.nest.buffer(operands[0].buffer).dtype.bytes
    brought = all(in_boxes(s, x) for x in operands)
    for name in names:
        i = INTRINSICS[name]
        if not i.tiles:
            tile = warp_tile(s, sizes, operands)
            warps += [(WarpProduct, tile, name)] if tile is not None else []
        elif across(i) == order and (brought or i.warps == 4):
            # Threads that copy tiles themselves have registers for small ones only.
            found = group_tiles(s, i, sizes, item, brought=operands if brought else None)
            groups += [(time, t, name) for time, t in found]
    groups.sort(key=lambda x: x[0])
    # Behind the best ones, one whose threads may copy an operand: no others can bring it then.
    best = [*groups[:2], *[x for x in groups[2:] if x[1].way in PLAIN][:1]]
    of_groups = [(GroupProduct, t, name) for _, t, name in best]
    others = sorted(thread_tiles(s, sizes, item), key=lambda x: x[0])
    of_threads = [(ThreadProduct, t, "") for _, t in others[:2]]
    first = [*of_groups, *warps] if brought else [*warps, *of_groups]
    return [*first, *of_threads]


def same_places(s: Scheduler, c: Stage, outs: list[Stage], *others: Stage) -> bool:
    """Does each result depend on the sum (or on others), and on other results, at its own place?"""
    made = {x.name for x in (c, *others, *outs)}
    extents = [[p.extent for p in s.path(x.name)] for x in outs]
    if any(x != extents[0] for x in extents):
        return False
    for x in outs:
        path, store = s.path(x.name), s.store(x.name)
        once: dict[Sym, Dim] = {p.var: 0 for p in path if p.extent == 1}
        here = [D.substitute(D.as_int(p.var), once) for p in path]
        loads = [v for v in _loads(store.value) if v.source in made]
        used = [store.index, *(v.index for v in loads)]
        if not loads or any([D.substitute(d, once) for d in at] != here for at in used):
            return False
    return True


def _loads(v: Value) -> list[Load]:
    out: list[Load] = []
    todo = [v]
    while todo:
        x = todo.pop()
        out += [x] if isinstance(x, Load) else []
        todo += x.operands()
    return out


def _operands(s: Scheduler, c: Stage) -> tuple[Operand, Operand] | None:
    """The operands of a sum of products: the one with its rows, the one with its columns."""
    path, value = s.path(c.name), s.store(c.name).value
    if c.combine != "add" or len(c.raxes) != 1 or len(c.axes) < 2 or len(path) < 3:
        return None
    if not isinstance(value, Fn) or value.name != "mul":
        return None
    i, j, k = (p.var for p in path[-3:])
    factors: list[Load | None] = [None, None]
    for x in value.args:
        inner = x.args[0] if isinstance(x, Fn) and x.name == "cast" else x
        if not isinstance(inner, Load) or s.nest.buffer(str(inner.source)).scope != "in":
            return None
        for which, (own, other) in enumerate(((i, j), (j, i))):
            if {own, k} <= inner.symbols() and other not in inner.symbols():
                factors[which] = inner
    first, second = factors
    if first is None or second is None or first.dtype is not second.dtype:
        return None
    outer, same = {p.var for p in path[:-3]}, first.source == second.source
    a = plain_operand(first, i, k, outer) if not same else None
    b = plain_operand(second, j, k, outer) if not same else None
    a = a or _gathered(s, c, first, i, k, f"{c.name}_a")
    b = b or _gathered(s, c, second, j, k, f"{c.name}_b")
    return a, b


def plain_operand(x: Load, row: Sym, deep: Sym, outer: set[Sym]) -> Operand | None:
    """An operand that has its row and its step of the sum last, in either order."""
    if not all(D.is_sym(d) for d in x.index):
        return None
    variables = [D.the_sym(d) for d in x.index]
    if len(variables) < 2 or set(variables[-2:]) != {row, deep}:
        return None
    if not set(variables[:-2]) <= outer:
        return None
    return Operand(str(x.source), variables.index(row), variables.index(deep), len(variables))


def _gathered(s: Scheduler, c: Stage, x: Load, row: Sym, deep: Sym, into: str) -> Operand:
    """Any other operand, such as a part of a wider matrix, as a stage of its own, which has its
    row and its step of the sum last. Of these the one that has its neighbours adjacent in memory is
    the last one."""
    across = stored(s, c, x, x, row, deep, into)
    rank = len(s.nest.buffer(into).shape)
    last, other = rank - 1, rank - 2
    return Operand(into, last if across else other, other if across else last, rank, True)


def stored(s: Scheduler, c: Stage, v: Value, x: Load, row: Sym, deep: Sym, into: str) -> bool:
    """An operand of a sum, which reads x, as a stage of its own: its step of the sum last, or, if
    it returns True, its row, where neighbouring rows are adjacent in memory."""
    lin = linear_index(s.nest.buffer(str(x.source)), x.index)
    across = D.coefficient(lin, deep) != 1 and D.coefficient(lin, row) == 1
    if across:
        s.do(Reorder((deep.name, row.name)))
    s.do(Materialise(c.name, value_text(v), into))
    if across:
        inner = [p.name for p in s.path(c.name) if p.var is not deep]
        s.do(Reorder((*inner[inner.index(row.name) :], deep.name)))
    return across
