"""Random graphs built directly in the IR: ragged shapes, all dtypes, most operators, shared values.

    graph, args = random_graph(seed)
    expected, allowed = reference(graph, args)      # float64, and the error each output may have
    graph, args = shrink(graph, args, fails)        # the smallest that still fails

Values stay moderate (a bound is carried along, so float16 does not overflow), and what jumps
(floor, comparisons, argmax, sort, casts to whole numbers) is applied to values that are exact in
every precision only, so that a float64 evaluation is a fair judge.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.ir.judge import (
    Args,
    disagreement,
    nodes_below,
    reference,
    shrink,
    without_unused,
)
from tilewright import ops as _ops
from tilewright.base.errors import Invalid
from tilewright.ir.node import Graph, Node, constant, input, item
from tilewright.ir.types import DTYPES, DType, TensorType, as_dtype, b1, i64

ops: Any = _ops  # builders are found at import, which a type checker cannot follow

__all__ = ["disagreement", "random_graph", "reference", "shrink"]

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 33)
LIMIT = 3000  # elements of a tensor
LARGEST = 200.0  # bound on values, far from float16's end even after a reduction
FLOATS = ("f32", "f32", "f32", "f64", "f16", "bf16")
WHOLE = ("i64", "i32", "i16", "i8", "u8")


@dataclasses.dataclass(frozen=True)
class Known:
    """What the generator knows of a node: a bound on its values, and is it free of rounding?"""

    bound: float
    exact: bool


class Generator:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.data = np.random.default_rng(seed)
        self.known: dict[Node, Known] = {}
        self.pool: list[Node] = []
        self.inputs: list[Node] = []
        self.args: Args = []
        self.float = DTYPES[self.rng.choice(FLOATS)]
        self.whole = DTYPES[self.rng.choice(WHOLE)]

    # ---- what there is

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        rank = self.rng.choice((0, 1, 2, 2, 3, 3, 4)) if rank is None else rank
        while True:
            dims = tuple(self.rng.choice(SIZES) for _ in range(rank))
            if self.rng.random() < 0.02 and rank:
                dims = (0, *dims[1:])
            if int(np.prod(dims)) <= LIMIT:
                return dims

    def add_input(self, shape: Sequence[int], dtype: DType | None = None) -> Node:
        dtype = dtype or self.rng.choice((self.float, self.float, self.float, self.whole, b1))
        role = "weight" if self.rng.random() < 0.2 else "arg"
        n = input(f"x{len(self.inputs)}", TensorType(dtype, tuple(shape)), role)
        if dtype.is_float:
            # Multiples of 1/16: exact in every dtype, with ties to break.
            a = np.round(self.data.uniform(-4, 4, shape) * 16) / 16
        elif dtype.is_bool:
            a = self.data.integers(0, 2, shape)
        else:
            a = self.data.integers(0 if dtype.kind == "u" else -9, 10, shape)
        self.inputs.append(n)
        self.args.append(as_dtype(np.asarray(a), dtype))
        return self.add(n, 4.0 if dtype.is_float else 9.0, True)

    def add(self, n: Node, bound: float, exact: bool) -> Node:
        if not n.dtype.is_float:
            exact = True
        self.known[n] = Known(bound, exact)
        self.pool.append(n)
        return n

    def pick(self, want: Callable[[Node], bool] = lambda n: True) -> Node | None:
        """A node of the pool, rather a recent one."""
        found = [n for n in self.pool if want(n)]
        if not found:
            return None
        return found[max(self.rng.randrange(len(found)), self.rng.randrange(len(found)))]

    def floating(self, rank: int = 0, exact: bool = False, bound: float = LARGEST) -> Node | None:
        return self.pick(
            lambda n: (
                n.dtype is self.float
                and n.rank >= rank
                and self.known[n].bound <= bound
                and (not exact or self.known[n].exact)
            )
        )

    def ranked(self) -> Node | None:
        """Exact numbers that can be put in order along an axis."""
        return self.pick(
            lambda n: (
                n.rank >= 1 and n.dtype.kind in "fi" and self.known[n].exact and 0 not in n.shape
            )
        )

    def alike(self, n: Node) -> Node | None:
        """A node of n's dtype that broadcasts with it without growing the result too much."""

        def fits(o: Node) -> bool:
            if o.dtype is not n.dtype:
                return False
            try:
                return int(np.prod(np.broadcast_shapes(n.shape, o.shape))) <= LIMIT  # type: ignore[arg-type]
            except ValueError:
                return False

        found = self.pick(lambda o: o is not n and fits(o))
        if found is not None and self.rng.random() < 0.7:
            return found
        if self.rng.random() < 0.1:
            return n
        shape = tuple(1 if self.rng.random() < 0.25 else int(d) for d in n.shape)  # type: ignore[arg-type]
        if self.rng.random() < 0.2:
            shape = shape[self.rng.randint(0, len(shape)) :]
        return self.add_input(shape, n.dtype)

    # ---- one more node

    def step(self) -> Node | None:
        make_one = self.rng.choices([f for f, _ in STEPS], weights=[w for _, w in STEPS])[0]
        return make_one(self)

    def bound(self, *ns: Node) -> float:
        return max(self.known[n].bound for n in ns)

    def exact(self, *ns: Node) -> bool:
        return all(self.known[n].exact for n in ns)

    def axis(self, n: Node) -> int:
        return self.rng.randrange(n.rank)


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
    shape = np.broadcast_shapes(x.shape, y.shape)  # type: ignore[arg-type]
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
    x = g.pick(lambda n: n.rank >= 1 and n.dtype.kind in "fi" and 0 not in n.shape)
    if x is None:
        return None
    axes = tuple(sorted(g.rng.sample(range(x.rank), g.rng.randint(1, x.rank))))
    keep = g.rng.random() < 0.4
    if x.dtype.is_float and g.rng.random() < 0.6:
        name = g.rng.choice(("sum", "mean", "var", "logsumexp"))
        size = int(np.prod([x.shape[a] for a in axes]))  # type: ignore[arg-type]
        b = g.bound(x)
        if name == "sum" and b * size > LARGEST:
            x, b = ops.mul(x, 1 / size), b / size
        bound = {"sum": b * size, "mean": b, "var": 4 * b * b, "logsumexp": b + size}[name]
        if bound > LARGEST or (name == "var" and size < 2):
            return None
        extra = {"correction": 0} if name == "var" else {}
        return g.add(getattr(ops, name)(x, axes, keepdims=keep, **extra), bound, False)
    name = g.rng.choice(("amax", "amin"))
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
    return g.add(getattr(ops, name)(x, g.axis(x)), 40, True)


