"""Random graphs of primitive operators with small static shapes, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.graph.build import arg, build
from tilewright.ir.node import Graph, Node, topological
from tilewright.ir.types import f32, i64

_UNARY = ("neg", "abs", "relu", "square", "sin", "tanh")
_BINARY = ("add", "sub", "mul", "maximum")


def random_graph(seed: int, size: int = 25) -> Graph:
    """Elementwise work, views, reductions, products, gathers and scans over a few inputs."""
    rng = random.Random(seed)
    shapes = [(3, 4, 8), (3, 1, 8), (8,), (4, 8), (3, 4, 1), (8, 8), ()]
    nodes: list[Node] = [arg(f"x{k}", *s) for k, s in enumerate(shapes)]
    ids = arg("ids", 4, dtype=i64)
    steps: list[Callable[[random.Random, list[Node], Node], Node | None]] = [
        _unary, _unary, _binary, _binary, _binary, _binary, _reshape, _permute, _slice,
        _concat, _reduce, _reduce, _normalise, _matmul, _matmul, _take, _scan, _broadcast, _pad,
    ]  # fmt: skip
    while len(nodes) < size + len(shapes):
        new = rng.choice(steps)(rng, nodes, ids)
        if new is not None and _elements(new) <= 512:
            nodes.append(new)
    used = {x for n in nodes for x in n.inputs}
    results = [n for n in nodes if n not in used] + rng.sample(nodes, 2)
    if rng.random() < 0.3:
        results.append(rng.choice(results))
    rng.shuffle(results)
    ins = [n for n in topological(results) if not n.inputs and n.op.name == "input"]
    return Graph(f"random{seed}", tuple(ins), tuple(results))


def _sizes(n: Node) -> tuple[int, ...]:
    return tuple(d for d in n.shape if isinstance(d, int))


def _elements(n: Node) -> int:
    out = 1
    for d in _sizes(n):
        out *= d
    return out


def _recent(rng: random.Random, nodes: list[Node]) -> Node:
    return rng.choice(nodes[-8:]) if rng.random() < 0.7 else rng.choice(nodes)


def _unary(rng: random.Random, nodes: list[Node], _: Node) -> Node:
    return getattr(build, rng.choice(_UNARY))(_recent(rng, nodes))


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(reversed(a), reversed(b), strict=False))


def _binary(rng: random.Random, nodes: list[Node], _: Node) -> Node | None:
    a = _recent(rng, nodes)
    fit = [n for n in nodes if _broadcasts(_sizes(a), _sizes(n))]
    return getattr(build, rng.choice(_BINARY))(a, rng.choice(fit))


def _reshape(rng: random.Random, nodes: list[Node], _: Node) -> Node:
    n = _recent(rng, nodes)
    sizes = [d for d in _sizes(n) if d != 1]
    if len(sizes) > 1 and rng.random() < 0.5:
        k = rng.randrange(len(sizes) - 1)
        sizes[k : k + 2] = [sizes[k] * sizes[k + 1]]
    elif sizes:
        k = rng.randrange(len(sizes))
        for factor in (2, 3, 4):
            if sizes[k] % factor == 0 and rng.random() < 0.6:
                sizes[k : k + 1] = [factor, sizes[k] // factor]
                break
    if rng.random() < 0.3:
        sizes.insert(rng.randint(0, len(sizes)), 1)
    return build.reshape(n, sizes)


def _permute(rng: random.Random, nodes: list[Node], _: Node) -> Node:
    n = _recent(rng, nodes)
    order = list(range(n.rank))
    rng.shuffle(order)
    return build.permute(n, order)


def _axis(rng: random.Random, n: Node, least: int = 2) -> int | None:
    fit = [k for k, d in enumerate(_sizes(n)) if d >= least]
    return rng.choice(fit) if fit else None


def _slice(rng: random.Random, nodes: list[Node], _: Node) -> Node | None:
    n = _recent(rng, nodes)
    k = _axis(rng, n)
    if k is None:
        return None
    start = rng.randrange(_sizes(n)[k] - 1)
    return build.slice(n, k, start, rng.randint(start + 1, _sizes(n)[k]), rng.choice((1, 1, 2)))


def _concat(rng: random.Random, nodes: list[Node], _: Node) -> Node | None:
    n = _recent(rng, nodes)
    k = _axis(rng, n, 1)
    same = [m for m in nodes if _sizes(m) == _sizes(n)]
    return None if k is None else build.concat([n, rng.choice(same)], k)


def _reduce(rng: random.Random, nodes: list[Node], _: Node) -> Node | None:
    n = _recent(rng, nodes)
    if n.rank == 0:
        return None
    axes = (
        [n.rank - 1]
        if rng.random() < 0.5
        else sorted(rng.sample(range(n.rank), rng.randint(1, n.rank)))
    )
    return rng.choice((build.sum, build.amax))(n, axes, rng.random() < 0.5)


def _normalise(rng: random.Random, nodes: list[Node], _: Node) -> Node | None:
    n = _recent(rng, nodes)
    k = _axis(rng, n)
    return None if k is None else build.sub(n, build.amax(n, (k,), True))


def _matmul(rng: random.Random, nodes: list[Node], _: Node) -> Node | None:
    a = _recent(rng, nodes)
    fit = [n for n in nodes if n.rank == 2 and a.rank >= 2 and n.shape[0] == a.shape[-1]]
    return build.matmul(a, rng.choice(fit)) if fit else None


def _take(rng: random.Random, nodes: list[Node], ids: Node) -> Node | None:
    n = _recent(rng, nodes)
    k = _axis(rng, n)
    return None if k is None else build.take(n, ids, k)


def _scan(rng: random.Random, nodes: list[Node], _: Node) -> Node | None:
    n = _recent(rng, nodes)
    k = _axis(rng, n)
    return None if k is None or rng.random() < 0.5 else build.cumsum(n, k)


def _broadcast(rng: random.Random, nodes: list[Node], _: Node) -> Node:
    n = _recent(rng, nodes)
    return build.expand(n, (2, *_sizes(n)))


def _pad(rng: random.Random, nodes: list[Node], _: Node) -> Node | None:
    n = _recent(rng, nodes)
    if n.rank == 0:
        return None
    lo = [rng.randint(0, 1) for _ in _sizes(n)]
    return build.pad(n, lo, [1] * n.rank, 0.5) if n.dtype is f32 else None
