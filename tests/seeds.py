"""Which of many cases a test takes in every run, and random tests from the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

import pytest
from rich.console import Console
from rich.progress import track

from tests import nightly

# Whether cases that are marked slow are made at all; tests/conftest.py decides. A default run would
# leave them out again, and has two thirds as many cases to collect without them.
slow_too = True


def drawn(seeds: Sequence[Any], quick: int) -> list[Any]:
    """Seeds, or other values, as parameters of a test: the first few in every run, the others with
    `-m slow`."""
    return _taken(
        pytest.param(seed, marks=() if k < quick else pytest.mark.slow, id=named(seed))
        for k, seed in enumerate(seeds)
    )


def crossed(rows: Iterable[Any], columns: Iterable[Any], step: int) -> list[Any]:
    """Pairs as parameters of a test: in every run only those on every `step`-th diagonal, so that
    each value takes part, the others with `-m slow`. `step` is at most the number of either."""
    return diagonals(rows, columns, step=step)


def diagonals(*axes: Iterable[Any], step: int) -> list[Any]:
    """The same of any number of parameters: in every run one of `step` combinations. Each value
    takes part where another parameter has at least `step` values."""
    return _taken(
        pytest.param(
            *(value for _, value in numbered),
            marks=() if sum(k for k, _ in numbered) % step == 0 else pytest.mark.slow,
            id=named(*(value for _, value in numbered)),
        )
        for numbered in product(*map(enumerate, axes))
    )


def every_run(*positions: int) -> pytest.MarkDecorator:
    """Of a test's cases, in the order in which they are collected, those at these positions are
    part of every run, the others run with `-m slow`. For tests whose cases are sizes, dtypes or
    targets of one thing, each of which takes long; never where a case is the only one of something.
    Cases that are slow by themselves are not counted."""
    return pytest.mark.every_run(*positions)


def leave_to_slow_runs(cases: Sequence[pytest.Item]) -> None:
    """Marks as slow what `every_run` does not name among all cases of one test."""
    counted = [case for case in cases if case.get_closest_marker("slow") is None]
    mark = counted[0].get_closest_marker("every_run") if counted else None
    if mark is None:
        return
    if not any(0 <= k < len(counted) for k in mark.args):
        name = counted[0].nodeid.partition("[")[0]
        raise pytest.UsageError(f"{name} has {len(counted)} cases; every_run{mark.args} names none")
    for k, case in enumerate(counted):
        if k not in mark.args:
            case.add_marker(pytest.mark.slow)


def _taken(cases: Iterable[Any]) -> list[Any]:
    made = list(cases)
    return made if slow_too else [case for case in made if not case.marks] or made


def named(*values: Any) -> str:
    """Parameters as a name that is the same in every process: a function's text has its address."""
    parts = [named(*v) if isinstance(v, tuple) else getattr(v, "__name__", str(v)) for v in values]
    return "-".join(parts)


def run_generator(
    name: str, count: int, description: str | None, arguments: Sequence[str] | None = None
) -> int:
    """One generator alone, as `python -m tests.nightly --only NAME` runs it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    first = [] if {"--seed", "--first"} & set(given) else ["--seed", "0"]
    return nightly.main(["--only", name, "--count", str(count), *first, *given], description)


def run_seeds(
    check_seed: Callable[[int], None],
    what: str,
    count: int,
    description: str | None,
    arguments: Sequence[str] | None = None,
) -> int:
    """Check seed after seed and print what fails; the exit status says whether anything did."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=count, help=f"how many {what}")
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    options = parser.parse_args(arguments)
    console = Console()
    bad = 0
    seeds = range(options.first, options.first + options.count)
    for seed in track(seeds, description=f"random {what}", console=console):
        try:
            check_seed(seed)
        except AssertionError as problem:
            bad += 1
            console.print(str(problem), markup=False)
    console.print(f"{options.count} {what} from seed {options.first}: {bad} wrong")
    return 1 if bad else 0
