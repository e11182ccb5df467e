"""Random layers, many of each: passes and fusion by regions make what they make of the whole.

python -m tests.driver.program.random_regions --count 2000 [--first SEED]
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from tests.generators import checked
from tests.seeds import run_generator
from tilewright import ops, targets
from tilewright.base import knobs
from tilewright.base.events import Log
from tilewright.driver.program.compile import split
from tilewright.driver.program.options import Options
from tilewright.driver.program.stages import clusters_text
from tilewright.graph.fuse import fuse
from tilewright.graph.memory import plan
from tilewright.ir.node import Graph, Input, Node, Place, constant, input, item, topological
from tilewright.ir.passes import PassRun
from tilewright.ir.target import Target
from tilewright.ir.text import print_graph
from tilewright.ir.types import TensorType, f32, i64

build: Any = ops  # builders are found at import, which a type checker cannot follow
ROWS, COLUMNS = 4, 32


@dataclass(frozen=True)
class Made:
    """A graph after the passes and its clusters, as text."""

    graphs: tuple[str, ...]
    clusters: tuple[str, ...]
    shortened: bool  # did passes see a part of the graph?


def made(graph: Graph, target: Target, regions: bool) -> Made:
    runs: list[PassRun] = []
    with knobs.regions.override(regions):
        parts = split(graph, Options(), target, Log(), runs=runs)
        graphs = [g for g in (parts.main, parts.prologue) if g is not None]
        fused = [fuse(g, target, Log()) for g in graphs]
    clusters = tuple(clusters_text(f, plan(f), lambda c: None) for f in fused)
    return Made(tuple(map(print_graph, graphs)), clusters, any(r.whole for r in runs))


def compared(graph: Graph, target: Target) -> bool:
    """Are both the same? Says whether anything was left out."""
    whole, short = made(graph, target, False), made(graph, target, True)
    assert not whole.shortened
    assert whole.graphs == short.graphs, f"other graphs\n{print_graph(graph)}"
    assert whole.clusters == short.clusters, f"other clusters\n{print_graph(graph)}"
    return short.shortened


class Drawn:
    """A random layer: steps that read what is carried, shared, or made before in the layer."""

    def __init__(self, draw: Random) -> None:
        self.draw, self.count = draw, 0
        self.carried = draw.randint(1, 2)
        self.role = draw.choice(["weight", "weight", "arg"])
        self.result = draw.random() < 0.3  # is something of each layer a result?
        self.lines = draw.randrange(2)  # is each layer written on a line of its own?
        self.steps = [
            (draw.choice(STEPS), draw.randrange(100), draw.randrange(100))
            for _ in range(draw.randint(5, 14))
        ]

    def layer(self, k: int, carried: list[Node], shared: list[Node]) -> tuple[list[Node], Node]:
        values = [*carried, *shared]
        for j, (step, a, b) in enumerate(self.steps):
            recent = len(values) - 1 - a % min(len(values), 4)
            operands = values[recent], values[b % len(values)]
            values.append(step(*operands, partial(self.w, f"w{k}_{j}_"), k))
        new = values[-1]
        return [build.add(carried[0], new), *carried[:-1]], new

    def w(self, label: str, *shape: int) -> Node:
        self.count += 1
        return input(f"{label}{self.count}", TensorType(f32, shape), self.role)

    def graph(self, count: int) -> Graph:
        x = input("x", TensorType(f32, (ROWS, COLUMNS)))
        mask = input("mask", TensorType(f32, (ROWS, COLUMNS)))
        carried = [build.tanh(build.mul(x, float(k + 1))) for k in range(self.carried)]
        shared = [mask, build.exp(mask)] if self.draw.random() < 0.5 else [mask]
        results: list[Node] = []
        places: dict[Node, frozenset[Place]] = {}
        for k in range(count):
            carried, new = self.layer(k, carried, shared)
            places[new] = frozenset({Place("model.py", 10 + k * self.lines)})
            results += [new] * self.result
        end = build.softmax(carried[0], 1) if self.draw.random() < 0.5 else build.neg(carried[0])
        outputs = (end, *dict.fromkeys(results))
        inputs = tuple(n for n in topological(outputs) if isinstance(n.op, Input))
        return Graph("layers", inputs, outputs, places)


def _random(x: Node, y: Node, w: Any, k: int) -> Node:
    """A mask of random numbers, each layer's from a stream of its own."""
    seed = input("seed", TensorType(i64, ()), "scalar")
    number = constant(k << 32, i64, passed=True)
    return build.mul(x, build.rand(seed, number, (ROWS, COLUMNS), f32))


STEPS = (
    lambda x, y, w, k: build.matmul(x, w(COLUMNS, COLUMNS)),
    lambda x, y, w, k: build.add(build.matmul(x, w(COLUMNS, COLUMNS)), w(COLUMNS)),
    lambda x, y, w, k: build.matmul(build.matmul(x, build.transpose(y, 0, 1)), y),
    lambda x, y, w, k: item(build.layer_norm(x, w(COLUMNS), w(COLUMNS)), 0),
    lambda x, y, w, k: build.softmax(x, 1),
    lambda x, y, w, k: build.gelu(x),
    lambda x, y, w, k: build.add(x, y),
    lambda x, y, w, k: build.mul(x, y),
    lambda x, y, w, k: build.mul(x, 1.0),
    lambda x, y, w, k: build.maximum(x, w(COLUMNS)),
    lambda x, y, w, k: build.flip(x, (1,)),
    lambda x, y, w, k: build.sub(x, build.mean(y, (1,), True)),
    lambda x, y, w, k: build.add(x, build.sum(y, (0,), True)),
    lambda x, y, w, k: build.reshape(build.tanh(build.reshape(x, (2, 2, COLUMNS))), x.shape),
    lambda x, y, w, k: build.transpose(build.exp(build.transpose(x, 0, 1)), 0, 1),
    lambda x, y, w, k: build.concat([build.slice(x, 1, 0, 8), build.slice(y, 1, 8, COLUMNS)], 1),
    _random,
)


def check_seed(seed: int) -> bool:
    """Says whether the graph was shortened."""
    draw = Random(seed)
    graph = Drawn(draw).graph(draw.randint(12, 30))
    target = targets.get(draw.choice(["x86-64-v4", "arm64", "cuda:90"]))
    return compared(graph, target)


GENERATOR = checked("regions", check_seed)

if __name__ == "__main__":
    raise SystemExit(run_generator(GENERATOR.name, 200, __doc__))
