"""Nests run natively on memory of a group's shapes, taking turns, and what a call of each takes."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from tilewright.graph.classify import guess
from tilewright.ir import dim as D
from tilewright.ir.target import Target
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import Nest
from tilewright.runtime.memory import aligned, require_room
from tilewright.runtime.native import address_array, size_array
from tilewright.runtime.nests import NestKernel

# Rounds of turns: a median of so many forgives a few interruptions.
ROUNDS = 7
# A sample shorter than this is mostly the clock's and the call's own time.
SAMPLE_SECONDS = 1e-3
# Inputs take turns, so that a small one is not always found in the nearest cache, which other
# kernels of a program would have used in between.
MOST_SETS = 4


class Arguments:
    """Memory for the arguments of nests of one group: floats at random, whole numbers zero, which
    is an index into anything."""

    def __init__(self, nest: Nest, target: Target) -> None:
        own = [b for b in nest.buffers if b.scope in ("in", "out")]
        sizes = [guess(b.size) * b.dtype.bytes for b in own]
        sets = min(MOST_SETS, max(1, -(-2 * target.l2 // max(1, sum(sizes)))))
        require_room(sets * sum(sizes), "timing a kernel")
        rng = np.random.default_rng(0)
        self.kept: list[np.ndarray] = []
        self.sets = []
        for _ in range(sets):
            addresses = [self._filled(b, n, rng) for b, n in zip(own, sizes, strict=True)]
            self.sets.append(address_array(addresses))
        values = [guess(D.as_int(s)) for s in nest.dims]
        self.dims = size_array(values)

    def _filled(self, b: Buffer, size: int, rng: np.random.Generator) -> int:
        raw, address = aligned(size)
        self.kept.append(raw)
        raw[:] = 0
        if b.scope == "in" and b.dtype.name in ("f32", "f64"):
            start = address - raw.ctypes.data
            data = raw[start : start + size].view(b.dtype.numpy)
            data[:] = rng.standard_normal(data.size, np.float32)
        return address

    def seconds(self, f: NestKernel, calls: int) -> float:
        """Of one call, in the mean of so many."""
        numbers, sets = ctypes.addressof(self.dims), [ctypes.addressof(s) for s in self.sets]
        began = time.perf_counter()
        for k in range(calls):
            f.function(sets[k % len(sets)], numbers)
        return (time.perf_counter() - began) / calls


def timed(
    nests: Sequence[Nest],
    target: Target,
    rounds: int = ROUNDS,
    going_on: Callable[[], bool] = lambda: True,
) -> list[float] | None:
    """Seconds of a call of each nest: medians over rounds in which they take turns. None where
    `going_on` said no before a third of the rounds was over."""
    natives = [NestKernel(n, target) for n in nests]
    arguments = Arguments(nests[0], target)
    calls = []
    for f in natives:
        arguments.seconds(f, len(arguments.sets))  # the first touch of everything
        once = arguments.seconds(f, 1)
        calls.append(max(1, min(1000, int(SAMPLE_SECONDS / max(once, 1e-7)))))
    samples: list[list[float]] = [[] for _ in natives]
    for k in range(rounds):
        if not going_on():
            if k < max(1, rounds // 3):
                return None
            break
        for f, count, found in zip(natives, calls, samples, strict=True):
            found.append(arguments.seconds(f, count))
    for f in natives:
        f.close()
    return [median(x) for x in samples]
