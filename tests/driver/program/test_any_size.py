"""One kernel for clusters that differ in sizes only, and only where it is the same for all."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from tests.driver.running import call
from tilewright import ops
from tilewright.base.events import Log
from tilewright.driver.program.any_size import for_any_size
from tilewright.driver.program.options import Options
from tilewright.driver.program.programs import compile_graph
from tilewright.graph.cluster import Cluster
from tilewright.ir.node import Graph, Node, constant, input
from tilewright.ir.types import TensorType, f32


def _weight(k: int, *shape: int) -> Node:
    return input(f"w{k}", TensorType(f32, shape), "weight")


def _cluster(x: Node, *nodes: Node) -> Cluster:
    return Cluster(nodes, (x,), (nodes[-1],), "map")


def test_sizes_that_are_equal_everywhere_are_one_symbol() -> None:
    made = []
    for k, (rows, columns) in enumerate(((7, 12), (24, 12), (24, 36))):
        x = _weight(k, rows, columns, 3)
        turned = ops.permute(x, (1, 0, 2))
        made.append(_cluster(x, turned, ops.neg(turned)))
    found = for_any_size(made)
    assert [dict(found[c].sizes) for c in made] == [
        {"n0": 7, "n1": 1},
        {"n0": 24, "n1": 1},
        {"n0": 24, "n1": 3},
    ]
    (general,) = {found[c].cluster for c in made}
    # What divides all is known, so that loops over whole vectors leave no rest.
    assert str(general.outputs[0].type) == "f32[12*n1,n0,3]"


def test_one_is_another_form_and_unknown_relations_stay_apart() -> None:
    narrow, wide = _weight(0, 8, 1), _weight(1, 8, 5)
    assert not for_any_size([_cluster(x, ops.neg(x)) for x in (narrow, wide)])
    flat = []
    for k, rows in enumerate((8, 24)):
        x = _weight(k, rows, 6)
        flat.append(_cluster(x, ops.reshape(x, (6 * rows,))))  # a product: no size of an input
    assert not for_any_size(flat)
    same = []
    for k, rows in enumerate((8, 24)):
        x = _weight(k, rows, 6)
        same.append(_cluster(x, ops.reshape(x, (rows, 2, 3))))
    assert len(for_any_size(same)) == 2


def test_weights_of_all_layers_are_packed_by_one_kernel() -> None:
    """On the way from four sizes of weights to one kernel nothing is lost."""
    sizes = (24, 192, 384, 192, 576)  # whole register tiles
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((m, n)).astype(np.float32) for m, n in pairwise(sizes)]
    weights = [_weight(k, *a.shape) for k, a in enumerate(arrays)]
    x = y = input("x", TensorType(f32, (6, sizes[0])))
    for w in weights:
        y = ops.relu(ops.matmul(y, ops.mul(w, constant(0.5, f32))))
    program = compile_graph(Graph("layers", (x, *weights), (y,)), Options(), Log())
    assert program.prologue is not None
    assert len(program.prologue.kernels) == 1
    assert program.prologue.kernels[0].calls == len(weights)
    given = rng.standard_normal((6, sizes[0])).astype(np.float32)
    right = given.astype(np.float64)
    for a in arrays:
        right = np.maximum(right @ (0.5 * a), 0)
    (got,) = call(program, [given, *arrays])
    np.testing.assert_allclose(got, right, atol=1e-5 * right.max())
