"""The graph: interned immutable nodes, operators that carry every facet, graphs with named inputs
and outputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from operator import is_
from typing import Any, ClassVar

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.base.interned import Interned
from tilewright.ir.dim import Dim
from tilewright.ir.maps import Map
from tilewright.ir.types import DTYPES, DType, TensorType, TupleType, Type


@dataclass(frozen=True)
class Op:
    """Base of all operators. Fields of the subclass are its attributes (hashable)."""

    name: ClassVar[str] = ""
    elementwise: ClassVar[bool] = False  # out[i] depends on the inputs at (broadcast) i only
    commutative: ClassVar[bool] = False
    linear: ClassVar[tuple[int, ...]] = ()  # inputs in which the operator is linear, one at a time
    # Every output element is one input element: moves, computes nothing …
    view: ClassVar[bool] = False
    ordered: ClassVar[bool] = False  # … in the order of memory: reading through it costs nothing
    random: ClassVar[bool] = False
    # Outputs that hold positions along the operator's `axis` in its first operand.
    positions: ClassVar[tuple[int, ...]] = ()
    barrier: ClassVar[bool] = False  # its result is always stored: consumers never recompute it
    inline: ClassVar[bool] = False  # kernels read through it; it is never stored
    # Its kernel makes what it adds up, a part at a time: no operand is stored in another order.
    makes_operands: ClassVar[bool] = False
    told: ClassVar[bool] = False  # where its result is not 0, whoever waits for it is told

    @property
    def unpacks(self) -> Map | None:
        """How its operand lies, of an operator that reads a packed tensor as a plain one."""
        return None

    @property
    def chain(self) -> int:
        """The most terms of its sums that may be added one after the other, where digits depend on
        it; 0: as many as a schedule likes."""
        return 0

    @property
    def runs(self) -> bool:
        """Of an update whose places are data: do equal ones mostly follow each other?"""
        return False

    def infer(self, *types: Any) -> Type:
        raise Invalid(f"operator {self.name} has no type rule")

    def __str__(self) -> str:
        attrs = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self))
        return f"{self.name}{{{attrs}}}" if attrs else self.name


@dataclass(frozen=True)
class Input(Op):
    """A graph input. Its identity is its name and type.

    role: "arg", "weight" (may be folded) or "scalar".
    """

    name: ClassVar[str] = "input"
    label: str = ""
    type: TensorType = TensorType(DTYPES["f32"], ())
    role: str = "arg"

    def infer(self) -> Type:
        return self.type


class Literal:
    """A small constant array, hashable by content."""

    __slots__ = ("array", "dtype", "_key")

    def __init__(self, array: np.ndarray, dtype: DType) -> None:
        # Not ascontiguousarray, which would give a 0-d array an axis.
        self.array = np.array(array, dtype=dtype.numpy, order="C")
        self.array.setflags(write=False)
        self.dtype = dtype
        self._key = (dtype.name, self.array.shape, self.array.tobytes())

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self._key == other._key

    def __repr__(self) -> str:
        shape, content = list(self.array.shape), self.array.tobytes().hex()
        return f"Literal('{self.dtype.name}', {shape}, '{content}')"

    @staticmethod
    def from_hex(dtype: str, shape: Iterable[int], text: str) -> Literal:
        d = DTYPES[dtype]
        raw = np.frombuffer(bytes.fromhex(text), dtype=d.numpy).reshape(tuple(shape))
        return Literal(raw, d)


@dataclass(frozen=True)
class Constant(Op):
    """A literal array inside the graph."""

    name: ClassVar[str] = "constant"
    literal: Literal = field(default_factory=lambda: Literal(np.zeros(()), DTYPES["f32"]))
    # Kernels read it from memory, even where it is one number, and nothing is computed of it
    # beforehand: for numbers in which kernels differ that are otherwise the same.
    passed: bool = False

    def infer(self) -> Type:
        return TensorType(self.literal.dtype, self.literal.array.shape)


@dataclass(frozen=True)
class Item(Op):
    """Component k of a multi-output node."""

    name: ClassVar[str] = "item"
    k: int = 0

    def infer(self, t: TupleType) -> Type:
        if not isinstance(t, TupleType) or not 0 <= self.k < len(t.items):
            raise Invalid(f"item {self.k} of {t!r} does not exist")
        return t.items[self.k]


class Node:
    """An operator applied to nodes. Equality is identity: `node()` is the only constructor."""

    __slots__ = ("op", "inputs", "type", "facts", "__weakref__")

    def __init__(self, op: Op, inputs: tuple[Node, ...], type: Type) -> None:
        self.op, self.inputs, self.type = op, inputs, type
        self.facts: Any = None  # of its definition, cached by graph/classify.py

    @property
    def ttype(self) -> TensorType:
        if not isinstance(self.type, TensorType):
            raise Invalid(f"{self.op.name} has several outputs; take one with item(n, k)")
        return self.type

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.ttype.shape

    @property
    def dtype(self) -> DType:
        return self.ttype.dtype

    @property
    def rank(self) -> int:
        return len(self.ttype.shape)

    def __repr__(self) -> str:
        return f"{self.op}: {self.type!r}"


_interned: Interned[Node] = Interned()


def node(op: Op, *inputs: Node) -> Node:
    key = (type(op), op, inputs)
    found = _interned.get(key)
    if found is None:
        types = tuple([n.type for n in inputs])
        found = _interned.add(key, Node(op, inputs, _inferred(op, types)))
    return found


@lru_cache(4096)
def _inferred(op: Op, types: tuple[Type, ...]) -> Type:
    """The type of an operator's result: layers that are alike ask for the same ones."""
    return op.infer(*types)


