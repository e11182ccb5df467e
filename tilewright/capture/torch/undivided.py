"""Operators that torch takes apart before it asks a table of decompositions, kept in one piece.

Torch has Python kernels of interpolation for autograd's dispatch key, so that graphs have gathers
at computed places, and gradients scatter. Without these kernels the operator and its
gradient stay whole, and what they compute at each place of an axis is known when compiling. With
unknown sizes they stay whole where no gradient is asked for, and compute places at each call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp import decomposition_table
from torch._decomp.decompositions import upsample_compute_output_size
from torch._export.utils import (
    _collect_all_valid_cia_ops_for_aten_namespace as operators_with_kernels,
)

_KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)
_NAMES = """
    upsample_linear1d upsample_bilinear2d upsample_trilinear3d
    upsample_nearest1d upsample_nearest2d upsample_nearest3d
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
""".split()
_PACKETS = tuple(getattr(torch.ops.aten, name) for name in _NAMES)


def undivided_table() -> dict[Any, Callable[..., Any] | None]:
    """For tables of decompositions: of the operators that stay whole, or None for overloads that
    torch itself calls them by."""
    out: dict[Any, Callable[..., Any] | None] = {p.vec: None for p in _PACKETS}
    for p in _PACKETS:
        out[p.default] = _whole_or(decomposition_table[p.default])
    return out


def by_sizes() -> dict[Any, Callable[..., Any]]:
    """For what torch.export captured, which has the overloads that torch calls them by: those with
    sizes in their place."""
    return {p.vec: _by_size(p.default, "nearest" not in str(p)) for p in _PACKETS}


def _by_size(op: Any, corners: bool) -> Callable[..., Any]:
    def called(x: Tensor, size: Any, *rest: Any) -> Any:
        factors = rest[-1]
        sizes = upsample_compute_output_size(x.shape, size, factors)
        assert sizes is not None  # one of size and factors is given
        scales = [None] * len(sizes) if factors is None else factors
        return op(x, sizes, *rest[:1], *scales) if corners else op(x, sizes, *scales)

    return called


def _whole_or(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def taken(x: Tensor, size: Any, *rest: Any, **named: Any) -> Any:
        known = all(type(n) is int for n in (*x.shape, *size))
        if known or (not named and all(map(_is_constant, rest))):
            return NotImplemented
        return theirs(x, size, *rest, **named)

    return taken


def _is_constant(factor: Any) -> bool:
    """Of factors and whether corners are aligned: not a number that changes from call to call."""
    return factor is None or type(factor) in (bool, float)


_lock = Lock()
_inside = 0  # captures under way, of all threads
_before: dict[Any, dict[Any, Any]] = {}


@contextmanager
def undivided(gm: torch.fx.GraphModule) -> Iterator[None]:
    """While what Dynamo captured is run, where all its sizes are known, or it has no gradients:
    those of operators that stay whole need sizes."""
    inputs = [n.meta.get("example_value") for n in gm.graph.find_nodes(op="placeholder")]
    if not (all(map(_is_known, inputs)) or _has_no_gradients(inputs)):
        yield
        return
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def _has_no_gradients(inputs: Sequence[Any]) -> bool:
    asked = any(isinstance(x, Tensor) and x.requires_grad for x in inputs)
    return not (torch.is_grad_enabled() and asked)


def _is_known(x: Any) -> bool:
    return not isinstance(x, Tensor) or all(type(k) is int for k in x.shape)


def _count(change: int) -> None:
    """The first capture under way takes the kernels away, and the last one brings them back."""
    global _inside
    with _lock:
        _inside += change
        if change == 1 and _inside == 1:
            operators_with_kernels()  # torch keeps this list, and torch.export needs all of it
            for p in _PACKETS:
                for op in (p.vec, p.default):
                    _before[op] = {k: op.py_kernels.pop(k) for k in _KEYS if k in op.py_kernels}
                    op._dispatch_cache.clear()
                # Torch's kernel that is no Python takes no symbols.
                by_size = _by_size(p.default, "nearest" not in str(p))
                p.vec.py_kernels.update(dict.fromkeys(_before[p.vec], by_size))
        elif _inside == 0:
            for op, kernels in _before.items():
                op.py_kernels.update(kernels)
                op._dispatch_cache.clear()
            _before.clear()
