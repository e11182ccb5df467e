"""Stacks: tensors put side by side along an axis of their own. A sum or product over that axis is
computed from the tensors themselves, and no stack is made."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from tilewright import ops
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node
from tilewright.ir.pattern import Apply, Attr, Match, Rest, Rule, guard, make, op
from tilewright.rewrites.subject import Maker

# Tensors that one kernel reads at a time.
MOST = 32

xs, p, q, shape = Rest("xs"), Attr("p"), Attr("q"), Attr("shape")


def _stacked_again(m: Match) -> Node | None:
    """Of a concatenation whose axis becomes two, the first of which counts the tensors."""
    axis, first = m.p, m.xs[0].shape
    wanted: tuple[Dim, ...] = (*first[:axis], len(m.xs), *first[axis:])
    same = all(D.known_eq(n.shape[axis], first[axis]) for n in m.xs)
    if len(m.xs) < 2 or not same or len(m.shape) != len(wanted):
        return None
    if not all(D.known_eq(a, b) for a, b in zip(m.shape, wanted, strict=True)):
        return None
    return make("concat", *(ops.unsqueeze(n, axis) for n in m.xs), axis=axis)


def _split_concat(m: Maker) -> Node:
    size = (m.dim(lo=1), m.dim(lo=1))
    axis, count = m.whole(0, 1), m.whole(2, 4)
    parts = [m.tensor(f"x{k}", size) for k in range(count)]
    whole = make("concat", *parts, axis=axis)
    return make("reshape", whole, shape=(*size[:axis], count, *size[axis:]))


@guard("each of a few tensors has one element along the reduced axis")
def stacked(m: Match) -> bool:
    return m.q == (m.p,) and len(m.xs) <= MOST and all(D.known_eq(n.shape[m.p], 1) for n in m.xs)


def _combined(combine: Callable[[Node, Node], Node], first: int) -> Callable[[Match], Node]:
    """One after the other, from the neutral element, as a reduction begins."""

    def build(m: Match) -> Node:
        wide = m.root.dtype.accumulator
        parts = [ops.cast(ops.reshape(n, m.root.shape), wide) for n in m.xs]
        return ops.cast(reduce(combine, parts, ops.full((), first, wide)), m.root.dtype)

    return build


def _over_stack(name: str) -> Callable[[Maker], Node]:
    def subject(m: Maker) -> Node:
        axis, size = m.whole(0, 2), [m.dim(lo=1), m.dim(lo=1)]
        size.insert(axis, 1)
        parts = [m.tensor(f"x{k}", tuple(size)) for k in range(m.whole(2, 4))]
        return make(name, make("concat", *parts, axis=axis), axes=(axis,), keepdims=m.coin())

    return subject


RULES = (
    Rule(
        "stack-of-concat",
        op.reshape(op.concat(xs, axis=p), shape=shape),
        _stacked_again,
        subject=_split_concat,
    ),
    *(
        Rule(
            f"{name}-of-stack",
            Apply(name, (op.concat(xs, axis=p),), (("axes", q),)),
            _combined(combine, first),
            stacked,
            subject=_over_stack(name),
            dtypes="fi",
        )
        for name, combine, first in (("sum", ops.add, 0), ("prod", ops.mul, 1))
    ),
)
