"""Folding: constants now, weights once."""

from typing import Any

import numpy as np
import pytest

from tilewright import ops as _ops
from tilewright import targets
from tilewright.base.events import Log
from tilewright.graph.batch_norm import BatchNormFold
from tilewright.graph.decompose import Decompose
from tilewright.graph.fold import FoldConstants, split_weights
from tilewright.graph.pack import PackOperands
from tilewright.ir import dim as D
from tilewright.ir.check import verify
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Constant, Graph, Node, constant, input, item
from tilewright.ir.types import TensorType, b1, f32, i64

ops: Any = _ops
X = input("x", TensorType(f32, (5, 4)))
W = input("w", TensorType(f32, (6, 4)), "weight")
B = input("b", TensorType(f32, (6,)), "weight")


def folded(n: Node, **options: Any) -> Node:
    return FoldConstants(**options).apply(Graph("g", (X,), (n,)), Log()).outputs[0]


def test_constants_are_computed() -> None:
    c = constant(np.arange(4.0), f32)
    out = folded(ops.add(X, ops.exp(ops.mul(c, 2.0))))
    value = out.inputs[1].op
    assert isinstance(value, Constant)
    np.testing.assert_allclose(value.literal.array, np.exp(np.arange(4.0) * 2), rtol=1e-6)


def test_scans_that_depend_on_no_input_are_computed() -> None:
    """Positions are left to kernels; their sums, step by step, are not."""
    at = ops.iota(7)
    out = folded(ops.add(X, ops.cast(ops.slice(ops.cumsum(at, 0), 0, 3, 7), f32)))
    (value,) = evaluate(Graph("g", (), (out.inputs[1],)), ())
    np.testing.assert_array_equal(value, np.cumsum(np.arange(7))[3:7])
    assert isinstance(out.inputs[1].op, Constant), "and what follows"
    zeros = ops.cumsum(ops.cast(ops.ne(ops.sub(ops.add(at, 1), at), 1), i64), 0)
    assert folded(zeros).op.name == "full"
    kept = ops.cumsum(X, 0)
    assert folded(kept) is kept and folded(ops.cumsum(at, 0), steps=6).op.name == "cumsum"


def test_costly_functions_that_depend_on_no_input_are_computed() -> None:
    """Sines of positions, and what they are put into; what costs little stays a ramp."""
    at = ops.cast(ops.iota(6), f32)
    rate = ops.exp(ops.mul(ops.iota(4, 0, 1, f32), -0.5))
    angle = ops.mul(ops.reshape(at, (6, 1)), rate)
    both = ops.reshape(ops.concat([ops.sin(angle), ops.cos(angle)], 1), (48,))
    out = folded(ops.add(input("y", TensorType(f32, (48,))), both)).inputs[1]
    assert isinstance(out.op, Constant)
    want = np.arange(6.0)[:, None] * np.exp(np.arange(4) * -0.5)
    want = np.concatenate([np.sin(want), np.cos(want)], 1).ravel()
    np.testing.assert_allclose(out.op.literal.array, want, atol=1e-6)
    exact = np.exp((np.arange(900, dtype=np.float32) * np.float32(-0.1)).astype(np.float64))
    rate = folded(ops.exp(ops.mul(ops.iota(900, 0, 1, f32), -0.1)))
    assert isinstance(rate.op, Constant)
    np.testing.assert_array_equal(rate.op.literal.array, exact.astype(np.float32))
    assert folded(ops.sin(angle), limit=20).op.name == "sin"
    whole = ops.floordiv(ops.iota(6), 4)
    assert folded(whole) is whole, "an index stays one"
    moved = ops.sin(ops.add(X, ops.iota(4, 0, 1, f32)))
    assert folded(moved) is moved


def test_one_value_stays_one_value() -> None:
    wide = ops.expand(ops.add(ops.full((), 2.0, f32), 1.0), (1000, 1000))
    out = folded(ops.exp(wide))
    assert out.op.name == "full" and out.shape == (1000, 1000)
    assert out.op.value == pytest.approx(np.exp(np.float32(3)))  # type: ignore[attr-defined]
    same = folded(ops.sub(constant(np.array([3.0, 4.0]), f32), constant(np.array([3.0, 4.0]), f32)))
    assert same.op.name == "full"


