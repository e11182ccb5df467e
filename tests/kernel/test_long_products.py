"""Products of few results whose long sum threads share: gradients of thin weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.kernel.fuzz import Judge
from tilewright.ir.register_tile import shared_sum
from tilewright.ir.types import f32
from tilewright.kernel.defaults.choices import Choices
from tilewright.kernel.group import Group
from tilewright.kernel.nest import Loop, Nest, Store, walk
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.text import parse_group
from tilewright.targets import default, get

AVX512 = replace(get("x86-64-v4"), cores=2)
# What a small product comes from memory for.
SMALL: dict[str, Any] = {"l2": 16 << 10, "cores": 2}

THIN = """
group thin
  in a: f32[{terms},{rows}]
  in b: f32[{terms},{columns}]
  out y: f32[{rows},{columns}]
  local u: f32[{rows},{terms}]
  local t: f32[{rows},{columns}]
  u[u.i0,u.i1] = a[u.i1,u.i0] for u.i0 in {rows}, u.i1 in {terms}
  t[t.i0,t.i1] add= u[t.i0,t.r] * b[t.r,t.i1] for t.i0 in {rows}, t.i1 in {columns}, t.r in {terms} from 0.0
  y[y.i0,y.i1] = t[y.i0,y.i1] for y.i0 in {rows}, y.i1 in {columns}
"""  # noqa: E501


def thin(rows: int, columns: int, terms: int) -> Group:
    return parse_group(THIN.format(rows=rows, columns=columns, terms=terms))


def pieces(n: Nest) -> list[Loop]:
    """Loops over pieces of the sum that threads share."""
    every = (x for x, _ in walk(n.body) if isinstance(x, Loop) and x.kind == "parallel")
    return [x for x in every if x.name.startswith("tc.r")]


@pytest.mark.parametrize(
    ("sizes", "shared"),
    [
        ((24, 144, 25088), True),
        ((16, 96, 100352), True),
        ((64, 64, 25088), True),
        ((24, 144, 512), False),  # operands stay in a cache
        ((256, 256, 25088), False),  # no first cache has all results
        ((24, 100, 25088), False),  # columns that are no whole vectors
        ((24, 144, 25087), False),  # a sum that does not divide into parts
        ((1, 48, 100352), False),  # too few sums to hide the latency of one
    ],
)
def test_threads_share_long_sums_of_few_results(sizes: tuple[int, int, int], shared: bool) -> None:
    assert (shared_sum(AVX512, f32, *sizes) is not None) == shared
    assert shared_sum(replace(AVX512, rated=False), f32, *sizes) is None
    assert bool(pieces(default_schedule(thin(*sizes), AVX512)[1])) == shared


def test_each_operand_comes_from_memory_once() -> None:
    found = shared_sum(AVX512, f32, 24, 144, 25088)
    assert found is not None
    _, nest = default_schedule(thin(24, 144, 25088), AVX512)
    (shared,) = pieces(nest)
    assert shared.extent == 25088 // found.piece >= 4 * AVX512.cores
    # All results pass by a part of the sum before the next part, which the first cache has.
    sums = [p for s, p in walk(nest.body) if isinstance(s, Store) and s.combine]
    order = [q.name for q in max(sums, key=len)]
    parts = order.index("tc.r.1.0")
    assert parts < order.index("tc.i1.0") < order.index("tc.i0.0")
    assert found.part * (24 + found.columns) * 4 <= AVX512.l1
    # Each thread's results are lines of their own.
    (own,) = (b for b in nest.buffers if b.name == "tc")
    assert own.shape == (shared.extent, 24, 144)


def test_who_asks_for_other_schedules_gets_them() -> None:
    _, nest = default_schedule(thin(24, 144, 25088), AVX512, Choices(outer="rows"))
    assert not pieces(nest)


@pytest.mark.parametrize("sizes", [(8, 32, 512), (24, 16, 1024)])
def test_they_are_right(sizes: tuple[int, int, int]) -> None:
    target = replace(default(), **SMALL)
    group = thin(*sizes)
    nest = default_schedule(group, target)[1]
    if target.rated and shared_sum(target, f32, *sizes) is not None:
        assert pieces(nest)
    judge = Judge(group, [{}])
    judge.exact = False
    judge.nest(nest)
