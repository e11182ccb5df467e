"""Whole networks with `optimize="search"` and without, interleaved in one process.

    python -m tests.superopt.end_to_end                            # all of them
    python -m tests.superopt.end_to_end nasrnn bert --rounds 31    # some, longer
    python -m tests.superopt.end_to_end --tiny --json found.json

Each network of `networks.py` is compiled twice by the same compiler, into a cache that is empty at
the start. The results of both are judged against float64. Then both take turns: the table has the
ratio of the medians, the interval that holds it with 95 %, and what the estimate of the search said
it would be. Where a search finds nothing that a clock calls faster, both are the same program, and
the ratio is noise: it counts as 1. Search times stand beside those that were published of TENSAT
(Yang et al., MLSys 2021), taken on another machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch._dynamo
from rich.console import Console
from rich.table import Table

import tilewright as tw
from tests.superopt import networks
from tilewright.base.events import Log, recording
from tilewright.bench.example import Example
from tilewright.bench.measure import busy, geometric_mean, interleaved, ratio_interval
from tilewright.bench.oracle import disagreements, in_double
from tilewright.driver.looking import optimize
from tilewright.ir.pipeline import Pipeline

# Seconds of search that TENSAT's authors report.
TENSAT = {
    "bert": 1.4,
    "resnext": 0.7,
    "nasnet": 10.6,
    "nasrnn": 0.5,
    "inception": 5.1,
    "squeezenet": 0.3,
}
# What is asked of the ratios: of each, of their geometric mean, of some.
LEAST, MEAN, OF_ONE = 0.99, 1.10, {"nasrnn": 1.3}


@dataclass(frozen=True)
class Searched:
    """What a search said while a network was compiled."""

    seconds: float = 0.0
    pieces: int = 0
    before: float = 0.0  # seconds of a call, by the estimate
    after: float = 0.0
    rules: dict[str, int] = field(default_factory=dict)  # that prove the chosen graphs
    said: list[str] = field(default_factory=list)  # by the clock

    @property
    def predicted(self) -> float:
        return self.before / self.after if self.after else 1.0


@dataclass(frozen=True)
class Row:
    """One network: what the search found and what it gained."""

    name: str
    searched: Searched
    compiling: tuple[float, float]  # seconds without and with a search
    kernels: tuple[int, int]  # that a call runs
    without: list[float]  # seconds of a call, in each round
    with_search: list[float]
    same: bool  # both are the same program
    wrong: list[str]

    @property
    def measured(self) -> float:
        return median(self.without) / median(self.with_search)

    @property
    def counted(self) -> float:
        return 1.0 if self.same else self.measured


def searched(heard: Log) -> Searched:
    """By the events of a compilation. A search may run again for a program that has other layers as
    well: what it finds is the same."""
    events = heard.of("search")
    runs = [e.data["whole"] for e in events if "whole" in e.data]
    found = runs[0].found if runs else ()
    return Searched(
        sum(e.data["seconds"] for e in events if "whole" in e.data),
        runs[0].pieces if runs else 0,
        runs[0].before if runs else 0.0,
        runs[0].after if runs else 0.0,
        dict(Counter(s.rule for f, _ in found for s in f.proof).most_common()),
        [str(e.data["measured"]) for e in events if "measured" in e.data],
    )


def compiled(example: Example, **options: Any) -> tuple[Callable[..., Any], float]:
    """The network and the seconds that compiling it took."""
    began = time.perf_counter()
    made = tw.compile(example.module, *example.inputs, strict=True, **options)
    return made, time.perf_counter() - began


def measured(name: str, passes: Pipeline, rounds: int, tiny: bool) -> Row:
    torch._dynamo.reset()
    example = networks.build(name, tiny)
    with torch.no_grad():
        eager = example.module(*example.inputs)
        exact = in_double(networks.build(name, tiny).module.double(), *example.inputs)
        plain, plain_seconds = compiled(example)
        with recording() as heard:
            fast, fast_seconds = compiled(example, optimize="search", passes=passes)
        wrong = [
            f"{which}: {what}"
            for which, f in (("without a search", plain), ("with a search", fast))
            for what in disagreements(f(*example.inputs), eager, exact)
        ]
        calls = {"without": plain, "with": fast}
        times = interleaved(
            {k: lambda f=f: f(*example.inputs) for k, f in calls.items()}, max(rounds, 1)
        )
    programs = [tw.explain(f).programs for f in (plain, fast)]
    listed = [[(k.name, k.calls) for p in ps for k in p.kernels] for ps in programs]
    return Row(
        name,
        searched(heard),
        (plain_seconds, fast_seconds),
        (_calls(listed[0]), _calls(listed[1])),
        times["without"],
        times["with"],
        listed[0] == listed[1],
        wrong,
    )


def _calls(listed: Sequence[tuple[str, int]]) -> int:
    return sum(count for _, count in listed)


COLUMNS = (
    "network",
    "without, ms",
    "with, ms",
    "gain",
    "within",
    "predicted",
    "kernels",
    "search, s",
    "TENSAT, s",
    "compiling, s",
    "rules",
)


def table(rows: Sequence[Row]) -> Table:
    out = Table(pad_edge=False, box=None, header_style="bold")
    for k, name in enumerate(COLUMNS):
        out.add_column(name, justify="right" if 0 < k < len(COLUMNS) - 1 else "left")
    for r in rows:
        low, high = ratio_interval(r.without, r.with_search)
        s = r.searched
        out.add_row(
            r.name,
            f"{1e3 * median(r.without):.3f}",
            f"{1e3 * median(r.with_search):.3f}",
            "same program" if r.same else f"{r.measured:.3f}x",
            f"{low:.3f}-{high:.3f}",
            f"{s.predicted:.3f}x",
            f"{r.kernels[0]} to {r.kernels[1]}",
            f"{s.seconds:.1f}",
            str(TENSAT.get(r.name, "")),
            f"{r.compiling[0]:.0f}, {r.compiling[1]:.0f}",
            ", ".join(f"{n} {rule}" for rule, n in list(s.rules.items())[:3]),
        )
    return out


def verdicts(rows: Sequence[Row]) -> list[tuple[str, bool]]:
    """What is asked, and whether it holds."""
    found = {r.name: r.counted for r in rows}
    lowest = min(found, key=lambda n: found[n])
    mean = geometric_mean(list(found.values()))
    out = [
        (f"no network below {LEAST}x: {lowest} has {found[lowest]:.3f}x", found[lowest] >= LEAST),
        (f"geometric mean at least {MEAN:.2f}x: {mean:.3f}x", mean >= MEAN),
    ]
    for name, least in OF_ONE.items():
        if name in found:
            said = f"{name} at least {least}x: {found[name]:.3f}x"
            out.append((said, found[name] >= least))
    return out


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.superopt.end_to_end",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = list(networks.BUILDERS)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"of {', '.join(known)}")
    parser.add_argument("--rounds", type=int, default=15, help="in which both take turns")
    parser.add_argument("--budget", type=int, default=60, help="seconds that a search may take")
    parser.add_argument("--tiny", action="store_true", help="the same structures, small")
    parser.add_argument("--json", type=Path, help="write all times and findings to this file")
    given = parser.parse_args(arguments)
    for name in given.networks:
        if name not in known:
            parser.error(f"no network is called {name}; there are {', '.join(known)}")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    # Into a file the table is as wide as it needs to be.
    console = Console() if sys.stdout.isatty() else Console(width=200)
    if warning := busy():
        console.print(f"[yellow]{warning}[/]", highlight=False)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="tilewright-end-to-end-") as folder:
        os.environ["TILEWRIGHT_CACHE_DIR"] = folder
        passes = optimize.passes(None, given.budget)
        for name in given.networks or networks.BUILDERS:
            began = time.perf_counter()
            rows.append(measured(name, passes, given.rounds, given.tiny))
            took = time.perf_counter() - began
            gc.collect()
            said = "; ".join(rows[-1].searched.said)
            console.print(f"{name}: {took:.0f} s; {said}", highlight=False, soft_wrap=True)
            for what in rows[-1].wrong:
                console.print(f"[red]wrong[/] {name}, {what}", highlight=False)
            if given.json is not None:
                given.json.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")
    console.print(table(rows))
    judged = verdicts(rows)
    for said, holds in judged:
        colour = "green" if holds else "red"
        console.print(f"[{colour}]{'holds' if holds else 'fails'}[/] {said}", highlight=False)
    return int(any(r.wrong for r in rows) or not all(holds for _, holds in judged))


if __name__ == "__main__":
    sys.exit(main())
