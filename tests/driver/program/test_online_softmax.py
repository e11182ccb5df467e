"""Attention as one reduction over the keys: the rule, its combine, and ordinary steps on it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as attention

import tilewright as tw
from tests.kernel.fuzz import Judge
from tests.seeds import crossed
from tilewright import ops
from tilewright.graph.online_softmax import OnlineSoftmax
from tilewright.ir.combine import Combiner
from tilewright.ir.expr import const
from tilewright.ir.interpret import Evaluator
from tilewright.ir.node import input
from tilewright.ir.types import TensorType, f32, f64
from tilewright.kernel.group import build_group
from tilewright.kernel.nest import start
from tilewright.kernel.step import parse_trace
from tilewright.ops.online_softmax import _rescaling


def compiled(
    *args: torch.Tensor, is_causal: bool = False, enable_gqa: bool = False
) -> tuple[torch.Tensor, str]:
    def f(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        return attention(q, k, v, mask, is_causal=is_causal, enable_gqa=enable_gqa)

    with torch.no_grad():
        fast = tw.compile(f, passes=tw.passes().before("Decompose", OnlineSoftmax()))
        got = fast(*args)
        exact = f(*(x if x.dtype is torch.bool else x.double() for x in args)).to(got.dtype)
        torch.testing.assert_close(got, exact)
    return got, str(tw.explain(fast))


@pytest.mark.parametrize(
    ("dtype", "causal"),
    crossed([torch.float32, torch.float64, torch.bfloat16], [False, True], 2),
)
def test_attention_is_one_reduction(dtype: torch.dtype, causal: bool) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 33, 16, dtype=dtype) for _ in range(3))
    _, report = compiled(q, k, v, is_causal=causal)
    assert "softmax_matmul" in report


def test_masks_and_rows_that_see_nothing() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 9, 8) for _ in range(3))
    mask = torch.rand(2, 3, 9, 9) > 0.5
    mask[:, :, 4] = False
    got, report = compiled(q, k, v, mask)
    assert "softmax_matmul" in report
    assert torch.equal(got[:, :, 4], torch.zeros(2, 3, 8))


def test_shared_heads_stay_as_they_are() -> None:
    q, k, v = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    _, report = compiled(q, k, v, enable_gqa=True)
    assert "softmax_matmul" not in report


def together(c: Combiner, x: list[float], y: list[float]) -> list[float]:
    made = c([const(a, f64) for a in x], [const(a, f64) for a in y])
    return [float(Evaluator({}, {}, {})(v)) for v in made]


def test_its_combine_keeps_the_laws() -> None:
    c, rng = _rescaling(f64), np.random.default_rng(0)
    nothing = [float(x.value) for x in c.neutral]
    some = [nothing, *([float(5 * rng.normal()), *map(float, rng.random(2))] for _ in range(3))]
    for x in some:
        assert together(c, x, nothing) == together(c, nothing, x) == x
    for x, y, z in itertools.product(some, repeat=3):
        np.testing.assert_allclose(together(c, x, y), together(c, y, x), rtol=1e-12)
        left, right = together(c, together(c, x, y), z), together(c, x, together(c, y, z))
        np.testing.assert_allclose(left, right, rtol=1e-12)


# Keys in two halves that run side by side, columns as lanes, rows on threads.
STEPS = """
Split('t0.r0', parts=2)
RFactor('t0', ('t0.r0.0',), 'half')
Split('y0.i1', 4)
ComputeAt('t0', 'y0.i1.0')
ComputeAt('half', 'y0.i1.0')
Reorder(('half.r0.0', 'half.r0.1', 'half.i1'))
Vectorize('half.i1')
Unroll('half.init.i2')
Vectorize('half.init.i1')
Unroll('half.r0.0')
Vectorize('y0.i1.1')
Parallel('y0.i0')
"""


def test_ordinary_steps_schedule_it() -> None:
    scores, values = (input(n, TensorType(f32, s)) for n, s in (("s", (2, 6)), ("v", (6, 8))))
    product = ops.softmax_matmul(scores, values)
    group = build_group("online", (product,), (scores, values), (product,))
    judge, nest = Judge(group, [{}]), start(group)
    judge.exact = False
    for step in parse_trace(STEPS):
        nest = step(nest)
        judge.nest(nest)
    judge.native(nest)
