"""The command line: `tilewright demo | compile | run | explain | validate | bisect | …`."""

from __future__ import annotations

import argparse
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

from tilewright import targets
from tilewright.base import knobs
from tilewright.base.errors import Invalid, TilewrightError
from tilewright.driver.api import torch_side
from tilewright.driver.looking import demo as demos
from tilewright.driver.looking.explain import Explanation, explain
from tilewright.driver.looking.inputs import FORM, Loaded, load, parse_type
from tilewright.driver.program.arrays import random_array, random_inputs, run_arrays
from tilewright.driver.program.default_passes import PRECISIONS, described, passes
from tilewright.driver.program.graph_run import judge
from tilewright.driver.program.options import Options
from tilewright.driver.program.programs import compile_graph
from tilewright.ir.node import Graph
from tilewright.ir.pipeline import Pipeline
from tilewright.ir.target import Target
from tilewright.runtime.program_data import KernelInfo
from tilewright.tune.fleet import ADDRESS

if TYPE_CHECKING:  # each command loads what it needs
    from tilewright.driver.program.validation import Report

_CALIBRATE = "tilewright.driver.looking.calibrate"
_BISECT = "tilewright.driver.looking.bisect_torch"
_ELSEWHERE = "tilewright.driver.program.elsewhere"
_FLEET = "tilewright.driver.looking.fleet"
_COMPARE = "tilewright.driver.looking.compare"
_LEARNING = "tilewright.driver.looking.learning"
_MINE = "tilewright.driver.looking.mine"
_OPTIMIZE = "tilewright.driver.looking.optimize"
_RULES = "tilewright.driver.looking.rules"
_TUNE = "tilewright.driver.looking.tune"
_VALIDATE = "tilewright.driver.looking.validate"
_TORCH_API = "tilewright.driver.torch.api"
BUDGET = 60  # seconds of a search
KERNEL_FORMS = ("group", "trace", "nest", "llvm", "assembly")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0, 1 where a result is not right, 2 where the command cannot be done."""
    console, errors = Console(), Console(stderr=True)
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if words[:1] == ["bench"]:
            return _bench(words[1:])
        if words[:1] == ["tune"] and words[1:2] in (["collect"], ["train"]):
            return import_module(_LEARNING).main(words[1:], console)
        given = argument_parser().parse_args(words)
        return given.do(given, console)
    except KeyboardInterrupt:
        return 130
    except Exception as problem:
        return _report(problem, errors)


def _report(problem: Exception, errors: Console) -> int:
    """The error as a sentence; the traceback only with TILEWRIGHT_LOGS=debug."""
    ours = isinstance(problem, TilewrightError)
    if knobs.logs.get().shows("debug"):
        errors.print("".join(traceback.format_exception(problem)), markup=False, highlight=False)
    what = str(problem) if ours else f"{type(problem).__name__}: {problem}"
    errors.print("[bold red]error:[/]", end=" ")
    errors.print(what, markup=False, highlight=False, soft_wrap=True)
    if not ours and not knobs.logs.get().shows("debug"):
        errors.print(f"  hint: {knobs.logs.name}=debug shows where it came from", highlight=False)
    return 2


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tilewright",
        description="A machine-learning compiler: PyTorch programs in, native code out.",
        epilog=f"PROGRAM is {FORM}. Inputs come from --input, or from the variable or function "
        "NAME_inputs or inputs of the file.",
    )
    parser.add_argument("--version", action="version", version=f"tilewright {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, do: Callable[..., int], about: str) -> argparse.ArgumentParser:
        others = ["rules"] if name == "prove" else []
        made = commands.add_parser(name, aliases=others, help=about, description=about)
        made.set_defaults(do=do)
        return made

    show = command("demo", _demo, "compile a real model, check it, and compare its time with eager")
    show.add_argument("model", nargs="?", default=demos.DEFAULT, help=_models())
    show.add_argument("--rounds", type=_positive, default=demos.ROUNDS, help="of timing")

    for name, do, about in (
        ("compile", _compile, "compile a program and summarize the result"),
        ("run", _run, "compile a program, run it, and check it against eager"),
        ("explain", _explain, "show kernels, schedules, refusals, memory and compile time"),
        ("validate", _validate, "judge every stage of a compile against the one before it"),
        ("bisect", _bisect, "find the stage of a compile that makes results wrong"),
        ("optimize", _optimize, "search for a faster graph by proved rules, and measure it"),
        ("tune", _tune, "search for faster schedules of the kernels, and record them"),
    ):
        made = command(name, do, about)
        made.add_argument("program", metavar="PROGRAM", help=FORM)
        made.add_argument(
            "-i", "--input", action="append", metavar="TYPE[DIMS]", help="such as f32[8,16]"
        )
        made.add_argument("--strict", action="store_true", help="a fallback is an error")
        made.add_argument("--passes", metavar="LIST", help="such as `tilewright passes` shows")
        if name == "compile":
            made.add_argument("--dump", type=Path, metavar="DIR", help="write every stage there")
        if name in ("validate", "bisect"):
            made.add_argument("--out", type=Path, metavar="FILE", help="write a reproducer there")
        if name == "optimize":
            made.add_argument("--budget", type=_seconds, default=BUDGET, metavar="60s")
            made.add_argument("--page", type=Path, metavar="FILE.html", help="with pictures")
        if name == "tune":
            made.add_argument("--trials", type=_positive, default=64, help="of a kernel, at most")
            made.add_argument("--minutes", type=float, default=10.0, help="in all, at most")
            made.add_argument(
                "--search", default="evolution", metavar="NAME",
                help="evolution, random, exhaustive, annealing, descent or bayesian",
            )  # fmt: skip
            made.add_argument(
                "--model", default="auto", metavar="NAME", help="what guesses: learned or analytic"
            )
            made.add_argument("--seed", type=int, default=0, help="of everything that is drawn")
            made.add_argument(
                "--records", type=Path, metavar="FILE",
                help="where measurements are kept (as TILEWRIGHT_RECORDS says)",
            )  # fmt: skip
            made.epilog = (
                "All that was measured is on disk at any time: the same command goes on after "
                "Ctrl-C or a kill. Every later compile uses what was decided."
            )
            made.add_argument("--fleet", metavar="ADDRESS", help=f"measure there: {ADDRESS}")
            made.add_argument(
                "--target", metavar="NAME", help="of the fleet's machines, or its key"
            )
            made.add_argument("--page", type=Path, metavar="FILE.html", help="with curves")
        if name == "explain":
            made.add_argument("--kernel", type=int, metavar="K", help="one kernel in full")
            made.add_argument("--form", choices=KERNEL_FORMS, help="of that kernel (all)")
    listed = command("prove", _rules, "prove the rewrite rules, and say which are only tested")
    listed.add_argument(
        "name", nargs="*", help="of rules, such as add-0 or 'slice-*' (all), or a FILE.json of them"
    )
    listed.add_argument("--axioms", action="store_true", help="those in the place of the rules")
    listed.add_argument(
        "--z3", action="store_true", help="ask Z3 too, whether they follow from axioms"
    )
    listed.add_argument("--json", type=Path, metavar="FILE", help="also write the results there")
    listed.add_argument(
        "--write", type=Path, metavar="FILE", help="write a file of the rules with their proofs"
    )
    mined = command("mine", _mine, "find rewrite rules by enumeration, and prove them")
    mined.add_argument("vocabulary", help="operators and leaves, such as matrices")
    mined.add_argument("--operators", type=_positive, default=3, help="of a program, at most")
    mined.add_argument("--seed", type=int, default=0, help="of the values that are compared")
    mined.add_argument("--count", action="store_true", help="candidates only: nothing is proved")
    mined.add_argument("--joining", action="store_true", help="which operators join, and why not")
    mined.add_argument("--out", type=Path, metavar="FILE", help="write the rules there")
    mined.add_argument("--budget", type=_seconds, metavar="600s", help="end after so long")
    listed = command("fleet", _fleet, "list the machines that measure for `tune --fleet`")
    listed.add_argument("address", metavar="ADDRESS", help=ADDRESS)
    kept = command("records", _records, "list, merge or check schedules that tuning recorded")
    kept.add_argument(
        "what", choices=("list", "best", "merge", "check", "rerun"),
        help="list all; list what holds for each kernel; write several files into one; replay all "
        "by today's steps; run a schedule again that showed a mistake of the compiler",
    )  # fmt: skip
    kept.add_argument("files", nargs="*", type=Path, help="(default: the one in the cache)")
    kept.add_argument("--out", type=Path, metavar="FILE", help="of merge")
    machine = command(
        "calibrate",
        _calibrate,
        "measure this machine (a minute at most): estimates use its numbers",
    )
    one = machine.add_mutually_exclusive_group()
    one.add_argument("--show", action="store_true", help="what was measured, beside the guesses")
    one.add_argument("--forget", action="store_true", help="remove what was measured")
    one.add_argument("--anyway", action="store_true", help="keep it though the machine is busy")
    shown = command("passes", _passes, "the default list of passes, with a line on each")
    shown.add_argument("--target", metavar="NAME", help="for another machine than this one")
    shown.add_argument("--precision", choices=PRECISIONS, default=PRECISIONS[0], help="of floats")
    commands.add_parser("bench", help="time models, operators or a program against other compilers")
    return parser


def _version() -> str:
    try:
        return version("tilewright")
    except PackageNotFoundError:
        return "(not installed)"


def _models() -> str:
    known = ", ".join(f"{name} ({m.about})" for name, m in demos.MODELS.items())
    return f"one of {known}; the default is {demos.DEFAULT}"


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def _seconds(text: str) -> int:
    return _positive(text.removesuffix("s"))


# ---- commands


def _demo(given: argparse.Namespace, console: Console) -> int:
    return 0 if demos.demo(given.model, given.rounds, console) else 1


def _compile(given: argparse.Namespace, console: Console) -> int:
    loaded = load(given.program)
    dump = given.dump.resolve() if given.dump else knobs.dump.get()
    with demos.shown(console, f"compiling {loaded.name}"), knobs.dump.override(dump):
        made = _explained(loaded, given)
    for p in made.programs:
        line = f"{p.name}: {p.operators} operators, {p.calls} kernel calls, "
        line += f"{len(p.kernels)} distinct kernels, {p.seconds:.2f} s"
        console.print(line, highlight=False)
    console.print(f"{len(made.fallbacks)} fallbacks, {len(made.graph_breaks)} graph breaks")
    if dump:
        console.print(f"stages are in {dump}; edit one and set {knobs.resume.name}", soft_wrap=True)
    return 0


def _explain(given: argparse.Namespace, console: Console) -> int:
    made = _explained(load(given.program), given)
    if given.kernel is None:
        console.print(made)
        return 0
    for form in KERNEL_FORMS if given.form is None else (given.form,):
        text = getattr(made, form)(given.kernel)
        console.rule(f"kernel {given.kernel}: {form}")
        language = {"llvm": "llvm", "trace": "python"}.get(form)
        if language and console.is_terminal:
            console.print(Syntax(text, language))
        else:
            console.print(text, markup=False, highlight=False, soft_wrap=True)
    return 0


def _run(given: argparse.Namespace, console: Console) -> int:
    loaded = load(given.program)
    if loaded.graph is not None:
        return _run_graph(loaded.graph, given.passes, console)
    compare = torch_side(_COMPARE, "running a torch program")
    step = lambda text: demos.shown(console, text)  # noqa: E731
    inputs = _torch_inputs(loaded, given)
    found = compare.compare(
        loaded.program, inputs, strict=given.strict, step=step, passes=given.passes
    )
    console.print(_error_table([("all results", found.error.ours, found.error.allowed)]))
    console.print(demos.verdict(found))
    return 0 if found.error.right else 1


def _validate(given: argparse.Namespace, console: Console) -> int:
    path, validate = Path(given.program), import_module(_VALIDATE)
    if path.suffix == validate.KERNEL:
        reports = [validate.validate_kernel(*validate.read_kernel(path), targets.default())]
    else:
        reports = _stages(given, console, only_if_wrong=False)
    status = validate.show(reports, given.out, given.passes, console)
    if not status:
        judged = sum(len(r.rows) for r in reports)
        console.print(f"[green]right:[/] {judged} stages agree with the ones before them")
    return status


def _bisect(given: argparse.Namespace, console: Console) -> int:
    reports = _stages(given, console, only_if_wrong=True)
    if not any(r.rows for r in reports):
        console.print("[green]right:[/] the results agree with float64, there is nothing to find")
        return 0
    return import_module(_VALIDATE).show(reports, given.out, given.passes, console)


def _stages(given: argparse.Namespace, console: Console, only_if_wrong: bool) -> list[Report]:
    loaded, options = load(given.program), Options(passes=given.passes)
    with demos.shown(console, f"judging {loaded.name}"):
        if loaded.graph is not None:
            validate = import_module(_VALIDATE)
            judge = validate.bisect_graph if only_if_wrong else validate.validate_graph
            return [judge(loaded.graph, options)]
        bisect = torch_side(_BISECT, "taking a torch program apart").bisect
        asked = {"strict": given.strict, "passes": given.passes}
        inputs = _torch_inputs(loaded, given)
        return bisect(loaded.program, inputs, options, only_if_wrong, **asked)


def _optimize(given: argparse.Namespace, console: Console) -> int:
    loaded, optimize = load(given.program), import_module(_OPTIMIZE)

    def compiled(listed: Pipeline) -> Explanation:
        return _explained(loaded, given, passes=listed, optimize="search")

    listed = optimize.passes(given.passes, given.budget)
    with optimize.progress(console, f"searching {loaded.name}", given.budget):
        found = optimize.searched(listed, compiled)
    return optimize.show(found, given.page, console)


def _tune(given: argparse.Namespace, console: Console) -> int:
    loaded, tune = load(given.program), import_module(_TUNE)
    with demos.shown(console, f"compiling {loaded.name}"):
        made = _explained(loaded, given)
    kernels = [k for p in made.programs for k in p.kernels[p.once :]]
    names = ("trials", "minutes", "search", "model", "seed", "records", "page", "fleet")
    options = {name: getattr(given, name) for name in names}
    if given.target is not None and given.fleet is None:
        raise Invalid("--target is that of a fleet's machines", hint="give --fleet ADDRESS too")
    graphs = [p.graph for p in made.programs if p.graph is not None]

    def kernels_for(target: Target) -> list[KernelInfo]:
        find = import_module(_ELSEWHERE).kernels_for
        return [k for g in graphs for k in find(g, Options(passes=given.passes), target)]

    options |= {"wanted": given.target, "kernels_for": kernels_for}
    return tune.tune(kernels, targets.default(), console, **options)


def _fleet(given: argparse.Namespace, console: Console) -> int:
    return import_module(_FLEET).show(given.address, console)


def _records(given: argparse.Namespace, console: Console) -> int:
    tune = import_module(_TUNE)
    files = given.files or [knobs.records_file()]
    if given.what == "merge":
        if given.out is None:
            raise Invalid("where should the merged records go?", hint="give --out FILE")
        return tune.merge_records(files, given.out, console)
    if len(files) != 1:
        raise Invalid(
            f"`records {given.what}` takes one file", hint="`records merge` takes several"
        )
    if given.what == "rerun":
        if not given.files:
            hint = "`tilewright tune` says where it wrote one"
            raise Invalid("which reproducer should be run again?", hint=hint)
        return tune.rerun(files[0], targets.default(), console)
    if given.what == "check":
        return tune.check_records(files[0], console)
    return tune.list_records(files[0], console, given.what == "best")


def _calibrate(given: argparse.Namespace, console: Console) -> int:
    calibrate = import_module(_CALIBRATE)
    if given.show:
        return calibrate.show(console)
    return calibrate.forget(console) if given.forget else calibrate.run(console, given.anyway)


def _rules(given: argparse.Namespace, console: Console) -> int:
    rules = import_module(_RULES)
    asked = rules.Asked(given.name, given.axioms, given.z3, given.json, given.write)
    return rules.show(asked, console)


def _mine(given: argparse.Namespace, console: Console) -> int:
    if given.joining:
        return import_module(_MINE).show_joining(given.vocabulary)
    mine = import_module(_MINE)
    how = given.operators, given.seed, given.out, given.budget
    return mine.show(mine.Asked(given.vocabulary, *how), given.count, console)


def _passes(given: argparse.Namespace, console: Console) -> int:
    print(described(passes(given.target, precision=given.precision)))
    return 0


def _bench(arguments: Sequence[str]) -> int:
    """In a process of its own: bench/ is above driver/ in the import order, and times other
    compilers too."""
    return subprocess.run([sys.executable, "-m", "tilewright.bench", *arguments]).returncode


# ---- programs and inputs


def _explained(loaded: Loaded, given: argparse.Namespace, **options: Any) -> Explanation:
    options = {"passes": given.passes, **options}
    if loaded.graph is not None:
        return explain(compile_graph(loaded.graph, Options(**options)))
    api, torch = torch_side(_TORCH_API, "compiling a torch program"), torch_side("torch", "it")
    with torch.no_grad():
        inputs = _torch_inputs(loaded, given)
        made = api.compile(loaded.program, *inputs, strict=given.strict, **options)
        return explain(made)


def _torch_inputs(loaded: Loaded, given: argparse.Namespace) -> list[Any]:
    torch = torch_side("torch", "running a torch program")
    if given.input:
        rng = np.random.default_rng(0)
        types = [parse_type(x) for x in given.input]
        arrays = [random_array(t, rng) for t in types]
        bf16 = [t.dtype.name == "bf16" for t in types]
        tensors = map(torch.from_numpy, arrays)
        return [x.bfloat16() if b else x for x, b in zip(tensors, bf16, strict=True)]
    if loaded.inputs is None:
        raise Invalid(
            f"{loaded.name} needs inputs to be compiled for",
            hint=f"give --input 'f32[8,16]' for each, or define {loaded.name}_inputs in the file",
        )
    one = isinstance(loaded.inputs, torch.Tensor)
    return [loaded.inputs] if one else list(loaded.inputs)


def _run_graph(graph: Graph, passes: str | None, console: Console) -> int:
    """Random inputs through native code and through the interpreter."""
    arrays = random_inputs(graph)
    with demos.shown(console, f"compiling {graph.name}"):
        program = compile_graph(graph, Options(passes=passes))
    got = run_arrays(program, arrays)
    with demos.shown(console, "running on the interpreter"):
        judged = judge(graph, arrays, got)
    rows = [(f"{k}: {r.type!r}", r.error, r.allowed) for k, r in enumerate(judged)]
    console.print(_error_table(rows))
    return 0 if all(r.right for r in judged) else 1


def _error_table(rows: Sequence[tuple[str, float, float]]) -> Table:
    table = Table(show_edge=False, pad_edge=False, header_style="bold")
    for name in ("result", "error", "allowed", ""):
        table.add_column(name)
    for name, error, allowed in rows:
        ok = "[green]right[/]" if error <= allowed else "[bold red]wrong[/]"
        table.add_row(name, f"{error:.2e}", f"{allowed:.2e}", ok)
    return table


if __name__ == "__main__":
    sys.exit(main())
