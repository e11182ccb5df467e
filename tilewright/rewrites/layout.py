"""Layouts: packing and unpacking by one map cancel."""

from __future__ import annotations

from tilewright.ir.maps import Map
from tilewright.ir.node import Node
from tilewright.ir.pattern import Attr, Match, Rule, Var, guard, make, op
from tilewright.rewrites.subject import Maker

x, p = Var("x"), Attr("p")
_MAP = Map.parse("k, j -> j//4, k, j%4")


def _packed_and_back(m: Maker) -> Node:
    n = m.tensor("x", (m.dim(), m.whole(1, 12)))
    return make("unrelayout", make("relayout", n, map=_MAP), map=_MAP, shape=n.shape)


def _back_and_packed(m: Maker) -> Node:
    rows, blocks = m.dim(), m.whole(1, 3)
    n = m.tensor("x", (blocks, rows, 4))
    return make("relayout", make("unrelayout", n, map=_MAP, shape=(rows, 4 * blocks)), map=_MAP)


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
