"""Products whose threads copy panels of the right operand, which lies in rows as it came."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kernel.fuzz import Judge
from tilewright.kernel.defaults.choices import Choices
from tilewright.kernel.group import Group
from tilewright.kernel.nest import Alloc, Loop, Nest, walk
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.steps.prefetch import Prefetch
from tilewright.kernel.text import parse_group
from tilewright.targets import default, get

AVX512 = replace(get("x86-64-v4"), cores=2)


def product(batch: int, rows: int, columns: int, deep: int) -> Group:
    return parse_group(f"""
group product
  in a: f32[{batch},{rows},{deep}]
  in b: f32[{batch},{deep},{columns}]
  out y: f32[{batch},{rows},{columns}]
  local t: f32[{batch},{rows},{columns}]
  t[t.i0,t.i1,t.i2] add= a[t.i0,t.i1,t.r0] * b[t.i0,t.r0,t.i2] \
for t.i0 in {batch}, t.i1 in {rows}, t.i2 in {columns}, t.r0 in {deep} from 0.0
  y[y.i0,y.i1,y.i2] = t[y.i0,y.i1,y.i2] for y.i0 in {batch}, y.i1 in {rows}, y.i2 in {columns}
""")


def copied(n: Nest) -> bool:
    return any(b.name == "tp" for b in n.buffers)


@pytest.mark.parametrize(
    ("sizes", "panels"),
    [
        ((12, 128, 128, 64), True),
        ((1, 256, 256, 256), True),
        ((1, 128, 768, 3072), True),  # a sum in parts, for few rows
        ((12, 128, 48, 64), False),  # all rows are next to each other
        ((12, 32, 128, 64), False),  # few rows: a copy takes too much of the time
        ((1, 256, 1024, 64), False),  # results on a page each wait for so short a sum
        ((1, 768, 768, 768), False),  # the operand is better copied whole
        ((12, 128, 100, 64), False),  # columns that are no whole vectors
    ],
)
def test_panels_are_copied_where_that_gains(sizes: tuple[int, int, int, int], panels: bool) -> None:
    g = product(*sizes)
    assert copied(default_schedule(g, AVX512)[1]) == panels
    assert not copied(default_schedule(g, AVX512, Choices(panels=False))[1])
    assert not copied(default_schedule(g, replace(AVX512, rated=False))[1])


@pytest.mark.parametrize("sizes", [(12, 128, 128, 64), (1, 256, 256, 256), (1, 128, 768, 3072)])
def test_each_thread_copies_its_own(sizes: tuple[int, int, int, int]) -> None:
    trace, n = default_schedule(product(*sizes), AVX512)
    (shared,) = (x for x, _ in walk(n.body) if isinstance(x, Loop) and x.kind == "parallel")
    assert isinstance(shared.extent, int) and shared.extent % AVX512.cores == 0
    assert any(x == Alloc("tp") for x, _ in walk(shared.body))
    # A panel is read by all rows of a block, of which there are as many as a copy pays for.
    (copy,) = (b for b in n.buffers if b.name == "tp")
    size = copy.size * copy.dtype.bytes
    assert isinstance(size, int) and size <= AVX512.l2 // 2
    # One that no cache holds arrives before it is copied.
    large = sizes[2] * sizes[3] * 4 * 2 > AVX512.l2
    assert any(isinstance(step, Prefetch) for step in trace) == large


@pytest.mark.parametrize(
    ("sizes", "choices"),
    [
        ((3, 64, 64, 20), Choices(panels=True)),
        ((1, 70, 96, 33), Choices(panels=True)),  # tiles of rows that are left over
        ((2, 64, 32, 600), Choices(panels=True)),  # a sum in parts
        ((1, 128, 96, 40), Choices(panels=True, block=64)),
    ],
)
def test_results(sizes: tuple[int, int, int, int], choices: Choices) -> None:
    g = product(*sizes)
    judge = Judge(g, [{}])
    judge.exact = False
    _, n = default_schedule(g, default(), choices)
    assert copied(n)
    judge.nest(n)
    judge.native(n)
