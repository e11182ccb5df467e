"""The machine that is measured: native loops (code.py) run and timed, on one core or on all.

A `Probe` is data: what runs, and how much of it. `Native` runs it here; tests answer for a machine
whose numbers they know.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tilewright.ir.target import Target
from tilewright.llvm.objects import compile_object
from tilewright.runtime import pool
from tilewright.runtime.library import Library
from tilewright.runtime.memory import aligned, require_room
from tilewright.tune.calibration import code

# A sample of a probe takes about so long: beside that, calls and the start of threads take no time.
SAMPLE_SECONDS = 4e-3
MOST_WORK = 1 << 40
LINE = 64
SMALL = 4096  # bytes for loops that use hardly any memory


@dataclass(frozen=True)
class Probe:
    """One kind of work (a loop of code.py), on so much memory, by so many threads at once, each of
    which has memory of its own."""

    kind: str
    bytes: int = 0
    threads: int = 1


class Machine(Protocol):
    """Whatever can be measured."""

    def seconds(self, probe: Probe) -> float:
        """Of one unit of a probe's work: an instruction (of `sum` and `mix`, too), a byte of each
        thread, a load of a chain, a region."""
        ...


class Native:
    """This machine. Memory of a probe is filled when it is first used, and freed by `close`."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._library = Library([compile_object(code.module(target), target)], {})
        self._executor = ThreadPoolExecutor(max(1, target.cores))
        self._work: dict[Probe, int] = {}
        self._memory: dict[tuple[str, int, int], tuple[np.ndarray, int, int]] = {}

    def close(self) -> None:
        self._executor.shutdown()
        self._memory.clear()
        self._library.close()

    def seconds(self, probe: Probe) -> float:
        work = self._work.get(probe)
        if work is None:
            work = self._work[probe] = self._enough(probe)
        took, units = self._timed(probe, work)
        return took / units

    def _enough(self, probe: Probe) -> int:
        """Repeats that make up a sample."""
        work = 1
        around = probe.bytes // LINE // code.CHASED if probe.kind == "chase" else 1
        self._timed(probe, around)  # the first touch of everything
        while (took := self._timed(probe, work)[0]) < SAMPLE_SECONDS / 8 and work < MOST_WORK:
            work *= 4
        return max(1, int(work * SAMPLE_SECONDS / max(took, 1e-9)))

    def _timed(self, probe: Probe, work: int) -> tuple[float, float]:
        """Seconds, and units of work of each thread."""
        calls, units = [], 0.0
        for k in range(probe.threads):
            call, units = self._call(probe, k, work)
            calls.append(call)
        if probe.kind == "regions":  # waiting is part of what they take
            return _passed(calls[0], time.perf_counter), units
        if len(calls) == 1:
            return _passed(calls[0], time.thread_time), units
        list(self._executor.map(lambda _: time.sleep(1e-4), calls))  # all threads are awake
        took = self._executor.map(lambda call: _passed(call, time.thread_time), calls)
        return max(took), units

    def _call(self, probe: Probe, thread: int, work: int) -> tuple[Callable[[], None], float]:
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        if probe.kind == "regions":
            f = self._function("regions", pointer, number, number)
            parallel, chunks = pool.address(), pool.get_threads()
            return lambda: f(parallel, work, chunks), work
        if probe.kind == "read":
            step = code.read_step(self.target)
            size = -(-probe.bytes // step) * step
            at, f = self._at("read", size, thread), self._function("read", pointer, number, number)
            return lambda: f(at, size, work), size * work
        if probe.kind == "chase":
            at = self._at("chase", probe.bytes, thread) + probe.bytes // LINE * LINE
            f = self._function("chase", pointer, number)
            return lambda: f(at, work), work * code.CHASED
        each = {
            "add": code.CHAIN,
            "wait": code.CHAIN,
            "sum": code.chains(self.target),
            "mix": code.MIXED,
        }
        at, f = self._at("", SMALL, thread), self._function(probe.kind, pointer, number)
        return lambda: f(at, work), work * each[probe.kind]

    def _function(self, name: str, *arguments: type) -> Callable[..., None]:
        return self._library.function(name, *arguments)

    def _at(self, kind: str, size: int, thread: int) -> int:
        """Memory of a thread. What is only read serves for all smaller sizes too."""
        key = (kind, size if kind == "chase" else 0, thread)
        found = self._memory.get(key)
        if found is None or found[2] < size:
            self._memory.pop(key, None)
            require_room(2 * size, "measuring this machine")
            owner, at = aligned(size + LINE)
            start = at - owner.ctypes.data
            if kind == "chase":
                _circle(owner, at, size)
            else:
                owner[start : start + size].view(np.float32)[:] = 1.0
            found = self._memory[key] = owner, at, size
        return found[1]


def _passed(call: Callable[[], None], clock: Callable[[], float]) -> float:
    """What a call takes by a clock: that of its thread leaves out what other programs do with the
    core meanwhile."""
    began = clock()
    call()
    return clock() - began


def _circle(owner: np.ndarray, at: int, size: int) -> None:
    """Fills memory with addresses, each in a line of its own, that lead through all lines and back,
    in no order. The word after the last line says where to begin."""
    lines = size // LINE
    order = np.random.default_rng(0).permutation(lines).astype(np.uint64)
    start = at - owner.ctypes.data
    words = owner[start : start + lines * LINE + LINE].view(np.uint64)
    words[order * (LINE // 8)] = at + np.roll(order, -1) * LINE
    words[lines * LINE // 8] = at + int(order[0]) * LINE
