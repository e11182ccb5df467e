"""`optimize="search"`: a program by the graph that a search found, where a clock says so.

The search orders graphs by an estimate, and by what operators take that were measured alone
(`operator_seconds.py`). What it prefers is compiled beside what the default passes make, both run
in turn on random inputs, and the faster one is taken. Where other programs compute layers faster
(`faster_layers.py`), a third one has these. The answer is kept in the cache, so that the next
process compiles only the one that was taken.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from math import inf

from tilewright.base.cache import Cache
from tilewright.base.events import Log
from tilewright.driver.program.arrays import prepared_call, random_inputs
from tilewright.driver.program.default_passes import chosen_passes
from tilewright.driver.program.faster_layers import Layers, place
from tilewright.driver.program.operator_seconds import OperatorSeconds
from tilewright.driver.program.options import Options
from tilewright.driver.program.program_cache import key_of
from tilewright.graph.align import SinkReshapes
from tilewright.graph.weight_sums import WeightSums
from tilewright.ir.node import Graph
from tilewright.ir.pipeline import Pipeline
from tilewright.ir.target import Target
from tilewright.runtime.program import Program
from tilewright.superopt.corrected_pass import Corrected
from tilewright.superopt.search_pass import Search

ROUNDS = 15  # in which both programs run, in turn
CALLS_FOR = 2e-3  # seconds of calls in a round
# A program that is not clearly faster is not taken: clocks are noisy.
CLEARLY = 0.99
SURE = 0.8  # of the rounds: of 15, two programs that are alike get there once in 50 times
# Programs of which one is faster by less than this part of the other run in more rounds.
CLOSE = 0.05
MORE_ROUNDS = 30
MORE_SECONDS = 10.0  # a last resort
_SIMPLER = ("Simplify", "BatchNormFold", "FewerProducts")
_READY = (SinkReshapes(), WeightSums())

Compile = Callable[[Graph, Options, Log], Program]


def searched(
    graph: Graph, options: Options, log: Log, target: Target, compile_graph: Compile
) -> Program:
    """The fastest program of a graph: by the default passes, by those with a search, or with other
    programs for layers as well."""
    plain = replace(options, optimize="")
    why = None
    if plain.precision == "strict":
        why = 'precision="strict" changes no bit, and what a search finds rounds differently'
    elif not all(n.ttype.is_static for n in graph.inputs):
        why = "sizes are not known, so nothing can be measured"
    if why is not None:
        log.add("search", f"{graph.name}: {why}")
        return compile_graph(graph, plain, log)
    given = chosen_passes(plain.passes, target, plain.precision)
    listed = with_search(given)
    if listed is given:
        plain = replace(plain, passes=without_search(listed))
    sought = replace(plain, passes=listed)
    by = sought
    cache = Cache.from_knobs(log)
    key = f"search\n{key_of(graph, sought, target)}" if cache.enabled else None
    known = cache.get("searched", key) if key is not None else None
    if known is not None:
        *numbers, text = json.loads(known)
        found = Measured(*numbers)
        by = replace(plain, passes=Pipeline.parse(text))
        program = compile_graph(graph, by if found.taken else plain, log)
    else:
        operators = OperatorSeconds(plain, log, target, compile_graph, cache, interleaved)
        listed = operators.used(graph, listed)
        by = sought = replace(plain, passes=listed)
        measure = Layers(plain, log, target, compile_graph, cache, medians, CLEARLY)
        layers = measure.faster(graph, listed)
        tried = [plain, sought]
        if layers:
            at, passes = place(listed), listed.passes
            with_layers = Pipeline((*passes[:at], Corrected(layers), *passes[at:]))
            tried.append(replace(plain, passes=with_layers))
        programs = [compile_graph(graph, o, log) for o in tried]
        found, best = Measured(), 0
        if any(_kernels(programs[0]) != _kernels(p) for p in programs[1:]):
            before, *others = medians(graph, programs)
            best = 1 + others.index(min(others))
            found = Measured(before, min(others), len(layers) if best == 2 else 0)
            by = tried[best]
        if key is not None:
            cache.put("searched", key, json.dumps([*astuple(found), str(by.passes)]).encode())
        program = programs[best if found.taken else 0]
    said = f"{graph.name}: {found}"
    of = {"measured": found, "graph": graph, "passes": by.passes}
    log.add("search", said, detail=not found.before, **of)
    return program


@dataclass(frozen=True)
class Measured:
    """Seconds of a call without a search and with it; nothing where both are the same program. And
    how many layers are by other programs then."""

    before: float = 0.0
    after: float = 0.0
    layers: int = 0

    @property
    def taken(self) -> bool:
        return self.after < CLEARLY * self.before

    def __str__(self) -> str:
        if not self.before:
            return "nothing better was found"
        said = "is taken" if self.taken else "is not taken"
        by = f" with {self.layers} layers by other programs" if self.layers else ""
        return f"{self.before * 1e6:.1f} us, by the search{by} {self.after * 1e6:.1f}: that {said}"


def with_search(listed: Pipeline) -> Pipeline:
    """The list with a search, if it has none: after what makes graphs simpler, and before operators
    are written in terms of others, of which there are more and about which rules say less. Rules
    are about products and sums, not about the reshapes that a frontend leaves between them, and
    sums have fewer forms where their weights are one."""
    found = list(listed)
    names = [p.name for p in found]
    if Search.name in names:
        return listed
    early = names[: names.index("Decompose")] if "Decompose" in names else names
    at = max((k + 1 for k, n in enumerate(early) if n in _SIMPLER), default=0)
    return Pipeline((*found[:at], *_READY, Search(), *found[at:]))


def without_search(listed: Pipeline) -> Pipeline:
    """The list without its search, and without what makes graphs ready for it: a program that is
    compared with one by a search should be the one that is made without."""
    found = list(listed)
    end = next(k for k, p in enumerate(found) if p.name == Search.name)
    at = end
    while at and found[at - 1] in _READY:
        at -= 1
    return Pipeline((*found[:at], *found[end + 1 :]))


def _kernels(p: Program) -> list[tuple[str, int]]:
    return [(k.name, k.calls) for k in p.kernels]


def medians(graph: Graph, programs: Sequence[Program]) -> list[float]:
    """Seconds of a call of each program, which run in turn. Copies of them are called: who gets one
    of them may rely on being the first to call it."""
    arrays = random_inputs(graph)
    calls = [prepared_call(Program(p.data), arrays)[0] for p in programs]
    times = _rounds(calls)
    if is_close(times):
        more = _rounds(calls, MORE_ROUNDS, MORE_SECONDS)
        times = [[*a, *b] for a, b in zip(times, more, strict=True)]
    return compared(times)


def is_close(times: Sequence[Sequence[float]]) -> bool:
    """Is one of the others a little faster than the first, in the middle of the rounds?"""
    return any(1 - CLOSE < part < 1 for part in map(statistics.median, _parts(times)))


def _parts(times: Sequence[Sequence[float]]) -> list[list[float]]:
    """What the others take of the first, in each round."""
    return [[b / a for a, b in zip(times[0], other, strict=True)] for other in times[1:]]


def compared(times: Sequence[Sequence[float]]) -> list[float]:
    """Seconds of the first, and of the others by what they take of it in the same round. What is
    not faster in nearly all rounds is said to take as long: that may be luck."""
    first = statistics.median(times[0])
    out = [first]
    for parts in _parts(times):
        sure = sum(x < 1 for x in parts) >= SURE * len(parts)
        part = statistics.median(parts)
        out.append(first * (part if sure else max(part, 1.0)))
    return out


def interleaved(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Seconds of each call, the median of rounds in which they are made in turn."""
    return [statistics.median(t) for t in _rounds(calls)]


def _rounds(
    calls: Sequence[Callable[[], object]], rounds: int = ROUNDS, seconds: float = inf
) -> list[list[float]]:
    """Seconds of each call in each round; the order turns. Time may end it."""
    until = time.perf_counter() + seconds
    counts = []
    for call in calls:
        call()  # weights are derived
        counts.append(max(1, int(CALLS_FOR / _seconds(call, 3))))
    times: list[list[float]] = [[] for _ in calls]
    for first in range(rounds):
        if time.perf_counter() > until:
            break
        for k in range(len(calls)):
            at = (first + k) % len(calls)
            times[at].append(_seconds(calls[at], counts[at]))
    return times


def _seconds(call: Callable[[], object], count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - began) / count
