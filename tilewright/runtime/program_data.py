"""A compiled program as data: everything that running it needs, apart from memory and a process.

runtime/program.py loads and runs it, runtime/records.py writes it down and reads it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Graph, Input, Literal, Node, topological
from tilewright.ir.target import Target
from tilewright.ir.text import parse_graph, print_graph
from tilewright.ir.types import DType, TensorType, to_memory


@dataclass(frozen=True, eq=False)
class Stored:
    """An array of a dtype as it lies in memory, contiguous (`dtype.memory`: what numpy lacks are
    unsigned codes)."""

    dtype: DType
    array: np.ndarray

    @staticmethod
    def of(x: Literal) -> Stored:
        """A constant of a graph; no copy where numpy has the same form."""
        same = x.dtype.memory == x.dtype.numpy
        return Stored(x.dtype, x.array if same else to_memory(x.array, x.dtype))

    @property
    def size(self) -> int:
        """Bytes."""
        return self.array.nbytes


@dataclass(frozen=True)
class Recipe:
    """How a value is made of weights: the text of a graph over inputs w0, w1, … so that equal
    recipes are one text, and which inputs of the prologue these are (runtime/shared.py).
    """

    text: str
    weights: tuple[int, ...]

    @staticmethod
    def of(value: Node, weights: tuple[int, ...]) -> Recipe:
        inputs = [n for n in topological((value,)) if isinstance(n.op, Input)]
        return Recipe(print_graph(Graph("recipe", tuple(inputs), (value,)), places=False), weights)

    @cached_property
    def value(self) -> Node:
        return parse_graph(self.text).outputs[0]


@dataclass(frozen=True)
class KernelInfo:
    """The kernel made of a cluster, for explanations."""

    name: str
    symbol: str
    group: str
    trace: str
    calls: int
    cached: bool = False
    seconds: float = 0.0
    places: tuple[str, ...] = ()
    considered: str = ""  # how its schedule was chosen, and from which candidates


@dataclass(frozen=True, eq=False)
class ProgramData:
    """One native entry function, `void entry(ptr in, ptr out, ptr dims, ptr arena)`: its code, what
    it takes, and the memory that a call of it needs.

    `in` has the addresses of the inputs, then of the constants, then of what the prologue makes
    of weights.
    """

    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    dims: tuple[str, ...]  # symbols, in the order in which the entry takes their values
    entry: str
    arena: Dim  # bytes
    target: Target  # the machine that the code is for
    images: tuple[bytes, ...]  # objects of the kernels, then that of the entry
    constants: tuple[Stored, ...] = ()
    kernels: tuple[KernelInfo, ...] = ()
    weights: tuple[int, ...] = ()  # inputs that the prologue reads
    kept: tuple[int, ...] = ()  # weights that calls read themselves
    recipes: tuple[Recipe, ...] = ()  # of the prologue's results
    prologue: ProgramData | None = None
    # Results, and inputs whose new values they are: a caller may have them at the same address.
    updated: tuple[tuple[int, int], ...] = ()
    spent: tuple[int, ...] = ()  # inputs that a call writes over, or gives back

    def arena_size(self, dims: Mapping[str, int]) -> int:
        """The bytes of a call's arena."""
        return int(D.evaluate(self.arena, dims))
