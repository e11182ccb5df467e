"""Two sums, added or subtracted, as one sum.

Sums over the same data may nearly cancel, as in the gradient of a quantiser's scale, and each
rounds by its own size. Their terms cancel one by one, before anything large is added up.

What is added up in zeros, element by element, is added up in the other term instead: a gradient of
words that are also a head's weights has no second matrix as large as the first. A pass selects the
rules by name.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright import ops
from tilewright.ir import dim as D
from tilewright.ir.node import Node, node
from tilewright.ir.pattern import (
    Apply,
    Attr,
    Guard,
    Match,
    Pattern,
    Rest,
    Rule,
    Var,
    filled_value,
    guard,
    make,
    op,
)
from tilewright.ir.types import i64
from tilewright.ops.indexing import IndexPut
from tilewright.rewrites.facts import not_narrow
from tilewright.rewrites.subject import Maker

ON_REQUEST = True
MOST_STEPS = 256  # that are looked at for what a term reads

x, y, z = Var("x"), Var("y"), Var("z")
_which = (("axes", Attr("axes")), ("keepdims", Attr("keepdims")))

same_shape = Guard(
    "x and y have one shape, and so have the operands",
    lambda m: m.x.shape == m.y.shape and m.root.inputs[0].shape == m.root.inputs[1].shape,
)
used_here_only = Guard("both sums are used here only", lambda m: all(map(m.used_once, m.nodes[1:])))


def _read(term: Node, axes: tuple[int, ...]) -> set[Node] | None:
    """What a term reads of which each of its elements reads another one; None where it may be a
    product of rows and columns, whose sum is a matrix product."""
    found: set[Node] = set()
    seen: set[Node] = {term}
    todo = [term]
    while todo:
        n = todo.pop()
        if n.op.elementwise or n.op.name == "expand":
            if len(seen) > MOST_STEPS:
                return None
            fresh = [i for i in n.inputs if i not in seen]
            seen.update(fresh)
            todo += fresh
            continue
        lead = term.rank - n.rank
        if lead == 0 and all(map(D.known_eq, n.shape, term.shape)):
            if filled_value(n) is None:
                found.add(n)
        elif not all(a < lead or D.known_eq(n.shape[a - lead], 1) for a in axes):
            return None
    return found


@guard("x and y are computed element by element, and one of them reads all that the other does")
def of_the_same(m: Match) -> bool:
    of_x, of_y = _read(m.x, m.axes), _read(m.y, m.axes)
    return of_x is not None and of_y is not None and (of_x <= of_y or of_y <= of_x)


def _joined(name: str) -> Callable[[Match], Node]:
    def build(m: Match) -> Node:
        term = ops.add(m.x, m.y) if name == "add" else ops.sub(m.x, m.y)
        made = ops.sum(term, m.axes, m.keepdims)
        return ops.reshape(made, m.root.shape)

    return build


def _subject(name: str, reshaped: bool) -> Callable[[Maker], Node]:
    def subject(m: Maker) -> Node:
        n = m.tensor("x", m.shape(m.whole(1, 3)))
        axes = tuple(sorted(m.rng.sample(range(n.rank), m.whole(1, n.rank))))
        scale = m.tensor("s", tuple(1 if k in axes else d for k, d in enumerate(n.shape)))
        terms = [ops.mul(n, scale), ops.mul(n, n)]
        m.rng.shuffle(terms)
        keepdims = m.coin()
        sums = [ops.sum(t, axes, keepdims) for t in terms]
        if reshaped:
            shape = (1, *sums[0].shape)
            sums = [ops.reshape(s, shape) for s in sums]
        return ops.add(*sums) if name == "add" else ops.sub(*sums)

    return subject


def _sum(term: Var, reshaped: bool) -> Pattern:
    found = Apply("sum", (term,), _which)
    return Apply("reshape", (found,)) if reshaped else found


def _put(m: Match) -> Node:
    """The update: the operand that is not x, which may update the same zeros itself."""
    first, second = m.root.inputs
    return second if first is m.x else first


whole_zeros = Guard(
    "z is zeros that nothing else adds to, and has the shape of x and of the sum",
    lambda m: filled_value(m.z) == 0 and m.x.shape == m.z.shape == m.root.shape,
)
put_once = Guard("the updated zeros are used here only", lambda m: m.used_once(_put(m)))


def _added(m: Match) -> Node:
    op = _put(m).op
    assert isinstance(op, IndexPut)
    return node(op, m.x, *_put(m).inputs[1:])


def _zeros_and_more(m: Maker) -> Node:
    x = m.tensor("x", (m.dim(lo=1), *m.shape(m.whole(0, 1))))
    rows = m.tensor("i", (m.dim(),), i64)
    zeros = make("full", shape=x.shape, value=0, dtype=x.dtype)
    known = m.rng.choice(["any", "within"])

    def put(name: str) -> Node:
        values = m.tensor(name, (*rows.shape, *x.shape[1:]))
        return ops.index_put(zeros, values, [rows], (0,), True, known)

    terms = [put("w") if m.coin() else x, put("v")]
    m.rng.shuffle(terms)
    return ops.add(*terms)


UPDATED = Rule(
    "add-updated-zeros",
    op.add(x, op.index_put(z, Rest("rest"), accumulate=True)),
    _added,
    whole_zeros & put_once & not_narrow,
    changes="rounding",
    subject=_zeros_and_more,
    tested="an ordered update has no normal form",
    dtypes="f",
)

RULES = (UPDATED,) + tuple(
    Rule(
        f"{name}-{'reshaped-' if reshaped else ''}sums",
        Apply(name, (_sum(x, reshaped), _sum(y, reshaped))),
        _joined(name),
        same_shape & used_here_only & of_the_same,
        changes="rounding",
        subject=_subject(name, reshaped),
        dtypes="f",
    )
    for name in ("add", "sub")
    for reshaped in (False, True)
)
