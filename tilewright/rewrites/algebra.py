"""Algebra of numbers. Over floats only what keeps every bit, or says what it changes."""

from __future__ import annotations

import math

from tilewright import ops
from tilewright.ir.node import Node
from tilewright.ir.pattern import Apply, Attr, Filled, Guard, Match, Rule, Var, guard, make, op
from tilewright.ir.types import DTYPES
from tilewright.rewrites.facts import filled, holds_exactly, kind_is
from tilewright.rewrites.subject import Maker

x, y, z, c = Var("x"), Var("y"), Var("z"), Var("c")

whole = kind_is("iub")
real = kind_is("f")


def _zero(m: Match) -> Node:
    return make("full", shape=m.root.shape, value=0, dtype=m.root.dtype)


def _true(m: Match) -> Node:
    return make("full", shape=m.root.shape, value=True, dtype=m.root.dtype)


ADDITIVE = (
    Rule("add-0-whole", x + 0, x, whole, dtypes="iub"),
    Rule("add-minus-0", x + -0.0, x, real, dtypes="f"),
    Rule("add-0", x + 0.0, x, real, changes="sign of zero", dtypes="f"),
    Rule("sub-0-whole", x - 0, x, whole, dtypes="iu"),
    Rule("sub-0", x - 0.0, x, real, dtypes="f"),
    Rule("0-sub-whole", 0 - x, -x, whole, dtypes="iu"),
    Rule("sub-self-whole", x - x, _zero, whole, dtypes="iu"),
    Rule("neg-neg", op.neg(-x), x, dtypes="fiu"),
    Rule("add-neg", x + (-y), x - y, dtypes="fiu"),
    Rule("sub-neg", x - (-y), x + y, dtypes="fiu"),
    Rule("neg-sub-whole", -(x - y), y - x, whole, dtypes="iu"),
    Rule("add-sub-whole", (x - y) + y, x, whole, dtypes="iu"),
)

_OF_A_LIBRARY = "no standard says how a power is rounded"

MULTIPLICATIVE = (
    Rule("mul-1", x * 1, x, kind_is("fiub"), dtypes="fiub"),
    Rule("mul-minus-1", x * -1, -x, kind_is("fi"), dtypes="fi"),
    Rule("mul-0-whole", x * 0, _zero, whole, dtypes="iub"),
    Rule("div-1", x / 1.0, x, dtypes="f"),
    Rule("div-minus-1", x / -1.0, -x, dtypes="f"),
    Rule("mul-neg-neg", (-x) * (-y), x * y, dtypes="fiu"),
    Rule("div-neg-neg", (-x) / (-y), x / y, dtypes="f"),
    Rule("floordiv-1-whole", op.floordiv(x, 1), x, whole, dtypes="iu"),
    Rule("square-neg", op.square(-x), op.square(x), dtypes="fiu"),
    Rule("square-abs", op.square(op.abs(x)), op.square(x), dtypes="fiu"),
    Rule("mul-self", x * x, op.square(x), kind_is("fiu"), dtypes="fiu"),
    Rule("pow-1", op.pow(x, 1), x, kind_is("f"), tested=_OF_A_LIBRARY, dtypes="f"),
    Rule("pow-2", op.pow(x, 2), op.square(x), kind_is("f"), tested=_OF_A_LIBRARY, dtypes="f"),
)


def _reciprocal(m: Match) -> Node:
    return ops.mul(m.x, 1.0 / float(filled(m, "y") or 1.0))


@guard("y is a power of two whose reciprocal is normal")
def power_of_two(m: Match) -> bool:
    v = filled(m, "y")
    if not isinstance(v, float) or v == 0 or not math.isfinite(v):
        return False
    fraction, exponent = math.frexp(abs(v))
    # The smallest exponents of float16: wider dtypes only have more room.
    return fraction == 0.5 and -13 <= exponent <= 13


def _over_power_of_two(m: Maker) -> Node:
    n = m.tensor("x")
    return ops.div(n, m.scalar(2.0 ** m.whole(-9, 9)))


DIVISION = (
    Rule(
        "div-power-of-two",
        x / y,
        _reciprocal,
        power_of_two,
        subject=_over_power_of_two,
        dtypes="f",
    ),
)

IDEMPOTENT = tuple(
    Rule(
        f"{name}-twice",
        Apply(name, (Apply(name, (x,)),)),
        Apply(name, (x,)),
        dtypes=kinds,
    )
    for name, kinds in (
        ("abs", "fiu"),
        ("relu", "fiu"),
        ("sign", "fiu"),
        ("floor", "f"),
        ("ceil", "f"),
        ("trunc", "f"),
        ("round", "f"),
    )
) + tuple(
    Rule(f"{name}-self", Apply(name, (x, x)), x, dtypes=kinds)
    for name, kinds in (
        ("maximum", "fiub"),
        ("minimum", "fiub"),
        ("bitwise_and", "iub"),
        ("bitwise_or", "iub"),
    )
)

