"""Calls that Dynamo captured and that do nothing but compute their results."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import torch
import torch.fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tilewright.capture.torch.slices import value_of


class _Watch(TorchDispatchMode):
    """Notices what changes tensors that were there before, and what draws random numbers."""

    def __init__(self, given: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.given = {storage_of(x) for x in given}
        self.pure = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.pure = False
        for x in _changed(func._schema, args, kwargs or {}):
            self.pure = self.pure and storage_of(x) not in self.given
        return func(*args, **(kwargs or {}))


def _changed(schema: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The operands that an operator writes into."""
    written = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
    named = [kwargs.get(a.name) for a in schema.arguments[len(args) :]]
    found = [x for x, w in zip((*args, *named), written, strict=True) if w]
    return [x for x in pytree.tree_leaves(found) if isinstance(x, torch.Tensor)]


def is_detached(x: torch.Tensor) -> bool:
    """Does a result need no gradient where a scan may give it one, as it does to all or none?"""
    floats = x.is_floating_point() or x.is_complex()
    return torch.is_grad_enabled() and floats and not x.requires_grad


def storage_of(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata


def computed(
    nodes: Sequence[Node], numbers: Container[Node] = ()
) -> tuple[dict[Node, Any], list[torch.Tensor]] | None:
    """(what each call gives, the tensors that they read and did not make); None where a call does
    something else. `numbers`: operands that are no tensors."""
    own: dict[Node, Any] = {}
    outside: list[Any] = []

    def given(n: Node) -> Any:
        if n in own:
            return own[n]
        found = [x for x in pytree.tree_leaves(value_of(n)) if isinstance(x, torch.Tensor)]
        outside.extend(found)
        return value_of(n)

    for n in nodes:
        leaves = pytree.tree_leaves(value_of(n))
        if not leaves or not all(type(x) is FakeTensor for x in leaves):
            return None
        if isinstance(n.target, torch._ops.HigherOrderOperator) or n.kwargs.get("out") is not None:
            return None
    for x in {x for n in nodes for x in n.all_input_nodes if x not in numbers} - {*nodes}:
        given(x)
    if not outside or not all(isinstance(x, FakeTensor) for x in outside):
        return None
    read = list(outside)
    watch = _Watch(read)
    try:
        with torch.no_grad(), outside[0].fake_mode, enable_python_dispatcher(), watch:
            for n in nodes:
                args, kwargs = torch.fx.node.map_arg((n.args, n.kwargs), given)
                if isinstance(n.target, str):
                    own[n] = getattr(args[0], n.target)(*args[1:], **kwargs)
                else:
                    own[n] = n.target(*args, **kwargs)
    except Exception:  # then it is left as it is
        return None
    return (own, read) if watch.pure else None


def is_set_whole(n: Node, source: Node, others: Sequence[Node], read: Sequence[Any]) -> bool:
    """Does a call set a slice of a tensor that no step reads, nor another call sets, to values of
    the same shape?"""
    index: Any = n.args[1]
    target, made = value_of(source), n.args[2]
    if type(target) is not FakeTensor or not isinstance(made, Node):
        return False
    if storage_of(target) in map(storage_of, (*read, *map(value_of, others))):
        return False
    with target.fake_mode:
        return target[torch.fx.node.map_arg(index, value_of)].shape == value_of(made).shape
