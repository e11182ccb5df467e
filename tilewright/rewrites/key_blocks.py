"""Keys in blocks: softmax(scores) values, part by part, put together with running maxima.

Blocks are one more axis of a batch. The softmax of a block and its product with the values are what
one kernel computes (`graph/chains.py`), and `softmax_parts` puts the blocks together. The axis is
put in where keys, masks and positions come from, so that a condition on positions still is one.
Past the last key there is nothing to see.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tilewright import ops
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node, node
from tilewright.ir.operator import composition, is_composed, outputs_of
from tilewright.ir.pattern import Match, Pattern, Rest, Rule, Var, guard, op
from tilewright.ir.types import TupleType, i64
from tilewright.ops import elementwise as ew
from tilewright.ops.attention import Attention, AttentionForward, joined
from tilewright.ops.creation import Full, Iota, full, iota, number
from tilewright.ops.elementwise import Cast
from tilewright.ops.linear import Matmul, matmul
from tilewright.ops.online_softmax import softmax_parts, softmax_parts_log
from tilewright.ops.reductions import AnyOf, amax, sum
from tilewright.ops.softmax import Softmax
from tilewright.ops.views import Expand, Reshape, pad, permute, reshape
from tilewright.rewrites.subject import Maker

ON_REQUEST = True
NOTHING = float("-inf")

# Keys in a block, for scores [.., rows, keys]. None: all of them are one.
Size = Callable[[Node], "int | None"]
# Into how many parts so many blocks of keys are taken, for scores [.., rows, keys].
Parts = Callable[[Node, int], int]


def _one(scores: Node, blocks: int) -> int:
    return 1


def _as_it_is(scores: Node) -> int:
    return 1


@dataclass(frozen=True)
class Cut:
    """How keys are cut: into blocks, which running maxima put together, and these into parts, each
    with a result of its own. Heads that share keys are rows of one product where they have fewer
    rows than `together`. Where all keys are one block of unknown size, that is filled up to a
    multiple of `fill`."""

    size: Size
    parts: Parts = _one
    together: int = 0
    fill: Callable[[Node], int] = _as_it_is


def key_block_rules(cut: Cut) -> tuple[Rule, ...]:
    """Attention in blocks of keys, however it is spelled."""
    q, k, v, x, mask = Var("q"), Var("k"), Var("v"), Var("x"), Rest("mask")

    def attention(m: Match) -> Node | None:
        found = m.op(0)
        assert isinstance(found, Attention)
        out = attention_in_blocks(found, cut, False, m.q, m.k, m.v, *m.mask)
        return None if out is None else out[0]

    def product(zeros: bool) -> Callable[[Match], Node | None]:
        def right(m: Match) -> Node | None:
            wide = m.x.dtype.accumulator
            scores, values = ew.cast(m.x, wide), ew.cast(m.v, wide)
            out = _in_blocks(scores, values, cut, zeros, False)
            return None if out is None else ew.cast(out[0], m.root.dtype)

        return right

    def rule(name: str, left: Pattern, zeros: bool, subject: Callable[[Maker], Node]) -> Rule:
        return Rule(
            name, left, product(zeros), over_keys, _WHY, "rounding", subject=subject, dtypes="f"
        )

    softmax = op.softmax(x)
    safe = op.where(op.any(op.ne(x, NOTHING)), softmax, 0.0)
    return (
        Rule(
            "attention-in-blocks",
            op.attention(q, k, v, mask),
            attention,
            None,
            _WHY,
            "rounding",
            subject=_attention,
            dtypes="f",
        ),
        rule("softmax-product-in-blocks", op.matmul(softmax, v), False, _product),
        rule("rounded-softmax-product-in-blocks", op.matmul(op.cast(softmax), v), False, _rounded),
        rule("safe-softmax-product-in-blocks", op.matmul(safe, v), True, _safe),
    )


_WHY = "a reduction that rescales has no normal form"


@guard("softmax over the keys, for this product alone")
def over_keys(m: Match) -> bool:
    last = m.x.rank - 1
    softmax = [n.op.axis for n in m.nodes if isinstance(n.op, Softmax)]
    some = [n.op.axes for n in m.nodes if isinstance(n.op, AnyOf)]
    private = m.uses.get(m.x, 1) <= 1 + len(some) and all(map(m.used_once, m.nodes[1:]))
    floats = all(n.dtype.is_float for n in m.nodes if isinstance(n.op, (Matmul, Cast)))
    over_last = softmax == [last] and all(axes == (last,) for axes in some)
    return private and floats and over_last and last >= 1 and m.v.rank >= 2


# ---- what the rules are tried on


def _heads(m: Maker) -> tuple[Node, Node, Node]:
    batch = (m.dim(hi=2), m.dim(hi=2))
    rows, keys, width, out = (m.dim(lo=k, hi=5) for k in (1, 2, 1, 1))
    return (
        m.tensor("q", (*batch, rows, width)),
        m.tensor("k", (*batch, keys, width)),
        m.tensor("v", (*batch, keys, out)),
    )


def _attention(m: Maker) -> Node:
    q, k, v = _heads(m)
    mask = m.tensor("mask", (*q.shape[:-1], k.shape[-2])) if m.coin() else None
    return ops.attention(q, k, v, mask, causal=m.coin(), scale=0.5)


def _scores(m: Maker) -> tuple[Node, Node]:
    q, k, v = _heads(m)
    return ops.matmul(q, ops.transpose(k, -2, -1)), v


def _product(m: Maker) -> Node:
    x, v = _scores(m)
    return ops.matmul(ops.softmax(x, x.rank - 1), v)


def _rounded(m: Maker) -> Node:
    x, v = _scores(m)
    return ops.matmul(node(Cast(v.dtype), ops.softmax(x, x.rank - 1)), v)


def _safe(m: Maker) -> Node:
    x, v = _scores(m)
    some = ops.any(ops.ne(x, NOTHING), (x.rank - 1,), True)
    return ops.matmul(ops.where(some, ops.softmax(x, x.rank - 1), 0.0), v)


# ---- blocks


def has_positions(scores: Node) -> bool:
    """Do scores depend on their own position?"""
    stack, seen = [scores], {scores}
    while stack:
        x = _opened(stack.pop())
        if isinstance(x.op, Iota):
            return True
        if x.op.elementwise or x.op.view:
            stack += (y for y in x.inputs if y not in seen)
            seen.update(x.inputs)
    return False


def _opened(x: Node) -> Node:
    """An operator that is written in terms of others, as those."""
    while is_composed(x.op) and not isinstance(x.type, TupleType):
        (x,) = composition(x)
    return x


def attention_in_blocks(
    op: Attention | AttentionForward, cut: Cut, log: bool, q: Node, k: Node, v: Node, *mask: Node
) -> tuple[Node, ...] | None:
    """Attention and, if wanted, the logarithm of each row's denominator; None where it stays as it
    is."""
    scores, values, groups = op.rows(q, k, v, *mask)
    length = q.shape[-2]
    few = groups > 1 and isinstance(length, int) and length < cut.together
    if few:
        scores, values = op.shared_rows(q, k, v, *mask)
    found = _in_blocks(scores, values, cut, True, log)
    if found is None:
        return None
    out, *rest = found
    out = ew.cast(out, q.dtype)
    shape = (*q.shape[:-1], out.shape[-1])
    out = reshape(out, shape) if few else joined(out, groups)
    return out, *(reshape(x, shape[:-1]) for x in rest)


def _in_blocks(
    scores: Node, values: Node, cut: Cut, zeros: bool, log: bool
) -> tuple[Node, ...] | None:
    """softmax(scores) values, and the logarithm of each row's denominator; None where there is one
    block, or no product makes the scores."""
    size, unit = cut.size(scores), cut.fill(scores)
    if (size is None and unit == 1) or values.shape[-1] == 0:
        return None
    if size is None:
        b = _Blocks.one(scores.shape[-1], unit)
    else:
        b = _Blocks.of(scores.shape[-1], size, lambda blocks: cut.parts(scores, blocks))
    x = b.along_last(scores)
    if not b.products:
        return None
    if not b.even:
        x = ew.where(ew.lt(b.positions(), number(b.keys, i64)), x, NOTHING)
    axis = (x.rank - 1,)
    raw, scale = _scaled(x)
    top = amax(raw, axis, True)
    if scale is not None:
        x, top = ew.mul(raw, scale), ew.mul(top, scale)
    e = ew.exp(ew.sub(x, ew.where(ew.eq(top, NOTHING), 0.0, top)))
    weighted = matmul(e, b.along_rows(values))
    if not all(map(D.known_eq, weighted.shape[:-1], top.shape[:-1])):
        return None
    total = sum(e, axis, True)
    if not b.counts:
        return _whole(top, total, weighted, zeros, log)
    if len(b.counts) > 1:
        # The result of a part weighs as much as its denominator says.
        weighted, logs = outputs_of(softmax_parts_log(top, total, weighted))
        top = reshape(logs, (*logs.shape, 1))
        total = ew.where(ew.eq(top, NOTHING), 0.0, full(top.shape, 1.0, top.dtype))
    if log:
        return outputs_of(softmax_parts_log(top, total, weighted))
    return (softmax_parts(top, total, weighted, zeros),)


def _whole(top: Node, total: Node, weighted: Node, zeros: bool, log: bool) -> tuple[Node, ...]:
    """The same of one block, in which nothing is put together."""
    none = ew.eq(total, 0.0)
    out = ew.div(weighted, ew.where(none, 1.0, total) if zeros else total)
    if not log:
        return (out,)
    logs = ew.where(none, NOTHING, ew.add(top, ew.log(total)))
    return out, reshape(logs, logs.shape[:-1])


def _scaled(x: Node) -> tuple[Node, Node | None]:
    """(y, factor) where x is y times a positive number: the greatest x is the greatest y times it,
    to the bit. A condition that hides elements is one on y."""
    if x.op.name == "where" and _number(x.inputs[2]) == NOTHING:
        condition, inner, nothing = x.inputs
        y, scale = _scaled(inner)
        return (x, None) if scale is None else (ew.where(condition, y, nothing), scale)
    if x.op.name == "mul":
        y, scale = x.inputs
        factor = _number(scale)
        if factor is not None and 0 < factor < math.inf:
            return y, scale
    return x, None


def _number(x: Node) -> float | None:
    """The one number that a value is made of."""
    while x.op.view:
        (x,) = x.inputs
    return float(x.op.value) if isinstance(x.op, Full) else None


class _Blocks:
    """Values over keys as values over blocks: [.., rows, keys] -> [.., blocks, rows, block], and 1
    where an axis has one element for all of them. In several parts: [.., parts, blocks, rows,
    block]. Without counts all keys are one block: [.., rows, block]."""

    def __init__(self, keys: Dim, size: Dim, counts: tuple[Dim, ...]) -> None:
        self.keys, self.size, self.counts = keys, size, counts
        self.whole: Dim = size * math.prod(self.counts)  # keys and what follows the last one
        self.even = D.known_eq(self.whole, keys)
        self.known: dict[Node, Node] = {}
        self.products = 0  # that were taken apart

    @staticmethod
    def of(keys: Dim, size: int, parts: Callable[[int], int]) -> _Blocks:
        count = D.ceildiv(keys, size)
        found = parts(count) if isinstance(count, int) else 1
        counts = (found, D.ceildiv(count, found)) if found > 1 else (count,)
        return _Blocks(keys, size, counts)

    @staticmethod
    def one(keys: Dim, unit: int) -> _Blocks:
        """All keys, and as many more as a multiple of the unit has."""
        return _Blocks(keys, D.ceildiv(keys, unit) * unit, ())

    def positions(self) -> Node:
        return self._in_blocks(iota(self.whole, dtype=i64))

    def _in_blocks(self, x: Node) -> Node:
        return reshape(x, (*self.counts, 1, self.size))

    def along_last(self, x: Node) -> Node:
        if x not in self.known:
            self.known[x] = self._along_last(x)
        return self.known[x]

    def _along_last(self, x: Node) -> Node:
        if x.rank == 0 or (x.rank == 1 and x.shape[0] == 1):
            return x
        if x.shape[-1] == 1:
            return self._each(x)
        op = (x := _opened(x)).op
        if op.elementwise:
            return node(op, *map(self.along_last, x.inputs))
        if isinstance(op, Full):
            return full((), op.value, op.dtype)
        if isinstance(op, Iota):
            return self._in_blocks(iota(self.whole, op.start, op.step, op.dtype))
        if isinstance(op, Matmul):
            self.products += 1
            rows, columns = x.inputs
            return matmul(self._each(rows), self._stored(columns))
        if op.view and x.inputs[0].rank and D.known_eq(x.inputs[0].shape[-1], x.shape[-1]):
            seen = self._through(x)
            if seen is not None:
                return seen
        return self._stored(x)

    def _through(self, x: Node) -> Node | None:
        """The operand of a view that does not change the axis of keys; broadcasting does the
        rest."""
        (y,) = x.inputs
        if isinstance(x.op, Expand):
            return self.along_last(y)
        if not isinstance(x.op, Reshape):
            return None
        if y.rank == 1:
            return self.along_last(y)
        if x.rank == 1 or not D.known_eq(y.shape[-2], x.shape[-2]):
            return None
        inner = self.along_last(y)
        whole = (*y.shape[:-2], *self.counts, y.shape[-2], self.size)
        if len(whole) != inner.rank or not all(map(D.known_eq, whole, inner.shape)):
            return None
        return reshape(inner, (*x.shape[:-2], *inner.shape[y.rank - 2 :]))

    def _each(self, x: Node) -> Node:
        """The same for all blocks."""
        return reshape(x, (*x.shape[:-2], *(1 for _ in self.counts), *x.shape[-2:]))

    def _stored(self, x: Node) -> Node:
        """A node that is not looked into: its last axis is cut into blocks, each with all rows."""
        if x.rank == 1:
            return self._in_blocks(self._filled(x, 0))
        x = self._filled(x, x.rank - 1)
        rows = x.rank - 2
        x = reshape(x, (*x.shape[:-1], *self.counts, self.size))
        return permute(x, (*range(rows), *range(rows + 1, x.rank - 1), rows, x.rank - 1))

    def along_rows(self, x: Node) -> Node:
        """[.., keys, width] -> [.., blocks, block, width]"""
        x = self._filled(x, x.rank - 2)
        return reshape(x, (*x.shape[:-2], *self.counts, self.size, x.shape[-1]))

    def _filled(self, x: Node, axis: int) -> Node:
        if self.even:
            return x
        more = [self.whole - self.keys if k == axis else 0 for k in range(x.rank)]
        return pad(x, (0,) * x.rank, more, False if x.dtype.is_bool else 0)


RULES = key_block_rules(Cut(lambda scores: 2, lambda scores, blocks: min(2, blocks), 2))
