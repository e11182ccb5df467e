"""Maps that read an operand across: a tile of it is turned first."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tests.kernel.fuzz import Judge
from tilewright.kernel.nest import Loop, start, walk
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import Step, apply
from tilewright.kernel.steps.cache_read import CacheRead
from tilewright.kernel.steps.materialise import Materialise
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.split import Split
from tilewright.kernel.text import parse_group
from tilewright.targets import default, get


def transposed(rows: int, columns: int, dtype: str = "f32") -> str:
    return f"""
group transposed
  in a: {dtype}[{columns},{rows}]
  out y: {dtype}[{rows},{columns}]
  y[y.i,y.j] = a[y.j,y.i] for y.i in {rows}, y.j in {columns}
"""


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "few", "many"),
    [
        (1024, 1024, "f32", True, True),  # lines of one set of the cache
        (70, 100, "f32", False, True),  # the cache has all of it: shuffles of few lanes cost more
        (6, 4096, "f32", False, False),  # less than the tiles need
        (1024, 1024, "f64", False, False),
    ],
)
def test_turned_by_default_where_reading_across_costs_more(
    rows: int, columns: int, dtype: str, few: bool, many: bool
) -> None:
    group = parse_group(transposed(rows, columns, dtype))
    for target, turned in (("arm64", few), ("x86-64-v4", many)):
        trace, _ = default_schedule(group, get(target))
        assert any(isinstance(s, CacheRead) for s in trace) == turned


def test_turned_tiles_that_do_not_fit_are_right() -> None:
    group = parse_group(transposed(67, 4096 + 3))
    trace, _ = default_schedule(group, default())
    assert any(isinstance(s, CacheRead) for s in trace)
    Judge(group, [{}]).native(apply(start(group), trace))


PACKED = """
group packed where n: 1..
  in a: f32[n,2,64]
  out y: f32[2,((n+47)//48),64,48]
  y[y.h,y.p,y.k,y.j] = select(#(48*y.p+y.j) < #(n), a[48*y.p+y.j,y.h,y.k], 0.0) \
for y.h in 2, y.p in ((n+47)//48), y.k in 64, y.j in 48
"""


def test_panels_of_keys_are_turned_up_to_an_edge_that_a_call_knows() -> None:
    """Rows of an operand become columns of panels: tiles are as large past its last row, where
    they have zeros."""
    group = parse_group(PACKED)
    trace, nest = default_schedule(group, get("x86-64-v4"))
    assert any(isinstance(s, Materialise) for s in trace)
    copies = [x.extent for x, _ in walk(nest.body) if isinstance(x, Loop) and x.name[:3] == "a_t"]
    assert copies and all(isinstance(e, int) for e in copies)
    trace, _ = default_schedule(group, default())
    Judge(group, [{"n": n} for n in (1, 7, 48, 77)]).native(apply(start(group), trace))


def packed(columns: int, deep: int, width: int) -> str:
    """The right operand of a product with a transposed matrix, in panels."""
    return f"""
group packed
  in a: f32[{columns},{deep}]
  out y: f32[{columns // width},{deep},{width}]
  y[y.p,y.k,y.j] = a[{width}*y.p+y.j,y.k] \
for y.p in {columns // width}, y.k in {deep}, y.j in {width}
"""


def runs(trace: Sequence[Step]) -> list[int]:
    return [s.factor for s in trace if isinstance(s, Split) and s.loop == "y.k" and s.factor > 64]


@pytest.mark.parametrize(
    ("deep", "width", "run"),
    [
        (1536, 48, [256]),
        (336, 48, [112]),  # the longest that is whole tiles, so many times
        (64, 48, []),  # too short to be worth it
        (1576, 48, []),  # no whole tiles
        (1536, 32, []),  # few enough rows at a time
    ],
)
def test_a_long_run_of_rows_is_read_before_the_next_tile_of_a_panel(
    deep: int, width: int, run: list[int]
) -> None:
    group, target = parse_group(packed(4 * width, deep, width)), get("x86-64-v4")
    trace, _ = default_schedule(group, target)
    assert any(isinstance(s, CacheRead) for s in trace) and runs(trace) == run
    order = next(s.order for s in trace if isinstance(s, Reorder) and "y.j.1" in s.order)
    assert order.index("y.j.0") == len(order) - (4 if run else 3)


def test_runs_that_end_anywhere_are_right() -> None:
    drawn = random.Random(seed := random.randrange(10**6))
    print("seed", seed)
    for _ in range(4):
        lanes = default().lanes(32)
        width, deep = lanes * drawn.randint(1, 4), drawn.choice([16 * drawn.randint(5, 40), 200])
        group = parse_group(packed(width * drawn.randint(1, 5), deep, width))
        trace, _ = default_schedule(group, default())
        Judge(group, [{}]).native(apply(start(group), trace))


def test_transposed_results_far_apart_have_no_runs() -> None:
    trace, _ = default_schedule(parse_group(transposed(1024, 1024)), get("x86-64-v4"))
    assert [s.factor for s in trace if isinstance(s, Split) and s.factor > 64] == []
