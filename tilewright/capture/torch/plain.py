"""Graphs that need nothing of AOTAutograd: no gradients, no changes in place, results of their own.

AOTAutograd runs what Dynamo captured twice, first to learn what it changes and which results are
views of inputs, both times with tensors that make changes in place functional. Where there is
nothing of the kind, one run that writes down the operators gives the same graph, in half the time.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.utils import preserve_rng_state
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from tilewright.capture.torch.decompositions import decompositions

# Functions of Python that change their first argument.
_CHANGING = {
    getattr(operator, name)
    for name in "setitem delitem iadd iand iconcat ifloordiv ilshift imatmul imod imul ior ipow "
    "irshift isub itruediv ixor".split()
}


def plain_graph(gm: torch.fx.GraphModule) -> torch.fx.GraphModule | None:
    """The operators of what Dynamo captured, as AOTAutograd would pass them on. None: it has to."""
    context = TracingContext.try_get()
    mode = context.fake_mode if context is not None else None
    inputs = [n.meta.get("example_value") for n in gm.graph.find_nodes(op="placeholder")]
    if mode is None or not all(map(_is_plain, inputs)) or not _changes_nothing(gm):
        return None
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
        return None
    if torch.is_autocast_enabled() or torch.is_autocast_enabled("cpu"):
        return None

    def run(*args: Any) -> Any:
        with traceback.preserve_node_meta():
            return torch.fx.Interpreter(gm).run(*args)

    try:
        with preserve_rng_state(), mode, enable_python_dispatcher():
            made = make_fx(run, decompositions())(*inputs)
    except Exception:  # AOTAutograd says what is wrong, in its own words
        return None
    made.graph.eliminate_dead_code()
    return made if _is_own(made, inputs) else None


def weight_positions(gm: torch.fx.GraphModule) -> tuple[int, ...]:
    """Placeholders that are parameters and buffers of a module."""
    nodes = enumerate(gm.graph.find_nodes(op="placeholder"))
    kind = "_dynamo_static_input_type"
    return tuple(k for k, n in nodes if n.meta.get("tensor_dict", {}).get(kind))


def _is_plain(x: Any) -> bool:
    """A tensor of a known size, of no class of its own."""
    return (
        type(x) is FakeTensor
        and x.layout is torch.strided
        and not x.is_conj()
        and not x.is_neg()
        and all(type(n) is int for n in (*x.shape, *x.stride(), x.storage_offset()))
    )


def _changes_nothing(gm: torch.fx.GraphModule) -> bool:
    """As far as names tell; what operators say of themselves is looked at later."""
    for n in gm.graph.nodes:
        name = n.target if isinstance(n.target, str) else getattr(n.target, "__name__", "")
        if n.op in ("placeholder", "output"):
            continue
        if n.op not in ("call_function", "call_method"):
            return False
        if n.target in _CHANGING or isinstance(n.target, torch._ops.HigherOrderOperator):
            return False
        if name.endswith("_") and not name.endswith("__"):
            return False
        if n.kwargs.get("inplace") or n.kwargs.get("out") is not None:
            return False
    return True


def _is_own(gm: torch.fx.GraphModule, inputs: list[Any]) -> bool:
    """Does no operator change an operand, and is no result a view of an input?"""
    for n in gm.graph.nodes:
        if n.op == "get_attr":
            return False
        if n.op == "call_function" and n.target is not operator.getitem:
            schema = getattr(n.target, "_schema", None)
            if schema is None or schema.is_mutable:
                return False
    (output,) = gm.graph.find_nodes(op="output")
    results = pytree.tree_leaves(output.args)
    if not all(isinstance(n, torch.fx.Node) for n in results):
        return False
    values, theirs = [n.meta.get("val") for n in results], {_storage(x) for x in inputs}
    return all(_is_plain(x) and _storage(x) not in theirs for x in values)


def _storage(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata
