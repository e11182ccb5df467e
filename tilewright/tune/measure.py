"""Nests run natively on memory of a group's shapes, taking turns, and what a call of each takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from tilewright.graph.classify import guess
from tilewright.ir import dim as D
from tilewright.ir.target import Target
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import Nest
from tilewright.runtime.cuda.device import device
from tilewright.runtime.cuda.gpu import Gpu
from tilewright.runtime.device import HOST, Device, DeviceKernel, DeviceMemory
from tilewright.runtime.memory import require_room

# Rounds of turns: a median of so many is robust against a few interruptions.
ROUNDS = 7
# A sample shorter than this is mostly the clock's and the call's own time.
SAMPLE_SECONDS = 1e-3
# Inputs take turns, so that a small one is not always found in the nearest cache, which other
# kernels of a program would have used in between.
MOST_SETS = 4


Launch = Callable[[], None]


class Arguments:
    """Memory for the arguments of nests of one group: floats at random, whole numbers zero, which
    is an index into anything."""

    def __init__(self, nest: Nest, target: Target, device: Device) -> None:
        self.device = device
        own = [b for b in nest.buffers if b.scope in ("in", "out")]
        bytes_of = [guess(b.size) * b.dtype.bytes for b in own]
        sets = min(MOST_SETS, max(1, -(-2 * target.l2 // max(1, sum(bytes_of)))))
        require_room(sets * sum(bytes_of), "timing a kernel")
        rng = np.random.default_rng(0)
        self.buffers = own
        self.sets = [
            [self._filled(b, n, rng) for b, n in zip(own, bytes_of, strict=True)]
            for _ in range(sets)
        ]
        self.sizes = {s.name: guess(D.as_int(s)) for s in nest.dims}

    def _filled(self, b: Buffer, size: int, rng: np.random.Generator) -> DeviceMemory:
        made = self.device.allocate(size)
        data = np.zeros(size, np.uint8)
        if b.scope == "in" and b.dtype.is_float:
            numbers = data.view(b.dtype.memory)
            drawn = rng.standard_normal(numbers.size, np.float32)
            coded = b.dtype.format is not None and numbers.dtype.kind != "f"
            numbers[:] = b.dtype.format.encode(drawn) if coded and b.dtype.format else drawn
        self.device.write(made, data)
        return made

    def clear(self, numbers: Sequence[int]) -> None:
        """Fills arguments of the first set with a pattern, so that what is not written is seen."""
        for k in numbers:
            memory = self.sets[0][k]
            self.device.write(memory, np.full(memory.size, 0x5A, np.uint8))

    def results(self, numbers: Sequence[int]) -> list[np.ndarray]:
        """Arguments of the first set, as they are after a call."""
        self.device.synchronise()
        out = []
        for k in numbers:
            memory, dtype = self.sets[0][k], self.buffers[k].dtype
            data = self.device.read(memory, np.empty(memory.size, np.uint8)).view(dtype.memory)
            coded = dtype.format is not None and data.dtype.kind != "f"
            out.append(dtype.format.decode(data) if coded and dtype.format else data)
        return out

    def launches(self, f: DeviceKernel) -> list[Launch]:
        """A call of a kernel with each set."""
        return [f.prepared([m.address for m in arguments], self.sizes) for arguments in self.sets]

    def seconds(self, launches: Sequence[Launch], calls: int) -> float:
        """Of one call, in the mean of so many."""
        self.device.synchronise()
        began = time.perf_counter()
        for k in range(calls):
            launches[k % len(launches)]()
        self.device.synchronise()
        return (time.perf_counter() - began) / calls


def device_for(target: Target) -> Device:
    """Where code for a target runs."""
    return HOST if target.grid is None else Gpu(device())


def timed(
    nests: Sequence[Nest],
    target: Target,
    rounds: int = ROUNDS,
    going_on: Callable[[], bool] = lambda: True,
    on: Device | None = None,
) -> list[float] | None:
    """Seconds of a call of each nest: medians over rounds in which they take turns. None where
    `going_on` said no before a third of the rounds was over."""
    on = on or device_for(target)
    kernels = [on.kernel(n, target) for n in nests]
    arguments = Arguments(nests[0], target, on)
    launches = [arguments.launches(f) for f in kernels]
    calls = []
    for f in launches:
        arguments.seconds(f, len(f))  # the first touch of everything
        once = arguments.seconds(f, 1)
        calls.append(max(1, min(1000, int(SAMPLE_SECONDS / max(once, 1e-7)))))
    samples: list[list[float]] = [[] for _ in launches]
    for k in range(rounds):
        if not going_on():
            if k < max(1, rounds // 3):
                return None
            break
        for f, count, found in zip(launches, calls, samples, strict=True):
            found.append(arguments.seconds(f, count))
    del launches
    for f in kernels:
        f.close()
    return [median(x) for x in samples]
