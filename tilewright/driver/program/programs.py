"""How to get a program: from the cache, or through the pipeline, which is loaded when something
has to be compiled."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from tilewright.base.cache import Cache
from tilewright.base.collector import garbage_waits
from tilewright.base.events import Log
from tilewright.base.fresh_stack import on_fresh_stack
from tilewright.driver.program.options import Options
from tilewright.driver.program.phases import Phases
from tilewright.driver.program.program_cache import key_of, restored
from tilewright.ir.node import Graph
from tilewright.ir.target import Target
from tilewright.runtime.program import Cut, Details, Program
from tilewright.targets import default as default_target
from tilewright.targets import require_runnable

_PIPELINE = "tilewright.driver.program.compile"


@garbage_waits()
@on_fresh_stack
def compile_graph(graph: Graph, options: Options | None = None, log: Log | None = None) -> Program:
    """Native code for a graph without host calls; Unsupported where a part has no native form."""
    options, log = options or Options(), log if log is not None else Log()
    target = options.target or default_target()
    require_runnable(target)
    phases = Phases()
    with phases("looking into the cache"):
        programs = Cache.from_knobs(log)
        key = key_of(graph, options, target) if programs.enabled else None
        hit = programs.get("program", key) if key is not None else None
        program = _loaded(hit, graph, options, target, log) if hit is not None else None
    if program is None:
        made: Program = import_module(_PIPELINE).compiled(graph, options, target, log, key)
        phases |= made.details.phases
        program = made
    program.details.graph, program.details.phases = graph, phases
    log.add(
        "compile",
        f"{graph.name}: {len(program.kernels)} kernels in {phases.total:.2f} s",
        kernels=sum(k.calls for k in program.kernels),
        fallbacks=[],
    )
    return program


def _loaded(hit: bytes, graph: Graph, options: Options, target: Target, log: Log) -> Program:
    @cache
    def cuts() -> list[Cut]:
        return import_module(_PIPELINE).looked_into(graph, options, target)

    data = restored(hit, log)
    prologue = None
    if data.prologue is not None:
        prologue = Program(data.prologue, Details(find_cut=lambda: cuts()[1]))
    return Program(data, Details(find_cut=lambda: cuts()[0]), prologue)
