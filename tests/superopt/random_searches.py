"""Random graphs by what a search prefers, compiled, against a float64 evaluation of what was given.

    python -m tests.superopt.random_searches --count 200 [--first SEED]

Half of them are graphs of any operators, with weights among their inputs; half are products, sums
and what moves their elements, of which rules make others.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import numpy as np

from tests.driver import random_programs
from tests.driver.random_programs import about
from tests.generators import Failure, Generator
from tests.ir.judge import Call, Case, smaller, without_unused
from tests.ir.random_graphs import random_graph
from tests.seeds import run_generator
from tests.shrinking import shrunk
from tilewright import ops, targets
from tilewright.driver.program.default_passes import passes
from tilewright.driver.program.options import Options
from tilewright.driver.program.searched import with_search
from tilewright.ir.node import Graph, Input, Node, input
from tilewright.ir.positions import static
from tilewright.ir.text import print_graph
from tilewright.ir.types import TensorType, f32
from tilewright.superopt.pieces import substituted


def drawn(seed: int) -> Case:
    r = random.Random(seed)
    if seed % 2:
        return searchable(r)
    graph, args = random_graph(seed)
    return Case(with_weights(graph, r), (Call(tuple(args)),))


def with_weights(graph: Graph, r: random.Random) -> Graph:
    """Some of the inputs are weights: what depends on these alone is computed once."""
    table: dict[Node, Node] = {}
    for n in graph.inputs:
        assert isinstance(n.op, Input)
        table[n] = input(n.op.label, n.ttype, r.choice(("arg", "weight")))
    outputs = substituted(graph.outputs, table)
    return Graph(graph.name, tuple(table[n] for n in graph.inputs), outputs)


def searchable(r: random.Random) -> Case:
    """Matrices or images, most of one size, so that rules find operators that belong together."""
    shape, step = ((6, 6), _matrices) if r.random() < 0.6 else ((2, 4, 5, 5), _images)
    shapes = [shape] * 2 + [_weight(shape)] * 4
    inputs = [
        input(f"x{k}", TensorType(f32, s), "arg" if k < 2 else "weight")
        for k, s in enumerate(shapes)
    ]
    values = inputs[:2]
    for _ in range(r.randint(3, 10)):
        made = step(r, r.choice(values[-5:]), r.choice(values[-5:]), r.choice(inputs[2:]))
        values += made if isinstance(made, list) else [made]
    graph = Graph("searchable", tuple(inputs), tuple(dict.fromkeys((values[-1], values[-2]))))
    rng = np.random.default_rng(r.randrange(1 << 30))
    args = (rng.standard_normal(static(n.shape)).astype(np.float32) / 2 for n in inputs)
    return without_unused(Case(graph, (Call(tuple(args)),)))


def _weight(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape if len(shape) == 2 else (shape[1], shape[1], 3, 3)


def _matrices(r: random.Random, x: Node, y: Node, weight: Node) -> Node | list[Node]:
    half = ops.full((), r.choice((0.5, 2.0, 0.0)), f32)
    kinds: list[Callable[[], Node | list[Node]]] = [
        lambda: ops.matmul(x, weight),
        lambda: ops.matmul(x, y),
        lambda: ops.add(ops.matmul(x, weight), y),
        lambda: ops.add(x, y),
        lambda: ops.mul(x, half),
        lambda: ops.relu(x),
        lambda: ops.permute(x, (1, 0)),
        lambda: ops.softmax(x, 1),
        lambda: _halves(ops.concat([x, y], 0), 0),
        lambda: _halves(ops.concat([x, y], 1), 1),
    ]
    return r.choice(kinds)()


def _images(r: random.Random, x: Node, y: Node, weight: Node) -> Node | list[Node]:
    small = ops.slice(ops.slice(weight, 2, 1, 2), 3, 1, 2)
    half = ops.full((), r.choice((0.5, 2.0)), f32)
    kinds: list[Callable[[], Node | list[Node]]] = [
        lambda: ops.conv(x, weight, padding=1),
        lambda: ops.conv(x, small),
        lambda: ops.add(ops.conv(x, weight, padding=1), ops.conv(y, small)),
        lambda: ops.add(x, y),
        lambda: ops.mul(x, half),
        lambda: ops.relu(x),
        lambda: ops.avg_pool(x, (3, 3), 1, 1),
        lambda: _halves(ops.concat([x, y], 0), 0),
        lambda: _halves(ops.concat([x, y], 1), 1),
    ]
    return r.choice(kinds)()


def _halves(n: Node, axis: int) -> list[Node]:
    size = static(n.shape)[axis]
    return [ops.slice(n, axis, 0, size // 2), ops.slice(n, axis, size // 2, size)]


OPTIONS = Options(passes=with_search(passes(targets.default())))


def failure(case: Case) -> Failure | None:
    return random_programs.failure(case, OPTIONS)


def check_seed(seed: int) -> None:
    """Raises with the smallest graph that still fails."""
    case = drawn(seed)
    found = failure(case)
    if found is not None:
        small, why = shrunk(GENERATOR, case, found, failure, 60)
        raise AssertionError(f"seed {seed}: {why}\n{print_graph(small.graph)}")


as_code = partial(random_programs.as_code, module="tests.superopt.random_searches")
GENERATOR = Generator("searches", drawn, failure, smaller, as_code, about)

if __name__ == "__main__":
    raise SystemExit(run_generator("searches", 200, __doc__))
