"""What a call costs while another process holds one of the cores.

    python -m tests.driver.taken_core

Layers of a few sizes, alone and next to a process that never rests: medians, and their ratio. Twice
the time is what is left of two cores; much more would say that threads wait for one that cannot
run.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import tilewright as tw
from tilewright.runtime import pool

BUSY = "import os\nos.sched_setaffinity(0, {core})\nwhile True: pass"


@dataclass(frozen=True)
class Slowdown:
    """Seconds of a call alone, and with a core taken; whether results were right throughout."""

    alone: float
    taken: float
    right: bool


def layers(count: int, width: int) -> nn.Module:
    parts = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(count)]
    return nn.Sequential(*parts).eval().requires_grad_(False)


def median_seconds(call: Callable[[], Any], times: int) -> float:
    for _ in range(5):
        call()
    found = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def slowdown(count: int, width: int, calls: int = 40) -> Slowdown:
    model, x = layers(count, width), torch.randn(64, width)
    fast = tw.compile(model, x, strict=True)
    alone = median_seconds(lambda: fast(x), calls)
    core = max(os.sched_getaffinity(0))
    busy = subprocess.Popen([sys.executable, "-c", BUSY.format(core={core})])
    try:
        time.sleep(0.3)
        taken = median_seconds(lambda: fast(x), calls)
        right = torch.allclose(fast(x), model(x), rtol=1e-4, atol=1e-5)
    finally:
        busy.kill()
        busy.wait()
    return Slowdown(alone, taken, right)


def main() -> None:
    print(f"{pool.get_threads()} threads")
    for count, width in ((12, 64), (6, 512)):
        found = slowdown(count, width)
        says = "" if found.right else ", and wrong"
        times = f"{found.alone * 1e3:.3f} ms alone, {found.taken * 1e3:.3f} ms with a core taken"
        print(f"{count} layers of {width}: {times}, {found.taken / found.alone:.2f}x{says}")


if __name__ == "__main__":
    main()