ORDER = (
    Rule("abs-neg", op.abs(-x), op.abs(x), dtypes="fi"),
    Rule("max-minus-inf", op.maximum(x, Filled(-math.inf)), x, dtypes="f"),
    Rule("min-inf", op.minimum(x, Filled(math.inf)), x, dtypes="f"),
    Rule("max-0", op.maximum(x, 0), op.relu(x), kind_is("iu"), dtypes="iu"),
    Rule("max-0-real", op.maximum(x, 0.0), op.relu(x), real, dtypes="f"),
)

FLIPPED = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}
of_bools = kind_is("b")

LOGIC = (
    Rule("not-not", op.logical_not(op.logical_not(x)), x, of_bools, dtypes="b"),
    Rule("bitwise-not-twice", op.bitwise_not(op.bitwise_not(x)), x, dtypes="iub"),
    Rule("not-eq", op.logical_not(op.eq(x, y)), op.ne(x, y), dtypes="fiub"),
    Rule("not-ne", op.logical_not(op.ne(x, y)), op.eq(x, y), dtypes="fiub"),
    Rule("and-true", op.logical_and(x, 1), x, of_bools, dtypes="b"),
    Rule("or-false", op.logical_or(x, 0), x, of_bools, dtypes="b"),
    Rule("or-true", op.logical_or(x, 1), _true, of_bools, dtypes="b"),
    Rule("and-false", op.logical_and(x, 0), _zero, of_bools, dtypes="b"),
    *(
        # NaN answers no to every order, so this is for whole numbers only.
        Rule(
            f"not-{a}-whole",
            op.logical_not(Apply(a, (x, y))),
            Apply(b, (x, y)),
            whole,
            dtypes="iub",
        )
        for a, b in FLIPPED.items()
    ),
)


def _where(kind: str):
    def subject(m: Maker) -> Node:
        shape = m.shape()
        cond = m.condition("c", shape)
        a, b = m.tensor("x", shape), m.tensor("y", shape)
        if kind == "same":
            return ops.where(cond, a, a)
        if kind == "not":
            return ops.where(ops.logical_not(cond), a, b)
        return ops.where(make("full", shape=(), value=kind == "true", dtype=cond.dtype), a, b)

    return subject


SELECTION = (
    Rule("where-same", op.where(c, x, x), x, subject=_where("same")),
    Rule("where-true", op.where(1, x, y), x, subject=_where("true")),
    Rule("where-false", op.where(0, x, y), y, subject=_where("false")),
    Rule(
        "where-not",
        op.where(op.logical_not(c), x, y),
        op.where(c, y, x),
        kind_is("b", "c"),
        subject=_where("not"),
    ),
)


def _cast_subject(steps: int):
    def subject(m: Maker) -> Node:
        n = m.tensor("x")
        if steps == 1:
            return make("cast", n, dtype=n.dtype)
        wide = {"f": "f64", "i": "i64", "u": "i64", "b": "i32"}[n.dtype.kind]
        last = m.rng.choice(["f64", "f32"] if n.dtype.is_float else ["f64", "f32", "i64", "i32"])
        return make("cast", make("cast", n, dtype=DTYPES[wide]), dtype=DTYPES[last])

    return subject


between = Guard(
    "the dtype between holds every value of x",
    lambda m: holds_exactly(m.x.dtype, m.between) and not m.to.is_bool,
)
CASTS = (
    Rule(
        "cast-same",
        op.cast(x, dtype=Attr("to")),
        x,
        Guard("same dtype", lambda m: m.x.dtype is m.to),
        subject=_cast_subject(1),
    ),
    Rule(
        "cast-cast",
        op.cast(op.cast(x, dtype=Attr("between")), dtype=Attr("to")),
        lambda m: ops.cast(m.x, m.to),
        between,
        subject=_cast_subject(2),
    ),
)


def _filled_whole(build):
    def subject(m: Maker) -> Node:
        n = m.tensor("x")
        return build(n, m.scalar(m.whole(0, 9)), m.scalar(m.whole(0, 9)))

    return subject


def _constants(*names: str) -> Guard:
    return Guard(
        f"{' and '.join(names)} are filled with one number",
        lambda m: all(filled(m, n) is not None for n in names),
    )


# (x + 2) + 3 = x + 5: the new constant is computed by folding.
REASSOCIATION = tuple(
    Rule(
        f"{name}-constants-whole",
        Apply(name, (Apply(name, (x, y)), z)),
        Apply(name, (x, Apply(name, (y, z)))),
        whole & _constants("y", "z") & Guard("x is not", lambda m: filled(m, "x") is None),
        subject=_filled_whole(lambda a, b, c, f=name: getattr(ops, f)(getattr(ops, f)(a, b), c)),
        dtypes="iu",
    )
    for name in ("add", "mul")
)

RULES = (
    *ADDITIVE,
    *MULTIPLICATIVE,
    *DIVISION,
    *IDEMPOTENT,
    *ORDER,
    *LOGIC,
    *SELECTION,
    *CASTS,
    *REASSOCIATION,
)
