"""Programs at random, by families of operators: what schedules are measured on for a model that
learns. Each family is one function that draws sizes and builds a result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tilewright import ops
from tilewright.ir.node import Graph, Node, input, item
from tilewright.ir.types import DType, TensorType, TupleType, f16, f32, i64

# Multiply-adds and elements of a program, about: a call takes microseconds to a few milliseconds.
MOST_PRODUCTS = 2**25
MOST_ELEMENTS = 2**20
PRIMES = (3, 7, 11, 13, 17, 23, 29, 37, 53, 61, 79, 97, 113, 131, 179, 211, 251, 307, 401, 509, 769)

build: Any = ops  # builders are found at import, which a type checker cannot follow


@dataclass
class Draw:
    """Random sizes, and the inputs that a program has so far."""

    rng: Random
    dtype: DType = f32
    inputs: list[Node] = field(default_factory=list)

    def size(self, least: int, most: int) -> int:
        """Small ones are as likely as large ones; often round, sometimes prime."""
        kind = self.rng.random()
        if kind < 0.2:
            fit = [p for p in PRIMES if least <= p <= most]
            if fit:
                return self.rng.choice(fit)
        n = round(least * (most / least) ** self.rng.random())
        for step in (64, 32, 16, 8, 4) if kind < 0.75 else ():
            if n >= 2 * step:
                n = n // step * step
                break
        return min(most, max(least, n))

    def arg(self, *shape: int, dtype: DType | None = None) -> Node:
        return self._input("arg", shape, dtype)

    def weight(self, *shape: int) -> Node:
        return self._input("weight", shape, None)

    def operand(self, *shape: int) -> Node:
        """A weight, which may be packed once, or an argument, which may not."""
        return self.weight(*shape) if self.rng.random() < 0.5 else self.arg(*shape)

    def _input(self, role: str, shape: tuple[int, ...], dtype: DType | None) -> Node:
        made = input(f"x{len(self.inputs)}", TensorType(dtype or self.dtype, shape), role)
        self.inputs.append(made)
        return made

    def maybe(self, share: float = 0.5) -> bool:
        return self.rng.random() < share

    def activated(self, x: Node) -> Node:
        """What often follows a product: a bias, a function, another operand."""
        if self.maybe(0.4):
            x = build.add(x, self.weight(self.sizes(x)[-1]))
        if self.maybe(0.5):
            x = getattr(build, self.rng.choice(("relu", "gelu", "silu", "tanh", "sigmoid")))(x)
        if self.maybe(0.2):
            x = build.add(x, self.arg(*self.sizes(x)))
        return x

    def sizes(self, x: Node) -> tuple[int, ...]:
        return tuple(d for d in x.shape if isinstance(d, int))


def _matmul(d: Draw) -> Node:
    m, k = d.size(1, 768), d.size(4, 1024)
    n = d.size(1, max(1, min(1024, MOST_PRODUCTS // (m * k))))
    a = build.transpose(d.arg(k, m), 0, 1) if d.maybe(0.25) else d.arg(m, k)
    b = build.transpose(d.operand(n, k), 0, 1) if d.maybe(0.4) else d.operand(k, n)
    return d.activated(build.matmul(a, b))


def _batched(d: Draw) -> Node:
    b, m, k = d.size(2, 32), d.size(1, 256), d.size(4, 256)
    n = d.size(1, max(1, min(256, MOST_PRODUCTS // (b * m * k))))
    left = build.transpose(d.arg(b, k, m), 1, 2) if d.maybe(0.25) else d.arg(b, m, k)
    right = build.transpose(d.arg(b, n, k), 1, 2) if d.maybe(0.5) else d.arg(b, k, n)
    x = build.matmul(left, right)
    return build.mul(x, 0.125) if d.maybe(0.3) else x


def _gated(d: Draw) -> Node:
    m, k = d.size(1, 256), d.size(16, 512)
    n = d.size(8, max(8, min(1024, MOST_PRODUCTS // (2 * m * k))))
    x = d.arg(m, k)
    gate, up = (build.matmul(x, d.weight(k, n)) for _ in range(2))
    return build.mul(build.silu(gate), up)


def _image(d: Draw, channels: int, most: int = 64) -> Node:
    side = d.size(5, most)
    area = max(25, MOST_ELEMENTS // max(1, channels))
    side = min(side, int(area**0.5))
    return d.arg(
        d.rng.choice((1, 1, 1, 2, 4)), channels, side, side + d.rng.choice((0, 0, 0, 1, 5))
    )


def _conv(d: Draw) -> Node:
    c, o = d.size(1, 128), d.size(4, 192)
    kernel, stride = d.rng.choice((1, 3, 3, 3, 5, 7)), d.rng.choice((1, 1, 1, 2))
    groups = 2 if c % 2 == 0 and o % 2 == 0 and d.maybe(0.1) else 1
    x = _image(d, c)
    n, _, h, w = d.sizes(x)
    while o > 4 and n * c * o * kernel * kernel * (h // stride) * (w // stride) > 2 * MOST_PRODUCTS:
        o = max(4, o // 2)
    kernels = d.weight(o, c // groups, kernel, kernel)
    y = build.conv(x, kernels, stride, d.rng.choice((0, kernel // 2)), 1, groups)
    return _channels(d, y)


def _pointwise(d: Draw) -> Node:
    c, o = d.size(8, 384), d.size(8, 384)
    x = _image(d, c, 48)
    n, _, h, w = d.sizes(x)
    while o > 4 and n * c * o * h * w > MOST_PRODUCTS:
        o = max(4, o // 2)
    return _channels(d, build.conv(x, d.weight(o, c, 1, 1), d.rng.choice((1, 1, 1, 2))))


def _depthwise(d: Draw) -> Node:
    c, kernel = d.size(8, 256), d.rng.choice((3, 3, 5, 7))
    x = _image(d, c)
    y = build.conv(
        x, d.weight(c, 1, kernel, kernel), d.rng.choice((1, 1, 2)), kernel // 2, 1, groups=c
    )
    return _channels(d, y)


def _transposed(d: Draw) -> Node:
    c, o, kernel = d.size(4, 96), d.size(4, 64), d.rng.choice((2, 3, 4))
    x = _image(d, c, 24)
    return _channels(
        d, build.conv(x, d.weight(c, o, kernel, kernel), 2, kernel // 2, transposed=True)
    )


def _channels(d: Draw, y: Node) -> Node:
    if d.maybe(0.5):
        y = build.add(y, d.weight(d.sizes(y)[1], 1, 1))
    if d.maybe(0.5):
        y = getattr(build, d.rng.choice(("relu", "silu", "sigmoid")))(y)
    if d.maybe(0.15):
        y = build.add(y, d.arg(*d.sizes(y)))
    return y


def _pool(d: Draw) -> Node:
    x = _image(d, d.size(4, 256), 96)
    kernel = d.rng.choice((2, 3, 3, 5))
    pool = d.rng.choice((build.max_pool, build.avg_pool))
    y = pool(x, (kernel, kernel), d.rng.choice((1, 2, kernel)), d.rng.choice((0, kernel // 2)))
    y = item(y, 0) if isinstance(y.type, TupleType) else y
    return build.relu(y) if d.maybe(0.2) else y


def _rows(d: Draw, least: int = 1) -> Node:
    """A matrix, or one with an axis more, of rows of any length."""
    n = d.size(8, 4096)
    m = d.size(max(1, least), max(least, 1, min(4096, MOST_ELEMENTS // n)))
    return d.arg(d.rng.choice((2, 3, 4)), max(1, m // 4), n) if d.maybe(0.3) else d.arg(m, n)


def _softmax(d: Draw) -> Node:
    x = _rows(d)
    if d.maybe(0.3):
        x = build.mul(x, 0.125)
    if d.maybe(0.3):
        x = build.add(x, d.arg(*d.sizes(x)[-2:]))
    of = build.softmax if d.maybe(0.75) else build.log_softmax
    return of(x, -1 if d.maybe(0.85) else 0)


def _norm(d: Draw) -> Node:
    kind = d.rng.choice(("layer", "layer", "rms", "group", "batch"))
    if kind in ("group", "batch"):
        c = 4 * d.size(2, 64)
        x = _image(d, c, 48)
        w, b = d.weight(c), d.weight(c)
        if kind == "group":
            return item(build.group_norm(x, w, b, 4), 0)
        return build.relu(build.batch_norm(x, w, b, d.arg(c), d.arg(c)))
    x = _rows(d)
    if d.maybe(0.4):
        x = build.add(x, d.arg(*d.sizes(x)))
    n = d.sizes(x)[-1]
    if kind == "rms":
        return build.rms_norm(x, d.weight(n))
    return item(build.layer_norm(x, d.weight(n), d.weight(n)), 0)


def _tensor(d: Draw) -> Node:
    """Of two to four axes of any sizes."""
    rank, left, sizes = d.rng.choice((2, 2, 3, 3, 4)), MOST_ELEMENTS, []
    for k in range(rank):
        sizes.append(d.size(2, max(2, min(2048, left // 2 ** (rank - 1 - k)))))
        left = max(2, left // sizes[-1])
    d.rng.shuffle(sizes)
    return d.arg(*sizes)


def _reduction(d: Draw) -> Node:
    x = _tensor(d)
    if d.maybe(0.4):
        x = getattr(build, d.rng.choice(("exp", "square", "abs")))(x)
    if d.maybe(0.3):
        x = build.mul(x, d.arg(*d.sizes(x)))
    axes = sorted(d.rng.sample(range(x.rank), d.rng.choice((1, 1, 1, 2))))
    of = d.rng.choice(("sum", "sum", "mean", "amax", "amin", "var", "logsumexp", "norm"))
    if of == "norm":
        return build.norm(x, 2, axes)
    return getattr(build, of)(x, axes)


def _scan(d: Draw) -> Node:
    x = _tensor(d)
    axis = d.rng.randrange(x.rank)
    return getattr(build, d.rng.choice(("cumsum", "cumsum", "cumprod", "logcumsumexp")))(x, axis)


def _stencil(d: Draw) -> Node:
    h, w = d.size(16, 1024), d.size(16, 1024)
    x, steps = d.arg(h, w), d.rng.choice((1, 2))
    total: Node | None = None
    near = [(i, j) for i in range(2 * steps + 1) for j in range(2 * steps + 1)]
    for i, j in d.rng.sample(near, d.rng.choice((3, 5, 9))):
        part = build.slice(build.slice(x, 0, i, h - 2 * steps + i), 1, j, w - 2 * steps + j)
        part = build.mul(part, round(d.rng.uniform(-1, 1), 2))
        total = part if total is None else build.add(total, part)
    assert total is not None
    return total


_UNARY = ("exp", "tanh", "sigmoid", "relu", "sqrt", "square", "neg", "abs", "gelu", "silu", "sin")
_BINARY = ("add", "mul", "sub", "div", "maximum", "minimum")


def _elementwise(d: Draw) -> Node:
    x = _tensor(d)
    sizes = d.sizes(x)
    for _ in range(d.rng.randint(1, 6)):
        if d.maybe(0.5):
            x = getattr(build, d.rng.choice(_UNARY))(x)
            continue
        shape = [1 if d.maybe(0.3) else n for n in sizes]
        while shape and shape[0] == 1 and d.maybe():
            del shape[0]
        x = getattr(build, d.rng.choice(_BINARY))(x, d.arg(*shape))
    return x


def _gather(d: Draw) -> Node:
    rows, n = d.size(16, 4096), d.size(4, 512)
    count = d.size(4, max(4, min(4096, MOST_ELEMENTS // n)))
    table = d.weight(rows, n) if d.maybe(0.5) else d.arg(rows, n)
    x = build.take(table, d.arg(count, dtype=i64), 0)
    if d.maybe(0.4):
        x = build.mul(x, d.arg(count, n) if d.maybe() else d.arg(n))
    return build.sum(x, (0,)) if d.maybe(0.15) else x


def _permuted(d: Draw) -> Node:
    x = _tensor(d)
    order = list(range(x.rank))
    while order == sorted(order):
        d.rng.shuffle(order)
    x = build.permute(x, order)
    return build.add(x, d.arg(*d.sizes(x))) if d.maybe(0.5) else build.square(x)


def _joined(d: Draw) -> Node:
    x = _tensor(d)
    axis, sizes = d.rng.randrange(x.rank), list(d.sizes(x))
    parts = [build.relu(x) if d.maybe() else x]
    for _ in range(d.rng.choice((1, 1, 2))):
        sizes[axis] = d.size(2, max(2, sizes[axis]))
        y = d.arg(*sizes)
        parts.append(build.square(y) if d.maybe() else y)
    x = build.concat(parts, axis)
    return build.mul(x, 0.5) if d.maybe() else x


def _attention(d: Draw) -> Node:
    b, heads = d.rng.choice((1, 1, 2)), d.rng.choice((2, 4, 8))
    n, m, width = d.size(8, 256), d.size(8, 256), d.rng.choice((16, 32, 64))
    q, k, v = d.arg(b, heads, n, width), d.arg(b, heads, m, width), d.arg(b, heads, m, width)
    return build.attention(q, k, v)


FAMILIES: dict[str, Callable[[Draw], Node]] = {
    "matmul": _matmul,
    "batched": _batched,
    "gated": _gated,
    "conv": _conv,
    "pointwise": _pointwise,
    "depthwise": _depthwise,
    "transposed": _transposed,
    "pool": _pool,
    "softmax": _softmax,
    "norm": _norm,
    "reduction": _reduction,
    "scan": _scan,
    "stencil": _stencil,
    "elementwise": _elementwise,
    "gather": _gather,
    "permuted": _permuted,
    "joined": _joined,
    "attention": _attention,
}


def program(family: str, seed: str) -> Graph:
    """The same program for the same seed."""
    rng = Random(f"{family} {seed}")
    d = Draw(rng, f16 if rng.random() < 0.08 else f32)
    out = FAMILIES[family](d)
    return Graph(f"{family}_{seed}", tuple(d.inputs), (out,))
