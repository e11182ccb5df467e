"""How a call's values become tensors again: the buffers that a program fills, the results made of
them, and the errors that its checks stand for.

All of it is plain data over named slots, each of which holds one tensor of a call in flight. The
call path of torch and programs out of files (runtime/loaded.py) read the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Place
from tilewright.ir.types import DType


@dataclass(frozen=True)
class Buffer:
    """A tensor that a segment fills: native code writes it in the order of memory, torch sees
    `shape` and `stride`.
    """

    slot: str
    dtype: DType
    shape: tuple[Dim, ...]
    stride: tuple[Dim, ...]
    paired: bool = False  # complex: two of `dtype` per element


@dataclass(frozen=True)
class Check:
    """A precondition of an operator that depends on data: what eager raises where it fails.

    `words` may name the offending {index} and the {size} that it should be within.
    """

    error: type[Exception]
    words: str
    size: Dim | None = None
    place: Place | None = None
    empty: tuple[type[Exception], str] | None = None  # instead, where the size is 0

    def __str__(self) -> str:
        words = self.words.replace("{index}", "…").replace("{size}", str(self.size))
        return f"{self.error.__name__}: {words}"

    def problem(self, found: int, dims: Mapping[str, int]) -> Exception:
        """What to raise for the integer that a program found (see ops/checks.py)."""
        error, words = self.error, self.words
        if self.size is not None:
            size = int(D.evaluate(self.size, dims))
            if size == 0 and self.empty is not None:
                error, words = self.empty
            index = found - 1 if found > 0 else found
            words = words.replace("{index}", str(index)).replace("{size}", str(size))
        return error(words if self.place is None else f"{words}\n  at {self.place}")


def problem_of(checks: Sequence[Check], found: Sequence[int], dims: Mapping[str, int]) -> Exception:
    """What to raise for the watched outputs of a program, of which the first is not 0."""
    each = found[-len(checks) :]
    k = next(k for k, v in enumerate(each) if v != 0)
    return checks[k].problem(each[k], dims)


@dataclass(frozen=True)
class SymbolicInt:
    """In the arguments of a host call or in the results: an integer that depends on the call's
    dims.
    """

    value: Dim


@dataclass(frozen=True)
class Number:
    """In the arguments of a host call or in the results: the Python number of a type that the 0-d
    tensor in this slot holds.
    """

    slot: str
    type: type


@dataclass(frozen=True)
class View:
    """A result, or an operand of a host call, that is a view of another slot's tensor, by size,
    stride and offset in elements from its start.

    `base`: the strides that torch announced for that tensor, where a host call returns it: it may
    come with others.
    """

    slot: str
    shape: tuple[Dim, ...]
    stride: tuple[Dim, ...]
    offset: Dim
    base: tuple[Dim, ...] | None = None


@dataclass(frozen=True)
class Same:
    """A result that is the tensor of a slot itself."""

    slot: str


@dataclass(frozen=True)
class Restrided:
    """A result, or an operand of a host call, whose memory has gaps in eager, or begins inside its
    storage: the slot's values are copied to that layout."""

    slot: str
    shape: tuple[Dim, ...]
    stride: tuple[Dim, ...]
    offset: Dim = 0  # elements before the first


@dataclass(frozen=True)
class Value:
    """A result that is not a tensor."""

    value: Any


Result = View | Same | Restrided | Value | SymbolicInt | Number


def symbol_from(d: Dim | None) -> tuple[str, int, int] | None:
    """(name, factor, constant) where `d` is one symbol times a number plus a number, so that a
    value of `d` determines the symbol's; None for others.
    """
    if d is None or isinstance(d, int):
        return None
    moving = [(mono, c) for mono, c in d.terms if mono]
    constant = sum(c for mono, c in d.terms if not mono)
    if len(moving) != 1:
        return None
    ((mono, factor),) = moving
    if len(mono) != 1 or not isinstance(mono[0], D.Sym):
        return None
    return mono[0].name, factor, constant