def input(label: str, type: TensorType, role: str = "arg") -> Node:
    return node(Input(label, type, role))


def constant(array: Any, dtype: DType, passed: bool = False) -> Node:
    return node(Constant(Literal(np.asarray(array), dtype), passed))


def item(n: Node, k: int) -> Node:
    return node(Item(k), n)


@dataclass(frozen=True)
class Place:
    """Where in the user's program something came from."""

    file: str
    line: int
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Graph:
    """Inputs, outputs, and the user's lines for nodes.

    Lines are a side table, never part of equality. Equal graphs are equal attributes, so that equal
    branches of a `cond` are one node.
    """

    name: str
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    places: Mapping[Node, frozenset[Place]] = field(default_factory=dict, compare=False)

    def nodes(self) -> list[Node]:
        """Every node in topological order, inputs of the graph first."""
        return list(self._order)

    @cached_property
    def _order(self) -> tuple[Node, ...]:
        return tuple(topological(self.outputs, first=self.inputs))

    def users(self) -> dict[Node, list[Node]]:
        out: dict[Node, list[Node]] = {n: [] for n in self.nodes()}
        for n in out:
            for x in dict.fromkeys(n.inputs):
                out[x].append(n)
        return out

    def with_outputs(
        self, outputs: Iterable[Node], moved: Mapping[Node, Node] | None = None
    ) -> Graph:
        """The same graph with new outputs; the source lines of old nodes pass to the nodes that
        replaced them (`moved`)."""
        places = dict(self.places)
        for old, new in (moved or {}).items():
            if old is not new and old in self.places:
                places[new] = places.get(new, frozenset()) | self.places[old]
        return Graph(self.name, self.inputs, tuple(outputs), places)

    def place(self, n: Node) -> str | None:
        found = self.places.get(n)
        return str(min(found, key=str)) if found else None


def topological(
    outputs: Iterable[Node], first: Iterable[Node] = (), stop: Iterable[Node] = ()
) -> list[Node]:
    """Operands before users. `stop` nodes are known: neither they nor their operands are
    visited."""
    known = dict.fromkeys(stop)
    seen: dict[Node, None] = dict(known)
    for root in (*first, *outputs):
        if root in seen:
            continue
        stack: list[tuple[Node, Iterator[Node]]] = [(root, iter(root.inputs))]
        while stack:
            n, it = stack[-1]
            for x in it:
                if x not in seen:
                    stack.append((x, iter(x.inputs)))
                    break
            else:
                stack.pop()
                seen[n] = None
    return list(seen)[len(known) :]


def rebuild(graph: Graph, change: Any) -> Graph:
    """Apply `change(node with new inputs) -> Node` once to every node, operands first. The graph
    itself where nothing changes."""
    new: dict[Node, Node] = {}
    changed = False
    for n in graph.nodes():
        ins = tuple([new[x] for x in n.inputs])
        fresh = new[n] = change(n if all(map(is_, ins, n.inputs)) else node(n.op, *ins))
        changed = changed or fresh is not n
    if not changed:
        return graph
    return graph.with_outputs((new[o] for o in graph.outputs), new)
