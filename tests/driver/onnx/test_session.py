"""Sessions of ONNX models: what they compute, what they are made for, and what they refuse."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the extra onnx is not installed")
from onnx import helper, parser
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.base.errors import Invalid, MissingExtra
from tilewright.driver.onnx.session import Session


def session(head: str, body: str, opset: int = 18, **settings: Any) -> Session:
    start = f'<ir_version: 8, opset_import: ["" : {opset}]> g {head}'
    made = parser.parse_model(f"{start} {{ {body} }}")
    return tw.onnx.load(made.SerializeToString(), **settings)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_habits_of_a_session(tmp_path: Path) -> None:
    made = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[N, 3] x, float[3] b) => '
        "(float[N, 3] y, float[N, 3] z) { y = Add(x, b)\n z = Relu(y) }"
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(made.SerializeToString())
    s = tw.onnx.load(path)
    assert [(a.name, a.type, a.shape) for a in s.get_inputs()] == [
        ("x", "tensor(float)", ["N", 3]),
        ("b", "tensor(float)", [3]),
    ]
    assert [a.name for a in s.get_outputs()] == ["y", "z"]
    x, b = floats(4, 3), floats(3)
    y, z = s.run(None, {"x": x, "b": b})
    np.testing.assert_allclose(y, x + b)
    np.testing.assert_allclose(z, np.maximum(x + b, 0))
    (only,) = s.run(["z"], {"b": b, "x": x})
    np.testing.assert_array_equal(only, z)
    np.testing.assert_array_equal(s(x, b)[1], z)
    np.testing.assert_array_equal(s(x, b=b)[1], z)
    assert "nothing broke" in str(tw.explain(s)) and tw.explain(s).kernels


@pytest.mark.parametrize("more", ["", "ceil_mode = 1", "pads = [1, 0, 1, 1]", "dilations = [2, 1]"])
def test_pools(more: str) -> None:
    """As ONNX's own evaluator says. The slice of its suite has none: those take seconds to make."""
    sizes = ", ".join(["kernel_shape = [3, 2], strides = [2, 2]", *([more] if more else [])])
    body = f"y = AveragePool <{sizes}> (x)\n z = MaxPool <{sizes}> (x)"
    head = "(float[1, 2, 8, 7] x) => (float[N, C, H, W] y, float[N, C, H, W] z)"
    start = f'<ir_version: 8, opset_import: ["" : 19]> g {head}'
    made = parser.parse_model(f"{start} {{ {body} }}")
    x = floats(1, 2, 8, 7)
    wanted: Any = ReferenceEvaluator(made).run(None, {"x": x})
    for got, right in zip(session(head, body, 19)(x), wanted, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-6)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "tilewright.onnx")
    with pytest.raises(MissingExtra, match="reading ONNX models") as error:
        import_module("tilewright.onnx")
    assert "tilewright[onnx]" in str(error.value)


def test_sequences_and_optionals() -> None:
    from onnx import helper as h

    tensor = h.make_tensor_type_proto(1, ["N"])
    sequence = h.make_sequence_type_proto(tensor)
    graph = h.make_graph(
        [
            h.make_node("ConcatFromSequence", ["s"], ["y"], axis=0),
            h.make_node("SequenceInsert", ["s", "y"], ["t"]),
            h.make_node("OptionalHasElement", ["o"], ["has"]),
        ],
        "g",
        [
            h.make_value_info("s", sequence),
            h.make_value_info("o", h.make_optional_type_proto(tensor)),
        ],
        [
            h.make_value_info("y", tensor),
            h.make_value_info("t", sequence),
            h.make_tensor_value_info("has", 9, []),
        ],
    )
    made = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)])
    s = tw.onnx.load(made.SerializeToString())
    a, b = floats(2), floats(3)
    for o in (None, a):
        y, t, has = s.run(None, {"s": [a, b], "o": o})
        np.testing.assert_array_equal(y, np.concatenate([a, b]))
        assert [v.shape for v in t] == [(2,), (3,), (5,)]
        assert bool(has) == (o is not None)
    assert s.run(["y"], {"s": [b], "o": None})[0].shape == (3,)
    assert s.run(["y"], {"s": [a], "o": None})[0].shape == (2,)  # of another size
    with pytest.raises(Invalid, match="is a sequence: give a list"):
        s.run(None, {"s": a, "o": None})


