"""What all steps of a scan have alike is kept for its gradient once.

torch keeps for each step what the step's gradient reads: of weights that every step reads as many
copies as there are steps. In the joint graph the gradient's scan is given such a value as it is,
without an axis of steps, and the first scan no longer makes the copies.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch._guards import detect_fake_mode

from tilewright.capture.torch.kept_values import is_pure

Node = torch.fx.Node

_SCAN = torch.ops.higher_order.scan
_aten = torch.ops.aten
_SAME = {_aten.alias.default, _aten.clone.default, _aten.detach.default}


def keep_once(joint: torch.fx.GraphModule) -> None:
    """Rewrite the scans of a joint graph so."""
    scans = joint.graph.find_nodes(op="call_function", target=_SCAN)
    if len(scans) < 2:
        return
    made: dict[tuple[Node, int], Node] = {}
    for n in scans:
        _given_once(joint, n, made)
    for n in scans:
        _without_unread(joint, n)


def _given_once(joint: torch.fx.GraphModule, n: Node, made: dict[tuple[Node, int], Node]) -> None:
    """Operands that are the same in all steps become operands that are not sliced."""
    f, init, xs, more = _parts(n)
    found = {k: v for k, x in enumerate(xs) if (v := _same_in_all(joint, x, made)) is not None}
    if not found or len(found) == len(xs):  # one has to say how many steps there are
        return
    body = _body(joint, f)
    graph = copy.deepcopy(body.graph)
    given = graph.find_nodes(op="placeholder")
    last = given[-1]
    for k in found:
        moved = given[len(init) + k]
        if moved is not last:
            last.append(moved)
            last = moved
    left = [x for k, x in enumerate(xs) if k not in found]
    name = _added(joint, f, torch.fx.GraphModule(body, graph))
    n.args = (_read(joint, n, name), init, left, (*more, *found.values()))
    for k in found:
        _erase_unread(joint.graph, xs[k])


def _same_in_all(
    joint: torch.fx.GraphModule, x: Any, made: dict[tuple[Node, int], Node]
) -> Node | None:
    """The value that an operand has in each step, where a scan made it and it is always the same;
    the order of steps makes no difference then."""
    while x.target in _SAME or (x.target is _aten.flip.default and list(x.args[1]) == [0]):
        x = x.args[0]
    if x.target is not operator.getitem:
        return None
    n, k = x.args
    if not isinstance(n, Node) or n.target is not _SCAN or not isinstance(k, int):
        return None
    if (n, k) not in made:
        value = _before(joint, n, k)
        if value is None:
            return None
        made[n, k] = value
    return made[n, k]


def _before(joint: torch.fx.GraphModule, n: Node, k: int) -> Node | None:
    """What a scan stacks as its k-th result, computed before it; None where steps differ."""
    f, init, xs, more = _parts(n)
    graph = _body(joint, f).graph
    given = graph.find_nodes(op="placeholder")
    outs = graph.output_node().args[0]
    mode = detect_fake_mode([x.meta.get("val") for x in xs])
    if k < len(init) or not isinstance(outs, (tuple, list)) or mode is None:
        return None
    known = dict(zip(given[len(init) + len(xs) :], more, strict=True))
    needed = _ancestors(outs[k])
    if any(x.op != "call_function" or not is_pure(x) for x in needed if x not in known):
        return None
    with joint.graph.inserting_before(n), mode:
        for x in needed:
            if x not in known:
                known[x] = joint.graph.node_copy(x, known.__getitem__)
                args, kwargs = torch.fx.map_arg((x.args, x.kwargs), lambda y: known[y].meta["val"])
                called: Any = x.target
                known[x].meta = {**n.meta, "val": called(*args, **kwargs)}
    return known[outs[k]]


def _without_unread(joint: torch.fx.GraphModule, n: Node) -> None:
    """Stacked results that nobody reads are not made."""
    f, init, xs, more = _parts(n)
    body = _body(joint, f)
    outs = body.graph.output_node().args[0]
    assert isinstance(outs, (tuple, list))
    if any(u.target is not operator.getitem for u in n.users):
        return
    read: dict[Node, Any] = {u: u.args[1] for u in n.users}
    left = [k for k in range(len(outs)) if k < len(init) or k in read.values()]
    if len(left) == len(outs):
        return
    graph = copy.deepcopy(body.graph)
    fresh: Any = graph.output_node().args[0]
    graph.output_node().args = (tuple(fresh[k] for k in left),)
    graph.eliminate_dead_code()
    name = _added(joint, f, torch.fx.GraphModule(body, graph))
    n.args = (_read(joint, n, name), init, xs, more)
    n.meta["val"] = tuple(n.meta["val"][k] for k in left)
    for u, k in read.items():
        u.args = (n, left.index(k))


def _parts(n: Any) -> tuple[Node, Sequence[Node], Sequence[Node], Sequence[Node]]:
    """Its function, where carried values begin, what is sliced, and what each step is given."""
    f, init, xs, more = n.args
    return f, init, xs, more


def _body(joint: torch.fx.GraphModule, f: Node) -> torch.fx.GraphModule:
    found: Any = getattr(joint, str(f.target))
    return found


def _added(joint: torch.fx.GraphModule, f: Node, body: torch.fx.GraphModule) -> str:
    name = f"{f.target}_once"
    while hasattr(joint, name):
        name += "_"
    setattr(joint, name, body)
    return name


def _read(joint: torch.fx.GraphModule, n: Node, name: str) -> Node:
    with joint.graph.inserting_before(n):
        f = joint.graph.get_attr(name)
    f.meta = dict(_parts(n)[0].meta)
    return f


def _ancestors(x: Any) -> list[Node]:
    """What a node is computed from and itself, in their order."""
    found: set[Node] = set()
    rest = [x] if isinstance(x, Node) else []
    while rest:
        n = rest.pop()
        if n not in found:
            found.add(n)
            rest += n.all_input_nodes
    return [n for n in x.graph.nodes if n in found] if found else []


def _erase_unread(graph: torch.fx.Graph, x: Node) -> None:
    """A node that nobody reads any more, and what it alone read."""
    while not x.users and x.target is not _SCAN:
        (before, *_) = x.all_input_nodes
        graph.erase_node(x)
        x = before