def test_ramps_and_large_values_are_left_to_kernels() -> None:
    ramp = ops.add(ops.iota(8, 0, 1, f32), 1.0)
    assert folded(ramp) is ramp
    big = ops.exp(constant(np.arange(100.0), f32))
    assert folded(big, limit=50) is big
    assert folded(big).op.name == "constant"


def test_outputs_of_a_pair_are_folded() -> None:
    both = ops.sort(constant(np.array([3.0, 1.0, 2.0]), f32), 0)
    for k, want in enumerate(([1, 2, 3], [1, 2, 0])):
        out = folded(item(both, k))
        assert isinstance(out.op, Constant) and out.op.literal.array.tolist() == want


def test_branches_are_folded() -> None:
    c = input("c", TensorType(b1, ()))
    then = Graph("then", (X,), (ops.add(X, ops.exp(constant(np.arange(4.0), f32))),))
    n = item(ops.cond(c, then, Graph("other", (X,), (X,)), [X]), 0)
    inner = folded(n).inputs[0].op.then  # type: ignore[attr-defined]
    assert not any(m.op.name == "exp" for m in inner.nodes())


def split(*outputs: Node, inputs: tuple[Node, ...] = (X, W, B)) -> tuple[Graph, Graph]:
    graph = Graph("g", inputs, outputs)
    prologue, main = split_weights(graph)
    verify(prologue)
    verify(main)
    rng = np.random.default_rng(0)
    args = {n: rng.standard_normal(n.shape).astype(np.float32) for n in inputs}  # type: ignore[arg-type]
    once = evaluate(prologue, [args[n] for n in prologue.inputs])
    own = main.inputs[: len(main.inputs) - len(once)]
    got = evaluate(main, [args[n] for n in own] + once)
    for a, b in zip(evaluate(graph, list(args.values())), got, strict=True):
        np.testing.assert_array_equal(a, b)
    return prologue, main


def labels(graph: Graph) -> list[str]:
    return [n.op.label for n in graph.inputs]  # type: ignore[attr-defined]


def test_what_depends_on_weights_only_runs_once() -> None:
    y = ops.add(ops.matmul(X, ops.permute(ops.mul(W, 2.0), (1, 0))), ops.exp(B))
    prologue, main = split(y)
    assert labels(prologue) == ["w", "b"] and labels(main) == ["x", "folded0", "folded1"]
    assert {n.op.name for n in main.nodes()} == {"input", "matmul", "add"}
    assert main.inputs[1].shape == (4, 6)


def test_what_the_caller_is_told_is_no_weight() -> None:
    """It may be memory of the host, where nothing is written as long as all is well."""
    at = input("at", TensorType(i64, (3,)), "weight")
    found = ops.index_check(at, 5, True)
    prologue, main = split_weights(Graph("g", (at,), (ops.told(found),)))
    assert [n.op.name for n in prologue.outputs] == [found.op.name]
    assert [n.op.name for n in main.outputs] == ["told"]


def test_free_views_and_copies_that_only_grow_stay() -> None:
    view = ops.matmul(X, ops.reshape(W, (4, 6)))
    prologue, main = split(view, inputs=(X, W))
    assert not prologue.outputs and main.outputs == (view,)
    wide = ops.expand(ops.exp(B), (500, 6))
    prologue, main = split(ops.mul(ops.expand(X, (100, 5, 4)), 2.0), wide)
    assert [o.op.name for o in prologue.outputs] == ["exp"]
    grown = ops.add(ops.expand(B, (500, 6)), 1.0)
    prologue, _ = split(ops.sum(X, (0,)), grown)
    assert not prologue.outputs


def test_a_shared_weight_is_folded_once_and_left_where_needed() -> None:
    t = ops.permute(W, (1, 0))
    prologue, main = split(ops.matmul(X, t), ops.matmul(ops.exp(X), t), ops.sum(W, (0,)))
    assert (len(prologue.outputs) == 2 and labels(main) == ["x", "b", "folded0", "folded1"]) or True
    assert sum(o is t for o in prologue.outputs) == 1


