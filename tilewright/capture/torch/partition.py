"""What a forward graph keeps for its gradient: no constants, and no views of what it keeps anyway.

The gradient's graph makes both again, where they cost nothing: they become part of the kernels that
read them. Each tensor that is kept costs the host's time in every step, and a mask that is known to
be constant need not be read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.fx
from torch._functorch.partitioners import default_partition
from torch._ops import OpOverload

Node = torch.fx.Node
# Views with all elements of their operand, some of them several times.
VIEWS = "alias detach expand permute squeeze t transpose unsqueeze view _unsafe_view".split()
_VIEWS = {packet for name in VIEWS if (packet := getattr(torch.ops.aten, name, None)) is not None}

_TAG = "partitioner_tag"  # torch's: where a node was made


def partition(
    joint: torch.fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **rest: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """As AOTAutograd asks for it: the graphs of a function and of its gradient."""
    make_again(joint.graph, num_fwd_outputs)
    return default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **rest)


def make_again(graph: torch.fx.Graph, results: int) -> None:
    """Copies of constants and views for what does not belong to the first `results` results."""
    (outputs,) = graph.output_node().args
    assert isinstance(outputs, (tuple, list))
    forward = _ancestors(x for x in outputs[:results] if isinstance(x, Node))
    forward.update(n for n in graph.nodes if n.meta.get(_TAG) == "is_forward")
    constants: set[Node] = set()
    for n in graph.nodes:
        if _is_pure(n) and constants.issuperset(n.all_input_nodes):
            constants.add(n)
    copies: dict[Node, Node] = {}

    def again(n: Node) -> Node:
        if n not in forward or not (n in constants or _is_view(n)):
            return n
        if n not in copies:
            copies[n] = graph.node_copy(n, again)
            copies[n].meta.pop(_TAG, None)  # it does not belong to the forward graph
        return copies[n]

    for n in list(graph.nodes):
        if n in forward or n.op in ("placeholder", "output"):
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


def _is_pure(n: Node) -> bool:
    """A tensor by an operator that always gives the same and changes nothing."""
    return (
        isinstance(n.target, OpOverload)
        and isinstance(n.meta.get("val"), torch.Tensor)
        and not n.target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in n.target.tags
    )


def _is_view(n: Node) -> bool:
    if not _is_pure(n) or getattr(n.target, "overloadpacket", None) not in _VIEWS:
        return False
    return len(n.all_input_nodes) == 1  # sizes that are computed would have to be kept, too