def test_symbolic_sizes_are_one_program() -> None:
    body = "s = Shape(x)\n n = Gather<axis=0>(s, k)\n m = Mul(n, three)\n y = Reshape(x, m)"
    head = "(float[N, 3] x) => (float[M] y) <int64 k = {0}, int64[1] three = {3}>"  # sizes computed
    s = session(head, body)
    assert len(s.programs) == 1 and s.specialised == [{}]
    for n in (1, 4, 17):
        x = floats(n, 3)
        np.testing.assert_array_equal(s(x), x.reshape(-1))
    assert len(s.programs) == 1
    np.testing.assert_array_equal(s(floats(0, 3)), floats(0))


def test_sizes_that_do_not_fit() -> None:
    """What cannot be decided of symbols is decided of numbers."""
    s = session("(float[N] x, float[M] z) => (float[K] y)", "y = Add(x, z)")
    assert s.programs == []
    for n, m in ((3, 3), (1, 4), (4, 1)):
        x, z = floats(n), floats(m)
        np.testing.assert_array_equal(s(x, z), x + z)
    with pytest.raises(Invalid, match="do not broadcast"):
        s(floats(3), floats(4))
    s = session("(float[N, 3] x) => (float[2, 6] y) <int64[2] k = {2, 6}>", "y = Reshape(x, k)")
    np.testing.assert_array_equal(s(floats(4, 3)), floats(4, 3).reshape(2, 6))
    with pytest.raises(Invalid, match="reshape"):
        s(floats(5, 3))


def test_a_symbolic_bound_of_a_slice() -> None:
    body = "s = Shape<start=1>(x)\n p = Slice(table, zero, s)\n y = Add(x, p)"  # positions so far
    head = (
        "(float[B, T] x) => (float[B, T] y) <float[5] table = {1, 2, 3, 4, 5}, int64[1] zero = {0}>"
    )
    s = session(head, body)
    assert s.specialised == [{}]
    for t in (1, 3, 5):
        x = floats(2, t)
        np.testing.assert_array_equal(s(x), x + np.arange(1, t + 1, dtype=np.float32))
    assert len(s.programs) == 1
    with pytest.raises(Invalid, match="do not broadcast"):
        s(floats(2, 6))


def test_a_value_that_decides_a_shape_is_told() -> None:
    s = session("(float[2, 6] x, int64[2] shape) => (float[a, b] y)", "y = Reshape(x, shape)")
    assert s.programs == []
    x = floats(2, 6)
    for shape in ([3, 4], [4, 3], [3, 4]):
        np.testing.assert_array_equal(s(x, np.array(shape)), x.reshape(shape))
    assert [d["shape"].tolist() for d in s.specialised] == [[3, 4], [4, 3]]


def test_values_are_given_when_loading() -> None:
    values = {"shape": np.array([12])}
    head = "(float[2, 6] x, int64[k] shape) => (float[a] y)"
    s = session(head, "y = Reshape(x, shape)", values=values)
    x = floats(2, 6)
    np.testing.assert_array_equal(s(x), x.reshape(-1))
    with pytest.raises(Invalid, match="no input 'shapes'"):
        session(head, "y = Reshape(x, shape)", values={"shapes": np.array([12])})


