"""Torch's OpInfo database against a backend, each entry in a process that may die.

    python -m tests.suites.opinfo --strict                # the float32 entries, first two samples
    python -m tests.suites.opinfo                          # the same, fallbacks and breaks allowed
    python -m tests.suites.opinfo --gradients              # backward too, of what has a gradient
    python -m tests.suites.opinfo --dtype float16,bfloat16,float64,int64,bool,complex64
    python -m tests.suites.opinfo --op add,nn.functional.* --samples 5 --dtype bfloat16
    python -m tests.suites.opinfo --resume run.jsonl       # goes on where a run was stopped
    python -m tests.suites.opinfo --slice 0:50 --backend counting
    python -m tests.suites.opinfo --strict --backend searched  # with a search for other graphs

What is known not to be right stands in opinfo_expected.json with a reason. An entry that fails
without standing there fails the run, and so does one that stands there and passes; `--update`
rewrites the list from the run. A result that is further from float64 than twice eager's error is
called rounding, not wrong, where eager's own result moves as far when its operators and its inputs
are rounded another way. With `--gradients` results are weighed, and the gradients of all inputs
that ask for one are judged with them.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.suites import commands
from tests.suites.opinfo_entry import entries, entry_name
from tests.suites.opinfo_runs import STATUSES, Outcome, Settings, run

EXPECTED = Path(__file__).with_name("opinfo_expected.json")


def expected(settings: Settings) -> dict[str, str]:
    """Entries known not to be right, with the reason."""
    if settings.backend not in ("tilewright", "searched") or not EXPECTED.exists():
        return {}
    return json.loads(EXPECTED.read_text()).get(settings.dtype, {}).get(settings.mode, {})


def surprises(outcomes: Sequence[Outcome], known: dict[str, str]) -> list[str]:
    return commands.surprises(outcomes, known, STATUSES)


def update(outcomes: Sequence[Outcome], settings: Settings) -> None:
    """Rewrite the committed list for the entries that were run."""
    everything = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
    listed = everything.setdefault(settings.dtype, {}).setdefault(settings.mode, {})
    for outcome in outcomes:
        before = listed.pop(outcome.name, "")
        if outcome.status != "right":
            # A reason that somebody wrote by hand stays while the entry fails in the same way.
            same = before.startswith(STATUSES[outcome.status])
            listed[outcome.name] = before if same else reason(outcome)
    everything[settings.dtype][settings.mode] = dict(sorted(listed.items()))
    EXPECTED.write_text(json.dumps(everything, indent=1, sort_keys=True) + "\n")


def reason(outcome: Outcome) -> str:
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
    called = sum(1 for o in outcomes if o.status == "right" and o.libraries)
    if called:
        summary.add_row("… of the right ones, with a call of LAPACK", str(called))
    if fallen:
        summary.add_row("… of the right ones, with a fallback", str(fallen))
    able = [o for o in outcomes if o.status not in ("eager", "capture", "alike")]
    if able:
        right = sum(o.status in ("right", "no kernel") for o in able)
        summary.add_row("right, of those that torch can do", f"{100 * right / len(able):.1f} %")
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

    for status in ("wrong", "rounding", "alike", "error", "crash", "timeout"):
        bad = sorted((o for o in outcomes if o.status == status), key=lambda o: o.name)
        if bad:
            console.print(alike(STATUSES[status], bad))


def alike(title: str, outcomes: Sequence[Outcome]) -> Table:
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


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.suites.opinfo", description=__doc__)
    commands.add_arguments(parser, "entry", "--op", "nn.functional.*", timeout=120.0)
    parser.add_argument("--dtype", default="float32", help="torch's name of it, or several")
    parser.add_argument("--gradients", action="store_true", help="with backward")
    parser.add_argument("--samples", type=int, default=2, help="samples of each entry")
    parser.add_argument("--strict", action="store_true", help="whole graphs, no fallbacks")
    parser.add_argument("--backend", default="tilewright")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    console = Console()
    everything: list[Outcome] = []
    unexpected: list[str] = []
    for dtype in given.dtype.split(","):
        settings = Settings(
            dtype,
            given.samples,
            given.backend,
            given.strict,
            given.jobs,
            given.timeout,
            given.gradients,
        )
        outcomes = _outcomes(console, given, settings)
        report(console, outcomes, settings)
        everything += outcomes
        unexpected += surprises(outcomes, expected(settings))
        if given.update:
            update(outcomes, settings)
    if not everything:
        console.print("No entry has such a name; `--op 'nn.functional.*'` is a pattern that does.")
        return 2
    commands.write_json(given, everything)
    return 0 if given.update else commands.exit_code(console, unexpected)


def _outcomes(console: Console, given: argparse.Namespace, settings: Settings) -> list[Outcome]:
    import torch

    known = entries(getattr(torch, settings.dtype), settings.gradients)
    names = commands.chosen(given, map(entry_name, known))
    outcomes: list[Outcome] = []
    key = f"{settings.backend} {settings.dtype} {settings.mode}"
    with commands.progress(console) as progress:
        task = progress.add_task("OpInfo", total=len(names))
        for outcome in commands.resumed(given, lambda left: run(left, settings), names, key):
            outcomes.append(outcome)
            right = sum(o.status == "right" for o in outcomes)
            progress.update(task, advance=1, description=f"{right} right, {outcome.name:.30}")
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
