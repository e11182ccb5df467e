"""Attention of few rows: two products and the rows between them, a block for each row."""

from __future__ import annotations

import pytest

from tests.gpu import emulate
from tests.gpu.programs import groups, inputs
from tests.graph.build import arg, build, graph, softmax
from tests.kernel.test_grids import GPU, judge, scheduled
from tilewright.ir.node import Node
from tilewright.ir.types import DType, bf16, f32
from tilewright.kernel.interpret import run_group
from tilewright.kernel.legal import legalise
from tilewright.llvm.grid import emit_kernels


def attention(d: DType, heads: int, rows: int, keys: int, width: int) -> Node:
    """Keys in a cache, and one that is not there yet."""
    q, k, v = (arg(x, heads, n, width, dtype=d) for x, n in (("q", rows), ("k", keys), ("v", keys)))
    mine = arg("mine", heads, 1, width, dtype=d)
    turned = build.mul(build.add(q, arg("turn", width, dtype=d)), arg("by", width, dtype=d))
    scores = [build.matmul(turned, build.permute(x, (0, 2, 1))) for x in (k, mine)]
    wide = build.cast(build.concat(scores, 2), f32)
    weights = build.cast(softmax(wide), d)
    own = build.mul(build.slice(weights, 2, keys, keys + 1), mine)
    return build.add(build.matmul(build.slice(weights, 2, 0, keys), v), own)


@pytest.mark.parametrize("d", [f32, bf16], ids=str)
@pytest.mark.parametrize("size", [(2, 2, 128, 16), (1, 3, 256, 32)], ids=str)
def test_a_step_of_attention_is_one_launch(d: DType, size: tuple[int, int, int, int]) -> None:
    (g,) = groups(graph(attention(d, *size)))
    nest = scheduled(g)
    judge(g, nest, {}, d)
    assert len(emit_kernels(legalise(nest, GPU), GPU).launches) == 1
    args = inputs(g, {})
    want, got = run_group(g, args, {}), emulate.run(nest, args)
    for name, x in got.items():
        close = 2e-2 if d is bf16 else 1e-5
        assert abs(x.astype("f8") - want[name].astype("f8")).max() <= close * abs(x).max()
