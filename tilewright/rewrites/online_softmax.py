"""Attention in one pass over the keys, on request: what it saves depends on the schedule.

Two reductions over the keys and a product with weights that both need become one reduction over a
tuple with a rescaling combine (ops/online_softmax.py), for ordinary schedule steps to split, factor
and place. Only the rounding differs.
"""

from __future__ import annotations

from tilewright import ops
from tilewright.ir import dim as D
from tilewright.ir.node import Node
from tilewright.ir.pattern import Attr, Match, Rule, Var, guard, op
from tilewright.ops.attention import Attention
from tilewright.rewrites.subject import Maker

ON_REQUEST = True

q, k, v, mask = Var("q"), Var("k"), Var("v"), Var("mask")


@guard("as many heads of keys as of queries")
def same_heads(m: Match) -> bool:
    shapes = [x.shape[:-2] for x in (m.q, m.k, m.v)]
    return all(len(s) == len(shapes[0]) and all(map(D.known_eq, s, shapes[0])) for s in shapes)


def _online(m: Match) -> Node:
    attention = m.op(0)
    assert isinstance(attention, Attention)
    wide = [ops.cast(x, x.dtype.accumulator) for x in (m.q, m.k, m.v)]
    masks = (m.mask,) if "mask" in m.bindings else ()
    scores = attention.scores(wide[0], wide[1], masks)
    return ops.cast(ops.softmax_matmul(scores, wide[2]), m.root.dtype)


def _subject(m: Maker, masked: bool) -> Node:
    batch = (m.dim(hi=2), m.dim(hi=2))
    rows, keys, width, out = (m.dim(lo=1, hi=5) for _ in range(4))
    args = [
        m.tensor("q", (*batch, rows, width)),
        m.tensor("k", (*batch, keys, width)),
        m.tensor("v", (*batch, keys, out)),
    ]
    if masked:
        args.append(m.tensor("mask", (*batch, rows, keys)))
    return ops.attention(*args, causal=m.coin(), scale=0.5)


def _rule(name: str, masked: bool) -> Rule:
    operands = (q, k, v, mask) if masked else (q, k, v)
    return Rule(
        name,
        op.attention(*operands, causal=Attr("causal"), scale=Attr("scale")),
        _online,
        same_heads,
        subject=lambda m: _subject(m, masked),
        dtypes="f",
        changes="rounding",
        tested="a reduction that rescales has no normal form",
    )


RULES = (_rule("attention-online", False), _rule("masked-attention-online", True))
