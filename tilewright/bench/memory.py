"""Bytes: of a call, of weights, and of the whole process."""

from __future__ import annotations

import gc
import re
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tilewright.runtime.program import Program, literal_bytes

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_allocated(call: Callable[[], object]) -> int:
    """Bytes that a call has from torch's allocator at its peak: results, temporaries, scratch."""
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
    """Bytes of the module's tensors and of what our programs derived from them or keep beside."""
    derived = sum(program.folded_bytes for program in _programs())
    constants = sum(len(literal_bytes(x)) for p in _programs() for x in p.constants)
    return weight_bytes(module) + derived + constants


def weight_bytes(module: nn.Module) -> int:
    """Each memory once, however many parameters share it."""
    tensors = (*module.parameters(), *module.buffers())
    storages = {x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in tensors}
    return sum(storages.values())


def _programs() -> list[Program]:
    return [found for found in gc.get_objects() if type(found) is Program]


class ResidentPeak:
    """How far the memory of this process, and of the largest one it started, grew since."""

    def __init__(self) -> None:
        gc.collect()
        # The peak begins anew at what is resident now; where that is refused, it is that of the
        # whole life of the process.
        with suppress(OSError):
            _RESET.write_text("5")
        self.before = self._peak()
        self.children = _largest_child()

    def grown(self) -> int:
        children = _largest_child()
        return self._peak() - self.before + (children if children > self.children else 0)

    def _peak(self) -> int:
        try:
            found = re.search(r"VmHWM:\s+(\d+) kB", _STATUS.read_text())
        except OSError:
            found = None
        if found is None:
            return _max_resident(resource.RUSAGE_SELF)
        return int(found.group(1)) * 1024


def _largest_child() -> int:
    return _max_resident(resource.RUSAGE_CHILDREN)


def _max_resident(who: int) -> int:
    size = resource.getrusage(who).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024
