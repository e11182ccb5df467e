"""What torch says about nodes of an fx graph and their results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from tilewright.capture.torch.captured import HostCall
from tilewright.capture.torch.dtypes import FROM_COMPLEX, has_native_form
from tilewright.ir.dim import Int

CPU = torch.device("cpu")


def is_plain(v: torch.Tensor, device: torch.device) -> bool:
    """Can native code read it: strided, on the device that the code is for, of a dtype we have, no
    lazy bits of torch?"""
    if v.layout is not torch.strided or not has_native_form(v.dtype):
        return False
    return is_on(v, device) and not v.is_conj() and not v.is_neg()


def is_on(v: torch.Tensor, device: torch.device) -> bool:
    """Is it on the device? A tensor without memory is anywhere."""
    here = v.device.type == device.type and (v.device.index or 0) == (device.index or 0)
    return here or v.device.type == "meta"


def is_number_elsewhere(v: torch.Tensor, device: torch.device) -> bool:
    """Is it one number on the CPU, which torch's operators take together with tensors of a GPU?"""
    return v.device.type == "cpu" != device.type and v.dim() == 0


def gives_complex(vals: Any) -> bool:
    several = vals if isinstance(vals, (tuple, list)) else (vals,)
    return any(isinstance(v, torch.Tensor) and v.dtype in FROM_COMPLEX for v in several)


def announced_tensors(vals: Any, out: Any) -> Iterator[tuple[torch.Tensor, Any]]:
    """Tensors that torch announced, each paired with the translation's result."""
    if isinstance(vals, (tuple, list)):
        for v, x in zip(vals, out):
            yield from announced_tensors(v, x)
    elif isinstance(vals, torch.Tensor) and out is not None:
        yield vals, out


def has_symbols(tree: Any) -> bool:
    """Is there an integer among the arguments that is known at the call only?"""
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if isinstance(tree, (tuple, list)):
        return any(has_symbols(x) for x in tree)
    return isinstance(tree, Int)


def python_type(v: Any) -> type | None:
    """The type of a number that torch treats as Python's, not as a tensor."""
    if isinstance(v, torch.SymBool):
        return bool
    return float if isinstance(v, (torch.SymFloat, float)) else None


def gives_views(call: HostCall) -> bool:
    """Does a result share memory with an argument?"""
    if not isinstance(call.function, torch._ops.OpOverload):
        return False
    return any(r.alias_info is not None for r in call.function._schema.returns)


def is_mutable(n: torch.fx.Node) -> bool:
    """May it change an operand?"""
    return not isinstance(n.target, torch._ops.OpOverload) or n.target._schema.is_mutable


def is_ordered(n: torch.fx.Node) -> bool:
    """Must it stay in order with other such calls? Random and mutating operators do."""
    if is_mutable(n):
        return True
    assert isinstance(n.target, torch._ops.OpOverload)
    return torch.Tag.nondeterministic_seeded in n.target.tags


def is_lazy(v: torch.Tensor) -> bool:
    """Does torch see something else than what is in memory: its conjugate, or its negative?"""
    return v.is_conj() or v.is_neg()


def storage_of(v: torch.Tensor) -> int:
    return v.untyped_storage()._cdata
