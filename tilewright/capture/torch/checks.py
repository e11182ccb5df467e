"""Preconditions of operators on data, for which eager raises errors: indices within sizes, divisors
other than 0, probabilities.

A translation function states the precondition. Unless it is proved, a node that computes whether it
holds is added to the graph (ops/checks.py), together with the text of eager's error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.fx
import torch.nn.functional as F

from tilewright import ops
from tilewright.capture.torch.places import place_of
from tilewright.graph.ranges import Ranges
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Constant, Node, Place
from tilewright.ir.slots import Check
from tilewright.ir.types import i64
from tilewright.ops.views import Expand, Flip, Permute, Reshape, Roll


@dataclass(frozen=True)
class Demand:
    """What eager requires of indices, and what it raises: words with {index}, {size} and {axis}."""

    error: type[Exception]
    words: str
    wrap: bool = False  # those in [-size, 0) count from the end
    empty: tuple[type[Exception], str] | None = None  # instead, where the size is 0


_OUTSIDE = "index {index} is out of bounds for dimension {axis} with size {size}"
_FLAT = "out of range: tried to access index {index} on a tensor of {size} elements."
_NONE = IndexError, "index is out of bounds for dimension with size 0"
_NO_ROWS = RuntimeError, "index_select(): self indexing axis dim should be positive"
_NOTHING = IndexError, "take(): tried to take from an empty tensor"
ADVANCED = Demand(IndexError, _OUTSIDE, wrap=True, empty=_NONE)
ALONG = Demand(RuntimeError, _OUTSIDE)
OF_SELF = Demand(IndexError, "index out of range in self")
ROWS = Demand(IndexError, "index out of range in self", empty=_NO_ROWS)
FLAT = Demand(IndexError, _FLAT, wrap=True, empty=_NOTHING)
COPIED = Demand(IndexError, f"index_copy_(): {_OUTSIDE}")
SELECTED = Demand(RuntimeError, "INDICES element is out of DATA bounds, id={index} axis_dim={size}")
SORTER = Demand(RuntimeError, "torch.searchsorted(): sorter index out of range")
_TARGET = Demand(IndexError, "Target {index} is out of bounds.")
_UNPOOLED = Demand(RuntimeError, "Found an invalid max index: {index}")


def added(rank: int) -> Demand:
    """Of index_add, which takes another way where there is one axis."""
    return ALONG if rank > 1 else OF_SELF


# Operators that reach us in parts, by the name that torch remembers: they require more than
# their parts do, or have other messages.
_WHOLE: dict[str, Callable[[int], Demand]] = {
    "take": lambda _: FLAT,
    "put": lambda _: FLAT,
    "index_add": added,
    "index_copy": lambda _: COPIED,
    "nll_loss_forward": lambda _: _TARGET,
    "nll_loss2d_forward": lambda _: _TARGET,
    "max_unpool2d": lambda _: _UNPOOLED,
    "max_unpool3d": lambda _: _UNPOOLED,
}
# The same: eager numbers the tensor's axes, not those that are indexed.
_OWN_AXES = ("index_fill", "index_copy", "index_add")

_ONE_HOT = (F.one_hot, torch.ops.aten.one_hot, torch.ops.aten.one_hot.default)


class Checks:
    """The preconditions of one graph, in the order of its operators."""

    def __init__(self, wanted: bool = True) -> None:
        self.wanted = wanted
        self.found: dict[Node, Check] = {}
        self.ranges = Ranges()
        self.fx: torch.fx.Node | None = None  # the operator being translated
        # Indices, the sizes they were checked against, and whether they wrap: in order, as
        # a set.
        self._checked: dict[tuple[Node, str, bool], None] = {}

    @property
    def place(self) -> Place | None:
        return None if self.fx is None else place_of(self.fx)

    def add(self, value: Node, check: Check) -> None:
        """`value` is an integer, 0 where the check passes. Of equal values the first check is
        kept."""
        if self.wanted:
            self.found.setdefault(value, check)

    def indices(
        self,
        idx: Node,
        x: Node,
        axis: int,
        demand: Demand,
        position: int | None = None,
    ) -> str:
        """Every index is within an axis of x. `position`: the number eager has for the axis.

        Returns what operators may then assume about the indices: one of ops.indexing.KNOWN."""
        size = x.shape[axis] if x.rank else 1
        if not self.wanted or D.known_eq(idx.ttype.size, 0):
            return "any"
        whole = self._original()
        if whole in _WHOLE:
            demand = _WHOLE[whole](x.rank)
        known = "wrapped" if demand.wrap else "within"
        found = self.ranges.of(idx)
        if found.within(0, size):
            return "proved"
        base = _unrepeated(idx)
        fact = base, str(size), demand.wrap
        if fact in self._checked:
            return known
        self._checked[fact] = None
        if demand.wrap and found.within(-1 * size, size):
            return known
        number = axis if position is None or whole in _OWN_AXES else position
        words = demand.words.replace("{axis}", str(number))
        value = ops.index_check(base, size, demand.wrap)
        self.add(value, Check(demand.error, words, size, self.place, demand.empty))
        return known

    def mark(self) -> tuple[int, int]:
        """The current state, for `undo`."""
        return len(self.found), len(self._checked)

    def undo(self, mark: tuple[int, int]) -> None:
        """Forget what was stated since."""
        for table, count in zip((self.found, self._checked), mark, strict=True):
            for key in list(table)[count:]:
                del table[key]  # type: ignore[arg-type]

    def assume_checked(self, x: Node, facts: Iterable[tuple[str, bool]]) -> None:
        """Indices that another graph has checked: against which sizes, and whether they wrap."""
        self._checked |= {(_unrepeated(x), size, wrap): None for size, wrap in facts}

    def checked_indices(self, values: Mapping[str, Node]) -> dict[str, frozenset[tuple[str, bool]]]:
        """By name, what was checked about these values once this graph has run."""
        out: dict[str, frozenset[tuple[str, bool]]] = {}
        for name, x in values.items():
            base = _unrepeated(x)
            known = frozenset((size, wrap) for n, size, wrap in self._checked if n is base)
            if known:
                out[name] = known
        return out

    def _original(self) -> str:
        """The name of the operator that torch took apart, or of the one at hand."""
        found = self.fx.meta.get("original_aten") if self.fx is not None else None
        return str(found).split(".")[1] if str(found).startswith("aten.") else ""

    def never(self, bad: Node, words: str, error: type[Exception] = RuntimeError) -> None:
        """The condition holds for no element."""
        if self.wanted:
            any_bad = ops.any(bad, None, False) if bad.rank else bad
            self.add(ops.cast(any_bad, i64), Check(error, words, None, self.place))

    def classes(self, x: Node, count: Dim) -> None:
        """Of a comparison with the numbers of all classes: where one_hot is made of it, x are
        classes. Newer versions of torch add that check themselves."""
        if not self.wanted or not _of_one_hot(self.fx) or self.ranges.of(x).within(0, count):
            return
        assert self.fx is not None
        nodes = self.fx.graph.nodes
        if any("_assert_async" in str(n.target) and _of_one_hot(n) for n in nodes):
            return
        base = _unrepeated(x)
        negative = ops.lt(base, ops.full((), 0, base.dtype))
        self.never(negative, "Class values must be non-negative.")
        above = ops.ge(base, ops.number(count, base.dtype))
        self.never(above, "Class values must be smaller than num_classes.")

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
        check = Check(RuntimeError, "ZeroDivisionError", None, self.place)
        self.add(ops.any_zero(_unrepeated(d)), check)

    def nonempty(self, size: Dim, words: str, error: type[Exception] = RuntimeError) -> None:
        """There is an element."""
        if self.wanted and not D.known_lt(0, size):
            zero = ops.eq(ops.number(size, i64), ops.full((), 0, i64))
            self.never(zero, words, error)


def _of_one_hot(n: torch.fx.Node | None) -> bool:
    """Is it a part of the user's one_hot? Only the function that the user called shows it."""
    called = n.meta.get("source_fn_stack") if n is not None else None
    return bool(called) and any(called[-1][1] is f for f in _ONE_HOT)


def _unrepeated(x: Node) -> Node:
    """Without repeated elements, in whatever order: neither matters here."""
    while isinstance(x.op, (Reshape, Permute, Expand, Flip, Roll)):
        source = x.inputs[0]
        if not D.known_le(source.ttype.size, x.ttype.size):
            break  # perhaps nothing of it is left
        x = source
    return x
