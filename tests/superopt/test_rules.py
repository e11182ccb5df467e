"""From equalities to a few general ones: what follows from others, and what need not be equal."""

from __future__ import annotations

import pytest

from tilewright.superopt import terms
from tilewright.superopt.applied import rules_of
from tilewright.superopt.blocks import Kind, Marks
from tilewright.superopt.enumerate import enumerated
from tilewright.superopt.generalise import generalised
from tilewright.superopt.shorten import follows, gains, shortened
from tilewright.superopt.terms import Equality, Leaf, Term, Tree, equalities, kind_of, leaves
from tilewright.superopt.text import parse_equality
from tilewright.superopt.vocabulary import Instance, Vocabulary

X, W = ("m", "k"), ("k", "k")
w1, w2, w3 = (Leaf(f"w{k}", W) for k in (1, 2, 3))
LEAVES = (("x1", X), ("x2", X), ("w1", W), ("w2", W))


def apply(name: str, *operands: Tree, **attributes: object) -> Term:
    return Term(Instance(name, tuple(attributes.items())), operands)


def matmul(a: Tree, b: Tree) -> Term:
    return apply("matmul", a, b)


def add(a: Tree, b: Tree) -> Term:
    return apply("add", a, b)


def proved(e: Equality) -> bool:
    return e.is_proved()


def derived(e: Equality, *known: Equality) -> bool:
    return follows(e, [r for x in known for r in rules_of(x, str(x))])


def kinds(e: Equality) -> dict[str, Kind]:
    return {x.name: x.kind for side in (e.left, e.right) for x in leaves(side)}


ASSOCIATIVE = Equality(matmul(matmul(w1, w2), w3), matmul(w1, matmul(w2, w3)))
DISTRIBUTIVE = Equality(add(matmul(w1, w2), matmul(w1, w3)), matmul(w1, add(w2, w3)))


def test_what_follows_and_what_does_not() -> None:
    deep = Equality(matmul(matmul(matmul(w1, w2), w3), w1), matmul(w1, matmul(w2, matmul(w3, w1))))
    swapped = Equality(matmul(w1, w2), matmul(w2, w1))
    sums = Equality(add(w1, w2), add(w2, w1))  # of commutative operators nothing need be known
    assert [derived(e, ASSOCIATIVE) for e in (deep, swapped, sums)] == [True, False, True]
    assert not derived(deep, DISTRIBUTIVE)


def test_only_the_general_ones_are_left() -> None:
    twice = Equality(add(matmul(w1, w2), matmul(w1, w2)), matmul(w1, add(w2, w2)))
    kept = shortened([twice, DISTRIBUTIVE, ASSOCIATIVE])
    assert set(kept) == {DISTRIBUTIVE, ASSOCIATIVE}


def test_leaves_and_sizes_become_free() -> None:
    twice = Equality(add(matmul(w1, w2), matmul(w1, w2)), matmul(w1, add(w2, w2)))
    found = generalised(twice)
    assert str(found).startswith("add(matmul(w1, w2), matmul(w1, w3)) == matmul(w1, add(w2, w3))")
    a, b = kinds(found)["w1"], kinds(found)["w2"]
    assert a[1] == b[0] and len({*a, *b}) == 3
    assert kinds(found)["w2"] == kinds(found)["w3"] and proved(found)


def test_sizes_of_parts_become_free() -> None:
    def joined(a: Tree, b: Tree, axis: int) -> Term:
        return apply("concat", a, b, axis=axis)

    merged = Equality(joined(matmul(w1, w2), matmul(w1, w3), 1), matmul(w1, joined(w2, w3, 1)))
    found = kinds(generalised(merged))
    assert len({x for kind in found.values() for x in kind}) == 4
    grid = Equality(
        joined(joined(w1, w2, 1), joined(w3, w1, 1), 0),
        joined(joined(w1, w3, 0), joined(w2, w1, 0), 1),
    )
    free = generalised(grid)
    assert len(kinds(free)) == 4 and proved(free)


def test_sizes_that_operators_make_become_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of two images are equal where the images' are. Sizes have their names by the first
    operator that made them in this process: here it is the equality's own."""
    monkeypatch.setattr(terms, "_MARKS", Marks())
    kind_of.cache_clear()
    window = "kernel=(3, 3), stride=(2, 2), padding=(0, 0), divisor=1"
    i, j = (f"avg_pool({x}, {window})" for x in "ij")
    where = " where i: [n, c, h, w], j: [n, c, h, w]"
    e = parse_equality(
        f"concat({i}, {j}, axis=0) == avg_pool(concat(i, j, axis=0), {window})" + where
    )
    a, b = kinds(generalised(e)).values()
    assert a[1:] == b[1:] and len({*a, *b}) == 5
    kind_of.cache_clear()


@pytest.mark.parametrize(
    "wrong",
    [
        Equality(matmul(w1, w2), matmul(w2, w1)),
        Equality(apply("relu", add(w1, w2)), add(apply("relu", w1), apply("relu", w2))),
    ],
    ids=str,
)
def test_what_is_wrong_is_not_made_general(wrong: Equality) -> None:
    assert not proved(wrong) and not proved(generalised(wrong))


def test_signs_are_conditions() -> None:
    """What holds of a tensor without negative elements is not used of another."""
    p, s = Leaf("p1", (), positive=True), Leaf("s1", ())

    def relu(x: Tree) -> Term:
        return apply("relu", x)

    out = Equality(relu(apply("mul", w1, p)), apply("mul", relu(w1), p))
    nothing = Equality(relu(p), p)
    assert proved(out) and proved(nothing) and len(set(kinds(generalised(out))["w1"])) == 2
    wrong = Equality(relu(apply("mul", w1, s)), apply("mul", relu(w1), s))
    assert not proved(wrong)
    again = Equality(relu(apply("mul", w2, p)), apply("mul", relu(w2), p))
    assert derived(again, out, nothing)
    assert not derived(wrong, out, nothing) and not derived(Equality(relu(w1), w1), out, nothing)


def test_what_does_not_fit_has_no_kind() -> None:
    x = Leaf("x1", X)
    assert kind_of(matmul(x, w1)) == X
    assert kind_of(matmul(w1, x)) is None and kind_of(add(x, w1)) is None


def test_from_end_to_end() -> None:
    """All equalities of up to two operators that gain follow from a few general ones."""
    v = Vocabulary("few", ("matmul", "add", "permute", "concat"), LEAVES, {"m": 2, "k": 3})
    true = [e for e in equalities(enumerated(v, 2)) if proved(e)]
    few = shortened(list(dict.fromkeys(generalised(e) for e in shortened(true))))
    assert all(map(proved, few)) and len(few) < len(true) / 3
    assert all(derived(e, *few) for e in true if gains(e))
