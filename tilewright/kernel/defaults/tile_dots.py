"""Products of narrow tiles by instructions that add up groups of them.

Such an instruction reads, for each column, a few adjacent steps of the sum (pairs of
bfloat16, fours of bytes). So the second operand is packed that way where it is filled; the first
lies in rows. defaults/tile_operands.py calls `left_operand` first: where no instruction multiplies
the dtypes, both are widened where they are filled, and the product is one of float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tilewright.ir import dim as D
from tilewright.ir.expr import Fn, Load, Value
from tilewright.ir.product import Product
from tilewright.ir.register_tile import Exact, exact_products, products_of, whole_tile
from tilewright.ir.target import Target
from tilewright.ir.types import DType
from tilewright.kernel.defaults.scheduler import Scheduler, accesses, vector_loop
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.nest import Loop, Path, Store, own_loops
from tilewright.kernel.steps.relayout import Relayout
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.tensorize import Tensorize
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import MAX_LANES, Vectorize

# Lanes of the loops around products: panels of a multiple are walked through in whole vectors.
WHOLE = 16
Sizes = tuple[int, int, int]  # rows, columns and steps of the sum


def _known(target: Target, dtypes: tuple[DType, DType, DType], sizes: Sizes) -> Iterator[Product]:
    _, columns, deep = sizes
    return (p for p in products_of(target, dtypes) if p.group > 1 and p.takes(columns, deep))


def left_operand(target: Target, dtypes: tuple[DType, DType, DType], sizes: Sizes) -> Exact | None:
    """What the first operand becomes for an instruction that adds up groups of products exactly.
    None where there is no instruction."""
    _, columns, deep = sizes
    found = exact_products(target, dtypes)
    return next((e for e in found if e.product.group > 1 and e.product.takes(columns, deep)), None)


# ---- the schedule


@dataclass
class Products:
    """Stages that an instruction computes, and the buffers that are packed for them."""

    chosen: dict[str, tuple[Product, tuple[int, int]]] = field(default_factory=dict)
    packed: dict[str, tuple[int, int]] = field(default_factory=dict)  # group and columns
    rows: set[str] = field(default_factory=set)  # first operands

    def fills(self, s: Scheduler, stage: str, store: Store, own: list[Loop]) -> bool:
        """Packs a second operand: lanes along its columns, a group of adjacent steps. A
        first one is copied, in whole registers of its narrow elements."""
        found = self.packed.get(store.buffer)
        if store.combine is not None or len(own) < 2:
            return False
        if found is None:
            return store.buffer in self.rows and _copies(s, store, own)
        group, width = found
        saved = s.nest, list(s.trace)
        steps, columns = own[-2:]
        lanes = min(width, MAX_LANES)
        (outer, few), (vectors, lane) = _halved(s, steps, group), _halved(s, columns, lanes)
        # The positions of columns are computed once for all steps.
        order = (*(p.name for p in own[:-2]), *vectors, *outer, lane, few)
        if s.attempt(Reorder(order)) and s.attempt(Unroll(few)) and s.attempt(Vectorize(lane)):
            return True
        s.nest, s.trace[:] = saved
        return False

    def multiplies(self, s: Scheduler, stage: str, own: list[Loop]) -> bool:
        """The product of two tiles, a register tile after the other."""
        found = self.chosen.get(stage)
        if found is None:
            return False
        g, (height, width) = found
        columns, over = own[-2:]
        operands = _operands(s.store(stage).value)
        assert operands is not None, f"{stage} was found to be a product"
        rows = _rows(own, operands[1])
        saved = s.nest, list(s.trace)
        across, wide = _halved(s, columns, width)
        down, tall = _halved(s, rows, height) if rows is not None else ([], "")
        s.do(Split(over.name, g.group))
        inside = [x for x in (tall, wide, f"{over.name}.0", f"{over.name}.1") if x]
        order = Reorder((*across, *down, *inside))
        if s.attempt(order) and s.attempt(Tensorize(inside[0], g.instruction)):
            return True
        s.nest, s.trace[:] = saved
        return False


def _copies(s: Scheduler, store: Store, own: list[Loop]) -> bool:
    """Copies what lies in rows already."""
    along, bits = own[-1].var, s.nest.buffer(store.buffer).dtype.bits
    for b, index in accesses(s, store):
        if D.coefficient(linear_index(b, index), along) not in (0, 1):
            return False
    vector_loop(s, own[-1].name, min(2 * s.target.lanes(bits), MAX_LANES))
    return True


def _halved(s: Scheduler, loop: Loop, size: int) -> tuple[list[str], str]:
    """A loop as the loops around pieces of a size and the one within them."""
    if loop.extent == size:
        return [], loop.name
    s.do(Split(loop.name, size))
    return [f"{loop.name}.0"], f"{loop.name}.1"


def grouped_products(
    s: Scheduler, stores: Mapping[str, Store], paths: Mapping[str, Path]
) -> Products:
    """Finds the products of narrow tiles and lays out their second operands; sums of columns, which
    are products with one row, take the layout that they find."""
    out = Products()
    found = {n: p for n, x in stores.items() if (p := _product(s, n, x, paths[n])) is not None}
    for name in sorted(found, key=lambda n: found[n].rows is None):
        p, panel = found[name], str(found[name].b.source)
        g = next(_known(s.target, p.dtypes, p.sizes), None)
        if g is None:
            continue
        known = out.packed.get(panel)
        tile = whole_tile(s.target, g, *p.sizes[:2])
        if tile is None:
            continue
        height, width = tile
        if known is None and s.attempt(Relayout(panel, _map(len(p.b.index), g, width))):
            out.packed[panel] = g.group, width
        elif known is not None and p.rows is None:
            width = known[1]
        if out.packed.get(panel) == (g.group, width):
            out.chosen[name] = g, (height, width)
            out.rows.add(str(p.a.source))
    _sums_in_panels(s, out, stores)
    return out


def _sums_in_panels(s: Scheduler, made: Products, stores: Mapping[str, Store]) -> None:
    """Sums as the instructions load and store them, if all that multiply into them agree: what lies
    in one register tile is one piece of memory."""
    for name, (_, (_, width)) in made.chosen.items():
        b = s.nest.buffer(stores[name].buffer)
        into = [n for n, x in stores.items() if x.buffer == b.name and x.combine is not None]
        agreed = all(n in made.chosen and made.chosen[n][1][1] == width for n in into)
        plain = len(b.shape) == 2 and b.scope == "local"  # not yet in panels
        if agreed and plain and b.shape[1] != width and width % WHOLE == 0:
            s.attempt(Relayout(b.name, f"i, j -> j//{width}, i, j%{width}"))


@dataclass(frozen=True)
class _Product:
    a: Load
    b: Load
    rows: Loop | None
    dtypes: tuple[DType, DType, DType]
    sizes: Sizes


def _product(s: Scheduler, stage: str, store: Store, path: Path) -> _Product | None:
    """A stage that adds up products of what is cast, its second operand as it was filled."""
    own = own_loops(path, stage)
    operands = _operands(store.value)
    if store.combine != "add" or operands is None or len(own) < 2:
        return None
    a, b = operands
    columns, over = own[-2:]
    rows = _rows(own, b)
    sizes = (1 if rows is None else rows.extent, columns.extent, over.extent)
    plain = b.index[-2:] == (D.as_int(over.var), D.as_int(columns.var))
    if not plain or s.nest.buffer(str(b.source)).scope != "local":
        return None
    tall, wide, deep = sizes
    if not (isinstance(tall, int) and isinstance(wide, int) and isinstance(deep, int)):
        return None
    dtypes = (a.dtype, b.dtype, s.nest.buffer(store.buffer).dtype)
    return _Product(a, b, rows, dtypes, (tall, wide, deep))


def _rows(own: list[Loop], b: Load) -> Loop | None:
    """The loop over rows, which the second operand does not know."""
    found = own[-3] if len(own) > 2 else None
    return None if found is None or found.var in b.symbols() else found


def _operands(v: Value) -> tuple[Load, Load] | None:
    """What is cast and multiplied."""
    if not (isinstance(v, Fn) and v.name == "mul"):
        return None
    found = [x.args[0] for x in v.args if isinstance(x, Fn) and x.name == "cast"]
    a, b = found if len(found) == 2 else (None, None)
    return (a, b) if isinstance(a, Load) and isinstance(b, Load) else None


def _map(rank: int, g: Product, width: int) -> str:
    """Panels of columns; in each, groups of steps; in each, for each column, its steps."""
    batch = [f"z{k}" for k in range(rank - 2)]
    to = [*batch, f"j//{width}", f"k//{g.group}", f"j%{width}", f"k%{g.group}"]
    return f"{', '.join([*batch, 'k', 'j'])} -> {', '.join(to)}"
