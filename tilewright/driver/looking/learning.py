"""`tilewright tune collect` and `tilewright tune train`: measured schedules, a model of them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tilewright import targets
from tilewright.base.errors import Invalid, MissingExtra
from tilewright.base.machine import usable_cores
from tilewright.driver.learning.collecting import Collecting
from tilewright.driver.looking.shown import Column, Shown
from tilewright.runtime import pool
from tilewright.tune.models import learned
from tilewright.tune.models.samples import Sample, load_samples, measured
from tilewright.tune.models.training import all_measurements, report, write_model


def _bar(out: Shown, total: int) -> Progress:
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("groups, {task.description}"))
    bar = Progress(*columns, TimeElapsedColumn(), console=out.progress, transient=True)
    bar.add_task("", total=total)
    return bar


def collect(given: argparse.Namespace, out: Shown) -> int:
    """Measures schedules of groups that are drawn, as the options of the command say."""
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
        given.jobs or usable_cores(),
        time.monotonic() + 60 * given.minutes,
    )
    _told(out, collecting.problems)
    found, stopped = list(collecting.known), False
    with _bar(out, given.groups) as bar:
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
    _summary(found, given.out, out)
    if stopped:
        out.say("stopped: the same command goes on from here")
    return 130 if stopped else 0


def _summary(found: Sequence[Sample], path: Path, out: Shown) -> None:
    good = list(measured(found))
    count = sum(x is not None for s in good for x in s.seconds)
    out.put(schedules=count, groups=len(good), file=path)
    out.say(f"{count} schedules of {len(good)} groups are in {path}")
    bad = [f"group {s.draw} ({s.family}): {s.why}" for s in found if s.why]
    _told(out, bad)


def _told(out: Shown, problems: Sequence[str]) -> None:
    for what in problems[:8]:
        out.say(f"passed over: {what}")
    if len(problems) > 8:
        out.say(f"and {len(problems) - 8} more")


def train(given: argparse.Namespace, out: Shown) -> int:
    """Trains a model, as the options of the command say."""
    if not learned.available():
        raise MissingExtra("tune", "a model that learns")
    samples: list[Sample] = []
    for path in given.files:
        more, problems = load_samples(path)
        samples += more
        _told(out, problems)
    good = list(measured(samples))
    with _bar(out, len(good)) as bar:
        (row,) = bar.task_ids
        bar.update(row, description="reading schedules")
        found, problems = all_measurements(good, lambda: bar.advance(row))
        _told(out, problems)
        if not found:
            raise Invalid("the files have no measured schedules", hint="`tune collect` makes some")
        bar.update(row, description="training")
        size = write_model(found, given.out, given.trees) if given.out is not None else 0
        ranked = [] if given.no_report else report(found, given.trees)
    if ranked:
        kinds = {"analytic": "analytic", "unseen shapes": "shapes"}
        kinds |= {"unseen operators": "operators", "measured again": "again"}
        rows = [
            {"family": r.family, "groups": r.groups, "schedules": r.schedules, "pairs": r.pairs}
            | {name: getattr(r, name) for name in kinds.values()}
            for r in ranked
        ]
        counts = ("groups", "schedules", "pairs")
        columns: dict[str, Column] = {"operators": "family", **{name: name for name in counts}}
        columns |= {title: partial(_percent, name) for title, name in kinds.items()}
        out.table("ranked", rows, columns)
        out.say("pairs of schedules, more than 5 % apart, that are ranked right")
    if size:
        out.put(trees=given.trees, bytes=size, file=given.out)
        out.say(f"{given.trees} trees, {size:,} bytes, are in {given.out}")
    return 0


def _percent(name: str, row: Mapping[str, Any]) -> str:
    return "–" if isnan(row[name]) else f"{100 * row[name]:.1f} %"
