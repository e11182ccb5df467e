"""Arguments of a gradient's graph that nobody needs after it: what its forward graph kept for it.
The program may write over them, as eager frees them one by one.

Autograd may still need them (`retain_graph=True`), and so may a hook on saved tensors or whoever
else refers to their memory. Then a call works on copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from sys import getrefcount
from typing import Any

import torch
import torch.fx
from torch.multiprocessing.reductions import StorageWeakRef

from tilewright.capture.torch.captured import Captured
from tilewright.driver.torch.tensors import label
from tilewright.graph.memory import ALIGNMENT
from tilewright.ir.extremes import guess

LEAST = 1 << 20  # bytes of all of them that are worth it
_keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph
_storages = torch._C._storage_Use_Count


def _references(args: list[Any]) -> int:
    """To the first argument, counted as `apart` below counts them: how many belong to a variable or
    to a call differs between versions of Python."""
    x = args[0]
    return getrefcount(x)


_ALONE = _references([torch.empty(1)])  # of a tensor that only its list refers to


def spent_arguments(gm: torch.fx.GraphModule, meta: Any) -> tuple[int, ...]:
    """Arguments of a gradient's graph with memory of their own, which only it reads. Torch would
    refuse `retain_graph=True` where there are such: here calls see to it."""
    found = tuple(getattr(meta, "bw_donated_idxs", None) or ())
    if found:
        meta.bw_donated_idxs = []
    values = [n.meta.get("val") for n in gm.graph.find_nodes(op="placeholder")]
    tensors = {k: x for k, x in enumerate(values) if isinstance(x, torch.Tensor)}
    memory = [StorageWeakRef(x.untyped_storage()) for x in tensors.values()]
    return tuple(
        k
        for k in found
        if k in tensors
        and memory.count(StorageWeakRef(tensors[k].untyped_storage())) == 1
        and tensors[k].storage_offset() == 0
    )


def spent_inputs(captured: Captured, arguments: Sequence[int]) -> tuple[int, ...]:
    """The inputs of the one segment that are these arguments. None of few bytes: to look whether
    somebody needs them takes longer than memory of its own for what would lie there."""
    every = (captured.arguments[k] for k in arguments)
    sizes = (prod(map(guess, a.shape)) * (a.dtype.bits // 8 if a.dtype else 1) for a in every)
    if sum(sizes) < LEAST:
        return ()
    slots = {captured.arguments[k].slot for k in arguments}
    taken = {getattr(r, "slot", None) for r in captured.results}
    taken |= {slot for pair in captured.mutated for slot in pair}
    inputs = captured.segments[0].graph.inputs
    return tuple(k for k, n in enumerate(inputs) if label(n) in slots - taken)


def set_apart(positions: Sequence[int]) -> Callable[[list[Any]], None]:
    """A function that replaces arguments at these positions by copies where others may read
    them."""

    def apart(args: list[Any]) -> None:
        if _keeps_graph():
            for k in positions:
                args[k] = args[k].clone()
            return
        for k in positions:
            x = args[k]
            if (
                getrefcount(x) > _ALONE
                or x._use_count() > 1
                or _storages(x.untyped_storage()._cdata) > 2  # the tensor, and what counts
                or x.data_ptr() % ALIGNMENT
            ):
                args[k] = x.clone()

    return apart
