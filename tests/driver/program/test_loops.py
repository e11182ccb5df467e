"""Loops compiled: random bodies, and what is computed outside of them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.driver.running import call
from tests.generators import checked
from tests.graph.build import arg, weight
from tests.seeds import drawn
from tilewright import ops, targets
from tilewright.base import knobs
from tilewright.base.events import Log
from tilewright.driver.program.compile import split
from tilewright.driver.program.elsewhere import built_elsewhere, kernels_for
from tilewright.driver.program.graph_run import judge
from tilewright.driver.program.options import Options
from tilewright.driver.program.programs import compile_graph
from tilewright.ir import dim as D
from tilewright.ir.check import verify
from tilewright.ir.dim import Dim
from tilewright.ir.node import Graph, Node, input
from tilewright.ir.operator import outputs_of
from tilewright.ir.text import parse_graph, print_graph
from tilewright.ir.types import TensorType, f32, i64
from tilewright.ops.control import Scan

ROWS, WIDE = 3, 8
STATE = TensorType(f32, (ROWS, WIDE))
SQUARE = TensorType(f32, (WIDE, WIDE))


@dataclass
class Bodies:
    """Random graphs of control flow over states (`STATE`) and matrices (`SQUARE`)."""

    rng: random.Random
    length: Dim
    count: int = 0

    def value(self, states: list[Node], matrices: list[Node], depth: int) -> Node:
        x, y = self.rng.choices(states, k=2)
        kind = self.rng.randrange(10 if depth else 8)
        if kind < 2 and matrices:
            return ops.tanh(ops.matmul(x, self.rng.choice(matrices)))
        if kind == 2:
            return ops.tanh(ops.add(x, ops.mean(y, (1,), True)))
        if kind == 3:
            return ops.concat((ops.slice(x, 1, 2, WIDE), ops.slice(y, 1, 0, 2)), 1)
        if kind == 4:
            return ops.maximum(x, ops.full(STATE.shape, self.rng.random(), f32))
        if kind < 7:
            return ops.mul(ops.sub(x, y), 0.5)
        if kind == 7:  # an update, which may be made in place
            at = ops.full((1, WIDE), self.rng.randrange(ROWS), i64)
            return ops.scatter(x, at, ops.slice(y, 0, 0, 1), 0)
        return self.flow(states, matrices, depth - 1)

    def flow(self, states: list[Node], matrices: list[Node], depth: int) -> Node:
        """An operator of control flow, of which one result is taken."""
        kind = self.rng.randrange(3)
        given = self.rng.choices(states, k=self.rng.randint(1, 3))
        captured = self.rng.choices(states, k=self.rng.randint(0, 2))
        captured += self.rng.choices(matrices, k=self.rng.randint(0, 2)) if matrices else []
        if kind == 0:
            predicate = ops.gt(ops.sum(given[0], (0, 1), False), ops.full((), 0.0, f32))
            branches = [self.graph([*given, *captured], 1, depth) for _ in range(2)]
            return outputs_of(ops.cond(predicate, *branches, (*given, *captured)))[0]
        if kind == 1:
            return self.rounds(given, captured, depth)
        return self.scan(given, captured, depth)

    def graph(self, operands: list[Node], results: int, depth: int) -> Graph:
        self.count += 1
        ins = [input(f"v{k}", x.ttype) for k, x in enumerate(operands)]
        states = [x for x in ins if x.ttype == STATE]
        matrices = [x for x in ins if x.ttype == SQUARE]
        for _ in range(self.rng.randint(1, 4)):
            states.append(self.value(states, matrices, depth))
        made = self.rng.choices(states, k=results)
        return Graph(f"g{self.count}", tuple(ins), tuple(made))

    def rounds(self, given: list[Node], captured: list[Node], depth: int) -> Node:
        """A loop that ends after some rounds: it counts them."""
        body = self.graph([*given, *captured], len(given), depth)
        k, last = input("k", TensorType(i64, ())), input("last", TensorType(i64, ()))
        inputs = (k, *body.inputs, last)
        more = Graph("more", inputs, (ops.lt(k, last),))
        step = Graph(body.name, inputs, (ops.add(k, ops.full((), 1, i64)), *body.outputs))
        ends = ops.full((), 0, i64), ops.full((), self.rng.randrange(5), i64)
        found = ops.while_loop(more, step, (ends[0], *given), (*captured, ends[1]))
        return self.rng.choice(outputs_of(found)[1:])

    def scan(self, carried: list[Node], captured: list[Node], depth: int) -> Node:
        length = self.rng.choice([self.length, 1, 4])
        sliced = [
            ops.mul(ops.expand(ops.unsqueeze(x, 0), (length, *STATE.shape)), self.ramp(length))
            for x in self.rng.choices(carried, k=self.rng.randint(0, 2))
        ]
        slices = [input(f"s{k}", STATE) for k in range(len(sliced))]
        stacked = self.rng.randint(0, 2)
        body = self.graph([*carried, *slices, *captured], len(carried) + stacked, depth)
        back = [self.rng.random() < 0.4 for _ in range(len(sliced) + stacked)]
        found = outputs_of(ops.scan(body, carried, sliced, captured, length, back))
        k = self.rng.randrange(len(found))
        return found[k] if k < len(carried) else ops.sum(found[k], (0,), False)

    def ramp(self, length: Dim) -> Node:
        """Another number for each round."""
        steps = ops.cast(ops.iota(length, 1, 1, i64), f32)
        return ops.reshape(ops.div(ops.full((length,), 1.0, f32), steps), (length, 1, 1))


def random_loops(seed: int) -> tuple[Graph, dict[str, int]]:
    """A graph of control flow, some of it within other, and values of its symbols."""
    rng = random.Random(seed)
    symbolic = rng.random() < 0.4
    length: Dim = D.sym("t", 0, 100) if symbolic else rng.randrange(6)
    x, w = arg("x", ROWS, WIDE), weight("w", WIDE, WIDE)
    states, matrices = [x], [w, arg("m", WIDE, WIDE)]
    made = Bodies(rng, length)
    for _ in range(3):
        states.append(made.flow(states, matrices, 2))
    return Graph("loops", (x, *matrices), tuple(states[1:])), {"t": rng.randrange(6)}


def check_seed(seed: int) -> None:
    graph, sizes = random_loops(seed)
    verify(graph)
    assert print_graph(parse_graph(print_graph(graph))) == print_graph(graph)
    args = arrays(graph, sizes, seed)
    with knobs.check.override(True):
        program = compile_graph(graph)
    got = call(program, args, sizes)
    for k, r in enumerate(judge(graph, args, got, sizes)):
        assert r.right, f"seed {seed}: result {k} has an error of {r.error}, {r.allowed} is allowed"


GENERATOR = checked("loops", check_seed)


@pytest.mark.parametrize("seed", drawn(range(60), quick=3))
def test_random_loops(seed: int) -> None:
    check_seed(seed)


def lstm(length: Dim, back: bool = False) -> Graph:
    """One layer, as a user would write it: all products within the loop."""
    rows, inner, wide = 2, 5, 8
    state = TensorType(f32, (rows, wide))
    h, c = input("h", state), input("c", state)
    x = input("x", TensorType(f32, (rows, inner)))
    wx, wh = (
        input("wx", TensorType(f32, (4 * wide, inner))),
        input("wh", TensorType(f32, (4 * wide, wide))),
    )
    product = ops.matmul(x, ops.permute(wx, (1, 0)))
    gates = ops.add(product, ops.matmul(h, ops.permute(wh, (1, 0))))
    i, f, g, o = ops.split(gates, [wide] * 4, 1)
    cell = ops.add(ops.mul(ops.sigmoid(f), c), ops.mul(ops.sigmoid(i), ops.tanh(g)))
    out = ops.mul(ops.sigmoid(o), ops.tanh(cell))
    body = Graph("cell", (h, c, x, wx, wh), (out, cell, out))
    xs = input("xs", TensorType(f32, (length, rows, inner)))
    first = [input(f"s{k}", state) for k in range(2)]
    weights = [weight("wx", 4 * wide, inner), weight("wh", 4 * wide, wide)]
    n = ops.scan(body, first, (xs,), weights, reverse=(back, back))
    return Graph("lstm", (xs, *first, *weights), outputs_of(n))


def arrays(graph: Graph, sizes: dict[str, int], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = [[int(D.evaluate(d, sizes)) for d in n.shape] for n in graph.inputs]
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


def the_scan(graph: Graph) -> tuple[Scan, Node]:
    (n,) = (n for n in graph.nodes() if isinstance(n.op, Scan))
    assert isinstance(n.op, Scan)
    return n.op, n


@pytest.mark.parametrize("back", [False, True])
def test_products_of_slices_are_taken_out_and_weights_packed_once(back: bool) -> None:
    parts = split(lstm(6, back), Options(), targets.get("x86-64-v3"), Log())
    op, _ = the_scan(parts.main)
    products = [x for x in parts.main.nodes() if x.op.name == "matmul"]
    assert [x.shape for x in products] == [(12, 32)]  # of all rounds at once
    assert sum(x.op.name == "matmul" for x in op.body.nodes()) == 1  # of the state
    assert not any(x.op.name in ("relayout", "permute") for x in op.body.nodes())
    assert parts.prologue is not None and len(parts.prologue.outputs) == 2
    assert parts.prologue.outputs[1].op.name == "relayout"


def test_compiling_does_not_grow_with_the_length() -> None:
    """The same kernels, and as many of them, however long the loop is."""
    short, long = (compile_graph(lstm(n)) for n in (3, 700))
    inside = [[k.symbol for k in p.kernels if "matmul" not in k.name] for p in (short, long)]
    assert len(short.kernels) == len(long.kernels) <= 4
    assert sum(k.calls for k in short.kernels) == sum(k.calls for k in long.kernels)
    assert set(inside[0]) == set(inside[1])


def test_a_symbolic_length() -> None:
    graph = lstm(D.sym("t", 0, 5000), back=True)
    program = compile_graph(graph)
    for length in (0, 1, 2, 7, 64):
        sizes = {"t": length}
        args = arrays(graph, sizes, length)
        assert all(r.right for r in judge(graph, args, call(program, args, sizes), sizes))


def test_out_of_the_cache_validated_and_elsewhere(tmp_path: Any) -> None:
    graph = lstm(5)
    with knobs.cache_dir.override(tmp_path):
        first = compile_graph(graph)
        again = compile_graph(graph, Options(validate=True))
    args = arrays(graph, {})
    for p in (first, again):
        assert all(r.right for r in judge(graph, args, call(p, args)))
    arm = targets.get("arm64")
    found = kernels_for(graph, Options(), arm)
    values = {"wx": args[3], "wh": args[4]}
    data = built_elsewhere(graph, arm, values=values)
    assert {k.symbol for k in found} < {k.symbol for k in data.kernels}  # and one that copies
    assert [k.name.split("(")[0] for k in found] == ["contract", "contract", "map"]


def test_values_that_no_round_changes_and_results_that_nothing_reads() -> None:
    a, b, c = (input(x, STATE) for x in "abc")
    s = input("s", STATE)
    body = Graph("body", (a, b, c, s), (ops.add(a, b), b, ops.exp(c), ops.neg(s), ops.exp(s)))
    x, y, z, t = (
        arg("x", ROWS, WIDE),
        arg("y", ROWS, WIDE),
        arg("z", ROWS, WIDE),
        arg("t", 4, ROWS, WIDE),
    )
    found = outputs_of(ops.scan(body, (x, y, z), (t,)))
    graph = Graph("few", (x, y, z, t), (found[0], found[1], found[3]))
    op, n = the_scan(split(graph, Options(), targets.get("arm64"), Log()).main)
    assert op.carried == 1 and len(op.body.outputs) == 2 and len(n.inputs) == 3
    args = arrays(graph, {})
    got = call(compile_graph(graph), args)
    assert all(r.right for r in judge(graph, args, got))


def test_what_is_turned_around_is_gone_through_from_its_end() -> None:
    """A layer that goes back, as users write it: no copy is made of the sequence or the result."""
    c, s = input("c", STATE), input("s", STATE)
    body = Graph("body", (c, s), (ops.tanh(ops.add(c, s)), ops.mul(c, s), ops.sub(c, s)))
    x, t = arg("x", ROWS, WIDE), arg("t", 5, ROWS, WIDE)
    last, one, two = outputs_of(ops.scan(body, (x,), (ops.flip(t, (0,)),)))
    graph = Graph("back", (x, t), (last, ops.flip(one, (0,)), two, ops.flip(two, (0,))))
    main = split(graph, Options(), targets.get("arm64"), Log()).main
    op, n = the_scan(main)
    assert op.reverse == (True, True, False) and n.inputs[1] is t
    assert sum(x.op.name == "flip" for x in main.nodes()) == 1
    args = arrays(graph, {})
    assert all(r.right for r in judge(graph, args, call(compile_graph(graph), args)))


def test_updates_of_carried_values_are_in_place() -> None:
    """A row of a large table in each round: the table is copied once, and there is one of it."""
    table, row = TensorType(f32, (512, WIDE)), TensorType(f32, (1, WIDE))
    c, k, s = input("c", table), input("k", TensorType(i64, ())), input("s", row)
    at = ops.expand(ops.reshape(k, (1, 1)), (1, WIDE))
    seen = ops.mul(ops.sum(c, (0,), True), s)
    body = Graph("body", (c, k, s), (ops.scatter(c, at, seen, 0), ops.add(k, 1), seen))
    x, start, rows = (
        arg("x", 512, WIDE),
        input("start", TensorType(i64, ())),
        arg("rows", 5, 1, WIDE),
    )
    found = outputs_of(ops.scan(body, (x, start), (rows,)))
    graph = Graph("table", (x, start, rows), found)
    program = compile_graph(graph)
    assert program.data.arena_size({}) < 512 * WIDE * 4
    args = [*arrays(Graph("", (x,), ()), {}), np.array(3), *arrays(Graph("", (rows,), ()), {})]
    assert all(r.right for r in judge(graph, args, call(program, args)))
