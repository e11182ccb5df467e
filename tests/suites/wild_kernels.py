"""Libraries of Triton kernels on Tilewright, from checkouts of theirs: which kernels are right.

    python -m tests.suites.wild_kernels CHECKOUT …                   # one small case of each test
    python -m tests.suites.wild_kernels CHECKOUT … -k softmax --cases 5 --json found.json
    python -m tests.suites.wild_kernels inductor                     # kernels that Inductor writes
    python -m tests.suites.wild_kernels CHECKOUT … --device cuda --memory 64        # on a GPU
    python -m tests.suites.wild_kernels CHECKOUT … --device lowered     # compiled for one as well
    python -m tests.suites.wild_kernels CHECKOUT … --device emulated    # as a GPU's code, slowly

A library is known by its folders (wild_libraries.py). Its own tests run where they need one device
and no network: few cases of each, the smallest, because sizes are meant for GPUs. Where they need
more, a driver of ours (wild/drive_*.py) calls its kernels through its public functions and compares
with float64. Modules that it imports and that are not installed are stood in for, and refused by
name once they are used (wild/standins.py).

What does not pass, and why, stands in wild_expected.json: a case that fails without standing there
fails the run, and so does one that stands there and passes, unless its reason begins with
"sometimes: ".
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.suites.wild_libraries import INDUCTOR, LIBRARIES, Library, known_by
from tests.suites.wild_results import Judged, judge
from tests.suites.wild_runs import Options, Ran, run

EXPECTED = Path(__file__).with_name("wild_expected.json")
COLUMNS = (
    "right",
    "wrong",
    "refused",
    "crashed",
    "slow",
    "gpu",
    "apart",
    "not judged",
    "not reached",
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suites.wild_kernels")
    parser.add_argument("checkout", nargs="+", type=Path, help="sources of a library of kernels")
    parser.add_argument("--library", help="only this one of those that the folders show")
    parser.add_argument("--cases", type=int, default=1, help="of each test (default 1; 0: all)")
    parser.add_argument("--drivers", action="store_true", help="only the suite's own files")
    parser.add_argument("-k", metavar="WORDS", help="only the cases that pytest's -k selects")
    parser.add_argument(
        "--limit", type=float, default=60, help="seconds of the processor per case (default 60)"
    )
    parser.add_argument("--memory", type=int, default=6, help="GiB per process (default 6)")
    parser.add_argument(
        "--configs", type=int, default=1, help="of an autotuned kernel (default 1, the smallest)"
    )
    parser.add_argument(
        "--skip",
        type=int,
        default=0,
        help="so many of the smallest configurations; -1 leaves the largest, which is judged then",
    )
    parser.add_argument("--seconds", type=float, help="stop a library after so long")
    parser.add_argument(
        "--device",
        choices=["cpu", "cuda", "lowered", "emulated"],
        default="cpu",
        help="where they run; lowered: on the processor, and compiled for a GPU that is not there; "
        "emulated: as the code of a GPU that is not there, on the processor",
    )
    parser.add_argument("--json", type=Path, help="write every case and every kernel here")
    given = parser.parse_args(argv)
    options = Options(
        cases=given.cases,
        limit=given.limit,
        memory=given.memory,
        configs=given.configs,
        skip=given.skip,
        words=given.k,
        seconds=given.seconds,
        drivers=given.drivers,
        gpu=given.device == "cuda",
        lowered=given.device == "lowered",
        emulated=given.device == "emulated",
    )
    chosen: list[tuple[Library, Path]] = []
    for checkout in given.checkout:
        if str(checkout) == "inductor":
            chosen.append((INDUCTOR, checkout))
            continue
        libraries = known_by(checkout.resolve())
        if given.library:
            libraries = [x for x in libraries if x.name == given.library]
        if not libraries:
            parser.error(
                f"{checkout} is no checkout of {given.library or 'a known library'}: those known "
                f"are {', '.join(x.name for x in LIBRARIES)}"
            )
        chosen += [(library, checkout.resolve()) for library in libraries]
    expected = json.loads(EXPECTED.read_text())
    console, judged, ran = Console(), [], []
    for library, checkout in chosen:
        found = watched(library, checkout, options, console)
        whole = options.words is None and not found.left and not options.drivers
        ran.append(found)
        judged.append(judge(library, checkout, found, expected.get(library.name, {}), whole))
    report(judged, console)
    if given.json:
        given.json.write_text(json.dumps(written(judged, ran), indent=1))
    return 1 if any(j.problems or not j.cases for j in judged) else 0


def watched(library: Library, checkout: Path, options: Options, console: Console) -> Ran:
    """Run a library under a progress bar."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[case]}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(library.name, total=None, case="imports")
        return run(
            library,
            checkout,
            options,
            lambda done, of, case: bar.update(
                task, completed=done, total=of or None, case=case[:60]
            ),
        )


def report(judged: Sequence[Judged], console: Console) -> None:
    for one in judged:
        for case, result, why in one.problems:
            console.print(f"[bold]{one.library}[/] {case}: [red]{result}[/]", highlight=False)
            for line in why.strip().splitlines()[:6]:
                console.print(f"    {line}", highlight=False, markup=False)
        for file, why in one.broken.items():
            console.print(f"[bold]{one.library}[/] {file} is not run: {why}", highlight=False)
    table = Table(title="kernels")
    table.add_column("library")
    for column in (*COLUMNS, "right of tried", "cases", "seconds"):
        table.add_column(column, justify="right")
    for one in judged:
        counts, share = one.counts, one.share
        table.add_row(
            one.library,
            *(str(counts[c]) for c in COLUMNS),
            "" if share is None else f"{share:.1%}",
            str(sum(one.cases.values())),
            f"{one.seconds:.0f}",
        )
    console.print(table)
    reasons = Table(title="expected not to pass")
    for column in ("library", "case", "reason"):
        reasons.add_column(column)
    for one in judged:
        for case, reason in one.expected:
            reasons.add_row(one.library, case, reason)
    if reasons.row_count:
        console.print(reasons)


def written(judged: Sequence[Judged], ran: Sequence[Ran]) -> list[dict]:
    return [
        {
            "library": one.library,
            "seconds": round(one.seconds, 1),
            "kernels": one.counts,
            "cases": one.cases,
            "broken": one.broken,
            "stood in": sorted(found.stood_in),
            "verdicts": [asdict(v) for v in one.verdicts],
            "all cases": [asdict(c) for c in found.cases],
        }
        for one, found in zip(judged, ran, strict=True)
    ]


if __name__ == "__main__":
    sys.exit(main())
