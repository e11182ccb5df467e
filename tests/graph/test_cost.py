"""What costs say of whole graphs."""

import pytest

from tests.graph.build import arg, build, graph
from tilewright.graph.cost import products_wait_for_memory
from tilewright.ir.types import bf16


@pytest.mark.parametrize(("rows", "waits"), [(1, True), (128, True), (4096, False)])
def test_products_of_few_rows_wait_for_their_weights(rows: int, waits: bool) -> None:
    x, w = arg("x", rows, 2048, dtype=bf16), arg("w", 2048, 2048, dtype=bf16)
    made = graph(build.relu(build.matmul(x, w)))
    assert products_wait_for_memory(made, 200) == waits


def test_a_graph_without_products() -> None:
    assert not products_wait_for_memory(graph(build.relu(arg("x", 4, 4))), 200)
