"""The table of translations, and what each is given beside its operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import numpy as np

from tilewright import ops
from tilewright.base.discover import import_all
from tilewright.base.errors import Unsupported
from tilewright.capture.onnx.elements import ELEMENT_OF, Narrow
from tilewright.capture.onnx.known import Known, NeedsSizes
from tilewright.graph.ranges import Ranges
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Int
from tilewright.ir.node import Node

# What a name of a model stands for: a tensor, a sequence whose length is known, or an optional
# without an element (also an operand that is left out).
Value = Node | Narrow | list["Value"] | None
Translation = Callable[..., Any]
F = TypeVar("F", bound=Translation)
T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    translate: Translation
    since: int  # the first opset whose meaning this is
    narrow: bool  # takes and gives tensors of types without a dtype (`Narrow`) as they are


_TABLE: dict[tuple[str, str], list[Entry]] = {}
_REFUSED: dict[tuple[str, str], str] = {}


def translation(
    *names: str, since: int = 1, domain: str = "", narrow: bool = False
) -> Callable[[F], F]:
    """Register a translation. Where the meaning of an operator changed, each has its `since`."""

    def register(f: F) -> F:
        for name in names:
            entries = _TABLE.setdefault((domain, name), [])
            if any(e.since == since for e in entries):
                raise TypeError(f"{name} of opset {since} is translated twice")
            entries.append(Entry(f, since, narrow))
            entries.sort(key=lambda e: e.since)
        return f

    return register


def refuse_operators(why: str, *names: str, domain: str = "") -> None:
    """Operators that have no native form, with the reason."""
    for name in names:
        _REFUSED[domain, name] = why


def entry_for(domain: str, name: str, opset: int) -> Entry | None:
    """The translation of an operator in an opset."""
    _fill()
    fitting = [e for e in _TABLE.get((domain, name), ()) if e.since <= opset]
    return fitting[-1] if fitting else None


def is_newer(domain: str, name: str, opset: int) -> bool:
    """Is the operator translated in later opsets only?"""
    _fill()
    return (domain, name) in _TABLE and entry_for(domain, name, opset) is None


def refusal_of(domain: str, name: str) -> str | None:
    _fill()
    return _REFUSED.get((domain, name))


def translated() -> tuple[str, ...]:
    """Names of all operators with a translation, for documentation and tests."""
    _fill()
    return tuple(sorted(f"{d}.{n}" if d else n for d, n in _TABLE))


def _fill() -> None:
    import_all("tilewright.capture.onnx")


class Checks:
    """What a call checks in its data: integers that are 0 where all is well, with what is told of
    the others."""

    def __init__(self) -> None:
        self.found: dict[Node, Check] = {}
        self._ranges = Ranges()

    def within(self, index: Node, size: Dim, where: str) -> str:
        """Every index is in [-size, size). Returns what operators may then assume of them."""
        if not D.known_eq(index.ttype.size, 0) and not self._ranges.of(index).within(
            -1 * size, size
        ):
            value = ops.index_check(index, size, True)
            self.found.setdefault(value, Check(where, size))
        return "wrapped"


@dataclass(frozen=True)
class Check:
    where: str  # the node of the model
    size: Dim  # of the axis that is indexed

    @property
    def template(self) -> str:
        """What is told, for an {index} and a {size}."""
        return f"{self.where}: index {{index}} is outside of an axis of {{size}} elements"

    def words(self, found: int, size: int) -> str:
        index = found - 1 if found > 0 else found
        return self.template.replace("{index}", str(index)).replace("{size}", str(size))


@dataclass(frozen=True)
class Context:
    """A node of the model, for its translation."""

    op_type: str
    where: str  # the node, for messages
    opset: int
    attributes: Mapping[str, Any]
    operands: Sequence[Value]
    outputs: int  # how many it has
    facts: Known
    weight: Callable[[np.ndarray, int], Node]  # a constant array, small or large
    checks: Checks

    def get(self, name: str, default: T) -> T:
        """An attribute, or its default."""
        return self.attributes.get(name, default)

    def element(self, k: int) -> int:
        """ONNX's element type of an operand that is a tensor."""
        x = self.operands[k]
        assert isinstance(x, Node | Narrow)
        return x.element if isinstance(x, Narrow) else ELEMENT_OF[x.dtype]

    # ---- values that have to be known

    def numbers(self, x: Node) -> np.ndarray:
        return self.facts.numbers(x)

    def dims(self, x: Node) -> list[Dim]:
        """A vector of sizes, or one size: numbers, or symbols."""
        found = self.facts.array(x).reshape(-1)
        return [d if isinstance(d, Int) else int(d) for d in found]

    def ints(self, x: Node) -> list[int]:
        return [int(v) for v in self.numbers(x).reshape(-1)]

    def one(self, x: Node) -> int:
        (only,) = self.ints(x)
        return only

    def is_constant(self, x: Node) -> bool:
        """Does it depend on no input whose value is open?"""
        return self.facts.constant(x)

    def within(self, index: Node, size: Dim) -> str:
        """States that indices are in range: calls check it."""
        return self.checks.within(index, size, self.where)

    def refuse(self, why: str) -> NoReturn:
        raise Unsupported(f"{self.op_type}: {why}")

    def setting(self, name: str, operand: Node | None) -> list[int] | None:
        """Integers that are an attribute in some opsets and an operand in others."""
        if name in self.attributes:
            return list(self.attributes[name])
        return None if operand is None else self.ints(operand)


def static(shape: Sequence[Dim], what: str = "this operator") -> tuple[int, ...]:
    """Sizes that have to be numbers."""
    if any(isinstance(d, Int) for d in shape):
        raise NeedsSizes(f"{what} is not translated for symbolic sizes {list(shape)}")
    return tuple(int(d) for d in shape if not isinstance(d, Int))


def axis_in(c: Context, axis: int, rank: int) -> int:
    """An axis, counted from the end where negative."""
    if not -max(rank, 1) <= axis < max(rank, 1):
        c.refuse(f"axis {axis} is not one of a tensor of {rank} dims")
    return axis % max(rank, 1)
