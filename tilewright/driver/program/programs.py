"""How to get a program: from the cache, or through the pipeline, which is loaded when something
has to be compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING

from tilewright.base.cache import Cache
from tilewright.base.collector import garbage_waits
from tilewright.base.errors import require
from tilewright.base.events import Log
from tilewright.base.fresh_stack import on_fresh_stack
from tilewright.driver.program.kernel_process import processes_for
from tilewright.driver.program.options import Options
from tilewright.driver.program.phases import Phases
from tilewright.driver.program.program_cache import key_of, restored
from tilewright.ir.node import Graph
from tilewright.ir.target import Target
from tilewright.runtime.program import Cut, Details, Program
from tilewright.targets import default as default_target
from tilewright.targets import require_runnable

if TYPE_CHECKING:  # loaded where there is a GPU
    from tilewright.runtime.cuda.machine import Machine

_PIPELINE = "tilewright.driver.program.compile"
_SEARCHED = "tilewright.driver.program.searched"
_VALIDATION = "tilewright.driver.program.validation"
_CUDA = "tilewright.runtime.cuda.program"


@garbage_waits()
@on_fresh_stack
def compile_graph(
    graph: Graph,
    options: Options | None = None,
    log: Log | None = None,
    machine: Machine | None = None,
) -> Program:
    """Native code for a graph without host calls, for the GPU `machine` or this processor;
    Unsupported where a part has no native form."""
    options, log = options or Options(), log if log is not None else Log()
    if machine is not None:
        target = machine.target
    else:
        target = options.target or default_target()
        require_runnable(target)
    require(options.optimize in ("", "search"), f"optimize={options.optimize!r} is not known")
    if options.optimize == "search":
        require(machine is None, 'optimize="search" measures programs of a processor, not of a GPU')
        return import_module(_SEARCHED).searched(graph, options, log, target, compile_graph)
    phases = Phases()
    with phases("looking into the cache"):
        programs = Cache.from_knobs(log)
        key = key_of(graph, options, target) if programs.enabled else None
        if key is not None and machine is not None:
            key = f"{machine.key()}\n{key}"
        hit = programs.get("program", key) if key is not None else None
        program = _loaded(hit, graph, options, target, log, machine) if hit is not None else None
    if program is None:
        others = processes_for(graph, target)  # they start while this one imports the pipeline
        compiled = import_module(_PIPELINE).compiled
        made: Program = compiled(graph, options, target, log, key, machine, others)
        phases |= made.details.phases
        program = made
    if options.validate:
        with phases("validation"):
            import_module(_VALIDATION).check(graph, options, target, program, log)
    program.details.graph, program.details.phases = graph, phases
    log.add(
        "compile",
        f"{graph.name}: {len(program.kernels)} kernels in {phases.total:.2f} s",
        kernels=sum(k.calls for k in program.kernels),
        fallbacks=[],
    )
    return program


def from_record(hit: bytes, graph: Graph, options: Options, target: Target, log: Log) -> Program:
    """The program of an entry of the cache that another process made."""
    program = _loaded(hit, graph, options, target, log, None)
    program.details.graph, program.details.phases = graph, Phases()
    return program


def _loaded(
    hit: bytes,
    graph: Graph,
    options: Options,
    target: Target,
    log: Log,
    machine: Machine | None,
) -> Program:
    @cache
    def cuts() -> list[Cut]:
        return import_module(_PIPELINE).looked_into(graph, options, target)

    data = restored(hit, log)
    make = Program if machine is None else partial(cuda_program(), machine=machine)
    prologue = None
    if data.prologue is not None:
        prologue = make(data.prologue, details=Details(find_cut=lambda: cuts()[1]))
    return make(data, details=Details(find_cut=lambda: cuts()[0]), prologue=prologue)


def cuda_program() -> Callable[..., Program]:
    """The class of programs on a GPU: loaded where there is one."""
    return import_module(_CUDA).CudaProgram
