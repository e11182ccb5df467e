"""Layouts: packing and unpacking by one map cancel."""

from __future__ import annotations

from tilewright.ir.maps import Map
from tilewright.ir.node import Node
from tilewright.ir.pattern import Attr, Match, Rule, Var, guard, make, op
from tilewright.rewrites.subject import Maker

x, p = Var("x"), Attr("p")
_MAPS = tuple(
    map(
        Map.parse,
        ("k, j -> j//4, k, j%4", "k, j -> j//8, k//2, (j//2)%4, k%2, j%2", "k, j -> j, k"),
    )
)


def _packed_and_back(m: Maker) -> Node:
    n, layout = m.tensor("x", m.shape(2)), m.rng.choice(_MAPS)
    return make("unrelayout", make("relayout", n, map=layout), map=layout, shape=n.shape)


def _back_and_packed(m: Maker) -> Node:
    shape, layout = (2 * m.dim(), 8 * m.dim(hi=2)), m.rng.choice(_MAPS)
    n = m.tensor("x", layout.shape(shape))
    return make("relayout", make("unrelayout", n, map=layout, shape=shape), map=layout)


@guard("the shape is the one that was packed")
def same_shape(m: Match) -> bool:
    return m.x.type == m.root.type


@guard("the map pads nothing")
def pads_nothing(m: Match) -> bool:
    return m.x.type == m.root.type and not m.p.padded_axes(m.nodes[1].shape)


RULES = (
    Rule(
        "unpack-packed",
        op.unrelayout(op.relayout(x, map=p), map=p),
        x,
        same_shape,
        subject=_packed_and_back,
    ),
    Rule(
        "pack-unpacked",
        op.relayout(op.unrelayout(x, map=p), map=p),
        x,
        pads_nothing,
        subject=_back_and_packed,
    ),
)
