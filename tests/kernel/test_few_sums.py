"""Few long sums of neighbouring results, and maps of them: one launch of warps that share a sum."""

from __future__ import annotations

import pytest

from tests.gpu import emulate
from tests.gpu.programs import groups, inputs
from tests.graph.build import arg, build, graph
from tests.kernel.test_grids import GPU, judge, scheduled
from tilewright.ir.types import DType, bf16, f32
from tilewright.kernel.interpret import run_group
from tilewright.kernel.legal import legalise
from tilewright.llvm.grid import emit_kernels


@pytest.mark.parametrize("d", [f32, bf16], ids=str)
def test_weighted_values_of_a_few_rows_are_one_launch(d: DType) -> None:
    """The weights are a part of longer rows, as where one key is not in the cache yet."""
    weights, values = arg("w", 2, 3, 161, dtype=d), arg("v", 2, 160, 16, dtype=d)
    mine = build.mul(build.slice(weights, 2, 160, 161), arg("own", 2, 1, 16, dtype=d))
    (g,) = groups(graph(build.add(build.matmul(build.slice(weights, 2, 0, 160), values), mine)))
    nest = scheduled(g)
    judge(g, nest, {}, d)
    assert len(emit_kernels(legalise(nest, GPU), GPU).launches) == 1
    args = inputs(g, {})
    want, got = run_group(g, args, {}), emulate.run(nest, args, target=GPU)
    for name, x in got.items():
        close = 2e-2 if d is bf16 else 1e-5
        assert abs(x.astype("f8") - want[name].astype("f8")).max() <= close * abs(x).max()