def test_large_constants_are_weights() -> None:
    w = floats(16, 8)
    value, node = helper.make_tensor_value_info, helper.make_node
    graph = helper.make_graph(
        [node("Gemm", ["x", "w"], ["y"], transB=1)],
        "g",
        [value("x", 1, [3, 8])],
        [value("y", 1, [3, 16])],
        [helper.make_tensor("w", 1, w.shape, w.tobytes(), raw=True)],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    s = tw.onnx.load(made.SerializeToString())
    (program,) = s.programs
    assert [t.shape for t in program.inputs] == [(16, 8), (3, 8)]
    x = floats(3, 8)
    np.testing.assert_allclose(s(x), x @ w.T, rtol=1e-5, atol=1e-5)


def test_wrong_arguments() -> None:
    s = session("(float[N, 3] x, float[N] b) => (float[N, 3] y)", "y = Identity(x)")
    x, b = floats(4, 3), floats(4)
    for feeds, words in (
        ({"x": x}, "'b' is missing"),
        ({"x": x, "b": b, "c": b}, "no input 'c'"),
        ({"x": x.astype(np.float64), "b": b}, "'x' is of dtype float32, and float64"),
        ({"x": x[0], "b": b}, r"\['N', 3\], and \[3\]"),
        ({"x": x[:, :2], "b": b}, r"\['N', 3\], and \[4, 2\]"),
        ({"x": x, "b": b[:2]}, "'N' is 4 in one input and 2 in 'b'"),
    ):
        with pytest.raises(Invalid, match=words):
            s.run(None, feeds)
    with pytest.raises(Invalid, match="no output 'q'"):
        s.run(["q"], {"x": x, "b": b})
    with pytest.raises(Invalid, match="2 inputs, and 3"):
        s(x, b, b)


def test_an_index_out_of_range_is_an_error() -> None:
    s = session("(float[5, 2] x, int64[3] i) => (float[3, 2] y)", "y = Gather(x, i)")
    x = floats(5, 2)
    np.testing.assert_array_equal(s(x, np.array([0, -1, 4])), x[[0, -1, 4]])
    with pytest.raises(Invalid, match="index 5 is outside of an axis of 5"):
        s(x, np.array([0, 5, 1]))
    with pytest.raises(Invalid, match="index -6"):
        s(x, np.array([0, -6, 1]))
    np.testing.assert_array_equal(s(x, np.array([1, 1, 1])), x[[1, 1, 1]])


def test_a_branch_that_a_flag_decides() -> None:
    body = (
        "y = If(flag) <then_branch = a () => (float[3] p) { p = Add(x, x) }, "
        "else_branch = b () => (float[3] q) { q = Neg(x) }>"
    )
    s = session("(bool flag, float[3] x) => (float[3] y)", body)
    x = floats(3)
    np.testing.assert_array_equal(s(np.array(True), x), x + x)
    np.testing.assert_array_equal(s(np.array(False), x), -x)
    body = body.replace("If(flag)", "If(c)")
    computed = "m = ReduceMax<keepdims=0>(x)\n c = Greater(m, zero)\n" + body
    head = "(float[3] x) => (float[3] y) <float zero = {0}>"
    s = session(head, computed)
    for given in (np.abs(x), -np.abs(x)):
        np.testing.assert_array_equal(s(given), given + given if given[0] > 0 else -given)


def test_functions_of_the_model() -> None:
    made = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18, "own" : 1]>
        g (float[3] x) => (float[3] y) { y = own.scaled <by = 3.0> (x) }
        <domain: "own", opset_import: ["" : 18]> scaled <by> (a) => (b) {
          s = Constant <value_float: float = @by> ()
          b = Mul(a, s)
        }"""
    )
    x = floats(3)
    np.testing.assert_allclose(tw.onnx.load(made.SerializeToString())(x), 3 * x, rtol=1e-6)


def test_meanings_that_changed() -> None:
    """Softmax took all axes from one on together before opset 13."""
    x = floats(2, 3, 4)
    e = np.exp(x - x.max((1, 2), keepdims=True))
    old = session("(float[2, 3, 4] x) => (float[2, 3, 4] y)", "y = Softmax(x)", 11)
    np.testing.assert_allclose(old(x), e / e.sum((1, 2), keepdims=True), rtol=1e-5)
    new = session("(float[2, 3, 4] x) => (float[2, 3, 4] y)", "y = Softmax(x)", 13)
    e = np.exp(x - x.max(-1, keepdims=True))
    np.testing.assert_allclose(new(x), e / e.sum(-1, keepdims=True), rtol=1e-5)


def test_types_of_few_bits_by_their_value() -> None:
    import ml_dtypes

    s = session("(int4[5] x) => (int4[5] y, float[5] z)", "y = Identity(x)\n z = Cast<to=1>(x)", 21)
    x = np.array([-8, -1, 0, 3, 7]).astype(ml_dtypes.int4)
    y, z = s(x)
    assert y.dtype == x.dtype and y.tolist() == x.tolist()
    assert z.tolist() == [-8, -1, 0, 3, 7]
    s = session("(float[4] x) => (float8e4m3fn[4] y)", "y = Cast<to=17>(x)", 21)
    y = s(np.array([1, 300, 1e6, -0.3], np.float32))
    assert y.dtype == ml_dtypes.float8_e4m3fn
    assert y.astype(np.float32).tolist() == [1, 288, 448, -0.3125]
