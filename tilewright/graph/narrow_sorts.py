"""NarrowSorts: whole numbers that lie close together are sorted by fewer bits.

Sorting takes one pass for 8 bits. Numbers of classes, words or cells have 64 bits, of which few
differ: what a number has more than the least of its row is stored in 8, 16 or 32 bits. How many
are enough is found when the program is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright import ops
from tilewright.base.events import Log
from tilewright.graph.decompose import Decompose
from tilewright.ir import dim as D
from tilewright.ir.node import Graph, Node, input, item, rebuild
from tilewright.ir.operator import is_composed
from tilewright.ir.passes import Pass
from tilewright.ir.types import DType, TensorType, u8, u16, u32, u64
from tilewright.ops.sorting import SortedPlaces, sorted_places
from tilewright.ops.words import longest_counted

WIDTHS = (u32, u16, u8)


@dataclass(frozen=True)
class NarrowSorts(Pass, before=("Decompose",), regions=True):
    """Whole numbers that lie close together are sorted by fewer bits. How far apart they are is
    found when the program is called, and one of several sorts runs. Sorts are found by writing
    operators in terms of others, down to sorted positions; where there are none to narrow, the
    program stays as it is."""

    def apply(self, program: Graph, log: Log) -> Graph:
        if not any(map(_may_sort, program.nodes())):
            return program
        written = Decompose(keep=("sorted_places",)).apply(program, log)
        made = rebuild(written, _narrowed)
        return program if made is written else made


def _may_sort(n: Node) -> bool:
    """Is it written in terms of others, and does it read whole numbers of several bytes?"""
    types = [x.type for x in n.inputs]
    whole = (isinstance(t, TensorType) and t.dtype.is_int and t.dtype.bits > 8 for t in types)
    return is_composed(n.op) and any(whole)


def _narrowed(n: Node) -> Node:
    if not isinstance(n.op, SortedPlaces):
        return n
    (x,) = n.inputs
    widths = [d for d in WIDTHS if d.bits < x.dtype.bits]
    few = D.bounds(x.shape[1])[1] <= longest_counted(x.dtype.bits)
    if not x.dtype.is_int or few or not widths:
        return n
    low, high = ops.amin(x, (1,), True), ops.amax(x, (1,), True)
    far = ops.sub(ops.cast(high, u64), ops.cast(low, u64))  # exact modulo 2**64
    return _by_width(n.op.descending, [x, low, far], widths)


def _by_width(descending: bool, given: list[Node], widths: Sequence[DType]) -> Node:
    """Sorted by the fewest bits that are enough; where none of these are, by all."""
    if not widths:
        return sorted_places(given[0], descending)
    *wider, width = widths
    most = ops.full((), (1 << width.bits) - 1, u64)
    fits = ops.all(ops.le(given[2], most), (0, 1), False)
    own = [input(f"b{k}", g.ttype) for k, g in enumerate(given)]
    above = ops.sub(ops.cast(own[0], u64), ops.cast(own[1], u64))
    narrow = sorted_places(ops.cast(above, width), descending)
    then = Graph(f"sort_{width}", tuple(own), (narrow,))
    other = Graph(f"above_{width}", tuple(own), (_by_width(descending, own, wider),))
    return item(ops.cond(fits, then, other, given), 0)
