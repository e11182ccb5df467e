"""Queries about nodes that guards of rules use."""

from __future__ import annotations

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.narrow import FORMATS
from tilewright.ir.node import Input, Node, topological
from tilewright.ir.pattern import Guard, Match, Number, filled_value
from tilewright.ir.types import DType


def kind_is(kinds: str, name: str = "x") -> Guard:
    """The dtype of a variable is of one of the kinds (letters of DType.kind)."""
    return Guard(f"{name} is of kind {kinds}", lambda m: m.bindings[name].dtype.kind in kinds)


# Weights of 16 bits that are scaled are rounded again, which is much.
not_narrow = Guard("its dtype has more than 16 bits", lambda m: m.root.dtype.format is None)


def is_weight(n: Node) -> bool:
    """Does n depend on weights and constants only, so that it is computed once and stored?"""
    for x in topological((n,)):
        if isinstance(x.op, Input) and x.op.role != "weight":
            return False
        if x.op.random:
            return False
    return True


def weights(*names: str) -> Guard:
    """Variables that depend on weights and constants only."""
    return Guard(
        f"{', '.join(names)} constant or weights",
        lambda m: all(is_weight(m.bindings[n]) for n in names),
    )


def holds_exactly(narrow: DType, wide: DType) -> bool:
    """Is every value of `narrow` one of `wide`?"""
    if narrow is wide:
        return True
    if narrow.is_bool:
        return True
    if wide.is_bool:
        return False
    if narrow.is_float:
        return (
            wide.is_float
            and wide.bits > 8  # no two of the floats of 8 bits contain one another
            and _FRACTION[narrow.name] <= _FRACTION[wide.name]
            and (_EXPONENT[narrow.name] <= _EXPONENT[wide.name])
        )
    bits = narrow.bits - (narrow.kind == "i")
    if wide.is_float:
        return bits <= _FRACTION[wide.name]
    if narrow.kind == "i" and wide.kind == "u":
        return False
    return bits <= wide.bits - (wide.kind == "i")


# Significant bits (with the implied one) and exponent bits.
_FRACTION = {"f64": 53, "f32": 24, **{k: f.fraction + 1 for k, f in FORMATS.items()}}
_EXPONENT = {"f64": 11, "f32": 8, **{k: f.exponent for k, f in FORMATS.items()}}


def along_axis(n: Node, axis: int, rank: int, size: Dim) -> bool:
    """Does n, broadcast to `rank` axes, vary along one axis only, and is it static there?"""
    if n.rank > rank:
        return False
    padded = (1,) * (rank - n.rank) + n.shape
    return all(
        D.known_eq(d, 1) or (k == axis and D.known_eq(d, size)) for k, d in enumerate(padded)
    )


def filled(m: Match, name: str) -> Number | None:
    return filled_value(m.bindings[name])
