"""A program for another machine: the kernels that it has there, and its code, which is not loaded.

What depends on weights only is computed here: its program, the prologue, is compiled for this
machine and run, and its results are constants of the other program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.base.errors import Invalid, Unsupported, require
from tilewright.base.events import Log
from tilewright.driver.program.called import label
from tilewright.driver.program.code import code_for
from tilewright.driver.program.compile import Builder, Parts, is_weight, split
from tilewright.driver.program.compilers import Compilers
from tilewright.driver.program.control import inner_graphs
from tilewright.driver.program.options import Options
from tilewright.driver.program.phases import Phases
from tilewright.driver.program.saved import stored, with_derived
from tilewright.driver.program.schedules import Schedules, kernels_of, symbol_of_text
from tilewright.driver.program.stages import Stages
from tilewright.driver.program.trials import chooser_for
from tilewright.ir.node import Graph, Input, Node
from tilewright.ir.target import Target
from tilewright.kernel.text import group_text
from tilewright.llvm.objects import cached_object
from tilewright.runtime.objects import read_symbols
from tilewright.runtime.program import Program
from tilewright.runtime.program_data import KernelInfo, ProgramData, Stored
from tilewright.runtime.shared import recipes_of
from tilewright.targets import family_of, host
from tilewright.targets.systems import system_of
from tilewright.tune.choose import Chooser, Default
from tilewright.tune.recorded import Recorded


def kernels_for(graph: Graph, options: Options, target: Target) -> list[KernelInfo]:
    """What every call of a graph would run on a target; nothing is scheduled or compiled."""
    main = split(graph, options, target, Log()).main
    found: dict[str, list[str]] = {}
    for part in _parts(main):
        for c, group, _ in kernels_of(part, False, Schedules.of(options).numbers, target):
            found.setdefault(group_text(group), []).append(label(c))
    return [
        KernelInfo(names[0], symbol_of_text(text), text, "", len(names))
        for text, names in found.items()
    ]


def _parts(graph: Graph) -> Iterator[Graph]:
    """A graph, and those inside."""
    yield graph
    for g in inner_graphs(graph):
        yield from _parts(g)


def built_elsewhere(
    graph: Graph,
    target: Target,
    options: Options | None = None,
    values: Mapping[str, Any] | None = None,
    log: Log | None = None,
) -> ProgramData:
    """The program of a graph for any processor, which need not be this machine's.

    `values` are arrays for those inputs that are weights (or `Stored` ones), by name. What calls
    need of them in another form is among the program's constants, so that it has no prologue;
    weights that calls read as they are (`kept`) stay inputs.
    """
    options, log = options or Options(), log if log is not None else Log()
    data, parts = _calls(graph, target, options, log)
    if parts.prologue is None:
        return data
    before = _built(parts.prologue, host(), options, Default(), log)
    data = replace(data, weights=parts.weights, recipes=recipes_of(parts.prologue))
    given = _given([graph.inputs[k] for k in parts.weights], values or {})
    return with_derived(data, Program(before), [x.ctypes.data for x in given])


def code_elsewhere(
    graph: Graph, target: Target, options: Options | None = None, log: Log | None = None
) -> ProgramData:
    """The same without weights: what calls run, to be looked at."""
    return _calls(graph, target, options or Options(), log if log is not None else Log())[0]


def _calls(graph: Graph, target: Target, options: Options, log: Log) -> tuple[ProgramData, Parts]:
    """What every call runs, and the parts of the graph."""
    require(target.grid is None, f"{target.name} is a GPU: programs are built where one is")
    require(not options.profile, "a program for another machine is not profiled here")
    parts = split(graph, options, target, log)
    by = chooser_for(options, target, log, code_for(parts.main, target, None), None)
    if by.alone and target.key() != host().key():
        raise Invalid(
            f"schedules for {target.name} cannot be timed on this machine",
            hint='choose="default" or "ranked"',
        )
    data = _built(parts.main, target, options, by, log, graph.inputs)
    read = set(parts.main.inputs)
    kept = tuple(k for k, n in enumerate(graph.inputs) if n in read and is_weight(n))
    return replace(data, kept=kept, images=_whole(data, log)), parts


def _built(
    graph: Graph,
    target: Target,
    options: Options,
    by: Chooser,
    log: Log,
    order: Sequence[Node] | None = None,
) -> ProgramData:
    """The program of a graph after all passes. Of its inputs those in `order` are given by the
    caller; without, all are, and the program runs once."""
    once = order is None
    order = graph.inputs if order is None else order
    stages, schedules = Stages(), Schedules.of(options)
    with Compilers(host()) as compilers:
        code = code_for(graph, target, None)
        common = (target, log, Phases(), False, schedules, compilers)
        b = Builder(*common, code, stages, by, any_size=once)
        if by is options.choose:  # one of the user's own decides about every kernel
            b.recorded = Recorded()
        b.begin(graph, len(order), order)
        compilers.finish()
        b.end()
        compilers.finish()
    return b.data()


def _whole(data: ProgramData, log: Log) -> tuple[bytes, ...]:
    """The objects of a program, with functions that they call and the target's systems lack. What
    stays open is of the thread pool (runtime/pool_ir.py) and of every such system."""
    family = family_of(data.target)
    images = data.images
    if family.support:
        image = cached_object(family.support, data.target, log)
        if not _open(images).isdisjoint(read_symbols(image).defined):
            images = (*images, image)
    given = family.system | system_of(data.target).open
    missing = sorted(_open(images) - given - {"tw_parallel"})
    if missing:
        raise Unsupported(
            f"code for {data.target.name} calls {', '.join(missing)}, which is no function of "
            "every such system",
            hint="compile for a target with more instructions",
        )
    return images


def _open(images: Sequence[bytes]) -> set[str]:
    """What objects call and none of them defines."""
    found = [read_symbols(image) for image in images]
    return {x for f in found for x in f.needed} - {x for f in found for x in f.defined}


def _given(inputs: Sequence[Node], values: Mapping[str, Any]) -> list[Any]:
    """The arrays of weights, contiguous."""
    found = []
    for n in inputs:
        assert isinstance(n.op, Input)
        if n.op.label not in values:
            raise Invalid(
                f"the value of weight {n.op.label} is not given",
                hint="values={name: array} for every weight: they are packed for the target here",
            )
        x = values[n.op.label]
        x = x if isinstance(x, Stored) else stored(x, n.op.label, n.ttype)
        found.append(x.array)
    return found
