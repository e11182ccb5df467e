"""`tw.explain`: what a program was compiled to, in tables.

`print(tw.explain(fast))` shows in ten lines what was compiled, what broke and what to change, then
kernels, refusals, fallbacks, memory and compile time;
`tw.explain(fast).trace(3)` the whole schedule of kernel 3, and so do `.group`, `.nest`, `.legal`,
`.llvm`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count as count_from
from typing import Any, overload

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from tilewright.base.errors import Invalid
from tilewright.base.events import Event
from tilewright.driver.api import history_of
from tilewright.driver.looking.roofs import roofed
from tilewright.driver.looking.summary import SHOWN, Summary, eager_operators, problems_of
from tilewright.driver.looking.tables import bytes_text as bytes_text
from tilewright.driver.looking.tables import count, new_table, rendered
from tilewright.driver.looking.tables import short_place as short_place
from tilewright.driver.looking.tile_explain import TileExplanation, explain_tiles, is_tile_kernel
from tilewright.driver.tile.jit import KernelInterface
from tilewright.driver.tile.launch import CompiledKernel
from tilewright.graph.classify import nbytes
from tilewright.graph.cluster import Refusal
from tilewright.ir.dim import Dim
from tilewright.ir.node import Constant, Graph, Input, Item, Op
from tilewright.ir.passes import PassRun
from tilewright.ir.target import Target
from tilewright.ir.types import TensorType
from tilewright.kernel.legal import legalise
from tilewright.kernel.library import without_library
from tilewright.kernel.nest import Nest, start
from tilewright.kernel.step import apply, parse_trace
from tilewright.kernel.steps.parallel import Parallel
from tilewright.kernel.text import nest_text, parse_group
from tilewright.llvm.emit import emit
from tilewright.llvm.grid import emit_kernels
from tilewright.llvm.objects import assembly
from tilewright.runtime.program import Program
from tilewright.runtime.program_data import KernelInfo
from tilewright.targets import default as default_target
from tilewright.targets import measured_at

EXAMPLES = 3  # refusals shown per criterion


@dataclass(frozen=True)
class ProgramReport:
    """One native program: a graph, or a part of one between fallbacks, perhaps for given dims."""

    name: str
    operators: int
    clusters: int
    kernels: tuple[KernelInfo, ...]
    refusals: tuple[Refusal, ...] = ()
    arena: Dim = 0
    folded_bytes: int = 0
    operands: Dim = 0  # bytes
    results: Dim = 0  # bytes, but for those that lie where operands do
    over: int = 0  # bytes of operands that values lie in, once these are not needed any more
    phases: dict[str, float] = field(default_factory=dict)
    dims: tuple[str, ...] = ()
    considered: dict[str, str] = field(default_factory=dict)  # what a kernel was chosen from
    passes: tuple[PassRun, ...] = ()  # what each pass did
    target: Target | None = None  # the machine that it is for
    once: int = 0  # so many of the kernels, the first ones, run only when weights have changed
    manner: str = ""  # how its kernels are launched, where there is more than one way
    graph: Graph | None = None  # that it was compiled from
    part: Any = None  # of the captured program: it may be compiled for several sizes

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())

    @property
    def calls(self) -> int:
        """Kernel calls per run."""
        return sum(k.calls for k in self.kernels[self.once :])


@dataclass(frozen=True)
class Explanation:
    """What a program was compiled to. Prints as tables; `kernels` are numbered across all
    programs."""

    programs: tuple[ProgramReport, ...]
    events: tuple[Event, ...] = ()

    @property
    def kernels(self) -> tuple[KernelInfo, ...]:
        return tuple(k for p in self.programs for k in p.kernels)

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        return tuple(r for p in self.programs for r in p.refusals)

    @property
    def fallbacks(self) -> tuple[Event, ...]:
        return self.of("fallback")

    @property
    def library_calls(self) -> tuple[Event, ...]:
        """Operators that programs call a library for, by the names of its routines."""
        return self.of("library")

    @property
    def graph_breaks(self) -> tuple[Event, ...]:
        return self.of("graph-break")

    @property
    def specialisations(self) -> tuple[Event, ...]:
        return (*self.of("specialise"), *self.of("specialised"))

    @property
    def checks(self) -> tuple[Event, ...]:
        """What is checked after each call, and the errors that are raised."""
        return self.of("check")

    def of(self, kind: str) -> tuple[Event, ...]:
        return tuple(e for e in self.events if e.kind == kind)

    @cached_property
    def summary(self) -> Summary:
        """What a person reads first."""
        # A part of a program for other sizes has the same operators: it counts once.
        parts = {(id(p.part), p.name): p.operators for p in self.programs}
        numbers = count_from(0)
        worst = [
            r
            for p in self.programs
            for numbered in [[(next(numbers), k) for k in p.kernels][p.once :]]
            for r in (roofed(numbered, p.target) if p.target is not None else ())
        ]
        return Summary(
            len(self.programs),
            len(self.kernels),
            sum(parts.values()),
            eager_operators(self.events),
            problems_of(self.events),
            len(self.library_calls),
            tuple(sorted(worst, key=lambda r: -r.lost)[:SHOWN]),
        )

    # ---- one kernel in full

    def group(self, k: int) -> str:
        """What kernel k computes."""
        return self._kernel(k).group

    def trace(self, k: int) -> str:
        """The schedule of kernel k, one step per line."""
        return self._kernel(k).trace

    def considered(self, k: int) -> str:
        """Which candidate the schedule of kernel k is, and the runners-up with their costs."""
        symbol = self._kernel(k).symbol
        found = (p.considered[symbol] for p in self.programs if symbol in p.considered)
        return next(found, "") or "by a given trace"

    def nest(self, k: int) -> str:
        """The loops that the schedule of kernel k leads to."""
        return nest_text(self._nest(k))

    def legal(self, k: int) -> str:
        """These loops after the passes of the target: the input of the emitter."""
        return nest_text(self._legal(k))

    def llvm(self, k: int) -> str:
        target = self._target(k)
        if target.grid is not None:
            return emit_kernels(self._legal(k), target).text
        return emit(self._legal(k), target)

    def assembly(self, k: int) -> str:
        """The code of kernel k: of a GPU, its PTX."""
        return assembly(self.llvm(k), self._target(k))

    def _legal(self, k: int) -> Nest:
        return legalise(without_library(self._nest(k)), self._target(k))

    def _target(self, k: int) -> Target:
        found = self._kernel(k)
        of = (p.target for p in self.programs if found in p.kernels)
        return next(of, None) or default_target()

    def _nest(self, k: int) -> Nest:
        found = self._kernel(k)
        return apply(start(parse_group(found.group)), parse_trace(found.trace))

    def _kernel(self, k: int) -> KernelInfo:
        if not 0 <= k < len(self.kernels):
            raise Invalid(f"there is no kernel {k}; kernels are 0 to {len(self.kernels) - 1}")
        return self.kernels[k]

    # ---- as data

    def facts(self) -> dict[str, Any]:
        """What the tables say, for programs."""
        numbers = count_from(0)
        return {
            "summary": self.summary.facts(),
            "programs": [
                {
                    "name": p.name,
                    "operators": p.operators,
                    "clusters": p.clusters,
                    "dims": list(p.dims),
                    "target": p.target.name if p.target is not None else None,
                    "seconds": p.phases,
                    "arena_bytes": p.arena,
                    "operand_bytes": p.operands,
                    "result_bytes": p.results,
                    "written_over_bytes": p.over,
                    "folded_bytes": p.folded_bytes,
                    "calls": p.calls,
                    "kernels": [_kernel_facts(next(numbers), k, p) for k in p.kernels],
                    "passes": [
                        {"pass": r.text, "before": r.before, "after": r.after, "new": r.changed}
                        for r in p.passes
                    ],
                    "not_fused": Counter(r.criterion for r in p.refusals),
                }
                for p in self.programs
            ],
            "events": [
                {"kind": e.kind, "message": e.message, "where": e.where} for e in self.events
            ],
        }

    # ---- as tables

    def __str__(self) -> str:
        return rendered(self)

    def __repr__(self) -> str:
        return f"<Explanation of {len(self.programs)} programs, {len(self.kernels)} kernels>"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for k, line in enumerate(self.summary.lines()):
            whole = k == 0 or line.lstrip().startswith("change:")
            style = "bold" if k == 0 else ""
            yield Text(
                line, style=style, no_wrap=not whole, overflow="fold" if whole else "ellipsis"
            )
        yield Text("")
        first = 0
        for p in self.programs:
            yield from _program(p, first)
            first += len(p.kernels)
        yield from self._events()

    def _events(self) -> Iterator[Any]:
        rows = [
            (what, e)
            for kind, what in (
                ("fallback", "fallback"),
                ("plain-loops", "slow kernel"),
                ("library", "library call"),
                ("graph-break", "graph break"),
                ("recompile", "recompile"),
                ("specialise", "specialisation"),
                ("specialised", "a program of its own"),
                ("kept", "kept for the gradient"),
                ("check", "checked at each call"),
            )
            for e in self.of(kind)
        ]
        if not self.programs and not self.library_calls:
            yield Text("no native code: all of it runs in eager")
        elif not self.fallbacks:
            rest = ", but for library calls" if self.library_calls else ""
            yield Text(f"no fallbacks: everything above runs as native code{rest}")
        if rows:
            table = new_table("what", "why", "where")
            for what, e in rows:
                table.add_row(what, e.message, short_place(e.where))
            yield table


@overload
def explain(compiled: KernelInterface[Any] | CompiledKernel) -> TileExplanation: ...
@overload
def explain(compiled: Any) -> Explanation: ...
def explain(compiled: Any) -> Explanation | TileExplanation:
    """What a function or module was compiled to that torch.compile or tw.compile returned, a
    Program, or something that has `programs`, as sessions of ONNX models do; or a kernel that
    `@tw.jit` made or a launch returned."""
    if is_tile_kernel(compiled):
        return explain_tiles(compiled)
    held = [compiled] if isinstance(compiled, Program) else getattr(compiled, "programs", None)
    if held and isinstance(held, list) and all(isinstance(p, Program) for p in held):
        return Explanation(tuple(_reports(held)))
    reports: list[ProgramReport] = []
    events: list[Event] = []
    sessions, breaks = history_of(compiled)
    for session in sessions:
        for part in (s for unit in session.units for s in unit.segments):
            reports.extend(_reports(part.programs(), part))
        events.extend(session.log)
    # That a whole function runs in eager says more than that its graph was cut there.
    whole = {(e.data["title"], e.where) for e in breaks}
    told = [e for e in events if (e.data.get("title"), e.where) not in whole]
    return Explanation(tuple(reports), (*told, *breaks))


def _reports(programs: Iterable[Any], part: Any = None) -> Iterator[ProgramReport]:
    for p in programs:
        if not isinstance(p, Program):  # the interpreter: no kernels, but its graph counts
            name = f"{p.graph.name} (interpreted)"
            yield ProgramReport(name, operators(p.graph), 0, (), part=part)
            continue
        graph = p.details.graph
        assert graph is not None, "a compiled program knows its graph"
        parts = [q for q in (p.prologue, p) if q is not None]
        yield ProgramReport(
            graph.name,
            operators(graph),
            sum(len(q.details.cut.fused.clusters) for q in parts),
            tuple(k for q in parts for k in q.kernels),
            tuple(r for q in parts for r in q.details.cut.fused.refusals),
            p.arena,
            _folded_bytes(p),
            _bytes(p.inputs),
            _bytes(t for k, t in enumerate(p.outputs) if k not in dict(p.updated)),
            sum(size for k in p.spent if isinstance(size := nbytes(p.inputs[k]), int)),
            dict(p.details.phases),
            p.dims,
            {k.symbol: k.considered for q in parts for k in q.kernels},
            p.details.cut.passes,
            p.data.target,
            len(p.prologue.kernels) if p.prologue is not None else 0,
            p.manner,
            graph,
            part,
        )


def _folded_bytes(p: Program) -> int:
    """Bytes that the prologue derives from weights, whether it has run or not."""
    types = p.prologue.outputs if p.prologue is not None else ()
    return sum(int(t.size) * t.dtype.bytes for t in types if isinstance(t.size, int))


def operators(graph: Graph) -> int:
    """Operators as the user wrote them: inputs, constants and items do not count."""
    plain: tuple[type[Op], ...] = (Input, Constant, Item)
    return sum(1 for n in graph.nodes() if not isinstance(n.op, plain))


def _kernel_facts(number: int, k: KernelInfo, of: ProgramReport) -> dict[str, Any]:
    return {
        "number": number,
        "name": k.name,
        "calls": k.calls,
        "once": k in of.kernels[: of.once],
        "seconds": k.seconds,
        "cached": k.cached,
        "places": list(k.places),
        "trace": k.trace,
        "considered": of.considered.get(k.symbol, ""),
    }


def _bytes(types: Iterable[TensorType]) -> Dim:
    return sum(map(nbytes, types), start=0)


# ---- tables


def _program(p: ProgramReport, first: int) -> Iterator[Any]:
    hits = sum(k.cached for k in p.kernels)
    head = f"{p.name}: {count(p.operators, 'operator')} → {count(p.clusters, 'cluster')}"
    head += f" → {count(len(p.kernels), 'distinct kernel')}"
    if p.dims:
        head += f", for any {', '.join(p.dims)}"
    phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in p.phases.items())
    facts = [
        f"compiled in {p.seconds:.2f} s ({phases})",
        f"{hits} of {count(len(p.kernels), 'kernel')} came from the cache, "
        f"{count(p.calls, 'kernel call')} per run",
        f"memory: operands {bytes_text(p.operands)}, results {bytes_text(p.results)}, "
        f"arena {bytes_text(p.arena)}, folded weights {bytes_text(p.folded_bytes)}",
    ]
    if p.over:
        facts[-1] += f"; {bytes_text(p.over)} of the operands are written over"
    if p.manner:
        facts.append(p.manner)
    if p.target is not None and (measured := measured_at(p.target)):
        facts.append(f"the machine's numbers were measured at {measured} (tilewright calibrate)")
    yield Text(head, style="bold")
    if p.kernels:
        yield Text("\n".join(f"  {x}" for x in facts))
    if p.kernels:
        table = new_table("#", "kernel", "calls", "schedule", "where", "seconds")
        for k, info in enumerate(p.kernels, first):
            time = "cached" if info.cached else f"{info.seconds:.3f}"
            calls = f"{info.calls} once" if k - first < p.once else str(info.calls)
            places = _places(info.places)
            table.add_row(str(k), info.name, calls, short_trace(info.trace), places, time)
        yield table
        chosen = new_table("#", "scheduled as")
        for k, info in enumerate(p.kernels, first):
            if "others" in (text := p.considered.get(info.symbol, "")):
                chosen.add_row(str(k), text)
        if chosen.row_count:
            yield Group(Text(""), chosen)
    if p.passes:
        yield Group(Text(""), *_passes(p.passes))
    if p.refusals:
        yield Group(Text(""), _refusals(p.refusals))
    yield Text("")


def _passes(runs: Sequence[PassRun]) -> Iterator[Any]:
    table = new_table("pass", "nodes", "of these new", "seconds")
    for r in runs:
        if r.changed or r.before != r.after:
            table.add_row(r.text, f"{r.before} → {r.after}", str(r.changed), f"{r.seconds:.3f}")
    if table.row_count:
        yield table
    if short := next((r for r in runs if r.whole), None):
        yield Text(
            f"  counted on {short.before} of {count(short.whole, 'node')}: "
            "of equal regions, a few were rewritten for all"
        )
    idle = [r.text for r in runs if not r.changed and r.before == r.after]
    if idle:
        yield Text(f"  no change by {', '.join(idle)}")


def _refusals(refusals: Sequence[Refusal]) -> Table:
    table = new_table("not fused because", "count", "for example")
    counts = Counter(r.criterion for r in refusals)
    for criterion, n in counts.most_common():
        shown = dict.fromkeys(
            f"{r.producer.op.name} → {r.consumer.op.name}: {r.detail}"
            + (f" ({short_place(r.where)})" if r.where else "")
            for r in refusals
            if r.criterion == criterion
        )
        table.add_row(criterion, str(n), "\n".join(list(shown)[:EXAMPLES]))
    return table


def short_trace(trace: str) -> str:
    """A trace in one line: the steps by name with how often, and the grain of parallel loops."""
    names = []
    for step in parse_trace(trace):
        name = type(step).__name__
        if isinstance(step, Parallel) and step.grain != 1:
            name = f"{name}(grain {step.grain})"
        names.append(name)
    counts = Counter(names).items()  # in the order of first use
    return " ".join(f"{name}×{n}" if n > 1 else name for name, n in counts) or "as it is"


def _places(places: Sequence[str]) -> str:
    more = f"\n+{len(places) - 2} more" if len(places) > 2 else ""
    return "\n".join(short_place(p) for p in places[:2]) + more
