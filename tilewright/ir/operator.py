"""What an operator says of itself, and the registry that refuses one that says too little.

    @operator
    class Softmax(Op):
        axis: int
        def infer(self, x): return x
        def compose(self, x): e = exp(x - amax(x, self.axis)); return e / sum(e, self.axis)
        def reference(self, x): ...                      # numpy
        @classmethod
        def samples(cls): yield Sample(cls(axis=1), (normal(4, 7),))

Exactly one definition: `compose` (in other operators), `compute` (index functions and reductions)
or `program` (scans and ordered updates too). The interpreter, the fuser and the code generator read
the definition only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar, dataclass_transform

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.ir.expr import Tensor, placeholder
from tilewright.ir.node import Item, Node, Op, input, item, node
from tilewright.ir.types import DType, TensorType, TupleType, dtype_of_numpy

OPERATORS: dict[str, type[Op]] = {}
# Control flow has no index functions: it says how to run its subgraphs (`interpret`).
DEFINITIONS = ("compose", "compute", "program", "interpret")
FACETS = ("infer", "reference", "samples")
# What passes read off an operator's class. Subclasses may give other values of the same type.
PROPERTIES = ("elementwise", "commutative", "linear", "view", "ordered", "random", "positions")
PROPERTIES += ("barrier", "inline")

T = TypeVar("T", bound=type[Any])


@dataclass(frozen=True)
class Sample:
    """An operator instance with arguments to try it on. bfloat16 is stored as rounded float32."""

    op: Op
    args: tuple[np.ndarray, ...]
    dtypes: tuple[DType, ...] | None = None  # where numpy's dtype does not say it (bfloat16)


@dataclass_transform(frozen_default=True)
def operator(given: T) -> T:
    """Make a frozen dataclass of the class, check its facets, register it under its name."""
    cls: Any = dataclass(frozen=True)(given)
    if not cls.__dict__.get("name"):
        cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
    missing = [f for f in FACETS if getattr(cls, f, None) is getattr(Op, f, None)]
    definitions = [d for d in DEFINITIONS if hasattr(cls, d)]
    if missing:
        raise TypeError(f"operator {cls.name} lacks {', '.join(missing)}")
    if len(definitions) != 1:
        raise TypeError(
            f"operator {cls.name} needs exactly one of {DEFINITIONS}, has {definitions}"
        )
    for name in PROPERTIES:
        value, kind = getattr(cls, name), type(getattr(Op, name))
        if not isinstance(value, kind):
            raise TypeError(f"operator {cls.name}: {name} is {value!r}, not a {kind.__name__}")
    if cls.name in OPERATORS and OPERATORS[cls.name].__qualname__ != cls.__qualname__:
        raise TypeError(f"operator {cls.name} is registered twice")
    OPERATORS[cls.name] = cls
    return cls


def is_composed(op: Op) -> bool:
    return hasattr(op, "compose")


def expand(n: Node) -> Node:
    """The node (one output, or an item of several) in the operators its `compose` uses."""
    if isinstance(n.op, Item):
        src = n.inputs[0]
        if is_composed(src.op):
            return composition(src)[n.op.k]
        return n
    out = composition(n)
    if len(out) != 1:
        raise Invalid(f"{n.op.name} has {len(out)} outputs; expand its items")
    return out[0]


def composition(n: Node) -> tuple[Node, ...]:
    """The outputs of a composed node, written one level down."""
    out = n.op.compose(*n.inputs)  # type: ignore[attr-defined]
    out = out if isinstance(out, tuple) else (out,)
    want = n.type.items if isinstance(n.type, TupleType) else (n.type,)
    if tuple(o.type for o in out) != want:
        raise Invalid(
            f"{n.op}: the type rule says {want}, the composition gives {[o.type for o in out]}"
        )
    return out


def composed_alone(n: Node) -> tuple[dict[Node, Node], tuple[Node, ...]]:
    """The outputs of a composed node over inputs of which nothing is known, and these by operand:
    a composition may look at what its operands are made of, and leave them out."""
    table = {x: input(f"x{k}", x.ttype) for k, x in enumerate(dict.fromkeys(n.inputs))}
    return table, composition(node(n.op, *(table[x] for x in n.inputs)))


def definition(
    op: Op, types: tuple[TensorType, ...]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """(placeholders, outputs) of an operator defined by `compute` or `program`."""
    return _definition(type(op), op, types)


@lru_cache(maxsize=1024)
def _definition(
    _: type[Op], op: Op, types: tuple[TensorType, ...]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    ins = tuple(placeholder(t.shape, t.dtype, f"x{k}") for k, t in enumerate(types))
    build: Callable[..., Any] = getattr(op, "compute", None) or op.program  # type: ignore[attr-defined]
    out = build(*ins)
    out = out if isinstance(out, tuple) else (out,)
    want = op.infer(*types)
    expected = want.items if isinstance(want, TupleType) else (want,)
    got = tuple(TensorType(t.dtype, t.shape) for t in out)
    if got != expected:
        raise Invalid(f"{op}: the type rule says {expected}, the definition gives {got}")
    return ins, out


def stages(outputs: tuple[Tensor, ...]) -> Iterator[Tensor]:
    """Every computed tensor under the outputs, producers first."""
    seen: set[int] = set()

    def visit(t: Tensor) -> Iterator[Tensor]:
        if id(t) in seen or t.body is None:
            return
        seen.add(id(t))
        for x in t.inputs():
            yield from visit(x)
        yield t

    for o in outputs:
        yield from visit(o)


def sample_node(s: Sample) -> Node:
    """The sample as a graph node over fresh inputs x0, x1, …"""
    ins = []
    for k, a in enumerate(s.args):
        d = s.dtypes[k] if s.dtypes else dtype_of_numpy(np.asarray(a).dtype)
        ins.append(input(f"x{k}", TensorType(d, np.asarray(a).shape)))
    return node(s.op, *ins)


def outputs_of(n: Node) -> tuple[Node, ...]:
    """The tensor-typed nodes that together are n's value."""
    if isinstance(n.type, TupleType):
        return tuple(item(n, k) for k in range(len(n.type.items)))
    return (n,)
