"""Growing a random graph node by node, with what is known of each node's values.

A bound on values is carried along, so that float16 does not overflow, and whether a node is free of
rounding: what jumps (floor, comparisons, argmax, sort, casts to whole numbers) is applied to exact
values only, so that a float64 evaluation is a fair judge.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tests.ir.judge import Args, Call
from tilewright import ops as _ops
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node, input
from tilewright.ir.types import DTYPES, DType, TensorType, as_dtype, b1

ops: Any = _ops  # builders are found at import, which a type checker cannot follow

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 33)
LIMIT = 3000  # elements of a tensor
LARGEST = 200.0  # bound on values, far from float16's end even after a reduction
FLOATS = ("f32", "f32", "f32", "f64", "f16", "bf16")
NARROW = ("f16", "bf16")
WHOLE = ("i64", "i32", "i16", "i8", "u8")


@dataclasses.dataclass(frozen=True)
class Style:
    """What a graph is like besides its operators."""

    floats: tuple[str, ...] = FLOATS
    # Values of the symbolic sizes in each call; none for graphs of fixed sizes. What is called
    # "k…" is a number that no shape has.
    dims: tuple[Mapping[str, int], ...] = ({},)
    hostile: float = 0.0  # how often indices are out of range


@dataclasses.dataclass(frozen=True)
class Known:
    """What the generator knows of a node: a bound on its values, and is it free of rounding?"""

    bound: float
    exact: bool


class Generator:
    def __init__(self, seed: int, style: Style | None = None) -> None:
        self.style = style or Style()
        self.rng = random.Random(seed)
        self.data = np.random.default_rng(seed)
        self.known: dict[Node, Known] = {}
        self.pool: list[Node] = []
        self.inputs: list[Node] = []
        self.fill: dict[Node, Callable[[tuple[int, ...]], np.ndarray]] = {}
        self.float = DTYPES[self.rng.choice(self.style.floats)]
        self.whole = DTYPES[self.rng.choice(WHOLE)]
        names = self.style.dims[0]
        self.symbols = [D.sym(n, 0, 64) for n in names if not n.startswith("k")]
        self.numbers = [D.sym(n, 0, 64) for n in names if n.startswith("k")]
        # Set by what is not defined on no elements at all.
        self.some_elements = False

    # ---- sizes

    def sizes(self, d: Dim) -> list[int]:
        """The values of a size, call by call."""
        return [int(D.evaluate(d, dims)) for dims in self.style.dims]

    def size(self, d: Dim) -> int:
        """The largest value of a size."""
        return max(self.sizes(d))

    def elements(self, shape: Sequence[Dim]) -> int:
        return int(np.prod([self.size(d) for d in shape], dtype=np.int64))

    def small(self, n: Node) -> bool:
        return self.elements(n.shape) <= LIMIT

    def empty(self, n: Node) -> bool:
        """Is it empty in every call?"""
        return any(d == 0 for d in n.shape)

    def not_empty(self, *dims: Dim) -> None:
        """Something is done that wants one element at least along these sizes."""
        self.some_elements |= any(not isinstance(d, int) for d in dims)

    def shape(self, rank: int | None = None) -> tuple[Dim, ...]:
        rank = self.rng.choice((0, 1, 2, 2, 3, 3, 4)) if rank is None else rank
        while True:
            dims: list[Dim] = [self.rng.choice(SIZES) for _ in range(rank)]
            if self.rng.random() < 0.02 and rank:
                dims[0] = 0
            for k in range(rank):
                if self.symbols and self.rng.random() < 0.45:
                    dims[k] = self.rng.choice(self.symbols)
            if self.elements(dims) <= LIMIT:
                return tuple(dims)

    # ---- what there is

    def add_input(
        self,
        shape: Sequence[Dim],
        dtype: DType | None = None,
        fill: Callable[[tuple[int, ...]], np.ndarray] | None = None,
    ) -> Node:
        dtype = dtype or self.rng.choice((self.float, self.float, self.float, self.whole, b1))
        role = "weight" if self.rng.random() < 0.2 else "arg"
        n = input(f"x{len(self.inputs)}", TensorType(dtype, tuple(shape)), role)
        self.inputs.append(n)
        self.fill[n] = fill or (lambda sizes: self.numbers_of(dtype, sizes))
        return self.add(n, 4.0 if dtype.is_float else 9.0, True)

    def numbers_of(self, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
        if dtype.is_float:
            # Multiples of 1/16: exact in every dtype, with ties to break.
            return np.round(self.data.uniform(-4, 4, shape) * 16) / 16
        if dtype.is_bool:
            return self.data.integers(0, 2, shape)
        return self.data.integers(0 if dtype.kind == "u" else -9, 10, shape)

    def calls(self, inputs: Sequence[Node]) -> list[Call]:
        """Arguments for every call. What is stored once, as weights are, is the same in all."""
        made: list[Call] = []
        weights: dict[Node, np.ndarray] = {}
        for dims in self.style.dims:
            sizes = {n: max(1, d) if self.some_elements else d for n, d in dims.items()}
            args: Args = []
            for n in inputs:
                shape = tuple(int(D.evaluate(d, sizes)) for d in n.shape)
                a = as_dtype(np.asarray(self.fill[n](shape)), n.dtype)
                if (
                    getattr(n.op, "role", "arg") == "weight"
                    and weights.setdefault(n, a).shape == shape
                ):
                    a = weights[n]
                args.append(a)
            made.append(Call(tuple(args), sizes))
        return made

    def add(self, n: Node, bound: float, exact: bool) -> Node:
        if not n.dtype.is_float:
            exact = True
        self.known[n] = Known(bound, exact)
        self.pool.append(n)
        return n

    def pick(self, want: Callable[[Node], bool] = lambda n: True) -> Node | None:
        """A node of the pool, rather a recent one."""
        found = [n for n in self.pool if want(n)]
        if not found:
            return None
        return found[max(self.rng.randrange(len(found)), self.rng.randrange(len(found)))]

    def floating(self, rank: int = 0, exact: bool = False, bound: float = LARGEST) -> Node | None:
        return self.pick(
            lambda n: (
                n.dtype is self.float
                and n.rank >= rank
                and self.known[n].bound <= bound
                and (not exact or self.known[n].exact)
            )
        )

    def ranked(self) -> Node | None:
        """Exact numbers that can be put in order along an axis."""
        return self.pick(
            lambda n: (
                n.rank >= 1 and n.dtype.kind in "fi" and self.known[n].exact and not self.empty(n)
            )
        )

    def broadcast(self, a: Sequence[Dim], b: Sequence[Dim]) -> tuple[Dim, ...] | None:
        """The common shape, or None."""
        if len(a) < len(b):
            a, b = b, a
        out = list(a)
        for k, d in enumerate(b, len(a) - len(b)):
            if out[k] != d and 1 not in (out[k], d):
                return None
            out[k] = d if out[k] == 1 else out[k]
        return tuple(out)

    def alike(self, n: Node) -> Node | None:
        """A node of n's dtype that broadcasts with it without growing the result too much."""

        def fits(o: Node) -> bool:
            if o.dtype is not n.dtype:
                return False
            both = self.broadcast(n.shape, o.shape)
            return both is not None and self.elements(both) <= LIMIT

        found = self.pick(lambda o: o is not n and fits(o))
        if found is not None and self.rng.random() < 0.7:
            return found
        if self.rng.random() < 0.1:
            return n
        shape = tuple(1 if self.rng.random() < 0.25 else d for d in n.shape)
        if self.rng.random() < 0.2:
            shape = shape[self.rng.randint(0, len(shape)) :]
        return self.add_input(shape, n.dtype)

    def bound(self, *ns: Node) -> float:
        return max(self.known[n].bound for n in ns)

    def exact(self, *ns: Node) -> bool:
        return all(self.known[n].exact for n in ns)

    def axis(self, n: Node) -> int:
        return self.rng.randrange(n.rank)
