"""Decompose and specialise: down to primitive operators; a symbolic graph for given sizes."""

from typing import Any

import numpy as np
import pytest

from tilewright import ops as _ops
from tilewright.base.errors import Invalid
from tilewright.base.events import Log
from tilewright.graph.decompose import Decompose
from tilewright.graph.specialise import specialise
from tilewright.ir import dim as D
from tilewright.ir.check import verify
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Place, input, item
from tilewright.ir.operator import OPERATORS, is_composed, outputs_of, sample_node
from tilewright.ir.types import TensorType, b1, f32

ops: Any = _ops
A = input("a", TensorType(f32, (4, 6)))
COMPOSED = sorted(n for n, c in OPERATORS.items() if hasattr(c, "compose"))


@pytest.mark.parametrize("name", COMPOSED)
def test_every_composed_operator_becomes_primitive(name: str) -> None:
    for s in list(OPERATORS[name].samples())[:3]:  # type: ignore[attr-defined]
        n = sample_node(s)
        graph = Graph(name, n.inputs, outputs_of(n))
        done = Decompose().apply(graph, Log())
        verify(done)
        assert not any(is_composed(x.op) for x in done.nodes())
        args = [np.asarray(a) for a in s.args]
        for a, b in zip(evaluate(graph, args), evaluate(done, args), strict=True):
            np.testing.assert_array_equal(a, b)


def test_some_may_be_left_whole() -> None:
    graph = Graph("g", (A,), (ops.softmax(A, 1), ops.var(A, (1,))))
    done = Decompose(keep=("softmax",)).apply(graph, Log())
    names = {n.op.name for n in done.nodes()}
    assert "softmax" in names and "var" not in names


def test_places_follow() -> None:
    n = ops.softmax(A, 1)
    p = frozenset({Place("model.py", 4)})
    done = Decompose().apply(Graph("g", (A,), (n,), {n: p}), Log())
    made = [x for x in done.nodes() if x is not A]
    assert made and all(done.places[x] == p for x in made)


def test_branches_are_decomposed() -> None:
    c = input("c", TensorType(b1, ()))
    then = Graph("then", (A,), (ops.softmax(A, 1),))
    n = item(ops.cond(c, then, Graph("other", (A,), (A,)), [A]), 0)
    (out,) = Decompose().apply(Graph("g", (c, A), (n,)), Log()).outputs
    inner = out.inputs[0].op.then  # type: ignore[attr-defined]
    assert not any(is_composed(x.op) for x in inner.nodes())


# ---- specialise

N = D.sym("n", 1, 64, 4)
X = input("x", TensorType(f32, (N, 6)))


def symbolic() -> Graph:
    y = ops.reshape(ops.softmax(ops.mul(X, 2.0), 1), (D.floordiv(N, 2), 12))
    z = ops.slice(ops.concat([X, ops.exp(X)], 0), 0, N, 2 * N)
    return Graph("g", (X,), (y, z), {z: frozenset({Place("m.py", 1)})})


def test_sizes_are_put_in() -> None:
    graph = symbolic()
    small = specialise(graph, {"n": 8, "unused": 3})
    verify(small)
    assert small.inputs[0].shape == (8, 6) and [o.shape for o in small.outputs] == [(4, 12), (8, 6)]
    assert all(t.is_static for n in small.nodes() for t in [n.ttype])
    assert small.places
    x = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    for a, b in zip(evaluate(graph, [x]), evaluate(small, [x]), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_static_graph_is_itself() -> None:
    graph = Graph("g", (A,), (ops.neg(A),))
    assert specialise(graph, {"n": 8}) is graph


def test_branches_are_specialised() -> None:
    c = input("c", TensorType(b1, ()))
    branch = Graph("then", (X,), (ops.neg(X),))
    n = item(ops.cond(c, branch, Graph("other", (X,), (X,)), [X]), 0)
    small = specialise(Graph("g", (c, X), (n,)), {"n": 4})
    verify(small)
    assert small.outputs[0].shape == (4, 6)


@pytest.mark.parametrize(("size", "says"), [(65, "outside 1..64"), (7, "not a multiple of 4")])
def test_sizes_outside_the_range_are_refused(size: int, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        specialise(symbolic(), {"n": size})
