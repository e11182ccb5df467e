"""WideNumbers: arithmetic on single numbers that begins with a power is done in float64.

An optimizer corrects its averages by `1 - 0.999 ** step`. Torch computes it with numbers of Python,
in float64; captured, `step` is a tensor of float32, in which that difference has lost half of its
digits. One number costs nothing in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright import ops
from tilewright.base.events import Log
from tilewright.graph.classify import facts
from tilewright.ir.node import Graph, Node, node
from tilewright.ir.passes import Pass
from tilewright.ir.types import TensorType, f32, f64
from tilewright.ops.creation import Full


@dataclass(frozen=True)
class WideNumbers(Pass, needs=("Decompose",), rounds=True, regions=True):
    """Powers of single numbers, and single numbers that are computed from these, are computed in
    float64 and rounded where tensors or results are made of them. Not with strict precision."""

    def apply(self, program: Graph, log: Log) -> Graph:
        if not any(_is_power(n) for n in program.nodes()):
            return program
        new: dict[Node, Node] = {}
        wide: dict[Node, Node] = {}  # in float64
        for n in program.nodes():
            ins = tuple(new[x] for x in n.inputs)
            fresh = n if ins == n.inputs else node(n.op, *ins)
            if _is_number(n) and (_is_power(n) or any(x in wide for x in n.inputs)):
                made = node(n.op, *(wide.get(x) or _widened(new[x]) for x in n.inputs))
                if made.type == TensorType(f64, ()):
                    wide[n], fresh = made, ops.cast(made, f32)
            new[n] = fresh
        return program.with_outputs((new[o] for o in program.outputs), new)


def _is_power(n: Node) -> bool:
    return isinstance(n.op, type(_POWER.op)) and _is_number(n)


def _is_number(n: Node) -> bool:
    """Is it one float32 that is computed of others?"""
    number = TensorType(f32, ())
    if n.type != number or not n.inputs or any(x.type != number for x in n.inputs):
        return False
    return facts(n).kind == "map"


def _widened(x: Node) -> Node:
    """A number of the source is taken as it was written."""
    if isinstance(x.op, Full):
        return ops.full((), x.op.value, f64)
    return ops.cast(x, f64)


_POWER = ops.pow(ops.full((), 2.0, f32), ops.full((), 2.0, f32))