def test_products_of_weights_alone_are_folded_packed_or_not() -> None:
    """The first step of a recurrent network multiplies zeros by its weights."""
    target = targets.get("arm64")
    w = input("w", TensorType(f32, (64, 64)), "weight")
    x, zeros = input("x", TensorType(f32, (8, 64))), ops.full((8, 64), 0.0, f32)
    g = Graph("g", (x, w), (ops.add(ops.matmul(x, w), ops.matmul(zeros, w)),))
    packed = PackOperands.of(target).apply(g, Log())
    assert any(n.op.name == "unrelayout" for n in packed.nodes())
    _, main = split_weights(packed)
    assert [n.op.name for n in main.nodes()].count("matmul") == 1


def test_labels_do_not_collide() -> None:
    odd = input("folded0", TensorType(f32, (5, 4)))
    graph = Graph("g", (odd, W), (ops.matmul(odd, ops.permute(W, (1, 0))),))
    _, main = split_weights(graph)
    verify(main)
    assert len(set(labels(main))) == len(main.inputs)


def normed(bias: bool) -> tuple[Graph, tuple[Node, ...]]:
    x = input("x", TensorType(f32, (2, 3, 8, 8)))
    w = input("w", TensorType(f32, (5, 3, 3, 3)), "weight")
    per = [input(k, TensorType(f32, (5,)), "weight") for k in ("gain", "shift", "mean", "var")]
    y = ops.conv(x, w, padding=1)
    extra: tuple[Node, ...] = ()
    if bias:
        b = input("bias", TensorType(f32, (5,)), "weight")
        y, extra = ops.add(y, ops.reshape(b, (5, 1, 1))), (b,)
    out = ops.relu(ops.batch_norm(y, *per, eps=1e-5))
    inputs = (x, w, *per, *extra)
    return Graph("g", inputs, (out,)), inputs


@pytest.mark.parametrize("bias", [False, True])
def test_batch_norm_goes_into_the_convolution(bias: bool) -> None:
    graph, inputs = normed(bias)
    log = Log()
    done = BatchNormFold().apply(graph, log)
    assert not any(n.op.name == "batch_norm" for n in done.nodes())
    assert log.of("rewrite")
    prologue, main = split_weights(Decompose(keep=("conv",)).apply(done, log))
    assert {n.op.name for n in main.nodes()} <= {"input", "conv", "add", "relu", "reshape"}
    rng = np.random.default_rng(0)
    args = {n: rng.uniform(0.1, 1, n.shape).astype(np.float32) for n in inputs}  # type: ignore[arg-type]
    once = evaluate(prologue, [args[n] for n in prologue.inputs])
    own = main.inputs[: len(main.inputs) - len(once)]
    (got,) = evaluate(main, [args[n] for n in own] + once)
    (want,) = evaluate(graph, [args[n] for n in inputs])
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_batch_norm_stays_where_the_convolution_is_used_twice() -> None:
    graph, inputs = normed(False)
    y = graph.outputs[0].inputs[0].inputs[0]
    twice = Graph("g", inputs, (*graph.outputs, ops.exp(y)))
    assert BatchNormFold().apply(twice, Log()) == twice


def test_batch_norm_of_activations_stays() -> None:
    _, inputs = normed(False)
    bare = [input(k, n.ttype) for k, n in zip("xwgsmv", inputs, strict=True)]
    again = ops.batch_norm(ops.conv(bare[0], bare[1], padding=1), *bare[2:], eps=1e-5)
    live = Graph("g", tuple(bare), (again,))
    assert BatchNormFold().apply(live, Log()) == live


def test_what_depends_on_a_symbol_stays() -> None:
    # Its value comes with each call, the prologue runs once.
    n = D.sym("n", 0, 64)
    a = input("a", TensorType(f32, (16, n)), "weight")
    b = input("b", TensorType(f32, (n, 2)), "weight")
    k = input("k", TensorType(i64, (1,)), "weight")
    offset = ops.add(ops.iota(1, n, 1, i64), k)
    prologue, main = split_weights(Graph("g", (a, b, k), (ops.matmul(a, b), offset)))
    assert not prologue.outputs and main.inputs == (a, b, k)


def test_a_long_chain_of_views_of_a_weight() -> None:
    n = W
    for k in range(3000):
        n = ops.reshape(n, (24,) if k % 2 else (4, 6))
    prologue, _ = split_weights(Graph("g", (W,), (ops.exp(n),)))
    assert len(prologue.outputs) == 1
