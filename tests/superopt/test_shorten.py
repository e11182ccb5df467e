"""Rules that follow from others of other shapes and settings are left out, and only those."""

from __future__ import annotations

from tilewright.superopt.applied import rules_of
from tilewright.superopt.shorten import gains, shortened
from tilewright.superopt.text import parse_equality

SUMS = [
    f"add(add(a, b), c) == add(add(a, c), b) where a: {a}, b: {b}, c: {c}"
    for a, b, c in (("[]", "[m, n]", "[m, n]"), ("[m, n]", "[n]", "[m, n]"), ("[n]", "[n]", "[]"))
]
POOLED = (
    "avg_pool(mul(i, s), kernel={0}, stride=(1, 1), padding={1}, divisor=1)"
    " == mul(avg_pool(i, kernel={0}, stride=(1, 1), padding={1}, divisor=1), s)"
    " where i: [n, c, h, w], s: []"
)
SCALED = "matmul(mul(s, a), b) == mul(s, matmul(a, b)) where s: [], a: [m, k], b: [k, n]"
MOVED = "matmul(mul(s, a), b) == matmul(a, mul(s, b)) where s: [], a: [m, k], b: [k, n]"
OTHER = "mul(s, matmul(a, b)) == matmul(a, mul(s, b)) where s: [], a: [m, k], b: [k, n]"


def test_other_shapes_and_settings_follow() -> None:
    pooled = [POOLED.format(k, p) for k, p in (("(3, 3)", "(1, 1)"), ("(5, 5)", "(2, 2)"))]
    found = [parse_equality(text) for text in (*SUMS, *pooled)]
    assert len(shortened(found)) == 2


def test_what_others_say_together_follows() -> None:
    found = [parse_equality(text) for text in (SCALED, MOVED, OTHER)]
    kept = shortened(found)
    assert len(kept) == 2
    known = [r for e in kept for r in rules_of(e, str(e))]
    assert shortened(found, known) == []


def test_what_is_new_stays() -> None:
    found = [parse_equality(text) for text in (SCALED, SUMS[0])]
    assert set(shortened(found)) == set(found)


def test_operands_change_places() -> None:
    texts = (
        "slice(concat(a, b, axis=1), axis=1, start=first, stop=middle) == a"
        " where a: [m, k], b: [m, n]",
        "concat(add(a, s), add(b, s), axis=1) == add(concat(a, b, axis=1), s)"
        " where a: [m, k], s: [], b: [m, n]",
        "slice(add(concat(a, b, axis=1), s), axis=1, start=first, stop=middle) == add(s, a)"
        " where a: [m, k], b: [m, n], s: []",
    )
    first, second, both = map(parse_equality, texts)
    assert set(shortened([first, second, both])) == {first, second}


def test_what_gains_nothing_is_left_out_unless_it_is_needed() -> None:
    swapped = parse_equality(
        "matmul(concat(a, b, axis=1), concat(c, d, axis=0))"
        " == matmul(concat(b, a, axis=1), concat(d, c, axis=0))"
        " where a: [m, k], b: [m, n], c: [k, o], d: [n, o]"
    )
    twice = parse_equality("add(relu(a), relu(a)) == relu(add(a, a)) where a: [m, n]")
    fewer = parse_equality(
        "add(relu(add(a, a)), add(relu(a), relu(a))) == add(relu(add(a, a)), relu(add(a, a)))"
        " where a: [m, n]"
    )
    moved = parse_equality(
        "relu(permute(a, perm=(1, 0))) == permute(relu(a), perm=(1, 0)) where a: [m, n]"
    )
    assert not gains(swapped) and not gains(twice) and gains(fewer)
    # Of other shapes, or of other leaves, an operator may cost less, or can be computed before.
    assert gains(moved) and all(gains(parse_equality(t)) for t in (*SUMS, SCALED, MOVED, OTHER))
    assert shortened([swapped, twice]) == []
    assert shortened([swapped, twice, fewer]) == [twice]
