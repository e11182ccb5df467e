"""Random graphs built directly in the IR: ragged shapes, all dtypes, most operators, shared values.

    graph, args = random_graph(seed)                # one call of a graph with fixed sizes
    case = random_case(seed)                        # any graph, and one or more calls of it
    expected, allowed = reference(graph, args)      # float64, and the error each output may have
    graph, args = shrink(graph, args, fails)        # the smallest that still fails

A case may have symbolic sizes (with 0 and 1 among their values), numbers that change from call to
call, outputs that are inputs or occur twice, indices out of range, hundreds of inputs and outputs,
thousands of nodes in a row or side by side.
"""

from __future__ import annotations

import random

from tests.ir.graph_maker import FLOATS, NARROW, Generator, Style, ops
from tests.ir.graph_steps import step
from tests.ir.judge import (
    Args,
    Case,
    disagreement,
    nodes_below,
    reference,
    shrink,
    without_unused,
)
from tilewright.ir.node import Graph, Node

__all__ = ["disagreement", "random_case", "random_graph", "reference", "shrink"]


def random_graph(seed: int, size: int | None = None) -> tuple[Graph, Args]:
    """A graph of about `size` steps and arguments for it; equal seeds give equal graphs."""
    g = Generator(seed)
    _grow(g, g.rng.randint(2, 18) if size is None else size)
    case = _finished(g, seed, _outputs(g))
    return case.graph, list(case.calls[0].args)


def random_case(seed: int) -> Case:
    """A graph of any kind and calls of it."""
    r = random.Random(seed)
    kind = r.choices(
        ("plain", "symbolic", "narrow", "many", "deep", "wide"), (50, 25, 15, 5, 2, 3)
    )[0]
    hostile = 0.3 if r.random() < 0.2 else 0.0
    style = Style(NARROW if kind == "narrow" else FLOATS, _dims(r, kind), hostile)
    g = Generator(seed, style)
    if kind == "deep":
        outputs = _deep(g, r.choice((200, 500, 1000, 2000)))
    elif kind == "wide":
        outputs = _wide(g, r.choice((50, 200, 500)))
    elif kind == "many":
        outputs = _many(g, r.choice((50, 150, 300)))
    else:
        _grow(g, r.randint(2, 18))
        outputs = _outputs(g)
    if r.random() < 0.1:
        outputs.append(r.choice(outputs))
    if r.random() < 0.1:
        outputs.insert(r.randint(0, len(outputs)), r.choice(g.inputs))
    return _finished(g, seed, outputs)


def _dims(r: random.Random, kind: str) -> tuple[dict[str, int], ...]:
    """Values of the symbols in each of the calls."""
    if kind != "symbolic":
        return ({"k0": 3}, {"k0": 7}) if r.random() < 0.1 else ({},)
    first = {"n": r.choice((3, 8, 13)), "m": r.choice((2, 5, 16)), "k0": 3}
    others = [{"n": r.choice((0, 1, 2, 17)), "m": r.choice((0, 1, 4, 33)), "k0": 7}]
    others += [{"n": r.choice((1, 5, 12)), "m": r.choice((1, 3)), "k0": 0}]
    return (first, *others[: r.randint(1, 2)])


def _grow(g: Generator, size: int) -> None:
    g.add_input(g.shape(), g.float)
    made = 0
    for _ in range(10 * size):
        made += step(g) is not None
        if made >= size:
            break


def _outputs(g: Generator) -> list[Node]:
    used = {x for n in g.pool for x in nodes_below(n)}
    sinks = [n for n in g.pool if n not in used and n not in g.inputs] or g.pool[-1:]
    more = [n for n in g.pool if n in used and n not in g.inputs]
    outputs = g.rng.sample(sinks, min(len(sinks), 3))
    if more and g.rng.random() < 0.3:
        outputs.append(g.rng.choice(more))
    return outputs


def _finished(g: Generator, seed: int, outputs: list[Node]) -> Case:
    graph = Graph(f"random_{seed}", tuple(g.inputs), tuple(outputs))
    return without_unused(Case(graph, tuple(g.calls(g.inputs))))


# ---- large graphs


def _deep(g: Generator, length: int) -> list[Node]:
    """A chain of small steps, each of which needs the one before."""
    x = n = g.add_input(g.shape(g.rng.choice((1, 2))), g.float)
    c = g.add_input(x.shape, g.float)
    kinds = g.rng.sample(("tanh", "add", "where", "scale", "sum", "permute"), 3)
    for _ in range(length):
        kind = g.rng.choice(kinds)
        if kind == "add":
            n = ops.mul(ops.add(n, c), 0.5)
        elif kind == "where":
            n = ops.where(ops.lt(x, 0.0), ops.mul(n, 0.5), n)
        elif kind == "scale":
            n = ops.add(ops.mul(n, 0.75), 0.25)
        elif kind == "sum" and n.rank and not g.empty(n):
            n = ops.sub(n, ops.mean(n, (n.rank - 1,), keepdims=True))
        elif kind == "permute":
            n = ops.flip(n, (0,))
        else:
            n = ops.tanh(n)
    return [g.add(n, 8.0, False)]


def _wide(g: Generator, count: int) -> list[Node]:
    """Nodes side by side, joined at the end by one operator or by a sum."""
    x = g.add_input(g.shape(1), g.float)
    parts = [ops.tanh(ops.mul(x, 1 + k / count)) for k in range(count)]
    if g.rng.random() < 0.5:
        return [g.add(ops.concat(parts, 0), 1.0, False)]
    total = parts[0]
    for p in parts[1:]:
        total = ops.add(total, p)
    return [g.add(ops.mul(total, 1 / count), 1.0, False), parts[count // 2]]


def _many(g: Generator, count: int) -> list[Node]:
    """As many inputs and outputs."""
    shape = g.shape(g.rng.choice((0, 1, 2)))
    inputs = [g.add_input(shape, g.float) for _ in range(count)]
    made = []
    for k, x in enumerate(inputs):
        other = inputs[g.rng.randrange(count)]
        made.append(ops.add(ops.tanh(x), other) if k % 3 else ops.maximum(x, other))
    for n in made:
        g.add(n, 5.0, False)
    return made
