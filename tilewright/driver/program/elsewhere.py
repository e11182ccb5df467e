"""The kernels that a program has on another machine, without code for it."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.base.events import Log
from tilewright.driver.program.compile import label, split
from tilewright.driver.program.options import Options
from tilewright.driver.program.schedules import Schedules, kernels_of, symbol_of_text
from tilewright.ir.node import Graph
from tilewright.ir.target import Target
from tilewright.kernel.text import group_text
from tilewright.ops.control import Cond
from tilewright.runtime.program_data import KernelInfo


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
    """A graph, and the branches inside."""
    yield graph
    for n in graph.nodes():
        if isinstance(n.op, Cond):
            for branch in (n.op.then, n.op.other):
                yield from _parts(branch)
