"""FlexAttention: attention whose scores and mask are functions of the user.

Torch's own definition of it, over all scores at once, is traced to plain operators. Those are what
kernels of attention are found in, so that both functions end up inside of one: positions are
indices there, and blocks of keys that a mask on positions hides are left out. Which blocks are
empty is not read from the block mask: the mask function says it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._higher_order_ops.flex_attention import math_attention, sdpa_dense_backward
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree

from tilewright.capture.torch.context import Context
from tilewright.capture.torch.decompositions import decompositions
from tilewright.capture.torch.registry import Untranslated, aten
from tilewright.ir.node import Graph, Node, node, topological


@aten("higher_order::flex_attention")
def flex_attention(c: Context, *args: Any) -> Any:
    return _traced(c, math_attention, args)


@aten("higher_order::flex_attention_backward")
def flex_attention_backward(c: Context, *args: Any) -> Any:
    return _traced(c, sdpa_dense_backward, args)


def _traced(c: Context, definition: Callable[..., Any], args: Sequence[Any]) -> Any:
    """The operator by torch's definition, in the operators that this is made of."""
    fakes = map_aggregate(
        tuple(c.fx.args), lambda x: x.meta.get("val") if isinstance(x, torch.fx.Node) else x
    )
    announced, values = pytree.tree_leaves(fakes), pytree.tree_leaves(list(args))
    leaves = [v if a is None else a for a, v in zip(announced, values, strict=True)]
    _, tree = pytree.tree_flatten(list(args))
    at = [k for k, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    if any(not isinstance(values[k], Node) for k in at):
        raise Untranslated("one of its tensors has no native form")
    shape: list[Any] = []

    def call(*tensors: torch.Tensor) -> list[torch.Tensor]:
        given = list(leaves)
        for k, x in zip(at, tensors, strict=True):
            given[k] = x
        out = definition(*pytree.tree_unflatten(given, tree))
        found, shape[:] = pytree.tree_flatten(out)[0], [pytree.tree_flatten(out)[1]]
        shape.append([x is None for x in found])
        return [x for x in found if x is not None]

    mode = detect_fake_mode([leaves[k] for k in at])
    if mode is None or not isinstance(leaves[at[0]], FakeTensor):
        raise Untranslated("torch announced no types of its operands")
    with mode, torch.no_grad():
        traced = make_fx(torch.func.functionalize(call), decomposition_table=decompositions())
        gm = traced(*(leaves[k] for k in at))
    graph, checks = c.subgraph(gm, [values[k] for k in at], "attention")
    table = _placed(graph, [values[k] for k in at], list(checks))
    for v, check in checks.items():
        c.checks.add(table[v], check)
    results = iter([table[o] for o in graph.outputs])
    spec, absent = shape
    return pytree.tree_unflatten([None if none else next(results) for none in absent], spec)


def _placed(graph: Graph, operands: Sequence[Node], more: Sequence[Node]) -> dict[Node, Node]:
    """The nodes of a graph over other operands in the place of its inputs."""
    table = dict(zip(graph.inputs, operands, strict=True))
    for n in topological((*graph.outputs, *more)):
        if n not in table:
            table[n] = node(n.op, *(table[x] for x in n.inputs)) if n.inputs else n
    return table
