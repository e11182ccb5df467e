"""Split by a factor or into parts, ragged or not."""

import numpy as np
import pytest

from tests.kernel.native import Native
from tilewright.base.errors import Refused
from tilewright.ir.dim import bounds, evaluate
from tilewright.kernel.interpret import run
from tilewright.kernel.nest import find, start
from tilewright.kernel.step import parse_trace, print_trace
from tilewright.kernel.steps.parallel import Parallel
from tilewright.kernel.steps.split import Split
from tilewright.kernel.text import parse_group

DOUBLED = """
group k
  in a0: f32[{n}]
  out y0: f32[{n}]
  y0[y0.i0] = a0[y0.i0] * 2.0 for y0.i0 in {n}
"""


@pytest.mark.parametrize("n", [1, 3, 4, 5, 8, 9, 100])
@pytest.mark.parametrize("split", [Split("y0.i0", 4), Split("y0.i0", parts=4)], ids=str)
def test_every_point_once(n: int, split: Split) -> None:
    nest = split.apply(start(parse_group(DOUBLED.format(n=n).strip())))
    ((outer, _),) = find(nest, "y0.i0.0")
    count = -(-n // 4) if split.factor else -(-n // -(-n // 4))
    assert outer.extent == count
    nest = Parallel("y0.i0.0").apply(nest)
    a = np.arange(n, dtype=np.float32)
    for got in (run(nest, {"a0": a}), Native(nest)({"a0": a})):
        np.testing.assert_array_equal(got["y0"], 2 * a)


@pytest.mark.parametrize("n", [1, 2, 7, 16, 17, 32, 33, 100, 1000])
def test_few_blocks_are_shared(n: int) -> None:
    """Of at most 16 iterations, and about a multiple of 4, the same for any size."""
    text = DOUBLED.format(n="n").replace("group k", "group k where n: 1..4096")
    nest = Parallel("y0.i0").apply(start(parse_group(text.strip())))
    nest = Split("y0.i0", 16, 4).apply(nest)
    ((outer, _),), ((inner, _),) = find(nest, "y0.i0.0"), find(nest, "y0.i0.1")
    assert (outer.kind, inner.kind) == ("parallel", "serial")
    assert bounds(inner.extent)[1] == 16
    blocks = evaluate(outer.extent, {"n": n})
    rounds = max(1, -(-n // 64))
    assert min(n, 3 * rounds) <= blocks <= 4 * rounds
    a = np.arange(n, dtype=np.float32)
    for got in (run(nest, {"a0": a}, {"n": n}), Native(nest)({"a0": a}, {"n": n})):
        np.testing.assert_array_equal(got["y0"], 2 * a)


def test_steps_print_what_is_given() -> None:
    trace = (Split("y0.i0", 4), Split("y0.i0.0", parts=2))
    text = "Split(loop='y0.i0', factor=4)\nSplit(loop='y0.i0.0', parts=2)\n"
    assert print_trace(trace) == text
    assert parse_trace(text) == trace


@pytest.mark.parametrize(
    ("split", "reason"),
    [
        (Split("y0.i0"), "0 is not a positive factor"),
        (Split("y0.i0", parts=-1), "-1 is not a positive number"),
    ],
)
def test_refusals(split: Split, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        split.apply(start(parse_group(DOUBLED.format(n=5).strip())))


def test_parts_of_a_ragged_loop_are_refused() -> None:
    nest = Split("y0.i0", 4).apply(start(parse_group(DOUBLED.format(n=5).strip())))
    with pytest.raises(Refused, match="no constant extent to divide"):
        Split("y0.i0.1", parts=2).apply(nest)
