"""Values of any depth: nothing in ir/ recurses as deep as a program is."""

from tilewright.ir import dim as D
from tilewright.ir.conditions import parts_of
from tilewright.ir.expr import Value, fn, load, loads, replaced, rewrite, walk
from tilewright.ir.types import b1, f32, i64
from tilewright.ir.value_text import Scope, parse_value, value_text

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
