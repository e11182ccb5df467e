"""Named checks: each notices what it is for; errors show the program around the fault."""

from dataclasses import dataclass
from typing import Any

import pytest

from tilewright import ops as _ops
from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir import expr as E
from tilewright.ir.check import CHECKS, LEVELS, CheckFailed, Fault, check, level, verify
from tilewright.ir.node import Graph, Item, Node, Op, Place, input, item
from tilewright.ir.operator import OPERATORS, outputs_of, sample_node
from tilewright.ir.types import TensorType, b1, f32

ops: Any = _ops
A = input("a", TensorType(f32, (4, 3)))


def fails(graph: Graph, name: str, says: str) -> str:
    with pytest.raises(CheckFailed, match=f"check {name} failed") as caught:
        verify(graph)
    assert says in str(caught.value)
    return str(caught.value)


def test_every_sample_passes() -> None:
    for cls in OPERATORS.values():
        s = next(iter(cls.samples()))  # type: ignore[attr-defined]
        n = sample_node(s)
        verify(Graph(cls.name, n.inputs, outputs_of(n)))


def test_inputs_are_declared_once() -> None:
    fails(Graph("g", (), (ops.neg(A),)), "inputs-declared", "a is used but is not an input")
    other = input("a", TensorType(f32, (2,)))
    fails(Graph("g", (A, other), (A,)), "inputs-declared", "two inputs are called a")
    fails(Graph("g", (A, ops.neg(A)), (A,)), "inputs-declared", "is computed")


def test_types_are_inferred_again() -> None:
    wrong = Node(ops.neg(A).op, (A,), TensorType(f32, (4, 4)))
    n = ops.exp(ops.tanh(A))
    text = fails(Graph("g", (A,), (n, wrong)), "types-agree", "infers f32[4,3], not f32[4,4]")
    assert "> " in text and "tanh(a)" in text
    refused = Node(ops.sum(A, (1,)).op, (input("s", TensorType(f32, ())),), TensorType(f32, ()))
    graph = Graph("g", refused.inputs, (refused,))
    fails(graph, "types-agree", "does not accept its operands")


def test_items_exist_and_tuples_are_taken_apart() -> None:
    pair = ops.sort(A, 1)
    wrong = Node(Item(7), (pair,), TensorType(f32, (4, 3)))
    fails(Graph("g", (A,), (wrong,)), "items-in-range", "item 7 of")
    fails(Graph("g", (A,), (pair,)), "operands-first", "several outputs")
    direct = Node(ops.neg(A).op, (pair,), TensorType(f32, (4, 3)))
    fails(Graph("g", (A,), (direct,)), "operands-first", "take an item")


def test_one_name_is_one_symbol() -> None:
    n, m = D.sym("n", 1), D.sym("m", 1)
    x = input("x", TensorType(f32, (n,)))
    # No shape of an input carries m: whoever runs the program passes its value.
    verify(Graph("g", (x,), (ops.expand(x, (m, n)),)))
    other = input("y", TensorType(f32, (D.sym("n", 2),)))
    fails(Graph("g", (x, other), (x, other)), "symbols-agree", "different bounds")
    twice = (ops.expand(x, (m, n)), ops.full((D.sym("m", 4), n), 0, f32))
    fails(Graph("g", (x,), twice), "symbols-agree", "different bounds are called m")


def test_operators_are_registered() -> None:
    @dataclass(frozen=True)
    class Stray(Op):
        name = "stray"

    wrong = Node(Stray(), (A,), A.type)
    fails(Graph("g", (A,), (wrong,)), "operators-known", "stray is not a registered operator")


def test_branches_are_checked() -> None:
    c = input("c", TensorType(b1, ()))
    bad = Graph("then", (A,), (Node(ops.neg(A).op, (A,), A.type), input("z", A.ttype)))
    good = Graph("other", (A,), (A, A))
    n = item(ops.cond(c, bad, good, [A]), 0)
    fails(Graph("g", (c, A), (n,)), "branches-sound", "in then of cond")


def test_the_error_names_the_users_line_and_the_pass() -> None:
    wrong = Node(ops.neg(A).op, (A,), TensorType(f32, (1,)))
    graph = Graph("g", (A,), (wrong,), {wrong: frozenset({Place("model.py", 9)})})
    with pytest.raises(CheckFailed) as caught:
        verify(graph, after="Simplify")
    assert "after Simplify" in str(caught.value) and "at model.py:9" in str(caught.value)


def test_other_levels_join_the_table() -> None:
    class Toy:
        size = 3

    level("toy", Toy, lambda t: f"toy of {t.size}")
    try:

        @check("toy", "small")
        def small(t: Toy):
            if t.size > 2:
                yield Fault("it is too large")

        with pytest.raises(CheckFailed, match="toy check small failed: it is too large\ntoy of 3"):
            verify(Toy())
        with pytest.raises(TypeError, match="registered twice"):
            check("toy", "small")(small)
    finally:
        del LEVELS["toy"], CHECKS["toy"]
    with pytest.raises(Invalid, match="no level"):
        verify(Toy())


def test_checks_can_be_chosen() -> None:
    graph = Graph("g", (), (ops.neg(A),))
    verify(graph, only=["types-agree"])
    with pytest.raises(Invalid, match="there is no check hope"):
        verify(graph, only=["hope"])


def test_a_reduction_within_a_scan_does_not_read_the_scan() -> None:
    """Reductions are computed before the scan that reads them."""
    x = E.placeholder((4, 4))
    with pytest.raises(Invalid, match="a reduction within a scan reads the scan itself"):
        E.scan((4,), 0, lambda own, i: E.reduce("add", (4,), lambda r: own[r] * x[i, r]), f32)
