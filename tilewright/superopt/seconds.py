"""What an operator costs when a graph is chosen: seconds on a target, by a roofline.

Coarse on purpose: it orders graphs, and those that it prefers are compiled and measured. What is
written in other operators costs what those do. What depends on weights alone is computed once and
costs nothing. Views cost nothing; what is done element by element becomes part of another kernel:
its arithmetic counts, and a part of its bytes. An operator that begins a kernel costs what was
measured of it, where something was; estimates of others are scaled by what was found of those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from tilewright.graph.classify import facts, flops, guess, nbytes
from tilewright.graph.winograd import Winograd, sizes_before_layout
from tilewright.ir.node import Constant, Graph, Input, Item, Node, input, item, node, topological
from tilewright.ir.operator import composed_alone, is_composed
from tilewright.ir.target import Target
from tilewright.ir.types import TensorType, TupleType
from tilewright.superopt.classes import Classes

# Of two graphs that cost the same, the one with fewer operators.
EACH = 1e-9
# Of the bytes of an operator that is done element by element: the others stay in registers.
FUSED = 0.25
# Of the estimate: an operator that seems to take less was measured wrongly.
LEAST = 0.25


def constant_classes(classes: Classes) -> set[Node]:
    """Leaders of classes with a member that depends on weights and numbers alone."""
    found: set[Node] = set()
    waiting = [n for n in classes if any(map(is_known, classes.members(n)))]
    while waiting:
        n = waiting.pop()
        if n in found:
            continue
        found.add(n)
        for user in set(classes.users(n)) - found:
            if any(m.inputs and found.issuperset(m.inputs) for m in classes.members(user)):
                waiting.append(user)
    return found


def is_known(n: Node) -> bool:
    """Is it a weight, or made of nothing?"""
    return n.op.role == "weight" if isinstance(n.op, Input) else not n.inputs


Measured = Mapping[str, float]
"""Seconds of operators, by what `described` says of them."""


def described(n: Node, constant: set[Node]) -> str:
    """An operator by all that its seconds depend on."""
    operands = (f"{'weight ' if x in constant else ''}{x.type}" for x in n.inputs)
    return f"{n.op}({', '.join(operands)})"


def begins_kernel(n: Node) -> bool:
    """Is it computed by a kernel of its own, which others may join?"""
    if isinstance(n.op, (Input, Constant, Item)) or not n.inputs:
        return False
    return is_composed(n.op) or n.op.name == "concat" or facts(n).kind not in ("view", "map")


def operators(nodes: Iterable[Node], constant: set[Node]) -> dict[str, Graph]:
    """Those that can be measured, each as a graph of its own."""
    found: dict[str, Graph] = {}
    for n in nodes:
        if n in constant or not begins_kernel(n):
            continue
        table = {
            x: input(f"x{k}", x.ttype, "weight" if x in constant else "arg")
            for k, x in enumerate(dict.fromkeys(n.inputs))
        }
        made = node(n.op, *(table[x] for x in n.inputs))
        root = item(made, 0) if isinstance(made.type, TupleType) else made
        found[described(n, constant)] = Graph("operator", tuple(table.values()), (root,))
    return found


@dataclass
class Seconds:
    """The cost of members, whose operands are leaders of classes."""

    target: Target
    constant: set[Node] = field(default_factory=set)
    measured: Measured = field(default_factory=dict)
    scale: float = 1.0  # of estimates, so that they compare with what was measured

    def __call__(self, n: Node) -> float:
        estimate, found = self._of(n, set()), self._measured(n)
        return self.scale * estimate if found is None else max(EACH + found, LEAST * estimate)

    def _measured(self, n: Node) -> float | None:
        if not begins_kernel(n) or self.constant.issuperset(n.inputs):
            return None
        try:  # not `get`: a search counts what it asks for here
            return self.measured[described(n, self.constant)]
        except KeyError:
            return None

    def scaled(self, nodes: Iterable[Node]) -> Seconds:
        """With estimates as much larger or smaller as those of these nodes would have to be."""
        found = ((self._measured(n), self._of(n, set())) for n in nodes)
        ratios = [max(took / estimate, LEAST) for took, estimate in found if took is not None]
        return replace(self, scale=median(ratios)) if ratios else self

    def _of(self, n: Node, known: set[Node]) -> float:
        """Where more is known before the program runs than the constants."""
        if isinstance(n.op, (Input, Constant, Item)):
            return EACH
        if all(x in self.constant or x in known for x in n.inputs):
            known.add(n)
            return EACH
        if is_composed(n.op):
            inputs, outputs = composed_alone(n)
            inside = {i for x, i in inputs.items() if x in self.constant or x in known}
            return EACH + sum(self._of(x, inside) for x in topological(outputs))
        kind = facts(n).kind
        if kind == "view":
            return EACH
        t = self.target
        moved = sum(guess(nbytes(x.ttype)) for x in n.inputs) + self._written(n)
        memory = moved / t.memory_bandwidth
        arithmetic = flops(n) / t.flops_per_cycle
        if kind == "contract":
            arithmetic *= self._by_tiles(n, known)
            cycles = t.region + max(arithmetic, memory) / t.cores
        elif not begins_kernel(n):
            cycles = (arithmetic + FUSED * self._written(n) / t.memory_bandwidth) / t.cores
        else:
            cycles = t.region + (arithmetic + memory) / t.cores
        return EACH + cycles / (t.mhz * 1e6)

    def _by_tiles(self, n: Node, known: set[Node]) -> float:
        """What is left of the arithmetic of a convolution where a later pass computes it by
        tiles."""
        sizes = sizes_before_layout(n) if self.target.grid is None else None
        if sizes is None:
            return 1.0
        constant = n.inputs[1] in self.constant or n.inputs[1] in known
        cycles = Winograd.of(self.target).cycles(*sizes, constant=constant)
        return min(cycles.values()) / cycles[None]

    def _written(self, n: Node) -> int:
        return guess(nbytes(n.type)) if isinstance(n.type, TensorType) else 0
