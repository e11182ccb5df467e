"""Patterns and rewriting: matching, guards, places, fixpoints, and how fast it is."""

import time
from typing import Any

import numpy as np
import pytest

from tilewright import ops as _ops
from tilewright.base.errors import Invalid, Refused
from tilewright.base.events import Log
from tilewright.ir.node import Graph, Node, Place, constant, input, item
from tilewright.ir.pattern import (
    Apply,
    Attr,
    Filled,
    Guard,
    Rest,
    Rule,
    Var,
    filled_value,
    match,
    op,
)
from tilewright.ir.rewrite import rewrite
from tilewright.ir.types import TensorType, b1, f32, i32

ops: Any = _ops
x, y, z = Var("x"), Var("y"), Var("z")
A = input("a", TensorType(f32, (4, 3)))
B = input("b", TensorType(f32, (4, 3)))


def first(pattern: Apply, n: Node) -> Any:
    return next(iter(match(pattern, n)), None)


def graph(*outputs: Node) -> Graph:
    return Graph("g", (A, B), outputs)


def test_variables_bind_nodes() -> None:
    m = first(x * (y + z), ops.mul(A, ops.add(A, B)))
    assert (m.x, m.y, m.z) == (A, A, B) and m.root.op.name == "mul"
    assert [n.op.name for n in m.nodes] == ["mul", "add"]
    with pytest.raises(AttributeError, match="no variable w"):
        _ = m.w


def test_repeated_variables_are_one_node() -> None:
    assert first(x - x, ops.sub(A, A)) is not None
    assert first(x - x, ops.sub(A, B)) is None


def test_commutative_operators_match_in_both_orders() -> None:
    assert first(x + (-y), ops.add(ops.neg(A), B)).x is B
    assert first(x - (-y), ops.sub(ops.neg(A), B)) is None
    # The first way may fail further down; the other is tried.
    assert first((x * y) + op.exp(x), ops.add(ops.mul(B, A), ops.exp(A))).x is A


def test_attributes() -> None:
    n = ops.permute(ops.permute(A, (1, 0)), (1, 0))
    same = op.permute(op.permute(x, perm=Attr("p")), perm=Attr("p"))
    assert first(same, n).p == (1, 0)
    assert first(op.permute(x, perm=(0, 1)), n) is None
    assert first(op.sum(x, keepdims=True), ops.sum(A, (1,), keepdims=True)) is not None
    assert first(op.sum(x, keepdims=True), ops.sum(A, (1,))) is None


def test_rest_takes_what_is_left() -> None:
    n = ops.concat([A, B, A], 0)
    assert first(op.concat(Rest("xs")), n).xs == (A, B, A)
    m = first(op.concat(x, Rest("xs")), n)
    assert (m.x, m.xs) == (A, (B, A))


@pytest.mark.parametrize(
    ("n", "value"),
    [
        (ops.full((2, 3), 1.5, f32), 1.5),
        (constant(np.array([2, 2, 2]), i32), 2),
        (constant(np.array([2, 3]), i32), None),
        (ops.expand(ops.full((), 0.0, f32), (3, 3)), 0.0),
        (constant(np.array([0.0, -0.0]), f32), None),
        (A, None),
    ],
)
def test_filled_values(n: Node, value: Any) -> None:
    assert filled_value(n) == value


def test_numbers_tell_zeros_apart() -> None:
    assert first(op.add(x, 0.0), ops.add(A, -0.0)) is None
    assert first(op.add(x, Filled(-0.0)), ops.add(A, -0.0)) is not None
    assert first(op.add(x, 0), ops.add(A, -0.0)) is not None


def test_guards_combine() -> None:
    yes, no = Guard("yes", lambda m: True), Guard("no", lambda m: False)
    n = ops.neg(A)
    for when, applies in (
        (yes, True),
        (no, False),
        (yes & no, False),
        (yes | no, True),
        (~no, True),
    ):
        rule = Rule("r", op.neg(x), op.abs(x), when)
        assert (rule.apply(n) is not None) == applies
    assert repr(yes & ~no) == "yes and not no"


DOUBLE = Rule("double-neg", op.neg(-x), x)
ONE = Rule("mul-1", x * 1, x)


