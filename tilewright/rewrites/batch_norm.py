"""Batch normalisation at inference folded into the convolution or matrix product before it.

batch_norm(y) = (y - mean) · scale + shift with scale = weight / sqrt(var + eps): the scale goes
into the weights, the rest becomes one bias.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright import ops
from tilewright.ir.node import Node, node
from tilewright.ir.pattern import Attr, Guard, Match, Pattern, Rule, Var, op
from tilewright.rewrites.facts import along_axis, not_narrow, weights
from tilewright.rewrites.scaling import channel_weight, conv_pattern, make_conv
from tilewright.rewrites.subject import Maker

ON_REQUEST = True

x, w, bias = Var("x"), Var("w"), Var("bias")
gain, shift, mean, var = Var("gain"), Var("shift"), Var("mean"), Var("var")
matmul_pattern = op.matmul(x, w)


def _normed(y: Pattern) -> Pattern:
    return op.batch_norm(y, gain, shift, mean, var, eps=Attr("eps"))


one_dtype = Guard(
    "one dtype throughout",
    lambda m: all(n.dtype is m.root.dtype for n in (m.x, m.w, m.gain, m.shift, m.mean, m.var)),
)
used_here = Guard(
    "what is between is used here only", lambda m: all(m.used_once(n) for n in m.nodes[1:])
)
statistics = weights("w", "gain", "shift", "mean", "var")
per_channel = Guard(
    "the bias is a weight per channel",
    lambda m: along_axis(m.bias, 1, m.root.rank, m.root.shape[1]),
) & weights("bias")
flat_matmul = Guard("a matrix times a matrix", lambda m: m.x.rank == 2 and m.w.rank == 2)


def _folded(m: Match) -> Node:
    scale = ops.mul(m.gain, ops.rsqrt(ops.add(m.var, float(m.eps))))
    source = m.nodes[-1]  # the convolution or product stands last in each pattern
    if source.op.name == "conv":
        y = node(source.op, m.x, channel_weight(m, scale))
    else:
        y = ops.matmul(m.x, ops.mul(m.w, scale))
    center = ops.neg(m.mean)
    if "bias" in m.bindings:
        flat = ops.reshape(m.bias, (m.bias.ttype.size,))
        center = ops.sub(flat, m.mean)
    offset = ops.add(m.shift, ops.mul(center, scale))
    return ops.add(y, ops.reshape(offset, (*offset.shape, *(1,) * (y.rank - 2))))


def _subject(build: Callable[[Maker], Node], biased: bool) -> Callable[[Maker], Node]:
    def subject(m: Maker) -> Node:
        y = build(m)
        c = y.shape[1]
        if biased:
            y = ops.add(y, m.weight("bias", (c, *(1,) * (y.rank - 2))))
        gain, shift, mean = (m.weight(k, (c,)) for k in ("gain", "shift", "mean"))
        spread = ops.abs(m.weight("var", (c,)))  # a variance is not negative
        return ops.batch_norm(y, gain, shift, mean, spread, eps=0.1)

    return subject


def _product(m: Maker) -> Node:
    deep = m.dim()
    return ops.matmul(m.tensor("x", (m.dim(), deep)), m.weight("w", (deep, m.dim(lo=1))))


RULES = tuple(
    Rule(
        f"batch-norm-into-{name}{'-bias' if biased else ''}",
        _normed(pattern + bias if biased else pattern),
        _folded,
        statistics
        & not_narrow
        & one_dtype
        & used_here
        & fits
        & (per_channel if biased else one_dtype),
        changes="rounding",
        subject=_subject(build, biased),
        dtypes="f",
    )
    for name, pattern, build, fits in (
        ("conv", conv_pattern, make_conv, one_dtype),
        ("matmul", matmul_pattern, _product, flat_matmul),
    )
    for biased in (False, True)
)
