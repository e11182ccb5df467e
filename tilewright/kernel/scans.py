"""Stores that carry something from element to element of a row, as running sums do."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Const, Fn, Index, Load, Value, const, loads, select
from tilewright.ir.scalar import neutral
from tilewright.ir.types import DType
from tilewright.kernel.nest import Loop, Store

# A loop whose iterations are computed together: each lane gets all that come before it.
SCAN = "scan"
# Functions of two values that may be taken in any grouping; those of floats change the order of
# sums and products, which is said where it matters.
GROUPED = ("add", "mul", "max", "min")
_ROUNDS = ("add", "mul")


@dataclass(frozen=True)
class Scan:
    """out[j] = function(before[j], value[j]), where before[j] is out[j-1] but for the first element
    of all, to which nothing comes, or a number."""

    function: str
    before: Value
    value: Value
    last: Store | None = None  # what takes each element so far, where a number of its own has it

    @property
    def rounds(self) -> bool:
        """Does it matter in which order numbers are combined?"""
        return self.value.dtype.is_float and self.function in _ROUNDS


def nothing(function: str, dtype: DType) -> float | int | bool:
    """What changes no number that it is combined with, of two zeros the one that does not."""
    return -0.0 if function == "add" and dtype.is_float else neutral(function, dtype)


def scan_of(s: Store, along: Sym) -> Scan | None:
    """What a store carries along a loop; None where that is nothing, or more than one element."""
    if s.combine is not None or s.atomic:
        return None
    v, condition, first, alone = s.value, None, None, None
    if isinstance(v, Fn) and v.name == "select":
        condition, *sides = v.args
        alone = _side_of_first(condition, s, along)
        first, v = sides if alone else sides[::-1]
    if not isinstance(v, Fn) or v.name not in GROUPED or v.dtype.is_bool:
        return None
    reads = [any(x.source == s.buffer for x in loads(a)) for a in v.args]
    if sum(reads) != 1:
        return None
    before, value = v.args if reads[0] else v.args[::-1]
    if value.dtype is not v.dtype or s.value.dtype is not v.dtype:
        return None
    if condition is None:
        return Scan(v.name, before, value) if _comes_before(s, before, along) else None
    if alone is None or first is not value or not _is_element_before(s, before, along):
        return None
    none = const(nothing(v.name, v.dtype), v.dtype)
    sides = (none, before) if alone else (before, none)
    return Scan(v.name, select(condition, *sides), value)


def scan_in(s: Loop) -> tuple[Store, Scan] | None:
    """What a loop carries from element to element, and the store of its elements: by itself, or
    after one to the number that has what is carried (`legal/carries.py`)."""
    *before, store = s.body
    if not isinstance(store, Store):
        return None
    if not before:
        found = scan_of(store, s.var)
        return None if found is None else (store, found)
    last = before[0]
    if len(before) > 1 or not isinstance(last, Store) or last.combine not in GROUPED:
        return None
    v = store.value
    kept = isinstance(v, Load) and v.source == last.buffer and v.index == last.index == (0,)
    if not kept or store.combine is not None or store.atomic or _axis(store, s.var) is None:
        return None
    return store, Scan(str(last.combine), v, last.value, last)


def _comes_before(s: Store, before: Value, along: Sym) -> bool:
    """Is it the element before, or a number where there is none?"""
    if not isinstance(before, Fn) or before.name != "select":
        return _is_element_before(s, before, along)
    condition, *sides = before.args
    first = _side_of_first(condition, s, along)
    if first is None:
        return False
    other, own = sides if first else sides[::-1]
    return isinstance(other, Const) and _is_element_before(s, own, along)


def _is_element_before(s: Store, x: Value, along: Sym) -> bool:
    if not isinstance(x, Load) or x.source != s.buffer:
        return False
    k = _axis(s, along)
    if k is None or any(i != j for i, j in zip(_but(s.index, k), _but(x.index, k), strict=True)):
        return False
    before = s.index[k] - 1
    return x.index[k] in (before, D.maximum(before, 0))


def _but(index: tuple[Dim, ...], axis: int) -> tuple[Dim, ...]:
    return index[:axis] + index[axis + 1 :]


def _axis(s: Store, along: Sym) -> int | None:
    """The one axis that the loop runs along, element by element."""
    steps = [D.coefficient(i, along) for i in s.index]
    moving = [k for k, c in enumerate(steps) if c != 0]
    return moving[0] if len(moving) == 1 and steps[moving[0]] == 1 else None


def _side_of_first(condition: Value, s: Store, along: Sym) -> bool | None:
    """What a condition is for the first element of the axis alone; None where it is another one."""
    if not isinstance(condition, Fn) or condition.name not in ("gt", "eq", "ne"):
        return None
    at, zero = condition.args
    axis = _axis(s, along)
    if not isinstance(zero, Const) or zero.value != 0 or axis is None:
        return None
    if not isinstance(at, Index) or not D.known_eq(at.dim, s.index[axis]):
        return None
    return condition.name == "eq"
