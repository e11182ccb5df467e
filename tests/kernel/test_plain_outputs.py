"""An output that is a reduction has the default schedule of one that fusion makes: a sum in
registers and a plain store."""

import numpy as np
import pytest

from tilewright.kernel.defaults.sums_out import with_plain_outputs
from tilewright.kernel.interpret import run, run_group
from tilewright.kernel.nest import start
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import apply, parse_trace, print_trace
from tilewright.kernel.steps.cache_write import CacheWrite
from tilewright.kernel.text import nest_text, parse_group
from tilewright.targets import get, host, names

PRODUCT = """
group g
  in A: f32[24,16]
  in B: f32[16,32]
  out C: f32[24,32]
  C[C.i0,C.i1] add= A[C.i0,C.r0] * B[C.r0,C.i1] for C.i0 in 24, C.i1 in 32, C.r0 in 16 from 0.0
"""
LARGEST = """
group g
  in A: f32[24,16]
  out C: f32[24]
  out D: f32[24]
  C[C.i0] max= A[C.i0,C.r0] for C.i0 in 24, C.r0 in 16 from -inf
  D[D.i0] = exp(C[D.i0]) for D.i0 in 24
"""


@pytest.mark.parametrize("text", [PRODUCT, LARGEST])
def test_the_steps_make_what_the_group_says(text: str) -> None:
    group = parse_group(text)
    steps, plain = with_plain_outputs(group)
    assert steps == (CacheWrite("C", "C_sums"),)
    assert nest_text(apply(start(group), steps)) == nest_text(start(plain))
    assert with_plain_outputs(plain) == ((), plain)


@pytest.mark.parametrize("name", sorted(n for n in names() if get(n).grid is None))
@pytest.mark.parametrize("text", [PRODUCT, LARGEST])
def test_results_are_right_and_the_trace_replays(text: str, name: str) -> None:
    group = parse_group(text)
    trace, nest = default_schedule(group, get(name))
    assert nest_text(apply(start(group), parse_trace(print_trace(trace)))) == nest_text(nest)
    rng = np.random.default_rng(0)
    given = {b.name: rng.random([int(str(d)) for d in b.shape], np.float32) for b in group.inputs}
    want = run_group(group, given)
    for out, found in run(nest, given).items():
        np.testing.assert_allclose(found, want[out], rtol=1e-5)


def test_a_product_is_computed_in_registers() -> None:
    _, nest = default_schedule(parse_group(PRODUCT), host())
    assert nest.buffer("C_sums").scope == "register"
