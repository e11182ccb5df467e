"""`tilewright validate` and `tilewright bisect`: every stage of a compile against the one before,
and the one that is wrong with a small reproducer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.driver.looking.shown import Column, Shown
from tilewright.driver.looking.tables import short_place
from tilewright.driver.program.arrays import run_arrays
from tilewright.driver.program.graph_run import judge
from tilewright.driver.program.options import Options
from tilewright.driver.program.programs import compile_graph
from tilewright.driver.program.stages import naming
from tilewright.driver.program.validated_kernels import judged_kernel
from tilewright.driver.program.validation import Fault, Report, Row, kernel_fault, validated
from tilewright.graph.values import Point, random_point
from tilewright.ir.node import Graph
from tilewright.ir.target import Target
from tilewright.kernel.group import Group
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import start
from tilewright.kernel.step import Trace, apply, parse_trace
from tilewright.kernel.text import parse_group
from tilewright.llvm.emit import emit
from tilewright.llvm.objects import compile_object
from tilewright.targets import default, host

KERNEL = ".kernel"  # the ending of files with a group and its steps


def validate_graph(graph: Graph, options: Options, given: Sequence[Point] = ()) -> Report:
    """One compile of a graph, judged. For another machine than this one code is not run."""
    target = options.target or default()
    runs = target.grid is None and target.arch == host().arch
    program = compile_graph(graph, options) if runs else None
    return validated(graph, options, target, program, given)


def bisect_graph(graph: Graph, options: Options) -> Report:
    """The stage that makes a graph's results wrong; none where they are right."""
    program = compile_graph(graph, options)
    report = Report(graph.name)
    for seed in range(2):
        point = random_point(graph, seed)
        program.refresh()
        got = run_arrays(program, point.arrays, point.sizes)
        if not all(r.right for r in judge(graph, point.arrays, got, point.sizes)):
            return validated(graph, options, options.target or default(), program, [point])
    return report


def read_kernel(path: Path) -> tuple[Group, Trace]:
    """A file with the text of a group, then steps."""
    try:
        text = path.read_text()
    except OSError as why:
        raise Invalid(f"{path} cannot be read: {why.strerror or why}") from None
    with naming(path):
        return parse_kernel(text)


def parse_kernel(text: str) -> tuple[Group, Trace]:
    lines = text.splitlines()
    inside = [line.startswith(("group ", "  ")) for line in lines]
    group = parse_group("\n".join(line for line, own in zip(lines, inside, strict=True) if own))
    steps = "\n".join(line for line, own in zip(lines, inside, strict=True) if not own)
    return group, parse_trace(steps)


def validate_kernel(group: Group, trace: Trace, target: Target) -> Report:
    """A group under a schedule, judged from the first step to the code."""
    report = Report(group.name)
    found = judged_kernel(group, trace, target)
    if found.fault is None and target.grid is None and target.arch == host().arch:
        nest = legalise(apply(start(group), trace), target)
        found = judged_kernel(group, trace, target, compile_object(emit(nest, target), target))
    changed = f"{len(trace)} steps"
    report.rows.append(Row("kernel", group.name, changed, found.how, found.bound, found.seconds))
    if found.fault is not None:
        report.fault = kernel_fault(group, found.fault, target)
    return report


# ---- what is shown

_COLUMNS: dict[str, Column] = {
    "stage": "stage",
    "name": "name",
    "changed": "changed",
    "judged": "how",
    "bound": "bound",
    "seconds": lambda r: f"{r['seconds']:.3f}",
}


def show(reports: Sequence[Report], file: Path | None, passes: str | None, out: Shown) -> int:
    """Tables of all stages; 1 where one is wrong, which is named, with a reproducer."""
    rows: list[dict[str, Any]] = []
    for r in reports:
        found = [{"graph": r.graph, **vars(x)} for x in r.rows]
        if len(reports) > 1:
            out.say(f"{r.graph}:")
        if found:
            out.table("", found, _COLUMNS)
        rows += found
    fault = next((r.fault for r in reports if r.fault is not None), None)
    out.put(stages=rows, right=fault is None)
    if fault is None:
        return 0
    out.put(fault=str(fault), where=fault.where)
    out.say(f"wrong: {fault}", "bold red")
    if fault.where:
        out.say(f"  at {short_place(fault.where)}")
    if fault.reproducer:
        file = file or Path(f"fault{fault.ending}")
        _write(file, fault.reproducer)
        again = command(fault, file, passes)
        out.put(reproducer=again)
        out.say(f"  reproducer: {again}")
    return 1


def command(fault: Fault, file: Path, passes: str | None) -> str:
    """What shows the fault again, on a smaller program."""
    if fault.stage == "capture":
        return f"tilewright bisect {file}:fault"
    given = f' --passes "{passes}"' if passes and not fault.kernel else ""
    return f"tilewright validate {file}{given}"


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text)
    except OSError as why:
        raise Invalid(
            f"the reproducer cannot be written to {file}: {why.strerror or why}",
            hint="give another file with --out",
        ) from None
