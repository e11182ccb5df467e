"""What operators take on this machine, each compiled and measured alone, for a search to go by.

A search first goes by an estimate. The operators in which the graph that it prefers differs from
the given one are measured, and it is made again with what they take, until it prefers nothing that
was not measured. What was measured is kept in the cache, by operator, shapes, dtypes, target and
threads.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.base.cache import Cache
from tilewright.base.events import Log
from tilewright.driver.program.arrays import prepared_call, random_inputs
from tilewright.driver.program.options import Options
from tilewright.driver.program.program_cache import key_of
from tilewright.ir.node import Graph, input
from tilewright.ir.passes import run
from tilewright.ir.pattern import make
from tilewright.ir.pipeline import Pipeline
from tilewright.ir.target import Target
from tilewright.ir.types import TensorType, f32
from tilewright.runtime.program import Program
from tilewright.superopt.search_pass import Search

SEARCHES = 4  # with what was measured, at most
OPERATORS = 24  # that are measured after each of them, at most
SECONDS = 60.0  # a last resort: after these nothing more is compiled to be measured


@dataclass(frozen=True)
class OperatorSeconds:
    options: Options
    log: Log
    target: Target
    compile_graph: Callable[[Graph, Options, Log], Program]
    cache: Cache
    interleaved: Callable[[Sequence[Callable[[], object]]], list[float]]

    def used(self, graph: Graph, listed: Pipeline) -> Pipeline:
        """The list with a search that knows what the operators take that it is about."""
        until = time.monotonic() + SECONDS
        known: dict[str, float] = {}
        for _ in range(SEARCHES):
            wanted = {k: g for k, g in self._asked(graph, listed).items() if k not in known}
            if not wanted:
                break
            found = self._known(dict(list(wanted.items())[:OPERATORS]), until)
            if not found:
                self.log.add("search", f"{graph.name}: {SECONDS:.0f} seconds of measuring are over")
                break
            known |= found
            (search,) = (p for p in listed if isinstance(p, Search))
            measured = tuple(sorted({**dict(search.measured), **known}.items()))
            listed = listed.replacing(Search.name, replace(search, measured=measured))
        return listed

    def _asked(self, graph: Graph, listed: Pipeline) -> dict[str, Graph]:
        """Operators in which what the search prefers differs from what it was given."""
        log, passes = Log(), [p.on(self.target) for p in listed]
        end = next(k for k, p in enumerate(passes) if isinstance(p, Search))
        run(passes[: end + 1], graph, log)
        pieces = (e.data["found"] for e in log.of("search") if "found" in e.data)
        return {k: g for found in pieces for k, g in found.operators().items()}

    def _known(self, graphs: Mapping[str, Graph], until: float) -> dict[str, float]:
        """Seconds of operators, out of the cache or measured."""
        out: dict[str, float] = {}
        missing: dict[str, tuple[str | None, Graph]] = {}
        for name, g in graphs.items():
            key = key_of(g, self.options, self.target) if self.cache.enabled else None
            hit = self.cache.get("operators", key) if key is not None else None
            if hit is not None:
                out[name] = json.loads(hit)
            else:
                missing[name] = key, g
        calls = [self._call(_nothing())] if missing else []
        for _, g in missing.values():
            if time.monotonic() > until:
                break
            calls.append(self._call(g))
        if len(calls) < 2:
            return out
        start, *seconds = self.interleaved(calls)
        for (name, (key, _)), took in zip(missing.items(), seconds, strict=False):
            out[name] = max(took - start, 0.0)  # without what every call takes
            if key is not None:
                self.cache.put("operators", key, json.dumps(out[name]).encode())
            self.log.add("search", f"{out[name] * 1e6:.1f} us: {name}", detail=True)
        return out

    def _call(self, graph: Graph) -> Callable[[], None]:
        program = self.compile_graph(graph, self.options, self.log)
        return prepared_call(Program(program.data), random_inputs(graph))[0]


def _nothing() -> Graph:
    """A program of one number: what a call takes before anything is computed."""
    x = input("x", TensorType(f32, (1,)))
    return Graph("nothing", (x,), (make("neg", x),))
