"""Equalities in the table of all programs: what a rule connects, and what is left to prove."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.superopt.applied import rules_of
from tilewright.superopt.connect import Nodes, Parts, fits
from tilewright.superopt.enumerate import Space, enumerated
from tilewright.superopt.mine import Mining, Reduced
from tilewright.superopt.records import Record
from tilewright.superopt.shorten import follows
from tilewright.superopt.terms import Equality, Leaf, Trees, equalities
from tilewright.superopt.text import parse_equality
from tilewright.superopt.vocabulary import Vocabulary

X, W = ("m", "k"), ("k", "k")
LEAVES = (("x1", X), ("w1", W), ("w2", W), ("p", ()))
FEW = Vocabulary(
    "few", ("matmul", "mul", "relu", "concat"), LEAVES, {"m": 2, "k": 3}, positive=("p",)
)
CHAIN = "matmul(matmul(a, b), c) == matmul(a, matmul(b, c)) where a: [m, k], b: [k, n], c: [n, o]"
SCALED = "relu(mul(a, p)) == mul(relu(a), p) where a: [m, n], p: [] >= 0"
SCALED_BY_ANY = "relu(mul(a, s)) == mul(relu(a), s) where a: [m, n], s: []"
ALONE = "concat(a, axis=0) == a where a: [m, n]"


@pytest.fixture(scope="module")
def space() -> Space:
    return enumerated(FEW, 2)


def connected(space: Space, text: str) -> set[tuple[str, str]]:
    nodes, trees = Nodes(space), Trees(space)

    def shown(n: int) -> str:
        first = n < len(space.programs)
        return str(trees.of(n) if first else trees.at(nodes.programs, n))

    pairs = nodes.connected_by(parse_equality(text), np.arange(len(nodes)))
    return {(min(p), max(p)) for p in ((shown(int(a)), shown(int(b))) for a, b in zip(*pairs))}


def test_a_rule_connects_what_it_says(space: Space) -> None:
    found = connected(space, CHAIN)
    assert ("matmul(matmul(x1, w1), w2)", "matmul(x1, matmul(w1, w2))") in found
    # Leaves of the rule stand for any programs of their kinds, the same for the same one.
    assert ("matmul(matmul(w1, w1), w1)", "matmul(w1, matmul(w1, w1))") in found
    assert all("relu" not in a and "mul(p" not in a for a, _ in found)
    # One operand is another program than two, although the operator is the same.
    alone = connected(space, ALONE)
    assert ("concat(x1, axis=0)", "x1") in alone
    assert all(f"concat({b}, axis=0)" == a or f"concat({a}, axis=0)" == b for a, b in alone)


def test_conditions_are_kept(space: Space) -> None:
    found = connected(space, SCALED)
    assert len(found) == 3 and all("p" in a and "p" in b for a, b in found)
    assert connected(space, SCALED_BY_ANY) == found  # nothing else is equal in this space
    a, b = (Leaf(n, ("m", "m")) for n in "ab")
    assert fits([a, b], [W, W]) and not fits([a], [X]) and not fits([a], [("m",)])
    assert not fits([a, b], [W, (("k", "k"), ("k", "k"))])
    assert fits([Leaf("k", ("o", 3))], [("k", 3)]) and not fits([Leaf("k", ("o", 3))], [("k", 1)])


def test_a_part_that_is_used_twice_is_one_class() -> None:
    v = Vocabulary("few", ("mul",), (("x1", X),), {"m": 2, "k": 3})
    rule = "mul(mul(a, a), mul(a, a)) == mul(mul(mul(a, a), a), a) where a: [m, n]"
    pair = "mul(mul(x1, x1), mul(x1, x1))", "mul(x1, mul(x1, mul(x1, x1)))"
    assert connected(enumerated(v, 3), rule) == {pair}


def test_parts_that_are_not_connected_are_open(space: Space) -> None:
    nodes = Nodes(space)
    parts = Parts(nodes)
    parts.begin(2)
    before = len(parts.open())
    rules = [parse_equality(t) for t in (CHAIN, SCALED, ALONE)]
    parts.join([nodes.connected_by(e, parts.active) for e in rules])
    parts.settle()
    left = parts.open()
    assert 0 < len(left) < before
    size = nodes.size[left].sum(axis=1)
    assert size.tolist() == sorted(size.tolist())  # small ones first
    label, base = left[0]
    assert nodes.of[label] == nodes.of[base] and label != base
    parts.put_aside(label)
    parts.settle()
    assert not any(a == label and b == base for a, b in parts.open())


def test_what_is_proved_follows_from_few(space: Space) -> None:
    reduced = Reduced(space).run()
    true = [e for e in equalities(space) if e.is_proved()]
    rules = [r for e in reduced.rules for r in rules_of(e, str(e))]
    assert len(reduced.tried) < len(true) and all(follows(e, rules) for e in true)
    assert sum(reduced.tried.values()) == len(reduced.rules)
    assert reduced.open < reduced.equalities / 10
    again = Reduced(enumerated(FEW, 2)).run()
    assert again.rules == reduced.rules  # numbers do not depend on the run


def test_a_small_rule_does_not_follow_from_larger_programs() -> None:
    """Such as from x for its transpose's transpose, which no rule makes of x."""
    leaves = (("x1", X), ("w1", W), ("b", ("k",)))
    v = Vocabulary("scales", ("matmul", "mul", "permute"), leaves, {"m": 2, "k": 3})
    small = "matmul(mul(b1, w1), permute(x1, perm=(1, 0)))"
    small += " == matmul(w1, permute(mul(b1, x1), perm=(1, 0)))"
    assert any(str(e).startswith(small) for e in Reduced(enumerated(v, 4)).run().rules)


def test_wrong_equalities_are_put_aside() -> None:
    """Values that agree by chance, here of single numbers of one sign, are no rule."""
    v = Vocabulary("few", ("mul", "relu"), (("x1", X), ("p", ())), {"m": 1, "k": 1}, points=1)
    space = enumerated(v, 2)
    found = Reduced(space).run()
    wrong = [e for e, proved in found.tried.items() if not proved]
    assert wrong and all(not e.is_proved() for e in wrong)
    assert all(e.is_proved() for e in found.rules)


def test_rules_are_written_with_both_proofs(space: Space) -> None:
    found = Mining(Reduced(space)).run()
    assert not found.refused and all(isinstance(r, Record) for r in found.rules)
    rules = [parse_equality(r.rule) for r in found.rules]
    assert len(rules) <= found.proved <= found.tried < found.equalities
    assert all(e.is_rule for e in rules)


def test_what_cannot_be_written_for_the_other_side_is_no_rule() -> None:
    x1, x2 = Leaf("x1", X), Leaf("x2", X)
    assert Equality(x1, x1).is_rule and not Equality(x1, x2).is_rule
