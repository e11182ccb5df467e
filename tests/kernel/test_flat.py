"""Elementwise groups of all shapes are one group over one axis."""

import pytest

from tests.graph.build import arg
from tilewright import ops
from tilewright.ir.node import Node, topological
from tilewright.kernel.flat import LENGTH, flattened
from tilewright.kernel.group import Group, build_group
from tilewright.kernel.text import group_text


def group(*outputs: Node) -> Group:
    nodes = [n for n in topological(outputs) if n.op.name != "input"]
    inputs = [n for n in topological(outputs) if n.op.name == "input"]
    return build_group("kernel", nodes, inputs, outputs)


def update(*shape: int) -> list[Node]:
    p, g, lr = arg("p", *shape), arg("g", *shape), arg("lr")
    rate = ops.sqrt(lr)
    return [ops.sub(p, ops.mul(g, rate)), ops.mul(g, g)]


def test_one_text_for_all_shapes() -> None:
    texts = set()
    for shape in ((4, 5), (7,), (2, 1, 3), (1, 9)):
        flat = flattened(group(*update(*shape)))
        assert flat is not None and flat.group.dims() == (LENGTH,)
        assert sorted(flat.long) == [False, True, True, True, True]
        texts.add(group_text(flat.group))
    assert len(texts) == 1


@pytest.mark.parametrize(
    "made",
    [
        ops.add(arg("x", 4, 5), arg("row", 5)),
        ops.permute(arg("x", 4, 4), (1, 0)),
        ops.mul(arg("x", 6), ops.iota(6, 0, 1, arg("x", 6).dtype)),
        ops.sum(arg("x", 4, 5), (1,)),
        ops.neg(arg("x")),  # one number has no axis
    ],
)
def test_others_are_not_flat(made: Node) -> None:
    assert flattened(group(made)) is None
