"""What operators ask of data, and eager raises where it is not so: indices within sizes, divisors
other than 0, probabilities.

A translation function states the precondition; a node that tells whether it holds goes to the graph
(ops/checks.py), unless that is proved, and the words of eager's error beside it.
"""

from __future__ import annotations

import torch.fx

from tilewright import ops
from tilewright.capture.torch.captured import Check
from tilewright.capture.torch.places import place_of
from tilewright.graph.ranges import Ranges
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Constant, Node, Place
from tilewright.ir.types import i64
from tilewright.ops.views import Expand, Flip, Permute, Reshape, Roll

OUTSIDE = "index {index} is out of bounds for dimension {axis} with size {size}"
OUTSIDE_SELF = "index out of range in self"
FLAT = "out of range: tried to access index {index} on a tensor of {size} elements."


class Checks:
    """The preconditions of one graph, in the order of its operators."""

    def __init__(self, wanted: bool = True) -> None:
        self.wanted = wanted
        self.found: dict[Node, Check] = {}
        self.ranges = Ranges()
        self.fx: torch.fx.Node | None = None  # the operator being translated

    @property
    def place(self) -> Place | None:
        return None if self.fx is None else place_of(self.fx)

    def add(self, value: Node, check: Check) -> None:
        """`value` is an integer, 0 where all is well. Of equal ones the first speaks."""
        if self.wanted:
            self.found.setdefault(value, check)

    def indices(
        self,
        idx: Node,
        size: Dim,
        words: str,
        error: type[Exception] = IndexError,
        *,
        wrap: bool = False,
    ) -> None:
        """Every index is in [0, size); where they `wrap`, in [-size, size)."""
        if not self.wanted or D.known_eq(idx.ttype.size, 0):
            return
        if self.ranges.of(idx).within(-1 * size if wrap else 0, size):
            return
        idx = _unrepeated(idx)
        self.add(ops.index_check(idx, size, wrap), Check(error, words, size, self.place))

    def never(self, bad: Node, words: str, error: type[Exception] = RuntimeError) -> None:
        """The condition holds for no element."""
        if self.wanted:
            any_bad = ops.any(bad, None, False) if bad.rank else bad
            self.add(ops.cast(any_bad, i64), Check(error, words, None, self.place))

    def divisor(self, d: Node) -> None:
        """No integer is divided by 0."""
        if not self.wanted or d.dtype.is_float:
            return
        known = self.ranges.of(d)
        if known.low is not None and D.known_lt(0, known.low):
            return
        if known.high is not None and D.known_lt(known.high, 0):
            return
        if isinstance(d.op, Constant) and d.op.literal.array.all():
            return
        self.never(ops.eq(_unrepeated(d), ops.full((), 0, d.dtype)), "ZeroDivisionError")

    def nonempty(self, size: Dim, words: str, error: type[Exception] = RuntimeError) -> None:
        """There is an element."""
        if self.wanted and not D.known_lt(0, size):
            zero = ops.eq(ops.number(size, i64), ops.full((), 0, i64))
            self.never(zero, words, error)


def _unrepeated(x: Node) -> Node:
    """Without repeated elements, in whatever order: neither matters here."""
    while isinstance(x.op, (Reshape, Permute, Expand, Flip, Roll)):
        source = x.inputs[0]
        if not D.known_le(source.ttype.size, x.ttype.size):
            break  # perhaps nothing of it is left
        x = source
    return x
