"""Graphs in pieces: put together again they are what they were, and layers are searched once."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tilewright import ops, targets
from tilewright.base.events import Log
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Input, Node, input, item, topological
from tilewright.ir.positions import static
from tilewright.ir.types import TensorType, f32
from tilewright.superopt import search as searches
from tilewright.superopt.classes import Classes
from tilewright.superopt.pieces import pieces, substituted
from tilewright.superopt.search_pass import Search
from tilewright.superopt.seconds import constant_classes


def drawn(seed: int) -> Graph:
    """A random program with weights, numbers, values that are used late, and tuples."""
    rng = random.Random(seed)
    leaves = [input(f"x{k}", TensorType(f32, (4, 4)), "arg" if k else "weight") for k in range(3)]
    values = [*leaves, ops.full((4, 4), 0.5, f32)]
    for _ in range(40):
        a, b = (rng.choice(values[-6:]) for _ in range(2))
        kind = rng.randrange(5)
        if kind == 4:
            pair = ops.topk(a, 4)
            values += [item(pair, 0)]
        else:
            values.append((ops.matmul, ops.add, ops.mul, lambda x, _: ops.relu(x))[kind](a, b))
    outputs = (values[-1], values[-9])
    ins = tuple(n for n in topological(outputs) if isinstance(n.op, Input))
    return Graph("drawn", ins, outputs)


@pytest.mark.parametrize("seed", range(20))
def test_pieces_are_the_graph(seed: int) -> None:
    graph = drawn(seed)
    most = random.Random(seed).randrange(4, 20)
    made: dict[Node, Node] = {}
    found = pieces(graph, most)
    for p in found:
        assert all(isinstance(n.type, TensorType) for n in p.graph.inputs)
        table = {x: made.get(n, n) for x, n in zip(p.graph.inputs, p.bound, strict=True)}
        made |= zip(p.outputs, substituted(p.graph.outputs, table), strict=True)
    assert tuple(made.get(n, n) for n in graph.outputs) == graph.outputs, seed
    constant = constant_classes(Classes(graph.outputs))
    counted = [n for n in graph.nodes() if n.inputs and n not in constant]
    assert len(found) > 1 or len(counted) <= most, seed


def layers(count: int) -> Graph:
    """Layers with a product of low rank beside a product of weights, each the same."""
    x = first = input("x", TensorType(f32, (16, 64)))
    weights: list[Node] = []
    for k in range(count):
        shapes = {"w": (64, 64), "a": (64, 4), "b": (4, 64)}
        w, a, b = (input(f"{n}{k}", TensorType(f32, s), "weight") for n, s in shapes.items())
        weights += [w, a, b]
        x = ops.relu(ops.add(ops.matmul(x, w), ops.matmul(ops.matmul(x, a), b)))
    return Graph("layers", (first, *weights), (x,))


def test_layers_are_searched_once() -> None:
    graph, log = layers(6), Log()
    search = Search(seconds=60, most=8).on(targets.default())
    made = search.apply(graph, log)
    events = [e for e in log.of("search") if "found" in e.data]
    assert [e.data["times"] for e in events] == [6]
    assert any("6 pieces, 1 of them different" in e.message for e in log.events)
    products = [n for n in made.nodes() if n.op.name == "matmul" and n.shape[0] == 16]
    assert len(products) == 6
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(static(n.shape)) for n in graph.inputs]
    (a,), (b,) = evaluate(graph, args), evaluate(made, args)
    assert np.abs(a - b).max() <= 1e-4 * np.abs(a).max()


def test_only_pieces_that_a_measurement_is_about_are_searched_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = first = input("x", TensorType(f32, (16, 64)))
    weights: list[Node] = []
    for k, width in enumerate((8, 4)):  # two layers, of which each is a piece
        shapes = {"w": (64, 64), "a": (64, width), "b": (width, 64)}
        w, a, b = (input(f"{n}{k}", TensorType(f32, s), "weight") for n, s in shapes.items())
        weights += [w, a, b]
        x = ops.relu(ops.add(ops.matmul(x, w), ops.matmul(ops.matmul(x, a), b)))
    graph = Graph("layers", (first, *weights), (x,))
    made: list[Graph] = []
    kept = searches.search

    def counted(part: Graph, *given: Any) -> searches.Found:
        if part.name == "piece":  # the whole graph is looked at first
            made.append(part)
        return kept(part, *given)

    monkeypatch.setattr(searches, "_found", {})
    monkeypatch.setattr(searches, "search", counted)
    narrow = "matmul(f32[16,64], weight f32[64,8])"
    for measured, count in (((), 2), ((), 2), (((narrow, 1e-5),), 3), ((("other", 1.0),), 4)):
        Search(most=5, measured=measured).on(targets.default()).apply(graph, Log())
        assert len(made) == count, measured


def test_what_takes_less_than_a_kernel_to_start_is_left_as_it_is() -> None:
    """Element by element, and small: as many searches as it has forms would gain nothing."""
    x = root = input("x", TensorType(f32, (4, 4)))
    for k in range(12):
        root = ops.add(ops.mul(root, x), ops.full((), 0.5 + k, f32))
    log = Log()
    graph = Graph("polynomial", (x,), (root,))
    assert Search().on(targets.default()).apply(graph, log).outputs == graph.outputs
    (found,) = (e.data["found"] for e in log.of("search") if "found" in e.data)
    assert found.ended == "little to gain" and found.graph is found.given
