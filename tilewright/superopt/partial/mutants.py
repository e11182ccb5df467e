"""Programs of the shape of a layer that may compute the same, at some positions or at all.

Nothing here is known to be right: `regions.py` says where a mutant agrees with the layer. There are
two families. In one, sums are over a part of each window, or over a larger window with zeros. In
the other, a part of one axis of the data becomes a part of another axis (rows of a dilated
convolution become images, images become one wide image), the operators follow with the same or
with smaller numbers in their attributes, and the result is taken apart again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import prod

from tilewright.base.errors import Invalid
from tilewright.ir.node import Node, Op, node
from tilewright.ir.positions import static
from tilewright.ir.text import attributes
from tilewright.ops.views import permute, reshape
from tilewright.superopt.partial.layers import Box, Layer, fitted, narrowed

WINDOW = 7  # elements of an axis that is summed over, of which parts are tried
WIDER = 3  # to which windows are enlarged: convolutions of this size have fast algorithms
WINDOWS = 256  # parts of windows that are tried
PARTS = 16  # into which an axis is taken apart, at most


@dataclass(frozen=True)
class Mutant:
    """A program, and how it was made. `windows`: the layer with sums over these only."""

    how: str
    program: Node
    windows: Box | None = None


def windowed(layer: Layer) -> Iterator[Mutant]:
    """Sums over parts of windows, or over larger ones, the smallest first."""
    choices = [list(_windows(n)) for n in layer.windows]
    if prod(map(len, choices)) > WINDOWS:
        return
    for windows in sorted(product(*choices), key=lambda b: prod(stop - start for start, stop in b)):
        made = narrowed(layer.root, layer.whole, windows)
        if made is not None and made is not layer.root:
            changed = (w for w, n in zip(windows, layer.windows, strict=True) if n <= WINDOW)
            spans = " by ".join(f"{a}..{b}" for a, b in changed)
            yield Mutant(f"windows {spans}", made, windows)


def _windows(size: int) -> Iterator[tuple[int, int]]:
    yield 0, size
    if size <= WINDOW:
        yield from ((a, b) for a in range(size) for b in range(a + 1, size + 1) if b - a < size)
    if size < WIDER and not (WIDER - size) % 2:
        around = (WIDER - size) // 2
        yield -around, size + around


# ---- axes taken apart and put together


@dataclass(frozen=True)
class Move:
    """A part of one axis of the data becomes the outer part of another."""

    source: int
    target: int
    parts: int
    inner: bool  # neighbours go to different parts; otherwise each part is a block
    up: bool  # what does not divide is filled with zeros; otherwise it is left out

    def there(self, x: Node) -> Node:
        size = static(x.shape)[self.source]
        each = -(-size // self.parts) if self.up else size // self.parts
        x = fitted(x, self.source, 0, each * self.parts)
        split = {self.source: each, MOVED: self.parts}
        order = (self.source, MOVED) if self.inner else (MOVED, self.source)
        return _regrouped(x, self.source, {k: split[k] for k in order}, self.target, True)

    def back(self, y: Node) -> Node:
        each = -(-static(y.shape)[self.target] // self.parts)
        y = fitted(y, self.target, 0, each * self.parts)
        split = {MOVED: self.parts, self.target: each}
        return _regrouped(y, self.target, split, self.source, not self.inner)

    def __str__(self) -> str:
        how = "neighbours" if self.inner else "blocks"
        fill = "" if self.up else ", the rest left out"
        return f"axis {self.source} by {self.parts} ({how}{fill}) to axis {self.target}"


MOVED = -1  # the part of an axis that becomes a part of another


def _regrouped(x: Node, axis: int, split: dict[int, int], to: int, outer: bool) -> Node:
    """An axis in two parts, of which one becomes the outer or the inner part of another axis."""
    whole = [{k: n} for k, n in enumerate(static(x.shape))]
    whole[axis] = split
    sizes = {k: n for part in whole for k, n in part.items()}
    groups = [[k] for k in range(x.rank)]
    groups[to] = [MOVED, to] if outer else [to, MOVED]
    before, after = list(sizes), [k for g in groups for k in g]
    x = permute(reshape(x, list(sizes.values())), [before.index(k) for k in after])
    return reshape(x, [prod(sizes[k] for k in g) for g in groups])


def rearranged(layer: Layer) -> Iterator[Mutant]:
    """The layer on data whose axes are taken apart and put together."""
    chain = [layer.root]  # what leads from the first input to the root, that first
    while chain[-1].inputs:
        chain.append(chain[-1].inputs[0])
    for at in range(1, len(chain)):
        rest = chain[:at][::-1]
        for moves in _moves(static(chain[at].shape), [n.op for n in rest]):
            yield from _made(layer, chain[at], rest, moves)


def _moves(shape: tuple[int, ...], ops: Sequence[Op]) -> Iterator[tuple[Move, ...]]:
    """One or two axes to the same other one, in parts by which an attribute can be divided, or as
    many as there are images."""
    numbers = {v for op in ops for _, vs in _tuples(op) for v in vs}
    for target, inner in product(range(len(shape)), (True, False)):
        for parts in sorted(n for n in {2, shape[0]} | numbers if 1 < n <= PARTS):
            one: dict[int, list[Move]] = {}
            for source, size in enumerate(shape):
                if source != target and size >= parts:
                    ways = (True, False) if size % parts else (True,)
                    one[source] = [Move(source, target, parts, inner, up) for up in ways]
            for count in (1, 2):
                for sources in combinations(one, count):
                    yield from product(*(one[s] for s in sources))


def _made(layer: Layer, x: Node, rest: list[Node], moves: tuple[Move, ...]) -> Iterator[Mutant]:
    for m in moves:
        x = m.there(x)
    choices = [[n.op] for n in rest]
    if moves[0].inner:
        # Windows find their neighbours in one part only by smaller numbers; padding may follow.
        choices = [list(dict.fromkeys((n.op, _smaller(n, moves)))) for n in rest]
        choices[-1] = [op for op in choices[-1] if op != rest[-1].op]
    for ops in product(*choices):
        y = x
        try:
            for op, n in zip(ops, rest, strict=True):
                y = node(op, y, *n.inputs[1:])
        except Invalid:
            continue  # what it is given does not fit it any more
        for m in reversed(moves):
            y = m.back(y)
        for k, size in enumerate(layer.shape):
            y = fitted(y, k, 0, size)
        if y.type == layer.root.type:
            new = [str(op) for op, n in zip(ops, rest, strict=True) if op != n.op]
            yield Mutant("; ".join([*map(str, moves), *new]), y)


def _tuples(op: Op) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Attributes that have a whole number for each of the last axes."""
    for name, v in attributes(op):
        if isinstance(v, tuple) and v and all(type(x) is int for x in v):
            yield name, v


def _smaller(n: Node, moves: tuple[Move, ...]) -> Op:
    """The operator with the numbers of axes that were taken apart divided by as many."""
    divided: dict[str, tuple[int, ...]] = {}
    for name, v in _tuples(n.op):
        of_axis = {m.source - (n.rank - len(v)): m.parts for m in moves}
        divided[name] = tuple(
            x // p if not x % (p := of_axis.get(k, 1)) else x for k, x in enumerate(v)
        )
    return replace(n.op, **divided) if divided else n.op
