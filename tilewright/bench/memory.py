"""Bytes of a call and of weights."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from tilewright.driver.weights.given_up import given_up
from tilewright.runtime.program import Program


def peak_allocated(call: Callable[[], object]) -> int:
    """Bytes that a call has from torch's allocator at its peak: results, temporaries, scratch."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        held = call()
        torch.cuda.synchronize()
        del held
        return torch.cuda.max_memory_allocated() - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as found:
        held = call()
    del held
    profiler: Any = found.profiler
    events = [e for e in profiler.kineto_results.events() if e.name() == "[memory]"]
    changes = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]
    return max(accumulate(changes), default=0)


def activations(call: Callable[[], object]) -> int:
    """Bytes at the peak of a hot call: torch's own, and the arenas of our programs."""
    return sum(program.held for program in _programs()) + peak_allocated(call)


def weights_held(module: nn.Module) -> int:
    """Bytes of the module's tensors and of what our programs derived from them or store in
    addition."""
    derived = {piece for p in _programs() if p.derived is not None for piece in p.derived.pieces}
    constants = sum(x.size for p in _programs() for x in p.constants)
    return weight_bytes(module) + sum(piece.size for piece in derived) + constants


def weight_bytes(module: nn.Module) -> int:
    """Each memory once, however many parameters share it; none whose memory was given back."""
    tensors = [x for x in (*module.parameters(), *module.buffers()) if given_up(x) is None]
    storages = {x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in tensors}
    return sum(storages.values())


def _programs() -> list[Program]:
    return [found for found in gc.get_objects() if issubclass(type(found), Program)]
