"""Products of few rows with matrices as they lie: one query and all of its values."""

from __future__ import annotations

from dataclasses import replace

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


@pytest.mark.parametrize("machine", ["arm64", "x86-64-v4"])
@pytest.mark.parametrize("heads", [1, 3, 8])
def test_threads_share_the_keys_of_few_heads(machine: str, heads: int) -> None:
    target = replace(get(machine), cores=16)
    g = parse_group(values(heads, 1, 4096, 64))
    _, n = default_schedule(g, target)
    (shared,) = (x for x, _ in walk(n.body) if isinstance(x, Loop) and x.kind == "parallel")
    assert isinstance(shared.extent, int) and shared.extent >= target.cores
    assert shared.extent % heads == 0 and "ts" in shared.mentions
    # Short ones are not worth it, and strict sums keep their order.
    for other in (parse_group(values(heads, 1, 256, 64)), replace(g, precision="strict")):
        assert all(b.name != "ts" for b in default_schedule(other, target)[1].buffers)


@pytest.mark.parametrize(("heads", "rows"), [(1, 1), (3, 2)])
def test_results_of_shared_keys(heads: int, rows: int) -> None:
    g = parse_group(values(heads, rows, 2048, 64))
    judge = Judge(g, [{}])
    judge.exact = False
    _, n = default_schedule(g, replace(default(), cores=4))
    assert any(b.name == "ts" for b in n.buffers)
    judge.nest(n)
    judge.native(n)


@pytest.mark.parametrize(("rows", "keys", "width"), [(1, 192, 64), (3, 128, 128), (1, 192, 20)])
def test_results(rows: int, keys: int, width: int) -> None:
    g = parse_group(values(2 * default().cores, rows, keys, width))
    judge = Judge(g, [{}])
    judge.exact = False
    _, n = default_schedule(g, default())
    judge.nest(n)
    judge.native(n)
