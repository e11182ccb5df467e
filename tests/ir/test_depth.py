"""Values of any depth: nothing in ir/ recurses as deep as a program is."""

import numpy as np
import pytest

from tilewright.ir import dim as D
from tilewright.ir.conditions import parts_of
from tilewright.ir.expr import Index, Value, fn, index, load, loads, replaced, rewrite, walk
from tilewright.ir.interpret import Evaluator
from tilewright.ir.types import b1, f32, i64
from tilewright.ir.value_text import Scope, dim_text, parse_dim, parse_value, value_text

DEEP = 3000
I, J = D.var("i", 64), D.var("j", 64)


def chain(n: int, at: D.Dim = I) -> Value:
    x = load("x", (at,), f32)
    for k in range(n):
        x = fn("add", fn("mul", x, x), load("y", (at,), f32)) if k % 2 else fn("neg", x)
    return x


def test_what_a_deep_value_is_known_for() -> None:
    v = chain(DEEP)
    assert v.depth >= DEEP and v.sources == {"x", "y"} and v.symbols() == {D.the_sym(I)}
    assert len(v.label()) < 200 and len(repr(v)) < 100_000
    assert DEEP < len(list(walk(v))) < 3 * DEEP


def test_symbols_of_a_deep_value_are_substituted() -> None:
    assert chain(DEEP).substitute({D.the_sym(I): J}) is chain(DEEP, J)
    assert chain(DEEP).substitute({D.the_sym(J): I}) is chain(DEEP)


def test_loads_of_a_deep_value_are_replaced() -> None:
    v = chain(DEEP)
    moved = rewrite(v, on_load=lambda x: load("z", x.index, f32) if x.source == "x" else x)
    assert moved.sources == {"z", "y"} and moved.depth == v.depth
    only = rewrite(v, on_load=lambda x: load("z", x.index, f32), only="x")
    assert only is moved
    x, z = load("x", (I,), f32), load("z", (I,), f32)
    assert replaced(v, x, z) is moved
    assert [y.source for y in loads(v, "y")] == ["y"]


def test_deep_data_in_indices() -> None:
    v: Value = load("p", (I,), i64)
    for _ in range(DEEP):
        v = load("p", (v,), i64)
    moved = v.substitute({D.the_sym(I): J})
    assert moved.depth == v.depth and moved.symbols() == {D.the_sym(J)}


def quotients(n: int, at: D.Dim = I) -> D.Dim:
    """Every part is read twice: written out as a tree there would be two to the n of them."""
    for k in range(n):
        at = D.floordiv(at, 2) + D.mod(5 * at + k, 37)
    return at


def gathered(n: int, at: D.Dim = I) -> D.Dim:
    for _ in range(n):
        at = load("p", (at,), i64).as_dim() * 2 + load("q", (at,), i64).as_dim()
    return at


@pytest.mark.parametrize("make", [quotients, gathered])
def test_index_functions_that_share_their_parts(make) -> None:
    """None of this is as long as the tree would be: it ends at once, or never."""
    x = make(60)
    assert len(str(x)) < 2000 and len(list(D.atoms(x))) < 200
    assert D.substitute(x, {D.the_sym(I): J}) is make(60, J)
    text = dim_text(x)
    assert len(text) < 10_000
    scope = Scope({"p": i64, "q": i64}, {"i": D.the_sym(I)})
    assert parse_dim(text, scope) is x
    v = load("p", (x,), i64) + index(3 * x)
    assert parse_value(value_text(v), scope) is v
    small = make(3)
    assert "t0" not in dim_text(small) and parse_dim(dim_text(small), scope) is small


def test_the_value_of_quotients_that_share_their_parts() -> None:
    at = 41
    for k in range(60):
        at = at // 2 + (5 * at + k) % 37
    assert D.evaluate(quotients(60), {"i": 41}) == at


def test_a_deep_value_comes_back_from_its_text() -> None:
    v = chain(600)
    scope = Scope({"x": f32, "y": f32}, {"i": D.the_sym(I)})
    assert parse_value(value_text(v), scope) is v


def test_parts_of_a_long_condition() -> None:
    conditions = [load("c", (k,), b1) for k in range(DEEP)]
    joined = conditions[0]
    for c in conditions[1:]:
        joined = fn("and", joined, c)
    assert parts_of(joined) == conditions


def test_a_deep_value_is_evaluated() -> None:
    grid = {"i": np.arange(4)}
    x = np.array([3.0, 1.0, -2.0, 0.0], np.float32)
    v, want = load("x", (I,), f32), x
    for k in range(DEEP):
        own = load("x", (I,), f32)
        v = fn("select", fn("gt", own, float(k)), own, fn("neg", v))
        want = np.where(x > k, x, -want)
    found = Evaluator({"x": x}, {}, grid)(fn("add", v, v))
    np.testing.assert_array_equal(found, want * 2)
    at: Value = load("p", (I,), i64)
    for _ in range(DEEP):
        at = load("p", (at,), i64)
    turned = Evaluator({"p": np.array([1, 2, 3, 0])}, {}, grid)(at)
    np.testing.assert_array_equal(turned, (np.arange(4) + DEEP + 1) % 4)


def test_powers_are_no_index_functions() -> None:
    """They are made by squaring: a monomial has as many factors as its exponent says."""
    value = index(I)
    for _ in range(8):
        value = fn("mul", value, value)
    assert not isinstance(value, Index)
    assert isinstance(fn("mul", index(I * I), index(I + 1)), Index)
    powers = np.arange(4) ** 256  # wraps around
    np.testing.assert_array_equal(Evaluator({}, {}, {"i": np.arange(4)})(value), powers)


def test_what_a_select_leaves_out_may_be_out_of_bounds() -> None:
    inside = fn("lt", index(I), 3)
    v = fn("select", inside, load("x", (I,), f32), fn("neg", load("x", (I - 3,), f32)))
    memory, grid = {"x": np.array([1.0, 2.0, 4.0], np.float32)}, {"i": np.arange(6)}
    assert Evaluator(memory, {}, grid)(v).tolist() == [1, 2, 4, -1, -2, -4]
    with pytest.raises(IndexError, match="outside an axis of 3"):
        Evaluator(memory, {}, grid)(fn("add", v, load("x", (I,), f32)))
