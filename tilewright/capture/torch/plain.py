"""Graphs that need nothing of AOTAutograd: no gradients, no changes in place, results of their own.

AOTAutograd runs what Dynamo captured twice, first to learn what it changes and which results are
views of inputs, both times with tensors that make changes in place functional. Where there is
nothing of the kind, one run that writes down the operators gives the same graph, in half the time.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left
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
from tilewright.capture.torch.undivided import undivided

# Functions of Python that change their first argument, and those that do not.
_CHANGING = {
    getattr(operator, f"i{name}"): getattr(operator, f"{name}_" if name in ("and", "or") else name)
    for name in "add and floordiv lshift mod mul or pow rshift sub truediv xor".split()
}
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_NEVER = {operator.setitem, operator.delitem, operator.iconcat, operator.imatmul}


def plain_graph(gm: torch.fx.GraphModule) -> torch.fx.GraphModule | None:
    """The operators of what Dynamo captured, as AOTAutograd would pass them on. None: it has to."""
    context = TracingContext.try_get()
    inputs = [n.meta.get("example_value") for n in gm.graph.find_nodes(op="placeholder")]
    if context is None or not inputs or not all(map(_is_plain, inputs)):
        return None
    changing = _changing(gm)
    if changing is None or not _are_last(changing, gm):
        return None
    if _computes_gradients(gm) and any(x.requires_grad for x in inputs):
        return None
    if torch.is_autocast_enabled() or torch.is_autocast_enabled("cpu"):
        return None

    def run(*args: Any) -> Any:
        with traceback.preserve_node_meta():
            return _Interpreter(gm).run(*args)

    # Dynamo's tensors are of a mode that it has put away; nothing here changes them.
    mode, theirs = inputs[0].fake_mode, context.fake_mode
    context.fake_mode = mode
    try:
        with preserve_rng_state(), mode, enable_python_dispatcher(), undivided(gm):
            made = make_fx(run, decompositions())(*inputs)
    except Exception:  # AOTAutograd says what is wrong, in its own words
        return None
    finally:
        context.fake_mode = theirs
    made.graph.eliminate_dead_code()
    return made if _is_own(made, inputs) else None


def weight_positions(gm: torch.fx.GraphModule) -> tuple[int, ...]:
    """Placeholders that are parameters and buffers of a module."""
    nodes = enumerate(gm.graph.find_nodes(op="placeholder"))
    kind = "_dynamo_static_input_type"
    return tuple(k for k, n in nodes if n.meta.get("tensor_dict", {}).get(kind))


def _computes_gradients(gm: torch.fx.GraphModule) -> bool:
    """In some part of it."""
    settings = gm.graph.find_nodes(op="call_function", target=torch._C._set_grad_enabled)
    return torch.is_grad_enabled() or any(n.args != (False,) for n in settings)


def _is_plain(x: Any) -> bool:
    """A tensor of a known size, of no class of its own."""
    return (
        type(x) is FakeTensor
        and x.layout is torch.strided
        and not x.is_conj()
        and not x.is_neg()
        and all(type(n) is int for n in (*x.shape, *x.stride(), x.storage_offset()))
    )


class _Interpreter(torch.fx.Interpreter):
    """Runs a graph without changes in place, which nobody else sees."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if kwargs.get("inplace"):
            kwargs = {**kwargs, "inplace": False}
        return super().call_function(_CHANGING.get(target, target), args, kwargs)


def _changing(gm: torch.fx.GraphModule) -> list[torch.fx.Node] | None:
    """Calls that change their first argument and may be others that do not; None where something
    else changes, as far as names tell. What operators say of themselves is looked at later."""
    found = []
    for n in gm.graph.nodes:
        if n.op in ("placeholder", "output"):
            continue
        if any(isinstance(x, _SYMBOLIC) for x in pytree.tree_leaves(n.meta.get("example_value"))):
            return None  # numbers that are read from data
        if n.op not in ("call_function", "call_method"):
            return None
        if n.target in _NEVER or isinstance(n.target, torch._ops.HigherOrderOperator):
            return None
        name = n.target if isinstance(n.target, str) else getattr(n.target, "__name__", "")
        own = getattr(n.target, "__module__", "") == operator.add.__module__  # and_ changes nothing
        if name.endswith("_") and not name.endswith("__") and not own:
            return None
        if n.kwargs.get("out") is not None:
            return None
        if n.target in _CHANGING or n.kwargs.get("inplace"):
            found.append(n)
    return found


