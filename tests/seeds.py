"""Running a random test over many seeds from the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import track

from tests import nightly


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
