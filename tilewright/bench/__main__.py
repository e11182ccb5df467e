"""`tilewright bench`, or `python -m tilewright.bench`: Tilewright compared with its peers.

`models`, `ops`, names of single ones and FILE.py:NAME are timed in turns with the peers;
`overhead`, `schedules` and `peak` measure parts of Tilewright and of the machine by themselves.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tilewright.base.errors import Invalid, MissingExtra, TilewrightError
from tilewright.base.machine import usable_cores
from tilewright.bench import plots
from tilewright.bench.arguments import GPU_PEERS, MORE_PEERS, PARTS, PEERS
from tilewright.bench.catalog import Case, chosen
from tilewright.bench.measure import MIN_ROUNDS, busy
from tilewright.bench.report import (
    about,
    case_table,
    json_text,
    markdown,
    show_summary,
    write,
)
from tilewright.bench.results import Result
from tilewright.bench.run import Plan, measure, measure_together
from tilewright.driver.cli.command import parser_of
from tilewright.driver.cli.commands import COMMANDS
from tilewright.driver.cli.commands.bench import COMMAND
from tilewright.runtime.cuda.driver import available

WIDTH = 140  # of tables where there is no terminal


def argument_parser() -> argparse.ArgumentParser:
    return parser_of("bench", COMMANDS["bench"], COMMAND)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0, 1 where ours failed or is wrong, 2 where the command cannot be done."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    errors = Console(stderr=True)
    try:
        if given and given[0] in PARTS:
            return _part(given[0], given[1:])
        asked = argument_parser().parse_args(given)
        return _bench(asked, Console(stderr=asked.json is True))
    except KeyboardInterrupt:
        return 130
    except TilewrightError as problem:
        errors.print("[bold red]error:[/]", end=" ")
        errors.print(str(problem), markup=False, highlight=False, soft_wrap=True)
        return 2


def _part(name: str, arguments: Sequence[str]) -> int:
    _need("torch")
    module = import_module(f"tilewright.bench.{PARTS[name][0]}")
    parser = argparse.ArgumentParser(prog=f"tilewright bench {name}", description=PARTS[name][1])
    module.add_arguments(parser)
    return module.main(parser.parse_args(arguments))


def _need(*packages: str) -> None:
    for package in packages:
        if find_spec(package) is None:
            raise MissingExtra("bench", f"tilewright bench ({package})")


def _plan(given: argparse.Namespace, cases: Sequence[Case]) -> Plan:
    usual = ",".join(PEERS if given.device == "cpu" else GPU_PEERS)
    listed = usual if given.peers is None else given.peers
    peers = tuple(dict.fromkeys(name for name in listed.split(",") if name))
    for name in peers:
        if name not in (*PEERS, *MORE_PEERS) and ":" not in name:
            known = ", ".join((*PEERS, *MORE_PEERS))
            raise Invalid(
                f"no peer is called {name!r}", hint=f"known are {known}, and FILE.py:NAME"
            )
    dtype = given.dtype or ("float32" if given.device == "cpu" else "bfloat16")
    if dtype not in ("float32", "float64", "float16", "bfloat16"):
        raise Invalid(
            f"nothing is measured in {dtype!r}",
            hint="dtypes are float32, float64, float16 and bfloat16",
        )
    if given.threads < 0 or given.compile_rounds < 1 or given.patience <= 0 or given.together < 0:
        raise Invalid("threads, compile rounds, patience and cases together must be positive")
    programs = any(case.kind == "program" for case in cases)
    return Plan(
        peers=peers,
        threads=given.threads or usable_cores(),
        rounds=max(given.rounds, MIN_ROUNDS),
        dtype=dtype,
        tiny=given.tiny,
        strict=given.strict or not programs,
        inputs=tuple(given.input or ()),
        timing=given.only != "compile",
        compiling=given.only != "time",
        compile_rounds=given.compile_rounds,
        contended=given.contended,
        own_weights=given.own_weights,
        device=given.device,
        patience=given.patience,
        together=given.together,
        within=given.within,
        lock=given.lock,
    )


def _part_of(cases: Sequence[Case], part: str) -> list[Case]:
    """Every N-th of the cases, from the K-th on, for "K/N"."""
    first, _, count = part.partition("/")
    if not (first.isdigit() and count.isdigit() and 1 <= int(first) <= int(count)):
        raise Invalid(f"{part!r} is no part of the cases", hint="2/3 is every third, from the 2nd")
    return list(cases)[int(first) - 1 :: int(count)]


def _bench(given: argparse.Namespace, console: Console) -> int:
    if given.device == "cuda" and not available():
        raise Invalid("there is no GPU to measure", hint="leave --device out, or install a driver")
    cases = _part_of(chosen(given.cases, given.device), given.part)
    _need("torch", *(["transformers"] if any(c.kind == "model" for c in cases) else []))
    plan = _plan(given, cases)
    if given.plots:
        plots.require_matplotlib()
    warning = busy()
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)
    console.print(about(plan), highlight=False)
    results = list[Result]()
    try:
        for case in _shown(console, cases, plan, results):
            if plan.timing:
                console.print(case_table(case))
            if isinstance(given.json, Path):  # after each case: a run of an hour may be interrupted
                write(given.json, json_text(results, plan, warning))
    finally:
        _finish(given, console, results, plan, warning)
    return 1 if any(r.failed for r in results) else 0


def _shown(
    console: Console, cases: Sequence[Case], plan: Plan, results: list[Result]
) -> Iterator[Result]:
    """Measure one case after the other, with a line that says what is going on."""
    columns = (
        BarColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
    )
    # Lines that are drawn again and again belong on terminals only.
    shown = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with shown as progress:
        task = progress.add_task("", total=len(cases) * plan.steps())
        each = plan.together or 1
        for first in range(0, len(cases), each):
            some = cases[first : first + each]
            progress.update(task, completed=first * plan.steps())

            def tell(text: str, names: str = ", ".join(c.name for c in some)) -> None:
                progress.update(task, description=f"{names}: {text}", advance=1)

            with tempfile.TemporaryDirectory(prefix="tilewright-bench-") as name:
                folder = Path(name)
                together = measure_together if plan.together else _in_turn
                for found in together(some, plan, folder, tell):
                    results.append(found)
                    yield found


def _in_turn(
    cases: Sequence[Case], plan: Plan, folder: Path, tell: Callable[[str], None]
) -> Iterator[Result]:
    for case in cases:
        yield measure(case, plan, folder, tell)


def _finish(
    given: argparse.Namespace,
    console: Console,
    results: Sequence[Result],
    plan: Plan,
    warning: str | None,
) -> None:
    show_summary(console, results)
    if given.json is True:
        print(json_text(results, plan, warning), end="")
    if warning:
        console.print(f"[yellow]{warning}[/]", highlight=False)
    if given.markdown:
        write(given.markdown, markdown(results, plan, warning))
    if given.plots:
        for path in plots.draw(results, given.plots):
            console.print(f"drawn: {path}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
