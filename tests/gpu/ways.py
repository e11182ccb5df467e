"""One product by every way to bring its operands, each in a process of its own: a launch that fails
takes the context of its process with it.

    python -m tests.gpu.ways                 # right, many times over, and how long a launch takes
    python -m tests.gpu.ways --as-it-was     # blocks of a cluster end at a relaxed barrier
    python -m tests.gpu.ways --sanitizer     # under compute-sanitizer, where the machine has it
    python -m tests.gpu.ways --clusters      # only those
    python -m tests.gpu.ways --rows 4096 --columns 4096 --deep 4096
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from tests.gpu.random_products import Product
from tests.gpu.timing import medians
from tilewright.driver.program.grid_run import GridKernel, target_of
from tilewright.kernel.defaults import grid_group_products
from tilewright.kernel.defaults.grid_warp_products import Way
from tilewright.kernel.nest import Stmt
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import print_trace
from tilewright.llvm import grid
from tilewright.llvm.bulk_copies import BulkCopies
from tilewright.runtime.cuda.device import device

ROOT = Path(__file__).resolve().parents[2]
WAYS = (
    *grid_group_products.WAYS,
    *(Way(False, k) for k in (2, 4)),
    *(Way(True, 4, x) for x in (False, True)),
)
LONG = 120.0  # seconds of one way, at most
TOGETHER = 50  # launches that are not waited for one by one


def _produce(self: BulkCopies, body: tuple[Stmt, ...]) -> None:
    self.producing = True
    self.body.block(body)
    self.producing = False


def _leave(self: Any) -> None:
    if self.sums.cluster:
        self.sums.meet()


def one(given: argparse.Namespace) -> None:
    """One way, in this process."""
    on = device(0)
    target = target_of(on)
    p = Product(given.rows, given.columns, given.deep, across=(False, False), epilogue="bias")
    with patch.object(grid_group_products, "WAYS", (WAYS[given.way],)):
        trace, nest = default_schedule(p.group(), target)
    with ExitStack() as before:
        if given.as_it_was:
            before.enter_context(patch.object(BulkCopies, "produce", _produce))
            before.enter_context(patch.object(grid._Thread, "leave", _leave))
        k = GridKernel(nest, target, on)
    shapes = {"a": (p.rows, p.deep), "w": (p.columns, p.deep), "v": (p.columns,)}
    numbers = {n: torch.randint(-4, 5, s, device="cuda") / 2 for n, s in shapes.items()}
    want = (numbers["a"] @ numbers["w"].T + numbers["v"]).bfloat16()
    ins = {n: x.bfloat16() for n, x in numbers.items()}
    y = torch.empty_like(want)
    stream = torch.cuda.current_stream().cuda_stream

    def launch() -> None:
        k({**ins, "y": y}, {}, stream)

    for _ in range(0, given.times, TOGETHER):
        y.fill_(float("nan"))
        for _ in range(min(TOGETHER, given.times)):
            launch()
        torch.cuda.synchronize()
        assert torch.equal(y, want), "the result is wrong"
    us = 0.0 if given.sanitizer else 1e6 * medians({"ours": [launch]}, 10)["ours"]
    text = print_trace(trace)
    made = [x for x in text.splitlines() if x.startswith(("Walk", "Roles", "Pragma", "Pipeline"))]
    print(f"right {given.times} times, {us:.1f} us; {' '.join(made)}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.ways", description=__doc__)
    # Of a convolution of single pixels: 64 images of 112 x 112, 64 channels.
    parser.add_argument("--rows", type=int, default=64 * 112 * 112)
    parser.add_argument("--columns", type=int, default=64)
    parser.add_argument("--deep", type=int, default=64)
    parser.add_argument("--times", type=int, default=2000)
    parser.add_argument("--as-it-was", action="store_true")
    parser.add_argument("--sanitizer", action="store_true")
    parser.add_argument("--clusters", action="store_true")
    parser.add_argument("--way", type=int, default=-1, help="only this one, in this process")
    given = parser.parse_args()
    if given.way >= 0:
        one(given)
        return
    command = [sys.executable, "-m", "tests.gpu.ways", *sys.argv[1:]]
    if given.sanitizer:
        tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        if not Path(tool).exists():
            sys.exit("there is no compute-sanitizer")
        command = [tool, "--tool", "memcheck", *command]
    failed = 0
    for k, way in enumerate(WAYS):
        if given.clusters and way.cluster == 1:
            continue
        try:
            done = subprocess.run(
                [*command, "--way", str(k)], cwd=ROOT, capture_output=True, text=True, timeout=LONG
            )
        except subprocess.TimeoutExpired:
            failed += 1
            print(f"HANG {way}", flush=True)
            continue
        failed += done.returncode != 0
        said = done.stdout.splitlines() if not done.returncode else done.stderr.splitlines()[-6:]
        kept = [x for x in said if x.startswith("right") or done.returncode or "ERROR" in x]
        print(f"{'ok  ' if not done.returncode else 'FAIL'} {way}: {' | '.join(kept)}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
