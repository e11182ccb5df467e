"""`tilewright tune` and `tilewright records`: a live table, and a page of what tuning finds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tilewright.base import knobs
from tilewright.base.errors import Invalid
from tilewright.driver.looking.tables import new_table, rendered
from tilewright.ir.target import Target
from tilewright.kernel.text import parse_group
from tilewright.runtime import pool
from tilewright.runtime.program_data import KernelInfo
from tilewright.tune.campaign import Campaign, Task, tasks_of
from tilewright.tune.measuring.process import Measuring
from tilewright.tune.models import model_for
from tilewright.tune.records import Record, Records, append, checked, merged
from tilewright.tune.search import search_named

SHOWN = 16  # kernels of the live table


def tune(
    kernels: Sequence[KernelInfo],
    target: Target,
    console: Console,
    *,
    trials: int,
    minutes: float,
    search: str = "evolution",
    model: str = "auto",
    seed: int = 0,
    records: Path | None = None,
    page: Path | None = None,
) -> int:
    """Tune the kernels of a program, and tell what was gained."""
    path = records or knobs.records_file()
    known = Records.load(path)
    for problem in known.problems[:3]:
        console.print(f"[yellow]passed over:[/] {problem}", highlight=False)
    search_named(search)  # or a word about it before anything is measured
    guess = model_for(model, target, console.print)
    measuring = Measuring(target, pool.get_threads())
    listed = [(k.group, k.calls, k.name) for k in kernels]
    tasks = tasks_of(listed, target, measuring, lambda: search_named(search), guess, seed)
    if not tasks:
        raise Invalid("the program has no kernels to tune")
    campaign = Campaign(tasks, known, trials, time.monotonic() + 60 * minutes)
    stopped = False
    try:
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            bar = Progress(
                TextColumn("tuning"), BarColumn(), TextColumn("{task.description}"),
                TimeElapsedColumn(), console=console,
            )  # fmt: skip
            row = bar.add_task("", total=60 * minutes)
            live.update(Group(bar))
            campaign.resume()
            began = time.monotonic()
            for _ in campaign.run():
                done = sum(len(t.tuning.trials) for t in tasks if t.started)
                bar.update(row, completed=time.monotonic() - began, description=f"{done} trials")
                live.update(Group(bar, _table(tasks)))
            for _ in campaign.finish():
                live.update(Group(bar, _table(tasks)))
    except KeyboardInterrupt:
        stopped = True
    finally:
        measuring.close()
    _summary(tasks, campaign, path, console)
    if page is not None:
        page.write_text(page_of(tasks))
        console.print(f"curves are in {page}", soft_wrap=True)
    if stopped:
        console.print("stopped: the same command goes on from here", highlight=False)
    return 130 if stopped else 0


def _table(tasks: Iterable[Task]) -> Table:
    table = new_table("kernel", "calls", "trials", "default", "best", "gain")
    started = [t for t in tasks if t.started and t.tuning.trials]
    weight = lambda t: t.calls * (t.tuning.seconds or 0.0)  # noqa: E731
    for t in sorted(started, key=weight, reverse=True)[:SHOWN]:
        seconds = t.tuning.seconds
        shown = ("–", "–") if seconds is None else (_us(seconds), _us(seconds * t.ratio))
        gain = f"{1 / t.ratio:.2f}×" + (" final" if t.closed else "")
        table.add_row(t.names[0], str(t.calls), str(len(t.tuning.trials)), *shown, gain)
    return table


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us"


def _summary(tasks: Sequence[Task], campaign: Campaign, path: Path, console: Console) -> None:
    print(rendered(_table(tasks)))
    timed = [t for t in tasks if t.started and t.tuning.seconds is not None]
    before = sum(t.calls * (t.tuning.seconds or 0.0) for t in timed)
    after = sum(t.calls * (t.tuning.seconds or 0.0) * _won(t) for t in timed)
    trials = sum(len(t.tuning.trials) for t in tasks if t.started)
    known = f", {campaign.known} of them known from before" if campaign.known else ""
    console.print(f"{trials} trials{known}; records are in {path}", highlight=False, soft_wrap=True)
    if before:
        console.print(
            f"kernels of a call: {_us(before)} by default, {_us(after)} tuned "
            f"({before / after:.2f}×)",
            highlight=False,
        )
    for t in tasks:
        if t.started and t.tuning.problem:
            console.print(f"{t.names[0]}: {t.tuning.problem}", highlight=False)
        wrong = [x for x in t.tuning.trials if x.verdict.fault == "wrong"] if t.started else []
        if wrong:
            what = f"{t.names[0]}: {len(wrong)} schedules gave other results"
            console.print(f"[red]{what}[/]: a mistake of the compiler; they are in the records")


def _won(t: Task) -> float:
    """The ratio that a compile will have from now on."""
    return t.winner.ratio or 1.0 if t.winner is not None else 1.0


# ---- page

_STYLE = "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto}svg{width:100%}"


def page_of(tasks: Iterable[Task]) -> str:
    """One file that needs nothing else: the best time over trials of each kernel."""
    parts = [f"<!doctype html><meta charset=utf-8><title>tuning</title><style>{_STYLE}</style>"]
    for t in tasks:
        if t.started and t.tuning.trials:
            parts.append(f"<h3>{t.names[0]}</h3>{curve(t)}")
    return "\n".join(parts)


def curve(t: Task, width: int = 640, height: int = 160) -> str:
    """The best ratio so far against the number of trials, as a picture."""
    best, points = 1.0, [(0, 1.0)]
    for k, x in enumerate(t.tuning.trials, 1):
        best = min(best, x.ratio if x.ratio is not None else best)
        points.append((k, best))
    least = min(y for _, y in points)
    span, count = max(1e-9, 1 - least), max(1, len(points) - 1)
    at = [
        f"{20 + (width - 40) * k / count:.1f},{20 + (height - 40) * (1 - (y - least) / span):.1f}"
        for k, y in points
    ]
    line = f'<polyline fill="none" stroke="#36c" stroke-width="2" points="{" ".join(at)}"/>'
    said = f"{count} trials, {1 / least:.2f} times the default schedule"
    text = f'<text x="20" y="14" font-size="12">{said}</text>'
    return f'<svg viewBox="0 0 {width} {height}">{line}{text}</svg>'


# ---- records


def list_records(path: Path, console: Console, best: bool) -> int:
    found = Records.load(path)
    rows = list(found.best().values()) if best else found.records
    if not rows:
        raise Invalid(f"there are no records in {path}", hint="`tilewright tune` makes some")
    table = new_table("kind", "group", "target", "threads", "default", "best", "gain")
    for r in rows:
        shown = [_us(x) if x is not None else r.fault or "–" for x in (r.usual, r.seconds)]
        gain = f"{1 / r.ratio:.2f}×" if r.ratio else "–"
        target = r.target.split()[0] if r.target.split() else r.target
        table.add_row(r.kind, _called(r), target, str(r.threads), *shown, gain)
    print(rendered(table))
    _told(found, console)
    return 0


def merge_records(paths: Sequence[Path], out: Path, console: Console) -> int:
    files = [Records.load(p) for p in paths]
    rows = merged(files)
    if out.exists() and out not in paths:
        raise Invalid(f"{out} is there already", hint="merge it too, or name another file")
    out.unlink(missing_ok=True)
    append(out, rows)
    console.print(f"{len(rows)} records in {out}", highlight=False)
    for f in files:
        _told(f, console)
    return 0


def check_records(path: Path, console: Console) -> int:
    """Which records today's steps still accept."""
    found, bad = Records.load(path), 0
    for r, why in checked(found.records):
        if why:
            bad += 1
            console.print(f"{_called(r)}: {why}", highlight=False, markup=False)
    _told(found, console)
    console.print(f"{len(found.records) - bad} of {len(found.records)} records hold")
    return 1 if bad or found.problems else 0


def _told(found: Records, console: Console) -> None:
    for problem in found.problems:
        console.print(f"passed over: {problem}", highlight=False, markup=False)


def _called(r: Record) -> str:
    """A group in a few words: its results and what reduces."""
    g = parse_group(r.group)
    outs = ", ".join(f"{b.dtype}{list(b.shape)}" for b in g.outputs)
    return f"{len(g.stages)} stages to {outs}"
