"""Concatenations of many operands become several of a few."""

import numpy as np
import pytest

from tests.graph.build import arg, build, graph
from tilewright.base.events import Log
from tilewright.graph.long_concats import LongConcats
from tilewright.ir.interpret import evaluate
from tilewright.ops.views import Concat


@pytest.mark.parametrize("count", [2, 32, 33, 200, 1100])
def test_pieces(count: int) -> None:
    parts = [arg(f"x{k}", 2, 1 + k % 3) for k in range(count)]
    before = graph(build.concat(parts, 1))
    after = LongConcats().apply(before, Log())
    sizes = [len(n.inputs) for n in after.nodes() if isinstance(n.op, Concat)]
    assert max(sizes) <= 32
    assert (after.outputs == before.outputs) == (count <= 32)
    args = [np.random.rand(2, 1 + k % 3).astype(np.float32) for k in range(count)]
    np.testing.assert_array_equal(evaluate(after, args)[0], np.concatenate(args, 1))
