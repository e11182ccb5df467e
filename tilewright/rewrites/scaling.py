"""Scales and shifts folded into the weights of a convolution or matrix product.

They round differently, and they pay only where the new weights are computed once, so a pass
selects them by name.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright import ops
from tilewright.ir.node import Node, node
from tilewright.ir.pattern import Apply, Attr, Guard, Match, Rule, Var, guard, op
from tilewright.rewrites.facts import along_axis, not_narrow, weights
from tilewright.rewrites.subject import Maker

ON_REQUEST = True

x, w, s = Var("x"), Var("w"), Var("s")
conv_pattern = op.conv(x, w, groups=Attr("groups"), transposed=Attr("transposed"), wide=False)


inner_used_once = Guard("its result is used here only", lambda m: m.used_once(m.nodes[1]))


@guard("s is one number per channel")
def per_channel(m: Match) -> bool:
    y = m.nodes[1]
    return along_axis(m.s, 1, y.rank, y.shape[1])


@guard("s is one number per column")
def per_column(m: Match) -> bool:
    y = m.nodes[1]
    return along_axis(m.s, y.rank - 1, y.rank, y.shape[-1]) and m.w.rank == 2


def channel_weight(m: Match, scale: Node) -> Node:
    """The weight of a convolution, its output channels scaled by one or C numbers."""
    flat = ops.reshape(scale, (scale.ttype.size,))
    n = m.w.rank
    if not m.transposed:
        return ops.mul(m.w, ops.reshape(flat, (*flat.shape, *(1,) * (n - 1))))
    # [C, O/groups, *kernel]: channel o is o % (O/groups) of group o // (O/groups).
    groups, per = m.groups, m.w.shape[1]
    if flat.shape == (1,) or groups == 1:
        return ops.mul(m.w, ops.reshape(flat, (*flat.shape, *(1,) * (n - 2))))
    c = m.w.shape[0]
    split = ops.reshape(m.w, (groups, c // groups, *m.w.shape[1:]))
    grid = ops.reshape(flat, (groups, 1, per, *(1,) * (n - 2)))
    return ops.reshape(ops.mul(split, grid), m.w.shape)


def _into_conv(m: Match) -> Node:
    scale = m.s if m.op(0).name == "mul" else ops.div(1.0, m.s)
    return node(m.op(1), m.x, channel_weight(m, scale))


def _into_matmul(m: Match) -> Node:
    flat = ops.reshape(m.s, (m.s.ttype.size,))
    scaled = ops.mul(m.w, flat) if m.op(0).name == "mul" else ops.div(m.w, flat)
    return ops.matmul(m.x, scaled)


def make_conv(m: Maker, transposed: bool | None = None) -> Node:
    """A convolution with weights, of every sort."""
    groups, n = m.whole(1, 2), m.whole(1, 2)
    flip = m.coin() if transposed is None else transposed
    cin, cout, k = 2 * groups, 3 * groups, m.whole(1, 2)
    shape = (cin, cout // groups) if flip else (cout, cin // groups)
    y = m.tensor("x", (m.dim(hi=2), cin, *(m.dim(lo=4, hi=6) for _ in range(n))))
    weight = m.weight("w", (*shape, *(k,) * n))
    stride = m.whole(1, 2)
    return ops.conv(
        y,
        weight,
        stride=(stride,) * n,
        padding=(m.whole(0, 1),) * n,
        dilation=(m.whole(1, 2),) * n,
        groups=groups,
        transposed=flip,
        output_padding=(m.whole(0, stride - 1),) * n,
    )


def _scaled_conv(name: str) -> Callable[[Maker], Node]:
    def subject(m: Maker) -> Node:
        y = make_conv(m)
        shape = m.rng.choice([(y.shape[1], *(1,) * (y.rank - 2)), ()])
        return getattr(ops, name)(y, m.weight("s", shape))

    return subject


def _scaled_matmul(name: str) -> Callable[[Maker], Node]:
    def subject(m: Maker) -> Node:
        deep, columns = m.dim(), m.dim(lo=1)
        x = m.tensor("x", (*m.shape(m.whole(1, 3)), deep))
        y = ops.matmul(x, m.weight("w", (deep, columns)))
        return getattr(ops, name)(y, m.weight("s", m.rng.choice([(columns,), (1, columns), ()])))

    return subject


RULES = tuple(
    rule
    for name in ("mul", "div")
    for rule in (
        Rule(
            f"{name}-into-conv",
            Apply(name, (conv_pattern, s)),
            _into_conv,
            weights("w", "s") & not_narrow & inner_used_once & per_channel,
            changes="rounding",
            subject=_scaled_conv(name),
            dtypes="f",
        ),
        Rule(
            f"{name}-into-matmul",
            Apply(name, (op.matmul(x, w), s)),
            _into_matmul,
            weights("w", "s") & not_narrow & inner_used_once & per_column,
            changes="rounding",
            subject=_scaled_matmul(name),
            dtypes="fi" if name == "mul" else "f",
        ),
    )
)
