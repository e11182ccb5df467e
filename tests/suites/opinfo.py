"""Torch's OpInfo database against a backend, each entry in a process that may die.

    python -m tests.suites.opinfo --strict                # the float32 entries, first two samples
    python -m tests.suites.opinfo                          # the same, fallbacks and breaks allowed
    python -m tests.suites.opinfo --op add,nn.functional.* --samples 5 --dtype bfloat16
    python -m tests.suites.opinfo --slice 0:50 --backend counting

What is known not to be right stands in opinfo_expected.json with a reason. An entry that fails
without standing there fails the run, and so does one that stands there and passes; `--update`
rewrites the list from the run.
"""

import argparse
import faulthandler
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.suites.opinfo_entry import STATUSES, Outcome, check_entry, entries, entry_name

SHOWN = 40
EXPECTED = Path(__file__).with_name("opinfo_expected.json")


@dataclass(frozen=True)
class Settings:
    """One run: what is checked and how."""

    dtype: str = "float32"
    samples: int = 2
    backend: str = "tilewright"
    strict: bool = False
    jobs: int = 2
    timeout: float = 120.0

    @property
    def mode(self) -> str:
        return "strict" if self.strict else "lenient"


def run(names: Sequence[str], settings: Settings) -> Iterator[Outcome]:
    """Check entries in worker processes; outcomes come in the order they finish."""
    waiting = list(reversed(names))
    workers = [Worker(settings) for _ in range(min(settings.jobs, len(names)))]
    try:
        for worker in workers:
            worker.give(waiting.pop())
        while busy := [worker for worker in workers if worker.entry]:
            ready = connection.wait([worker.pipe for worker in busy], timeout=1.0)
            for worker in busy:
                outcome = worker.outcome(worker.pipe in ready)
                if outcome is None:
                    continue
                if waiting:
                    worker.give(waiting.pop())
                yield outcome
    finally:
        for worker in workers:
            worker.stop()


class Worker:
    """A process that checks one entry at a time and gives way to another when it dies or hangs."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.entry = ""
        self.started = 0.0
        self.alive = False

    def _start(self) -> None:
        context = get_context("spawn")
        self.folder = tempfile.TemporaryDirectory()
        self.noise = Path(self.folder.name) / "stderr"
        self.noise.touch()
        self.pipe, theirs = context.Pipe()
        arguments = (theirs, self.settings, self.noise)
        self.process = context.Process(target=_work, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        self.alive = True

    def give(self, entry: str) -> None:
        if not self.alive:
            self._start()
        self.entry, self.started = entry, time.monotonic()
        # A worker that is dead by now shows it when its outcome is read.
        with suppress(OSError):
            self.pipe.send(entry)

    def outcome(self, ready: bool) -> Outcome | None:
        """The outcome of the entry in hand, if there is one by now."""
        spent = time.monotonic() - self.started
        if ready:
            try:
                found = self.pipe.recv()
            except (EOFError, OSError):
                found = self._replace("crash", self._last_words(), spent)
        elif spent > self.settings.timeout:
            found = self._replace("timeout", f"more than {self.settings.timeout:.0f} s", spent)
        else:
            return None
        self.entry = ""
        return found

    def _replace(self, status: str, detail: str, spent: float) -> Outcome:
        self.stop()
        return Outcome(self.entry, status, detail, seconds=spent)

    def _last_words(self) -> str:
        self.process.join(5)
        text = self.noise.read_text(errors="replace").strip()
        lines = [line for line in text.splitlines() if line.strip()]
        fatal = [line for line in lines if "Fatal" in line or "LLVM ERROR" in line]
        said = fatal[-1] if fatal else (lines[-1] if lines else "it said nothing")
        return f"exit {self.process.exitcode}: {said}"[:300]

    def stop(self) -> None:
        if not self.alive:
            return
        self.alive = False
        self.pipe.close()
        # An idle worker leaves when its pipe closes; a hanging one has to be made to.
        self.process.join(0.1 if self.entry else 10)
        self.process.kill()
        self.process.join()
        self.folder.cleanup()


def _work(pipe: connection.Connection, settings: Settings, noise: Path) -> None:
    """The worker's life: entries by name in, outcomes out."""
    # Compilers write to the terminal as they die; the parent reads it from here.
    with open(noise, "w") as log:
        os.dup2(log.fileno(), 2)
    faulthandler.enable()
    import torch
    import torch._dynamo

    torch.set_num_threads(1)
    torch._dynamo.config.capture_scalar_outputs = settings.strict
    torch._dynamo.config.capture_dynamic_output_shape_ops = settings.strict
    dtype = getattr(torch, settings.dtype)
    known = {entry_name(op): op for op in entries(dtype)}
    while True:
        try:
            name = pipe.recv()
        except EOFError:
            return
        try:
            outcome = check_entry(
                known[name], dtype, settings.samples, settings.backend, settings.strict
            )
        except Exception as error:
            outcome = Outcome(name, "error", f"the check raised {type(error).__name__}: {error}")
        pipe.send(outcome)


def expected(settings: Settings) -> dict[str, str]:
    """Entries known not to be right, with the reason."""
    if settings.backend != "tilewright" or not EXPECTED.exists():
        return {}
    return json.loads(EXPECTED.read_text()).get(settings.dtype, {}).get(settings.mode, {})


def surprises(outcomes: Sequence[Outcome], known: dict[str, str]) -> list[str]:
    """Where a run and the committed list disagree, one sentence per entry."""
    found = []
    for outcome in outcomes:
        if outcome.status != "right" and outcome.name not in known:
            found.append(f"{outcome.name}: {STATUSES[outcome.status]}: {outcome.detail}")
        if outcome.status == "right" and outcome.name in known:
            found.append(f"{outcome.name}: right, though expected to fail: {known[outcome.name]}")
    return sorted(found)


