"""`optimize="search"`: a program by the graph that a search found, where a clock says so.

The search orders graphs by an estimate. What it prefers is compiled beside what the default passes
make, both run in turn on random inputs, and the faster one is taken. Before that, each layer for
which there are other programs (superopt/partial/) is measured beside these; a third program has
those that were faster. The answer is kept in the cache, so that the next process compiles only the
one that was taken.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

from tilewright.base.cache import Cache
from tilewright.base.events import Log
from tilewright.driver.program.arrays import random_inputs, run_arrays
from tilewright.driver.program.default_passes import chosen_passes
from tilewright.driver.program.options import Options
from tilewright.driver.program.program_cache import key_of
from tilewright.ir.node import Graph
from tilewright.ir.passes import Pass
from tilewright.ir.pipeline import Pipeline
from tilewright.ir.target import Target
from tilewright.ir.text import parse_graph, print_graph
from tilewright.runtime.program import Program
from tilewright.superopt.corrected_pass import Corrected
from tilewright.superopt.search_pass import Search

ROUNDS = 15  # in which both programs run, in turn
CALLS_FOR = 2e-3  # seconds of calls in a round
# A program that is not clearly faster is not taken: clocks are noisy.
CLEARLY = 0.98
LAYERS_FOR = 30.0  # seconds after which no further layer is looked at
LEAST_PART = 0.01  # of all layers' seconds that one has to take

_PARTIAL = "tilewright.superopt.partial.corrected"

Compile = Callable[[Graph, Options, Log], Program]


def searched(
    graph: Graph, options: Options, log: Log, target: Target, compile_graph: Compile
) -> Program:
    """The faster of two programs of a graph: by the default passes, and by those with a search."""
    plain = replace(options, optimize="")
    why = None
    if plain.precision == "strict":
        why = 'precision="strict" changes no bit, and what a search finds rounds differently'
    elif not all(n.ttype.is_static for n in graph.inputs):
        why = "sizes are not known, so nothing can be measured"
    if why is not None:
        log.add("search", f"{graph.name}: {why}")
        return compile_graph(graph, plain, log)
    listed = chosen_passes(plain.passes, target, plain.precision)
    cache = Cache.from_knobs(log)
    sought = replace(plain, passes=with_search(listed))
    key = f"search\n{key_of(graph, sought, target)}" if cache.enabled else None
    known = cache.get("searched", key) if key is not None else None
    if known is not None:
        taken = replace(plain, passes=Pipeline.parse(known.decode())) if known else plain
        return compile_graph(graph, taken, log)
    layers = _Layers(plain, log, target, compile_graph, cache).faster(graph, listed)
    tried = [plain, sought]
    if layers:
        tried.append(replace(plain, passes=with_search(listed, Corrected(layers))))
    programs = [compile_graph(graph, o, log) for o in tried]
    taken = 0
    if all(_kernels(programs[0]) == _kernels(p) for p in programs[1:]):
        log.add("search", f"{graph.name}: nothing better was found", detail=True)
    else:
        before, *others = medians(graph, programs)
        after = min(others)
        taken = 1 + others.index(after) if after < CLEARLY * before else 0
        said = "the search's is taken" if taken else "the search's is not taken"
        log.add(
            "search",
            f"{graph.name}: {before * 1e6:.1f} us, by the search {after * 1e6:.1f}: {said}",
        )
    if key is not None:
        cache.put("searched", key, str(tried[taken].passes).encode() if taken else b"")
    return programs[taken]


@dataclass(frozen=True)
class _Layers:
    """Which layers of a graph another program computes faster."""

    options: Options
    log: Log
    target: Target
    compile_graph: Compile
    cache: Cache

    def faster(self, graph: Graph, listed: Pipeline) -> tuple[Graph, ...]:
        """Each with the program that takes its place, as the pass `Corrected` has them."""
        by = import_module(_PARTIAL)
        ready = Pipeline(tuple(listed)[: _place(listed)]).run(graph, self.target, Log())
        layers: dict[Any, float] = by.layers_of(ready, self.target)
        until, least = time.monotonic() + LAYERS_FOR, LEAST_PART * sum(layers.values())
        found: list[Graph] = []
        for layer, seconds in layers.items():
            if seconds < least or time.monotonic() > until:
                break
            taken = self._known(layer.graph, partial(by.candidates, layer, self.target))
            if taken is not None:
                found.append(taken)
        return tuple(found)

    def _known(self, layer: Graph, candidates: Callable[[], Sequence[Any]]) -> Graph | None:
        """The pair of a layer and what is faster, out of the cache or measured."""
        key = f"layer\n{key_of(layer, self.options, self.target)}" if self.cache.enabled else None
        known = self.cache.get("searched", key) if key is not None else None
        if known is not None:
            return parse_graph(known.decode()) if known else None
        taken = self._measured(layer, candidates())
        if key is not None:
            text = print_graph(taken, places=False) if taken is not None else ""
            self.cache.put("searched", key, text.encode())
        return taken

    def _measured(self, layer: Graph, candidates: Sequence[Any]) -> Graph | None:
        if not candidates:
            return None
        made = [replace(layer, outputs=(c.program,)) for c in candidates]
        programs = [self.compile_graph(g, self.options, self.log) for g in (layer, *made)]
        before, *others = medians(layer, programs)
        after = min(others)
        best = candidates[others.index(after)]
        is_faster = after < CLEARLY * before
        said = "is taken" if is_faster else "is not taken"
        self.log.add(
            "search",
            f"{layer.outputs[0]!r}: {before * 1e6:.1f} us, in {best.boxes} boxes"
            f" {after * 1e6:.1f}: {said} ({best.how})",
        )
        return replace(layer, outputs=(*layer.outputs, best.program)) if is_faster else None


def _place(listed: Pipeline) -> int:
    """Where constants have been folded and nothing is laid out yet."""
    names = [p.name for p in listed]
    return max(
        (k + 1 for k, name in enumerate(names) if name == "FoldConstants"), default=len(names)
    )


def with_search(listed: Pipeline, *before: Pass) -> Pipeline:
    """The list with a search, and passes before it."""
    found, at = tuple(listed), _place(listed)
    return Pipeline((*found[:at], *before, Search(), *found[at:]))


def _kernels(p: Program) -> list[tuple[str, int]]:
    return [(k.name, k.calls) for k in p.kernels]


def medians(graph: Graph, programs: Sequence[Program]) -> list[float]:
    """Seconds of a call of each program, which run in turn."""
    arrays = random_inputs(graph)
    calls: list[Callable[[], object]] = []
    for p in programs:
        calls.append(lambda p=p: run_arrays(p, arrays))
    counts = []
    for call in calls:
        call()  # weights are derived
        counts.append(max(1, int(CALLS_FOR / _seconds(call, 3))))
    times: list[list[float]] = [[] for _ in programs]
    for _ in range(ROUNDS):
        for k, call in enumerate(calls):
            times[k].append(_seconds(call, counts[k]))
    return [statistics.median(t) for t in times]


def _seconds(call: Callable[[], object], count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - began) / count
