"""Products whose sums are so long that no cache has a panel: all rows pass by a part of the sum.
And chains of products of few columns."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

from tests.kernel.fuzz import Judge
from tilewright.kernel.group import Group
from tilewright.kernel.nest import Path, Store, walk
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.text import parse_group
from tilewright.targets import get

# The gradient of a convolution's weights, of images with channels last and first.
WEIGHTS = """
group weights
  in g: f32[2,40,48,{out}]
  in x: f32[2,{c},{h},{w}]
  out y: f32[{out},{c},{k},{k}]
  local t: f32[{out},{c},{k},{k}]
  t[t.i0,t.i1,t.i2,t.i3] add= g[t.r0,t.r1,t.r2,t.i0] * x[t.r0,t.i1,t.i2+t.r1,t.i3+t.r2] for {over}
  y[y.i0,y.i1,y.i2,y.i3] = t[y.i0,y.i1,y.i2,y.i3] for {rows}
"""
OVER = "t.i0 in {out}, t.i1 in {c}, t.i2 in {k}, t.i3 in {k}, t.r0 in 2, t.r1 in 40, t.r2 in 48"
ROWS = "y.i0 in {out}, y.i1 in {c}, y.i2 in {k}, y.i3 in {k}"


CASES = [(32, 8, 3), (64, 112, 1)]  # output channels, input channels, taps along an axis
SMALL = replace(get("x86-64-v4"), l2=256 << 10, cores=2)


def weights(out: int, c: int, k: int) -> Group:
    sizes = {"out": out, "c": c, "k": k, "h": 39 + k, "w": 47 + k}
    over = OVER.format(**sizes) + " from 0.0"
    return parse_group(WEIGHTS.format(over=over, rows=ROWS.format(**sizes), **sizes))


@pytest.mark.parametrize("sizes", CASES)
def test_taps_and_channels_are_rows_that_pass_by_a_part_of_the_sum(sizes: tuple[int, ...]) -> None:
    _, nest = default_schedule(weights(*sizes), SMALL)
    stores = [p for s, p in walk(nest.body) if isinstance(s, Store) and s.combine]
    path = max(stores, key=len)
    order = [q.name for q in path]
    assert path[-1].kind in ("lane", "tensor")
    rows = next(name for name in order if name.startswith("t.p"))
    assert order.index("t.r0") < order.index(rows)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", CASES)
def test_they_are_right(sizes: tuple[int, ...]) -> None:
    group = weights(*sizes)
    judge = Judge(group, [{}])
    judge.exact = False
    judge.nest(default_schedule(group, SMALL)[1])


NARROW = """
group narrow where n: 1..
  in x: f32[n,{deep}]
  in w: f32[{deep},{wide}]
  out y: f32[n,{wide}]
  local t: f32[n,{wide}]
  t[t.i0,t.i1] add= x[t.i0,t.r] * w[t.r,t.i1] for t.i0 in n, t.i1 in {wide}, t.r in {deep} from 0.0
  y[y.i0,y.i1] = t[y.i0,y.i1] for y.i0 in n, y.i1 in {wide}
"""


@pytest.mark.parametrize(
    "deep, wide, longest", [(128, 2, 32), (4096, 10, 64), (48, 3, 24), (256, 32, 256)]
)
def test_sums_of_few_columns_are_short_chains_for_any_number_of_rows(
    deep: int, wide: int, longest: int
) -> None:
    # Libraries sum along lanes there: one chain of 128 has twice the error of theirs.
    _, nest = default_schedule(parse_group(NARROW.format(deep=deep, wide=wide)), get("x86-64-v4"))
    sums = [(s, p) for s, p in walk(nest.body) if isinstance(s, Store) and s.combine == "add"]
    inmost = max((p for s, p in sums), key=len)[-1].name.split(".")[0]
    chains = [_terms(p, inmost) for s, p in sums if s.stage == inmost]
    assert max(chains) == longest


def _terms(path: Path, stage: str) -> int:
    sizes = [q.extent for q in path if q.name.startswith(f"{stage}.r")]
    return prod(e for e in sizes if isinstance(e, int))


@pytest.mark.parametrize("columns", [0, 1])
def test_sums_of_an_unknown_number_of_empty_rows(columns: int) -> None:
    group = parse_group(f"""
group k where n: 2..
  in x: f32[n,{columns}]
  out y: f32[1]
  y[y.i0] add= x[y.r0,y.r1] for y.i0 in 1, y.r0 in n, y.r1 in {columns} from 0.0
""")
    Judge(group, [{"n": 5}]).nest(default_schedule(group, SMALL)[1])
