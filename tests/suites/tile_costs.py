"""What tile kernels cost before they run, and how far ahead of Triton's interpreter they are.

    python -m tests.suites.tile_costs                  # cold compiles of examples, a warm launch
    python -m tests.suites.tile_costs --interpreter    # Triton itself has to be installed

Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table

import tilewright as tw
import tilewright.language as tl
from examples.tiles.__main__ import NAMES
from tilewright.driver.tile.jit import JITFunction

KERNELS = Path(__file__).with_name("interpreted_kernels.py")
SIZE, LAUNCHES, ROUNDS = 1024, 1000, 15


@tw.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, inside) + tl.load(y + at, inside), inside)


def compiling() -> dict[str, list[float]]:
    """Seconds of every compilation that the examples' checks ask for, by kernel; no cache."""
    found: dict[str, list[float]] = defaultdict(list)
    compiled = JITFunction.compiled

    def timed(self, *args, **kwargs):
        began = time.perf_counter()
        result = compiled(self, *args, **kwargs)
        found[f"{self.fn.__module__.rpartition('.')[2]}.{self.fn.__name__}"].append(
            time.perf_counter() - began
        )
        return result

    with patch.object(JITFunction, "compiled", timed), patch.dict(os.environ, TILEWRIGHT_CACHE="0"):
        launching(1)  # what only the first compilation of all loads
        found.clear()
        for name in NAMES:
            import_module(f"examples.tiles.{name}").check(True)
    return found


def launching(rounds: int = ROUNDS) -> float:
    """Seconds of one launch, of a kernel of three tensors and a number that does nearly nothing."""
    x, y, out = (torch.zeros(64) for _ in range(3))
    add[(1,)](x, y, out, 64, BLOCK=64)
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(LAUNCHES):
            add[(1,)](x, y, out, 64, BLOCK=64)
        times.append((time.perf_counter() - began) / LAUNCHES)
    return min(times)


def kernels_by(size: int, rounds: int, *ours: str) -> dict[str, float]:
    """Seconds of the kernels in interpreted_kernels.py."""
    env = dict(os.environ, TRITON_INTERPRET="0" if ours else "1")
    command = [sys.executable, *ours, str(KERNELS), str(size), str(rounds)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip() or "no output").splitlines()[-1]
        raise SystemExit(f"{' '.join(command[1:])} failed: {last}")
    return json.loads(done.stdout.splitlines()[-1])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suites.tile_costs")
    parser.add_argument(
        "--interpreter", action="store_true", help="time Triton's (pip install triton)"
    )
    parser.add_argument("--size", type=int, default=SIZE, help="rows and columns of its matrices")
    given = parser.parse_args(argv)
    out = Table("", "", title="tile kernels: what they cost", show_header=False)
    if given.interpreter:
        ours = kernels_by(given.size, ROUNDS, "-m", "tilewright.triton", "--device", "cpu")
        for name, seconds in kernels_by(given.size, 1).items():
            times = f"{seconds:.2f} s against {1e3 * ours[name]:.2f} ms"
            out.add_row(f"interpreter over ours, {name}", f"{seconds / ours[name]:.0f}x ({times})")
    else:
        for name, times in sorted(compiling().items()):
            spread = f"{1e3 * min(times):.0f} to {1e3 * max(times):.0f} ms"
            out.add_row(f"cold compile, {name}", f"{spread}, {len(times)} times")
        out.add_row("warm launch", f"{1e6 * launching():.1f} µs")
    Console(width=100).print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
