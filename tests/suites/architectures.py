"""Architectures of `transformers`, built tiny from their configs, in processes that may die.

    python -m tests.suites.architectures               # inference: whole graphs, no fallbacks
    python -m tests.suites.architectures --training    # a training step: gradients of all weights
    python -m tests.suites.architectures --only 'gemma*,bart'
    python -m tests.suites.architectures --lenient --resume run.jsonl
    python -m tests.suites.architectures --list

Models of tests/suites/models.py are not among them. What is known not to be right stands in
architectures_expected.json with a reason; the list only gets shorter, because a model that stands
there and is right fails the run. `--update` rewrites it from the run. What eager itself refuses
(a package that is not installed, say) and what Dynamo cannot capture is counted apart.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from multiprocessing import connection
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.suites import commands, opinfo_runs
from tests.suites.architecture_builds import ARCHITECTURES
from tests.suites.opinfo import alike, reason
from tests.suites.opinfo_runs import STATUSES, Outcome, Settings, run

EXPECTED = Path(__file__).with_name("architectures_expected.json")


def check(settings: Settings) -> Callable[[str], Outcome]:
    """What judges one by its name. It is loaded here: the process that only waits needs no torch
    compiler."""
    return import_module("tests.suites.architecture_checks").checker(settings)


def work(pipe: connection.Connection, settings: Settings, noise: Path) -> None:
    """The life of a worker."""
    opinfo_runs.serve(pipe, noise, lambda: check(settings))


def mode(settings: Settings) -> str:
    kind = "training" if settings.gradients else "inference"
    return kind if settings.strict else f"lenient {kind}"


def expected(settings: Settings) -> dict[str, str]:
    """Architectures known not to be right, with the reason."""
    return json.loads(EXPECTED.read_text()).get(mode(settings), {}) if EXPECTED.exists() else {}


def update(outcomes: Sequence[Outcome], settings: Settings) -> None:
    """Rewrite the committed list for the architectures that were run."""
    everything = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
    listed = everything.setdefault(mode(settings), {})
    for outcome in outcomes:
        listed.pop(outcome.name, None)
        if outcome.status != "right":
            listed[outcome.name] = reason(outcome)
    everything[mode(settings)] = dict(sorted(listed.items()))
    EXPECTED.write_text(json.dumps(everything, indent=1, sort_keys=True) + "\n")


def report(console: Console, outcomes: Sequence[Outcome], settings: Settings) -> None:
    """A row for each that is not right, by what it said; then the counts."""
    for status in STATUSES:
        bad = sorted((o for o in outcomes if o.status == status), key=lambda o: o.name)
        if bad and status != "right":
            console.print(alike(STATUSES[status], bad))
    table = Table(title=f"architectures, {mode(settings)}")
    table.add_column("outcome")
    table.add_column("models", justify="right")
    for status, meaning in STATUSES.items():
        if count := sum(o.status == status for o in outcomes):
            table.add_row(meaning, str(count))
    able = [o for o in outcomes if o.status not in ("eager", "capture", "alike")]
    right = [o for o in able if o.status == "right" and not o.fallbacks]
    if able:
        share = f"{len(right)} of {len(able)}, {100 * len(right) / len(able):.1f} %"
        table.add_row("whole and without a fallback, of those that torch can do", share)
    console.print(table)
    fallen = [o for o in outcomes if o.status == "right" and o.fallbacks]
    for o in fallen:
        console.print(escape(f"{o.name}: {', '.join(sorted(set(o.fallbacks)))} in eager"))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.suites.architectures")
    commands.add_arguments(parser, "model", "--only", "gemma*", timeout=300.0)
    parser.description = __doc__
    parser.add_argument("--training", action="store_true", help="a training step")
    parser.add_argument("--lenient", action="store_true", help="breaks and fallbacks allowed")
    parser.add_argument("--backend", default="tilewright")
    parser.add_argument("--list", action="store_true", help="the names")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    console = Console()
    names = commands.chosen(given, ARCHITECTURES)
    if given.list:
        console.print("\n".join(names), highlight=False)
        return 0
    if not names:
        console.print("No architecture has such a name; --list prints those that there are.")
        return 2
    settings = Settings(
        backend=given.backend,
        strict=not given.lenient,
        jobs=given.jobs,
        timeout=given.timeout,
        gradients=given.training,
    )
    outcomes: list[Outcome] = []
    key = f"{settings.backend} {mode(settings)}"
    with commands.progress(console) as progress:
        task = progress.add_task("architectures", total=len(names))
        for outcome in commands.resumed(given, lambda left: run(left, settings, work), names, key):
            outcomes.append(outcome)
            right = sum(o.status == "right" for o in outcomes)
            progress.update(task, advance=1, description=f"{right} right, {outcome.name:.30}")
    report(console, outcomes, settings)
    commands.write_json(given, outcomes)
    if given.update:
        update(outcomes, settings)
        return 0
    unexpected = commands.surprises(outcomes, expected(settings), STATUSES)
    return commands.exit_code(console, unexpected)


if __name__ == "__main__":
    sys.exit(main())
