"""Models: time per call, cold compile time and memory, ours beside the peers'."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.measure import MIN_ROUNDS, busy, geometric_mean, ratio
from tests.suites.models import BUILDERS

ROOT = Path(__file__).resolve().parent.parent
COLD_ROUNDS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="*", help=f"of {', '.join(BUILDERS)}; all by default")
    parser.add_argument("--peers", default="eager", help="eager, inductor, …, by commas")
    parser.add_argument("--ours", default="tilewright", help="the backend compared with them")
    parser.add_argument("--rounds", type=int, default=9, help=f"at least {MIN_ROUNDS}")
    parser.add_argument("--tiny", action="store_true", help="the sizes of the tests")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=0, help="torch's and ours; 0: all cores")
    parser.add_argument("--only", choices=["steady", "cold", "memory"], help="one kind of number")
    parser.add_argument("--json", type=Path, help="write every number to this file")


class Failed(Exception):
    """A child process ended without a result."""


def ask(
    request: dict[str, Any], cache: str | None = None, tick: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Send one request to a fresh process; `cache` is the directory it compiles into."""
    environment = os.environ | ({"TILEWRIGHT_CACHE_DIR": cache} if cache else {})
    if request["threads"]:
        environment = environment | {"TILEWRIGHT_THREADS": str(request["threads"])}
    command = [sys.executable, "-m", "bench.child", json.dumps(request)]
    with (
        tempfile.TemporaryFile("w+") as noise,
        subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=noise, text=True
        ) as child,
    ):
        assert child.stdout is not None
        last = ""
        for line in child.stdout:
            if line.strip() == "tick":
                tick()
            else:
                last = line
        child.wait()
        if child.returncode:
            noise.seek(0)
            raise Failed((noise.read().strip().splitlines() or ["it said nothing"])[-1])
    return json.loads(last)


def measure(name: str, given: argparse.Namespace, tick: Callable[[], None]) -> dict[str, Any]:
    """All the numbers of one model."""
    common = {
        "model": name,
        "tiny": given.tiny,
        "dtype": given.dtype,
        "threads": given.threads,
        "rounds": given.rounds,
    }
    peers = given.peers.split(",")
    row: dict[str, Any] = {"model": name}
    if given.only in (None, "steady"):
        request = common | {"kind": "steady", "contenders": [given.ours, *peers]}
        row["seconds"] = ask(request, tick=tick)["seconds"]
    if given.only in (None, "cold"):
        row["cold"] = cold(common | {"kind": "cold"}, given.ours)
    if given.only in (None, "memory"):
        for who in (given.ours, "eager"):
            request = common | {"kind": "memory", "contender": who}
            row.setdefault("memory", {})[who] = ask(request)["bytes"]
    return row


def cold(common: dict[str, Any], ours: str) -> dict[str, float]:
    """First calls in fresh processes: ours with an empty and with a full cache, and capture alone.

    Capture alone is a backend with the same decompositions that runs the graph in eager. Medians:
    capture varies by more than what is left beyond it.
    """
    times: dict[str, list[float]] = {"empty cache": [], "full cache": [], "capture": []}
    for _ in range(COLD_ROUNDS):
        with tempfile.TemporaryDirectory(prefix="tilewright-bench-") as cache:
            times["empty cache"].append(ask(common | {"contender": ours}, cache)["seconds"])
            times["full cache"].append(ask(common | {"contender": ours}, cache)["seconds"])
        times["capture"].append(ask(common | {"contender": "counting"})["seconds"])
    return {what: median(found) for what, found in times.items()}


def show(console: Console, rows: list[dict[str, Any]], given: argparse.Namespace) -> None:
    """One narrow table per kind of number."""
    size = "tiny" if given.tiny else "full size"
    about = f"{size}, {given.dtype}"
    if timed := [row for row in rows if "seconds" in row]:
        console.print(_times(timed, given.ours, given.peers.split(","), about))
    if colds := [row for row in rows if "cold" in row]:
        console.print(_first_calls(colds, about))
    if sized := [row for row in rows if "memory" in row]:
        console.print(_memory(sized, given.ours, about))
    for row in rows:
        if "failed" in row:
            console.print(f"[red]{row['model']}[/]: {row['failed']}", highlight=False)


def _table(title: str, *headings: str, footer: bool = False) -> Table:
    table = Table(title=title, show_footer=footer)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "model" else "right")
    return table


def _times(rows: list[dict[str, Any]], ours: str, peers: list[str], about: str) -> Table:
    headings = [text for peer in peers for text in (f"{peer}, ms", f"{peer} ÷ {ours}")]
    table = _table(f"time per call, {about}", "model", f"{ours}, ms", *headings, footer=True)
    table.columns[0].footer = "geometric mean"
    for number, peer in enumerate(peers):
        ratios = [ratio(row["seconds"][peer], row["seconds"][ours]) for row in rows]
        table.columns[3 + 2 * number].footer = f"{geometric_mean(ratios):.2f}"
    for row in rows:
        mine = row["seconds"][ours]
        cells = [row["model"], f"{1e3 * median(mine):.2f}"]
        for peer in peers:
            theirs = row["seconds"][peer]
            cells += [f"{1e3 * median(theirs):.2f}", f"{ratio(theirs, mine):.2f}"]
        table.add_row(*cells)
    return table


def _first_calls(rows: list[dict[str, Any]], about: str) -> Table:
    title = f"first call in a fresh process beyond capture, seconds, {about}"
    table = _table(title, "model", "empty cache", "full cache", "capture itself")
    for row in rows:
        first = row["cold"]
        beyond = [first[kind] - first["capture"] for kind in ("empty cache", "full cache")]
        table.add_row(row["model"], *(f"{s:.2f}" for s in (*beyond, first["capture"])))
    return table


def _memory(rows: list[dict[str, Any]], ours: str, about: str) -> Table:
    table = _table(f"peak memory of a call, MiB, {about}", "model", ours, "eager")
    for row in rows:
        sizes = (row["memory"][ours], row["memory"]["eager"])
        cells = ["–" if size is None else f"{size / 2**20:.1f}" for size in sizes]
        table.add_row(row["model"], *cells)
    return table


def main(given: argparse.Namespace) -> int:
    console = Console()
    if unknown := set(given.models) - set(BUILDERS):
        console.print(f"No model is called {', '.join(unknown)}; there are {', '.join(BUILDERS)}.")
        return 2
    given.models = given.models or list(BUILDERS)
    warning = busy()
    rows: list[dict[str, Any]] = []
    with Progress(console=console, transient=True) as progress:
        rounds = max(given.rounds, MIN_ROUNDS)
        task = progress.add_task("", total=len(given.models) * rounds)
        for number, name in enumerate(given.models):
            progress.update(task, description=name, completed=number * rounds)
            try:
                rows.append(measure(name, given, lambda: progress.advance(task)))
            except Failed as problem:
                rows.append({"model": name, "failed": str(problem)})
    show(console, rows, given)
    if warning:
        console.print(f"[yellow]{warning}[/]", highlight=False)
    if given.json:
        found = {"warning": warning, "models": rows}
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if any("failed" in row for row in rows) else 0
