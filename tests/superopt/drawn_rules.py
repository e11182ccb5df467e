"""Random rules that are true by construction: laws of algebra, put into each other.

A law is a function that draws both sides for a kind of result. Each operand of it is the two sides
of another law, or one random program on both sides, so that what comes out is true whatever a
prover thinks of it. Settings of convolutions and pools, sizes that are equal or not, and leaves
that are used twice are drawn too.

    python -m tests.superopt.judged_rules --seed 1 --count 200
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.ir.types import f64
from tilewright.superopt.blocks import Block, Formula, Kind, Sizes
from tilewright.superopt.terms import Equality, Leaf, Term, Tree
from tilewright.superopt.vocabulary import Bound, Instance

Pair = tuple[Tree, Tree]
Law = Callable[["Draw", Kind, int], Pair | None]
LAWS: dict[str, Law] = {}  # of tensors of two axes


def apply(name: str, *operands: Tree, **attributes: Any) -> Term:
    return Term(Instance(name, tuple(attributes.items())), operands)


def add(a: Tree, b: Tree) -> Term:
    return apply("add", a, b)


def mul(a: Tree, b: Tree) -> Term:
    return apply("mul", a, b)


def matmul(a: Tree, b: Tree) -> Term:
    return apply("matmul", a, b)


def relu(x: Tree) -> Term:
    return apply("relu", x)


def turned(x: Tree) -> Term:
    return apply("permute", x, perm=(1, 0))


def joined(a: Tree, b: Tree, axis: int) -> Term:
    return apply("concat", a, b, axis=axis)


def part(x: Tree, axis: int, second: bool) -> Term:
    ends = ("right", "last") if second else ("first", "left")
    start, stop = (Bound(axis, e) for e in ends)
    return apply("slice", x, axis=axis, start=start, stop=stop)


def total(x: Tree, axis: int, name: str = "sum") -> Term:
    return apply(name, x, axes=(axis,), keepdims=True)


class Draw:
    """Leaves, sizes and operands of one rule."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.leaves: list[Leaf] = []
        self.names: list[Block] = []
        # Where all sizes are one, a change of axes or of an order more often fits.
        self.square = self.rng.random() < 0.4

    def coin(self, p: float = 0.5) -> bool:
        return self.rng.random() < p

    def size(self) -> Block:
        """A name for a size: another one, or one that was drawn."""
        if self.names and (self.square or self.coin(0.2)):
            return self.rng.choice(self.names)
        self.names.append("mnkloqrtuv"[len(self.names) % 10] + str(len(self.names) // 10 or ""))
        return self.names[-1]

    def block(self) -> Block:
        """A size, sometimes of two parts."""
        return (self.size(), self.size()) if self.coin(0.35) else self.size()

    def leaf(self, kind: Kind, positive: bool = False, below: Block | None = None) -> Leaf:
        same = [x for x in self.leaves if (x.kind, x.positive, x.below) == (kind, positive, below)]
        if same and self.coin(0.15):
            return self.rng.choice(same)
        letter = "p" if positive else "i" if below is not None else "x"
        made = Leaf(f"{letter}{len(self.leaves)}", kind, positive, below)
        self.leaves.append(made)
        return made

    def pair(self, kind: Kind, depth: int) -> Pair:
        """Two equal programs of a kind of two axes: by a law, or the same one twice."""
        if depth <= 0 or self.coin(0.35):
            x = self.program(kind, self.rng.randint(0, 1))
            return x, x
        return self.law(kind, depth)[1]

    def law(self, kind: Kind, depth: int, names: list[str] | None = None) -> tuple[str, Pair]:
        names = list(LAWS) if names is None else names
        while True:
            name = self.rng.choice(names)
            found = LAWS[name](self, kind, depth - 1)
            if found is not None:
                return name, found if self.coin() else (found[1], found[0])

    def program(self, kind: Kind, depth: int) -> Tree:
        """Any program of a kind of two axes."""
        if depth == 0:
            return self.leaf(kind)
        x = self.program(kind, depth - 1)
        match self.rng.randrange(7):
            case 0:
                return relu(x)
            case 1:
                return apply(self.rng.choice(["add", "sub", "mul", "maximum"]), x, self.leaf(kind))
            case 2:
                return matmul(x, self.leaf((kind[1], kind[1])))
            case 3:
                return turned(self.program((kind[1], kind[0]), depth - 1))
            case 4:
                return mul(x, self.leaf(()))
            case 5:  # a function of sums, which may be summed again
                return apply("tanh", matmul(x, self.leaf((kind[1], kind[1]))))
        return add(x, self.leaf((kind[1],)))


def law(f: Law) -> Law:
    LAWS[f.__name__] = f
    return f


def both(f: Callable[..., Tree], g: Callable[..., Tree], *operands: Pair) -> Pair:
    """A law of operands that are pairs: f of the first sides, g of the second."""
    return f(*(x for x, _ in operands)), g(*(y for _, y in operands))


# ---- laws of matrices


@law
def associative(d: Draw, kind: Kind, depth: int) -> Pair:
    name = d.rng.choice(["add", "mul", "maximum", "minimum"])
    f = lambda a, b: apply(name, a, b)  # noqa: E731
    xs = [d.pair(kind, depth) for _ in range(3)]
    return both(lambda x, y, z: f(x, f(y, z)), lambda x, y, z: f(f(x, y), z), *xs)


@law
def commutative(d: Draw, kind: Kind, depth: int) -> Pair:
    name = d.rng.choice(["add", "mul", "maximum"])
    xs = [d.pair(kind, depth) for _ in range(2)]
    return both(lambda x, y: apply(name, x, y), lambda x, y: apply(name, y, x), *xs)


@law
def distributive(d: Draw, kind: Kind, depth: int) -> Pair:
    xs = [d.pair(kind, depth) for _ in range(2)]
    name = d.rng.choice(["add", "sub"])
    f = lambda a, b: apply(name, a, b)  # noqa: E731
    z = d.leaf(d.rng.choice([kind, (kind[1],), (), (kind[0], 1)]))
    return both(lambda x, y: mul(f(x, y), z), lambda x, y: f(mul(x, z), mul(y, z)), *xs)


@law
def signs(d: Draw, kind: Kind, depth: int) -> Pair:
    xs = [d.pair(kind, depth) for _ in range(2)]
    neg = lambda x: apply("neg", x)  # noqa: E731
    sub = lambda a, b: apply("sub", a, b)  # noqa: E731
    ways = [
        both(sub, lambda x, y: add(x, neg(y)), *xs),
        both(lambda x, y: neg(sub(x, y)), lambda x, y: sub(y, x), *xs),
        both(lambda x, y: mul(neg(x), y), lambda x, y: neg(mul(x, y)), *xs),
        both(lambda x, y: mul(neg(x), neg(y)), mul, *xs),
    ]
    return d.rng.choice(ways)


@law
def positive_parts(d: Draw, kind: Kind, depth: int) -> Pair:
    x = d.pair(kind, depth)
    p = d.leaf(d.rng.choice([(), kind, (kind[1],)]), positive=True)
    neg = lambda x: apply("neg", x)  # noqa: E731
    ways = [
        both(lambda x: relu(mul(x, p)), lambda x: mul(relu(x), p), x),
        both(lambda x: relu(relu(x)), relu, x),
        both(lambda x: apply("sub", relu(x), relu(neg(x))), lambda x: x, x),
        both(lambda x: relu(mul(x, x)), lambda x: mul(x, x), x),
        both(lambda x: relu(apply("exp", x)), lambda x: apply("exp", x), x),
        both(lambda x: mul(relu(x), relu(x)), lambda x: mul(x, relu(x)), x),
    ]
    return d.rng.choice(ways)


@law
def maxima(d: Draw, kind: Kind, depth: int) -> Pair:
    xs = [d.pair(kind, depth) for _ in range(2)]
    z, p = d.leaf(kind), d.leaf(d.rng.choice([(), kind]), positive=True)
    top = lambda a, b: apply("maximum", a, b)  # noqa: E731
    low = lambda a, b: apply("minimum", a, b)  # noqa: E731
    ways = [
        both(lambda x, y: top(add(x, z), add(y, z)), lambda x, y: add(top(x, y), z), *xs),
        both(lambda x, y: top(mul(x, p), mul(y, p)), lambda x, y: mul(top(x, y), p), *xs),
        both(lambda x, y: add(top(x, y), low(x, y)), add, *xs),
        both(top, lambda x, y: add(relu(apply("sub", x, y)), y), *xs),
    ]
    return d.rng.choice(ways)


@law
def scaled(d: Draw, kind: Kind, depth: int) -> Pair:
    (a, b), k, s = kind, d.size(), d.leaf(())
    x, y = d.pair((a, k), depth), d.pair((k, b), depth)
    ways = [
        both(lambda x, y: mul(matmul(x, y), s), lambda x, y: matmul(mul(x, s), y), x, y),
        both(lambda x, y: mul(matmul(x, y), s), lambda x, y: matmul(x, mul(y, s)), x, y),
        both(lambda x, y: matmul(mul(x, s), y), lambda x, y: matmul(x, mul(s, y)), x, y),
    ]
    row, column = d.leaf((a, 1)), d.leaf((b,))
    ways += [
        both(lambda x, y: matmul(mul(x, row), y), lambda x, y: mul(matmul(x, y), row), x, y),
        both(lambda x, y: matmul(x, mul(y, column)), lambda x, y: mul(matmul(x, y), column), x, y),
    ]
    return d.rng.choice(ways)


@law
def products(d: Draw, kind: Kind, depth: int) -> Pair:
    (a, b), k, l = kind, d.size(), d.size()
    x, y, z = d.pair((a, k), depth), d.pair((k, l), depth), d.pair((l, b), depth)
    return both(
        lambda x, y, z: matmul(matmul(x, y), z), lambda x, y, z: matmul(x, matmul(y, z)), x, y, z
    )


@law
def sums_of_products(d: Draw, kind: Kind, depth: int) -> Pair:
    (a, b), k = kind, d.size()
    name = d.rng.choice(["add", "sub"])
    f = lambda a, b: apply(name, a, b)  # noqa: E731
    if d.coin():
        xs = d.pair((a, k), depth), d.pair((k, b), depth), d.pair((k, b), depth)
        return both(
            lambda x, y, z: matmul(x, f(y, z)),
            lambda x, y, z: f(matmul(x, y), matmul(x, z)),
            *xs,
        )
    xs = d.pair((a, k), depth), d.pair((a, k), depth), d.pair((k, b), depth)
    return both(
        lambda x, y, z: matmul(f(x, y), z), lambda x, y, z: f(matmul(x, z), matmul(y, z)), *xs
    )


@law
def inner_parts(d: Draw, kind: Kind, depth: int) -> Pair:
    (a, b), k, l = kind, d.size(), d.size()
    if d.coin():
        x, y = d.pair((a, (k, l)), depth), d.pair(((k, l), b), depth)
        halves = lambda x, y: add(  # noqa: E731
            *(matmul(part(x, 1, second), part(y, 0, second)) for second in (False, True))
        )
        return both(matmul, halves, x, y)
    xs = d.pair((a, k), depth), d.pair((a, l), depth), d.pair((k, b), depth), d.pair((l, b), depth)
    return both(
        lambda x, y, u, v: matmul(joined(x, y, 1), joined(u, v, 0)),
        lambda x, y, u, v: add(matmul(x, u), matmul(y, v)),
        *xs,
    )


@law
def outer_parts(d: Draw, kind: Kind, depth: int) -> Pair | None:
    (a, b), k = kind, d.size()
    if isinstance(b, tuple):
        xs = d.pair((a, k), depth), d.pair((k, b[0]), depth), d.pair((k, b[1]), depth)
        return both(
            lambda x, y, z: matmul(x, joined(y, z, 1)),
            lambda x, y, z: joined(matmul(x, y), matmul(x, z), 1),
            *xs,
        )
    if isinstance(a, tuple):
        xs = d.pair((a[0], k), depth), d.pair((a[1], k), depth), d.pair((k, b), depth)
        return both(
            lambda x, y, z: matmul(joined(x, y, 0), z),
            lambda x, y, z: joined(matmul(x, z), matmul(y, z), 0),
            *xs,
        )
    return None


@law
def parts(d: Draw, kind: Kind, depth: int) -> Pair | None:
    axes = [k for k, b in enumerate(kind) if isinstance(b, tuple)]
    if not axes:
        more = d.leaf((d.size(), kind[1]))
        x = d.pair(kind, depth)
        return both(lambda x: part(joined(x, more, 0), 0, False), lambda x: x, x)
    axis = d.rng.choice(axes)
    cut = kind[axis]
    assert isinstance(cut, tuple)
    halves: list[Kind] = [(x, kind[1]) if axis == 0 else (kind[0], x) for x in cut]
    name = d.rng.choice(["add", "mul", "maximum", "sub"])
    if d.coin(0.3):
        x = d.pair(kind, depth)
        return both(
            lambda x: joined(part(x, axis, False), part(x, axis, True), axis), lambda x: x, x
        )
    if d.coin(0.3):
        f = d.rng.choice([relu, lambda x: apply("exp", x), lambda x: apply("tanh", x)])
        x, y = (d.pair(h, depth) for h in halves)
        return both(lambda x, y: f(joined(x, y, axis)), lambda x, y: joined(f(x), f(y), axis), x, y)
    xs = [d.pair(h, depth) for h in halves for _ in "ab"]
    return both(
        lambda x, y, u, v: joined(apply(name, x, y), apply(name, u, v), axis),
        lambda x, y, u, v: apply(name, joined(x, u, axis), joined(y, v, axis)),
        *xs,
    )


@law
def blocks(d: Draw, kind: Kind, depth: int) -> Pair | None:
    a, b = kind
    if not isinstance(a, tuple) or not isinstance(b, tuple):
        return None
    xs = [d.pair((x, y), depth) for x in a for y in b]
    return both(
        lambda x, y, u, v: joined(joined(x, y, 1), joined(u, v, 1), 0),
        lambda x, y, u, v: joined(joined(x, u, 0), joined(y, v, 0), 1),
        *xs,
    )


@law
def transposes(d: Draw, kind: Kind, depth: int) -> Pair:
    (a, b), k = kind, d.size()
    name = d.rng.choice(["add", "mul", "sub", "maximum"])
    ways = [
        both(lambda x: turned(turned(x)), lambda x: x, d.pair(kind, depth)),
        both(
            lambda x, y: turned(matmul(x, y)),
            lambda x, y: matmul(turned(y), turned(x)),
            d.pair((b, k), depth),
            d.pair((k, a), depth),
        ),
        both(
            lambda x, y: turned(apply(name, x, y)),
            lambda x, y: apply(name, turned(x), turned(y)),
            d.pair((b, a), depth),
            d.pair((b, a), depth),
        ),
        both(lambda x: turned(relu(x)), lambda x: relu(turned(x)), d.pair((b, a), depth)),
    ]
    if isinstance(a, tuple):
        x, y = d.pair((b, a[0]), depth), d.pair((b, a[1]), depth)
        ways.append(
            both(
                lambda x, y: turned(joined(x, y, 1)),
                lambda x, y: joined(turned(x), turned(y), 0),
                x,
                y,
            )
        )
    return d.rng.choice(ways)


@law
def reductions(d: Draw, kind: Kind, depth: int) -> Pair:
    """Of rows, added to every column."""
    a, k = kind[0], d.size()
    wide, x = d.leaf(kind), d.pair((a, k), depth)
    more = d.pair((a, d.size()), depth)
    scale, positive = d.leaf((a, 1)), d.leaf((a, 1), positive=True)
    top = lambda x: total(x, 1, "amax")  # noqa: E731
    row = lambda x: total(x, 1)  # noqa: E731
    mean = lambda x: total(x, 1, "mean")  # noqa: E731
    ways = [
        both(lambda x: row(add(x, x)), lambda x: add(row(x), row(x)), x),
        both(lambda x: row(mul(x, scale)), lambda x: mul(row(x), scale), x),
        both(lambda x, y: row(joined(x, y, 1)), lambda x, y: add(row(x), row(y)), x, more),
        both(lambda x: top(add(x, scale)), lambda x: add(top(x), scale), x),
        both(lambda x: top(mul(x, positive)), lambda x: mul(top(x), positive), x),
        both(
            lambda x, y: top(joined(x, y, 1)),
            lambda x, y: apply("maximum", top(x), top(y)),
            x,
            more,
        ),
        both(lambda x: mean(add(x, scale)), lambda x: add(mean(x), scale), x),
        both(lambda x: turned(row(x)), lambda x: total(turned(x), 0), x),
    ]
    chosen = d.rng.randrange(len(ways))
    left, right = ways[chosen]
    if chosen == len(ways) - 1:
        left, right = turned(left), turned(right)
    return add(wide, left), add(wide, right)


@law
def quotients(d: Draw, kind: Kind, depth: int) -> Pair:
    xs = [d.pair(kind, depth) for _ in range(2)]
    z, u = d.leaf(d.rng.choice([kind, (), (kind[0], 1)])), d.leaf(kind)
    div = lambda a, b: apply("div", a, b)  # noqa: E731
    exp = lambda x: apply("exp", x)  # noqa: E731
    ways = [
        both(lambda x, y: div(add(x, y), z), lambda x, y: add(div(x, z), div(y, z)), *xs),
        both(lambda x, y: div(mul(x, y), z), lambda x, y: mul(x, div(y, z)), *xs),
        both(lambda x, y: div(div(x, z), u), lambda x, y: div(x, mul(u, z)), *xs),
        both(lambda x, y: div(x, z), lambda x, y: mul(x, apply("reciprocal", z)), *xs),
        both(lambda x, y: exp(add(x, y)), lambda x, y: mul(exp(x), exp(y)), *xs),
        both(lambda x, y: exp(apply("sub", x, y)), lambda x, y: div(exp(x), exp(y)), *xs),
    ]
    return d.rng.choice(ways)


@law
def uninterpreted(d: Draw, kind: Kind, depth: int) -> Pair:
    """A function that nothing is known of, but that it is one."""
    name = d.rng.choice(["tanh", "sin", "erf", "cosh", "sigmoid", "gelu", "silu"])
    more = {"approximate": "none"} if name == "gelu" else {}
    return both(
        lambda x: apply(name, x, **more),
        lambda x: apply(name, x, **more),
        d.law(kind, depth)[1] if depth >= 0 else d.pair(kind, 0),
    )


@law
def softmax(d: Draw, kind: Kind, depth: int) -> Pair:
    x, shift = d.pair(kind, depth), d.leaf((kind[0], 1))
    soft = lambda x, axis=1: apply("softmax", x, axis=axis)  # noqa: E731
    exp = lambda x: apply("exp", x)  # noqa: E731
    k = d.size()
    ways = [
        both(lambda x: soft(add(x, shift)), soft, x),
        both(soft, lambda x: apply("div", exp(x), total(exp(x), 1)), x),
        both(
            lambda x: soft(turned(x), 0), lambda x: turned(soft(x)), d.pair((kind[1], kind[0]), 0)
        ),
        both(
            lambda x, v: matmul(soft(x), v),
            lambda x, v: apply("div", matmul(exp(x), v), total(exp(x), 1)),
            d.pair((kind[0], k), depth),
            d.pair((k, kind[1]), depth),
        ),
    ]
    if isinstance(kind[0], tuple):
        x, y = (d.pair((half, kind[1]), depth) for half in kind[0])
        ways.append(
            both(lambda x, y: soft(joined(x, y, 0)), lambda x, y: joined(soft(x), soft(y), 0), x, y)
        )
    return d.rng.choice(ways)


@law
def gather(d: Draw, kind: Kind, depth: int) -> Pair:
    (a, b), m, k = kind, d.size(), d.size()
    i = d.leaf((a,), below=m)
    take = lambda x, at=i: apply("take", x, at, axis=0, known="within")  # noqa: E731
    name = d.rng.choice(["add", "mul", "sub"])
    ways = [
        both(
            lambda x, y: take(matmul(x, y)),
            lambda x, y: matmul(take(x), y),
            d.pair((m, k), depth),
            d.pair((k, b), depth),
        ),
        both(
            lambda x, y: take(apply(name, x, y)),
            lambda x, y: apply(name, take(x), take(y)),
            d.pair((m, b), depth),
            d.pair((m, b), depth),
        ),
        both(lambda x: take(relu(x)), lambda x: relu(take(x)), d.pair((m, b), depth)),
    ]
    return d.rng.choice(ways)


@law
def flat(d: Draw, kind: Kind, depth: int) -> Pair | None:
    """Axes made one and apart again."""
    a, b = kind
    if not isinstance(a, str) or not isinstance(b, str):
        return None
    line, plane = formula(f"({a} * {b},)"), formula(f"({a}, {b})")
    down = lambda x: apply("reshape", x, shape=line)  # noqa: E731
    up = lambda x: apply("reshape", x, shape=plane)  # noqa: E731
    name = d.rng.choice(["add", "mul", "sub"])
    xs = [d.pair(kind, depth) for _ in range(2)]
    return both(lambda x, y: up(apply(name, down(x), down(y))), lambda x, y: apply(name, x, y), *xs)


@law
def batched(d: Draw, kind: Kind, depth: int) -> Pair:
    """Products of three axes, cut to two again by a sum."""
    (a, b), n, k = kind, d.size(), d.size()
    x, y, z = d.leaf((n, a, k)), d.leaf((n, k, b)), d.leaf((n, k, b))
    back = lambda x: apply("permute", x, perm=(0, 2, 1))  # noqa: E731
    out = lambda x: apply("sum", x, axes=(0,), keepdims=False)  # noqa: E731
    cycle = lambda x: apply("permute", x, perm=(1, 2, 0))  # noqa: E731
    w = d.pair((k, b), depth)
    ways = [
        (out(matmul(x, add(y, z))), add(out(matmul(x, y)), out(matmul(x, z)))),
        (out(back(matmul(back(y), back(x)))), out(matmul(x, y))),
        both(lambda w: out(matmul(x, w)), lambda w: matmul(out(x), w), w),
        (out(cycle(cycle(cycle(matmul(x, y))))), out(matmul(x, y))),
    ]
    return d.rng.choice(ways)


def formula(text: str) -> Any:
    """Sizes by their names, or plain numbers."""
    found = Formula(text)
    return found if found.names else ast.literal_eval(text)


def drawn(seed: int) -> tuple[str, Equality]:
    """(the law at the root, a true rule) of a seed: nearly half of them of images."""
    from tests.superopt.drawn_images import image_rule

    d = Draw(seed)
    images = d.coin(0.45)
    while True:
        kind: Kind = (d.block(), d.block())
        name, (left, right) = image_rule(d) if images else d.law(kind, d.rng.choice([1, 1, 2]))
        found = Equality(left, right)
        try:
            found.nodes(Sizes.symbolic(found.symbols), f64)
        except Invalid:  # a part is cut where it is not known to meet another
            continue
        if left != right:
            return name, found
