"""Movers of elements: chains become one, identities vanish, parts put together are found again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from tilewright import ops
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node, node
from tilewright.ir.pattern import Apply, Attr, Guard, Match, Rest, Rule, Var, guard, make, op
from tilewright.ir.positions import product
from tilewright.rewrites.subject import Maker

x, y, xs = Var("x"), Var("y"), Rest("xs")
p, q = Attr("p"), Attr("q")

unchanged = Guard("the type does not change", lambda m: m.x.type == m.root.type)


# ---- identities


def _identity(build: Callable[[Maker, Node], Node]) -> Callable[[Maker], Node]:
    return lambda m: build(m, m.tensor("x", m.shape(m.whole(1, 3))))


IDENTITIES = (
    Rule(
        "reshape-same",
        op.reshape(x),
        x,
        unchanged,
        subject=_identity(lambda m, n: make("reshape", n, shape=n.shape)),
    ),
    Rule(
        "expand-same",
        op.expand(x),
        x,
        unchanged,
        subject=_identity(lambda m, n: make("expand", n, shape=n.shape)),
    ),
    Rule(
        "permute-same",
        op.permute(x, perm=p),
        x,
        Guard("the axes stay in order", lambda m: m.p == tuple(range(len(m.p)))),
        subject=_identity(lambda m, n: make("permute", n, perm=tuple(range(n.rank)))),
    ),
    Rule(
        "slice-all",
        op.slice(x, step=1),
        x,
        unchanged & Guard("from the start", lambda m: D.known_eq(m.op(0).start, 0)),
        subject=_identity(lambda m, n: make("slice", n, axis=0, start=0, stop=n.shape[0], step=1)),
    ),
    Rule(
        "pad-nothing",
        op.pad(x, lo=p, hi=q),
        x,
        Guard("no padding", lambda m: all(D.known_eq(d, 0) for d in (*m.p, *m.q))),
        subject=_identity(lambda m, n: make("pad", n, lo=(0,) * n.rank, hi=(0,) * n.rank, value=1)),
    ),
    Rule(
        "flip-nothing",
        op.flip(x, axes=p),
        x,
        Guard(
            "flipped axes have one element", lambda m: all(D.known_eq(m.x.shape[a], 1) for a in m.p)
        ),
        subject=lambda m: make("flip", m.tensor("x", (m.dim(), 1)), axes=(1,)),
    ),
    Rule(
        "roll-nothing",
        op.roll(x, shifts=p),
        x,
        Guard("no shift", lambda m: all(D.known_eq(s, 0) for s in m.p)),
        subject=_identity(lambda m, n: make("roll", n, shifts=(0,), axes=(0,))),
    ),
    Rule("concat-one", op.concat(x), x, subject=_identity(lambda m, n: make("concat", n, axis=0))),
)


# ---- chains


def _reshapes(m: Maker) -> Node:
    a, b, c = m.dim(), m.dim(), m.dim()
    shapes = [(a, b, c), (a * b, c), (a, b * c), (a * b * c,), (a, 1, b, c)]
    n = m.tensor("x", m.rng.choice(shapes))
    first, second = m.rng.sample([s for s in shapes if s != n.shape], 2)
    return make("reshape", make("reshape", n, shape=first), shape=second)


def _permutes(m: Maker) -> Node:
    rank = m.whole(2, 4)
    n = m.tensor("x", m.shape(rank))
    return make("permute", make("permute", n, perm=m.perm(rank)), perm=m.perm(rank))


def _expands(m: Maker) -> Node:
    a, b, c = m.dim(), m.dim(), m.dim()
    n = m.tensor("x", m.rng.choice([(1, b), (b,), (1, 1)]))
    middle = (1, a, b)
    return make("expand", make("expand", n, shape=middle), shape=(c, a, b))


def _slices(m: Maker) -> Node:
    before, skipped, inside, after = m.dim(), m.dim(), m.dim(lo=1), m.dim()
    step = m.whole(1, 3)
    taken = (skipped + inside + m.dim()) * step
    axis = m.whole(0, 2)
    shape = m.shape(3)
    n = m.tensor("x", (*shape[:axis], before + taken + after, *shape[axis + 1 :]))
    inner = make("slice", n, axis=axis, start=before, stop=before + taken, step=step)
    stop = skipped + inside
    return make("slice", inner, axis=axis, start=skipped, stop=stop, step=m.whole(1, 2))


def _slice_of_slice(m: Match) -> Node:
    inner, outer = m.op(1), m.op(0)
    start = inner.start + outer.start * inner.step
    # The last element that is read, and one further.
    last = start + (m.root.shape[outer.axis] - 1) * (inner.step * outer.step)
    return make(
        "slice", m.x, axis=outer.axis, start=start, stop=last + 1, step=inner.step * outer.step
    )


def _flips(m: Maker) -> Node:
    n = m.tensor("x", m.shape(3))
    return make("flip", make("flip", n, axes=(0, 2)), axes=m.rng.choice([(0, 2), (1,), (0,)]))


def _flip_of_flip(m: Match) -> Node:
    return ops.flip(m.x, sorted(set(m.p) ^ set(m.q)))


def _pads(m: Maker) -> Node:
    n = m.tensor("x", m.shape(2))
    inner = make("pad", n, lo=(m.dim(), 0), hi=(m.dim(), m.dim()), value=0)
    return make("pad", inner, lo=(m.dim(), 1), hi=(0, m.dim()), value=0)


@guard("both pads grow, with one value")
def growing(m: Match) -> bool:
    inner, outer = m.op(1), m.op(0)
    amounts = (*inner.lo, *inner.hi, *outer.lo, *outer.hi)
    return all(D.nonneg(a) for a in amounts) and repr(inner.value) == repr(outer.value)


def _pad_of_pad(m: Match) -> Node:
    inner, outer = m.op(1), m.op(0)
    lo = tuple(a + b for a, b in zip(inner.lo, outer.lo, strict=True))
    hi = tuple(a + b for a, b in zip(inner.hi, outer.hi, strict=True))
    return make("pad", m.x, lo=lo, hi=hi, value=inner.value)


MOST_WORK = 8  # elementwise operators between two reshapes


def _worked(m: Maker) -> Node:
    a, b = m.dim(), m.dim()
    n = m.tensor("x", (a, b))
    flat = make("reshape", n, shape=(a * b,))
    number = m.tensor("y", ())
    work = make("maximum", make("mul", flat, number), m.rng.choice([flat, number]))
    return make("reshape", work, shape=(a, b))


def _in_first_shape(m: Match) -> Node | None:
    """Elementwise work between a reshape and the one back, on operands as they were before."""
    shape = m.root.shape

    def made(n: Node, depth: int) -> Node | None:
        if n.op.name == "reshape" and n.inputs[0].shape == shape:
            return n.inputs[0]
        if n.rank == 0:
            return n
        if not n.op.elementwise or depth == MOST_WORK or not m.used_once(n):
            return None
        if any(i.rank and i.shape != n.shape for i in n.inputs):
            return None
        inputs = [made(i, depth + 1) for i in n.inputs]
        return None if None in inputs else node(n.op, *[i for i in inputs if i is not None])

    done = made(m.x, 0)
    return done if done is not None and done.type == m.root.type else None


CHAINS = (
    Rule(
        "reshape-work-reshape",
        op.reshape(x),
        _in_first_shape,
        subject=_worked,
        at=lambda n: n.inputs[0].op.elementwise,
    ),
    Rule(
        "reshape-reshape",
        op.reshape(op.reshape(x)),
        lambda m: ops.reshape(m.x, m.root.shape),
        subject=_reshapes,
    ),
    Rule(
        "permute-permute",
        op.permute(op.permute(x, perm=p), perm=q),
        lambda m: ops.permute(m.x, tuple(m.p[k] for k in m.q)),
        subject=_permutes,
    ),
    Rule(
        "expand-expand",
        op.expand(op.expand(x)),
        lambda m: ops.expand(m.x, m.root.shape),
        subject=_expands,
    ),
    Rule(
        "slice-slice",
        op.slice(op.slice(x, axis=p), axis=p),
        _slice_of_slice,
        Guard("something is left", lambda m: D.known_lt(0, m.root.shape[m.p])),
        subject=_slices,
    ),
    Rule("flip-flip", op.flip(op.flip(x, axes=p), axes=q), _flip_of_flip, subject=_flips),
    Rule("pad-pad", op.pad(op.pad(x)), _pad_of_pad, growing, subject=_pads),
)


# ---- views that are other views


def _moves_ones(m: Maker) -> Node:
    a, b = m.dim(lo=2), m.dim(lo=2)
    return make("permute", m.tensor("x", (a, 1, b)), perm=m.rng.choice([(1, 0, 2), (0, 2, 1)]))


@guard("the axes longer than one stay in order")
def only_ones_move(m: Match) -> bool:
    order = [k for k in m.p if not D.known_eq(m.x.shape[k], 1)]
    return order == sorted(order) and m.p != tuple(range(len(m.p)))


def _permuted_expand(m: Maker) -> Node:
    a, b, c = m.dim(lo=2), m.dim(lo=2), m.dim(lo=2)
    wide = make("expand", m.tensor("x", (1, b, 1)), shape=(a, b, c))
    return make("permute", wide, perm=m.perm(3))


def _expand_of_permute(m: Match) -> Node:
    rank = len(m.p)
    wide = ops.reshape(m.x, (1,) * (rank - m.x.rank) + m.x.shape)
    return ops.expand(ops.permute(wide, m.p), m.root.shape)


def _expand_by_ones(m: Maker) -> Node:
    n = m.tensor("x", m.shape(2))
    return make("expand", n, shape=(1, 1, *n.shape))


@guard("no element is repeated")
def repeats_nothing(m: Match) -> bool:
    return D.known_eq(product(m.x.shape), product(m.root.shape)) and m.x.type != m.root.type


MEANINGS = (
    Rule(
        "permute-of-ones",
        op.permute(x, perm=p),
        lambda m: ops.reshape(m.x, m.root.shape),
        only_ones_move,
        subject=_moves_ones,
    ),
    Rule(
        "permute-expand",
        op.permute(op.expand(x), perm=p),
        _expand_of_permute,
        subject=_permuted_expand,
    ),
    Rule(
        "expand-by-ones",
        op.expand(x),
        lambda m: ops.reshape(m.x, m.root.shape),
        repeats_nothing,
        subject=_expand_by_ones,
    ),
)


# ---- concat, slice, slice_scatter


def _added(sizes: Sequence[Dim]) -> Dim:
    out: Dim = 0
    for n in sizes:
        out = out + n
    return out


def _ends(nodes: tuple[Node, ...], axis: int) -> list[Dim]:
    out: list[Dim] = [0]
    for n in nodes:
        out.append(out[-1] + n.shape[axis])
    return out


def _joined(m: Maker, sizes: list[Dim]) -> Node:
    rows = m.dim()
    parts = [m.tensor(f"x{k}", (rows, n)) for k, n in enumerate(sizes)]
    return make("concat", *parts, axis=1)


def _slice_of_concat(m: Maker) -> Node:
    before, inside, after = m.dim(), m.dim(), m.dim()
    k = m.whole(0, 2)
    sizes = [before + inside + after if j == k else m.dim() for j in range(3)]
    n = _joined(m, sizes)
    start = _ends(n.inputs, 1)[k] + before
    return make("slice", n, axis=1, start=start, stop=start + inside, step=m.whole(1, 2))


def _found_in_concat(m: Match) -> Node | None:
    s = m.op(0)
    if m.op(1).axis != s.axis:
        return None
    ends = _ends(m.xs, s.axis)
    for n, lo, hi in zip(m.xs, ends, ends[1:], strict=False):
        if D.known_le(lo, s.start) and D.known_le(s.stop, hi):
            return ops.slice(n, s.axis, s.start - lo, s.stop - lo, s.step)
    return None


def _concat_of_slices(m: Maker) -> Node:
    cuts: list[Dim] = [m.dim()]
    for _ in range(m.whole(2, 3)):
        cuts.append(cuts[-1] + m.dim())
    n = m.tensor("x", (m.dim(), cuts[-1] + m.dim()))
    parts = [make("slice", n, axis=1, start=a, stop=b, step=1) for a, b in pairwise(cuts)]
    return make("concat", *parts, axis=1)


def _joined_slices(m: Match) -> Node | None:
    axis = m.p
    first = m.xs[0]
    if len(m.xs) < 2 or any(
        n.op.name != "slice"
        or n.op.axis != axis
        or n.op.step != 1
        or n.inputs[0] is not first.inputs[0]
        for n in m.xs
    ):
        return None
    if not all(D.known_eq(a.op.stop, b.op.start) for a, b in pairwise(m.xs)):
        return None
    return ops.slice(first.inputs[0], axis, first.op.start, m.xs[-1].op.stop)


def _concat_of_concats(m: Maker) -> Node:
    rows = m.dim()
    a, b, c, d = (m.tensor(f"x{k}", (m.dim(), rows)) for k in range(4))
    return make("concat", a, make("concat", b, c, axis=0), d, axis=0)


def _flattened(m: Match) -> Node | None:
    if not any(n.op.name == "concat" and n.op.axis == m.p for n in m.xs):
        return None
    parts: list[Node] = []
    for n in m.xs:
        parts.extend(n.inputs if n.op.name == "concat" and n.op.axis == m.p else (n,))
    return make("concat", *parts, axis=m.p)


def _read_back(m: Match) -> Node | None:
    """A slice of a slice_scatter: inside the written part, or outside it."""
    s, w = m.op(0), m.op(1)
    if s.axis != w.axis or w.step != 1:
        return None
    if D.known_le(w.start, s.start) and D.known_le(s.stop, w.stop):
        return ops.slice(m.y, s.axis, s.start - w.start, s.stop - w.start, s.step)
    if D.known_le(s.stop, w.start) or D.known_le(w.stop, s.start):
        return ops.slice(m.x, s.axis, s.start, s.stop, s.step)
    return None


def _slice_of_scatter(m: Maker) -> Node:
    """Before the written part, in it, or behind it."""
    where, step = m.whole(0, 2), m.whole(1, 2)
    parts = [[m.dim() for _ in range(3 if k == where else 1)] for k in range(3)]
    before, inside, behind = map(_added, parts)
    n = m.tensor("x", (m.dim(), before + inside + behind))
    src = m.tensor("y", (n.shape[0], inside))
    new = make("slice_scatter", n, src, axis=1, start=before, stop=before + inside, step=1)
    start = _added([before, inside][:where]) + parts[where][0]
    return make("slice", new, axis=1, start=start, stop=start + parts[where][1], step=step)


def _whole_scatter(m: Maker) -> Node:
    n = m.tensor("x", m.shape(2))
    src = m.tensor("y", n.shape)
    return make("slice_scatter", n, src, axis=1, start=0, stop=n.shape[1], step=1)


@guard("the source covers the axis")
def covers(m: Match) -> bool:
    s = m.op(0)
    return D.known_eq(s.start, 0) and D.known_eq(s.stop, m.x.shape[s.axis]) and m.y.type == m.x.type


PARTS = (
    Rule("slice-concat", op.slice(op.concat(xs)), _found_in_concat, subject=_slice_of_concat),
    Rule(
        "concat-slices",
        op.concat(xs, axis=p),
        _joined_slices,
        subject=_concat_of_slices,
    ),
    Rule("concat-concat", op.concat(xs, axis=p), _flattened, subject=_concat_of_concats),
    Rule(
        "slice-scatter-slice",
        op.slice(op.slice_scatter(x, y)),
        _read_back,
        subject=_slice_of_scatter,
    ),
    Rule("scatter-all", op.slice_scatter(x, y, step=1), y, covers, subject=_whole_scatter),
)


# ---- reductions over axes of one element


def _over_ones(name: str) -> Callable[[Maker], Node]:
    def subject(m: Maker) -> Node:
        rank = m.whole(1, 3)
        axes = tuple(sorted(m.rng.sample(range(rank), m.whole(1, rank))))
        n = m.tensor("x", tuple(1 if k in axes else m.dim() for k in range(rank)))
        return make(name, n, axes=axes, keepdims=m.coin())

    return subject


one_element = Guard(
    "the reduced axes have one element",
    lambda m: all(D.known_eq(m.x.shape[a], 1) for a in m.p),
)
REDUCTIONS = tuple(
    Rule(
        f"{name}-of-one",
        Apply(name, (x,), (("axes", p),)),
        lambda m: ops.reshape(m.x, m.root.shape),
        one_element,
        changes=changes,
        subject=_over_ones(name),
        dtypes=kinds,
    )
    for name, kinds, changes in (
        ("amax", "fiu", "nothing"),
        ("amin", "fiu", "nothing"),
        ("sum", "fi", "sign of zero"),
        ("prod", "fi", "nothing"),
        ("mean", "f", "sign of zero"),
    )
)

RULES = (*IDENTITIES, *CHAINS, *MEANINGS, *PARTS, *REDUCTIONS)
