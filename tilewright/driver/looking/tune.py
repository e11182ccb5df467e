"""`tilewright tune` and `tilewright records`: a live table, and what tuning found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tilewright.base import knobs
from tilewright.base.errors import Invalid, TilewrightError, require
from tilewright.driver.looking.curves import best_so_far, page_of, plot, time_text
from tilewright.driver.looking.fleet import means
from tilewright.driver.looking.in_program import to_take_back
from tilewright.driver.looking.shown import Shown
from tilewright.driver.looking.tables import count, new_table
from tilewright.driver.program.options import Options
from tilewright.ir.node import Graph
from tilewright.ir.target import Target
from tilewright.kernel.text import parse_group
from tilewright.runtime.program_data import KernelInfo
from tilewright.tune.campaign import Campaign, Task, tasks_of
from tilewright.tune.measuring.process import Measuring
from tilewright.tune.measuring.race import FAULTS
from tilewright.tune.models import model_for
from tilewright.tune.records import Records, checked, merged, rewrite
from tilewright.tune.reproducers import load_reproducer
from tilewright.tune.search import search_named

SHOWN = 16  # kernels of the live table
PLOTTED = 2  # and of those with a curve in the terminal
NAME_WIDTH = 26  # the table fits 80 columns


def tune(
    kernels: Sequence[KernelInfo],
    target: Target,
    out: Shown,
    *,
    trials: int,
    minutes: float,
    search: str = "evolution",
    model: str = "auto",
    seed: int = 0,
    records: Path | None = None,
    page: Path | None = None,
    fleet: str | None = None,
    wanted: str | None = None,
    kernels_for: Callable[[Target], Sequence[KernelInfo]] | None = None,
    graphs: Sequence[Graph] = (),
    options: Options | None = None,
) -> int:
    """Tune the kernels of a program, and tell what was gained. Ctrl-C ends the search: what was
    found is decided on, or left for the next run where there is another Ctrl-C.

    `wanted` is the target of machines of a fleet, and `kernels_for` gives the program's kernels
    there. `graphs` are what the program was compiled from, with which options: where kernels are
    measured on this machine, what was decided is tried in the program as a whole."""
    require(minutes > 0, f"{minutes:g} minutes are no time", hint="such as --minutes 10")
    search_named(search)  # or a word about it before anything is measured
    known = Records.load(records or knobs.records_file())
    _told(known, out)
    if not kernels:
        raise Invalid("the program has no kernels to tune")
    with means(fleet, target, out, wanted) as by:
        if by.measuring.target.key() != target.key() and kernels_for is not None:
            target = by.measuring.target
            kernels = kernels_for(target)
        guess = model_for(model, target, out.say)
        listed = [(k.group, k.calls, k.name) for k in kernels]
        tasks = tasks_of(listed, target, by.measuring, lambda: search_named(search), guess, seed)
        _elsewhere(tasks, known, out)
        until = time.monotonic() + 60 * minutes
        campaign = Campaign(tasks, known, trials, until, by.lanes, by.proposing)
        stopped = _run(campaign, out, 60 * minutes)
    if not stopped and fleet is None:
        _in_program(campaign, graphs, options or Options(), out)
    _summary(campaign, out)
    if page is not None:
        page.write_text(page_of(tasks))
        out.say(f"curves are in {page}")
    if stopped:
        out.say("stopped: the same command goes on from here")
        return 130
    return 1 if all(t.problem for t in tasks) else 0


def _run(campaign: Campaign, out: Shown, seconds: float) -> bool:
    """The search, and the last race of each kernel; whether somebody stopped it."""
    stopped = False
    try:
        try:
            with _watched(campaign, out, seconds, "tuning") as show:
                campaign.resume()
                for _ in campaign.run():
                    show()
        except KeyboardInterrupt:
            stopped = True
            out.say("deciding on what was found; Ctrl-C again leaves that to the next run")
        with _watched(campaign, out, 0.0, "deciding") as show:
            for _ in campaign.finish():
                show()
    except KeyboardInterrupt:
        stopped = True
    return stopped


def _in_program(campaign: Campaign, graphs: Sequence[Graph], options: Options, out: Shown) -> None:
    """Takes back what was decided in this run and makes a program slower."""
    for graph in graphs if campaign.decided else ():
        won = sorted((t for t in campaign.tasks if t.winner), key=_saved, reverse=True)
        listed = [campaign.record(t) for t in won]
        try:
            found = to_take_back(graph, options, listed)
        except TilewrightError as why:  # such as sizes that are not known
            said = f"what {graph.name} gains as a whole was not measured: {why.what}"
            out.say(said)
            continue
        for t, r in zip(won, listed, strict=True):
            if r in found:
                campaign.take_back(t)
                said = f"{t.names[0]}: faster alone, but {graph.name} is slower with it"
                out.say(f"{said}: taken back")


@contextmanager
def _watched(
    campaign: Campaign, out: Shown, seconds: float, what: str
) -> Iterator[Callable[[], None]]:
    """A bar and a table while something goes on; the function brings them up to date."""
    bar = Progress(
        TextColumn(what), BarColumn(24), TextColumn("{task.description}"), TimeElapsedColumn(),
        console=out.progress,
    )  # fmt: skip
    row = bar.add_task("", total=seconds or None)
    began = time.monotonic()
    with Live(bar, console=out.progress, refresh_per_second=4, transient=True) as live:

        def show() -> None:
            done = sum(len(t.tuning.trials) for t in campaign.tasks if t.started)
            said = f"{count(done, 'trial')} of {count(len(campaign.tasks), 'kernel')}"
            bar.update(row, completed=time.monotonic() - began, description=said)
            live.update(Group(bar, table_of(campaign.tasks)))

        yield show


def _weight(t: Task) -> float:
    """Seconds of a call of the program by default."""
    return t.calls * (t.tuning.seconds or 0.0) if t.started else 0.0


def _saved(t: Task) -> float:
    """Seconds of a call of the program."""
    return _weight(t) * (1 - t.won)


def table_of(tasks: Sequence[Task]) -> Table:
    """The kernels that take longest."""
    table = new_table("kernel", "calls", "trials", "default", "best", "gain")
    table.columns[0].no_wrap, table.columns[0].overflow = True, "ellipsis"
    table.columns[0].max_width = NAME_WIDTH
    for column in table.columns[2:]:
        column.justify = "right"
    begun = [t for t in tasks if t.started and t.tuning.trials]
    shown = sorted(begun, key=_weight, reverse=True)[:SHOWN]
    for t in shown:
        seconds, ratio = t.tuning.seconds, t.won if t.closed else t.ratio
        times = ("–", "–") if seconds is None else (time_text(seconds), time_text(seconds * ratio))
        gain = f"{'' if t.closed else '~'}{1 / ratio:.2f}×"
        table.add_row(t.names[0], str(t.calls), str(len(t.tuning.trials)), *times, gain)
    left = len(begun) - len(shown)
    notes = ["~ is not decided yet"] if any(not t.closed for t in shown) else []
    notes += [f"{count(left, 'shorter kernel')} not shown"] if left else []
    table.caption = "; ".join(notes) or None
    return table


def _summary(campaign: Campaign, out: Shown) -> None:
    tasks = campaign.tasks
    begun = sorted((t for t in tasks if t.started and t.tuning.trials), key=_weight, reverse=True)
    out.put(kernels=[_facts(t) for t in begun], records=campaign.records.path)
    if begun:
        out.draw(table_of(tasks))
    for t in begun[:PLOTTED]:
        seconds = t.tuning.seconds
        if seconds is not None:
            out.text(f"\n{t.names[0]}: the best time over trials")
            out.text(plot([seconds * 1e6 * r for r in best_so_far(t)], "us"))
    trials = sum(len(t.tuning.trials) for t in begun)
    before = f", {campaign.known} of them known from before" if campaign.known else ""
    out.say(f"\n{count(trials, 'trial')}{before}; records are in {campaign.records.path}")
    usual = sum(map(_weight, begun))
    after = sum(_weight(t) * t.won for t in begun)
    out.put(trials=trials, known_before=campaign.known, reproducers=list(campaign.reproducers))
    if usual:
        out.put(seconds={"default": usual, "tuned": after})
        times = f"{time_text(usual)} by default, {time_text(after)} tuned"
        out.say(f"kernels of a call: {times} ({usual / after:.2f}×)")
    for t in tasks:
        if t.problem:
            out.say(f"{t.names[0]}: {t.problem}")
        _faults(t, out)
    for path in campaign.reproducers:
        out.say(f"a mistake of the compiler: `tilewright records rerun {path}` shows it again")


def _facts(t: Task) -> dict[str, object]:
    ratio = t.won if t.closed else t.ratio
    return {
        "name": t.names[0],
        "calls": t.calls,
        "trials": len(t.tuning.trials),
        "seconds": t.tuning.seconds,
        "ratio": ratio,
        "decided": t.closed,
    }


def _faults(t: Task, out: Shown) -> None:
    """What became of trials without a time, by kind, with one example each."""
    found: dict[str, list[str]] = {}
    for x in t.tuning.trials if t.started else ():
        if x.verdict.fault:
            found.setdefault(x.verdict.fault, []).append(x.verdict.why)
    for fault, why in found.items():
        said = FAULTS.get(fault, fault)
        out.say(f"{t.names[0]}: {count(len(why), 'trial')} {said}, such as: {why[0]}")


def _elsewhere(tasks: Sequence[Task], known: Records, out: Shown) -> None:
    """Records of the same kernels that are no use here."""
    own, texts = {t.key for t in tasks}, {t.text for t in tasks}
    others = sum(r.group in texts and r.key not in own for r in known.records)
    if others:
        said = "for another target or number of threads: they are passed over"
        out.say(f"{count(others, 'record')} of these kernels {said}")


# ---- records


def list_records(path: Path, out: Shown, best: bool) -> int:
    found = Records.load(path, "best" if best else "")
    rows = list(found.best().values()) if best else found.records
    if not rows:
        _told(found, out)
        raise Invalid(f"there are no records in {path}", hint="`tilewright tune` makes some")
    listed = [
        {
            "kind": r.kind,
            "group": _called(r.group),
            "target": r.cpu or r.target,
            "threads": r.threads,
            "default_seconds": r.usual,
            "seconds": r.seconds,
            "fault": r.fault,
            "ratio": r.ratio,
            "trace": r.trace,
        }
        for r in rows
    ]
    out.table(
        "records",
        listed,
        {
            **{name: name for name in ("kind", "group", "target", "threads")},
            "default": lambda r: _time(r["default_seconds"], r["fault"]),
            "best": lambda r: _time(r["seconds"], r["fault"]),
            "gain": lambda r: f"{1 / r['ratio']:.2f}×" if r["ratio"] else "–",
        },
    )
    _told(found, out)
    return 0


def _time(seconds: float | None, fault: str | None) -> str:
    return time_text(seconds) if seconds is not None else fault or "–"


def merge_records(paths: Sequence[Path], file: Path, out: Shown) -> int:
    if file.exists() and file not in paths:
        raise Invalid(f"{file} is there already", hint="merge it too, or name another file")
    for p in paths:
        if not p.exists():
            raise Invalid(
                f"there is no file {p}", hint="`tilewright tune --records FILE` makes one"
            )
    files = [Records.load(p) for p in paths]
    rows = merged(files)
    rewrite(file, rows)
    out.put(file=file, count=len(rows))
    out.say(f"{count(len(rows), 'record')} in {file}")
    for f in files:
        _told(f, out)
    return 0


def check_records(path: Path, out: Shown) -> int:
    """Which records today's steps still accept."""
    found, bad = Records.load(path), 0
    if not found.records and not found.problems:
        raise Invalid(f"there are no records in {path}", hint="`tilewright tune` makes some")
    refused: dict[str, int] = {}
    for r, why in checked(found.records):
        if why:
            bad += 1
            said = f"{_called(r.group)}: {why}"
            refused[said] = refused.get(said, 0) + 1
    for said, n in refused.items():
        times = f" ({n} times)" if n > 1 else ""
        out.say(f"{said}{times}")
    _told(found, out)
    total = len(found.records)
    out.put(records=total, hold=total - bad, refused=refused)
    out.say(f"{total - bad} of {count(total, 'record')} hold")
    return 1 if bad or found.problems else 0


