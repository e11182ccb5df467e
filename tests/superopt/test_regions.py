"""Choices that are made apart from each other, and circles that no choice may have."""

from __future__ import annotations

import random

import pytest

from tilewright import ops
from tilewright.ir.node import Node, input
from tilewright.ir.types import TensorType, f64
from tilewright.superopt.classes import Because, Classes
from tilewright.superopt.extract import cheapest
from tilewright.superopt.regions import Options, dominators, regions

SAID = Because("said")


def tensor(name: str) -> Node:
    return input(name, TensorType(f64, (3, 3)))


def reached(below: list[list[int]], without: int) -> set[int]:
    found, stack = {0}, [0]
    while stack:
        for y in below[stack.pop()]:
            if y != without and y not in found:
                found.add(y)
                stack.append(y)
    return found


@pytest.mark.parametrize("seed", range(30))
def test_dominators(seed: int) -> None:
    """A node dominates what nothing reaches without it. The immediate one is dominated by all."""
    rng = random.Random(seed)
    count = rng.randint(2, 9)
    below = [[rng.randrange(1, count) for _ in range(rng.randint(0, 3))] for _ in range(count)]
    up, live = dominators(below), reached(below, -1)
    for k in live - {0}:
        strict = {d for d in live - {0, k} if k not in reached(below, d)} | {0}
        found, d = set(), k
        while d:
            d = up[d]
            found.add(d)
        assert found == strict, (seed, k)


def test_layers_are_chosen_apart() -> None:
    a, b, c, d, e = (tensor(n) for n in "abcde")
    ways = {n: ops.neg(n) for n in (a, b, c, d, e)}
    options: Options = {
        a: {ways[a]: (b, c)},
        b: {ways[b]: (d,)},  # b and c share d, so neither is closed; d and e are
        c: {ways[c]: (d,)},
        d: {ways[d]: (e,)},
        e: {ways[e]: ()},
    }
    found = regions([a], options)
    assert [set(r.options) for r in found] == [{e}, {d}, {a, b, c}, set()]
    assert [r.closed for r in found] == [(), (e,), (d,), (a,)]


def test_what_needs_what_is_computed_of_it_is_no_option() -> None:
    a, b = tensor("a"), tensor("b")
    one, other, back = ops.neg(a), ops.abs(a), ops.exp(a)
    found = regions([a], {a: {one: (b,)}, b: {other: (), back: (a,)}})
    assert [{c: set(ms) for c, ms in r.options.items()} for r in found][:1] == [{b: {other}}]


@pytest.mark.parametrize("length", (2, 3, 4))
def test_no_choice_leads_in_circles(length: int) -> None:
    """Classes that are cheap only of each other: one of them has to be computed of something."""
    names = [tensor(f"x{k}") for k in range(length)]
    dear = [ops.exp(tensor(f"y{k}")) for k in range(length)]
    root = names[0]
    for n in names[1:]:
        root = ops.add(root, n)
    cheap = [ops.neg(names[(k + 1) % length]) for k in range(length)]
    classes = Classes((root, *dear, *cheap))
    for k in range(length):
        classes.join(names[k], dear[k], SAID)
        classes.join(names[k], cheap[k], SAID)
    classes.settle()
    prices = {"exp": 10.0, "neg": 1.0, "add": 1.0}

    def cost(n: Node) -> float:
        inside = n in names
        return float("inf") if inside else prices.get(n.op.name, 0.0)

    found = cheapest(classes, (root,), cost)
    assert found.best and found.cost == 10.0 + 2 * (length - 1)


def test_what_is_free_is_no_choice() -> None:
    """A weight that a product of others equals: the product is dear, and still never asked for."""
    x, w = tensor("x"), tensor("w")
    product = ops.matmul(x, x)
    root = ops.matmul(x, w)
    classes = Classes((root, product))
    classes.join(w, product, SAID)
    classes.settle()
    found = cheapest(classes, (root,), lambda n: 7.0, free={x, classes.leader(w)})
    assert found.roots == (root,) and found.cost == 21.0
