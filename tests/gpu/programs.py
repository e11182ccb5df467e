"""Small programs for GPUs, as graphs: what the tests without a GPU run on the executor of threads,
and the ones with it on the machine."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.graph.build import arg, build, graph, weight
from tilewright.base.events import Log
from tilewright.driver.program.grid_run import prepared
from tilewright.graph.fuse import fuse
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Graph, Item, Node, node
from tilewright.ir.types import DType, f32, i64
from tilewright.kernel.group import Group, build_group
from tilewright.targets import get

Program = Callable[[DType, Dim, Dim], Graph]


def wide(x: Node) -> Node:
    return build.cast(x, x.dtype.accumulator)


def add(d: DType, rows: Dim, columns: Dim) -> Graph:
    x, y = arg("x", rows, columns, dtype=d), arg("y", rows, columns, dtype=d)
    return graph(build.add(x, y))


def chain(d: DType, rows: Dim, columns: Dim) -> Graph:
    """Six operators over two operands, computed in float32 as torch's fused kernels do."""
    x, y = arg("x", rows, columns, dtype=d), arg("y", rows, columns, dtype=d)
    a, b = wide(x), wide(y)
    t = build.tanh(build.add(build.mul(a, b), a))
    return graph(build.cast(build.mul(t, build.sigmoid(b)), d))


def biased(d: DType, rows: Dim, columns: Dim) -> Graph:
    """A map that is no flat walk through memory."""
    x, b = arg("x", rows, columns, dtype=d), weight("b", columns, dtype=d)
    return graph(build.cast(build.relu(build.add(wide(x), wide(b))), d))


def softmax(d: DType, rows: Dim, columns: Dim) -> Graph:
    x = arg("x", rows, columns, dtype=d)
    return graph(build.cast(build.softmax(wide(x), 1), d))


def layer_norm(d: DType, rows: Dim, columns: Dim) -> Graph:
    x = arg("x", rows, columns, dtype=d)
    w, b = weight("w", columns, dtype=d), weight("b", columns, dtype=d)
    return graph(node(Item(0), build.layer_norm(x, w, b, 1, 1e-5)))


def rms_norm(d: DType, rows: Dim, columns: Dim) -> Graph:
    x, w = arg("x", rows, columns, dtype=d), weight("w", columns, dtype=d)
    return graph(build.rms_norm(x, w, 1, 1e-6))


def cross_entropy(d: DType, rows: Dim, columns: Dim) -> Graph:
    """The loss of each row."""
    x, at = arg("x", rows, columns, dtype=d), arg("at", rows, dtype=i64)
    logs = build.log_softmax(wide(x), 1)
    found = build.gather(logs, build.reshape(at, (rows, 1)), 1)
    return graph(build.neg(build.reshape(found, (rows,))))


def loss(d: DType, rows: Dim, columns: Dim) -> Graph:
    """The mean of rows' losses, as `torch.nn.functional.cross_entropy` has it."""
    x, at = arg("x", rows, columns, dtype=d), arg("at", rows, dtype=i64)
    keep = build.ne(at, -100)
    logs = build.log_softmax(wide(x), 1)
    safe = build.reshape(build.where(keep, at, 0), (rows, 1))
    found = build.neg(build.reshape(build.gather(logs, safe, 1), (rows,)))
    total = build.sum(build.where(keep, found, 0.0), (0,), False)
    count = build.sum(build.cast(keep, i64), (0,), False)
    return Graph("loss", (x, at), (build.div(total, build.cast(count, total.dtype)),))


def column_sums(d: DType, rows: Dim, columns: Dim) -> Graph:
    x = arg("x", rows, columns, dtype=d)
    return graph(build.cast(build.sum(wide(x), (0,), False), f32))


def total(d: DType, rows: Dim, columns: Dim) -> Graph:
    x = arg("x", rows, columns, dtype=d)
    return graph(build.sum(wide(x), (0, 1), False))


def product(d: DType, rows: Dim, columns: Dim) -> Graph:
    """A matrix product, which has no schedule of its own yet."""
    x, w = arg("x", rows, columns, dtype=d), weight("w", columns, 24, dtype=d)
    return graph(build.cast(build.matmul(wide(x), wide(w)), d))


def matmul(d: DType, rows: Dim, columns: Dim) -> Graph:
    """A product whose operands lie as torch's `x @ w` has them."""
    x, w = arg("x", rows, columns, dtype=d), weight("w", columns, columns, dtype=d)
    return graph(build.matmul(x, w))


def linear(d: DType, rows: Dim, columns: Dim) -> Graph:
    """A layer: rows of both operands along the sum, a bias, an activation."""
    x, w = arg("x", rows, columns, dtype=d), weight("w", columns, columns, dtype=d)
    b = weight("b", columns, dtype=d)
    y = build.matmul(x, build.permute(w, (1, 0)))
    return graph(build.cast(build.gelu(build.add(wide(y), wide(b))), d))


def matvec(d: DType, rows: Dim, columns: Dim) -> Graph:
    x, v = arg("x", rows, columns, dtype=d), arg("v", columns, dtype=d)
    return graph(build.sum(build.mul(wide(x), wide(v)), (1,), False))


PROGRAMS: dict[str, Program] = {
    f.__name__: f
    for f in (
        add,
        chain,
        biased,
        softmax,
        layer_norm,
        rms_norm,
        cross_entropy,
        loss,
        column_sums,
        total,
        product,
        matmul,
        linear,
        matvec,
    )
}


def groups(g: Graph) -> list[Group]:
    """The kernels of a program."""
    found = fuse(prepared(g, get("cuda:90"), Log()), get("cuda:90"), Log()).clusters
    return [build_group(f"k{k}", c.nodes, c.inputs, c.outputs) for k, c in enumerate(found)]


def inputs(g: Group, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    out: dict[str, np.ndarray] = {}
    for b in g.inputs:
        shape = tuple(int(D.evaluate(d, sizes)) for d in b.shape)
        if b.dtype.is_float:
            out[b.name] = (rng.integers(-8, 9, shape) / 4).astype(b.dtype.numpy)
        else:
            out[b.name] = rng.integers(0, 2, shape).astype(b.dtype.numpy)
    return out
