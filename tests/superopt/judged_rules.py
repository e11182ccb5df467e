"""Both provers judged on random rules: true ones by construction, and ones with a single mistake.

A mutant is a true rule with one change on one side: an axis, the order of operands, a setting of a
convolution or pool, a sign, a constant, an operator, a leaf, a condition that is dropped. It counts
where both sides differ at a random point in float64; one that happens to be true does not.

    python -m tests.superopt.judged_rules --seed 1 --count 200
    python -m tests.nightly --only rules
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.generators import checked
from tests.superopt.drawn_rules import apply, drawn
from tilewright.base.errors import Invalid, Unsupported
from tilewright.ir.node import Graph
from tilewright.ops.control import by_references
from tilewright.rewrites.proofs.prove import inputs_of
from tilewright.superopt.points import argument, differs, sized
from tilewright.superopt.terms import Equality, Leaf, Term, Tree, kind_of
from tilewright.superopt.text import parse_equality
from tilewright.superopt.vocabulary import Bound, Instance

# Places and ways of a change that are tried until one fits, and points at which sides may differ.
TRIES, POINTS = 16, 12
OTHER = {
    "add": ("sub", "mul"),
    "sub": ("add",),
    "mul": ("add", "div"),
    "div": ("mul",),
    "maximum": ("minimum", "add"),
    "minimum": ("maximum",),
    "relu": ("abs", "neg"),
    "exp": ("tanh", "cosh"),
    "tanh": ("sin",),
    "sum": ("amax", "mean"),
    "amax": ("amin", "sum"),
    "mean": ("sum",),
    "neg": ("abs",),
}
Change = Callable[[random.Random, Term], Iterator[Tree]]


# ---- changes of one operator: each yields what it may become


def order(rng: random.Random, t: Term) -> Iterator[Tree]:
    if len(t.operands) == 2 and not t.instance.commutative:
        yield Term(t.instance, t.operands[::-1])


def with_attributes(t: Term, **new: Any) -> Term:
    given = dict(t.instance.attributes) | new
    return Term(Instance(t.instance.name, tuple(given.items())), t.operands)


def axis(rng: random.Random, t: Term) -> Iterator[Tree]:
    given = dict(t.instance.attributes)
    kind = kind_of(t.operands[0]) if t.operands else None
    rank = len(kind) if kind is not None else 4
    if "perm" in given:
        perm = list(given["perm"])
        rng.shuffle(perm)
        yield with_attributes(t, perm=tuple(perm))
        yield t.operands[0]
    if "axes" in given:
        yield with_attributes(t, axes=(rng.randrange(rank),))
    if "axis" in given:
        other = rng.randrange(rank)
        new = {k: replace(v, axis=other) for k, v in given.items() if isinstance(v, Bound)}
        yield with_attributes(t, axis=other, **new)


def bounds(rng: random.Random, t: Term) -> Iterator[Tree]:
    """The other part of an axis."""
    given = dict(t.instance.attributes)
    start = given.get("start")
    if isinstance(start, Bound):
        ends = ("right", "last") if start.end == "first" else ("first", "left")
        new = {k: Bound(start.axis, e) for k, e in zip(("start", "stop"), ends, strict=True)}
        yield with_attributes(t, **new)
    elif start == 0 and given.get("step", 1) > 1:
        yield with_attributes(t, start=1)


def settings(rng: random.Random, t: Term) -> Iterator[Tree]:
    given = dict(t.instance.attributes)
    for name in ("stride", "padding", "dilation", "kernel", "lo", "hi"):
        if name in given:
            old = given[name]
            k = rng.randrange(len(old))
            yield with_attributes(t, **{name: old[::-1]})
            for by in (1, -1):
                changed = tuple(max(0, v + by) if j == k else v for j, v in enumerate(old))
                yield with_attributes(t, **{name: changed})
    if "dilation" in given and "padding" in given:
        # Together they may keep the size.
        for d in (1, 2, 3):
            for p in (0, 1, 2, 3):
                yield with_attributes(t, dilation=(d,) * 2, padding=(p,) * 2)
    if "lo" in given:
        yield with_attributes(t, lo=given["hi"], hi=given["lo"], value=1.0)
    if "count_include_pad" in given:
        yield with_attributes(t, count_include_pad=not given["count_include_pad"])
        yield with_attributes(t, divisor=5)


def kernels(rng: random.Random, t: Term) -> Iterator[Tree]:
    """A kernel that is turned over."""
    if t.instance.name == "conv":
        x, w = t.operands
        for k in (2, 3):
            yield Term(t.instance, (x, apply("flip", w, axes=(k,))))
        yield Term(t.instance, (x, apply("permute", w, perm=(0, 1, 3, 2))))


def groups(rng: random.Random, t: Term) -> Iterator[Tree]:
    """Channels that belong to other groups."""
    if t.instance.name == "conv" and dict(t.instance.attributes).get("groups", 1) > 1:
        x, w = t.operands
        yield Term(t.instance, (apply("flip", x, axes=(1,)), w))
        yield Term(t.instance, (x, apply("flip", w, axes=(0,))))
        for k, y in enumerate(t.operands):
            if isinstance(y, Term) and y.instance.name == "concat":
                other = Term(y.instance, y.operands[::-1])
                yield Term(t.instance, (other, w) if k == 0 else (x, other))


def sign(rng: random.Random, t: Term) -> Iterator[Tree]:
    yield apply("neg", t)
    k = rng.randrange(len(t.operands)) if t.operands else -1
    if k >= 0:
        changed = tuple(apply("neg", x) if j == k else x for j, x in enumerate(t.operands))
        yield Term(t.instance, changed)


def constant(rng: random.Random, t: Term) -> Iterator[Tree]:
    given = dict(t.instance.attributes)
    if isinstance(given.get("value"), float):
        yield with_attributes(t, value=given["value"] + 0.5)
    yield apply("add", t, t)


def operator(rng: random.Random, t: Term) -> Iterator[Tree]:
    for name in OTHER.get(t.instance.name, ()):
        yield Term(Instance(name, t.instance.attributes), t.operands)
    yield from t.operands  # it is left out


def leaf(rng: random.Random, t: Term) -> Iterator[Tree]:
    """One operand in the place of another."""
    for k, x in enumerate(t.operands):
        for other in t.operands:
            if other is not x:
                yield Term(
                    t.instance, tuple(other if j == k else y for j, y in enumerate(t.operands))
                )


CHANGES: dict[str, Change] = {
    f.__name__: f
    for f in (order, axis, bounds, settings, kernels, groups, sign, constant, operator, leaf)
}


ALL_CHANGES = [*CHANGES, "condition"]
# Those that seldom fit are tried first, half of the time.
SELDOM = ["condition", "settings", "groups", "bounds", "axis"]


def places(t: Tree, at: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Term]]:
    if isinstance(t, Term):
        yield at, t
        for k, x in enumerate(t.operands):
            yield from places(x, (*at, k))


def put(t: Tree, at: tuple[int, ...], new: Tree) -> Tree:
    if not at:
        return new
    assert isinstance(t, Term)
    operands = list(t.operands)
    operands[at[0]] = put(operands[at[0]], at[1:], new)
    return Term(t.instance, tuple(operands))


def without_condition(e: Equality) -> Equality | None:
    positive = {x: replace(x, positive=False) for x in e.leaves if x.positive}

    def go(t: Tree) -> Tree:
        if isinstance(t, Leaf):
            return positive.get(t, t)
        return Term(t.instance, tuple(map(go, t.operands)))

    return Equality(go(e.left), go(e.right)) if positive else None


def mutant(seed: int) -> tuple[str, str, Equality] | None:
    """(the change, the law, a wrong rule) of a seed; None where no change fits."""
    rng = random.Random(seed)
    name, e = drawn(seed)
    tried = rng.sample(ALL_CHANGES, len(ALL_CHANGES))
    if rng.random() < 0.5:
        tried = [*rng.sample(SELDOM, len(SELDOM)), *tried]
    for change in tried:
        options = list(changed(rng, e, change))
        for made in rng.sample(options, min(TRIES, len(options))):
            if made != e and fits(made) and truly_differs(made, seed):
                return change, name, made
    return None


def changed(rng: random.Random, e: Equality, change: str) -> Iterator[Equality]:
    """The rule with one change, in each place of either side."""
    if change == "condition":
        other = without_condition(e)
        if other is not None:
            yield other
        return
    for at, t in places(e.left):
        yield from (Equality(put(e.left, at, x), e.right) for x in CHANGES[change](rng, t))
    for at, t in places(e.right):
        yield from (Equality(e.left, put(e.right, at, x)) for x in CHANGES[change](rng, t))


def fits(e: Equality) -> bool:
    """Are both sides of one type, for all sizes?"""
    try:
        parse_equality(str(e))
    except (Invalid, ValueError, TypeError):
        return False
    return True


def truly_differs(e: Equality, seed: int) -> bool:
    """Do both sides differ in float64, by far more than it rounds?"""
    rng = np.random.default_rng(seed + 12345)
    for _ in range(POINTS):
        try:
            sizes, sides = sized(e, rng)
        except Invalid:
            return False
        graph = Graph("sides", inputs_of(*sides), sides)
        args = [argument(e, n, sizes, 0, rng) for n in graph.inputs]
        with np.errstate(all="ignore"):
            a, b = (np.asarray(x) for x in by_references(graph, args))
        finite = np.isfinite(a) & np.isfinite(b)
        scale = max(1.0, float(np.max(np.abs(a[finite]), initial=0.0)))
        if np.max(np.abs(a[finite] - b[finite]), initial=0.0) > 1e-6 * scale:
            return True
    return False


# ---- judgement


@dataclass
class Judged:
    """Of one rule: what each prover says."""

    seed: int
    name: str
    rule: Equality
    form: bool
    points: bool
    seconds: float

    @property
    def accepted(self) -> bool:
        return self.form and self.points


def judged(seed: int, name: str, e: Equality) -> Judged:
    began = time.perf_counter()
    try:
        form = e.is_proved()
    except Unsupported:
        form = False
    points = differs(e) is None
    return Judged(seed, name, e, form, points, time.perf_counter() - began)


def true_rules(seed: int, count: int) -> Iterator[Judged]:
    for k in range(count):
        name, e = drawn(seed * 100_000 + k)
        yield judged(seed * 100_000 + k, name, e)


def mutants(seed: int, count: int) -> Iterator[Judged]:
    found, k = 0, 0
    while found < count:
        made = mutant(seed * 100_000 + k)
        if made is not None:
            change, _, e = made
            found += 1
            yield judged(seed * 100_000 + k, change, e)
        k += 1


def check_seed(seed: int) -> None:
    """What is drawn is true, and its mutant is not proved."""
    name, e = drawn(seed)
    assert differs(e) is None, f"seed {seed}, {name}: {e}"
    made = mutant(seed)
    assert made is None or not judged(seed, *made[1:]).form, f"seed {seed}: {made}"


GENERATOR = checked("rules", check_seed)


def table(found: list[Judged], wanted: bool) -> int:
    """Prints how often which prover is right, by law or change; how many are not judged right."""
    print(f"{'':24}{'rules':>7}{'form':>7}{'points':>8}{'both':>7}{'seconds':>9}")
    for name in (*sorted({x.name for x in found}), "all"):
        mine = [x for x in found if name in (x.name, "all")]
        right = [
            sum(x.form == wanted for x in mine),
            sum(x.points == wanted for x in mine),
            sum(x.accepted == wanted for x in mine),
        ]
        seconds = sum(x.seconds for x in mine)
        print(f"{name:24}{len(mine):7}{right[0]:7}{right[1]:8}{right[2]:7}{seconds:9.1f}")
    wrong = [x for x in found if x.accepted != wanted]
    for x in wrong:
        print(f"  seed {x.seed}, {x.name}: {x.rule}")
    return len(wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200, help="of true rules, and of mutants")
    given = parser.parse_args()
    print("true rules: how many are proved")
    missed = table(list(true_rules(given.seed, given.count)), True)
    print("\nmutants: how many are refused")
    accepted = table(list(mutants(given.seed, given.count)), False)
    share = 1 - missed / given.count
    print(f"\n{share:.1%} of the true rules are proved by both, {accepted} mutants are accepted")
    return 0 if share >= 0.97 and not accepted else 1


if __name__ == "__main__":
    sys.exit(main())
