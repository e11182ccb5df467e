"""What a search finds by mined rules alone, and that it is right."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.seeds import every_run
from tilewright import ops, targets
from tilewright.base.errors import Invalid, Unsupported
from tilewright.base.events import Log
from tilewright.driver.cli import main
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Input, Node, input, topological
from tilewright.ir.passes import parse_passes
from tilewright.ir.pattern import make
from tilewright.ir.positions import static
from tilewright.ir.text import print_graph
from tilewright.ir.types import TensorType, f32
from tilewright.superopt import search as searches
from tilewright.superopt.classes import Because, Classes
from tilewright.superopt.records import Record, proved
from tilewright.superopt.saturate import Budget
from tilewright.superopt.search import (
    WAYS,
    Found,
    mined_rules,
    search,
    searched_merges,
    searched_orders,
    searched_rules,
)
from tilewright.superopt.search_pass import Search
from tilewright.superopt.seconds import Seconds, constant_classes, described

BUDGET = Budget(seconds=30.0, members=2_000, rounds=8)


def tensor(name: str, *shape: int) -> Node:
    return input(name, TensorType(f32, shape))


def weight(name: str, *shape: int) -> Node:
    return input(name, TensorType(f32, shape), "weight")


def low_rank() -> Node:
    x = tensor("x", 2, 64, 128)
    low = ops.matmul(ops.matmul(x, weight("a", 128, 8)), weight("b", 8, 128))
    half = ops.full((), 0.5, f32)
    return ops.add(ops.matmul(x, weight("w", 128, 128)), ops.mul(low, half))


def low_rank_with_bias() -> Node:
    """As layers of torch have it: the bias is added before the product of low rank is."""
    x = tensor("x", 2, 64, 128)
    wide = ops.add(ops.matmul(x, weight("w", 128, 128)), weight("c", 128))
    low = ops.matmul(ops.matmul(x, weight("a", 128, 8)), weight("b", 8, 128))
    return ops.add(wide, ops.mul(low, ops.full((), 0.5, f32)))


def linear_attention() -> Node:
    q, k, v = (tensor(x, 4, 256, 32) for x in "qkv")
    return ops.matmul(ops.matmul(q, ops.permute(k, (0, 2, 1))), v)


def scaled_inside() -> Node:
    """As norms have it: each element that a product sums over has a scale of its own."""
    x = ops.mul(tensor("x", 2, 64, 128), weight("g", 128))
    return ops.matmul(x, weight("w", 128, 128))


def in_rows() -> Node:
    """A product of all rows, and one of the same tensor as it is."""
    x = tensor("x", 2, 64, 128)
    rows = ops.matmul(ops.reshape(x, (128, 128)), weight("v", 128, 32))
    return ops.concat([ops.reshape(rows, (2, 64, 32)), ops.matmul(x, weight("w", 128, 32))], 2)


def chain() -> Node:
    x = tensor("x", 2, 64, 128)
    for k in range(4):
        x = ops.matmul(x, weight(f"w{k}", 128, 128))
    return x


def gates() -> Node:
    """Three products of one tensor, whose results go on alone."""
    x = tensor("x", 64, 128)
    a, b, c = (ops.matmul(x, weight(n, 128, 64)) for n in "abc")
    return ops.mul(ops.relu(a), ops.add(b, ops.relu(c)))


def transposed() -> Node:
    x, w = tensor("x", 96, 64), tensor("w", 48, 96)
    turned = ops.matmul(ops.permute(x, (1, 0)), ops.permute(w, (1, 0)))
    return ops.relu(ops.permute(turned, (1, 0)))


def scaled() -> Node:
    x, two = tensor("x", 64, 64), ops.full((), 2.0, f32)
    y = ops.matmul(ops.mul(x, two), weight("w", 64, 64))
    return ops.mul(y, two)


def beside() -> Node:
    """Convolutions of one image that are put together, as in modules of Inception."""
    x = tensor("x", 1, 8, 9, 9)
    parts = [convolved(x, weight(f"w{k}", 4 + k, 8, 1, 1), 0, 1) for k in range(3)]
    return ops.concat(parts, 1)


def strided() -> Node:
    """Two convolutions of one image that step by two, whose results go on alone."""
    x = tensor("x", 2, 8, 9, 9)
    a, b = (convolved(x, weight(n, 16, 8, 5, 5), 2, 2) for n in "ab")
    return ops.mul(ops.relu(a), ops.relu(b))


def branches() -> Node:
    """A block of RepVGG: filters of 3x3 and of 1x1 of one image, added up."""
    x = tensor("x", 1, 8, 9, 9)
    wide, small = weight("w", 8, 8, 3, 3), weight("v", 8, 8, 1, 1)
    return ops.relu(ops.add(convolved(x, wide, 1, 1), convolved(x, small, 0, 1)))


def branches_in_groups() -> Node:
    """The same, of which each filter sees a part of the channels."""
    x = tensor("x", 1, 8, 9, 9)
    wide, small = weight("w", 8, 2, 3, 3), weight("v", 8, 2, 1, 1)
    one, other = ops.conv(x, wide, padding=1, groups=4), ops.conv(x, small, groups=4)
    return ops.relu(ops.add(one, other))


def among_others() -> Node:
    """Of the parts that are put together, three neighbours are convolutions of one image."""
    x, y = tensor("x", 1, 8, 9, 9), tensor("y", 1, 8, 9, 9)
    parts = [convolved(x, weight(f"w{k}", 4, 8, 3, 3), 1, 1) for k in range(3)]
    return ops.concat([ops.sin(y), *parts, ops.cos(y)], 1)


def activated() -> Node:
    """Convolutions with activations, put together: these move first."""
    x = tensor("x", 1, 8, 9, 9)
    parts = (convolved(x, weight(f"w{k}", 4, 8, 3, 3), 1, 1) for k in range(4))
    return ops.concat([ops.relu(y) for y in parts], 1)


def heads() -> Node:
    """Queries, keys and values of one tensor, with biases, and attention."""
    x = tensor("x", 2, 16, 64)
    q, k, v = (ops.add(ops.matmul(x, weight(f"w{n}", 64, 64)), weight(n, 64)) for n in "qkv")
    found = ops.softmax(ops.matmul(q, ops.permute(k, (0, 2, 1))), 2)
    return ops.matmul(found, v)


def in_parallel() -> Node:
    """Convolutions of 1x1 of one image, whose results go on alone."""
    x = tensor("x", 1, 16, 9, 9)
    a, b, c, d = (convolved(x, weight(n, 8, 16, 1, 1), 0, 1) for n in "abcd")
    return ops.add(ops.mul(ops.sin(a), ops.sin(b)), ops.mul(ops.sin(c), ops.sin(d)))


def normalised() -> Node:
    """A convolution and a normalisation by given statistics."""
    y = convolved(tensor("x", 1, 8, 9, 9), weight("w", 8, 8, 3, 3), 1, 1)
    gain, shift, mean = (weight(n, 8) for n in ("gain", "shift", "mean"))
    return ops.batch_norm(y, gain, shift, mean, ops.exp(weight("var", 8)))


def convolved(x: Node, w: Node, padding: int, stride: int) -> Node:
    return make("conv", x, w, stride=(stride,) * 2, padding=(padding,) * 2, dilation=(1, 1))


def graph_of(root: Node) -> Graph:
    ins = tuple(n for n in topological((root,)) if isinstance(n.op, Input))
    return Graph("f", ins, (root,))


def at_run_time(g: Graph) -> Counter[str]:
    """Operators that are not computed once from weights."""
    classes = Classes(g.outputs)
    known = constant_classes(classes)
    return Counter(n.op.name for n in g.nodes() if n not in known and n.inputs)


CASES: dict[Callable[[], Node], dict[str, int]] = {
    low_rank: {"matmul": 1},
    low_rank_with_bias: {"matmul": 1, "add": 1},
    linear_attention: {"matmul": 2, "permute": 1},
    chain: {"matmul": 1},
    gates: {"matmul": 1, "slice": 3, "relu": 2, "mul": 1, "add": 1},
    transposed: {"matmul": 1, "relu": 1},
    scaled: {"matmul": 1},
    scaled_inside: {"matmul": 1},
    in_rows: {"matmul": 1},
    beside: {"conv": 1},
    strided: {"conv": 1, "slice": 2, "relu": 2, "mul": 1},
    branches_in_groups: {"conv": 1, "relu": 1},
    branches: {"conv": 1, "relu": 1},
    among_others: {"conv": 1, "sin": 1, "cos": 1, "concat": 1},
    activated: {"conv": 1, "relu": 1},
    heads: {"matmul": 3, "slice": 3, "add": 3, "permute": 1, "softmax": 1},
    in_parallel: {"conv": 1, "slice": 4, "sin": 4, "mul": 2, "add": 1},
    normalised: {"conv": 1, "add": 1},
}


QUEUE = replace(BUDGET, graphs=60, worse=2.0)
# The way there leads over graphs that cost more than a queue keeps, or over too many.
NOT_BY_QUEUE = {low_rank, low_rank_with_bias}
# Which graphs a queue keeps depends on what they cost, so that is one machine's everywhere.
QUEUED_FOR = targets.get("arm64")


def assert_same(graph: Graph, made: Graph) -> None:
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(static(n.shape)).astype(np.float64) for n in graph.inputs]
    for a, b in zip(evaluate(graph, args), evaluate(made, args), strict=True):
        assert np.abs(a - b).max() <= 1e-5 * np.abs(a).max()


def assert_right(found: Found) -> None:
    """Both graphs give the same, and are equal by what the proof says and by nothing else."""
    graph = found.given
    assert_same(graph, found.graph)
    classes = Classes((*graph.outputs, *found.graph.outputs))
    known = {r.label for r in (*searched_rules(), *searched_orders().values())}
    known |= {m.name for m in searched_merges()}
    for step in found.proof:
        assert step.rule in known
        classes.add(step.before), classes.add(step.after)
        classes.join(step.before, step.after, Because(step.rule))
        classes.settle()
    for a, b in zip(graph.outputs, found.graph.outputs, strict=True):
        assert classes.leader(a) is classes.leader(b)


@pytest.mark.parametrize("build", CASES, ids=lambda f: f.__name__)
def test_found(build: Callable[[], Node]) -> None:
    found = search(graph_of(build()), targets.default(), BUDGET)
    assert dict(at_run_time(found.graph)) == CASES[build]
    assert found.after < found.before and found.best
    assert_right(found)


@every_run(1, 3, 7, 10, 13, 16)
@pytest.mark.parametrize("build", CASES, ids=lambda f: f.__name__)
def test_found_by_a_queue(build: Callable[[], Node]) -> None:
    found = search(graph_of(build()), QUEUED_FOR, QUEUE, by="queue")
    assert (dict(at_run_time(found.graph)) == CASES[build]) == (build not in NOT_BY_QUEUE)
    assert found.after < found.before
    assert_right(found)


def test_a_queue_leaves_out_what_is_clearly_worse() -> None:
    """Filters of 1x1 with zeros around them cost more, before they are added to others."""
    narrow = replace(QUEUE, worse=1.05)
    found = search(graph_of(branches()), QUEUED_FOR, narrow, by="queue")
    assert found.graph is found.given and found.ended == "nothing left"


@pytest.mark.parametrize(
    ("budget", "ended"),
    [
        (replace(QUEUE, graphs=2), "graphs"),
        (replace(QUEUE, members=3), "members"),
        (replace(QUEUE, seconds=0), "seconds"),
    ],
)
def test_budgets_end_a_queue(budget: Budget, ended: str) -> None:
    assert search(graph_of(gates()), targets.default(), budget, by="queue").ended == ended


def test_rotary_tables_are_computed_once() -> None:
    """Halves of a tensor are turned by angles, which depend on positions alone."""
    x, rates = tensor("x", 2, 4, 16, 32), weight("rates", 1, 16)
    places = ops.reshape(ops.cast(ops.iota(16), f32), (16, 1))
    half = ops.matmul(places, rates)
    angles = ops.concat([half, half], 1)
    turned = ops.concat([ops.neg(ops.slice(x, 3, 16, 32)), ops.slice(x, 3, 0, 16)], 3)
    root = ops.add(ops.mul(x, ops.cos(angles)), ops.mul(turned, ops.sin(angles)))
    found = search(graph_of(root), targets.default(), BUDGET)
    assert not {"cos", "sin", "matmul", "cast"} & set(at_run_time(found.graph))
    assert_right(found)


def test_the_rules_that_come_with_the_compiler() -> None:
    assert len(mined_rules()) > 40 and len(searched_rules()) > 100
    assert {(m.operator, m.at) for m in searched_merges()} == {
        (name, at) for name in ("matmul", "conv") for at in (0, 1)
    }


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2, 3))]
)
def test_rules_are_proved_again(first: int) -> None:
    """Whatever their records say: provers and operators may have changed."""
    for name, e in list(mined_rules().items())[first::4]:
        assert isinstance(proved(e), Record), name


def test_proofs_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    (name,) = (n for n, e in mined_rules().items() if str(e).startswith("matmul(matmul("))
    assert main(["prove", name]) == 0
    said = capsys.readouterr().out
    assert "of w1[i0,Σ0] · w2[Σ0,Σ1] · w3[Σ1,i1]" in said and "1 proved" in said
    assert (
        main(["prove", "div-into-matmul"]) == 0 and "div(1 ; 1 s[0,i2])" in capsys.readouterr().out
    )
    assert main(["prove", "nonsense"]) == 2


@pytest.mark.parametrize("by", WAYS)
def test_a_search_is_repeatable(by: str) -> None:
    graph = graph_of(activated())
    found = [search(graph, targets.default(), QUEUE, by=by) for _ in range(2)]
    assert found[0] == found[1]


def all_found() -> str:
    """Graphs, operators to be measured, and proofs, as text."""
    found = [search(graph_of(activated()), targets.default(), QUEUE, by=by) for by in WAYS]
    return "\n".join(f"{print_graph(f.graph)} {[*f.operators()]} {f.proof}" for f in found)


@pytest.mark.slow
def test_a_search_finds_the_same_in_another_process() -> None:
    """Where nodes have other addresses and strings other hashes."""
    code = f"from {__name__} import all_found; print(all_found())"
    given, env = [sys.executable, "-c", code], {**os.environ, "PYTHONHASHSEED": "5"}
    out = subprocess.run(given, env=env, capture_output=True, text=True, check=True).stdout
    assert "conv" in out and out.strip() == all_found()


def test_a_pass_of_the_compiler() -> None:
    """`Search` in a list of passes; without a machine there is nothing to compare."""
    graph = graph_of(low_rank())
    (made,) = parse_passes("Search{seconds=5}")
    assert str(made) == "Search{seconds=5}"
    graph = made.on(targets.default()).apply(graph, Log())
    assert dict(at_run_time(graph)) == {"matmul": 1}
    with pytest.raises(Invalid, match="no target is known"):
        Search().apply(graph, Log())


def test_estimates_are_scaled_by_what_was_measured() -> None:
    """Where products take three times the estimate, so do others that were not measured."""
    graph = graph_of(gates())
    constant = constant_classes(Classes(graph.outputs))
    plain = Seconds(targets.default(), constant)
    product = next(n for n in graph.nodes() if n.op.name == "matmul")
    other = ops.matmul(tensor("x", 64, 128), tensor("y", 128, 7))
    measured = {described(product, constant): 3 * plain(product)}
    cost = Seconds(targets.default(), constant, measured).scaled(graph.nodes())
    assert cost(product) == pytest.approx(3 * plain(product), rel=1e-3)
    assert cost(other) == pytest.approx(3 * plain(other), rel=1e-3)
    nothing = {described(product, constant): 0.0}  # a clock that is wrong
    assert Seconds(targets.default(), constant, nothing)(product) == plain(product) / 4


def test_the_way_is_an_option() -> None:
    graph = graph_of(gates())
    (made,) = parse_passes('Search{by="queue"}')
    assert dict(at_run_time(made.on(targets.default()).apply(graph, Log()))) == CASES[gates]
    with pytest.raises(Invalid, match="by of Search is one of 'saturation', 'queue'"):
        Search(by="nothing")


def test_a_clock_that_ends_a_search_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for table in ("_found", "_equal"):
        monkeypatch.setattr(searches, table, {})  # nothing was searched before
    log = Log()
    Search(seconds=0).on(targets.default()).apply(graph_of(gates()), log)
    assert any("0 seconds ended the search of 1 of 1 pieces" in e.message for e in log.events)
    log = Log()
    Search().on(targets.default()).apply(graph_of(gates()), log)
    assert not any("ended the search" in e.message for e in log.events)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver is needed to choose among all graphs; a queue needs none."""
    monkeypatch.setitem(sys.modules, "highspy", None)
    monkeypatch.setattr(searches, "_found", {})  # nothing was searched before
    graph = graph_of(gates())
    with pytest.raises(Unsupported, match="highspy") as raised:
        Search().on(targets.default()).apply(graph, Log())
    assert raised.value.hint is not None and "tilewright[superopt]" in raised.value.hint
    Search(by="queue").on(targets.default()).apply(graph, Log())
