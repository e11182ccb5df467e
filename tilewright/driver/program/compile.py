"""Graph → program: the pipeline, as a table of contents.

simplify, decompose, pack operands, split off what depends on weights only
fuse → clusters;  plan memory → arena
per distinct cluster: group → trace → nest → LLVM text → object (from the cache where it is known)
one entry function over all of them → a program

Each of these forms can be written to a file, edited and put back: `stages` stands between them.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from tilewright.base.cache import Cache
from tilewright.base.events import Log
from tilewright.driver.program.any_size import AnySize, for_any_size
from tilewright.driver.program.batched import Batches
from tilewright.driver.program.called import action_name, label
from tilewright.driver.program.code import Code, code_for, code_kinds
from tilewright.driver.program.compilers import Compilers, Kernel
from tilewright.driver.program.control import action_of, control_of, literals_in
from tilewright.driver.program.default_passes import chosen_passes
from tilewright.driver.program.distinct import Distinct, structure
from tilewright.driver.program.kernel_process import Answer, KernelProcess, Request, Scheduled
from tilewright.driver.program.kernel_server import CHOOSERS, scheduled
from tilewright.driver.program.options import Options
from tilewright.driver.program.phases import Phases
from tilewright.driver.program.program_cache import RecordingLog, record
from tilewright.driver.program.schedules import (
    Numbers,
    Schedules,
    by_first_use,
    group_of,
    symbol_of_text,
)
from tilewright.driver.program.stages import KernelStages, Stages
from tilewright.driver.program.storage import Where
from tilewright.driver.program.trials import Trials, chooser_for, request_for
from tilewright.graph.classify import nbytes
from tilewright.graph.cluster import Cluster, Fused
from tilewright.graph.cost import Roofline
from tilewright.graph.fold import split_weights
from tilewright.graph.freed import freed
from tilewright.graph.fuse import fuse
from tilewright.graph.memory import Plan, plan
from tilewright.graph.specialise import graph_symbols
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Graph, Input, Literal, Node
from tilewright.ir.passes import PassRun
from tilewright.ir.target import Target
from tilewright.ir.types import TensorType
from tilewright.kernel.group import Group, copy_group
from tilewright.kernel.nest import Nest
from tilewright.kernel.schedule import RULES
from tilewright.kernel.step import Trace, print_trace
from tilewright.kernel.text import group_text
from tilewright.llvm.entry import (
    Action,
    Call,
    Entry,
    GiveBack,
    Slot,
    Together,
    calls_of,
)
from tilewright.runtime import pool
from tilewright.runtime.profile import Marks
from tilewright.runtime.program import Cut, Details, Program
from tilewright.runtime.program_data import ProgramData, Recipe, Stored
from tilewright.runtime.shared import recipes_of
from tilewright.tune.choose import Chooser, Chosen, Default, Picker
from tilewright.tune.choosers import choose_all
from tilewright.tune.recorded import Recorded, recorded

if TYPE_CHECKING:  # loaded where there is a GPU
    from tilewright.runtime.cuda.machine import Machine

ALIGN = 64
# Passing a kernel to a thread costs microseconds. Kernels on one thread are scans, which take
# several times what their bytes would: two of this length ran in 0.55 of the time.
TOGETHER_SECONDS = 7.5e-6


def prepare(
    graph: Graph,
    options: Options,
    target: Target,
    log: Log,
    stages: Stages | None = None,
    runs: list[PassRun] | None = None,
) -> Graph:
    """The graph after the list of passes; what each did is added to `runs`."""
    stages = stages or Stages()
    pipeline = chosen_passes(options.passes, target, options.precision)
    pipeline = chosen_passes(stages.pipeline(pipeline), target, options.precision)
    return pipeline.run(graph, target, log, stages.graph if stages.active else None, runs)


@dataclass(frozen=True)
class Parts:
    """What every call runs, and what runs once for given weights, if anything does."""

    main: Graph
    prologue: Graph | None = None
    weights: tuple[int, ...] = ()  # inputs of the whole that the prologue reads


def split(
    graph: Graph,
    options: Options,
    target: Target,
    log: Log,
    stages: Stages | None = None,
    schedules: Schedules | None = None,
    runs: list[PassRun] | None = None,
) -> Parts:
    """The graph after all passes, in its parts."""
    stages = stages or Stages()
    schedules = schedules or Schedules.of(options)
    ready = prepare(graph, options, target, log, stages, runs)
    return parts_of(graph, ready, target, log, stages, schedules)


def parts_of(
    graph: Graph, ready: Graph, target: Target, log: Log, stages: Stages, schedules: Schedules
) -> Parts:
    """The parts of a graph that is ready after all passes."""
    fold = any(is_weight(n) for n in ready.inputs)
    ready = schedules.with_layouts(ready, fold, target, log)
    if not fold:
        return Parts(ready)
    # A view of a weight is read in place by a GPU: a copy would double the model's memory.
    prologue, ready = split_weights(ready, views=target.grid is None)
    if not prologue.outputs:
        return Parts(ready)
    ready = stages.graph("main", ready)
    position = {n: k for k, n in enumerate(graph.inputs)}
    return Parts(ready, prologue, tuple(position[n] for n in prologue.inputs))


def compiled(
    graph: Graph,
    options: Options,
    target: Target,
    log: Log,
    key: str | None = None,
    machine: Machine | None = None,
    processes: Sequence[KernelProcess] = (),
) -> Program:
    """The program of a graph, on a GPU or this processor. It is cached under the key, if there is
    one. Other processes help to compile it."""
    events = RecordingLog(log)
    phases = Phases()
    stages = Stages.of(graph, events, options.dump, options.resume)
    schedules = Schedules.of(options)
    once: Builder | None = None
    recipes: tuple[Recipe, ...] = ()
    with Compilers(target, processes) as compilers:
        if machine is None:
            compilers.do(pool.prepare)  # it is compiled by the first program on a machine
        with phases("passes"):
            parts = split(graph, options, target, events, stages, schedules, phases.passes)
        code = code_for(parts.main, target, machine, options.one_kernel)
        by = chooser_for(options, target, events, code, machine)
        common = (target, events, phases, options.profile, schedules, compilers)
        if parts.prologue is not None:
            below = stages.inside("weights")
            prologue = below.graph("input", parts.prologue)
            apart = code_for(prologue, target, machine)
            once = Builder(*common, apart, below, Default(), any_size=True)  # not worth a choice
            once.begin(prologue, len(prologue.inputs))
            with phases("passes"):  # while other processes compile
                recipes = recipes_of(prologue)
        always = Builder(*common, code, stages, by)
        if by is options.choose:  # one of the user's own decides about every kernel
            always.recorded = Recorded()
        always.begin(parts.main, len(graph.inputs), graph.inputs, options)
        builders = [b for b in (once, always) if b is not None]
        with phases("kernels"):
            compilers.finish()
        with phases("timing kernels"):
            always.pick()
        with phases("kernels"):
            for b in builders:
                b.end()
            compilers.finish()
    with phases("entry and loading"):
        before = once.data() if once is not None else None
        read = set(parts.main.inputs)
        data = replace(
            always.data(),
            weights=parts.weights,
            prologue=before,
            recipes=recipes,
            kept=tuple(k for k, n in enumerate(graph.inputs) if n in read and is_weight(n)),
        )
        program = always.loaded(data, once.loaded(before) if once is not None and before else None)
    program.details.phases = phases
    known = {k.symbol for q in (data, before) if q is not None for k in q.kernels}
    for name in schedules.traces:
        if name not in known:
            events.add(
                "schedule", f"{graph.name} has no kernel {name}: the trace for it is not used"
            )
    if key is not None and all(k.schedule.final for b in builders for k in b.kernels.values()):
        always.cache.put("program", key, record(data, events))
    return program


def looked_into(graph: Graph, options: Options, target: Target) -> list[Cut]:
    """How the parts of a program, the prologue last, were cut: for explanations of a program out
    of the cache."""
    runs: list[PassRun] = []
    parts = split(graph, options, target, Log(), runs=runs)
    cuts = [fuse(g, target, Log()) for g in (parts.main, parts.prologue) if g is not None]
    new = {at: graph.inputs[k] for at, k in options.updates}
    spent = [graph.inputs[k] for k in options.spent]
    plans = [plan(cuts[0], None, new, spent, options.fresh_results)]
    plans += map(plan, cuts[1:])
    return [Cut(fused, p, tuple(runs)) for fused, p in zip(cuts, plans, strict=True)]


class Builder:
    """Collects kernels, begins to compile the distinct ones, writes the entry."""

    def __init__(
        self,
        target: Target,
        log: Log,
        phases: Phases,
        profile: bool,
        schedules: Schedules,
        compilers: Compilers,
        code: Code,
        stages: Stages,
        by: Chooser,
        any_size: bool = False,  # one kernel for several sizes: where none runs often
    ) -> None:
        self.schedules, self.by, self.compilers, self.code = schedules, by, compilers, code
        self.marks = Marks() if profile else None
        self.target, self.log, self.stages, self.phases = target, log, stages, phases
        self.cache = Cache.from_knobs(log)
        self.recorded = recorded(target, pool.get_threads(), log)
        self.kernels: dict[str, Distinct] = {}
        self.alike: dict[Hashable, Distinct] = {}
        self.entries: list[Entry] = []
        self.constants: dict[Literal, int] = {}
        self.first_constant = 0
        self.any_size = any_size
        # Each kernel when it is found, not all together: files are numbered, and clocks run alone.
        self.at_once = not by.alone and not stages.active
        self.trials = Trials(by, compilers, code, target, log) if isinstance(by, Picker) else None
        self.image = b""  # of the entry
        self.updated: tuple[tuple[int, int], ...] = ()
        self.spent: tuple[int, ...] = ()

    def begin(
        self,
        graph: Graph,
        given: int,
        order: Sequence[Node] = (),
        options: Options | None = None,
    ) -> None:
        """`given` inputs come from the caller; then constants, then what the prologue folds."""
        asked = options or Options()
        own = list(order or graph.inputs)
        own = own[:given]
        folded = [n for n in graph.inputs if n not in own]
        self.first_constant = given
        literals = list(literals_in(graph))
        self.constants = {x: given + k for k, x in enumerate(literals)}
        inputs = {n: k for k, n in enumerate(own)}
        inputs |= {n: given + len(literals) + k for k, n in enumerate(folded)}
        symbol = f"tw_{hashlib.sha256(graph.name.encode()).hexdigest()[:8]}"
        with self.phases("fusion and memory"):
            new = {at: own[k] for at, k in asked.updates}
            free = [own[k] for k in asked.spent]
            how = asked.fresh_results, asked.give_back
            entry, self.arena = self.entry(graph, symbol, inputs, None, new, free, *how)
        self.updated = tuple((at, own.index(x)) for at, x in self.plan.updated)
        owners = {x for x, _ in self.plan.over.values() if isinstance(x, Node)}
        given_back = [a.slot for a in entry.actions if isinstance(a, GiveBack)]
        owners |= {own[s.at] for s in given_back if s.kind == "in" and isinstance(s.at, int)}
        self.spent = tuple(sorted(map(own.index, owners)))
        with self.phases("kernels"):
            if not self.at_once:
                self._compile(list(self.kernels.values()))
        self.types = tuple(n.ttype for n in own)
        self.outs = tuple(n.ttype for n in graph.outputs)
        self.literals = tuple(literals)

    def data(self) -> ProgramData:
        """The program that was begun, once the compilers are done."""
        entry = self.entries[-1]
        if self.marks is not None:
            self.marks.names = [action_name(a, self.kernels) for a in entry.actions]
        self.stages.close()
        return ProgramData(
            self.types,
            self.outs,
            entry.dims,
            entry.symbol,
            self.arena,
            self.target,
            (*(k.image for k in self.kernels.values()), self.image),
            tuple(map(Stored.of, self.literals)),
            tuple(k.info() for k in self.kernels.values()),
            updated=self.updated,
            spent=self.spent,
        )

    def loaded(self, data: ProgramData, prologue: Program | None = None) -> Program:
        """The same in this process."""
        cut = Cut(self.fused, self.plan, tuple(self.phases.passes))
        details = Details(marks=self.marks, find_cut=lambda: cut)
        return self.code.load(data, details, prologue)

    def entry(
        self,
        graph: Graph,
        symbol: str,
        inputs: dict[Node, int],
        overwritten: Mapping[Node, int] | None = None,
        updates: Mapping[int, Node] | None = None,
        spent: Sequence[Node] = (),
        fresh: bool = False,
        give_back: bool = False,
    ) -> tuple[Entry, Dim]:
        fused = fuse(graph, self.target, self.log)
        p = plan(fused, overwritten, updates, spent, fresh)
        self.fused, self.plan = fused, p
        where = Where(p, inputs, self.constants)
        dims = tuple(sorted(graph_symbols(fused.graph)))
        actions: list[Action] = []
        behind: dict[int, int] = {}  # batches, and how many actions there are when one is done
        inside: dict[int, tuple[Dim, Dim]] = {}  # batches, and what graphs inside use
        symbols: dict[Cluster, str] = {}
        end = p.size
        clusters = [by_first_use(c) for c in fused.clusters]
        sized = for_any_size([c for c in clusters if _apart(c, p)]) if self.any_size else {}
        batches = Batches(self, fused, p, where, sized)
        for some in batches.of(clusters):
            c = some[0]
            flow = control_of(c)
            if flow is not None:
                inner = f"{symbol}_{len(actions)}"
                base = p.free_from(batches.batch[c.outputs])
                action, size = action_of(flow, c, self, where, inner, base)
                actions.append(action)
                end = D.maximum(end, base + size)
                number = batches.batch[c.outputs]
                behind[number], inside[number] = len(actions), (base, base + size)
                continue
            if all(o.ttype.size == 0 for o in c.outputs):
                continue
            calls = [batches.part(c) or self._call(c, fused, p, where, sized) for c in some]
            symbols |= batches.symbols(some, calls)
            actions += batches.joined(calls)
            behind[batches.batch[c.outputs]] = len(actions)
        for out, source in p.copies:
            if source.ttype.size != 0:
                copy, dims_given = self.copy(source.ttype)
                size = nbytes(source.ttype)
                args = (where(source), Slot("out", out))
                actions.append(Call(copy, args, dims_given, (size, size), 1))
        for f in reversed(freed(fused, p, spent, inside) if give_back else ()):
            at = max((n for k, n in behind.items() if k <= f.after), default=0)
            actions.insert(at, where.given_back(f))
        self.stages.clusters(fused, p, symbols.get)
        in_place = tuple(p.outputs[x] for x in overwritten or () if x in p.outputs)
        e = Entry(symbol, tuple(actions), dims, in_place)
        self.entries.append(e)
        return e, end

    def _call(
        self, c: Cluster, fused: Fused, p: Plan, where: Where, sized: Mapping[Cluster, AnySize]
    ) -> Call:
        k, ins = self._kernel(c, fused, p, sized.get(c))
        args = (*(where(x) for x in ins), *(where(o) for o in c.outputs))
        sizes = tuple(nbytes(x.ttype) for x in (*ins, *c.outputs))
        given = sized[c].sizes if c in sized else {}
        dims_given = tuple(given.get(d, d) for d in k.dims)
        if c in sized or len(k.names) == 1:  # others of a kernel are of the same sizes
            one_thread = Roofline(replace(self.target, cores=1))
            k.work = max(k.work, one_thread.seconds(c))
        return Call(k.symbol, args, dims_given, sizes, len(c.outputs))

    def _side_by_side(self, e: Entry) -> Entry:
        """Neighbours that are independent, each long and on one thread only, run at the same
        time."""
        actions: list[Action] = []
        for a in e.actions:
            last = actions[-1] if actions else None
            before = calls_of(last) if isinstance(last, (Call, Together)) else ()
            if (
                isinstance(a, Call)
                and not self.updated  # results may lie where operands do
                and before
                and all(self._waits_for_others(self.kernels[c.symbol]) for c in (a, *before))
                and not any(a.overlaps(b) for b in before)
            ):
                actions[-1] = Together((*before, a))
            else:
                actions.append(a)
        return replace(e, actions=tuple(actions))

    def _waits_for_others(self, k: Distinct) -> bool:
        """Does it leave all threads but one idle for long?"""
        return k.work > TOGETHER_SECONDS and not k.schedule.parallel and self.target.grid is None

    def inside(
        self, graph: Graph, symbol: str, given: int, overwritten: Mapping[Node, int]
    ) -> tuple[Entry, Dim]:
        """The entry of a graph inside; its constants are passed after its inputs."""
        outer = self.fused, self.plan, self.constants
        self.constants = {x: given + k for k, x in enumerate(self.constants)}
        inputs = {x: k for k, x in enumerate(graph.inputs)}
        found = self.entry(graph, symbol, inputs, overwritten)
        self.fused, self.plan, self.constants = outer
        return found

    def copy(self, t: TensorType) -> tuple[str, tuple[str, ...]]:
        """The kernel that copies such a tensor, and the sizes that it takes."""
        k = self.distinct(copy_group("kernel", t))
        k.names.append("copy")
        return k.symbol, k.dims

    def _kernel(
        self, c: Cluster, fused: Fused, p: Plan, sized: AnySize | None
    ) -> tuple[Distinct, tuple[Node, ...]]:
        """The kernel of a cluster, and the inputs in its order."""
        place = {o: p.in_place[o] for o in c.outputs if o in p.in_place}
        alike = structure(c if sized is None else sized.cluster, place)
        found = self.alike.get(alike) if not self.schedules else None
        inputs = c.inputs
        if found is None and sized is not None:
            found = self.distinct(group_of(sized.cluster, p, self.schedules.numbers))
        elif found is None:
            cluster, group = self.schedules.kernel_of(c, p)
            found, inputs = self.distinct(group), cluster.inputs
        self.alike[alike] = found
        self.named(found, c, fused)
        return found, inputs

    def named(self, k: Distinct, c: Cluster, fused: Fused) -> None:
        k.names.append(label(c))
        for n in c.nodes:
            k.places |= {str(x) for x in fused.graph.places.get(n, ())}

    @property
    def numbers(self) -> Numbers:
        return self.schedules.numbers

    def distinct(self, group: Group) -> Distinct:
        text = group_text(group)
        symbol = symbol_of_text(text)
        if symbol not in self.kernels:
            named = replace(group, name=symbol)
            k = self.kernels[symbol] = Distinct(symbol, named, text, dims=group.dims())
            if self.at_once:
                self._compile([k])
        return self.kernels[symbol]

    def _scheduled(self, symbol: str, group: Group) -> Chosen:
        """By the user's trace, or else by the chooser."""
        given = self.schedules.traces.get(symbol)
        if given is None:
            return self.by.choose(group, self.target)
        return Chosen(given, self.schedules.applied(symbol, group, given))

    def _compile(self, kernels: Sequence[Distinct]) -> None:
        """Objects for distinct kernels: from the cache, or by the compilers from now on."""
        todo: list[tuple[Distinct, KernelStages, str]] = []
        known: dict[str, Chosen] = {}
        for k in kernels:
            stages = self.stages.kernel(k.symbol)
            given = self.schedules.traces.get(k.symbol)
            how = self.by.name if given is None else f"given\n{print_trace(given)}"
            if given is None:
                tuned = self.recorded.chosen(k.text, k.group, self.log)
                if tuned is not None:
                    known[k.symbol] = tuned
                    how = f"a record\n{print_trace(tuned.trace)}"
            key = f"{self.target.key()}\n{k.text}\n{how}\n{self.code.form}"
            hit = None if stages.dumping or stages.is_edited else self.cache.get("kernel", key)
            if hit is not None:
                head, _, k.image = hit.partition(b"\n")
                trace, chosen_by, parallel, why = json.loads(head)
                k.schedule = Scheduled(trace, parallel, chosen_by, unscheduled=why)
                k.cached = True
                self.code.known(k.symbol, k.image)
            else:
                todo.append((k, stages, key))
        decided = self.schedules.traces.keys() | known.keys()
        mine = [k for k, _, _ in todo if k.symbol not in decided]
        # What measures goes first, while nothing else runs.
        clocked = {k.symbol: k.group for k in mine if self.by.alone}
        if clocked:
            self.compilers.finish()
        chosen = known | (choose_all(self.by, clocked, self.target) if clocked else {})

        for k in kernels:
            if k.symbol in self.schedules.traces:
                self.log.add("schedule", f"{k.symbol} is scheduled by the given trace")
        for k, stages, key in todo:
            self._begin(k, stages, key, chosen.get(k.symbol))

    def pick(self) -> None:
        """The kernels that a clock picks, once all are compiled."""
        if self.trials is not None:
            self.trials.pick()

    def end(self) -> None:
        """The object of the entry, once all kernels are compiled."""
        for k in self.kernels.values():
            if why := k.schedule.unscheduled:
                said, place = f"{k.names[0]} has plain loops: {why}", min(k.places, default=None)
                self.log.add("plain-loops", said, where=place, kernel=k.symbol)
            if k.schedule.chosen and not k.cached:
                found = k.schedule.considered
                said = f"{k.symbol}: {k.schedule.chosen}"
                self.log.add("schedule", said, considered=found, detail=not found)
        self.entries = [self._side_by_side(e) for e in self.entries]
        finish = self.code.entry(self.entries, self.stages, self.marks is not None, self.log)

        def machine_code() -> None:
            self.image = finish()

        self.compilers.do(machine_code)

    def _begin(self, k: Distinct, stages: KernelStages, key: str, found: Chosen | None) -> None:
        """A kernel waits to be compiled; `found` is its schedule, where it is known already."""

        def taken(answer: Answer) -> None:
            k.schedule, k.image, k.seconds = answer.schedule, answer.image, answer.seconds
            self.code.known(k.symbol, k.image)
            self._keep(k, stages, key)

        request = None
        given = found is not None or k.symbol in self.schedules.traces
        plain = not (given or stages.dumping or stages.is_edited)
        if plain and self.trials is not None:
            if self.trials.begin(k.group, k.text, taken):
                return
            request = request_for(k.symbol, k.text, RULES, self.target, self.code)
        elif plain and self.by == CHOOSERS.get(self.by.name):
            what = k.symbol, k.text, self.by.name, self.target
            request = Request(*what, None, *code_kinds(self.code))
        here = partial(self._write, k, stages, key, found)
        self.compilers.add(Kernel(len(k.text), here, taken, request))

    def _write(self, k: Distinct, stages: KernelStages, key: str, found: Chosen | None) -> None:
        """The text of a kernel, which a compiler compiles."""
        began = time.perf_counter()
        group = stages.group(k.group)
        found = found if group is k.group else None

        def schedule() -> tuple[Trace, Nest]:
            nonlocal found
            found = found or self._scheduled(k.symbol, group)
            return found.trace, found.nest

        trace, nest = stages.schedule(group, schedule)
        given = k.symbol in self.schedules.traces
        k.schedule = scheduled(trace, None if given else found)
        finish = self.code.kernel(nest, group, stages)
        k.seconds = time.perf_counter() - began

        def machine_code() -> None:
            began = time.perf_counter()
            k.image = finish()
            k.seconds += time.perf_counter() - began
            self._keep(k, stages, key)

        self.compilers.do(machine_code)

    def _keep(self, k: Distinct, stages: KernelStages, key: str) -> None:
        """Store a kernel in the cache, unless it could come out differently."""
        s = k.schedule
        if s.final and not stages.is_edited:
            head = json.dumps([s.trace, s.chosen, s.parallel, s.unscheduled])
            self.cache.put("kernel", key, head.encode() + b"\n" + k.image)


def _apart(c: Cluster, p: Plan) -> bool:
    """Does it write into no memory that it reads, and is it a kernel?"""
    return control_of(c) is None and not any(o in p.in_place for o in c.outputs)


def is_weight(n: Node) -> bool:
    return isinstance(n.op, Input) and n.op.role == "weight"
