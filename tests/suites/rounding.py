"""How far rounding alone moves what a program gives: eager, with everything rounded another way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

# Random changes of inputs and of what operators compute by one unit in the last place, for results
# that seem wrong: how far eager's results move is what rounding anywhere may do.
NUDGES = 6
# Two errors may add up; where they do is not the same in all elements.
FACTOR = 8


def nudged(x: Any, drawn: torch.Generator) -> Any:
    """A tensor with each element moved by at most one unit in its last place."""
    if not isinstance(x, Tensor) or x.layout is not torch.strided:
        return x
    if x.is_complex():
        flat = torch.view_as_real(x.detach().resolve_conj()).clone()
        return torch.view_as_complex(nudged(flat, drawn)).requires_grad_(x.requires_grad)
    if not x.is_floating_point():
        return x
    eps = torch.finfo(x.dtype).eps
    signs = torch.randint(-1, 2, x.shape, generator=drawn).double()  # 1 + eps needs as many digits
    moved = (x.detach().double() * (1 + eps * signs)).to(x.dtype)
    return moved.requires_grad_(x.requires_grad)


class Nudged(TorchDispatchMode):
    """Whatever an operator computes is rounded another way: a sum of 1000 terms that cancel moves
    by what their roundings add up to. Whole numbers are exact and stay; so do views, what is
    written in place, and elements that an operator only picks, such as a minimum: its gradient
    looks for them among the others."""

    def __init__(self, drawn: torch.Generator) -> None:
        super().__init__()
        self.drawn = drawn

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        operands = [x for x in pytree.tree_leaves((args, kwargs)) if _dense(x)]
        given = {_storage(x) for x in operands}
        for x in pytree.tree_leaves(out):
            fresh = _dense(x) and x.is_floating_point() and _storage(x) not in given
            if fresh and not _picked(x, operands):
                x.copy_(torch.where(x == x.round(), x, nudged(x, self.drawn)))
        return out


def _picked(x: Tensor, operands: Sequence[Tensor]) -> bool:
    """Is each element zero or one of the operands'?"""
    alike = [y.detach().reshape(-1) for y in operands if y.dtype is x.dtype]
    if not alike:
        return False
    known = torch.cat([*alike, alike[0].new_zeros(1)])
    flat = x.detach().reshape(-1)
    return all(bool(torch.isin(part, known).all()) for part in (flat[:16], flat))


def _dense(x: Any) -> bool:
    return isinstance(x, Tensor) and x.layout is torch.strided


def _storage(x: Tensor) -> int:
    return x.untyped_storage()._cdata


def within_rounding(ours: Any, right: Any, again: Callable[[torch.Generator], Any]) -> bool:
    """Do eager's results (`right`) move as far as ours are off when all is rounded another way?

    `again(drawn)` gives eager's results with nudged inputs; the operators inside are nudged here. A
    value on the edge of a jump (a tie of a maximum, a rectifier at 0) or far from where it can be
    computed well has no right result to the last digits.
    """
    mine, theirs = pytree.tree_leaves(ours), pytree.tree_leaves(right)
    if len(mine) != len(theirs):
        return False
    drawn = torch.Generator().manual_seed(len(theirs))
    others = []
    for _ in range(NUDGES):
        try:
            with Nudged(drawn):
                others.append(pytree.tree_leaves(again(drawn)))
        except (RuntimeError, ValueError):  # eager does not take the inputs that near ones are
            return False
    pairs = zip(mine, theirs, zip(*others, strict=True), strict=True)
    return all(_near(x, y, moved) for x, y, moved in pairs)


def _near(ours: Any, right: Any, others: tuple[Any, ...]) -> bool:
    if not isinstance(right, Tensor):
        return isinstance(right, float) or ours == right
    if not isinstance(ours, Tensor) or (ours.shape, ours.dtype) != (right.shape, right.dtype):
        return False
    if not (right.is_floating_point() or right.is_complex()):
        return bool((ours == right).all())
    x, y = _double(ours), _double(right)
    if not torch.equal(x.isfinite(), y.isfinite()):
        return False
    moved = [(_double(other) - y).abs().nan_to_num() for other in others]
    most = max((float(m.max()) for m in moved if m.numel()), default=0.0)
    off = (x - y).abs().nan_to_num()
    return bool((off <= FACTOR * most).all()) and most != float("inf")


def _double(x: Tensor) -> Tensor:
    x = x.detach().to_dense()
    return (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).double()
