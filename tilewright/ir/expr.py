"""The expression language: scalar values over index functions, and tensors defined by them.

A `Tensor` is a function of its index: `compute((m, n), lambda i, j: exp(x[i, j]))`. Operators are
defined in it, tensor expressions are written in it, and the kernel level schedules it.
"""

from __future__ import annotations

from tilewright.ir.parts import (
    all_of,
    item,
    loads,
    loads_among,
    reduce,
    replaced,
    select,
    tuple_of,
    walk,
)
from tilewright.ir.tensor import Tensor, compute, placeholder, revise, scan, update
from tilewright.ir.values import (
    Const,
    Fn,
    Index,
    Load,
    Reduce,
    Rewriter,
    Scalarish,
    Value,
    cast,
    const,
    extent,
    fn,
    index,
    load,
    make_reduce,
    rewrite,
    value,
    with_args,
)

__all__ = [
    "Const",
    "Fn",
    "Index",
    "Load",
    "Reduce",
    "Rewriter",
    "Scalarish",
    "Tensor",
    "Value",
    "all_of",
    "cast",
    "compute",
    "const",
    "extent",
    "fn",
    "index",
    "item",
    "load",
    "loads",
    "loads_among",
    "make_reduce",
    "placeholder",
    "reduce",
    "replaced",
    "revise",
    "rewrite",
    "scan",
    "select",
    "tuple_of",
    "update",
    "value",
    "walk",
    "with_args",
]
