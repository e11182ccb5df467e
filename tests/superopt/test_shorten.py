"""Rules that follow from others of other shapes and settings are left out, and only those."""

from __future__ import annotations

from tilewright.superopt.shorten import shortened
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
    assert shortened(found, kept) == []


def test_what_is_new_stays() -> None:
    found = [parse_equality(text) for text in (SCALED, SUMS[0])]
    assert set(shortened(found)) == set(found)
