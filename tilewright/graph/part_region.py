"""What can be computed in parts of an axis together with a product (`in_parts.py`).

An operator is inside where its definition reads one position of the axis for each of its own; sums
over the axis are added up outside. The product and large maps of it have to stay inside, so what
reads one is inside too, or such a sum. Other values may go in and out.

The maximum of the axis, and the sum of exponentials of differences to it, are two numbers that a
loop carries: a larger maximum scales the sum that there is.

An axis may be several axes of a shape that follow each other, such as batch and time of rows that
were flattened for a product. In a part they are one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from tilewright import ops
from tilewright.base.errors import Invalid
from tilewright.graph.classify import Facts, facts
from tilewright.ir import dim as D
from tilewright.ir import expr as E
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Index
from tilewright.ir.node import Constant, Graph, Input, Node, Place, node
from tilewright.ir.operator import is_composed
from tilewright.ir.pattern import Var, match, op
from tilewright.ir.types import TensorType
from tilewright.ops.reductions import Reduction

_x = Var("x")
_EXPONENTIALS = op.sum(op.exp(op.sub(_x, op.amax(_x))))
# Values along the axis of at least this part of the product's bytes stay inside.
_LARGE = 8


@dataclass(frozen=True)
class Axis:
    first: int
    count: int = 1

    def axes(self) -> range:
        return range(self.first, self.first + self.count)


@dataclass(frozen=True)
class Running:
    """`total` is the sum of exp(of - most) over the axis, and `most` the maximum."""

    of: Node
    most: Node
    total: Node


@dataclass(frozen=True)
class Region:
    """Values that are computed part by part, operands before users."""

    extent: int
    axis: Mapping[Node, Axis]  # of values that have it: those inside, and sliced operands
    members: tuple[Node, ...]
    sliced: tuple[Node, ...]  # operands of which a round sees a part
    captured: tuple[Node, ...]  # operands that are the same in all rounds
    stacked: tuple[Node, ...]  # results along the axis
    summed: tuple[Node, ...]  # results that are sums over it
    running: tuple[Running, ...]  # pairs of results
    places: Mapping[Node, frozenset[Place]]


def region_of(graph: Graph, seed: Node, axis: int) -> Region | None:
    """What is computed in parts of an axis of a product; None where something does not allow it."""
    extent = seed.shape[axis]
    if not isinstance(extent, int):
        return None
    search = _Search(graph, seed, axis, extent)
    return search.region() if search.grow() else None


class _Search:
    def __init__(self, graph: Graph, seed: Node, axis: int, extent: int) -> None:
        self.graph, self.extent = graph, extent
        self.users = graph.users()
        self.order = graph.nodes()
        self.results = set(graph.outputs)
        self.large = bytes_of(seed) // _LARGE
        self.axis: dict[Node, Axis] = {seed: Axis(axis)}
        self.inside: dict[Node, None] = {seed: None}
        self.sums: dict[Node, None] = {}
        self.running: list[Running] = []
        self.hidden: set[Node] = set()  # between the two numbers of such a pair
        self.maps = {seed}  # the product and maps of it: what the loop is to make no memory for
        self.work = [seed]

    def grow(self) -> bool:
        while True:
            while self.work:
                n = self.work.pop()
                if not self._operands(n, _reads(n, self.axis[n], self.extent)):
                    return False
                if n in self.maps and bytes_of(n) >= self.large and not self._readers(n):
                    return False
            if not self._close():
                return False
            if not self.work:
                return True

    def _add(self, n: Node) -> None:
        self.inside[n] = None
        self.work.append(n)

    def _operands(self, n: Node, reads: Mapping[int, Axis] | None) -> bool:
        """Which operands have the axis, and which of these are inside."""
        if reads is None:
            return False
        for k, at in reads.items():
            x = n.inputs[k]
            if self.axis.setdefault(x, at) != at:
                return False
            if x not in self.inside and self._belongs(x):
                self._add(x)
        # One operand at two places has the axis at both.
        return all(n.inputs.index(x) in reads or x not in self.axis for x in n.inputs)

    def _belongs(self, x: Node) -> bool:
        """What would be stored for no reason, or is large."""
        if not _can_be_inside(x):
            return False
        cheap = not x.inputs or facts(x).kind == "view"
        if not cheap and bytes_of(x) < self.large:
            return False
        return _reads(x, self.axis[x], self.extent) is not None

    def _readers(self, n: Node) -> bool:
        """Those of a large map are inside, or sums."""
        if n in self.results:
            return False
        self._find_running(n)
        for u in self.users[n]:
            if u in self.inside or u in self.sums or u in self.hidden:
                continue
            if not _can_be_inside(u):
                return False
            found = _carried_on(u, n, self.axis[n], self.extent)
            if isinstance(found, Axis):
                if self.axis.setdefault(u, found) != found:
                    return False
                if facts(u).kind in ("map", "view"):
                    self.maps.add(u)
                self._add(u)
            elif found is not None and self._operands(u, found()):
                self.sums[u] = None
            else:
                return False
        return True

    def _find_running(self, n: Node) -> None:
        """Pairs of a maximum and a sum of exponentials that nothing else reads the terms of."""
        for less in self.users[n]:
            for terms in self.users[less]:
                for total in self.users[terms]:
                    found = next(match(_EXPONENTIALS, total), None)
                    if found is None or found.x is not n or total in self.sums:
                        continue
                    most = less.inputs[1]
                    alone = self.users[less] == [terms] and self.users[terms] == [total]
                    if (
                        alone
                        and {less, terms}.isdisjoint(self.results)
                        and self._over_axis(n, most, total)
                    ):
                        self.running.append(Running(n, most, total))
                        self.hidden |= {less, terms}
                        self.sums |= {most: None, total: None}

    def _over_axis(self, n: Node, most: Node, total: Node) -> bool:
        wanted = tuple(self.axis[n].axes())
        if n.dtype.bytes < 4 or not isinstance(most.op, Reduction):
            return False
        # Without its axis the maximum would stand beside another one, but for the first ones.
        there = most.op.keepdims or wanted == tuple(range(len(wanted)))
        both = (most.op, total.op)
        return there and all(isinstance(o, Reduction) and o.axes == wanted for o in both)

    def _close(self) -> bool:
        """What depends on something inside and is needed inside is computed inside."""
        pairs = {x for r in self.running for x in (r.most, r.total)}
        own = {*self.inside, *self.sums}
        below: set[Node] = set()
        for n in self.order:
            if any(x in own or x in below for x in n.inputs):
                below.add(n)
        for n in own - pairs:
            for x in n.inputs:
                if x in self.sums or (x in below and x not in self.axis):
                    return False
                if x in below and x not in self.inside:
                    if not _can_be_inside(x):
                        return False
                    self._add(x)
        return True

    def region(self) -> Region:
        pairs = {x for r in self.running for x in (r.most, r.total)}
        own = {*self.inside, *self.sums, *self.hidden}
        members = tuple(n for n in self.order if n in own - pairs - self.hidden)
        outside = dict.fromkeys(x for n in members for x in n.inputs if x not in own)
        return Region(
            self.extent,
            self.axis,
            members,
            tuple(x for x in outside if x in self.axis),
            tuple(x for x in outside if x not in self.axis),
            tuple(n for n in members if n in self.inside and self._leaves(n, own)),
            tuple(n for n in members if n in self.sums),
            tuple(self.running),
            self.graph.places,
        )

    def _leaves(self, n: Node, own: set[Node]) -> bool:
        return n in self.results or any(u not in own for u in self.users[n])


def bytes_of(n: Node) -> int:
    t = n.ttype
    sizes = [d for d in t.shape if isinstance(d, int)]
    return prod(sizes) * t.dtype.bytes if len(sizes) == len(t.shape) else 0


def _can_be_inside(n: Node) -> bool:
    if isinstance(n.op, (Input, Constant)) or not isinstance(n.type, TensorType):
        return False
    odd = n.op.random or n.op.told or n.op.barrier or is_composed(n.op)
    return not odd and facts(n).kind in ("map", "view", "reduce", "contract")


# ---- where the axis is


def _reads(n: Node, at: Axis, extent: int) -> dict[int, Axis] | None:
    """Operands that have the axis, by their numbers; None: not one position for one of its own."""
    if len(n.inputs) == 1 and facts(n).reshape:
        found = _reshaped(n.shape, at, n.inputs[0].shape)
        return None if found is None else {0: found}
    if at.count == 1:
        return _read_along(facts(n), at.first, extent)
    if n.op.elementwise:
        return _broadcast(n, at)
    if isinstance(n.op, Reduction):
        kept = range(n.inputs[0].rank)
        if not n.op.keepdims:
            kept = [k for k in kept if k not in n.op.axes]
        own = [kept[k] for k in at.axes()]
        if own == list(range(own[0], own[0] + at.count)) and not set(own) & set(n.op.axes):
            return {0: Axis(own[0], at.count)}
    return None


def _read_along(f: Facts, axis: int, extent: int) -> dict[int, Axis] | None:
    """Operands that are read at the position of an axis of the domain, and at no other one."""
    s, body = f.axes[axis], f.outputs[0].body
    assert body is not None
    if E.extent(s) != extent or any(s in D.symbols(E.extent(a)) for a in f.axes if a is not s):
        return None
    if any(isinstance(v, Index) and s in _direct(v.dim) for v in E.walk(body)):
        return None
    found: dict[int, Axis | None] = {}
    for a in f.accesses:
        places = [k for k, i in enumerate(a.index) if s in _direct(i)]
        at = None
        if places:
            k = places[0]
            if len(places) > 1 or a.axes[k] != axis or f.inputs[a.operand].shape[k] != extent:
                return None
            at = Axis(k)
        if found.setdefault(a.operand, at) != at:
            return None
    return {k: at for k, at in found.items() if at is not None}


def _direct(x: Dim) -> set[Sym]:
    """Symbols of an index function, but for those that only choose what is read from memory."""
    return {a for a in D.atoms(x) if isinstance(a, Sym)}


def _broadcast(n: Node, at: Axis) -> dict[int, Axis] | None:
    found: dict[int, Axis] = {}
    for k, x in enumerate(n.inputs):
        skip = n.rank - x.rank
        own = [x.shape[a - skip] for a in at.axes() if a >= skip]
        if all(D.known_eq(d, 1) for d in own):
            continue
        if own != [n.shape[a] for a in at.axes()]:
            return None
        found[k] = Axis(at.first - skip, at.count)
    return found


def _reshaped(old: Sequence[Dim], at: Axis, new: Sequence[Dim]) -> Axis | None:
    """Where the axis is under another shape of the same elements."""
    if not all(isinstance(d, int) and d > 0 for d in (*old, *new)):
        return None
    before, size = _product(old[: at.first]), _product([old[k] for k in at.axes()])
    first = 0
    while first < len(new) and (_product(new[:first]) < before or new[first] == 1):
        first += 1
    last = first
    while last < len(new) and _product(new[first:last]) < size:
        last += 1
    same = _product(new[:first]) == before and _product(new[first:last]) == size
    return Axis(first, last - first) if same and last > first else None


def _product(shape: Sequence[Dim]) -> int:
    return prod(d for d in shape if isinstance(d, int))


_Sum = Callable[[], "dict[int, Axis] | None"]


def _carried_on(u: Node, x: Node, at: Axis, extent: int) -> Axis | _Sum | None:
    """Where the axis of an operand is in a result; for a sum over it, what that reads along it."""
    if len(u.inputs) == 1 and facts(u).reshape:
        return _reshaped(x.shape, at, u.shape)
    if at.count == 1:
        f = facts(u)
        reads = (a for a in f.accesses if u.inputs[a.operand] is x)
        places = {a.axes[at.first] for a in reads}
        if len(places) != 1:
            return None
        (k,) = places
        if 0 <= k < u.rank:
            return Axis(k)
        return partial(_read_along, f, k, extent) if k >= u.rank and _adds_up(u) else None
    if u.op.elementwise:
        return Axis(at.first + u.rank - x.rank, at.count)
    if not isinstance(u.op, Reduction):
        return None
    over = set(u.op.axes)
    if over.issuperset(at.axes()):
        return (lambda: {0: at}) if _adds_up(u) else None
    if over.intersection(at.axes()):
        return None
    gone = 0 if u.op.keepdims else sum(k < at.first for k in over)
    return Axis(at.first - gone, at.count)


def _adds_up(n: Node) -> bool:
    """A sum whose parts may be added in its own dtype."""
    f = facts(n)
    plain = f.reduce is not None and f.reduce.combine == "add" and f.outputs[0].body is f.reduce
    return plain and not n.dtype.is_bool and n.dtype.bytes >= 4


# ---- values of a part


def part_shape(shape: Sequence[Dim], at: Axis, length: int) -> tuple[Dim, ...]:
    return (*shape[: at.first], length, *shape[at.first + at.count :])


def in_part(region: Region, n: Node, values: Mapping[Node, Node], length: int) -> Node:
    """A value inside, of so many positions of the axis."""
    at = region.axis[n]
    shape = part_shape(n.shape, at, length)
    args = [values[x] for x in n.inputs]
    if len(args) == 1 and facts(n).reshape:
        made = ops.reshape(args[0], shape)
    elif at.count > 1 and isinstance(n.op, Reduction):
        made = node(replace(n.op, axes=_axes_in_part(n.op.axes, region.axis[n.inputs[0]])), *args)
    elif at.count > 1:
        made = node(n.op, *(_without_units(x, v, n, at) for x, v in zip(n.inputs, args)))
    elif hasattr(n.op, "shape"):
        made = node(replace(n.op, shape=shape), *args)  # type: ignore[call-arg]
    else:
        made = node(n.op, *args)
    return _of_type(made, TensorType(n.dtype, shape))


def summed_in_part(region: Region, n: Node, values: Mapping[Node, Node]) -> Node:
    """A sum over the positions of a part."""
    args = [values[x] for x in n.inputs]
    if isinstance(n.op, Reduction):
        axes = _axes_in_part(n.op.axes, region.axis[n.inputs[0]])
        made = ops.reshape(node(replace(n.op, axes=axes, keepdims=False), *args), n.shape)
    else:
        made = node(n.op, *args)
    return _of_type(made, n.ttype)


def continued(pair: Running, values: Mapping[Node, Node], before: Sequence[Node]) -> list[Node]:
    """Maximum and sum after another part. Differences are to a finite number: those of infinite
    ones are none, and a part may have nothing else."""
    y, (most, total) = values[pair.of], before
    new = ops.maximum(most, node(pair.most.op, y))
    shift = ops.maximum(new, _least(pair))
    terms = ops.exp(ops.sub(y, _beside(shift, y, pair)))
    scale = ops.exp(ops.sub(ops.maximum(most, _least(pair)), shift))
    scaled = ops.mul(total, ops.reshape(scale, total.shape))
    return [new, _of_type(ops.add(scaled, node(pair.total.op, terms)), pair.total.ttype)]


def _least(pair: Running) -> Node:
    return ops.full((), float(np.finfo(pair.most.dtype.numpy).min), pair.most.dtype)


def _beside(most: Node, y: Node, pair: Running) -> Node:
    """The maximum with the axis that it is of."""
    assert isinstance(pair.most.op, Reduction)
    over = pair.most.op.axes
    return ops.reshape(most, [1 if k in over else d for k, d in enumerate(y.shape)])


def at_first(pair: Running) -> list[Node]:
    """Before any part."""
    most, total = pair.most, pair.total
    return [ops.full(n.shape, v, n.dtype) for n, v in ((most, -float("inf")), (total, 0))]


def at_last(pair: Running, most: Node, total: Node) -> list[Node]:
    """After all parts: where nothing is finite, the differences that the sum is of are no
    numbers."""
    nothing = ops.eq(ops.reshape(most, total.shape), ops.full((), -float("inf"), most.dtype))
    return [most, ops.where(nothing, ops.full((), float("nan"), total.dtype), total)]


def whole(region: Region, n: Node, rows: Node) -> Node:
    """A result of all parts, with its axis in front, as it was."""
    at = region.axis[n]
    back = (*range(1, at.first + 1), 0, *range(at.first + 1, rows.rank))
    return ops.reshape(ops.permute(rows, back), n.shape)


def _axes_in_part(axes: Sequence[int], at: Axis) -> tuple[int, ...]:
    """Axes of a reduction where those of the operand's axis are one."""
    own = set(at.axes())
    return tuple(
        dict.fromkeys(
            at.first if k in own else k - (at.count - 1 if k > at.first else 0) for k in axes
        )
    )


def _without_units(x: Node, value: Node, n: Node, at: Axis) -> Node:
    """An operand that has axes of one element where the result has several for the axis."""
    skip = n.rank - x.rank
    if value is None or skip > at.first or value.rank != x.rank:
        return value
    return ops.reshape(value, part_shape(x.shape, Axis(at.first - skip, at.count), 1))


def _of_type(n: Node, wanted: TensorType) -> Node:
    if n.type != wanted:
        raise Invalid(f"{n.op.name} of a part is {n.type!r}, not {wanted!r}")
    return n
