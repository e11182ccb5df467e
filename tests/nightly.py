"""All random tests with fresh seeds, for a given time or a given number of draws.

    python -m tests.nightly --minutes 60                       # everything, for an hour
    python -m tests.nightly --minutes 10 --only kernels,torch  # some of them
    python -m tests.nightly --count kernels=20000,graphs=20000,torch=5000
    python -m tests.nightly --list

Cases are drawn and judged in processes of their own, so that one that aborts, hangs or takes all
memory is found like any other. What fails is made small and written as a file, one per kind of
failure: `python findings/finding_torch_123.py` shows it again and exits with 1 as long as it is
there. The seed that a run starts from is printed and can be given back with --seed.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests import generators
from tests.running_draws import Campaign, Finding, Limits

COLUMNS = ("wrong", "error", "abort", "hang", "memory", "slow")
SHOWN = 5  # seeds of cases that were skipped for one reason


def _table(campaign: Campaign) -> Table:
    table = Table(pad_edge=False, box=None, header_style="bold")
    table.add_column("generator")
    for name in ("draws", "a minute", *COLUMNS, "kinds", "skipped", "slowest compile"):
        table.add_column(name, justify="right")
    for name, tally in campaign.tallies.items():
        rate = f"{60 * tally.draws / tally.seconds:.0f}" if tally.seconds else ""
        counts = [str(tally.failed[what] or "") for what in COLUMNS]
        kinds = sum(f.generator == name for f in campaign.findings)
        slowest = f"{tally.slowest:.1f} s (seed {tally.slowest_seed})" if tally.slowest else ""
        skipped = sum(map(len, tally.skipped.values()))
        last = (str(kinds or ""), str(skipped or ""), slowest)
        table.add_row(name, str(tally.draws), rate, *counts, *last)
    return table


def _skipped(campaign: Campaign) -> Iterator[str]:
    """How many draws tell nothing about the compiler, and why."""
    for name, tally in campaign.tallies.items():
        for why, seeds in tally.skipped.items():
            some = ", ".join(map(str, sorted(seeds)[:SHOWN])) + (
                ", …" if len(seeds) > SHOWN else ""
            )
            yield f"{name}: {len(seeds)} skipped: {why} (seeds {some})"


def _shown(finding: Finding) -> str:
    head = finding.failure.text.strip().splitlines()[:1]
    where = f" ({finding.path})" if finding.path else ""
    return (
        f"{finding.generator} seed {finding.seed}, draw {finding.ordinal}: {finding.failure.what}, "
        f"{finding.failure.kind}{where}\n    {' '.join(head)[:160]}"
    )


def _counts(text: str, known: Sequence[str]) -> dict[str, int]:
    """`torch=100,graphs=200`, or one number for each."""
    if text.isdigit():
        return dict.fromkeys(known, int(text))
    counts = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        if not number.isdigit():
            raise SystemExit(f"--count takes name=number pairs, not {part!r}")
        counts[name] = int(number)
    return counts


def _chosen(options: argparse.Namespace, known: dict[str, str]) -> dict[str, int | None]:
    """How many draws of which generators; None for as many as time allows."""
    only = options.only.split(",") if options.only else list(known)
    counts: dict[str, int | None] = dict.fromkeys(only)
    if options.count:
        counts = dict(_counts(options.count, only))
    for name in counts:
        if name not in known:
            raise SystemExit(f"no generator is called {name}; there are {', '.join(known)}")
    return counts


def _parser(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, help="how long; 60 unless --count is given")
    parser.add_argument("--count", help="how many draws: a number, or name=number pairs")
    parser.add_argument("--only", help="generators, separated by commas")
    parser.add_argument("--seed", "--first", type=int, help="the first seed; else the clock's")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument(
        "--out", type=Path, default=Path("findings"), help="where files are written"
    )
    parser.add_argument("--seconds", type=float, help="limit of a draw; else the generator's own")
    parser.add_argument("--memory", type=int, default=6000, help="limit of a process, in MiB")
    parser.add_argument("--list", action="store_true", help="the generators and their modules")
    return parser


def main(arguments: Sequence[str] | None = None, description: str | None = __doc__) -> int:
    options = _parser(description).parse_args(arguments)
    # Into a file the table is as wide as it needs to be.
    console = Console() if sys.stdout.isatty() else Console(width=140)
    known = generators.names()
    if options.list:
        for name, module in known.items():
            console.print(f"{name:12} {module}", highlight=False)
        return 0
    counts = _chosen(options, known)
    minutes = options.minutes or (None if options.count else 60.0)
    # Twenty seeds a second are more than a run draws, so the next run has others.
    seed = int(time.time() * 20) % 2**31 if options.seed is None else options.seed
    console.print(f"{', '.join(counts)} from seed {seed}", highlight=False)
    with tempfile.TemporaryDirectory(prefix="tilewright-nightly-") as scratch:
        limits = Limits(minutes, options.seconds, options.memory)
        campaign = Campaign(known, counts, seed, limits, options.out, Path(scratch))
        _watched(campaign, options.jobs, console)
        try:
            if quick := campaign.measure_slow_again():
                console.print(f"{quick} compiled slowly only while others ran", highlight=False)
        except KeyboardInterrupt:
            console.print("stopped before all slow draws were measured alone", highlight=False)
    console.print(_table(campaign))
    for line in _skipped(campaign):
        console.print(line, markup=False, highlight=False)
    for finding in campaign.findings:
        console.print(_shown(finding), markup=False, highlight=False)
    for name, seed, failure in campaign.slow:
        console.print(f"{name} seed {seed}: {failure.text}", markup=False, highlight=False)
    for fault in campaign.faults:
        console.print(fault, markup=False, highlight=False)
    return 1 if campaign.findings or campaign.faults else 0


def _watched(campaign: Campaign, jobs: int, console: Console) -> None:
    """Run with a display that follows; into a file, findings are printed as they come."""
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console
    )
    task = bar.add_task("drawing", total=1.0)
    shown, last_shown = 0, time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Live(console=console, refresh_per_second=2, transient=True) as live:
        campaign.start(jobs)
        try:
            while campaign.running():
                bar.update(task, completed=campaign.fraction())
                live.update(Group(_table(campaign), bar))
                for finding in campaign.findings[shown:]:
                    shown += 1
                    console.print(_shown(finding), markup=False, highlight=False)
                if not console.is_terminal and time.monotonic() > last_shown + 120:
                    last_shown = time.monotonic()
                    draws = ", ".join(f"{t.draws} {n}" for n, t in campaign.tallies.items())
                    console.print(f"so far {draws}", highlight=False)
                time.sleep(0.3)
        except KeyboardInterrupt:
            console.print("stopping")
        finally:
            campaign.stop()


if __name__ == "__main__":
    sys.exit(main())
