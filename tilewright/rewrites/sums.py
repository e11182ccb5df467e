"""Weights in sums: added up first, and once.

They round differently, and fewer terms are left: ways to add up many of them are many. A pass
selects them by name.
"""

from __future__ import annotations

from tilewright import ops
from tilewright.ir.node import Node
from tilewright.ir.pattern import Guard, Rule, Var, op
from tilewright.rewrites.facts import is_weight, not_narrow, weights
from tilewright.rewrites.scaling import inner_used_once
from tilewright.rewrites.subject import Maker

ON_REQUEST = True

x, y, c, d = Var("x"), Var("y"), Var("c"), Var("d")


def _varies(*names: str) -> Guard:
    said = f"{', '.join(names)} known only when the program runs"
    return Guard(said, lambda m: not any(is_weight(m.bindings[n]) for n in names))


def _with_bias(m: Maker) -> Node:
    n = m.tensor("x", (m.dim(), m.dim(lo=1)))
    return ops.add(n, m.weight("c", m.rng.choice([n.shape[1:], ()])))


def _two_values(m: Maker) -> Node:
    n = _with_bias(m)
    return ops.add(n, m.tensor("y", n.shape))


def _two_weights(m: Maker) -> Node:
    n = _with_bias(m)
    return ops.add(n, m.weight("d", m.rng.choice([n.shape[1:], ()])))


RULES = (
    Rule(
        "add-weights-last",
        op.add(op.add(x, c), y),
        op.add(op.add(x, y), c),
        weights("c") & _varies("x", "y") & not_narrow & inner_used_once,
        changes="rounding",
        subject=_two_values,
        dtypes="f",
    ),
    Rule(
        "add-weights-once",
        op.add(op.add(x, c), d),
        op.add(x, op.add(c, d)),
        weights("c", "d") & _varies("x") & not_narrow & inner_used_once,
        changes="rounding",
        subject=_two_weights,
        dtypes="f",
    ),
)
