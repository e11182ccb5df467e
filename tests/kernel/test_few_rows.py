"""Products of few rows with matrices as they lie: one query and all of its values."""

from __future__ import annotations

import pytest

from tests.kernel.fuzz import Judge
from tilewright.kernel.nest import Loop, walk
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.steps.prefetch import Prefetch
from tilewright.kernel.text import parse_group
from tilewright.targets import default, get


def values(heads: int, rows: int, keys: int, width: int) -> str:
    return f"""
group values
  in w: f32[{heads},{rows},{keys}]
  in v: f32[{heads},{keys},{width}]
  out y: f32[{heads},{rows},{width}]
  local t: f32[{heads},{rows},{width}]
  t[t.i0,t.i1,t.i2] add= w[t.i0,t.i1,t.r0] * v[t.i0,t.r0,t.i2] \
for t.i0 in {heads}, t.i1 in {rows}, t.i2 in {width}, t.r0 in {keys} from 0.0
  y[y.i0,y.i1,y.i2] = t[y.i0,y.i1,y.i2] * 0.5 \
for y.i0 in {heads}, y.i1 in {rows}, y.i2 in {width}
"""


@pytest.mark.parametrize("machine", ["host", "arm64", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(("rows", "width"), [(1, 64), (1, 128), (3, 128), (4, 32)])
def test_threads_share_heads_and_rows_of_memory_are_read_whole(
    machine: str, rows: int, width: int
) -> None:
    target = default() if machine == "host" else get(machine)
    heads = 4 * target.cores
    g = parse_group(values(heads, rows, 192, width))
    trace, n = default_schedule(g, target)
    loops = [x for x, _ in walk(n.body) if isinstance(x, Loop)]
    (shared,) = (x for x in loops if x.kind == "parallel")
    assert shared.extent == heads
    # All columns inside the loop over blocks of the sum; the next block is prefetched if not
    # one tile holds them all.
    (block,) = (x for x in loops if x.kind == "serial" and x.name == "t.r0.0")
    assert {"t", "tb", "v"} <= block.mentions
    cut = any(x.name == "t.i2.0" and x.extent != 1 for x in loops)
    assert any(isinstance(step, Prefetch) for step in trace) == cut


@pytest.mark.parametrize(("rows", "keys", "width"), [(1, 192, 64), (3, 128, 128), (1, 192, 20)])
def test_results(rows: int, keys: int, width: int) -> None:
    g = parse_group(values(2 * default().cores, rows, keys, width))
    judge = Judge(g, [{}])
    judge.exact = False
    _, n = default_schedule(g, default())
    judge.nest(n)
    judge.native(n)
