"""Classes of equal nodes, saturation and extraction, judged by evaluation and by brute force."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from tilewright import ops, rewrites
from tilewright.base.errors import Invalid
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Input, Node, input, topological
from tilewright.ir.pattern import Rule, Var, op
from tilewright.ir.types import TensorType, f64
from tilewright.superopt.classes import Because, Classes
from tilewright.superopt.extract import cheapest
from tilewright.superopt.saturate import Budget, saturate
from tilewright.superopt.search import holds_of_floats, searched_rules
from tilewright.superopt.text import parse_equality

SAID = Because("said")
A, B, C = Var("a"), Var("b"), Var("c")
RULES = [
    Rule("associate", op.matmul(op.matmul(A, B), C), op.matmul(A, op.matmul(B, C))),
    Rule("associate back", op.matmul(A, op.matmul(B, C)), op.matmul(op.matmul(A, B), C)),
    Rule("distribute", op.matmul(A, op.add(B, C)), op.add(op.matmul(A, B), op.matmul(A, C))),
    Rule("collect", op.add(op.matmul(A, B), op.matmul(A, C)), op.matmul(A, op.add(B, C))),
    Rule("twice", op.neg(op.neg(A)), A),
    Rule("zero", op.add(A, op.sub(B, B)), A),
]


def make(name: str, *operands: Node) -> Node:
    return getattr(ops, name)(*operands)


def tensor(name: str, rows: int = 3, columns: int = 3) -> Node:
    return input(name, TensorType(f64, (rows, columns)))


def drawn(rng: random.Random, count: int) -> Node:
    """A random program over square matrices, which shares what it computes."""
    values = [tensor(x) for x in "xyz"]
    for _ in range(count):
        name = rng.choice(["matmul", "matmul", "add", "sub", "neg"])
        operands = [rng.choice(values[-5:]) for _ in range(1 if name == "neg" else 2)]
        values.append(make(name, *operands))
    return values[-1]


def value(n: Node, seed: int) -> np.ndarray:
    ins = tuple(x for x in topological((n,)) if not x.inputs)
    rng = np.random.default_rng(seed)
    given = {name: rng.integers(-3, 4, (3, 3)).astype(float) for name in "xyz"}
    args = [given[x.op.label] for x in ins if isinstance(x.op, Input)]
    return evaluate(Graph("g", ins, (n,)), args)[0]


COSTS = {"matmul": 10.0, "add": 2.0, "sub": 2.0, "neg": 1.0, "input": 0.0}


def cost(n: Node) -> float:
    return COSTS[n.op.name]


def total(n: Node) -> float:
    return sum(map(cost, topological((n,))))


def everything(classes: Classes, root: Node) -> Iterator[float]:
    """What every choice of members costs that leads to no cycle."""
    leaders = list(classes)
    for chosen in product(*(classes.members(x) for x in leaders)):
        table = dict(zip(leaders, chosen, strict=True))
        below = {x: dict.fromkeys(table[x].inputs) for x in leaders}
        used, stack = set(), [classes.leader(root)]
        while stack:
            x = stack.pop()
            if x not in used:
                used.add(x)
                stack += below[x]
        if not _circular({x: below[x] for x in used}):
            yield sum(cost(table[x]) for x in used)


def _circular(below: dict[Node, dict[Node, None]]) -> bool:
    while done := [x for x, ys in below.items() if not any(y in below for y in ys)]:
        for x in done:
            del below[x]
    return bool(below)


@pytest.mark.parametrize("seed", range(25))
def test_random_programs(seed: int) -> None:
    """Members of a class have one value, and what is extracted is right and costs no more."""
    root = drawn(random.Random(seed), 7)
    classes = Classes((root,))
    saturate(classes, RULES, Budget(members=150, rounds=4))
    for leader in classes:
        for m in classes.members(leader):
            assert all(classes.leader(x) is x for x in m.inputs), (seed, m)
    found = cheapest(classes, (root,), cost)
    np.testing.assert_array_equal(value(found.roots[0], seed), value(root, seed), f"seed {seed}")
    assert total(found.roots[0]) <= total(root), seed
    assert found.cost == pytest.approx(total(found.roots[0])), seed


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_cheaper(seed: int) -> None:
    root = drawn(random.Random(100 + seed), 4)
    classes = Classes((root,))
    saturate(classes, RULES, Budget(members=14, rounds=2))
    choices = 1
    for leader in classes:
        choices *= len(classes.members(leader))
    if choices > 20_000:
        return
    assert cheapest(classes, (root,), cost).cost == pytest.approx(min(everything(classes, root)))


def test_no_round_follows_where_there_is_enough() -> None:
    x, y, z = (tensor(n) for n in "xyz")
    left, right = make("matmul", make("matmul", x, y), z), make("matmul", x, make("matmul", y, z))
    classes = Classes((left, right))

    def equal(classes: Classes) -> bool:
        return classes.leader(left) is classes.leader(right)

    found = saturate(classes, RULES, enough=equal)
    assert equal(classes) and (found.ended, found.rounds) == ("enough", 1)


def test_what_is_shared_is_paid_once() -> None:
    """A tree would take x(yz) and x(y(zx)) apart; together they share yz or xy."""
    x, y, z = (tensor(n) for n in "xyz")
    xy, yz = make("matmul", x, y), make("matmul", y, z)
    a, b = make("matmul", x, yz), make("matmul", xy, y)
    roots = (a, b)
    classes = Classes(roots)
    saturate(classes, RULES[:2])
    found = cheapest(classes, roots, cost)
    assert found.best and found.cost == 30.0  # xy, xy z, xy y


@pytest.mark.parametrize("seed", range(30))
def test_proofs(seed: int) -> None:
    """What was chosen equals what was given because of the rules that the proof names, and of
    nothing else."""
    root = drawn(random.Random(seed), 8)
    classes = Classes((root,))
    saturate(classes, RULES, Budget(members=400))
    chosen = cheapest(classes, (root,), cost)
    proof = classes.why([(root, classes.leader(root)), *chosen.members.items()])
    assert bool(proof) == (chosen.roots[0] is not root), seed
    again = Classes((root, *chosen.roots))
    for step in proof:
        assert step.rule in {r.name for r in RULES}, seed
        assert np.array_equal(value(step.before, seed), value(step.after, seed)), seed
        again.add(step.before), again.add(step.after)
        again.join(step.before, step.after, SAID)
        again.settle()
    assert again.leader(root) is again.leader(chosen.roots[0]), seed


def test_what_is_not_equal_has_no_proof() -> None:
    x, y = tensor("x"), tensor("y")
    with pytest.raises(Invalid, match="not known to be equal"):
        Classes((x, y)).why([(x, y)])


def test_classes_that_become_alike_are_one() -> None:
    x, y = tensor("x"), tensor("y")
    a, b = make("neg", make("neg", x)), make("neg", make("neg", y))
    classes = Classes((a, b))
    assert classes.join(x, y, SAID) and not classes.join(y, x, SAID)
    classes.settle()
    assert classes.leader(a) is classes.leader(b) and len(list(classes)) == 3
    with pytest.raises(Invalid, match="types differ"):
        classes.join(x, classes.add(tensor("w", 2)), SAID)


def test_a_class_may_lead_back_to_itself() -> None:
    x = tensor("x")
    y = make("add", x, make("sub", x, x))
    classes = Classes((y,))
    saturate(classes, RULES)
    assert classes.leader(y) is classes.leader(x)
    found = cheapest(classes, (y,), cost)
    assert found.roots == (x,) and found.cost == 0


def test_budgets_end_a_search() -> None:
    chain = tensor("x")
    for k in range(9):
        chain = make("matmul", chain, tensor("yz"[k % 2]))
    assert saturate(Classes((chain,)), RULES[:2], Budget(rounds=1)).ended == "rounds"
    assert saturate(Classes((chain,)), RULES[:2], Budget(members=30)).ended == "members"
    assert saturate(Classes((chain,)), RULES[:2], Budget(seconds=0)).ended == "seconds"
    slow, fast = Classes((chain,)), Classes((chain,))
    few = saturate(slow, RULES[:2], Budget(matches=50, rounds=100))
    every = saturate(fast, RULES[:2], Budget(rounds=60))
    assert few.ended == every.ended == "saturated" and few.rounds > every.rounds
    assert len(slow) == len(fast)  # rules that rest miss nothing


@pytest.mark.parametrize("seed", range(30))
def test_random_joins(seed: int) -> None:
    """Classes that read themselves too: members over leaders, and nothing alike in two classes."""
    rng = random.Random(seed)
    classes = Classes((drawn(rng, 8), drawn(rng, 8)))
    for _ in range(6):
        one, other = rng.sample(list(classes), 2)
        classes.join(one, other, SAID)
        classes.settle()
        places: dict[Node, Node] = {}
        for leader in classes:
            for m in classes.members(leader):
                assert all(classes.leader(x) is x for x in m.inputs), seed
                assert places.setdefault(m, leader) is leader, seed
                assert all(leader in classes.users(x) for x in m.inputs), seed
        assert len(places) == len(classes), seed


def test_a_variable_that_is_repeated_is_seen_from_the_root() -> None:
    x, b = tensor("x"), tensor("y")
    y = ops.maximum(x, b)
    classes = Classes((y,))
    classes.changed.clear()
    classes.join(x, b, SAID)
    classes.settle()
    saturate(classes, [Rule("same", op.maximum(A, A), A)])
    assert classes.leader(y) is classes.leader(x)


def test_deep_graphs_with_shared_values() -> None:
    """Trees of which would cost more than a float holds."""
    x = tensor("x")
    for _ in range(1100):
        x = make("add", make("neg", x), x)
    assert cheapest(Classes((x,)), (x,), cost).cost == pytest.approx(1100 * 3)


def test_operands_of_any_number_match_other_members() -> None:
    """Three tensors turn out to be slices of one: put together they are that one."""
    whole = tensor("w", 9)
    parts = [tensor(n) for n in "abc"]
    joined = ops.concat(parts, 0)
    classes = Classes((joined, whole))
    for k, n in enumerate(parts):
        part = ops.slice(whole, 0, 3 * k, 3 * k + 3)
        classes.add(part)
        classes.join(n, part, SAID)
    classes.settle()
    (rule,) = (r for r in rewrites.all_rules() if r.name == "concat-slices")
    (all_of_it,) = (r for r in rewrites.all_rules() if r.name == "slice-all")
    saturate(classes, [rule, all_of_it])
    assert classes.leader(joined) is classes.leader(whole)
    assert [p.rule for p in classes.why([(joined, whole)])].count("said") == 3


def test_what_floats_cannot_follow_is_not_searched() -> None:
    """Exponentials overflow where sums of exponents do not; what cancels may be there to round."""
    for text in (
        "mul(exp(a), exp(b)) == exp(add(a, b)) where a: [m], b: [m]",
        "sub(add(a, b), b) == a where a: [m], b: [m]",
    ):
        e = parse_equality(text)
        assert e.is_proved() and not holds_of_floats(e)
    moved = (
        "slice(concat(a, b, axis=0), axis=0, start=first, stop=middle) == a where a: [m], b: [n]"
    )
    assert holds_of_floats(parse_equality(moved))
    named = [r.name for r in searched_rules()]
    assert any(n.startswith("quotients") for n in named)
