"""`tilewright bench`, or `python -m tilewright.bench`: Tilewright compared with its peers.

`models`, `ops`, names of single ones and FILE.py:NAME are timed in turns with the peers;
`overhead`, `schedules` and `peak` measure parts of Tilewright and of the machine by themselves.
"""

from __future__ import annotations

import argparse
import math
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
from tilewright.bench.catalog import MODELS, OPERATORS, Case, chosen
from tilewright.bench.measure import MIN_ROUNDS, busy
from tilewright.bench.report import about, case_table, markdown, show_summary, write, write_json
from tilewright.bench.results import Result
from tilewright.bench.run import Plan, measure, measure_together
from tilewright.runtime.cuda.driver import available

PARTS = {
    "overhead": ("overhead", "what a call costs besides its kernels"),
    "schedules": ("schedules", "a matrix product by schedule steps alone, against the peak"),
    "peak": ("machine", "multiply-adds and bytes per second of this machine"),
}
PEERS = ("eager", "inductor", "inductor-freezing", "max-autotune", "onnxruntime", "openvino")
MORE_PEERS = ("xla", "iree", "reduce-overhead")
# The one that takes longest is the last: where time ends, it is the one that is missing.
GPU_PEERS = ("eager", "inductor", "reduce-overhead", "xla", "max-autotune")
ALL_CASES = 1000
WIDTH = 140  # of tables where there is no terminal


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tilewright bench",
        description="Time programs against other compilers, in turns, with the same threads and "
        "precision, every result checked.",
        epilog="Also: "
        + "; ".join(f"tilewright bench {name} ({what})" for name, (_, what) in PARTS.items())
        + ".",
    )
    models, operators = (", ".join(c.name for c in cases) for cases in (MODELS, OPERATORS))
    parser.add_argument(
        "cases",
        nargs="*",
        default=["models"],
        metavar="CASE",
        help=f"models (the default), ops, FILE.py:NAME, one of {models}, or of {operators}",
    )
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cpu", help="cuda: the first GPU, in bfloat16"
    )
    parser.add_argument(
        "--part", default="1/1", metavar="K/N", help="every N-th case, from the K-th: a shorter run"
    )
    parser.add_argument(
        "--peers",
        help=f"by commas, of {', '.join((*PEERS, *MORE_PEERS))}, or FILE.py:NAME, a function that "
        "takes a module and its inputs and gives a call without arguments",
    )
    parser.add_argument("--rounds", type=int, default=9, help=f"at least {MIN_ROUNDS}")
    parser.add_argument("--threads", type=int, default=0, help="of every contender; 0: all cores")
    parser.add_argument(
        "--dtype", help="of cases that have none of their own: float32, on a GPU bfloat16"
    )
    parser.add_argument("--tiny", action="store_true", help="the sizes of the tests")
    parser.add_argument("--only", choices=["time", "compile"], help="half of the numbers")
    parser.add_argument(
        "--compile-rounds", type=int, default=3, metavar="N", help="first calls of ours"
    )
    parser.add_argument(
        "--together",
        nargs="?",
        type=int,
        const=ALL_CASES,
        default=0,
        metavar="N",
        help="N cases (or all) get ready at the same time: quicker; first calls are those",
    )
    parser.add_argument(
        "--within",
        type=float,
        default=math.inf,
        metavar="S",
        help="with --together: seconds until rounds begin, without those that are not ready",
    )
    parser.add_argument(
        "--lock", type=Path, metavar="FILE", help="locked for rounds: several runs take turns"
    )
    parser.add_argument(
        "--contended", action="store_true", help="time ours with one core taken, too"
    )
    parser.add_argument(
        "--own-weights", action="store_true", help="ours stores packed weights only"
    )
    parser.add_argument("--patience", type=float, default=1200.0, help="seconds for one answer")
    parser.add_argument(
        "-i", "--input", action="append", metavar="TYPE[DIMS]", help="of a program: f32[8,16]"
    )
    parser.add_argument("--strict", action="store_true", help="a program's fallback is an error")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables there")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw bars and a roofline there")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0, 1 where ours failed or is wrong, 2 where the command cannot be done."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    errors = Console(stderr=True)
    try:
        if given and given[0] in PARTS:
            return _part(given[0], given[1:])
        return _bench(argument_parser().parse_args(given), Console())
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
        if name not in (*PEERS, *MORE_PEERS) and ".py:" not in name:
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
            if given.json:  # after each case: a run of an hour may be interrupted
                write_json(given.json, results, plan, warning)
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
    if warning:
        console.print(f"[yellow]{warning}[/]", highlight=False)
    if given.markdown:
        write(given.markdown, markdown(results, plan, warning))
    if given.plots:
        for path in plots.draw(results, given.plots):
            console.print(f"drawn: {path}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