def _are_last(changing: list[torch.fx.Node], gm: torch.fx.GraphModule) -> bool:
    """Is what each call changes of its own kind, made here, and read by nobody afterwards but
    through its result?"""
    if not changing:
        return True
    memory = _Memory(gm)
    return all(_keeps_kind(n) and memory.is_free_after(n) for n in changing)


class _Memory:
    """Who holds which memory until when, in one walk over a graph."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        nodes = list(gm.graph.nodes)
        self.at = {n: k for k, n in enumerate(nodes)}
        last = dict.fromkeys(nodes, -1)
        for n in nodes:
            last.update(dict.fromkeys(n.all_input_nodes, self.at[n]))
        # Of each storage: where holders are, and until when those up to there are read.
        self.holders: dict[int, tuple[list[int], list[float]]] = {}
        for k, n in enumerate(nodes):
            until = math.inf if n.op == "placeholder" else last[n]
            for place in {_storage(x) for x in _tensors(n.meta.get("example_value"))}:
                at, read = self.holders.setdefault(place, ([], []))
                at.append(k)
                read.append(max(until, read[-1] if read else -1))

    def is_free_after(self, n: torch.fx.Node) -> bool:
        """Was what a call changes made in this graph, and does nobody read it later by the names
        that it had before?"""
        before = n.args[0]
        assert isinstance(before, torch.fx.Node)
        at, read = self.holders[_storage(before.meta["example_value"])]
        return read[bisect_left(at, self.at[n]) - 1] <= self.at[n]


def _keeps_kind(n: torch.fx.Node) -> bool:
    """Is what a call changes a plain tensor of the result's dtype and shape?"""
    before, after = n.args[0], n.meta.get("example_value")
    if not isinstance(before, torch.fx.Node) or not isinstance(after, FakeTensor):
        return False
    was = before.meta.get("example_value")
    others = [x.meta.get("example_value") if isinstance(x, torch.fx.Node) else x for x in n.args]
    if not isinstance(was, FakeTensor) or not _is_plain(was):
        return False
    return all(_fits(x, was) for x in others[1:])


def _tensors(x: Any) -> list[torch.Tensor]:
    return [y for y in pytree.tree_leaves(x) if isinstance(y, torch.Tensor)]


def _fits(x: Any, to: torch.Tensor) -> bool:
    """Does an operation with it give a tensor of the same dtype and shape?"""
    if isinstance(x, torch.Tensor):
        return x.dtype == to.dtype and torch.broadcast_shapes(x.shape, to.shape) == to.shape
    return isinstance(x, (bool, int)) or (isinstance(x, float) and to.is_floating_point())


def _is_own(gm: torch.fx.GraphModule, inputs: list[Any]) -> bool:
    """Does no operator change an operand, and is no result a view of an input? It may be an input
    itself: where Dynamo cuts a function it returns what the rest of it needs."""
    for n in gm.graph.nodes:
        if n.op == "get_attr":
            return False
        if n.op == "call_function" and n.target is not operator.getitem:
            schema = getattr(n.target, "_schema", None)
            if schema is None or schema.is_mutable:
                return False
        if any(isinstance(x, _SYMBOLIC) for x in pytree.tree_leaves(n.meta.get("val"))):
            return False
    (output,) = gm.graph.find_nodes(op="output")
    results = pytree.tree_leaves(output.args)
    if not all(isinstance(n, torch.fx.Node) for n in results):
        return False
    values = [n.meta.get("val") for n in results if n.op != "placeholder"]
    theirs = {_storage(x) for x in inputs}
    return all(_is_plain(x) and _storage(x) not in theirs for x in values)


def _storage(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata
