"""Products of tiles by instructions that add up one step of the sum at a time.

A register tile of sums after the other. The second operand lies in panels, the columns of one
register tile each. What does not fit the first cache comes out of the second one again and again,
so the loops are in the order that moves fewer bytes, a panel is filled when its turn comes, and
sums start where they are added up. For instructions that add up groups of steps:
defaults/tile_dots.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir import dim as D
from tilewright.ir.expr import Fn, Load
from tilewright.ir.product import Product
from tilewright.ir.register_tile import products_of, ragged_rows, whole_tile
from tilewright.kernel.defaults.scheduler import Scheduler
from tilewright.kernel.nest import Alloc, Loop, Path, Store, mentions, own_loops, own_values, walk
from tilewright.kernel.step import Step
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.init_at import InitAt
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.relayout import Relayout
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.tensorize import Tensorize
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize

# Vectors in a row of a register tile whose sums are not carried by a loop: with four, attention
# took a tenth longer.
FEW_VECTORS = 3


def reduced(store: Store, own: list[Loop]) -> list[Loop]:
    """Loops that are reduced over."""
    used = frozenset().union(*(D.symbols(i) for i in store.index)) if store.index else frozenset()
    return [p for p in own if p.var not in used]


def in_panels(
    s: Scheduler, stores: Mapping[str, Store], paths: Mapping[str, Path]
) -> dict[str, int]:
    """Second operands of products, and sums that a loop adds products to, stored as the columns of
    one register tile after the other: what the instruction goes through is one stream."""
    out: dict[str, int] = {}
    for name, store in stores.items():
        path = paths[name]
        own = own_loops(path, name)
        chosen = _chosen(s, store, own, _carried(path, store))
        if chosen is None:
            continue
        (_, width), _ = chosen
        b = store.value.args[1]
        assert isinstance(b, Load)
        rows, columns, deep = (D.as_int(p.var) for p in own[-3:])
        wanted = [(str(b.source), b.index, (deep, columns))]
        outside = [p for p in path if p not in own]
        if outside and Alloc(store.buffer) not in (x for x, _ in walk(outside[-1].body)):
            wanted.append((store.buffer, store.index, (rows, columns)))
        for buffer, index, plain in wanted:
            at = s.nest.buffer(buffer)
            if index != plain or at.scope != "local" or buffer in out:
                continue  # a factor that is one number, say
            wide = at.shape[-1]
            if isinstance(wide, int) and width < wide and wide % width == 0:
                if s.attempt(Relayout(buffer, f"k, j -> j//{width}, k, j%{width}")):
                    out[buffer] = width
    return out


def _chosen(
    s: Scheduler, store: Store, own: list[Loop], carried: bool
) -> tuple[tuple[int, int], list[Product]] | None:
    """A register tile for a product of two tiles, and the instructions that may compute it."""
    v = store.value
    if store.combine is None or len(reduced(store, own)) != 1 or len(own) < 3:
        return None
    if not (isinstance(v, Fn) and v.name == "mul" and all(isinstance(x, Load) for x in v.args)):
        return None
    rows, columns = own[-3].extent, own[-2].extent
    if not (isinstance(columns, int) and isinstance(rows, int)):
        return None
    sums = s.nest.buffer(store.buffer).dtype
    known = [p for p in products_of(s.target, (sums, sums, sums)) if p.group == 1]
    widest = known[0].columns if known else 0
    if known and not carried:
        widest = min(widest, FEW_VECTORS * known[0].lanes)
    tile = whole_tile(s.target, known[0], rows, columns, widest) if known else None
    return None if tile is None else (tile, known)


def multiplies(s: Scheduler, stage: str, store: Store, own: list[Loop], alone: bool) -> bool:
    """A product of two tiles by the target's instruction, a register tile at a time. `alone`: the
    nest has all that reads its operands, so that these may be filled inside its loops."""
    carried = _carried(tuple(s.path(stage)), store)
    chosen = _chosen(s, store, own, carried)
    if chosen is None:
        return False
    (height, width), known = chosen
    rows, columns, over = own[-3:]
    assert isinstance(rows.extent, int)
    if known[0].loads == "each" and carried:
        height = ragged_rows(s.target, known[0], rows.extent, width)
    steps: list[Step] = []
    outer: list[str] = []
    inside: list[str] = []
    large = alone and not _fits_first_cache(s, store, own[-3:])
    filled = _filled_beside(s, stage, store) if large else None
    together, piece = _passing(s, store, own[-3:], (height, width), filled is not None)
    row, deep = rows.name, over.name
    if piece:
        steps.append(Split(deep, piece))
        outer.append(f"{deep}.0")
        deep = f"{deep}.1"
    if together:
        steps.append(Split(row, together))
        outer.append(f"{row}.0")
        row = f"{row}.1"
    for name, extent, size in (
        (columns.name, columns.extent, width),
        (row, together or rows.extent, height),
    ):
        if extent == size:
            inside.insert(0, name)
        else:
            steps.append(Split(name, size))
            outer.append(f"{name}.0")
            inside.insert(0, f"{name}.1")
    for name in (p.instruction for p in known):
        saved = s.nest, list(s.trace)
        order = Reorder((*outer, *inside, deep))
        if all(map(s.attempt, (*steps, order))):
            if filled is not None and not together and columns.extent != width:
                _fill_at(s, filled, width, f"{columns.name}.0")
            if alone and outer and s.attempt(InitAt(store.buffer, outer[-1])):
                _set_at_once(s, store.buffer)
            if s.attempt(Tensorize(inside[0], name)):
                if f"{row}.0" in outer and (together or rows.extent) % height:
                    s.do(Peel(f"{row}.0"))
                return True
        s.nest, s.trace[:] = saved
    return False


def _carried(path: Path, store: Store) -> bool:
    """Does a loop around the product add to the same sums again and again, and nothing else in it
    use them? Then the last register tile may have fewer rows than the others: sums that start in
    their tile do that in one way for all."""
    outside = [p for p in path if p.axis.stage != store.stage]
    if not outside:
        return False
    others = [x for x, _ in walk(outside[-1].body) if getattr(x, "stage", "") != store.stage]
    return not any(not isinstance(x, Loop) and store.buffer in mentions(x) for x in others)


def _fits_first_cache(s: Scheduler, store: Store, loops: list[Loop]) -> bool:
    """Are both operands and the sums there at the same time? Then it does not matter when a panel
    is filled, and all of them at once are filled in longer rows."""
    rows, columns, deep = (p.extent for p in loops)
    if not (isinstance(rows, int) and isinstance(columns, int) and isinstance(deep, int)):
        return False
    elements = rows * deep + deep * columns + rows * columns
    return elements * s.nest.buffer(store.buffer).dtype.bytes <= s.target.l1


def _set_at_once(s: Scheduler, sums: str) -> None:
    """The first values of a register tile, without loops."""
    first = next(x for x, _ in walk(s.nest.body) if isinstance(x, Store) and x.buffer == sums)
    *rows, lanes = own_loops(s.path(first.stage), first.stage)
    if s.attempt(Vectorize(lanes.name)):
        for p in rows:
            s.attempt(Unroll(p.name))


def _fill_at(s: Scheduler, buffer: str, width: int, at: str) -> None:
    """A panel is filled in the loop over panels: one piece of memory for all of them."""
    saved = s.nest, list(s.trace)
    fill = next(x for x, _ in walk(s.nest.body) if isinstance(x, Store) and x.buffer == buffer)
    columns = next(p for p in s.path(fill.stage) if p.var in D.symbols(fill.index[-1]))
    split = columns.extent == width or s.attempt(Split(columns.name, width))
    if not (split and s.attempt(ComputeAt(buffer, at))):
        s.nest, s.trace[:] = saved


def _filled_beside(s: Scheduler, stage: str, store: Store) -> str | None:
    """The second operand, where it is filled right before the product and nothing else reads it: a
    panel can then be filled when its turn comes, in the first cache."""
    b = store.value.args[1]
    assert isinstance(b, Load)
    name = str(b.source)
    held = s.nest.buffer(name)
    if held.scope != "local" or len(held.shape) != 3:  # panels, their rows, their columns
        return None
    everything = list(walk(s.nest.body))
    users = [x for x, _ in everything if any(name in v.sources for v in own_values(x))]
    fills = [(x, p) for x, p in everything if isinstance(x, Store) and x.buffer == name]
    alone = len(users) == 1 and isinstance(users[0], Store) and users[0].stage == stage
    if not alone or len(fills) != 1:
        return None

    def outside(of: str, path: Path) -> list[str]:
        return [p.name for p in path if p.axis.stage != of]

    (fill, path), here = fills[0], s.path(stage)
    return name if outside(fill.stage, path) == outside(stage, tuple(here)) else None


def _passing(
    s: Scheduler, store: Store, loops: list[Loop], tile: tuple[int, int], filled: bool
) -> tuple[int | None, int | None]:
    """How many rows pass by one panel before the next does, None where all of them do; and how many
    steps of the sum at a time, None where all at once. The first cache has place for some rows or
    for a panel, and what is not there comes out of the second one again and again: whichever moves
    fewer bytes. `filled`: a panel is filled when its turn comes, if there is one turn only."""
    a = store.value.args[0] if isinstance(store.value, Fn) else None
    rows, columns, deep = (p.extent for p in loops)
    if not isinstance(a, Load) or not isinstance(rows, int) or not isinstance(deep, int):
        return None, None
    assert isinstance(columns, int)
    (height, width), size = tile, deep * a.dtype.bytes
    most = max(s.target.l1 // 2 // size, height)
    if most >= rows:
        return None, None
    place = s.target.l1 // 2 // (width * a.dtype.bytes)
    piece = max(n for n in range(1, min(deep, place) + 1) if deep % n == 0)
    sums = 2 * rows * columns  # read and written with every piece
    by_panels = deep * (rows * (columns // width) + columns * (not filled)) + sums * deep // piece
    some = max((n for n in range(height, most + 1, height) if rows % n == 0), default=0)
    if some and deep * (rows + columns * (rows // some + filled)) + sums < by_panels:
        return some, None
    return None, piece if piece < deep else None
