"""How fast models and operators run in two checkouts of this repository, such as before and after
a change.

    python -m tests.driver.compare_trees OLD NEW
    python -m tests.driver.compare_trees OLD NEW --cases bert mlp softmax matmul_bf16
    python -m tests.driver.compare_trees OLD NEW --rounds 31 --threads 4 --json speed.json

OLD and NEW are folders that hold `tilewright/`. For each case there is one process per checkout;
both compile it first and then take turns, so that a machine that slows down slows both. The table
shows old over new, above 1 where the new checkout is faster, with the interval that holds the ratio
with 95 %, and the seconds to the first result.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tilewright.base.machine import usable_cores
from tilewright.bench.catalog import Case, chosen
from tilewright.bench.measure import MIN_ROUNDS, busy, ratio, ratio_interval, take_turns

# A turn shorter than this would time the clock and the scheduler.
TURN_SECONDS = 0.1

# What each process runs. It uses what every checkout has had for long, and answers in JSON lines.
WORKER = """
import json, sys, time, torch
import tilewright as tw
from tilewright.bench import models, operators
from tilewright.bench.example import prepared
from tilewright.runtime import pool
name, dtype, threads, tiny = *sys.argv[1:3], int(sys.argv[3]), sys.argv[4] == "True"
torch.set_num_threads(threads)
pool.set_threads(threads)
build = (models.BUILDERS | operators.BUILDERS)[name]
example = prepared(build, tiny, getattr(torch, dtype))
with torch.no_grad():
    began = time.perf_counter()
    f = tw.compile(example.module, *example.inputs)
    f(*example.inputs)
    print(json.dumps(time.perf_counter() - began), flush=True)
    for line in sys.stdin:
        count = int(line)
        began = time.perf_counter()
        for _ in range(count):
            f(*example.inputs)
        print(json.dumps((time.perf_counter() - began) / count), flush=True)
"""


class Worker:
    """A case in the process of one checkout."""

    def __init__(self, tree: Path, cache: Path, case: Case, threads: int, tiny: bool) -> None:
        paths = {"PYTHONPATH": str(tree), "TILEWRIGHT_CACHE_DIR": str(cache)}
        self.tree, self.name = tree, case.name
        self.log = cache / "errors.txt"
        what = case.builder or case.name, case.dtype or "float32"
        with self.log.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", WORKER, *what, str(threads), str(tiny)],
                cwd=cache,
                env=os.environ | paths,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.first = self._answer()

    def _answer(self) -> float:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            why = self.log.read_text()[-3000:]
            raise SystemExit(f"{self.name} failed in {self.tree}:\n{why}")
        return json.loads(line)

    def seconds(self, count: int) -> float:
        """Of one call, in the mean of so many."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return self._answer()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: Any) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@dataclass(frozen=True)
class Speed:
    """Times are seconds: of one call, the medians of all rounds, and of the first result."""

    name: str
    old: float
    new: float
    ratio: float
    low: float
    high: float
    old_first: float
    new_first: float


def compared(
    case: Case,
    trees: Sequence[Path],
    rounds: int,
    threads: int,
    tiny: bool = False,
    tick: Callable[[], None] = lambda: None,
) -> Speed:
    with (
        tempfile.TemporaryDirectory() as a,
        tempfile.TemporaryDirectory() as b,
        Worker(trees[0], Path(a), case, threads, tiny) as old,
        Worker(trees[1], Path(b), case, threads, tiny) as new,
    ):
        once = min(w.seconds(3) for w in (old, new))
        count = max(1, int(TURN_SECONDS / max(once, 1e-7)))
        turns = {"old": lambda: old.seconds(count), "new": lambda: new.seconds(count)}
        times = take_turns(turns, rounds, tick)
        first = old.first, new.first
    before, after = times["old"], times["new"]
    interval = ratio_interval(before, after)
    return Speed(case.name, median(before), median(after), ratio(before, after), *interval, *first)


def table(found: Sequence[Speed]) -> Table:
    out = Table(title="old / new: above 1 the new one is faster", title_justify="left")
    for column in ("case", "old, ms", "new, ms", "old/new", "95 % within", "first result, s"):
        out.add_column(column, justify="left" if column == "case" else "right")
    for s in found:
        times = f"{s.old * 1e3:.3f}", f"{s.new * 1e3:.3f}"
        within = f"{s.low:.3f}–{s.high:.3f}"
        first = f"{s.old_first:.2f} → {s.new_first:.2f}"
        out.add_row(s.name, *times, f"{s.ratio:.3f}", within, first)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("trees", nargs=2, type=Path, metavar="TREE", help="the old and the new one")
    parser.add_argument(
        "--cases", nargs="+", default=["models", "ops"], help="as tilewright.bench names them"
    )
    parser.add_argument("--rounds", type=int, default=15, help=f"at least {MIN_ROUNDS}")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--tiny", action="store_true", help="small sizes: tries the command itself")
    parser.add_argument("--json", type=Path, help="write every number to this file")
    options = parser.parse_args()
    trees = [tree.resolve() for tree in options.trees]
    for tree in trees:
        if not (tree / "tilewright" / "__init__.py").is_file():
            parser.error(f"{tree} holds no tilewright/: name the folder of a checkout")
    rounds = max(options.rounds, MIN_ROUNDS)
    cases = chosen(options.cases)
    console = Console()
    if (why := busy()) is not None:
        console.print(why)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    found: list[Speed] = []
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("", total=len(cases) * rounds)
        for k, case in enumerate(cases):
            bar.update(task, description=case.name, completed=k * rounds)
            tick = lambda: bar.advance(task)  # noqa: E731
            found.append(compared(case, trees, rounds, options.threads, options.tiny, tick))
    console.print(table(found))
    if options.json:
        options.json.write_text(json.dumps([asdict(s) for s in found], indent=1))


if __name__ == "__main__":
    main()