def update(outcomes: Sequence[Outcome], settings: Settings) -> None:
    """Rewrite the committed list for the entries that were run."""
    everything = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
    listed = everything.setdefault(settings.dtype, {}).setdefault(settings.mode, {})
    for outcome in outcomes:
        before = listed.pop(outcome.name, "")
        if outcome.status != "right":
            # A reason that somebody wrote by hand stays while the entry fails in the same way.
            same = before.startswith(STATUSES[outcome.status])
            listed[outcome.name] = before if same else _reason(outcome)
    everything[settings.dtype][settings.mode] = dict(sorted(listed.items()))
    EXPECTED.write_text(json.dumps(everything, indent=1, sort_keys=True) + "\n")


def _reason(outcome: Outcome) -> str:
    """What stands in the committed list: the first sentence, without advice and places."""
    said = re.split(r" (?:Explanation|Hint|Caused by|Developer)\b|\. | \(", outcome.detail)[0]
    if outcome.status == "unsupported":
        return f"no definition of {outcome.detail}"
    meaning = STATUSES[outcome.status]
    return f"{meaning}: {said}" if said else meaning


def report(console: Console, outcomes: Sequence[Outcome], settings: Settings) -> None:
    """Tables: how many ended how, which operator to add next, what went wrong where."""
    counts = Counter(outcome.status for outcome in outcomes)
    summary = Table(title=f"OpInfo, {settings.dtype}, {settings.backend}, {settings.mode}")
    summary.add_column("outcome")
    summary.add_column("entries", justify="right")
    for status, meaning in STATUSES.items():
        if counts[status]:
            summary.add_row(meaning, str(counts[status]))
    fallen = sum(1 for o in outcomes if o.status == "right" and o.fallbacks)
    if fallen:
        summary.add_row("… of the right ones, with a fallback", str(fallen))
    summary.add_row("all", str(len(outcomes)), style="bold")
    console.print(summary)

    missing = Counter(name for o in outcomes for name in set(o.fallbacks))
    # Entries that one operator alone would complete come first: that one is worth adding.
    alone = Counter(o.fallbacks[0] for o in outcomes if len(set(o.fallbacks)) == 1)
    if missing:
        table = Table(title="operators without a definition")
        for heading in ("operator", "entries", "completed by it alone"):
            table.add_column(heading, justify="left" if heading == "operator" else "right")
        for name, _ in sorted(missing.items(), key=lambda item: (-alone[item[0]], -item[1]))[:60]:
            table.add_row(name, str(missing[name]), str(alone[name]))
        console.print(table)

    for status in ("wrong", "error", "crash", "timeout"):
        bad = sorted((o for o in outcomes if o.status == status), key=lambda o: o.name)
        if bad:
            console.print(_alike(STATUSES[status], bad))


def _alike(title: str, outcomes: Sequence[Outcome]) -> Table:
    """Entries by what they said, the most frequent first."""
    said: dict[str, list[str]] = {}
    for outcome in outcomes:
        said.setdefault(outcome.detail, []).append(outcome.name)
    table = Table(title=f"{title}: {len(outcomes)}", show_lines=True)
    table.add_column("entries", ratio=1)
    table.add_column("what", ratio=2)
    for detail, names in sorted(said.items(), key=lambda item: -len(item[1])):
        shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        table.add_row(shown, escape(detail))
    return table


def chosen(arguments: argparse.Namespace, known: Sequence[str]) -> list[str]:
    """The selected entries, by pattern and slice."""
    names = list(known)
    if arguments.op:
        patterns = arguments.op.split(",")
        names = [name for name in names if any(fnmatch(name, p) for p in patterns)]
    if arguments.slice:
        low, _, high = arguments.slice.partition(":")
        names = names[int(low or 0) : int(high) if high else None]
    return names


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.suites.opinfo", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--dtype", default="float32", help="torch's name of it")
    parser.add_argument("--samples", type=int, default=2, help="samples of each entry")
    parser.add_argument("--slice", help="first:last of the entries, in the database's order")
    parser.add_argument("--op", help="names of entries, separated by commas; * is allowed")
    parser.add_argument("--strict", action="store_true", help="whole graphs, no fallbacks")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--backend", default="tilewright")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for one entry")
    parser.add_argument("--update", action="store_true", help="rewrite the list of failures")
    parser.add_argument("--json", type=Path, help="write every outcome to this file")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    import torch

    console = Console()
    settings = Settings(
        given.dtype, given.samples, given.backend, given.strict, given.jobs, given.timeout
    )
    names = chosen(given, [entry_name(op) for op in entries(getattr(torch, given.dtype))])
    if not names:
        console.print("No entry has such a name; `--op 'nn.functional.*'` is a pattern that does.")
        return 2
    outcomes: list[Outcome] = []
    columns: tuple[Any, ...] = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("OpInfo", total=len(names))
        for outcome in run(names, settings):
            outcomes.append(outcome)
            right = sum(o.status == "right" for o in outcomes)
            progress.update(task, advance=1, description=f"{right} right, {outcome.name:.30}")
    report(console, outcomes, settings)
    if given.json:
        given.json.write_text(json.dumps([o.as_json() for o in outcomes], indent=1) + "\n")
    if given.update:
        update(outcomes, settings)
        return 0
    unexpected = surprises(outcomes, expected(settings))
    for line in unexpected[:SHOWN]:
        console.print(f"[red]unexpected[/] {escape(line)}", highlight=False)
    if len(unexpected) > SHOWN:
        console.print(f"… and {len(unexpected) - SHOWN} more; --json FILE has them all.")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
