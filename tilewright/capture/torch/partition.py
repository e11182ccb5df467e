"""What a forward graph keeps for its gradient, and what the gradient computes again.

Constants and views cost nothing again: they become part of the kernels that read them. So does what
is computed element by element; products, sums over axes and whatever else costs time are kept,
unless the user allows fewer bytes (`activation_memory`). `graph/keeping.py` decides, by the costs
that `kept_values.py` reads off definitions; here the joint graph gets copies of what is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch._functorch.partitioners import (
    _is_primal,
    _must_be_in_forward,
    default_partition,
    must_recompute,
)

from tilewright.capture.torch.apart import batch_norms_apart, log_softmax_apart, masks_apart
from tilewright.capture.torch.kept_values import Costs, is_pure, values_of
from tilewright.capture.torch.once_for_all import keep_once
from tilewright.capture.torch.places import place_of
from tilewright.capture.torch.registry import target_name
from tilewright.graph.keeping import Value, cheapest, within
from tilewright.ir.target import Target

Node = torch.fx.Node
# Views with all elements of their operand, some of them several times.
VIEWS = "alias detach expand permute squeeze t transpose unsqueeze view _unsafe_view".split()
_VIEWS = {packet for name in VIEWS if (packet := getattr(torch.ops.aten, name, None)) is not None}

_TAG = "partitioner_tag"  # torch's: where a node was made


@dataclass(frozen=True)
class Told:
    """What was decided about one graph."""

    bytes: int  # that are kept, besides inputs and results
    usual: int  # that would be kept without a limit
    limit: int | None
    kept: int  # how many values that is
    again: tuple[str, ...]  # operators whose results are computed again, with their lines
    seconds: float  # estimated: of computing again

    def said(self) -> str:
        said = f"{self.kept} values of {_in_bytes(self.bytes)} are kept for the gradient"
        if self.again:
            took = f"{self.seconds * 1e3:.2g} ms" if self.seconds >= 1e-5 else "no time"
            said += f", results of {len(self.again)} operators computed again (estimated: {took})"
        if self.limit is not None:
            said += f"; without a limit it would be {_in_bytes(self.usual)}"
            if self.bytes > self.limit:
                said += (
                    f". The limit was {_in_bytes(self.limit)}: the rest cannot be computed again"
                )
        return said


def _in_bytes(size: int) -> str:
    return f"{size / 1e6:.3g} MB" if size >= 10**5 else f"{size} bytes"


@dataclass(frozen=True)
class Partition:
    """As AOTAutograd asks for it: a function from a joint graph to the graphs of a function and of
    its gradient. At most `share` of the bytes that would be kept without it are kept."""

    target: Target
    device: torch.device = torch.device("cpu")
    share: float = 1.0
    tell: Callable[[Told], None] | None = None

    def __call__(
        self, joint: torch.fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **rest: Any
    ) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        graph = joint.graph
        masks_apart(graph)
        log_softmax_apart(graph)
        batch_norms_apart(graph)
        keep_once(joint)
        forward, results = _forward(graph, num_fwd_outputs)
        again = self._chosen(joint, forward, results)
        make_again(graph, forward, again)
        return default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **rest)

    def _chosen(
        self, joint: torch.fx.GraphModule, forward: Sequence[Node], results: Collection[Node]
    ) -> set[Node]:
        """The nodes that the gradient computes again."""
        free = _free(forward)
        if any(map(must_recompute, forward)) or not any(map(is_tangent, joint.graph.nodes)):
            return free  # the user said what is computed again; or there is no gradient
        costs = Costs(joint, self.device, self.target)
        values = values_of(joint.graph, forward, results, _changed(joint.graph), costs)
        usual = cheapest(values)
        limit = None if self.share == 1 else int(self.share * usual.bytes)
        chosen = usual if limit is None else within(values, limit)
        again = {forward[k] for k in chosen.again}
        if self.tell is not None:
            self.tell(_told(forward, values, chosen, usual.bytes, limit))
        return again


def _told(
    forward: Sequence[Node], values: Sequence[Value], chosen: Any, usual: int, limit: int | None
) -> Told:
    worth = sorted(k for k in chosen.again if values[k].again)
    names = tuple(_named(forward[k]) for k in worth)
    kept = sum(values[k].bytes > 0 for k in chosen.kept)
    seconds = sum(values[k].again or 0.0 for k in worth)
    return Told(chosen.bytes, usual, limit, kept, names, seconds)


def _named(n: Node) -> str:
    place = place_of(n)
    name = target_name(n.target)
    return name if place is None else f"{name} ({place})"


def is_tangent(n: Node) -> bool:
    return n.op == "placeholder" and "tangents" in str(n.target)


def _forward(graph: torch.fx.Graph, results: int) -> tuple[list[Node], set[Node]]:
    """Nodes of the forward graph in their order, and which of them are results of its."""
    (outputs,) = graph.output_node().args
    assert isinstance(outputs, (tuple, list))
    own = [x for x in outputs[:results] if isinstance(x, Node)]
    found = _ancestors(own)
    found.update(n for n in graph.nodes if n.meta.get(_TAG) == "is_forward")
    found.update(n for n in graph.nodes if _is_primal(n) or _must_be_in_forward(n))
    return [n for n in graph.nodes if n in found], set(own)


def _free(forward: Sequence[Node]) -> set[Node]:
    """Constants, and views of what has to be kept anyway."""
    constants: set[Node] = set()
    for n in forward:
        if _is_tensor(n) and is_pure(n) and constants.issuperset(n.all_input_nodes):
            constants.add(n)
    return constants | {n for n in forward if _is_view(n)}


def _changed(graph: torch.fx.Graph) -> set[Node]:
    """Inputs that a call changes, in the graph or after it."""
    found = set()
    for n in graph.nodes:
        if getattr(getattr(n.target, "_schema", None), "is_mutable", False):
            found.update(x for x in n.all_input_nodes[:1] if x.op == "placeholder")
    described = graph.output_node().meta.get("desc") or ()
    after = {getattr(d, "mutated_input", None) for d in described} - {None}
    found.update(n for n in filter(_is_primal, graph.nodes) if n.meta.get("desc") in after)
    return found


def make_again(graph: torch.fx.Graph, forward: Sequence[Node], chosen: Collection[Node]) -> None:
    """Copies of the chosen nodes of the forward graph, for what does not belong to it."""
    own = set(forward)
    copies: dict[Node, Node] = {}

    def again(n: Node) -> Node:
        if n not in chosen:
            return n
        stack = [n]  # a chain may be as long as the program
        while stack:
            x = stack[-1]
            missing = [y for y in x.all_input_nodes if y in chosen and y not in copies]
            if missing and x not in copies:
                stack += missing
                continue
            stack.pop()
            if x not in copies:
                copies[x] = graph.node_copy(x, lambda y: copies.get(y, y))
                copies[x].meta.pop(_TAG, None)  # it does not belong to the forward graph
        return copies[n]

    for n in list(graph.nodes):
        if n in own or n.op in ("placeholder", "output"):
            continue
        with graph.inserting_before(n):
            n.args, n.kwargs = torch.fx.map_arg((n.args, n.kwargs), again)


def _ancestors(nodes: Iterable[Node]) -> set[Node]:
    """These nodes, and all that they are computed from."""
    found: set[Node] = set()
    rest = list(nodes)
    while rest:
        n = rest.pop()
        if n not in found:
            found.add(n)
            rest += n.all_input_nodes
    return found


def _is_tensor(n: Node) -> bool:
    return isinstance(n.meta.get("val"), torch.Tensor)


def _is_view(n: Node) -> bool:
    if not is_pure(n) or getattr(n.target, "overloadpacket", None) not in _VIEWS:
        return False
    return len(n.all_input_nodes) == 1  # sizes that are computed would have to be kept, too
