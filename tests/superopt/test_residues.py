"""Remainders in place of numbers: quotients, roots and exponentials, and functions without laws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tilewright.ir.node import Node, Op
from tilewright.ir.operator import OPERATORS, Sample, operator
from tilewright.ir.types import TensorType
from tilewright.ops import add
from tilewright.ops.samples import case, normal
from tilewright.superopt.enumerate import enumerated
from tilewright.superopt.fingerprint import PRIMES
from tilewright.superopt.residues import ARITHMETICS
from tilewright.superopt.structure import Structure
from tilewright.superopt.terms import equalities
from tilewright.superopt.vocabulary import ALL, Vocabulary

O: dict[str, Any] = dict(OPERATORS)
BY = ARITHMETICS["remainders"]


def made(*operators: str) -> Vocabulary:
    leaves = tuple((f"x{k}", ("m",)) for k in (1, 2, 3))
    return Vocabulary("few", operators, leaves, {"m": 2}, points=1, arithmetic="remainders")


def leaf(rng: np.random.Generator, positive: bool = False) -> np.ndarray:
    return BY.leaf(1, 2, positive, rng)[:, None]


def apply(name: str, *operands: np.ndarray, **attributes: object) -> np.ndarray:
    return BY.computed(Structure(O[name](**attributes), ((2,),) * len(operands)), 1, *operands)


def test_laws_of_fields() -> None:
    rng = np.random.default_rng(0)
    a, b, c = (leaf(rng) for _ in range(3))
    same = np.testing.assert_array_equal
    same(apply("mul", apply("div", a, b), b), a)
    same(apply("div", apply("div", a, b), c), apply("div", a, apply("mul", b, c)))
    same(apply("sub", apply("add", a, b), b), a)
    p = leaf(rng, positive=True)
    same(apply("square", apply("sqrt", p)), p)
    same(apply("reciprocal", apply("rsqrt", p)), apply("sqrt", p))


def test_exponentials_turn_sums_into_products() -> None:
    rng = np.random.default_rng(1)
    a, b = leaf(rng), leaf(rng)
    left = apply("mul", apply("exp", a), apply("exp", b))
    right = apply("exp", apply("add", a, b))
    count = len(PRIMES)
    np.testing.assert_array_equal(left[:count], right[:count])
    assert (left[:count] != apply("exp", a)[:count]).any()
    # An exponent of an exponential is not known, nor a quotient by 0.
    assert np.isnan(left[count:]).all() and np.isnan(apply("exp", left)[:count]).all()
    assert np.isnan(apply("reciprocal", apply("sub", a, a))).all()


def test_softmax_is_found_in_its_parts() -> None:
    rng = np.random.default_rng(2)
    x = leaf(rng)
    e = apply("exp", x)
    parts = apply("div", e, apply("add", e, apply("flip", e, axes=(0,))))
    found = apply("softmax", x, axis=0)
    np.testing.assert_array_equal(found[: len(PRIMES)], parts[: len(PRIMES)])


@pytest.mark.parametrize("name", ["tanh", "maximum", "erf", "cos"])
def test_functions_without_laws(name: str) -> None:
    """Equal of equal arguments, different of different ones; odd and even ones are so."""
    rng = np.random.default_rng(3)
    a, b = leaf(rng), leaf(rng)
    two = name == "maximum"
    f = apply(name, a, b) if two else apply(name, a)
    np.testing.assert_array_equal(f, apply(name, b, a) if two else apply(name, a))
    assert (f != b).any()
    if name == "erf":
        np.testing.assert_array_equal(apply("erf", apply("neg", a)), apply("neg", f))
    if name == "cos":
        np.testing.assert_array_equal(apply("cos", apply("neg", a)), f)


def test_laws_are_found_and_proved() -> None:
    space = enumerated(made("exp", "div", "mul", "add"), 3)
    found = {f"{e.left} = {e.right}": e for e in equalities(space)}
    for text in (
        "mul(exp(x1), exp(x2)) = exp(add(x1, x2))",
        "add(div(x1, x2), div(x3, x2)) = div(add(x1, x3), x2)",
        "div(div(x1, x2), x3) = div(x1, mul(x2, x3))",
    ):
        assert found[text].is_proved(), text
    assert not any("exp(exp" in text for text in found)
    assert not any(e.left == e.right for e in found.values())


class Twice(Op):
    """Both a new operator's definition and all that enumeration knows of it."""

    def infer(self, x: TensorType) -> TensorType:
        return x

    def compose(self, x: Node) -> Node:
        return add(x, x)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x + x

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls(), normal(3))


def test_a_new_operator_joins_by_existing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(OPERATORS)
    operator(Twice)
    try:
        few = {x: OPERATORS[x] for x in ("twice", "add", "neg")}
        monkeypatch.setattr("tilewright.superopt.vocabulary.OPERATORS", few)
        found = {f"{e.left} = {e.right}" for e in equalities(enumerated(ALL, 2))}
        assert {"add(x1, x1) = twice(x1)", "neg(twice(x1)) = twice(neg(x1))"} <= found
    finally:
        OPERATORS.clear()
        OPERATORS.update(before)
