"""What records gain in a program as a whole.

A kernel is tuned alone, and finds its arguments where it left them itself. In a program they are
where the kernel before left them, perhaps in the cache of another thread: what is faster alone may
be slower there, or make the next kernel slower. So a program is timed with all that was decided for
it and with less, and what it is faster without is taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tilewright.base import knobs
from tilewright.driver.program.options import Options
from tilewright.driver.program.programs import compile_graph
from tilewright.driver.program.searched import CLEARLY, medians
from tilewright.ir.node import Graph
from tilewright.kernel.text import group_text, parse_group
from tilewright.runtime.program import Program
from tilewright.tune.records import Record, append

# Records that are left out one by one: those that should save most.
MOST = 6

Race = Callable[[Graph, Sequence[Program]], list[float]]


def to_take_back(
    graph: Graph, options: Options, decided: Sequence[Record], race: Race = medians
) -> list[Record]:
    """Of what was decided for the kernels of a graph, what its program is clearly faster without.
    The records that should save most come first: those are left out one by one, and then all.
    `race` gives seconds of a call of two programs; where the second is not surely faster, it takes
    as long as the first."""
    used = {_text(k.group) for k in _program(graph, options, ()).kernels}
    first = tuple(r for r in decided if r.gains and r.group in used)

    def faster(fewer: Sequence[Record]) -> bool:
        before, after = race(graph, [_program(graph, options, x) for x in (kept, fewer)])
        return after < CLEARLY * before

    kept = first
    for one in first[:MOST]:
        fewer = tuple(r for r in kept if r is not one)
        if fewer and faster(fewer):
            kept = fewer
    if kept and faster(()):
        kept = ()
    return [r for r in first if r not in kept]


def _program(graph: Graph, options: Options, records: Sequence[Record]) -> Program:
    """The program of a graph with these records and no others."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "records.jsonl"
        append(path, records)
        with knobs.records.override(path):
            return compile_graph(graph, options)


def _text(group: str) -> str:
    return group_text(parse_group(group))
