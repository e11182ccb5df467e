"""Packing: the operand of a contraction that vectors run along is laid out in tiles.

`w` becomes `unrelayout{map}(relayout{map}(w))`: equal by definition, but the relayout is stored, so
that the kernel reads whole vectors one after the other. Over constants the relayout folds away into
what runs once. The map has the tile's columns innermost, such as `k, j -> j//12, k, j%12`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

from tilewright.base.events import Log
from tilewright.graph.classify import Contraction, contraction, factors, facts, guess
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Load
from tilewright.ir.maps import Map
from tilewright.ir.node import Constant, Graph, Input, Node, node, rebuild
from tilewright.ir.passes import Pass, of_target
from tilewright.ir.positions import static
from tilewright.ir.product import Product, TileShape
from tilewright.ir.register_tile import (
    LINE,
    copies_panels,
    dividing_rows,
    lanes_of,
    lines_of,
    panel_width,
    products_of,
    reads_apart,
    register_tile,
    shared_sum,
)
from tilewright.ir.target import Target
from tilewright.ir.types import DType
from tilewright.ops.layout import relayout, unrelayout

# Used without a target: NEON.
_NEON = Target(
    "neon", "aarch64-unknown-linux-gnu", "generic", vector_registers=32, tiles=(TileShape(6, 3, 8),)
)


# A left operand that lies across is stored once more for so many uses of each element, ...
USES = 64
# ... and where it has so many bytes that they are not in the first caches anyway.
SMALL = 128 << 10

# Simplification would cancel a relayout and its inverse; the others make or change contractions.
_AFTER = ("Simplify", "KeyBlocks", "ChannelsLast", "PixelGradients", "Winograd", "DotProducts")


@dataclass(frozen=True)
class PackOperands(Pass, needs=("Decompose",), after=_AFTER, regions=True):
    """Rewrite the packed operand of every contraction where packing pays."""

    target: Target = of_target(_NEON, lambda t: t)
    min_rows: int = 8  # a changing operand is packed for at least this many uses of each element

    def apply(self, program: Graph, log: Log) -> Graph:
        def change(n: Node, constant: set[Node]) -> Node:
            ends = next(given) in last  # n itself is another node once an operand was packed
            c = contraction(n)
            if c is None or n.op.makes_operands:
                return n
            if ends and self._sums_as_it_lies(n, c):
                return n
            n = self._turned(n, c, constant, log)
            w = n.inputs[c.right]
            known = w in constant
            found = self.map_for(n, c, known)
            if found is None or (not known and n in last and self.reads_as_fast(n, c)):
                return n
            fresh = unrelayout(relayout(w, found), found, w.shape)
            out = node(n.op, *(fresh if k == c.right else x for k, x in enumerate(n.inputs)))
            what = "constant" if known else "changing"
            log.add("pack", f"{what} operand of {n.op.name} as {found}", detail=True)
            return out

        last, given = _last_products(program), iter(program.nodes())
        return rebuild_knowing(program, change)

    def _sums_as_it_lies(self, n: Node, c: Contraction) -> bool:
        """Do threads share the sum, over rows of both operands (kernel/defaults/long_products.py)?
        Then each is read once, so a copy of it would be most of the work."""
        x, w = (n.inputs[k] for k in (c.left, c.right))
        axes, order = _left_axes(n, c), _in_memory(x)
        known = all(isinstance(d, int) for d in (*x.shape, *w.shape))
        if n.rank != 2 or not (x.rank == w.rank == 2 and known) or axes is None or order is None:
            return False
        if axes[order[-1]] not in c.rows or (c.right_axes[-1], c.lane) != (1, 1):
            return False
        plain = facts(w).kind != "view" or facts(w).reshape
        same = x.dtype is w.dtype is n.dtype and n.dtype.accumulator is n.dtype
        rows, columns = static(n.shape)
        terms = guess(w.shape[0])
        return same and plain and shared_sum(self.target, n.dtype, rows, columns, terms) is not None

    def _turned(self, n: Node, c: Contraction, constant: set[Node], log: Log) -> Node:
        """With a left operand whose sums run along memory, or in panels of a tile's rows: one that
        lies the other way is stored once more. Rows of a tile would read it in steps of whole rows,
        which share few places of a cache."""
        x = n.inputs[c.left]
        if x in constant or not self._lies_across(n, c):
            return n
        found = self._row_panels(n, c, n.inputs[c.right] in constant) or _sums_last(n, c)
        log.add("pack", f"left operand of {n.op.name} as {found}", detail=True)
        fresh = unrelayout(relayout(x, found), found, x.shape)
        return node(n.op, *(fresh if k == c.left else y for k, y in enumerate(n.inputs)))

    def _lies_across(self, n: Node, c: Contraction) -> bool:
        x = n.inputs[c.left]
        axes = _left_axes(n, c)
        order = _in_memory(x)
        if axes is None or order is None or not all(isinstance(d, int) for d in x.shape):
            return False
        summed = [k for k, a in enumerate(axes) if a >= n.rank]
        sums = prod(guess(x.shape[k]) for k in summed)
        rows = prod(guess(x.shape[k]) for k, a in enumerate(axes) if a in c.rows)
        columns = prod(guess(n.shape[a]) for a in c.columns)
        return (
            bool(summed)
            and axes[order[-1]] in c.rows
            and min(rows, columns) >= USES
            and rows * sums * x.dtype.bytes > SMALL
            and not self._stays(n, x, order, summed)
        )

    def _stays(self, n: Node, x: Node, order: tuple[int, ...], summed: list[int]) -> bool:
        """Do the lines that rows of a tile read across all of the sum stay in the first cache, or
        in the second one where a panel of the right operand leaves no room in the first?"""
        size, tile = x.dtype.bytes, register_tile(self.target, n.dtype)
        inner = order[order.index(summed[0]) + 1 :]
        stride = prod(guess(x.shape[k]) for k in inner) * size
        deep = guess(x.shape[summed[0]])
        panel = deep * tile.columns * size
        near = 2 * panel <= self.target.l1 or deep * stride <= self.target.l2
        apart = reads_apart(self.target, deep, stride, tile.rows * size)
        return len(summed) == 1 and near and not apart

    def _row_panels(self, n: Node, c: Contraction, constant: bool) -> Map | None:
        """The map of a left operand that lies across into panels of as many rows as tiles have,
        which are copied as they lie: pieces of lines, nothing is turned. None where tiles do not
        divide the rows, or an instruction loads rows."""
        found, axes = self._panel(n, c, constant), _left_axes(n, c)
        assert axes is not None
        own = [k for k, a in enumerate(axes) if a in c.rows]
        if found is None or found[1] > 1 or len(own) != 1 or c.lane not in c.columns:
            return None
        if any(p.loads == "rows" for p in self.target.products):
            return None
        rows, lanes = n.inputs[c.left].shape[own[0]], lanes_of(self.target, n.dtype)
        tile = register_tile(self.target, n.dtype, found[0])
        tall = dividing_rows(tile.rows, tile.most, rows)
        width = max(tall, lanes)
        if width % min(tall, lanes) or not isinstance(rows, int) or rows % width:
            return None
        names = [f"a{k}" for k in range(len(axes))]
        row = names[own[0]]
        outer = [x for x, a in zip(names, axes, strict=True) if a < n.rank and x != row]
        summed = [names[axes.index(a)] for a in sorted(axes) if a >= n.rank]
        target = [*outer, f"{row}//{width}", *summed, f"{row}%{width}"]
        return Map.parse(f"{', '.join(names)} -> {', '.join(target)}")

    def map_for(self, n: Node, c: Contraction, constant: bool) -> Map | None:
        """The map of the right operand, or None where it stays as it is."""
        found = self._panel(n, c, constant)
        return None if found is None else _tiled(c, len(n.shape), *found)

    def _panel(self, n: Node, c: Contraction, constant: bool) -> tuple[int, int] | None:
        """Columns of a panel of the right operand, and how many steps of the sum stay together."""
        w = n.inputs[c.right]
        if facts(w).kind == "view" and w.inputs[0].op.barrier:
            return None  # packed already
        if not self.packs(n, c, constant):
            return None
        deep = w.shape[c.right_axes.index(max(c.right_axes))]
        products = self.products(n, c, constant, n.inputs[c.left].dtype)
        p = next((p for p in products if isinstance(deep, int) and deep % p.depth == 0), None)
        tile = register_tile(self.target, n.dtype, product=p)
        lanes = lanes_of(self.target, n.dtype)
        if p is not None and p.tile is not None:
            width = tile.columns
        elif c.lane in c.columns:
            width = _width(n.shape[c.lane], tile.columns, lanes)
        else:
            width = _group_width(n, c, tile.columns, lanes)
        group = 1 if p is None else p.group
        return None if width is None else (width, group)

    def packs(self, n: Node, c: Contraction, constant: bool) -> bool:
        """Is each element used often enough to pay for the copy? Without groups, products of bytes
        are so slow that two uses do."""
        b = n.inputs[c.right].dtype
        grouped = b.is_int and any(p.b is b and p.c is n.dtype for p in self.target.products)
        return constant or _rows(n, c) >= (2 if grouped else self.min_rows)

    def reads_as_fast(self, n: Node, c: Contraction) -> bool:
        """Are whole vectors one after the other in memory as it is? Then a copy gains nothing where
        few rows read it, where the lines that a tile of columns reads stay in the first cache
        together, or where threads copy panels as they come to them. Products of computed rows may
        become one kernel with what computes these, which reads panels; so do those that add up
        in a wider type. (Nor may others read sums of this one: `_last_products`.)"""
        w = n.inputs[c.right]
        if not _given(n.inputs[c.left]) or n.dtype.accumulator is not n.dtype:
            return False
        deep, wide = w.shape[-2:] if w.rank > 1 else (1, 1)
        plain = facts(w).kind != "view" or facts(w).reshape
        lanes = lanes_of(self.target, n.dtype)
        if not (plain and isinstance(deep, int) and isinstance(wide, int)) or wide % lanes:
            return False
        if c.right_axes[-1] != c.lane or c.lane not in c.columns or c.right_axes[-2] < n.rank:
            return False
        tile = register_tile(self.target, n.dtype)
        if _rows(n, c) <= tile.rows:
            return True
        stride, width = wide * w.dtype.bytes, min(wide, tile.columns) * w.dtype.bytes
        if lines_of(deep, stride, width) <= self.target.l1 // LINE:
            return True
        # Threads copy panels themselves (kernel/defaults/own_panels.py).
        own = _given(w) and panel_width(wide, tile.columns, lanes) is not None
        return own and copies_panels(self.target, _rows(n, c), deep, stride)

    def products(self, n: Node, c: Contraction, constant: bool, left: DType) -> Iterator[Product]:
        """Instructions that add up groups of products, if the left operand is of a dtype, the best
        first. Their sums are over whole groups. Tiles need enough rows to fill one. Vectors need
        groups that are adjacent in the left operand too, and floats that change are attention's,
        which has its own tiles."""
        if c.lane not in c.columns:
            return
        summed = [k for k in c.right_axes if k >= n.rank]
        last = [a.axes[-1:] for a in facts(n).accesses if a.operand == c.left]
        plain = len(summed) == 1 and last == [tuple(summed)]
        sums = n.dtype.accumulator
        for p in products_of(self.target, (left, n.inputs[c.right].dtype, sums)):
            if p.tile is not None:
                if _rows(n, c) >= p.tile[0]:
                    yield p
            elif p.group > 1 and plain and (constant or sums.is_int):
                yield p


def _last_products(program: Graph) -> set[Node]:
    """Contractions of which no other and no reduction is computed: none is the first of a chain."""
    inner: set[Node] = set()
    found: set[Node] = set()
    for n in reversed(program.nodes()):
        kind = facts(n).kind
        if kind == "contract" and n not in inner:
            found.add(n)
        if n in inner or kind in ("contract", "reduce", "program"):
            inner.update(n.inputs)
    return found


def _given(n: Node) -> bool:
    """Is it an input, or a view of one?"""
    while facts(n).kind == "view":
        n = n.inputs[0]
    return isinstance(n.op, Input)


def _left_axes(n: Node, c: Contraction) -> tuple[int, ...] | None:
    """The domain axis of each axis of the left operand; None where it is not read plainly, once."""
    reads = [a for a in facts(n).accesses if a.operand == c.left]
    if len(reads) != 1 or min(reads[0].axes, default=-1) < 0:
        return None
    axes = reads[0].axes
    return axes if len(set(axes)) == len(axes) else None


def _in_memory(x: Node) -> tuple[int, ...] | None:
    """The axes of a value in the order in which its memory has them, the innermost last."""
    f = facts(x)
    if f.kind != "view" or f.reshape:
        return tuple(range(x.rank))
    axes = f.accesses[0].axes
    return axes if sorted(axes) == list(range(x.rank)) else None


def _sums_last(n: Node, c: Contraction) -> Map:
    axes = _left_axes(n, c)
    assert axes is not None
    names = [f"a{k}" for k in range(len(axes))]
    order = sorted(range(len(axes)), key=lambda k: axes[k])
    return Map.parse(f"{', '.join(names)} -> {', '.join(names[k] for k in order)}")


def _rows(n: Node, c: Contraction) -> int:
    return prod(guess(n.shape[a]) for a in c.rows)


def rebuild_knowing(program: Graph, change: Callable[[Node, set[Node]], Node]) -> Graph:
    """The program with nodes changed by a function that gets the nodes which depend on weights and
    literals only; itself where none changes."""
    constant: set[Node] = set()

    def one(n: Node) -> Node:
        if is_constant(n, constant):
            constant.add(n)
        out = change(n, constant)
        if n in constant:
            constant.add(out)
        return out

    return rebuild(program, one)


def is_constant(n: Node, constant: set[Node]) -> bool:
    """Does it depend on weights and literals only?"""
    if isinstance(n.op, Input):
        return n.op.role == "weight"
    if isinstance(n.op, Constant):
        return True
    return not n.op.random and all(x in constant for x in n.inputs)


def _width(extent: Dim, columns: int, lanes: int) -> int | None:
    """Columns of a tile for an axis; one vector fewer where that pads less; None if too narrow. Of
    an unknown number there are as many as usual: what is filled up costs more than narrow tiles."""
    if not isinstance(extent, int):
        return _width(max(lanes, 2, guess(extent)), columns, lanes)
    if extent < lanes or extent < 2:
        return None
    if extent <= columns:
        return -(-extent // lanes) * lanes

    def padded(width: int) -> float:
        return -(-extent // width) * width / extent

    smaller = columns - lanes
    return smaller if padded(columns) > 1.1 and padded(smaller) < padded(columns) else columns


def _group_width(n: Node, c: Contraction, columns: int, lanes: int) -> int | None:
    """In a grouped convolution no tile straddles two groups: the widest that divides a group."""
    f = facts(n)
    assert f.reduce is not None
    lane = f.outputs[0].axes[c.lane]
    sizes = [
        d
        for load in factors(f.reduce) or ()
        if load.source is f.inputs[c.left]
        for d in _divisors(load, lane)
    ]
    for width in range(columns, lanes - 1, -lanes):
        if sizes and all(isinstance(d, int) and d % width == 0 for d in sizes):
            return width
    return None


def _divisors(load: Load, lane: D.Sym) -> list[Dim]:
    """What the lane's variable is divided by in an index."""
    atoms = {a for i in load.index if isinstance(i, D.Int) for m, _ in i.terms for a in m}
    return [
        a.b for a in atoms if isinstance(a, D.Quo) and a.op == "floordiv" and lane in D.symbols(a.a)
    ]


def _tiled(c: Contraction, rank: int, width: int, group: int = 1) -> Map:
    """Output axes first, then the lane's tiles, the summed axes, and the columns of a tile; groups
    of the last summed axis stay together."""
    names = [f"a{k}" for k in range(len(c.right_axes))]
    lane = names[c.right_axes.index(c.lane)]
    outer = [x for x, a in zip(names, c.right_axes, strict=True) if a < rank and a != c.lane]
    summed = [names[c.right_axes.index(a)] for a in sorted(c.right_axes) if a >= rank]
    if group > 1:
        *around, last = summed
        target = [*outer, f"{lane}//{width}", *around, f"{last}//{group}"]
        target += [f"{lane}%{width}", f"{last}%{group}"]
    else:
        target = [*outer, f"{lane}//{width}", *summed, f"{lane}%{width}"]
    return Map.parse(f"{', '.join(names)} -> {', '.join(target)}")
