"""ONNX's backend suite through native code, each case in a process that may die.

    python -m tests.suites.onnx_backend                      # everything that needs no download
    python -m tests.suites.onnx_backend --slice 0:200
    python -m tests.suites.onnx_backend --only 'test_resize*'
    python -m tests.suites.onnx_backend --engine onnxruntime # the same by ONNX Runtime, to compare

What is known not to be right stands in onnx_expected.json with a reason. A case that fails without
standing there fails the run, and so does one that stands there and passes: the list only shrinks.
`--update` rewrites it from the run.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.suites import commands
from tests.suites.onnx_cases import GOOD, STATUSES, cases, downloads, opset_of, work, written
from tests.suites.opinfo_runs import Outcome, Settings, run

EXPECTED = Path(__file__).with_name("onnx_expected.json")
COMPARED = 26  # opsets that other engines have by now


def expected() -> dict[str, str]:
    return json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}


def surprises(outcomes: Sequence[Outcome], known: dict[str, str]) -> list[str]:
    """A wrong number and a dead process are excused by no list."""
    return commands.surprises(outcomes, known, STATUSES, GOOD, ("wrong", "crash"))


def update(outcomes: Sequence[Outcome]) -> None:
    listed = expected()
    for o in outcomes:
        listed.pop(o.name, None)
        if o.status not in GOOD:
            listed[o.name] = f"{STATUSES[o.status]}: {o.detail}"
    EXPECTED.write_text(json.dumps(dict(sorted(listed.items())), indent=1) + "\n")


def report(console: Console, outcomes: Sequence[Outcome]) -> None:
    """How many ended how, and reasons by how often they were given."""
    counts = Counter(o.status for o in outcomes)
    table = Table(title="ONNX's backend suite")
    table.add_column("outcome")
    table.add_column("cases", justify="right")
    for status, meaning in STATUSES.items():
        if counts[status]:
            table.add_row(meaning, str(counts[status]))
    table.add_row("all", str(len(outcomes)), style="bold")
    older = [o for o in outcomes if opset_of(cases()[o.name]) <= COMPARED]
    good = sum(o.status in GOOD for o in older)
    table.add_row(f"right of those of opset {COMPARED} and before", f"{good} of {len(older)}")
    table.add_row("models to download, not run", str(len(downloads())))
    console.print(table)
    reasons: dict[str, list[str]] = {}
    for o in outcomes:
        if o.status not in GOOD:
            alike = re.sub(r"[\d.]+", "#", o.detail) if o.status == "wrong" else o.detail
            reasons.setdefault(f"{o.status}: {alike}", []).append(o.name)
    if not reasons:
        return
    table = Table(title="why not", show_lines=True)
    table.add_column("cases", justify="right")
    table.add_column("reason", ratio=2)
    table.add_column("which", ratio=1)
    for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        shown = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
        table.add_row(str(len(names)), escape(reason), shown)
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.suites.onnx_backend", description=__doc__
    )
    commands.add_arguments(parser, "case", "--only", "test_add*", timeout=60.0)
    parser.add_argument("--engine", default="tilewright", choices=["tilewright", "onnxruntime"])
    parser.add_argument("--cases", type=Path, help="where cases are kept for another run")
    given = parser.parse_args(arguments)
    console = Console()
    names = commands.chosen(given, cases())
    if not names:
        console.print("No case has such a name; `--only 'test_add*'` is a pattern that does.")
        return 2
    settings = Settings(backend=given.engine, jobs=given.jobs, timeout=given.timeout)
    with tempfile.TemporaryDirectory() as folder:
        place = given.cases or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        written(place)
        outcomes = []
        for o in run(names, settings, partial(work, place)):
            outcomes.append(o)
            if not console.is_terminal and len(outcomes) % 100 == 0:
                good = sum(o.status in GOOD for o in outcomes)
                console.print(f"{len(outcomes)} of {len(names)} cases, {good} right")
    report(console, outcomes)
    commands.write_json(given, outcomes)
    if given.engine != "tilewright":
        return 0
    if given.update:
        update(outcomes)
        return 0
    return commands.exit_code(console, surprises(outcomes, expected()))


if __name__ == "__main__":
    sys.exit(main())
