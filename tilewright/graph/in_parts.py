"""Large values between products, computed in parts.

The loss of a language model multiplies rows with a matrix of all words, takes logarithms of sums of
each row and keeps a number of it; its gradient makes the product again, a difference for each word,
and multiplies twice. What lies between has an element for each row and word, and nothing outside
reads it. `InParts` finds such regions and computes them in a loop over parts of one axis:

    y = x @ w        [rows, words]       for each part of the rows:
    l = f(y)         [rows]         ──►      y = x[part] @ w;  l[part] = f(y);  g = h(y)
    g = h(y)         [rows, words]           d += transpose(g) @ x[part]
    d = transpose(g) @ x

Everything inside reads one position of the axis for one of its own, which its definition says, or
adds up all of them. `graph/part_region.py` finds what is inside, here the loop is made of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod

from tilewright import ops
from tilewright.base.errors import Invalid
from tilewright.base.events import Log
from tilewright.graph.classify import UNIT, contraction, facts, multiply_adds
from tilewright.graph.part_region import (
    Region,
    at_first,
    at_last,
    bytes_of,
    continued,
    in_part,
    region_of,
    summed_in_part,
    whole,
)
from tilewright.ir.node import Graph, Node, input, item, node, rebuild, topological
from tilewright.ir.operator import is_composed
from tilewright.ir.passes import Pass
from tilewright.ir.types import TensorType
from tilewright.ops.control import scan
from tilewright.ops.indexing import Gather
from tilewright.rewrites.updates import is_at


@dataclass(frozen=True)
class InParts(
    Pass, needs=("Decompose",), before=("ChannelsLast", "PackOperands"), rounds=True, regions=True
):
    """Compute in a loop over parts of an axis what is large, made by a product, and read by nothing
    outside. Sums over that axis are added up part by part."""

    least: int = 1 << 24  # bytes of a value that is worth it
    part: int = 1 << 22  # bytes of it in one round, at most
    positions: int = 128  # of a part, at least: a product of few rows waits for its operand
    longer: int = 8  # how many times longer than the rows that go into the product

    def apply(self, program: Graph, log: Log) -> Graph:
        tried: set[Node] = set()
        while True:
            seed = self._seed(program, tried)
            if seed is None:
                return program
            tried.add(seed)
            found = self._best(program, seed)
            made = None if found is None else _looped(*found)
            if found is None or made is None:
                continue
            _, region, length = found
            program = made
            place = program.place(seed)
            log.add(
                "loops",
                f"{seed.op.name} of {seed.ttype!r} and what is made of it: "
                f"{region.extent // length} parts of {length}" + (f" ({place})" if place else ""),
            )

    def _seed(self, graph: Graph, tried: set[Node]) -> Node | None:
        """The largest product that was not looked at."""
        results = set(graph.outputs)
        best, size = None, self.least - 1
        for n in graph.nodes():
            if n in tried or n in results or not isinstance(n.type, TensorType):
                continue
            found = bytes_of(n)
            if found > size and facts(n).kind == "contract" and self._lengthens(n):
                best, size = n, found
        return best

    def _lengthens(self, n: Node) -> bool:
        """Rows of one matrix with columns of another, of which there are many."""
        c, f = contraction(n), facts(n)
        if c is None or c.batch or not c.rows or any(a < UNIT for x in f.accesses for a in x.axes):
            return False
        columns = prod(d for k in c.columns if isinstance(d := n.shape[k], int))
        return columns >= self.longer * prod(d for d in f.inner if isinstance(d, int))

    def _best(self, graph: Graph, seed: Node) -> tuple[Graph, Region, int] | None:
        """The region along the axis that moves the fewest bytes, and positions of a part."""
        found: list[tuple[int, Graph, Region, int]] = []
        for axis in range(seed.rank):
            of = _without_gathers(graph, seed, axis)
            region = region_of(of, seed, axis)
            if region is None:
                continue
            wanted = min(-(-bytes_of(seed) // self.part), region.extent // self.positions)
            for rounds in _near(region.extent, wanted):
                moved = _moved(region, rounds, bytes_of(seed))
                if moved <= multiply_adds(seed) // _WORK:
                    found.append((moved, of, region, region.extent // rounds))
                    break
        return min(found, key=lambda x: x[0])[1:] if found else None


def _without_gathers(graph: Graph, seed: Node, axis: int) -> Graph:
    """One element of each row along the axis, gathered out of a map of the product, as a sum of it
    and of zeros."""
    maps = {seed}

    def change(n: Node) -> Node:
        if not isinstance(n.type, TensorType) or maps.isdisjoint(n.inputs):
            return n
        if n.ttype.size == seed.ttype.size and (n.op.elementwise or _is_reshape(n)):
            maps.add(n)
        x = n.inputs[0]
        if not isinstance(n.op, Gather) or x.shape != seed.shape or n.op.axis != axis:
            return n
        rows = tuple(1 if k == axis else d for k, d in enumerate(x.shape))
        if x not in maps or n.shape != rows or not x.dtype.is_float:
            return n
        marked = is_at(x, axis, n.inputs[1], n.op.known)
        return ops.sum(ops.where(marked, x, ops.full((), 0, x.dtype)), (axis,), True)

    return rebuild(graph, change)


# Multiply-adds of the product for each byte that the loop moves and whole operators would not: in
# the time of so many of them a byte comes from memory, several times.
_WORK = 32
_LARGE, _NEVER = 8, 1 << 60


def _is_reshape(n: Node) -> bool:
    return not is_composed(n.op) and facts(n).reshape


def _moved(region: Region, rounds: int, size: int) -> int:
    """Bytes that a loop moves more than operators on the whole axis."""
    same = sum(map(bytes_of, region.captured))
    moved = (same + 2 * sum(map(bytes_of, region.summed))) * (rounds - 1)
    ends = (*region.sliced, *region.stacked)
    turned = sum(2 * bytes_of(n) for n in ends if region.axis[n].first)
    left = 0 if region.extent % rounds == 0 else sum(map(bytes_of, region.stacked))
    # What is left over is put behind the rest, which takes as much memory again.
    return moved + turned + left * (2 if left * _LARGE < size else _NEVER)


def _near(extent: int, wanted: int) -> Iterator[int]:
    """Numbers of rounds, the best ones first: about as many as wanted, without a rest; then fewer,
    with less to move."""
    more = [k for k in range(wanted, 4 * wanted) if k > 1 and extent % k == 0]
    yield from more[:1]
    for k in range(wanted, 1, -1):
        if extent % k == 0:
            yield k
    yield from range(wanted, 1, -1)


# ---- the loop


def _looped(graph: Graph, region: Region, length: int) -> Graph | None:
    """The graph with the region as a loop over parts, and what is left over before it."""
    rounds, rest = divmod(region.extent, length)
    done = rounds * length
    operands = {x: _rows_first(region, x) for x in region.sliced}
    captured = list(region.captured)
    first = [ops.full(n.shape, 0, n.dtype) for n in region.summed]
    pairs = [at_first(pair) for pair in region.running]
    last: Sequence[Node] = ()
    try:
        if rest:
            given = {x: ops.slice(y, 0, done, region.extent) for x, y in operands.items()}
            values = _computed(region, rest, given, {x: x for x in captured})
            first = [values[n] for n in region.summed]
            both = zip(region.running, pairs, strict=True)
            pairs = [continued(pair, values, before) for pair, before in both]
            last = [_turned(region, n, values[n]) for n in region.stacked]
        loop = _loop(region, length, rounds, operands, [*first, *chain(*pairs)])
    except Invalid:
        return None  # an operator whose attributes have the number of positions in them
    ends = [*region.summed, *chain(*((r.most, r.total) for r in region.running))]
    new: dict[Node, Node] = {n: item(loop, k) for k, n in enumerate(ends)}
    for r in region.running:
        new[r.most], new[r.total] = at_last(r, new[r.most], new[r.total])
    for k, n in enumerate(region.stacked):
        rows = item(loop, len(ends) + k)
        rows = ops.reshape(rows, (done, *rows.shape[2:]))
        if rest:
            rows = ops.concat([rows, last[k]], 0)
        new[n] = whole(region, n, rows)
    moved: dict[Node, Node] = dict(new)
    for n in topological(graph.outputs, first=graph.inputs):
        if n not in moved:
            ins = tuple(moved.get(x, x) for x in n.inputs)
            moved[n] = n if ins == n.inputs else node(n.op, *ins)
    places = dict(graph.places)
    for n in region.members:
        places[loop] = places.get(loop, frozenset()) | places.get(n, frozenset())
    kept = Graph(graph.name, graph.inputs, graph.outputs, places)
    return kept.with_outputs((moved[o] for o in graph.outputs), moved)


def _loop(
    region: Region, length: int, rounds: int, operands: Mapping[Node, Node], first: Sequence[Node]
) -> Node:
    seen = [input(f"sum{k}", n.ttype) for k, n in enumerate(first)]
    sums = seen[: len(region.summed)]
    slices: dict[Node, Node] = {}
    sliced = []
    for k, (x, y) in enumerate(operands.items()):
        slices[x] = input(f"part{k}", TensorType(y.dtype, (length, *y.shape[1:])))
        done = ops.slice(y, 0, 0, rounds * length) if rounds * length != region.extent else y
        sliced.append(ops.reshape(done, (rounds, length, *y.shape[1:])))
    # In the body they are weights: passes then know that they are the same in all rounds.
    same = {x: input(f"same{k}", x.ttype, "weight") for k, x in enumerate(region.captured)}
    values = _computed(region, length, slices, same)
    made = [ops.add(s, values[n]) for s, n in zip(sums, region.summed, strict=True)]
    for k, pair in enumerate(region.running):
        made += continued(pair, values, seen[len(sums) + 2 * k :][:2])
    made += [_turned(region, n, values[n]) for n in region.stacked]
    places = {values[n]: region.places[n] for n in region.members if n in region.places}
    inputs = (*seen, *slices.values(), *same.values())
    body = Graph("part", inputs, tuple(made), places)
    return scan(body, first, sliced, region.captured, rounds)


def _computed(
    region: Region, length: int, slices: Mapping[Node, Node], same: Mapping[Node, Node]
) -> dict[Node, Node]:
    """The region's values of one part, by those of the whole axis."""
    values = dict(same)
    for x, y in slices.items():
        values[x] = ops.permute(y, _back(region.axis[x].first, y.rank))
    for n in region.members:
        if n in region.axis:
            values[n] = in_part(region, n, values, length)
        else:
            values[n] = summed_in_part(region, n, values)
    return values


def _rows_first(region: Region, x: Node) -> Node:
    """An operand with the axis in front."""
    at = region.axis[x]
    shape = (*x.shape[: at.first], region.extent, *x.shape[at.first + at.count :])
    x = ops.reshape(x, shape)
    return ops.permute(x, (at.first, *(k for k in range(len(shape)) if k != at.first)))


def _turned(region: Region, n: Node, value: Node) -> Node:
    """A part with the axis in front."""
    at = region.axis[n].first
    return ops.permute(value, (at, *(k for k in range(value.rank) if k != at)))


def _back(at: int, rank: int) -> tuple[int, ...]:
    """The permutation that moves the first axis to its place."""
    return (*range(1, at + 1), 0, *range(at + 1, rank))
