"""`tilewright tune collect` and `tilewright tune train`: measured schedules, a model of them."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from math import isnan
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tilewright import targets
from tilewright.base.errors import Invalid, MissingExtra
from tilewright.driver.learning.collecting import Collecting
from tilewright.driver.looking.tables import new_table, rendered
from tilewright.runtime import pool
from tilewright.tune.models import PRETRAINED, learned
from tilewright.tune.models.samples import Sample, load_samples, measured
from tilewright.tune.models.training import TREES, all_measurements, report, write_model


def main(words: Sequence[str], console: Console) -> int:
    given = argument_parser().parse_args(list(words))
    return given.do(given, console)


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tilewright tune")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    about = "measure schedules of groups drawn at random; the same command goes on where it stopped"
    made = commands.add_parser("collect", help=about, description=about)
    made.set_defaults(do=_collect)
    made.add_argument("--groups", type=int, default=320, help="in the file, at the end")
    made.add_argument("--schedules", type=int, default=64, help="of each group, at most")
    made.add_argument("--minutes", type=float, default=float("inf"), help="at most")
    made.add_argument("--threads", type=int, help="of a call (default: as programs have)")
    made.add_argument("--jobs", type=int, help="processes that prepare (default: all processors)")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--out", type=Path, metavar="FILE", required=True)
    about = "train a model on measured schedules, and say how well it ranks what it never saw"
    made = commands.add_parser("train", help=about, description=about)
    made.set_defaults(do=_train)
    made.add_argument("files", nargs="+", type=Path, metavar="FILE")
    made.add_argument("--trees", type=int, default=TREES)
    made.add_argument("--out", type=Path, metavar="MODEL", help=f"(such as {PRETRAINED.name}/…)")
    made.add_argument("--no-report", action="store_true", help="only train")
    return parser


def _bar(console: Console, total: int) -> Progress:
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("groups, {task.description}"))
    bar = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
    bar.add_task("", total=total)
    return bar


def _collect(given: argparse.Namespace, console: Console) -> int:
    for name in ("groups", "schedules", "threads", "jobs"):
        if (value := getattr(given, name)) is not None and value < 1:
            raise Invalid(f"--{name} is {value}", hint="it is at least 1")
    collecting = Collecting(
        given.out,
        targets.default(),
        given.threads or pool.get_threads(),
        given.groups,
        given.schedules,
        given.seed,
        given.jobs or os.cpu_count() or 1,
        time.monotonic() + 60 * given.minutes,
    )
    _told(console, collecting.problems)
    found, stopped = list(collecting.known), False
    with _bar(console, given.groups) as bar:
        (row,) = bar.task_ids

        def tell(what: str) -> None:
            count = sum(len(s.traces) for s in found)
            bar.update(row, completed=len(found), description=f"{count} schedules, {what}")

        tell("beginning")
        try:
            for s in collecting.run(tell):
                found.append(s)
                tell("measuring")
        except KeyboardInterrupt:
            stopped = True
    _summary(found, given.out, console)
    if stopped:
        console.print("stopped: the same command goes on from here", highlight=False)
    return 130 if stopped else 0


def _summary(found: Sequence[Sample], path: Path, console: Console) -> None:
    good = list(measured(found))
    count = sum(x is not None for s in good for x in s.seconds)
    said = f"{count} schedules of {len(good)} groups are in {path}"
    console.print(said, highlight=False, soft_wrap=True)
    bad = [f"group {s.draw} ({s.family}): {s.why}" for s in found if s.why]
    _told(console, bad)


def _told(console: Console, problems: Sequence[str]) -> None:
    for what in problems[:8]:
        console.print(f"passed over: {what}", highlight=False, markup=False, soft_wrap=True)
    if len(problems) > 8:
        console.print(f"and {len(problems) - 8} more", highlight=False)


def _train(given: argparse.Namespace, console: Console) -> int:
    if not learned.available():
        raise MissingExtra("tune", "a model that learns")
    samples: list[Sample] = []
    for path in given.files:
        more, problems = load_samples(path)
        samples += more
        _told(console, problems)
    good = list(measured(samples))
    with _bar(console, len(good)) as bar:
        (row,) = bar.task_ids
        bar.update(row, description="reading schedules")
        found, problems = all_measurements(good, lambda: bar.advance(row))
        _told(console, problems)
        if not found:
            raise Invalid("the files have no measured schedules", hint="`tune collect` makes some")
        bar.update(row, description="training")
        size = write_model(found, given.out, given.trees) if given.out is not None else 0
        ranked = [] if given.no_report else report(found, given.trees)
    if ranked:
        table = new_table(
            "operators", "groups", "schedules", "pairs", "analytic", "unseen shapes",
            "unseen operators", "measured again",
        )  # fmt: skip
        for r in ranked:
            parts = (r.analytic, r.shapes, r.operators, r.again)
            shown = ["–" if isnan(x) else f"{100 * x:.1f} %" for x in parts]
            table.add_row(r.family, str(r.groups), str(r.schedules), str(r.pairs), *shown)
        print(rendered(table))
        console.print("pairs of schedules, more than 5 % apart, that are ranked right")
    if size:
        said = f"{given.trees} trees, {size:,} bytes, are in {given.out}"
        console.print(said, highlight=False, soft_wrap=True)
    return 0
