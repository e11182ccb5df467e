"""Control flow and recurrent layers of ONNX models, beside ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the extra onnx is not installed")
import onnxruntime
from onnx import helper, parser

import tilewright as tw
from tests.seeds import drawn
from tilewright.base.errors import TilewrightError, Unsupported
from tilewright.capture.onnx.model import read
from tilewright.capture.onnx.translate import Translated, translate
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph
from tilewright.ops.control import Cond, Scan, WhileLoop

PROVIDERS = ["CPUExecutionProvider"]


def model(text: str, opset: int = 19) -> Any:
    return parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]> {text}')


def operators(g: Graph) -> list[str]:
    return sorted(n.op.name for n in g.nodes() if isinstance(n.op, (Cond, Scan, WhileLoop)))


def arrays(**given: Any) -> dict[str, np.ndarray]:
    return {k: np.asarray(v) for k, v in given.items()}


X = np.array([[1.5, -2.0, 0.5], [0.25, 3.0, -1.0]], np.float32)

# Models with several arguments each, and the operators of control flow that they become.
FLOWS: dict[str, tuple[str, list[dict[str, np.ndarray]], list[str]]] = {
    "a branch that data decide": (
        """g (float[2,3] x, int64[2] at) => (float[2,3] y) {
            s = ReduceSum<keepdims=0>(x)  zero = Constant<value_float=0.0>()  c = Greater(s, zero)
            y = If(c) <
                then_branch = t () => (float[2,3] a) { e = Exp(x)  a = Gather(e, at) },
                else_branch = e () => (float[2,3] b) { b = Neg(x) }>
        }""",
        [arrays(x=X, at=[1, -1]), arrays(x=-X, at=[0, 0])],
        ["cond"],
    ),
    "a loop that data end": (
        """g (float[2,3] x, float limit) => (float[2,3] y, int64 rounds) {
            yes = Constant<value = bool {1}>()  zero = Constant<value_int=0>()
            y, rounds = Loop("", yes, x, zero) <body = b
                (int64 k, bool c, float[2,3] v, int64 n) => (bool more, float[2,3] w, int64 m) {
                    w = Mul(v, x)  one = Constant<value_int=1>()  m = Add(n, one)
                    t = ReduceSum<keepdims=0>(w)  more = Less(t, limit)
                }>
        }""",
        [arrays(x=X, limit=np.float32(z)) for z in (-1e9, 40.0, 1e5)],
        ["while_loop"],
    ),
    "at most as many rounds as an input says": (
        """g (float[2,3] x, int64 most) => (float[2,3] y) {
            yes = Constant<value = bool {1}>()
            y = Loop(most, yes, x) <body = b
                (int64 k, bool c, float[2,3] v) => (bool c, float[2,3] w) {
                    f = Cast<to=1>(k)  w = Add(v, f)
                }>
        }""",
        [arrays(x=X, most=np.int64(n)) for n in (0, 1, 5)],
        ["while_loop"],
    ),
    "rounds that are stacked": (
        """g (float[2,3] x, float[3,3] w) => (float[2,3] y, float[4,3] sums, int64[4] numbers) {
            four = Constant<value_int=4>()  yes = Constant<value = bool {1}>()
            y, sums, numbers = Loop(four, yes, x) <body = b
                (int64 k, bool c, float[2,3] v) => (bool c, float[2,3] n, float[3] s, int64 i) {
                    p = MatMul(v, w)  n = Tanh(p)  axes = Constant<value_ints=[0]>()
                    s = ReduceSum<keepdims=0>(n, axes)  i = Identity(k)
                }>
        }""",
        [arrays(x=X, w=np.eye(3, dtype=np.float32)[::-1].copy())],
        ["scan"],
    ),
    "rounds that are stacked until data end them": (
        """g (float[3] x, float limit) => (float[3] y, float[n,3] all, int64[n] numbers, float t) {
            s = ReduceSum<keepdims=0>(x)  c = Less(s, limit)  most = Constant<value_int=9>()
            y, all, numbers = Loop(most, c, x) <body = b
                (int64 k, bool c, float[3] v) => (bool more, float[3] w, float[3] o, int64 i) {
                    w = Mul(v, x)  o = Identity(v)  i = Identity(k)
                    a = ReduceSum<keepdims=0>(w)  more = Less(a, limit)
                }>
            e = Exp(all)  t = ReduceSum<keepdims=0>(e)
        }""",
        [arrays(x=np.abs(X[0]), limit=np.float32(z)) for z in (40.0, 1e9, 0.0, 5.0, 300.0)],
        ["scan"],  # the loop that counts is a part by itself
    ),
    "as many stacked rounds as data say": (
        """g (float[3] x) => (float[n,3] y) {
            s = ReduceMax<keepdims=0>(x)  most = Cast<to=7>(s)  yes = Constant<value = bool {1}>()
            v, y = Loop(most, yes, x) <body = b
                (int64 k, bool c, float[3] v) => (bool c, float[3] w, float[3] o) {
                    w = Mul(v, x)  o = Identity(w)
                }>
        }""",
        [arrays(x=X[1]), arrays(x=X[0])],
        ["scan"],
    ),
    "a scan within a scan, from the end, along other axes": (
        """g (float[2,3] x, float[2] s) => (float[2] last, float[2,3] y) {
            last, y = Scan<num_scan_inputs=1, scan_input_axes=[1], scan_input_directions=[1],
                           scan_output_axes=[1], scan_output_directions=[1], body = b
                (float[2] a, float[2] v) => (float[2] n, float[2] o) {
                    zero = Constant<value_float=0.0>()
                    t, parts = Scan<num_scan_inputs=1, body = inner
                        (float u, float e) => (float m, float f) {
                            m = Add(u, e)  f = Mul(m, e)
                        }>(zero, v)
                    q = Mul(parts, a)  r = Add(q, t)  n = Tanh(r)  o = Neg(r)
                }>(s, x)
        }""",
        [arrays(x=X, s=np.array([0.5, -1], np.float32))],
        ["scan"],
    ),
    "a sequence that grows is written out": (
        """g (float[2,3] x) => (float[6,3] y) {
            three = Constant<value_int=3>()  yes = Constant<value = bool {1}>()
            none = SequenceEmpty()
            all = Loop(three, yes, none) <body = b
                (int64 k, bool c, seq(float[2,3]) v) => (bool c, seq(float[2,3]) w) {
                    f = Cast<to=1>(k)  z = Add(x, f)  w = SequenceInsert(v, z)
                }>
            y = ConcatFromSequence<axis=0>(all)
        }""",
        [arrays(x=X)],
        [],
    ),
}


@pytest.mark.parametrize("name", FLOWS)
def test_flow(name: str) -> None:
    text, calls, found = FLOWS[name]
    proto = model(text)
    theirs = onnxruntime.InferenceSession(proto.SerializeToString(), providers=PROVIDERS)
    session = tw.onnx.load(proto.SerializeToString())
    for given in calls:
        got = session.run(None, given)
        want: Any = theirs.run(None, given)
        for a, b in zip(got, want, strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert operators(translate(read(proto.SerializeToString())).graph) == found


def test_as_many_rounds_as_a_size() -> None:
    """A symbolic trip count stays symbolic: one graph for all lengths."""
    proto = model(
        """g (float[N,3] x) => (float[3] y, float[N,3] all) {
            shape = Shape<start=0, end=1>(x)  n = Squeeze(shape)
            yes = Constant<value = bool {1}>()  zero = Constant<value_floats=[0.0,0.0,0.0]>()
            y, all = Loop(n, yes, zero) <body = b
                (int64 k, bool c, float[3] v) => (bool c, float[3] w, float[3] o) {
                    row = Gather<axis=0>(x, k)  w = Add(v, row)  o = Identity(w)
                }>
        }"""
    )
    session = tw.onnx.load(proto.SerializeToString())
    for n in (1, 2, 7):
        x = np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32)
        last, every = session.run(None, {"x": x})
        np.testing.assert_allclose(every, x.cumsum(0), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(last, x.sum(0), rtol=1e-5, atol=1e-5)
    graph = translate(read(proto.SerializeToString())).graph
    assert operators(graph) == ["scan"]


def test_an_index_that_is_out_of_range_in_one_round() -> None:
    proto = model(
        """g (float[2,3] x, int64[4] at) => (float[4,3] y) {
            y = Scan<num_scan_inputs=1, body = b
                (int64 i) => (float[3] o) { o = Gather<axis=0>(x, i) }>(at)
        }"""
    )
    session = tw.onnx.load(proto.SerializeToString())
    good = np.array([0, 1, -1, -2])
    np.testing.assert_array_equal(session.run(None, {"x": X, "at": good})[0], X[good])
    with pytest.raises(TilewrightError, match="index 5 is outside of an axis of 2"):
        session.run(None, {"x": X, "at": np.array([0, 5, 1, 0])})


REFUSED = {
    "the branches give .*f32.3.* and": """g (float[3] x) => (float[n] y) {
        s = ReduceSum<keepdims=0>(x)  zero = Constant<value_float=0.0>()  c = Greater(s, zero)
        y = If(c) <
            then_branch = t () => (float[3] a) { a = Exp(x) },
            else_branch = e () => (float[6] b) { b = Concat<axis=0>(x, x) }>
    }""",
    "a round makes .* of": """g (float[3] x, float z) => (float[n] y) {
        zero = Constant<value_float=0.0>()  c = Greater(z, zero)
        y = Loop("", c, x) <body = b
            (int64 k, bool c, float[3] v) => (bool c, float[n] w) { w = Concat<axis=0>(v, v) }>
    }""",
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_has_no_native_form_is_refused_by_name(why: str) -> None:
    with pytest.raises(Unsupported, match=why) as error:
        translate(read(model(REFUSED[why]).SerializeToString()))
    assert "node" in str(error.value)


# ---- recurrent layers

SCALED = ["Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu"]
PLAIN = ["Relu", "Tanh", "Sigmoid", "Softsign", "Softplus"]
GATES = {"RNN": (1, 1), "GRU": (3, 2), "LSTM": (4, 3)}  # gates, functions


def random_layer(seed: int) -> tuple[Any, dict[str, np.ndarray]]:
    """A layer with random attributes, operands left out, and lengths of sequences."""
    rng = np.random.default_rng(seed)
    kind = ["RNN", "GRU", "LSTM"][seed % 3]
    direction = str(rng.choice(["forward", "reverse", "bidirectional"]))
    d = 2 if direction == "bidirectional" else 1
    gates, functions = GATES[kind]
    length, batch, width, hidden = 4, 3, 2, 5
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if rng.random() < 0.5:
        attributes["clip"] = float(np.float32(rng.uniform(0.2, 1.0)))
    if rng.random() < 0.5:
        attributes["activations"] = [str(x) for x in rng.choice(PLAIN, functions * d)]
    if kind == "GRU":
        attributes["linear_before_reset"] = int(rng.integers(2))
    if kind == "LSTM" and "activations" not in attributes:
        attributes["input_forget"] = int(rng.integers(2))
    shapes = {
        "X": (length, batch, width),
        "W": (d, gates * hidden, width),
        "R": (d, gates * hidden, hidden),
        "B": (d, 2 * gates * hidden),
        "L": (batch,),
        "H": (d, batch, hidden),
        "C": (d, batch, hidden),
        "P": (d, 3 * hidden),
    }
    taken = ["X", "W", "R", "B", "L", "H", *(["C", "P"] if kind == "LSTM" else [])]
    names = [x if k < 3 or rng.random() < 0.6 else "" for k, x in enumerate(taken)]
    given: dict[str, np.ndarray] = {}
    for x in filter(None, names):
        given[x] = rng.uniform(-1, 1, shapes[x]).astype(np.float32)
    if "L" in given:
        given["L"] = rng.integers(1, length + 1, batch).astype(np.int32)
    outputs = ["Y", "Y_h", "Y_c"][: 3 if kind == "LSTM" else 2]
    node = helper.make_node(kind, names, outputs, **attributes)
    info = helper.make_tensor_value_info
    element = {x: 6 if x == "L" else 1 for x in given}
    ins = [info(x, element[x], shapes[x]) for x in given]
    outs = [info(x, 1, [f"{x}{k}" for k in range(4 if x == "Y" else 3)]) for x in outputs]
    graph = helper.make_graph([node], "g", ins, outs)
    opset = helper.make_opsetid("", 14)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8), given


def interpreted(made: Translated, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    weights = [value() for value in made.weights.values()]
    return evaluate(made.graph, [*weights, *given.values()])


@pytest.mark.parametrize("seed", drawn(range(60), quick=9))
def test_layers_as_onnx_runtime_has_them(seed: int) -> None:
    proto, given = random_layer(seed)
    data = proto.SerializeToString()
    want: Any = onnxruntime.InferenceSession(data, providers=PROVIDERS).run(None, given)
    got = interpreted(translate(read(data)), given)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SCALED)
def test_activations_with_numbers(name: str) -> None:
    """Their numbers are consumed in the order of the functions that take any."""
    two = name in ("Affine", "ScaledTanh", "HardSigmoid")
    proto, given = random_layer(0)
    node = proto.graph.node[0]
    del node.attribute[:]
    d = given["W"].shape[0]
    attributes = {
        "hidden_size": 5,
        "direction": "bidirectional" if d == 2 else "forward",
        "activations": ["Tanh", name][:d] if d == 2 else [name],
        "activation_alpha": [0.375],
        "activation_beta": [0.125] if two else [],
    }
    node.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items() if v != [])
    x, h = given["X"], np.zeros((3, 5), np.float32)
    k = d - 1
    weights = [given[n][k].astype(np.float64) for n in ("W", "R")]
    bias = given["B"][k].reshape(2, 5).sum(0) if "B" in given else 0.0
    h = given["H"][k].astype(np.float64) if "H" in given else h.astype(np.float64)
    lengths = given.get("L", np.full(3, 4))
    a, b = 0.375, 0.125
    f = {
        "Affine": lambda z: a * z + b,
        "LeakyRelu": lambda z: np.where(z < 0, a * z, z),
        "ThresholdedRelu": lambda z: np.where(z > a, z, 0),
        "ScaledTanh": lambda z: a * np.tanh(b * z),
        "HardSigmoid": lambda z: np.clip(a * z + b, 0, 1),
        "Elu": lambda z: np.where(z < 0, a * np.expm1(z), z),
    }[name]
    for t in range(4)[:: -1 if d == 2 else 1]:
        new = f(x[t] @ weights[0].T + h @ weights[1].T + bias)
        h = np.where((t < lengths)[:, None], new, h)
    got = interpreted(translate(read(proto.SerializeToString())), given)
    np.testing.assert_allclose(got[1][k], h, rtol=1e-4, atol=1e-5)
