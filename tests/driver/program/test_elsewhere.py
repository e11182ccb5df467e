"""Kernels of a program on another machine."""

from __future__ import annotations

import pytest

from tilewright import ops, targets
from tilewright.driver.program.elsewhere import kernels_for
from tilewright.driver.program.options import Options
from tilewright.driver.program.programs import compile_graph
from tilewright.ir.node import Graph, input
from tilewright.ir.types import TensorType, f32
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.text import parse_group
from tilewright.tune.measuring.built import built


def network() -> Graph:
    x = input("x", TensorType(f32, (64, 48)))
    weights = [input(f"w{k}", TensorType(f32, (48, 48)), "weight") for k in range(2)]
    h = x
    for w in weights:
        h = ops.softmax(ops.relu(ops.matmul(h, w)), 1)
    return Graph("network", (x, *weights), (h,))


def test_they_are_those_of_a_program_here() -> None:
    graph = network()
    made = compile_graph(graph, Options())
    found = kernels_for(graph, Options(), targets.default())
    assert [(k.group, k.calls, k.name) for k in found] == [
        (k.group, k.calls, k.name) for k in made.kernels
    ]


@pytest.mark.parametrize("name", ["x86-64-v4", "arm64", "cuda:90"])
def test_they_are_built_for_machines_that_are_not_here(name: str) -> None:
    target = targets.get(name)
    for k in kernels_for(network(), Options(), target):
        assert built(default_schedule(parse_group(k.group), target)[1], target)
