"""What steps of a loop take of one tensor: slices that move along an axis by the same number."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from torch.fx import Node


@dataclass(frozen=True)
class Slice:
    """What a call takes of one tensor, or of one tuple: an entry of its index moves by steps."""

    source: Node
    index: tuple[Any, ...] = field(compare=False)  # in the first step
    text: str  # of the index
    at: int  # which entry moves, …
    axis: int  # … along which axis of the tensor
    step: int

    @property
    def width(self) -> int | None:
        """Of slices; None: the entry is a number."""
        moves = self.index[self.at]
        return moves.stop - moves.start if isinstance(moves, slice) else None

    @property
    def first(self) -> int:
        """Where the first one begins."""
        moves = self.index[self.at]
        return moves.start if isinstance(moves, slice) else moves

    def places(self, steps: int, size: int) -> tuple[int, int]:
        """(lowest position, the first one behind the highest)"""
        first = self.first + size if self.first < 0 else self.first
        last = first + self.step * (steps - 1)
        return min(first, last), max(first, last) + (self.width or 1)

    @property
    def rest(self) -> tuple[Any, ...]:
        """The index without the entry that moves: of a slice."""
        own = () if self.width is None else (slice(None),)
        return *self.index[: self.at], *own, *self.index[self.at + 1 :]


def value_of(n: Node) -> Any:
    return n.meta.get("example_value")


def size_of(x: torch.Tensor, axis: int) -> int | None:
    """A size, if it is known: also one that Dynamo made a symbol and knows by now."""
    size = x.shape[axis]
    if isinstance(size, torch.SymInt) and size.node.expr.is_number:
        return int(size)
    return size if type(size) is int else None


def slice_of(source: Any, index: Any, moves: dict[int, int]) -> Slice | None:
    """The slice that an index takes of a value, of which numbers move: by their place among the
    operands, the value's being 0. None where it takes none, or of another kind."""
    if not isinstance(source, Node):
        return None
    entries = index if isinstance(index, tuple) else (index,)
    steps = set(moves.values())
    value, slots, found = value_of(source), 1, []
    for k, x in enumerate(entries):
        width = 3 if isinstance(x, slice) else 1
        own = [s - slots for s in moves if slots <= s < slots + width]
        if own and isinstance(x, slice) and (own != [0, 1] or x.step not in (None, 1)):
            return None
        found += [k] if own else []
        slots += width
        if not (x is None or x is Ellipsis or type(x) is int or isinstance(x, slice)):
            return None  # an index of tensors, or of several numbers
    if len(found) != 1 or len(steps) != 1:
        return None
    (at,), (step,) = found, steps
    if isinstance(entries[at], slice) and entries[at].stop - entries[at].start != abs(step):
        return None
    if isinstance(value, torch.Tensor):
        used = sum(x is not None and x is not Ellipsis for x in entries)
        axis = sum(x is not None and x is not Ellipsis for x in entries[:at])
        axis += value.dim() - used if Ellipsis in entries[:at] else 0
        return Slice(source, entries, repr(entries), at, axis, step)
    if len(entries) > 1 or isinstance(entries[0], slice):
        return None
    return Slice(source, entries, repr(entries), at, 0, step)


def viewed(call: Callable[..., Node], x: Node, s: Slice, axis: int, steps: int, size: int) -> Node:
    """All slices along axis 0, in the order of memory."""
    low, high = s.places(steps, size)
    if s.width is not None:
        x = call("narrow", x, axis, low, high - low)
        x = call("unflatten", x, axis, (steps, s.width))
    x = call("movedim", x, axis, 0) if axis else x
    if s.width is None:
        x = call(operator.getitem, x, slice(low, high, abs(s.step)))
    return x


def taken(body: torch.fx.Graph, s: Slice, seen: Node) -> Node:
    """What a step takes of its slice."""
    if all(x is Ellipsis or x == slice(None) for x in s.rest):
        return seen
    return body.call_function(operator.getitem, (seen, s.rest))
