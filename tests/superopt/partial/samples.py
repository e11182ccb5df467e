"""Layers to try, and where two programs agree by computing every element."""

from __future__ import annotations

import numpy as np

from tilewright import ops
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Input, Node, input, node, topological
from tilewright.ir.positions import static
from tilewright.ir.types import TensorType, f32, i64
from tilewright.superopt.partial.layers import Layer, layer_of


def tensor(name: str, *shape: int, role: str = "arg") -> Node:
    return input(name, TensorType(f32, shape), role)


def convolution(
    image: tuple[int, ...],
    weight: tuple[int, ...],
    padding: tuple[int, ...],
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
) -> Layer:
    x, w = tensor("x", *image), tensor("w", *weight, role="weight")
    n = len(padding)
    around = (0, 0, *padding)
    padded = ops.pad(x, around, around)
    made = ops.conv_valid(padded, w, (stride,) * n, (dilation,) * n, groups)
    found = layer_of(made, {w})
    assert found is not None
    return found[0]


def product_of_matrices() -> Layer:
    w = tensor("w", 4, 3, role="weight")
    found = layer_of(ops.matmul(tensor("x", 2, 6, 4), w), {w})
    assert found is not None
    return found[0]


def agree(f: Node, g: Node, draws: int = 2) -> np.ndarray:
    """Where two programs agree on whole numbers, by every element of both."""
    whole: dict[Node, Node] = {}
    inputs: list[Node] = []
    for n in topological((f, g)):
        if isinstance(n.op, Input):
            whole[n] = input(n.op.label, TensorType(i64, n.shape))
            inputs.append(whole[n])
        else:
            whole[n] = node(n.op, *(whole[x] for x in n.inputs))
    both = Graph("both", tuple(inputs), (whole[f], whole[g]))
    same = np.ones(static(f.shape), bool)
    for k in range(draws):
        rng = np.random.default_rng(100 + k)
        args = [rng.integers(-(10**6), 10**6, static(n.shape)) for n in inputs]
        a, b = evaluate(both, args)
        same &= a == b
    return same
