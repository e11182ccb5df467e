"""Results of all steps of a loop that are joined: the tensor that has them all."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx
from torch.fx import Node

from tilewright.capture.torch.slices import value_of
from tilewright.capture.torch.step_scan import STACKED

JOINS = {torch.stack: True, torch.cat: False, torch.concat: False, torch.concatenate: False}
Place = tuple[Node, int]  # a tensor with the results of all steps; which step
Call = Callable[..., Node]


def join_steps(gm: torch.fx.GraphModule) -> None:
    """Stacks and concatenations of what scans stacked, in fewer operands; nobody reads the results
    of single steps then."""
    graph = gm.graph
    for n in list(graph.nodes):
        if n.op == "call_function" and n.target in JOINS:
            with graph.inserting_before(n):
                _join(graph, n)
    for n in reversed(graph.find_nodes(op="call_function", target=operator.getitem)):
        if _place(n) is not None and not n.users:
            graph.erase_node(n)
    gm.recompile()


def _join(graph: torch.fx.Graph, n: Node) -> None:
    def call(target: Any, *args: Any, **kwargs: Any) -> Node:
        if isinstance(target, str):
            return graph.call_method(target, args, kwargs)
        return graph.call_function(target, args, kwargs)

    def whole(run: Sequence[Node]) -> tuple[Node, int, int, int]:
        (source, first), (_, last) = (_place(x) or (run[0], 0) for x in (run[0], run[-1]))
        return source, first, last, source.meta[STACKED]

    made = joined(n, _place, lambda x: x, whole, call)
    if made is not None:
        n.replace_all_uses_with(made)
        graph.erase_node(n)


def _place(n: Any) -> Place | None:
    if not isinstance(n, Node) or n.target is not operator.getitem:
        return None
    source, k = n.args[:2]
    known = isinstance(source, Node) and STACKED in source.meta and type(k) is int
    return (source, k) if known and isinstance(source, Node) else None


def joined(
    n: Node,
    place: Callable[[Any], tuple[Any, int] | None],
    value: Callable[[Node], Node],
    whole: Callable[[Sequence[Node]], tuple[Node, int, int, int]],
    call: Call,
) -> Node | None:
    """The same as a call, if it joins results of many steps; else None. `place`: of what, and of
    which step an operand is; `whole`: where results lie, with (first step, last one, how many)."""
    if n.op != "call_function" or n.target not in JOINS or not n.args:
        return None
    items, stacks = n.args[0], JOINS[n.target]
    dim = n.args[1] if len(n.args) > 1 else n.kwargs.get("dim", n.kwargs.get("axis", 0))
    known = len(n.args) <= 2 and n.kwargs.keys() <= {"dim", "axis"}
    if not isinstance(items, (list, tuple)) or type(dim) is not int or not known:
        return None
    runs, result = list(_in_turn(items, place)), value_of(n)
    if len(runs) == len(items) or not result.is_contiguous():
        return None
    dim = dim + result.dim() if dim < 0 else dim
    parts = []
    for run in runs:
        if len(run) == 1:
            x = value(run[0])
            parts.append(call("unsqueeze", x, dim) if stacks else x)
            continue
        x, first, last, count = whole(run)
        low, high = min(first, last), max(first, last) + 1
        if high - low < count:
            x = call(operator.getitem, x, slice(low, high))
        x = call("flip", x, 0) if last < first else x
        x = call("movedim", x, 0, dim) if dim else x
        parts.append(x if stacks else call("flatten", x, dim, dim + 1))
    if len(parts) == 1:  # a tensor of its own, as eager gives
        made = call("clone", parts[0], memory_format=torch.contiguous_format)
    else:
        made = call(torch.cat, parts, dim)
    made.meta = dict(n.meta)
    return made


def _in_turn(items: Sequence[Any], place: Callable[[Any], Any]) -> Iterator[list[Any]]:
    """The items, in lists of those that one call gives in steps that follow each other."""
    run: list[Any] = []
    by = 0
    for x in items:
        a, b = place(run[-1]) if run else None, place(x)
        moved = b[1] - a[1] if a and b and a[0] == b[0] else 0
        if moved and moved in ((by,) if by else (1, -1)):
            by = moved
            run.append(x)
            continue
        if run:
            yield run
        run, by = [x], 0
    if run:
        yield run
