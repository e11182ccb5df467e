"""What random graphs are made of: each function adds a node, or nothing where none fits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.ir.graph_maker import LARGEST, SIZES, Generator, ops
from tilewright.base.errors import Invalid
from tilewright.ir.dim import Dim
from tilewright.ir.node import Graph, Node, constant, input, item
from tilewright.ir.types import as_dtype, b1, i32, i64


def unary_smooth(g: Generator) -> Node | None:
    name = g.rng.choice("exp tanh sigmoid erf sin cos silu gelu atan expm1 square".split())
    x = g.floating(bound=4.0 if name in ("exp", "expm1") else 14.0)
    if x is None:
        return None
    b = g.known[x].bound
    limits = {"exp": np.exp(b), "expm1": np.exp(b), "square": b * b, "silu": b, "gelu": b}
    return g.add(getattr(ops, name)(x), float(limits.get(name, 1.6)), False)


def unary_guarded(g: Generator) -> Node | None:
    """Functions with a pole or a branch point, kept away from it."""
    x = g.floating()
    if x is None:
        return None
    name = g.rng.choice(("log", "sqrt", "rsqrt", "reciprocal", "log1p", "log2"))
    away = ops.add(ops.abs(x), 1.0)
    return g.add(getattr(ops, name)(away), g.bound(x) + 1, False)


def unary_exact(g: Generator) -> Node | None:
    x = g.pick(lambda n: n.dtype.kind in "fi")
    if x is None:
        return None
    name = g.rng.choice(("neg", "abs", "relu"))
    return g.add(getattr(ops, name)(x), g.bound(x), g.exact(x))


def unary_jump(g: Generator) -> Node | None:
    x = g.floating(exact=True)
    if x is None:
        return None
    name = g.rng.choice(("floor", "ceil", "round", "trunc", "sign", "isnan", "isfinite"))
    return g.add(getattr(ops, name)(x), g.bound(x) + 1, True)


def binary(g: Generator) -> Node | None:
    x = g.pick(lambda n: n.dtype.kind in "fi")
    y = x and g.alike(x)
    if x is None or y is None:
        return None
    a, b = g.known[x].bound, g.known[y].bound
    name = g.rng.choice(("add", "add", "sub", "mul", "mul", "maximum", "minimum"))
    if name in ("add", "sub", "mul") and x.dtype.is_float:
        bound = a * b if name == "mul" else a + b
        return g.add(getattr(ops, name)(x, y), bound, False) if bound <= LARGEST else None
    return g.add(getattr(ops, name)(x, y), max(a, b), g.exact(x, y))


def binary_whole(g: Generator) -> Node | None:
    x = g.pick(lambda n: n.dtype.is_int)
    y = x and g.alike(x)
    if x is None or y is None:
        return None
    names = "add mul sub floordiv mod bitwise_and bitwise_xor bitwise_or"
    name = g.rng.choice(names.split())
    return g.add(getattr(ops, name)(x, y), 9, True)


def division(g: Generator) -> Node | None:
    x = g.floating()
    y = x and g.alike(x)
    if x is None or y is None:
        return None
    return g.add(ops.div(x, ops.add(ops.abs(y), 1.0)), g.bound(x), False)


def comparison(g: Generator) -> Node | None:
    x = g.pick(lambda n: g.known[n].exact)
    y = x and g.alike(x)
    if x is None or y is None or not g.exact(y):
        return None
    name = g.rng.choice(("lt", "le", "gt", "ge", "eq", "ne"))
    return g.add(getattr(ops, name)(x, y), 1, True)


def logic(g: Generator) -> Node | None:
    x = g.pick(lambda n: n.dtype.is_bool)
    y = x and g.alike(x)
    if x is None or y is None:
        return None
    if g.rng.random() < 0.3:
        return g.add(ops.logical_not(x), 1, True)
    name = g.rng.choice(("logical_and", "logical_or", "logical_xor"))
    return g.add(getattr(ops, name)(x, y), 1, True)


def selection(g: Generator) -> Node | None:
    x = g.pick()
    y = x and g.alike(x)
    if x is None or y is None:
        return None
    shape = g.broadcast(x.shape, y.shape)
    assert shape is not None
    c = g.pick(lambda n: n.dtype.is_bool and n.shape in (shape, x.shape, ()))
    if c is None:
        c = g.add_input(shape, b1)
    try:
        return g.add(ops.where(c, x, y), g.bound(x, y), g.exact(x, y))
    except Invalid:
        return None


def scalar(g: Generator) -> Node | None:
    x = g.floating()
    if x is None:
        return None
    v = g.rng.choice((0.5, 2.0, -1.25, 0.1, 3.0))
    name = g.rng.choice(("add", "mul", "sub"))
    bound = g.bound(x) * abs(v) if name == "mul" else g.bound(x) + abs(v)
    return g.add(getattr(ops, name)(x, v), bound, False) if bound <= LARGEST else None


def cast(g: Generator) -> Node | None:
    x = g.pick(lambda n: g.known[n].exact)
    if x is None:
        return None
    to = g.rng.choice((g.float, g.whole, i64, b1))
    if x.dtype.is_float and to.kind == "u":
        return None  # negative numbers have no place there
    if x.dtype.is_int and to.is_float and x not in g.inputs:
        return None  # whole numbers may have grown beyond what a float holds
    y = ops.cast(x, to)
    return None if y is x else g.add(y, g.bound(x), True)


def reduction(g: Generator) -> Node | None:
    x = g.pick(lambda n: n.rank >= 1 and n.dtype.kind in "fi" and not g.empty(n))
    if x is None:
        return None
    axes = tuple(sorted(g.rng.sample(range(x.rank), g.rng.randint(1, x.rank))))
    keep = g.rng.random() < 0.4
    if x.dtype.is_float and g.rng.random() < 0.6:
        name = g.rng.choice(("sum", "mean", "var", "logsumexp"))
        size = g.elements([x.shape[a] for a in axes])
        if name != "sum":
            g.not_empty(*(x.shape[a] for a in axes))
        b = g.bound(x)
        if name == "sum" and b * size > LARGEST:
            x, b = ops.mul(x, 1 / size), b / size
        bound = {"sum": b * size, "mean": b, "var": 4 * b * b, "logsumexp": b + size}[name]
        if bound > LARGEST or (name == "var" and size < 2):
            return None
        extra = {"correction": 0} if name == "var" else {}
        return g.add(getattr(ops, name)(x, axes, keepdims=keep, **extra), bound, False)
    name = g.rng.choice(("amax", "amin"))
    g.not_empty(*(x.shape[a] for a in axes))
    return g.add(getattr(ops, name)(x, axes, keepdims=keep), g.bound(x), g.exact(x))


def reduce_bool(g: Generator) -> Node | None:
    x = g.pick(lambda n: n.dtype.is_bool and n.rank >= 1)
    if x is None:
        return None
    return g.add(getattr(ops, g.rng.choice(("any", "all")))(x, (g.axis(x),)), 1, True)


def arg_reduction(g: Generator) -> Node | None:
    x = g.ranked()
    if x is None:
        return None
    name = g.rng.choice(("argmax", "argmin"))
    axis = g.axis(x)
    g.not_empty(x.shape[axis])
    return g.add(getattr(ops, name)(x, axis), 40, True)


def cumulative(g: Generator) -> Node | None:
    x = g.floating(rank=1)
    if x is None or g.empty(x):
        return None
    axis = g.axis(x)
    bound = g.bound(x) * g.size(x.shape[axis])
    return g.add(ops.cumsum(x, axis), bound, False) if bound <= LARGEST else None


def ordering(g: Generator) -> Node | None:
    x = g.ranked()
    if x is None:
        return None
    axis = g.axis(x)
    if not isinstance(x.shape[axis], int):
        return None  # sorting wants a size that is known
    both = ops.sort(x, axis, descending=g.rng.random() < 0.5)
    g.add(item(both, 1), 40, True)
    return g.add(item(both, 0), g.bound(x), True)


def reshaped(g: Generator) -> Node | None:
    x = g.pick(lambda n: n.rank >= 1 and not g.empty(n))
    if x is None:
        return None
    if g.symbols and any(not isinstance(d, int) for d in x.shape):
        whole: Dim = 1
        for d in x.shape:
            whole = whole * d
        shape = g.rng.choice([(whole,), (1, *x.shape), (*x.shape, 1), (1, whole)])
        return g.add(ops.reshape(x, shape), g.bound(x), g.exact(x))
    size = g.elements(x.shape)
    cut = g.rng.choice([d for d in range(1, size + 1) if size % d == 0])
    shape = g.rng.choice([(size,), (cut, size // cut), (1, *x.shape), (cut, 1, size // cut)])
    return g.add(ops.reshape(x, shape), g.bound(x), g.exact(x))


def moved(g: Generator) -> Node | None:
    x = g.pick(lambda n: n.rank >= 1 and not g.empty(n))
    if x is None:
        return None
    kind = g.rng.choice(("permute", "slice", "flip", "roll", "pad", "expand"))
    axis = g.axis(x)
    size = min(g.sizes(x.shape[axis]))
    if kind == "permute":
        y = ops.permute(x, g.rng.sample(range(x.rank), x.rank))
    elif kind == "slice":
        start = g.rng.randint(0, size - 1) if size else 0
        stop = g.rng.randint(start + 1, size) if isinstance(x.shape[axis], int) else x.shape[axis]
        y = ops.slice(x, axis, start, stop, g.rng.choice((1, 1, 2, 3)))
    elif kind == "flip":
        y = ops.flip(x, (axis,))
    elif kind == "roll":
        g.not_empty(x.shape[axis])
        y = ops.roll(x, (g.rng.randint(-3, 3),), (axis,))
    elif kind == "pad":
        lo = tuple(g.rng.randint(0, 2) for _ in x.shape)
        y = ops.pad(x, lo, lo[::-1], value=0)
    else:
        y = ops.expand(x, (g.rng.choice((2, 3)), *x.shape))
    return g.add(y, g.bound(x), g.exact(x)) if y is not x and g.small(y) else None


def joined(g: Generator) -> Node | None:
    x = g.pick(lambda n: n.rank >= 1)
    if x is None:
        return None
    axis = g.axis(x)
    rest = x.shape[:axis] + x.shape[axis + 1 :]
    y = g.pick(
        lambda n: (
            n.dtype is x.dtype and n.rank == x.rank and n.shape[:axis] + n.shape[axis + 1 :] == rest
        )
    )
    parts = [x, y or x] + ([x] if g.rng.random() < 0.3 else [])
    out = ops.concat(parts, axis)
    return g.add(out, g.bound(*parts), g.exact(*parts)) if g.small(out) else None


def scattered(g: Generator) -> Node | None:
    x = g.pick(lambda n: n.rank >= 1 and isinstance(n.shape[-1], int) and n.shape[-1] != 0)
    if x is None:
        return None
    size = g.size(x.shape[-1])
    start = g.rng.randint(0, size - 1)
    src = ops.slice(ops.flip(x, (x.rank - 1,)), x.rank - 1, start, size)
    y = ops.slice_scatter(x, src, x.rank - 1, start, size)
    return g.add(y, g.bound(x), g.exact(x))


def gathered(g: Generator) -> Node | None:
    x = g.pick(lambda n: n.rank >= 1 and not g.empty(n))
    if x is None:
        return None
    axis = g.axis(x)
    g.not_empty(x.shape[axis])
    idx = index_input(g, g.shape(g.rng.choice((1, 2))), x.shape[axis])
    y = ops.take(x, idx, axis)
    return g.add(y, g.bound(x), g.exact(x)) if g.small(y) else None


def index_input(g: Generator, shape: tuple[Dim, ...], size: Dim) -> Node:
    """Indices below a size, the smallest that it has; or some beyond it at both ends, which
    operators take for the nearest."""
    most = max(1, min(g.sizes(size)))
    low, high = (-most - 3, most + 3) if g.rng.random() < g.style.hostile else (0, most)
    dtype = g.rng.choice((i64, i64, i32))
    return g.add_input(shape, dtype, lambda sizes: g.data.integers(low, high, sizes))


def gathered_along(g: Generator) -> Node | None:
    """An index for every element: gather, or scatter of the elements."""
    x = g.pick(lambda n: n.rank >= 1 and not g.empty(n) and n.dtype.kind in "fi")
    if x is None:
        return None
    axis = g.axis(x)
    g.not_empty(*x.shape)
    idx = index_input(g, x.shape, x.shape[axis])
    if g.rng.random() < 0.6:
        return g.add(ops.gather(x, idx, axis), g.bound(x), g.exact(x))
    bound = g.bound(x) * (1 + g.size(x.shape[axis]))
    if x.dtype.is_float and bound > LARGEST:
        return None
    y = ops.scatter(x, idx, x, axis, "add")
    return g.add(y, bound, False)


def product(g: Generator) -> Node | None:
    x = g.floating(rank=2, bound=6.0)
    if x is None:
        return None
    k, n = g.size(x.shape[-1]), g.rng.choice([*SIZES, *g.symbols])
    bound = g.bound(x) * 9 * k
    if bound > 30 * LARGEST:
        return None
    y = ops.mul(ops.matmul(x, g.add_input((x.shape[-1], n), g.float)), 1 / max(1, k))
    return g.add(y, bound / max(1, k), False) if g.small(y) else None


def convolution(g: Generator) -> Node | None:
    n = g.rng.choice((1, 2))
    groups = g.rng.choice((1, 1, 2))
    cin, cout = groups * g.rng.choice((1, 3)), groups * g.rng.choice((1, 2, 5))
    space = [g.rng.choice((5, 7, 8)) for _ in range(n)]
    x = g.add_input((g.rng.choice([1, 2, *g.symbols]), cin, *space), g.float)
    w = g.add_input((cout, cin // groups, *(g.rng.choice((1, 3)) for _ in range(n))), g.float)
    y = ops.conv(x, w, stride=g.rng.choice((1, 2)), padding=g.rng.choice((0, 1)), groups=groups)
    return g.add(ops.mul(y, 0.05), 200.0, False)


def pooling(g: Generator) -> Node | None:
    x = g.pick(
        lambda n: (
            n.dtype is g.float
            and n.rank == 4
            and all(isinstance(d, int) and d >= 3 for d in n.shape[2:])
        )
    )
    if x is None:
        return None
    y = ops.avg_pool(x, (2, 2), (2, 2), (0, 0))
    return g.add(y, g.bound(x), False)


def composed(g: Generator) -> Node | None:
    x = g.floating(rank=1)
    if x is None or g.empty(x):
        return None
    name = g.rng.choice(("softmax", "log_softmax"))
    axis = g.axis(x)
    g.not_empty(x.shape[axis])
    return g.add(getattr(ops, name)(x, axis), g.bound(x) + 10, False)


def ramp(g: Generator) -> Node | None:
    n = ops.iota(
        g.rng.choice([*SIZES, *g.symbols]), 0, g.rng.choice((1, 2)), g.rng.choice((i64, g.float))
    )
    return g.add(n, 70, True)


def literal(g: Generator) -> Node | None:
    a = np.round(g.data.uniform(-2, 2, g.rng.choice(SIZES)) * 8) / 8
    return g.add(constant(as_dtype(a, g.float), g.float), 2, True)


def number_input(g: Generator) -> Node | None:
    """A number that is given: a tensor of rank 0, or a symbol, which other calls change."""
    symbols = [*g.numbers, *g.symbols]
    if symbols and g.rng.random() < 0.7:
        n = ops.number(g.rng.choice(symbols), g.rng.choice((g.float, i64)))
        return g.add(n, 64.0, True)
    return g.add_input((), g.rng.choice((g.float, g.float, g.whole)))


def conditional(g: Generator) -> Node | None:
    """One of two small graphs of one or two operands."""
    x = g.floating(bound=LARGEST / 4)
    y = x and g.alike(x)
    if x is None or y is None or y.shape != x.shape:
        return None
    p = g.pick(lambda n: n.dtype.is_bool and n.rank == 0) or g.add_input((), b1)
    a, b = input("a", x.ttype), input("b", y.ttype)
    first = [ops.add(a, b), ops.mul(ops.tanh(a), 2.0), ops.maximum(a, ops.neg(b)), a]
    second = [ops.sub(a, b), ops.abs(b), ops.minimum(a, 1.0), b]
    then = Graph("then", (a, b), (g.rng.choice(first),))
    other = Graph("other", (a, b), (g.rng.choice(second),))
    both = ops.cond(p, then, other, (x, y))
    return g.add(item(both, 0), 2 * g.bound(x, y), False)


def another_input(g: Generator) -> Node | None:
    return g.add_input(g.shape())


STEPS: tuple[tuple[Callable[[Generator], Node | None], int], ...] = (
    (unary_smooth, 7),
    (unary_guarded, 3),
    (unary_exact, 3),
    (unary_jump, 1),
    (binary, 9),
    (binary_whole, 3),
    (division, 2),
    (comparison, 2),
    (logic, 1),
    (selection, 3),
    (scalar, 3),
    (cast, 2),
    (reduction, 6),
    (reduce_bool, 1),
    (arg_reduction, 1),
    (cumulative, 1),
    (ordering, 1),
    (reshaped, 3),
    (moved, 6),
    (joined, 2),
    (scattered, 1),
    (gathered, 2),
    (gathered_along, 1),
    (product, 5),
    (convolution, 1),
    (pooling, 1),
    (composed, 2),
    (ramp, 1),
    (literal, 1),
    (another_input, 1),
    (number_input, 2),
    (conditional, 1),
)


def step(g: Generator) -> Node | None:
    make_one = g.rng.choices([f for f, _ in STEPS], weights=[w for _, w in STEPS])[0]
    return make_one(g)