def cumulative(g: Generator) -> Node | None:
    x = g.floating(rank=1)
    if x is None or 0 in x.shape:
        return None
    axis = g.axis(x)
    bound = g.bound(x) * int(x.shape[axis])  # type: ignore[arg-type]
    return g.add(ops.cumsum(x, axis), bound, False) if bound <= LARGEST else None


def ordering(g: Generator) -> Node | None:
    x = g.ranked()
    if x is None:
        return None
    both = ops.sort(x, g.axis(x), descending=g.rng.random() < 0.5)
    g.add(item(both, 1), 40, True)
    return g.add(item(both, 0), g.bound(x), True)


def reshaped(g: Generator) -> Node | None:
    x = g.pick(lambda n: n.rank >= 1 and 0 not in n.shape)
    if x is None:
        return None
    size = int(np.prod(x.shape))  # type: ignore[arg-type]
    cut = g.rng.choice([d for d in range(1, size + 1) if size % d == 0])
    shape = g.rng.choice([(size,), (cut, size // cut), (1, *x.shape), (cut, 1, size // cut)])
    return g.add(ops.reshape(x, shape), g.bound(x), g.exact(x))


def moved(g: Generator) -> Node | None:
    x = g.pick(lambda n: n.rank >= 1 and 0 not in n.shape)
    if x is None:
        return None
    kind = g.rng.choice(("permute", "slice", "flip", "roll", "pad", "expand"))
    axis = g.axis(x)
    size = int(x.shape[axis])  # type: ignore[arg-type]
    if kind == "permute":
        y = ops.permute(x, g.rng.sample(range(x.rank), x.rank))
    elif kind == "slice":
        start = g.rng.randint(0, size - 1)
        y = ops.slice(x, axis, start, g.rng.randint(start + 1, size), g.rng.choice((1, 1, 2, 3)))
    elif kind == "flip":
        y = ops.flip(x, (axis,))
    elif kind == "roll":
        y = ops.roll(x, (g.rng.randint(-3, 3),), (axis,))
    elif kind == "pad":
        lo = tuple(g.rng.randint(0, 2) for _ in x.shape)
        y = ops.pad(x, lo, lo[::-1], value=0)
    else:
        y = ops.expand(x, (g.rng.choice((2, 3)), *x.shape))
    return g.add(y, g.bound(x), g.exact(x)) if y is not x and _small(y) else None


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
    return g.add(out, g.bound(*parts), g.exact(*parts)) if _small(out) else None


def scattered(g: Generator) -> Node | None:
    x = g.pick(lambda n: n.rank >= 1 and n.shape[-1] != 0)
    if x is None:
        return None
    size = int(x.shape[-1])  # type: ignore[arg-type]
    start = g.rng.randint(0, size - 1)
    src = ops.slice(ops.flip(x, (x.rank - 1,)), x.rank - 1, start, size)
    y = ops.slice_scatter(x, src, x.rank - 1, start, size)
    return g.add(y, g.bound(x), g.exact(x))


def gathered(g: Generator) -> Node | None:
    x = g.pick(lambda n: n.rank >= 1 and 0 not in n.shape)
    if x is None:
        return None
    axis = g.axis(x)
    size = int(x.shape[axis])  # type: ignore[arg-type]
    idx = g.add_input(g.shape(g.rng.choice((1, 2))), i64)
    at = len(g.inputs) - 1
    g.args[at] = g.data.integers(0, size, g.args[at].shape)
    y = ops.take(x, idx, axis)
    return g.add(y, g.bound(x), g.exact(x)) if _small(y) else None


def product(g: Generator) -> Node | None:
    x = g.floating(rank=2, bound=6.0)
    if x is None:
        return None
    k, n = int(x.shape[-1]), g.rng.choice(SIZES)  # type: ignore[arg-type]
    bound = g.bound(x) * 9 * k
    if bound > 30 * LARGEST:
        return None
    y = ops.mul(ops.matmul(x, g.add_input((k, n), g.float)), 1 / max(1, k))
    return g.add(y, bound / max(1, k), False) if _small(y) else None


def convolution(g: Generator) -> Node | None:
    n = g.rng.choice((1, 2))
    groups = g.rng.choice((1, 1, 2))
    cin, cout = groups * g.rng.choice((1, 3)), groups * g.rng.choice((1, 2, 5))
    space = [g.rng.choice((5, 7, 8)) for _ in range(n)]
    x = g.add_input((g.rng.choice((1, 2)), cin, *space), g.float)
    w = g.add_input((cout, cin // groups, *(g.rng.choice((1, 3)) for _ in range(n))), g.float)
    y = ops.conv(x, w, stride=g.rng.choice((1, 2)), padding=g.rng.choice((0, 1)), groups=groups)
    return g.add(ops.mul(y, 0.05), 200.0, False)


def pooling(g: Generator) -> Node | None:
    x = g.pick(lambda n: n.dtype is g.float and n.rank == 4 and min(n.shape[2:]) >= 3)  # type: ignore[type-var]
    if x is None:
        return None
    y = ops.avg_pool(x, (2, 2), (2, 2), (0, 0))
    return g.add(y, g.bound(x), False)


def composed(g: Generator) -> Node | None:
    x = g.floating(rank=1)
    if x is None or 0 in x.shape:
        return None
    name = g.rng.choice([n for n in ("softmax", "log_softmax") if hasattr(_ops, n)] or [""])
    return g.add(getattr(ops, name)(x, g.axis(x)), g.bound(x) + 10, False) if name else None


def ramp(g: Generator) -> Node | None:
    n = ops.iota(g.rng.choice(SIZES), 0, g.rng.choice((1, 2)), g.rng.choice((i64, g.float)))
    return g.add(n, 70, True)


def literal(g: Generator) -> Node | None:
    a = np.round(g.data.uniform(-2, 2, g.shape(1)) * 8) / 8
    return g.add(constant(as_dtype(a, g.float), g.float), 2, True)


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
    (product, 5),
    (convolution, 1),
    (pooling, 1),
    (composed, 2),
    (ramp, 1),
    (literal, 1),
    (another_input, 1),
)


def _small(n: Node) -> bool:
    return int(np.prod(n.shape)) <= LIMIT  # type: ignore[arg-type]


def random_graph(seed: int, size: int | None = None) -> tuple[Graph, Args]:
    """A graph of about `size` steps and arguments for it; equal seeds give equal graphs."""
    g = Generator(seed)
    g.add_input(g.shape(), g.float)
    size = g.rng.randint(2, 18) if size is None else size
    made = 0
    for _ in range(10 * size):
        made += g.step() is not None
        if made >= size:
            break
    used = {x for n in g.pool for x in nodes_below(n)}
    sinks = [n for n in g.pool if n not in used and n not in g.inputs] or g.pool[-1:]
    more = [n for n in g.pool if n in used and n not in g.inputs]
    outputs = g.rng.sample(sinks, min(len(sinks), 3))
    if more and g.rng.random() < 0.3:
        outputs.append(g.rng.choice(more))
    graph = Graph(f"random_{seed}", tuple(g.inputs), tuple(outputs))
    return without_unused(graph, g.args)
