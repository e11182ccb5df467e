"""Random tile kernels on a GPU, on the processor and step by step: all three agree.

    python -m tests.gpu.random_tiles                        # 2,000 kernels
    python -m tests.gpu.random_tiles --first 500 --count 300 --seconds 60
    python -m tests.gpu.random_tiles --ways lowered         # without a GPU: only its code is made
    python -m tests.gpu.random_tiles --ways threads         # and run on numpy, by kernel/simt.py

Seeds are dealt out to processes. One that dies, or whose GPU cannot be used any more, is started
again behind the kernel that it died of, which counts as a failure.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

WAYS = ("cuda", "native")  # compared with the interpreter
COMMAND = [sys.executable, "-m", "tests.gpu.random_tiles"]


@dataclass
class Tally:
    done: set[int] = field(default_factory=set)
    wrong: dict[int, str] = field(default_factory=dict)

    def summary(self) -> str:
        return f"{len(self.done)} kernels, {len(self.wrong)} of them wrong"


def judge(seeds: range, ways: tuple[str, ...]) -> None:
    """In a process of its own: a line for every seed."""
    import torch

    from tests.lang.tile.random_kernels import kernel
    from tests.lang.tile.random_running import failure

    for seed in seeds:
        print(f"begin {seed}", flush=True)
        found = failure(kernel(seed), ways)
        said = "" if found is None else " ".join(f"{found.kind}: {found.text}".split())[:300]
        print(f"end {seed} {said}", flush=True)
        if found is not None and "cuda" in ways:
            torch.cuda.synchronize()  # raises where the context is lost: the process ends


def run(
    first: int, count: int, seconds: float, jobs: int = 0, ways: tuple[str, ...] = WAYS
) -> Tally:
    """Kernels of the seeds from `first` on, as many as there is time for."""
    jobs = min(jobs or max(1, (os.cpu_count() or 2) - 2), count)
    tally, until = Tally(), time.monotonic() + seconds
    parts = [range(first + k, first + count, jobs) for k in range(jobs)]
    threads = [threading.Thread(target=_part, args=(x, ways, until, tally)) for x in parts]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return tally


def _part(seeds: range, ways: tuple[str, ...], until: float, tally: Tally) -> None:
    while seeds and time.monotonic() < until:
        numbers = f"{seeds.start},{seeds.stop},{seeds.step}"
        command = [*COMMAND, "--judge", numbers, "--ways", *ways]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        end = threading.Timer(max(0.0, until - time.monotonic()), process.kill)
        end.start()
        assert process.stdout is not None
        at = None
        for line in process.stdout:
            what, _, rest = line.strip().partition(" ")
            seed, _, said = rest.partition(" ")
            if what == "begin":
                at = int(seed)
            elif what == "end":
                tally.done.add(int(seed))
                if said:
                    tally.wrong[int(seed)] = said
        died = process.wait()
        end.cancel()
        if not died or time.monotonic() >= until or at is None:
            return
        if at not in tally.done:
            tally.done.add(at)
            tally.wrong[at] = f"its process ended with {died}"
        seeds = range(at + seeds.step, seeds.stop, seeds.step)


def main() -> int:
    given = argparse.ArgumentParser(prog="python -m tests.gpu.random_tiles")
    given.add_argument("--first", type=int, default=0)
    given.add_argument("--count", type=int, default=2000)
    given.add_argument("--seconds", type=float, default=3600.0)
    given.add_argument("--jobs", type=int, default=0, help="all cores but two by default")
    given.add_argument("--ways", nargs="+", default=list(WAYS))
    given.add_argument("--judge", help=argparse.SUPPRESS)
    options = given.parse_args()
    if options.judge:
        judge(range(*map(int, options.judge.split(","))), tuple(options.ways))
        return 0
    tally = run(options.first, options.count, options.seconds, options.jobs, tuple(options.ways))
    for seed, said in sorted(tally.wrong.items()):
        print(f"{seed}: {said}")
    print(tally.summary())
    return int(bool(tally.wrong) or len(tally.done) < options.count)


if __name__ == "__main__":
    sys.exit(main())
