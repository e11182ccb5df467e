"""Operands of sums in other orders: what plain rules find by all orders, with few members."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.superopt.test_search import RULES, make, tensor, value
from tilewright import ops, targets
from tilewright.ir.node import Graph, Node, input
from tilewright.ir.pattern import Rule, Var, op
from tilewright.ir.types import TensorType, bf16, f32, f64
from tilewright.superopt import search as searches
from tilewright.superopt.applied import rules_of
from tilewright.superopt.classes import Because, Classes
from tilewright.superopt.extract import cheapest
from tilewright.superopt.regroup import Regrouping, regroupings
from tilewright.superopt.saturate import Budget, saturate
from tilewright.superopt.search import search, searched_orders
from tilewright.superopt.text import parse_equality

A, B, C = Var("a"), Var("b"), Var("c")
ORDERS = [Rule("order", op.add(op.add(A, B), C), op.add(op.add(A, C), B))]
COSTS = {"matmul": 10.0, "sub": 2.0, "neg": 1.0}


def cost(n: Node) -> float:
    return COSTS.get(n.op.name, 0.0)


def regrouping(operator: str = "add") -> Regrouping:
    (found,) = (r for r in searched_orders().values() if r.operator == operator)
    return found


def drawn(rng: random.Random) -> Node:
    """A sum of products and of what is negated, in a random tree."""
    x, y, z = (tensor(n) for n in "xyz")
    parts = [make("matmul", x, y), make("matmul", x, z), make("matmul", y, z)]
    parts += [make("neg", make("neg", x)), x, y]
    terms = [rng.choice(parts) for _ in range(rng.randint(3, 5))]
    while len(terms) > 1:
        rng.shuffle(terms)
        terms[:2] = [make("add", terms[0], terms[1])]
    return terms[0]


@pytest.mark.parametrize("seed", range(30))
def test_as_good_as_all_orders(seed: int) -> None:
    root = drawn(random.Random(seed))
    found = []
    for rules, orders in (([*RULES, *ORDERS], []), (RULES, [regrouping()])):
        classes = Classes((root,))
        ended = saturate(classes, rules, Budget(members=3000, alike=3000), orders=orders).ended
        found.append((cheapest(classes, (root,), cost), len(classes), ended))
    (every, many, _), (some, few, ended) = found
    assert ended == "saturated" and some.cost == every.cost and few <= many, seed
    np.testing.assert_array_equal(value(some.roots[0], seed), value(root, seed), f"seed {seed}")


def test_sums_stay_small() -> None:
    """The first and the last of nine operands are products that become one."""
    x, w, v = tensor("x"), tensor("w"), tensor("v")
    root = make("matmul", x, w)
    for k in range(7):
        root = make("add", root, tensor(f"t{k}"))
    root = make("add", root, make("matmul", x, v))
    classes = Classes((root,))
    ended = saturate(classes, RULES, orders=[regrouping()]).ended
    found = cheapest(classes, (root,), cost)
    assert ended == "saturated" and found.cost == 10.0 and len(classes) < 60


def test_a_proof_names_the_orders() -> None:
    x, y, w, v = (tensor(n) for n in "xywv")
    root = make("add", make("add", make("matmul", x, w), y), make("matmul", x, v))
    classes = Classes((root,))
    saturate(classes, RULES, orders=[regrouping()])
    found = cheapest(classes, (root,), cost)
    classes.add(found.roots[0])
    steps = {p.rule for p in classes.why([(root, found.roots[0]), *found.members.items()])}
    assert {regrouping().label, "collect"} <= steps


def test_weights_are_added_first() -> None:
    x, one, two = (
        input(n, TensorType(f32, (8, 8)), "weight" if n in "ab" else "arg") for n in "xab"
    )
    root = ops.add(ops.add(one, ops.relu(x)), two)
    graph = Graph("sum", (x, one, two), (root,))
    found = search(graph, targets.default(), Budget(members=100))
    (known,) = (n for n in found.graph.nodes() if set(n.inputs) == {one, two})
    assert known.op.name == "add" and found.after < found.before


def test_what_is_smaller_is_multiplied_first() -> None:
    shapes = {"x": (64, 64), "a": (64, 1), "b": (64, 1)}
    x, a, b = (input(n, TensorType(f32, s)) for n, s in shapes.items())
    graph = Graph("product", (x, a, b), (ops.mul(ops.mul(x, a), b),))
    found = search(graph, targets.default(), Budget(members=100))
    (root,) = found.graph.outputs
    assert sorted(n.shape for n in root.inputs) == [(64, 1), (64, 64)] and root.op.name == "mul"
    assert found.after < found.before


def test_which_equalities_these_are() -> None:
    where = "where a: [m], b: [m], c: [m]"
    texts = {
        "yes": f"add(add(a, b), c) == add(a, add(b, c)) {where}",
        "same": f"add(add(a, b), c) == add(c, add(b, a)) {where}",
        "other": f"sub(sub(a, b), c) == sub(sub(a, c), b) {where}",
    }
    assert list(regroupings({k: parse_equality(e) for k, e in texts.items()})) == ["yes"]


def test_of_which_operands_it_holds() -> None:
    wide = [input(n, TensorType(f64, (3,))) for n in "abc"]
    short = [input(n, TensorType(bf16, (3,))) for n in "abc"]
    assert regrouping().holds(wide) and not regrouping().holds(short)
    assert not regrouping().holds([*wide, ops.full((3,), float("inf"), f64)])


def test_operands_that_are_swapped_are_one_member() -> None:
    x, y, z = (tensor(n) for n in "xyz")
    one, other = make("add", x, y), make("add", z, x)
    classes = Classes((one, make("add", y, x), other))
    assert len(classes) == 5 and not classes.why([(one, make("add", y, x))])
    classes.join(y, z, Because("said"))
    classes.settle()
    assert classes.leader(one) is classes.leader(other) and len(list(classes)) == 3
    assert [p.rule for p in classes.why([(one, other)])] == ["said"]


def test_a_class_gets_so_many_members() -> None:
    chain = tensor("x")
    for k in range(9):
        chain = make("matmul", chain, tensor("yz"[k % 2]))
    classes = Classes((chain,))
    saturate(classes, RULES[:2], Budget(alike=3, rounds=40))
    most = max(len(classes.members(c)) for c in classes)
    assert 3 < most < 9


def test_rules_look_at_axes_first() -> None:
    e = parse_equality(
        "concat(relu(a), relu(b), axis=1) == relu(concat(a, b, axis=1)) where a: [m, n], b: [m, o]"
    )
    forth, back = rules_of(e, "relu")
    x = input("x", TensorType(f32, (2, 3, 3)))
    along = [ops.concat([ops.relu(x), ops.relu(x)], k) for k in range(3)]
    assert forth.at is not None and back.at is None
    assert [forth.at(n) for n in along] == [False, False, True]
    assert [forth.apply(n) is not None for n in along] == [False, False, True]


def test_what_is_equal_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other costs choose other graphs among the same ones."""
    x, w, v = (input(n, TensorType(f32, (16, 16)), "arg" if n == "x" else "weight") for n in "xwv")
    graph = Graph("g", (x, w, v), (ops.matmul(ops.matmul(x, w), v),))
    made: list[Classes] = []

    def counted(classes: Classes, *given: Any, **more: Any) -> object:
        made.append(classes)
        return saturate(classes, *given, **more)

    monkeypatch.setattr(searches, "_equal", {})
    monkeypatch.setattr(searches, "saturate", counted)
    budget = Budget(members=100)
    found = [
        search(graph, targets.default(), replace(budget, seconds=s), measured=measured)
        for s, measured in ((60, {}), (50, {"matmul(f32[16,16], weight f32[16,16])": 1.0}))
    ]
    assert len(made) == 1 and found[0].graph == found[1].graph
    assert found[1].after > found[0].after
