"""The values of a joint graph, and what it costs to keep each for the gradient or to compute it
again. Costs are read off the definitions of what operators translate to."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from tilewright.capture.torch.shapes import hint
from tilewright.capture.torch.translate import Translation
from tilewright.capture.torch.values import Complex
from tilewright.graph.classify import facts, flops, guess, nbytes, written_as
from tilewright.graph.keeping import Value
from tilewright.ir.node import Input, Item, Node, topological
from tilewright.ir.target import Target
from tilewright.ir.types import TensorType

Fx = torch.fx.Node

_FUSES = {"map", "view", "source"}


@dataclass(frozen=True)
class Work:
    """What a node of torch's costs: `fuses` of what becomes part of the kernels around it."""

    seconds: float
    fuses: bool
    view: bool


class Costs:
    """Seconds of the operators of a graph on a target."""

    def __init__(self, gm: torch.fx.GraphModule, device: torch.device, target: Target) -> None:
        self.target = target
        self._translation = Translation(gm, (), "own", "joint", False, device)
        self._translation.walk()
        self._found: dict[Fx, Work | None] = {}

    def of(self, n: Fx) -> Work | None:
        """None of what has no native form."""
        if n not in self._found:
            self._found[n] = self._of(n)
        return self._found[n]

    def _of(self, n: Fx) -> Work | None:
        env = self._translation.env
        made = list(_nodes(env.get(n)))
        given = {x for i in n.all_input_nodes for x in _nodes(env.get(i))}
        if not made or any(isinstance(x.op, Input) and x not in given for x in made):
            return None  # a call of eager's
        whole = topological(made, stop=given)
        new = [y for x in whole if x not in given for y in written_as(x)]
        kinds = {facts(x).kind for x in new if not isinstance(x.op, Item)}
        seconds = sum(map(self._seconds, new))
        return Work(seconds, kinds <= _FUSES, kinds <= {"view", "source"})

    def _seconds(self, x: Node) -> float:
        """Of a map its arithmetic: its operands and its result may never be in memory."""
        kind = facts(x).kind
        if isinstance(x.op, Item) or kind in ("view", "source"):
            return 0.0
        t = self.target
        arithmetic = flops(x) / t.flops_per_cycle
        if kind == "map":
            return self._in_seconds(arithmetic)
        types = [y.type for y in (x, *x.inputs)]
        moved = sum(guess(nbytes(y)) for y in types if isinstance(y, TensorType))
        memory = moved / t.memory_bandwidth
        took = max(arithmetic, memory) if kind == "contract" else arithmetic + memory
        return self._in_seconds(t.region * t.cores + took)

    def moving(self, size: int) -> float:
        """Seconds to read or write so many bytes."""
        return self._in_seconds(size / self.target.memory_bandwidth)

    def _in_seconds(self, cycles: float) -> float:
        return cycles / self.target.cores / (self.target.mhz * 1e6)


def _nodes(value: Any) -> Iterable[Node]:
    for x in pytree.tree_leaves(value):
        if isinstance(x, Node):
            yield x
        elif isinstance(x, Complex):
            yield from (x.re, x.im)


def values_of(
    graph: torch.fx.Graph,
    forward: Sequence[Fx],
    results: Collection[Fx],
    changed: Collection[Fx],
    costs: Costs,
) -> list[Value]:
    """Of the nodes of a forward graph. `results` are the caller's, `changed` are inputs that do not
    stay as they are."""
    number = {n: k for k, n in enumerate(forward)}
    output = graph.output_node()
    (every,) = output.args
    gradients = {x for x in pytree.tree_leaves(every) if isinstance(x, Fx)} - set(results)
    found = []
    for n in forward:
        later = [u for u in n.users if u not in number and u is not output]
        size = bytes_of(n)
        # By the time of the gradient, inputs that were changed are not what they were.
        fixed = n in gradients or any(x in changed for x in n.all_input_nodes)
        again = None if fixed else _again(n, size, later, costs)
        operands = () if again is None else tuple(number[x] for x in n.all_input_nodes)
        there = n.op == "placeholder" or n in results
        needed = bool(later) or n in gradients
        keep = _keep(n, size, number, costs)
        found.append(Value(operands, 0 if there else size, keep, again, needed))
    return found


def bytes_of(n: Fx) -> int:
    v = n.meta.get("val")
    if not isinstance(v, torch.Tensor):
        return 0
    size = v.element_size()
    for d in v.shape:
        size *= d if isinstance(d, int) else hint(d)
    return size


def _keep(n: Fx, size: int, forward: Collection[Fx], costs: Costs) -> float | None:
    v = n.meta.get("val")
    if isinstance(v, (tuple, list)):
        return None  # its items are kept
    if not isinstance(v, torch.Tensor):
        return 0.0  # sizes are torch's to keep
    read = costs.moving(size)
    if n.op == "placeholder" or _is_stored(n, [u for u in n.users if u in forward], costs):
        return read
    return 2 * read


def _again(n: Fx, size: int, later: Sequence[Fx], costs: Costs) -> float | None:
    if not is_pure(n):
        return None
    work = costs.of(n)
    if work is None or (not isinstance(n.meta.get("val"), torch.Tensor) and work.fuses):
        return None if work is None else work.seconds
    if work.view or n.target is operator.getitem:
        return 0.0
    if not work.fuses:
        return work.seconds + costs.moving(size)
    # What a product reads has to be in memory: it is written and read, as it would be without.
    return work.seconds + (2 * costs.moving(size) if _is_stored(n, later, costs) else 0.0)


def _is_stored(n: Fx, users: Sequence[Fx], costs: Costs) -> bool:
    """Does any of these users, or of those of views among them, need it in memory?"""
    waiting, seen = list(users), set(users)
    while waiting:
        u = waiting.pop()
        work = costs.of(u) if u.op == "call_function" else None
        if work is None or not work.fuses:
            return u.op == "call_function"
        if work.view:
            waiting += [x for x in u.users if x not in seen]
            seen.update(u.users)
    return False


def is_pure(n: Fx) -> bool:
    """By an operator that always gives the same and changes nothing; or one of its results."""
    if n.target is operator.getitem:
        return True
    return (
        isinstance(n.target, OpOverload)
        and not n.target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in n.target.tags
    )
