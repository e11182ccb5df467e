"""`tilewright tune` and `tilewright records`: a live table, and what tuning found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tilewright.base import knobs
from tilewright.base.errors import Invalid, TilewrightError, require
from tilewright.driver.looking.curves import best_so_far, page_of, plot, time_text
from tilewright.driver.looking.fleet import means
from tilewright.driver.looking.in_program import to_take_back
from tilewright.driver.looking.tables import count, new_table, rendered
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
    console: Console,
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
    _told(known, console)
    if not kernels:
        raise Invalid("the program has no kernels to tune")
    with means(fleet, target, console, wanted) as by:
        if by.measuring.target.key() != target.key() and kernels_for is not None:
            target = by.measuring.target
            kernels = kernels_for(target)
        guess = model_for(model, target, lambda said: console.print(said, highlight=False))
        listed = [(k.group, k.calls, k.name) for k in kernels]
        tasks = tasks_of(listed, target, by.measuring, lambda: search_named(search), guess, seed)
        _elsewhere(tasks, known, console)
        until = time.monotonic() + 60 * minutes
        campaign = Campaign(tasks, known, trials, until, by.lanes, by.proposing)
        stopped = _run(campaign, console, 60 * minutes)
    if not stopped and fleet is None:
        _in_program(campaign, graphs, options or Options(), console)
    _summary(campaign, console)
    if page is not None:
        page.write_text(page_of(tasks))
        console.print(f"curves are in {page}", soft_wrap=True, highlight=False)
    if stopped:
        console.print("stopped: the same command goes on from here", highlight=False)
        return 130
    return 1 if all(t.problem for t in tasks) else 0


def _run(campaign: Campaign, console: Console, seconds: float) -> bool:
    """The search, and the last race of each kernel; whether somebody stopped it."""
    stopped = False
    try:
        try:
            with _watched(campaign, console, seconds, "tuning") as show:
                campaign.resume()
                for _ in campaign.run():
                    show()
        except KeyboardInterrupt:
            stopped = True
            console.print("deciding on what was found; Ctrl-C again leaves that to the next run")
        with _watched(campaign, console, 0.0, "deciding") as show:
            for _ in campaign.finish():
                show()
    except KeyboardInterrupt:
        stopped = True
    return stopped


def _in_program(
    campaign: Campaign, graphs: Sequence[Graph], options: Options, console: Console
) -> None:
    """Takes back what was decided in this run and makes a program slower."""
    for graph in graphs if campaign.decided else ():
        won = sorted((t for t in campaign.tasks if t.winner), key=_saved, reverse=True)
        listed = [campaign.record(t) for t in won]
        try:
            found = to_take_back(graph, options, listed)
        except TilewrightError as why:  # such as sizes that are not known
            said = f"what {graph.name} gains as a whole was not measured: {why.what}"
            console.print(said, highlight=False, markup=False, soft_wrap=True)
            continue
        for t, r in zip(won, listed, strict=True):
            if r in found:
                campaign.take_back(t)
                said = f"{t.names[0]}: faster alone, but {graph.name} is slower with it"
                console.print(f"{said}: taken back", highlight=False, markup=False)


@contextmanager
def _watched(
    campaign: Campaign, console: Console, seconds: float, what: str
) -> Iterator[Callable[[], None]]:
    """A bar and a table while something goes on; the function brings them up to date."""
    bar = Progress(
        TextColumn(what), BarColumn(24), TextColumn("{task.description}"), TimeElapsedColumn(),
        console=console,
    )  # fmt: skip
    row = bar.add_task("", total=seconds or None)
    began = time.monotonic()
    with Live(bar, console=console, refresh_per_second=4, transient=True) as live:

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


def _summary(campaign: Campaign, console: Console) -> None:
    tasks = campaign.tasks

    def say(what: str) -> None:
        console.print(what, highlight=False, soft_wrap=True, markup=False)

    begun = sorted((t for t in tasks if t.started and t.tuning.trials), key=_weight, reverse=True)
    if begun:
        print(rendered(table_of(tasks)))
    for t in begun[:PLOTTED]:
        seconds = t.tuning.seconds
        if seconds is not None:
            print(f"\n{t.names[0]}: the best time over trials")
            print(plot([seconds * 1e6 * r for r in best_so_far(t)], "us"))
    trials = sum(len(t.tuning.trials) for t in begun)
    before = f", {campaign.known} of them known from before" if campaign.known else ""
    say(f"\n{count(trials, 'trial')}{before}; records are in {campaign.records.path}")
    usual = sum(map(_weight, begun))
    after = sum(_weight(t) * t.won for t in begun)
    if usual:
        times = f"{time_text(usual)} by default, {time_text(after)} tuned"
        say(f"kernels of a call: {times} ({usual / after:.2f}×)")
    for t in tasks:
        if t.problem:
            say(f"{t.names[0]}: {t.problem}")
        _faults(t, say)
    for path in campaign.reproducers:
        say(f"a mistake of the compiler: `tilewright records rerun {path}` shows it again")


def _faults(t: Task, say: Callable[[str], None]) -> None:
    """What became of trials without a time, by kind, with one example each."""
    found: dict[str, list[str]] = {}
    for x in t.tuning.trials if t.started else ():
        if x.verdict.fault:
            found.setdefault(x.verdict.fault, []).append(x.verdict.why)
    for fault, why in found.items():
        said = FAULTS.get(fault, fault)
        say(f"{t.names[0]}: {count(len(why), 'trial')} {said}, such as: {why[0]}")


def _elsewhere(tasks: Sequence[Task], known: Records, console: Console) -> None:
    """Records of the same kernels that are no use here."""
    own, texts = {t.key for t in tasks}, {t.text for t in tasks}
    others = sum(r.group in texts and r.key not in own for r in known.records)
    if others:
        said = "for another target or number of threads: they are passed over"
        console.print(f"{count(others, 'record')} of these kernels {said}", highlight=False)


# ---- records


def list_records(path: Path, console: Console, best: bool) -> int:
    found = Records.load(path, "best" if best else "")
    rows = list(found.best().values()) if best else found.records
    if not rows:
        _told(found, console)
        raise Invalid(f"there are no records in {path}", hint="`tilewright tune` makes some")
    table = new_table("kind", "group", "target", "threads", "default", "best", "gain")
    for r in rows:
        shown = [time_text(x) if x is not None else r.fault or "–" for x in (r.usual, r.seconds)]
        gain = f"{1 / r.ratio:.2f}×" if r.ratio else "–"
        table.add_row(r.kind, _called(r.group), r.cpu or r.target, str(r.threads), *shown, gain)
    print(rendered(table))
    _told(found, console)
    return 0


def merge_records(paths: Sequence[Path], out: Path, console: Console) -> int:
    if out.exists() and out not in paths:
        raise Invalid(f"{out} is there already", hint="merge it too, or name another file")
    for p in paths:
        if not p.exists():
            raise Invalid(
                f"there is no file {p}", hint="`tilewright tune --records FILE` makes one"
            )
    files = [Records.load(p) for p in paths]
    rows = merged(files)
    rewrite(out, rows)
    console.print(f"{count(len(rows), 'record')} in {out}", highlight=False, soft_wrap=True)
    for f in files:
        _told(f, console)
    return 0


def check_records(path: Path, console: Console) -> int:
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
        console.print(f"{said}{times}", highlight=False, markup=False, soft_wrap=True)
    _told(found, console)
    total = len(found.records)
    console.print(f"{total - bad} of {count(total, 'record')} hold", highlight=False)
    return 1 if bad or found.problems else 0


def rerun(path: Path, target: Target, console: Console) -> int:
    """A reproducer once more: 1 where it still shows a mistake."""
    r = load_reproducer(path)
    if r.target != target.machine_key():
        said = f"it was found on {r.target}; this machine is {target.machine_key()}"
        console.print(f"[yellow]another target:[/] {said}", highlight=False, soft_wrap=True)
    measuring = Measuring(target, r.threads)
    try:
        found = r.again(measuring)
    finally:
        measuring.close()
    print(f"{r.group.strip()}\n\n{r.trace}")
    was = f"then: it {FAULTS[r.fault]}: {r.why} (seed {r.seed})"
    now = f"it {FAULTS[found.fault]}: {found.why}" if found.fault else "its results are right"
    console.print(f"{was}\nnow: {now}", highlight=False, markup=False, soft_wrap=True)
    return 1 if found.fault else 0


def _told(found: Records, console: Console) -> None:
    shown = found.problems[:3]
    for problem in shown:
        console.print(f"passed over: {problem}", highlight=False, markup=False)
    left = len(found.problems) - len(shown)
    if left:
        console.print(f"passed over: {count(left, 'more line')}", highlight=False)


@cache
def _called(text: str) -> str:
    """A group in a few words: its results."""
    try:
        g = parse_group(text)
    except TilewrightError:
        return "a group that this version does not read"
    outs = ", ".join(f"{b.dtype}{list(b.shape)}" for b in g.outputs)
    return f"{count(len(g.stages), 'stage')} to {outs}"
