"""What the command lines of suites share: the choice of cases, and what a run and its list of known
failures disagree about."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.suites.opinfo_runs import Outcome

SHOWN = 40


def add_arguments(
    parser: argparse.ArgumentParser, what: str, names: str, example: str, timeout: float
) -> None:
    """`what` is a case in the suite's own word, `names` the option that chooses some by name."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--slice", help=f"first:last {what}, in the suite's order")
    parser.add_argument(
        names,
        dest="names",
        metavar="PATTERN,…",
        help=f"names, separated by commas; * is allowed: {names} '{example}'",
    )
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--timeout", type=float, default=timeout, help=f"seconds for one {what}")
    parser.add_argument("--update", action="store_true", help="rewrite the list of failures")
    parser.add_argument("--json", type=Path, help="write every outcome to this file")
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="FILE",
        help="outcomes are added to this file as they come; what stands there is not run again",
    )


def chosen(given: argparse.Namespace, known: Iterable[str]) -> list[str]:
    """The names that were asked for, by pattern and slice."""
    names = list(known)
    if given.names:
        patterns = given.names.split(",")
        names = [name for name in names if any(fnmatch(name, p) for p in patterns)]
    if given.slice:
        low, _, high = given.slice.partition(":")
        names = names[int(low or 0) : int(high) if high else None]
    return names


def surprises(
    outcomes: Sequence[Outcome],
    known: Mapping[str, str],
    statuses: Mapping[str, str],
    good: Collection[str] = ("right",),
    inexcusable: Collection[str] = (),
) -> list[str]:
    """Where a run and the committed list disagree, one sentence per case."""
    found = []
    for o in outcomes:
        if o.status in good and o.name in known:
            found.append(f"{o.name}: right, though expected to fail: {known[o.name]}")
        elif o.status not in good and o.name not in known:
            found.append(f"{o.name}: {statuses[o.status]}: {o.detail}")
        elif o.status in inexcusable:
            found.append(f"{o.name}: {statuses[o.status]}, which no list excuses: {o.detail}")
    return sorted(found)


def resumed(
    given: argparse.Namespace,
    run: Callable[[Sequence[str]], Iterable[Outcome]],
    names: Sequence[str],
    key: str,
) -> Iterator[Outcome]:
    """Outcomes of cases: those that the file of `--resume` has under this key, then the others as
    `run` gives them, each written down at once."""
    path: Path | None = given.resume
    if path is None:
        yield from run(names)
        return
    known: dict[str, Outcome] = {}
    if path.exists():
        lines = map(json.loads, path.read_text().splitlines())
        known = {o["name"]: Outcome(**o) for line in lines if (o := line.get(key))}
    yield from (known[name] for name in names if name in known)
    with path.open("a", encoding="utf-8") as out:
        for outcome in run([name for name in names if name not in known]):
            print(json.dumps({key: outcome.as_json()}), file=out, flush=True)
            yield outcome


def progress(console: Console) -> Progress:
    """A bar with a count and the time that is left."""
    left = (MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(
        TextColumn("{task.description}"), BarColumn(), *left, console=console, transient=True
    )


def write_json(given: argparse.Namespace, outcomes: Sequence[Outcome]) -> None:
    if given.json:
        given.json.write_text(json.dumps([o.as_json() for o in outcomes], indent=1) + "\n")


def exit_code(console: Console, unexpected: Sequence[str]) -> int:
    """Print what was not expected; 1 if anything was not."""
    for line in unexpected[:SHOWN]:
        console.print(f"[red]unexpected[/] {escape(line)}", highlight=False)
    if len(unexpected) > SHOWN:
        console.print(f"… and {len(unexpected) - SHOWN} more; --json FILE has them all.")
    return 1 if unexpected else 0
