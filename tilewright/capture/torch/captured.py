"""What a translation yields: native segments and host calls in order, over named slots.

A slot holds one tensor of a call in flight. Graph inputs, results of segments and of host calls all
live in slots, and the label of an input node of a segment's graph is the slot it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from tilewright.ir.dim import Dim
from tilewright.ir.node import Graph, Place
from tilewright.ir.slots import (
    Buffer,
    Check,
    Result,
    SymbolicInt,
    problem_of,
)
from tilewright.ir.types import DType


@dataclass(frozen=True)
class Segment:
    """One native graph. `graph.outputs[k]` fills `buffers[k]`; the outputs after those are integers
    that belong to `checks`: one that is not 0 where any of them fails, then one of each.
    """

    graph: Graph
    buffers: tuple[Buffer, ...]
    checks: tuple[Check, ...] = ()
    # By slot, strides of results of host calls whose memory has their axes in another order: the
    # graph's input is that memory. Others are contiguous.
    laid: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def watched(self) -> int:
        """The number of outputs that belong to checks."""
        return len(self.graph.outputs) - len(self.buffers)

    def problem(self, found: Sequence[int], dims: Mapping[str, int]) -> Exception:
        """What to raise for what a program found, of which the first is not 0."""
        return problem_of(self.checks, found, dims)


@dataclass(frozen=True)
class Slot:
    """In the arguments of a host call: the tensor in this slot."""

    label: str


@dataclass(frozen=True)
class Filled:
    """A result of a host call that goes to a slot. A tensor's `shape` may give values to
    symbols."""

    slot: str
    shape: tuple[Dim, ...] = ()


# What a host call returns: a value that is used or not, or a tuple of such.
Returned = Union[Filled, SymbolicInt, None, tuple["Returned", ...]]


@dataclass(frozen=True)
class SymbolicScalar:
    """A number computed from the call's dims by torch's own expression (a float, or an integer ours
    cannot say).
    """

    slot: str
    expression: Any  # sympy
    dims: Mapping[str, Dim] = field(default_factory=dict)  # what its symbols are, by their names


@dataclass(frozen=True)
class HostCall:
    """An operator that runs in eager: what it returns goes to slots, or is the value of a symbol
    where it is a symbolic integer.
    """

    function: Callable[..., Any]
    operator: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    returned: Returned
    place: Place | None
    why: str
    check: bool = False  # looks at a native result and raises; computes nothing
    trim: bool = False  # reads a number that native code computed; computes nothing either
    library: str = ""  # the library's routines that it calls, for what is theirs (`lapack.py`)


@dataclass(frozen=True)
class Argument:
    """One input of the fx graph. kind: "tensor", "int" (binds a dim), "float" (becomes a 0-d
    tensor) or "other".

    `symbol` is torch's name of a number in its expressions.
    """

    slot: str
    kind: str
    dtype: DType | None = None
    shape: tuple[Dim, ...] = ()
    stride: tuple[Dim, ...] = ()
    value: Dim | None = None
    weight: bool = False
    used: bool = True
    paired: bool = False  # complex: two of `dtype` per element
    native: bool = True  # read by a segment, so its memory must be as declared
    symbol: str | None = None
    moved: bool = False  # one number on the CPU: a call copies it to the GPU


@dataclass(frozen=True)
class Captured:
    """A translated fx graph."""

    name: str
    arguments: tuple[Argument, ...]
    steps: tuple[Segment | HostCall, ...]
    results: tuple[Result, ...]
    mutated: tuple[tuple[str, str], ...] = ()  # (slot of the input, slot of its new value)
    constants: dict[str, Any] = field(default_factory=dict)  # by slot: tensors of the graph itself
    scalars: tuple[SymbolicScalar, ...] = ()
    seed: str | None = None  # slot of the random seed, drawn once per call
    # Results by torch's names: sizes that they were checked against as indices (and whether they
    # may count from the end). The gradient's graph has inputs of these names, and runs later.
    checked_indices: Mapping[str, frozenset[tuple[str, bool]]] = field(default_factory=dict)

    @property
    def host_calls(self) -> tuple[HostCall, ...]:
        """What torch runs between segments, but for checks."""
        return tuple(s for s in self.steps if isinstance(s, HostCall) and not s.check)

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(s for s in self.steps if isinstance(s, Segment))
