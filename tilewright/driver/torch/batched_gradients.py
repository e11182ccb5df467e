"""Gradients of many results at once: `torch.autograd.grad(…, is_grads_batched=True)`, on which
`jacobian(…, vectorize=True)` rests. Torch passes tensors that stand for a batch and have no memory
of their own. A program reads memory: it is called for one gradient after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_enter, _leave = torch._C._vmapmode_increment_nesting, torch._C._vmapmode_decrement_nesting
_is_batched = torch._C._functorch.is_legacy_batchedtensor

Call = Callable[[list[Any]], list[Any]]


def batches() -> int:
    """How many such calls are around this one."""
    level = _enter()
    _leave()
    return level - 1


def one_by_one(call: Call, args: list[Any], level: int) -> list[Any]:
    """The results of a call with tensors that stand for batches of up to this level. `args` is
    emptied, as the call does."""
    if level == 0:
        return call(args)
    whole = {k: x for k, given in enumerate(args) if (x := _whole(given, level)) is not None}
    if not whole:
        return one_by_one(call, args, level - 1)
    count = next(iter(whole.values())).shape[0]
    found = []
    for k in range(count):
        # Lists of their own: what the program may write over is read again by the next call.
        one = [whole[i].select(0, k) if i in whole else x for i, x in enumerate(args)]
        found.append(one_by_one(call, one, level - 1))
    args.clear()
    return [_batch(results, level) for results in zip(*found, strict=True)]


def _whole(x: Any, level: int) -> torch.Tensor | None:
    """A tensor with the axis of this level first, as one with memory; None where it has no such
    axis."""
    if not isinstance(x, torch.Tensor) or not _is_batched(x):
        return None
    # One without this axis is repeated as often as is said here.
    two, three = (torch._remove_batch_dim(x, level, count, 0) for count in (2, 3))
    return two if two.shape == three.shape else None


def _batch(results: tuple[Any, ...], level: int) -> Any:
    if not isinstance(results[0], torch.Tensor):
        return results[0]
    return torch._add_batch_dim(torch.stack(results), 0, level)
