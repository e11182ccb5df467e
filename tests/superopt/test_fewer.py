"""Mined rules in the default list of passes: products that share an operand become one."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

import tilewright as tw
from tests.superopt.test_found import (
    CASES,
    among_others,
    assert_same,
    at_run_time,
    beside,
    chain,
    gates,
    graph_of,
    linear_attention,
    tensor,
    weight,
)
from tilewright import ops, targets
from tilewright.base.events import Log
from tilewright.ir.node import Node
from tilewright.superopt.fewer import fewer_products
from tilewright.superopt.fewer_pass import FewerProducts
from tilewright.superopt.search import mined_rules


def added() -> Node:
    """Two products with weights of one tensor, added up: the weights can be added before."""
    x = tensor("x", 64, 128)
    return ops.add(*(ops.matmul(x, weight(n, 128, 32)) for n in "ab"))


def shared_too() -> Node:
    """As `added`, but one of the products is needed in any case."""
    x = tensor("x", 64, 128)
    a, b = (ops.matmul(x, weight(n, 128, 32)) for n in "ab")
    return ops.mul(ops.add(a, b), ops.sin(a))


def scores() -> Node:
    """Of keys in a cache and of new ones: to put these together would copy the cache."""
    q, old, new = tensor("q", 2, 4, 32), tensor("old", 2, 32, 256), tensor("new", 2, 32, 8)
    return ops.concat([ops.matmul(q, old), ops.matmul(q, new)], 2)


def both_sorts() -> Node:
    """Products of one tensor of which only some are with weights."""
    x, a, b = tensor("x", 64, 128), weight("a", 128, 8), weight("b", 128, 8)
    parts = [ops.matmul(x, w) for w in (a, b, tensor("c", 128, 8))]
    return ops.concat(parts, 1)


FOUND = {
    added: {"matmul": 1},
    shared_too: {"matmul": 2, "sin": 1, "mul": 1},
    beside: CASES[beside],
    among_others: CASES[among_others],
    both_sorts: {"matmul": 2, "concat": 1},
}


@pytest.mark.parametrize("target", ["host", "cuda:90"])
@pytest.mark.parametrize("build", FOUND, ids=lambda f: f.__name__)
def test_products_become_one(build: Callable[[], Node], target: str) -> None:
    graph, log = graph_of(build()), Log()
    machine = targets.default() if target == "host" else targets.get(target)
    made = FewerProducts().on(machine).apply(graph, log)
    assert at_run_time(made).total() <= at_run_time(graph).total()
    assert dict(at_run_time(made)) == FOUND[build]
    assert_same(graph, made)
    assert any(e.kind == "rewrite" for e in log.events)


@pytest.mark.parametrize(
    "build", [gates, linear_attention, chain, scores], ids=lambda f: f.__name__
)
def test_nothing_is_loaded_where_no_rule_applies(
    build: Callable[[], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tilewright.superopt.fewer", None)
    graph = graph_of(build())
    assert FewerProducts().on(targets.default()).apply(graph, Log()) is graph


def test_products_that_are_needed_anyway_stay() -> None:
    x = tensor("x", 64, 128)
    a, b = (ops.matmul(x, weight(n, 128, 32)) for n in "ab")
    graph = graph_of(ops.mul(ops.add(a, b), ops.mul(ops.sin(a), ops.cos(b))))
    assert FewerProducts().on(targets.default()).apply(graph, Log()) is graph


def test_weights_that_must_be_given_back_are_left_alone() -> None:
    lists = (tw.passes(), tw.passes(own_weights=True))
    assert ["FewerProducts" in str(x) for x in lists] == [True, False]


def test_what_rounds_differently_is_not_for_strict_programs() -> None:
    graph = graph_of(added())
    kernels = [
        sum(k.calls for k in tw.compile_graph(graph, tw.Options(precision=p)).kernels)
        for p in ("reassociate", "strict")
    ]
    assert kernels[0] < kernels[1]


def test_rules_that_leave_out_a_product() -> None:
    names = {r.name for r in fewer_products()}
    for name in names:
        e = mined_rules()[name.removesuffix(", of several").removesuffix(", back")]
        assert str(e).count("matmul(") + str(e).count("conv(") == 3, name
    assert len(names) > 8
