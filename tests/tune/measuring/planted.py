"""The measuring process with candidates that do harm: by the factor of a split of `y.i`, one ends
the process, hangs, takes all memory, computes something else, or does so only in a later turn."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from tilewright.ir import dim as D
from tilewright.ir.target import Target
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import Nest, find, loop_names
from tilewright.runtime.device import HOST, DeviceKernel, Host
from tilewright.tune.measuring import race, worker

PROGRAM = "from tests.tune.measuring.planted import main; main()"
GROUP = """group kernel
  in a: f32[24,8]
  out y: f32[24,8]
  y[y.i,y.j] = max(a[y.i,y.j], 0.5) for y.i in 24, y.j in 8
"""
SEGFAULT, HANG, MEMORY, WRONG, LATER, BUG, KILLED = 2, 3, 4, 5, 6, 7, 8


def split(factor: int) -> str:
    return f"Split(loop='y.i', factor={factor})\n"


class Harm:
    """A kernel, before which something happens."""

    def __init__(self, kernel: DeviceKernel, harm: int) -> None:
        self.kernel, self.harm, self.calls = kernel, harm, 0

    @property
    def arguments(self) -> Sequence[Buffer]:
        return self.kernel.arguments

    def prepared(
        self, addresses: Sequence[int], sizes: Mapping[str, int], stream: int = 0
    ) -> Callable[[], None]:
        return partial(self.run, self.kernel.prepared(addresses, sizes), addresses)

    def run(self, launch: Callable[[], None], addresses: Sequence[int]) -> None:
        launch()
        self.calls += 1
        if self.harm == SEGFAULT:
            os.kill(os.getpid(), signal.SIGSEGV)
        elif self.harm == LATER and self.calls > 6:  # when all have run for the first time
            os.kill(os.getpid(), signal.SIGSEGV)
        elif self.harm == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.harm == HANG:
            time.sleep(60)
        elif self.harm == MEMORY:
            np.ones(1 << 50)
        elif self.harm == WRONG:
            from ctypes import c_float

            c_float.from_address(addresses[1]).value += 0.25

    def close(self) -> None:
        self.kernel.close()


class Device(Host):
    def kernel(self, nest: Nest, target: Target, code: bytes = b""):  # type: ignore
        made = HOST.kernel(nest, target, code)
        alone = loop_names(nest) == ["y.i.0", "y.i.1", "y.j"]  # no other steps
        factor = int(D.bounds(find(nest, "y.i.1")[0][0].extent)[1]) if alone else 0
        if factor == BUG:
            raise KeyError("a mistake of the emitter")
        return Harm(made, factor) if factor in range(2, 9) else made


def main() -> None:
    race.device_for = lambda target: Device()  # type: ignore[assignment]
    worker.main()
