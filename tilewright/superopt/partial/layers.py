"""A contraction of a graph apart from it, and the same on a part of what it computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tilewright.base.errors import Invalid
from tilewright.graph.classify import facts
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.expr import extent
from tilewright.ir.node import Graph, Node, input, node, topological
from tilewright.ir.positions import static
from tilewright.ir.types import TensorType
from tilewright.ops.views import Pad, pad, slice

Range = tuple[int, int]  # the first position and the one after the last
Box = tuple[Range, ...]  # one for each axis


@dataclass(frozen=True)
class Layer:
    """A contraction with the padding of its operands, over inputs in place of what they are."""

    root: Node
    inputs: tuple[Node, ...]

    @property
    def graph(self) -> Graph:
        return Graph("layer", self.inputs, (self.root,))

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return static(self.root.shape)

    @cached_property
    def windows(self) -> tuple[int, ...]:
        """The elements of each axis that is summed over."""
        return static(facts(self.root).inner)

    @property
    def whole(self) -> Box:
        return tuple((0, n) for n in self.shape)


def layer_of(n: Node, constant: set[Node]) -> tuple[Layer, tuple[Node, ...]] | None:
    """A contraction of known sizes as a layer, and what its inputs stand for."""
    if not n.inputs or not isinstance(n.type, TensorType) or not n.dtype.is_float:
        return None
    if facts(n).kind != "contract":
        return None
    if not all(isinstance(d, int) for x in (n, *n.inputs) for d in x.shape):
        return None
    inputs: list[Node] = []
    operands: list[Node] = []
    sources: list[Node] = []
    for k, x in enumerate(n.inputs):
        inner = x.inputs[0] if isinstance(x.op, Pad) and x not in constant else x
        sources.append(inner)
        role = "weight" if inner in constant else "arg"
        inputs.append(input(f"x{k}", inner.ttype, role))
        operands.append(inputs[-1] if inner is x else node(x.op, inputs[-1]))
    return Layer(node(n.op, *operands), tuple(inputs)), tuple(sources)


def on_nodes(program: Node, inputs: Sequence[Node], sources: Sequence[Node]) -> Node:
    """A program over other nodes in place of its inputs."""
    made: dict[Node, Node] = dict(zip(inputs, sources, strict=True))
    for n in topological((program,)):
        if n not in made:
            made[n] = node(n.op, *(made[x] for x in n.inputs))
    return made[program]


def part_of(n: Node, box: Box) -> Node:
    """The positions of a result that are in a box."""
    for k, (start, stop) in enumerate(box):
        n = slice(n, k, start, stop)
    return n


def narrowed(n: Node, box: Box, windows: Box) -> Node | None:
    """A contraction on parts of its operands: the results in a box, with sums over the elements in
    windows. Windows may go beyond the operands, which are 0 there. None where no parts of operands
    say this."""
    f = facts(n)
    assert f.reduce is not None
    axes = f.axes
    ranges = dict(zip(axes, (*box, *windows), strict=True))
    changed = {s for s, r in ranges.items() if r != (0, extent(s))}
    operands = list(n.inputs)
    seen: set[int] = set()
    for a in f.accesses:
        if a.operand in seen:
            return None  # it is read in two ways
        seen.add(a.operand)
        for k, i in enumerate(a.index):
            if changed.isdisjoint(D.symbols(i)):
                continue
            found = _range(i, ranges)
            if found is None:
                return None
            operands[a.operand] = fitted(operands[a.operand], k, *found)
    try:
        made = node(n.op, *operands)
    except Invalid:
        return None
    wanted = tuple(stop - start for start, stop in box)
    return made if made.shape == wanted else None


def _range(i: Dim, ranges: Mapping[D.Sym, Range]) -> Range | None:
    """The values of an index function that is 0 at the first position of all its axes."""
    low = high = 0
    rest = i
    for s in D.symbols(i):
        c = D.coefficient(i, s)
        if s not in ranges or not isinstance(c, int) or c < 0:
            return None
        start, stop = ranges[s]
        low, high = low + c * start, high + c * (stop - 1)
        rest = rest - c * D.as_int(s)
    return (low, high + 1) if D.known_eq(rest, 0) else None


def fitted(x: Node, axis: int, start: int, stop: int) -> Node:
    """Positions of an axis; those that it does not have are 0."""
    size = x.shape[axis]
    assert isinstance(size, int)
    inside = slice(x, axis, max(start, 0), min(stop, size))
    before, after = max(-start, 0), max(stop - size, 0)
    lo, hi = ([n if k == axis else 0 for k in range(x.rank)] for n in (before, after))
    return pad(inside, lo, hi)
