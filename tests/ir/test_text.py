"""Graph text: print and parse are inverses for every operator's samples; errors say where."""

import numpy as np
import pytest

import tilewright.ops  # noqa: F401  (fills OPERATORS)
from tilewright import ops
from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.maps import Map
from tilewright.ir.node import Graph, Place, constant, input
from tilewright.ir.operator import OPERATORS, outputs_of, sample_node
from tilewright.ir.text import attribute_text, parse_graph, print_graph
from tilewright.ir.types import DTYPES, TensorType, b1, bf16, f32, i64


def check_round_trip(graph: Graph) -> str:
    text = print_graph(graph)
    back = parse_graph(text)
    assert back == graph, text
    assert back.inputs == graph.inputs and back.outputs == graph.outputs
    assert print_graph(back) == text
    return text


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_every_sample_round_trips(name: str) -> None:
    for k, s in enumerate(OPERATORS[name].samples()):  # type: ignore[attr-defined]
        n = sample_node(s)
        check_round_trip(Graph(f"{name}_{k}", n.inputs, outputs_of(n)))


def example() -> Graph:
    s = D.sym("s0", 1, 4096, 8)
    x = input("x", TensorType(f32, (s, 768)))
    w = input("w", TensorType(f32, (768, 16)), "weight")
    y = ops.matmul(x, w)
    z = ops.add(y, constant(np.array([0.1, -1, 3, 1e-30] * 4), f32))
    places = {z: frozenset({Place("model.py", 12, "y + b"), Place("other.py", 3)})}
    return Graph("main", (x, w), (y, z, y), places)


def test_reads_well() -> None:
    assert (
        check_round_trip(example())
        == """\
graph main(x: f32[s0,768], w: weight f32[768,16]) where s0: 1..4096 %8 {
  %0: f32[s0,16] = matmul(x, w)
  %1: f32[16] = literal(f32[16], [LIST])
  %2: f32[s0,16] = add(%0, %1)  # model.py:12: y + b ;; other.py:3
  return %0, %2, %0
}""".replace("LIST", ", ".join(["0.1, -1.0, 3.0, 1e-30"] * 4))
    )


def test_places_come_back() -> None:
    g = example()
    assert parse_graph(print_graph(g)).places == dict(g.places)
    assert parse_graph(print_graph(g, places=False)).places == {}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (0, 3), (5, 9)])
def test_constants_round_trip(dtype, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).standard_normal(shape) * 3
    c = constant(values.astype(dtype.numpy), dtype)
    check_round_trip(Graph("c", (), (c,)))


def test_odd_floats_round_trip() -> None:
    strange = np.array([0x7FC00001, 0x80000000, 0x7F800000], dtype=np.uint32).view(np.float32)
    for values in (strange, np.array([np.nan, -0.0, np.inf, -np.inf, 1e-45], dtype=np.float32)):
        check_round_trip(Graph("c", (), (constant(values, f32),)))


def test_odd_names_and_nested_symbols() -> None:
    n = D.sym("n", 1)
    half = D.floordiv(n, 2) + 1
    x = input("L['x'].0", TensorType(bf16, (n, half)))
    q = input("%q", TensorType(i64, ()), "scalar")
    g = Graph("a graph", (x, q), (ops.reshape(x, (half, n)), q))
    text = check_round_trip(g)
    assert 'q": scalar i64[]' in text and "where n: 1.." in text


def test_attributes_have_text() -> None:
    n = D.sym("n", 1)
    assert attribute_text((1, (2.5, None), 'a"b\n', b1, D.floordiv(n, 3))) == (
        '(1, (2.5, None), "a\\"b\\n", bool, (n//3))'
    )
    assert attribute_text(Map.parse("i, j -> j//4, i, j%4")) == 'map("i, j -> j//4, i, j%4")'
    with pytest.raises(Invalid, match="no text form"):
        attribute_text(object())


def test_an_edited_constant_changes_the_graph() -> None:
    g = parse_graph("graph f() { %0 = literal(f32[2], [1.0, 2.0])\n return %0 }")
    h = parse_graph("graph f() { %0 = literal(f32[2], [1.0, 2.5])\n return %0 }")
    assert g != h


HEAD = "graph f(x: f32[2,3]) {\n"


@pytest.mark.parametrize(
    ("text", "line", "column", "says"),
    [
        ("grph f() {}", 1, 1, "expected 'graph'"),
        ("graph f(x: f31[2]) { return x }", 1, 12, "f31 is not a dtype"),
        ("graph f(x: f32[n]) { return x }", 1, 16, "n is not a symbol"),
        (HEAD + "  %0: f32[2,3] = expp(x)\n  return %0\n}", 2, 18, "did you mean exp"),
        (HEAD + "  %0: f32[3,2] = exp(x)\n  return %0\n}", 2, 18, "declared as f32[3,2]"),
        (HEAD + "  %0 = exp(y)\n  return %0\n}", 2, 12, "y is not defined above"),
        (HEAD + "  %0 = exp{k=1}(x)\n  return %0\n}", 2, 8, "no attribute k"),
        (HEAD + "  %0 = exp(x)\n  %0 = exp(x)\n  return %0\n}", 3, 3, "defined twice"),
        (HEAD + "  %0 = reshape{shape=(7,)}(x)\n  return %0\n}", 2, 8, "reshape"),
        (HEAD + "  %0 = %1.0\n  return %0\n}", 2, 8, "%1 is not defined"),
        (HEAD + "  %0 = exp(x)\n", 3, 1, "found the end"),
        (HEAD + "  %0 = literal(f32[3], [1.0])\n  return %0\n}", 2, 24, "not the elements"),
    ],
)
def test_errors_name_the_place(text: str, line: int, column: int, says: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_graph(text)
    assert f"line {line}, column {column}:" in str(caught.value), caught.value
    assert says in str(caught.value)
