"""Checks the examples and times them against torch: `python -m examples.tiles --help`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import cast

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import examples.tiles
import tilewright as tw
from examples.tiles.measuring import TRIAL, Example, Timed, timed
from tilewright.bench.measure import busy
from tilewright.bench.plots import require_matplotlib

NAMES = ("add", "softmax", "layernorm", "dropout", "matmul", "attention", "grouped_gemm")
ROUNDS = 25
CURVE_ROUNDS = 9  # of each point: a plot has many
BAR = 6  # characters that stand for torch's speed
WIDTH = 116  # of the table where no terminal says how wide it is


def example(name: str) -> Example:
    return cast(Example, import_module(f"examples.tiles.{name}"))


def table(results: Sequence[Timed], threads: int) -> Table:
    title = f"tile kernels and torch, {threads} thread{'s' if threads > 1 else ''}"
    out = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    out.add_column("case", no_wrap=True)
    for heading in ("ours ms", "torch ms", "× torch", "95 %", "ours", "goal"):
        out.add_column(heading, justify="right", no_wrap=True)
    out.add_column("(│ is torch)", no_wrap=True, min_width=2 * BAR + 1)
    for t in results:
        low, high = t.interval
        ours, peer = (f"{1e3 * median(x):.3f}" for x in (t.ours, t.peer))
        rate = f"{t.case.rate(median(t.ours)):.1f} {t.case.unit}"
        goal = "" if t.case.goal is None else f"{t.case.goal:.2f}"
        times = f"{t.times_faster:.2f}"
        if t.case.goal is not None:
            times = f"[{'green' if t.times_faster >= t.case.goal else 'yellow'}]{times}[/]"
        out.add_row(
            t.case.name, ours, peer, times, f"{low:.2f}–{high:.2f}", rate, goal, bar(t.times_faster)
        )
    return out


def bar(times: float) -> str:
    """A length, with a mark where torch is."""
    filled = "━" * min(round(BAR * times), 2 * BAR)
    return f"{filled[:BAR]:<{BAR}}│{filled[BAR:]}"


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.tiles",
        description=examples.tiles.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="draw curves over sizes into DIR")
    parser.add_argument("--quick", action="store_true", help="small sizes, three rounds")
    parser.add_argument("--rounds", type=int, help=f"of the table, {ROUNDS} by default")
    cores = os.cpu_count() or 1
    parser.add_argument("--threads", type=int, default=min(2, cores), help="of ours and of torch")
    given = parser.parse_args(argv)
    unknown = [n for n in given.names if n not in NAMES]
    if unknown:
        parser.error(f"no example is called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if given.threads < 1 or (given.rounds is not None and given.rounds < 1):
        parser.error("--threads and --rounds are at least 1")
    if given.plot is not None:
        require_matplotlib()
    return given


def main(argv: Sequence[str] | None = None) -> int:
    """0 where every result is right; how fast they are does not matter to it."""
    given = options(argv)
    rounds = given.rounds or (TRIAL if given.quick else ROUNDS)
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)
    before = torch.get_num_threads(), tw.get_threads()
    torch.set_num_threads(given.threads)
    tw.set_threads(given.threads)
    wrong, results = 0, []
    warning = None if given.quick else busy()
    try:
        for name in given.names or NAMES:
            shown = example(name)
            verdicts = shown.check(given.quick)
            bad = [v for v in verdicts if not v.right]
            wrong += len(bad)
            console.print(f"{name}: {len(verdicts) - len(bad)} of {len(verdicts)} checks right")
            for v in bad:
                console.print(f"  {v}", markup=False)
            for case in shown.cases(given.quick):
                results.append(timed(case, rounds))
                console.print(f"  timed {case.name}, {len(results[-1].ours)} rounds")
            if given.plot is not None:
                shown.plot(given.quick, min(rounds, CURVE_ROUNDS)).run(save_path=given.plot)
                console.print(f"  drew {name}.png")
    finally:
        torch.set_num_threads(before[0])
        tw.set_threads(before[1])
    console.print(table(results, given.threads))
    if given.quick:
        console.print("Sizes are small and rounds few: these times say nothing about speed.")
    if warning:
        console.print(warning)
    if given.plot is not None:
        console.print(f"plots (bands hold 95 %) and their numbers: {given.plot}", markup=False)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
