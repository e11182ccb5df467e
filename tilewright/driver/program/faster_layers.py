"""Layers of a graph that another program computes faster, by a clock.

Other programs of a layer are found by `superopt/partial/`, which is loaded when it is needed. Each
layer is compiled alone, beside them; what was measured is kept in the cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

from tilewright.base.cache import Cache
from tilewright.base.events import Log
from tilewright.driver.program.options import Options
from tilewright.driver.program.program_cache import key_of
from tilewright.ir.node import Graph
from tilewright.ir.pipeline import Pipeline
from tilewright.ir.target import Target
from tilewright.ir.text import parse_graph, print_graph
from tilewright.runtime.program import Program

LAYERS_FOR = 30.0  # seconds after which no further layer is looked at
LEAST_PART = 0.01  # of all layers' seconds that one has to take

_PARTIAL = "tilewright.superopt.partial.corrected"


def place(listed: Pipeline) -> int:
    """Where in a list layers can be replaced: what they are computed of is folded, and nothing is
    laid out yet."""
    names = ("Decompose", "FoldConstants")
    return max((k + 1 for k, p in enumerate(listed) if p.name in names), default=len(listed))


@dataclass(frozen=True)
class Layers:
    options: Options
    log: Log
    target: Target
    compile_graph: Callable[[Graph, Options, Log], Program]
    cache: Cache
    medians: Callable[[Graph, Sequence[Program]], list[float]]
    clearly: float  # a part of the layer's seconds: less than this is faster

    def faster(self, graph: Graph, listed: Pipeline) -> tuple[Graph, ...]:
        """Each such layer with the program that takes its place, as the pass `Corrected` has
        them."""
        by = import_module(_PARTIAL)
        before = Pipeline(listed.passes[: place(listed)])
        layers: dict[Any, float] = by.layers_of(before.run(graph, self.target, Log()), self.target)
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
        before, *others = self.medians(layer, programs)
        after = min(others)
        best = candidates[others.index(after)]
        is_faster = after < self.clearly * before
        said = "is taken" if is_faster else "is not taken"
        self.log.add(
            "search",
            f"{layer.outputs[0]!r}: {before * 1e6:.1f} us, in {best.boxes} boxes"
            f" {after * 1e6:.1f}: that {said} ({best.how})",
        )
        return replace(layer, outputs=(*layer.outputs, best.program)) if is_faster else None
