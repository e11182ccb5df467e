"""Translation validation: one compile is followed from its graph to its code, and every stage is
judged against the one before it.

    passes      the graph before and after each pass, in pieces that changed (graph/equivalence.py)
    weights     what runs once for given weights, put back in its place
    fusion      the graph that was cut into clusters; then each cluster's group against its nodes
    kernels     the loops after each step, the legal loops, and the code (validated_kernels.py)
    program     the result of the whole program, against float64

The first stage that differs is the fault: those after it are judged against what it made, so that
nothing else is blamed for it. What is checked is what is used: the kernels' code is that of the
program, out of the cache or not.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tilewright.base.errors import Invalid, TilewrightError
from tilewright.base.events import Log
from tilewright.driver.program.arrays import run_arrays
from tilewright.driver.program.compile import parts_of
from tilewright.driver.program.default_passes import chosen_passes
from tilewright.driver.program.graph_run import judge
from tilewright.driver.program.options import Options
from tilewright.driver.program.schedules import Schedules, by_first_use, symbol_of
from tilewright.driver.program.stages import Stages
from tilewright.driver.program.validated_kernels import (
    KernelFault,
    judged_kernel,
    kernel_text,
    reduced,
)
from tilewright.graph.cluster import Fused
from tilewright.graph.equivalence import Difference, Equivalence, Judged, over_inputs
from tilewright.graph.fuse import fuse
from tilewright.graph.memory import plan
from tilewright.graph.packed_inputs import unfolded
from tilewright.graph.values import MOST_WORK, Point, Values, random_point, work
from tilewright.ir.agreement import disagreement
from tilewright.ir.node import Graph
from tilewright.ir.rewrite import RewriteLog, subgraphs
from tilewright.ir.target import Target
from tilewright.ir.text import print_graph
from tilewright.kernel.group import Group
from tilewright.kernel.interpret import run_group
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import Trace, parse_trace
from tilewright.kernel.text import parse_group
from tilewright.runtime.program import Program
from tilewright.runtime.program_data import KernelInfo, ProgramData

POINTS = 2  # random inputs of the graph


class Wrong(TilewrightError):
    """A stage of a compile changed what the program computes."""


@dataclass(frozen=True)
class Row:
    """A stage: what it changed, how it was judged, what that leaves open, seconds."""

    stage: str
    name: str
    changed: str
    how: str
    bound: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Fault:
    """The stage that is wrong: "capture", "pass", "weights", "fusion", "group", "step", "legal",
    "emission" or "program"; with the names of the pass, rule, operator, kernel and step."""

    stage: str
    name: str  # of the pass, the step, the rewriting, the kernel
    said: str
    rule: str = ""
    operator: str = ""
    kernel: str = ""
    where: str | None = None  # the user's line
    # A smaller program with the same fault: the text of a graph, or of a group and its steps.
    reproducer: str = ""

    @property
    def ending(self) -> str:
        """Of a file with the reproducer."""
        return ".py" if self.stage == "capture" else ".kernel" if self.kernel else ".tw"

    def __str__(self) -> str:
        parts = [f"{self.stage} {self.name}"]
        parts += [f"rule {self.rule}"] if self.rule else []
        parts += [f"kernel {self.kernel}"] if self.kernel and self.kernel != self.name else []
        parts += [f"operator {self.operator}"] if self.operator else []
        return f"{', '.join(parts)}: {self.said}"


@dataclass
class Report:
    """All stages of a compile that were judged, and the fault that ended it."""

    graph: str
    rows: list[Row] = field(default_factory=list)
    fault: Fault | None = None

    @property
    def right(self) -> bool:
        return self.fault is None


def validated(
    graph: Graph,
    options: Options,
    target: Target,
    program: Program | None = None,
    given: Sequence[Point] = (),
) -> Report:
    """Judges the stages of a compile, up to the first that is wrong. The program is what was
    compiled; without one, or for a GPU, code is not run. `given` are inputs to try besides random
    ones."""
    report = Report(graph.name)
    _Validation(graph, options, target, report, program, given).run()
    return report


def check(
    graph: Graph, options: Options, target: Target, program: Program | None, log: Log
) -> None:
    """`validate=True`: events for all stages, and an error for one that is wrong."""
    report = validated(graph, options, target, program)
    for r in report.rows:
        said = f"{graph.name}: {r.stage} {r.name}: {r.changed}; {r.how}"
        log.add("validate", f"{said}, {r.bound}" if r.bound else said, seconds=r.seconds)
    if report.fault is not None:
        raise Wrong(
            f"{graph.name} is compiled to something else: {report.fault}",
            where=report.fault.where,
            hint="this is a mistake of the compiler or of a pass of one's own; "
            "`tilewright bisect` writes a small reproducer",
        )


def kernel_fault(group: Group, f: KernelFault, target: Target, places: Sequence[str] = ()) -> Fault:
    """The fault of a kernel, with the fewest steps that show it."""
    text = kernel_text(group, reduced(group, f, target))
    where = places[0] if places else None
    return Fault(f.stage, f.name, f.said, kernel=group.name, where=where, reproducer=text)


def _same(a: str, b: str) -> bool:
    """One pass, whichever time it runs?"""
    return a.partition(" #")[0] == b.partition(" #")[0]


class _Stop(Exception):
    """The fault was found."""


class _Validation:
    def __init__(
        self,
        graph: Graph,
        options: Options,
        target: Target,
        report: Report,
        program: Program | None = None,
        given: Sequence[Point] = (),
        only_graphs: bool = False,  # to try a reproducer
    ) -> None:
        self.graph, self.options, self.target, self.report = graph, options, target, report
        self.only_graphs = only_graphs
        self.program = program if target.grid is None else None
        self.kernels_of = program
        self.given = given
        self.groups: dict[str, Group] = {}  # of clusters, by the kernel's name

    def run(self) -> None:
        kernels = () if self.only_graphs else (self._kernels, self._result)
        try:
            for stage in (self._graphs, *kernels):
                stage()
        except _Stop:
            pass

    def _row(self, row: Row, fault: Fault | None = None) -> None:
        self.report.rows.append(row)
        if fault is not None:
            self.report.fault = fault
            raise _Stop

    # ---- graphs

    def _graphs(self) -> None:
        graph = self.graph
        size = work(graph)
        self.points: list[Point] = []
        if size > MOST_WORK:
            how = f"not judged: {size:.1e} operations are too many for the interpreter"
            self._row(Row("passes", graph.name, "", how))
            return
        special: list[Point] = []
        self.points = list(self.given)
        try:
            self.points += [random_point(graph, k) for k in range(POINTS)]
            special = [random_point(graph, POINTS, special=True)]
        except Invalid as why:
            if not self.points:
                self._row(Row("passes", graph.name, "", f"not judged: {why.what}"))
                return
        judges = Equivalence(graph, self.points, special)
        log = RewriteLog()
        before = graph
        pipeline = chosen_passes(self.options.passes, self.target, self.options.precision)
        names = [p.name for p in pipeline]
        times: Counter[str] = Counter()

        def after(name: str, made: Graph) -> Graph:
            nonlocal before
            if name != "input":
                times[name] += 1
                which = f"{name} #{times[name]}" if names.count(name) > 1 else name
                self._pass(judges, which, before, made, log)
            before = made
            return made

        ready = pipeline.run(graph, self.target, log, after)
        self._split(judges, ready)

    def _pass(
        self, judges: Equivalence, name: str, before: Graph, made: Graph, log: RewriteLog
    ) -> None:
        began = time.perf_counter()
        applied = log.taken()
        found = judges.judge(before, made, applied)
        rules = dict.fromkeys(a.rule.name for a in applied)
        changed = f"{found.new} new operators" if found.new else "nothing"
        changed += f" by {len(applied)} uses of {', '.join(rules)}" if rules else ""
        row = Row("pass", name, changed, found.how, found.bound, time.perf_counter() - began)
        self._row(row, self._graph_fault("pass", name, before, found))

    def _graph_fault(self, stage: str, name: str, before: Graph, found: Judged) -> Fault | None:
        d = found.difference
        if d is None:
            return None
        said = f"{d.before.op} became {d.after.op}: {d.said}"
        text = self._reproducer(stage, name, before, d)
        return Fault(
            stage, name, said, d.rule, d.operator, where=before.place(d.before), reproducer=text
        )

    def _reproducer(self, stage: str, name: str, before: Graph, d: Difference) -> str:
        """The piece that went wrong, where it does alone; else the graph before it did."""
        for graph in () if self.only_graphs else (d.piece, before):
            if graph is None or graph is self.graph:
                continue
            alone = Report("")
            try:
                _Validation(graph, self.options, self.target, alone, only_graphs=True).run()
            except (TilewrightError, IndexError):
                continue
            f = alone.fault
            if f is not None and (f.stage, f.rule) == (stage, d.rule) and _same(f.name, name):
                return print_graph(graph, places=False) + "\n"
        return print_graph(self.graph, places=False) + "\n"

    def _split(self, judges: Equivalence, ready: Graph) -> None:
        """What the program computes once for its weights, and its clusters."""
        began = time.perf_counter()
        schedules = Schedules.of(self.options)
        parts = parts_of(self.graph, ready, self.target, Log(), Stages(), schedules)
        whole, names = parts.main, "nothing"
        if parts.prologue is not None:
            back = unfolded(parts.main, parts.prologue)
            whole = Graph(ready.name, self.graph.inputs, tuple(back[o] for o in parts.main.outputs))
            names = f"{len(parts.prologue.outputs)} values are computed once"
        found = judges.judge(ready, whole)
        seconds = time.perf_counter() - began
        row = Row("weights", "split_weights", names, found.how, found.bound, seconds)
        self._row(row, self._graph_fault("weights", "split_weights", ready, found))
        self._clusters(parts.main, parts.prologue, schedules)

    # ---- clusters

    def _clusters(self, main: Graph, prologue: Graph | None, schedules: Schedules) -> None:
        point = self.points[-1]
        known = dict(zip(self.graph.inputs, point.arrays, strict=True))
        if prologue is not None:
            once = Point(tuple(known[n] for n in prologue.inputs), point.sizes)
            self._cluster_graph("weights", prologue, once, schedules)
            values = Values(prologue, once, double=False)
            folded = main.inputs[len(main.inputs) - len(prologue.outputs) :]
            known |= {n: values(o) for n, o in zip(folded, prologue.outputs, strict=True)}
        given = Point(tuple(known[n] for n in main.inputs), point.sizes)
        self._cluster_graph("main", main, given, schedules)

    def _cluster_graph(self, name: str, graph: Graph, point: Point, schedules: Schedules) -> None:
        began = time.perf_counter()
        fused = fuse(graph, self.target, Log())
        judges = Equivalence(graph, [point])
        found = judges.judge(graph, fused.graph)
        changed = f"{len(fused.clusters)} clusters of {len(graph.nodes())} operators"
        fault = self._graph_fault("fusion", name, graph, found)
        how = found.how
        if fault is None:
            fault = next(
                self._wrong_groups(fused, Values(graph, point, double=False), schedules), None
            )
            how = "groups interpreted on the values of their operators"
        self._row(Row("fusion", name, changed, how, "", time.perf_counter() - began), fault)

    def _wrong_groups(self, fused: Fused, values: Values, schedules: Schedules) -> Iterator[Fault]:
        p = plan(fused)
        for c in map(by_first_use, fused.clusters):
            if any(subgraphs(n.op) for n in c.nodes) or any(o.ttype.size == 0 for o in c.outputs):
                continue
            cluster, group = schedules.kernel_of(c, p)
            symbol = symbol_of(group)
            self.groups[symbol] = replace(group, name=symbol)
            ins = zip(group.inputs, cluster.inputs, strict=True)
            arrays = {b.name: values(n) for b, n in ins}
            got = run_group(group, arrays, values.sizes)
            for b, o in zip(group.outputs, c.outputs, strict=True):
                said = disagreement(got[b.name], values(o), b.dtype)
                if said is not None:
                    operators = " ".join(n.op.name for n in c.nodes)
                    text = print_graph(over_inputs(c.outputs, set(c.inputs)), places=False) + "\n"
                    yield Fault("group", symbol, said, operator=operators, reproducer=text)

    # ---- kernels and the program

    def _kernels(self) -> None:
        """Those of the program; without one, by the schedules that rules choose."""
        data: ProgramData | None = self.kernels_of.data if self.kernels_of is not None else None
        for group in self.groups.values() if data is None else ():
            self._kernel(group, default_schedule(group, self.target)[0])
        while data is not None:
            for k, info in enumerate(data.kernels):
                group = replace(parse_group(info.group), name=info.symbol)
                image = data.images[k] if self.program is not None else None
                self._kernel(group, parse_trace(info.trace), info, image)
            data = data.prologue

    def _kernel(
        self,
        group: Group,
        trace: Trace,
        info: KernelInfo | None = None,
        image: bytes | None = None,
    ) -> None:
        found = judged_kernel(group, trace, self.target, image)
        fault = None
        if found.fault is not None:
            fault = kernel_fault(group, found.fault, self.target, info.places if info else ())
        changed = f"{info.name}, {len(trace)} steps" if info else f"{len(trace)} steps"
        row = Row("kernel", group.name, changed, found.how, found.bound, found.seconds)
        self._row(row, fault)

    def _result(self) -> None:
        """The whole program at all points: order of kernels, memory, entry."""
        if self.program is None or not self.points:
            return
        began = time.perf_counter()
        for point in self.points:
            self.program.refresh()  # what it derived is of other weights
            got = run_arrays(self.program, point.arrays, point.sizes)
            self.program.refresh()
            self.program.trim()
            judged = judge(self.graph, point.arrays, got, point.sizes)
            for k, r in enumerate(judged):
                if not r.right:
                    said = f"result {k} has an error of {r.error:.3g}, {r.allowed:.3g} is allowed"
                    text = print_graph(self.graph, places=False) + "\n"
                    row = Row("program", self.graph.name, "", "against float64")
                    self._row(row, Fault("program", self.graph.name, said, reproducer=text))
        how = f"results at {len(self.points)} points against float64"
        bound = "four times the interpreter's own error, and 16 units in the last place"
        took = time.perf_counter() - began
        changed = f"{len(self.program.kernels)} kernels and their order"
        self._row(Row("program", self.graph.name, changed, how, bound, took))