def test_rules_apply_to_a_fixpoint() -> None:
    n = A
    for _ in range(9):
        n = ops.neg(ops.mul(n, 1.0))
    out = rewrite(graph(n), [DOUBLE, ONE])
    assert out.outputs == (ops.neg(A),)


def test_what_a_rule_makes_is_rewritten_again() -> None:
    spread = Rule("spread", op.square(x), op.neg(op.neg(x * x)))
    assert rewrite(graph(ops.square(A)), [spread, DOUBLE]).outputs == (ops.mul(A, A),)


def test_broadcasting_does_not_change() -> None:
    wide = ops.mul(A, ops.full((2, 1, 1), 1.0, f32))
    (out,) = rewrite(graph(wide), [ONE]).outputs
    assert out.type == wide.type and out.inputs == (A,)


def test_places_follow() -> None:
    inner, outer = ops.exp(A), ops.neg(ops.neg(ops.exp(A)))
    p, q = Place("m.py", 1), Place("m.py", 2)
    g = Graph("g", (A,), (outer,), {inner: frozenset({p}), outer: frozenset({q})})
    out = rewrite(g, [DOUBLE])
    assert out.outputs == (inner,) and out.places[inner] == {p, q}
    split = Rule("split", op.neg(x), op.mul(op.square(x), 2))
    out = rewrite(Graph("g", (A,), (ops.neg(A),), {ops.neg(A): frozenset({p})}), [split])
    (made,) = out.outputs
    assert out.places[made] == {p} and out.places[made.inputs[0]] == {p}


def test_applications_are_events() -> None:
    log = Log()
    n = ops.neg(ops.neg(A))
    rewrite(Graph("g", (A,), (n,), {n: frozenset({Place("m.py", 7)})}), [DOUBLE], log)
    (event,) = log.of("rewrite")
    assert event.detail and event.where == "m.py:7" and "double-neg" in event.message


def test_used_once_is_known() -> None:
    once = Guard("inner used once", lambda m: m.used_once(m.nodes[1]))
    rule = Rule("r", op.abs(op.exp(x)), op.exp(x), once)
    shared = ops.exp(A)
    assert rewrite(graph(ops.abs(shared)), [rule]).outputs == (shared,)
    both = graph(ops.abs(shared), ops.sqrt(shared))
    assert rewrite(both, [rule]) == both


def test_branches_are_rewritten() -> None:
    then = Graph("then", (A,), (ops.neg(ops.neg(A)),))
    other = Graph("other", (A,), (A,))
    c = input("c", TensorType(b1, ()))
    n = item(ops.cond(c, then, other, [A]), 0)
    (out,) = rewrite(Graph("g", (c, A), (n,)), [DOUBLE]).outputs
    assert out.inputs[0].op.then.outputs == (A,)  # type: ignore[attr-defined]


def test_rules_that_undo_each_other_are_refused() -> None:
    there, back = Rule("there", op.exp(x), op.sin(x)), Rule("back", op.sin(x), op.exp(x))
    with pytest.raises(Refused, match="does not end"):
        rewrite(graph(ops.exp(A)), [there, back])
    with pytest.raises(Refused, match="the last rule was grow"):
        rewrite(graph(ops.exp(A)), [Rule("grow", op.exp(x), op.neg(op.exp(-x)))])


def test_bad_rules_are_refused() -> None:
    with pytest.raises(Invalid, match="not an operator"):
        Rule("r", x, x)
    with pytest.raises(Invalid, match="changes is one of"):
        Rule("r", op.neg(x), x, changes="a little")
    with pytest.raises(Invalid, match="the types differ"):
        Rule("r", op.sum(x), x).apply(ops.sum(A, (0,)))


def test_a_thousand_nodes_take_milliseconds() -> None:
    """A bound far above the tens of milliseconds it takes, so that a loaded machine passes."""
    n = A
    for k in range(250):
        n = ops.mul(ops.add(ops.exp(n), B), ops.tanh(n) if k % 2 else ops.neg(n))
    g = graph(n)
    assert len(g.nodes()) > 1000
    many = [Rule(f"r{k}", op.mul(op.square(x), op.sqrt(y)), x) for k in range(20)]
    start = time.thread_time()
    rewrite(g, [DOUBLE, ONE, *many])
    assert time.thread_time() - start < 1.0
