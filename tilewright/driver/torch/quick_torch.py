"""What torch does in a trace for our backend that nobody asked for: it takes as long as a small
program does to compile, and is left out.

All of it is for Inductor, for a log, or for random numbers that are drawn in another way. What
torch computes is the same as before. Other versions of torch may lack what is replaced: then it is
left as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from importlib import import_module
from typing import Any

import torch
from torch._functorch._aot_autograd import graph_compile
from torch._logging import _internal as logs

# Functions that write a configuration of torch as text, for what is kept about a compilation.
_CONFIGURATIONS = (
    "_get_dynamo_config_for_logging",
    "_scrubbed_inductor_config_for_logging",
    "_compiler_config_for_logging",
    "_functorch_config_for_logging",
)


def leave_out(is_ours: Callable[[], bool]) -> None:
    """From now on, where `is_ours` says that this thread traces for our backend."""
    for name in _CONFIGURATIONS:
        _replace("torch._dynamo.utils", "", name, lambda f: unwritten(f, is_ours))
    for name in ("_log_joint_graph", "_log_fw_bw_graphs"):
        _replace(
            "torch._functorch._aot_autograd.graph_compile",
            "",
            name,
            lambda f: unprinted(f, is_ours),
        )
    _replace(
        "torch._higher_order_ops.partitioner",
        "HopJointGraph",
        "_rename_phs",
        lambda f: uncompiled(f, is_ours),
    )
    _replace("torch._dynamo.variables.optimizer", "", "_is_static_for_cudagraphs", without_cuda)
    _replace("torch._decomp.decompositions_for_rng", "PhiloxState", "reset", from_the_first)


def unwritten(writes: Callable[[], str | None], is_ours: Callable[[], bool]) -> Callable[[], Any]:
    """The text of a configuration, of some hundred settings: not where it is ours that is compiled,
    unless what torch keeps about compilations is logged."""

    @wraps(writes)
    def called() -> str | None:
        return None if is_ours() and not logs.trace_log.handlers else writes()

    return called


def unprinted(log: Callable[..., Any], is_ours: Callable[[], bool]) -> Callable[..., Any]:
    """The text of graphs of a training step, with all their shapes, which is for logs: not where it
    is our step, unless one of these logs is wanted."""

    @wraps(log)
    def called(*args: Any, **kwargs: Any) -> Any:
        if not is_ours() or _graphs_are_logged():
            return log(*args, **kwargs)
        with ExitStack() as inside:
            for graph in (*args, *kwargs.values()):
                if isinstance(graph, torch.fx.GraphModule):
                    inside.enter_context(_idle(graph, "print_readable"))
            return log(*args, **kwargs)

    return called


def _graphs_are_logged() -> bool:
    found = (getattr(graph_compile, f"aot_{what}_log", None) for what in ("joint", "graphs"))
    wanted = any(log is not None and log.isEnabledFor(logging.INFO) for log in found)
    return wanted or bool(logs.trace_log.handlers)


@contextmanager
def _idle(graph: torch.fx.GraphModule, method: str) -> Iterator[None]:
    """A method of this graph does nothing inside."""
    own = vars(graph)
    own[method] = lambda *_, **__: None
    try:
        yield
    finally:
        own.pop(method, None)


def uncompiled(rename: Callable[[Any], None], is_ours: Callable[[], bool]) -> Callable[[Any], None]:
    """For the gradient of a scan torch renames the inputs of a graph, and prepares to have it
    compiled by Inductor, whose import takes longer than all else. Nothing calls that graph."""

    @wraps(rename)
    def called(self: Any) -> None:
        if not is_ours():
            return rename(self)
        with _idle(self.joint_gm, "compile"):
            rename(self)

    return called


def without_cuda(is_static: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Torch asks for each gradient that an optimizer is given whether it stays at its address in
    graphs of CUDA, which imports Inductor. It says yes for other devices."""

    @wraps(is_static)
    def called(x: torch.Tensor) -> bool:
        return is_static(x) if x.is_cuda else True

    return called


def from_the_first(reset: Callable[[Any], None]) -> Callable[[Any], None]:
    """A generator's state before anything is known of it: twelve empty tensors are made for each
    trace. They are never written, so that all states may have those of the first."""
    first = type("First", (), {})()
    reset(first)

    @wraps(reset)
    def called(self: Any) -> None:
        vars(self).update(vars(first))

    return called


def _replace(module: str, owner: str, name: str, make: Callable[[Any], Any]) -> None:
    try:
        found = import_module(module)
    except ImportError:
        return
    where = getattr(found, owner, None) if owner else found
    if (theirs := getattr(where, name, None)) is not None:
        setattr(where, name, make(theirs))