def rerun(path: Path, target: Target, out: Shown) -> int:
    """A reproducer once more: 1 where it still shows a mistake."""
    r = load_reproducer(path)
    if r.target != target.machine_key():
        said = f"it was found on {r.target}; this machine is {target.machine_key()}"
        out.say(f"another target: {said}", "yellow")
    measuring = Measuring(target, r.threads)
    try:
        found = r.again(measuring)
    finally:
        measuring.close()
    out.text(f"{r.group.strip()}\n\n{r.trace}")
    out.put(group=r.group, trace=r.trace, then=r.fault, now=found.fault, why=found.why)
    was = f"then: it {FAULTS[r.fault]}: {r.why} (seed {r.seed})"
    now = f"it {FAULTS[found.fault]}: {found.why}" if found.fault else "its results are right"
    out.say(f"{was}\nnow: {now}")
    return 1 if found.fault else 0


def _told(found: Records, out: Shown) -> None:
    shown = found.problems[:3]
    for problem in shown:
        out.say(f"passed over: {problem}")
    left = len(found.problems) - len(shown)
    if left:
        out.say(f"passed over: {count(left, 'more line')}")


@cache
def _called(text: str) -> str:
    """A group in a few words: its results."""
    try:
        g = parse_group(text)
    except TilewrightError:
        return "a group that this version does not read"
    outs = ", ".join(f"{b.dtype}{list(b.shape)}" for b in g.outputs)
    return f"{count(len(g.stages), 'stage')} to {outs}"
