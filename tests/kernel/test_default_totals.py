"""Default schedules of maps fused with totals: one loop does both, in the pieces of the total
alone."""

from __future__ import annotations

import pytest

from tests.kernel.fuzz import Judge
from tests.kernel.native import Native
from tests.seeds import crossed
from tilewright.kernel.nest import Loop, Nest, Store, walk
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.text import parse_group
from tilewright.targets import default, get

COUNTED = """
group counted
  in x: f32[{n}]
  out y: f32[{n}]
  out z: i64[]
  out w: f32[]
  local t: i64[]
  local u: f32[]
  y[y.i0] = max(x[y.i0], 0.0) for y.i0 in {n}
  t[] add= cast<i64>(x[t.r0] > 0.0) for t.r0 in {n} from 0
  u[] max= x[u.r0] for u.r0 in {n} from -inf
  z[] = t[] for once
  w[] = u[] for once
"""
SUMMED = """
group summed
  in x: f32[{n}]
  out y: f32[{n}]
  out z: f32[]
  local e: f32[{n}]
  local t: f32[]
  e[e.i0] = exp(x[e.i0]) for e.i0 in {n}
  y[y.i0] = e[y.i0] * 2.0 for y.i0 in {n}
  t[] add= e[t.r0] for t.r0 in {n} from 0.0
  z[] = t[] for once
"""
# The rows of a table: each index is one row of the result.
ROWS = """
group rows
  in x: f32[50,{width}]
  in i: i64[{n}]
  out y: f32[{n},{width}]
  out z: i64[]
  local t: i64[]
  y[y.i0,y.i1] = x[${{max(min(i[y.i0], 49), 0)}},y.i1] for y.i0 in {n}, y.i1 in {width}
  t[] max= i[t.r0] for t.r0 in {n} from -9223372036854775808
  z[] = t[] for once
"""


# The interpreter takes seconds for more elements than these. They run natively only, which shows
# the same: that the schedule computes what the group says.
INTERPRETED = 10_000


def scheduled(text: str, target: str = "") -> Nest:
    """The default schedule, compared with the group on numpy and natively."""
    group = parse_group(text)
    _, nest = default_schedule(group, get(target) if target else default())
    judge = Judge(group, [{}])
    judge.exact = False
    (args,), (want,) = judge.inputs, judge.want
    if max(a.size for a in (*args.values(), *want.values())) > INTERPRETED:
        assert not target, "only the interpreter runs code for another machine"
        judge.compare(Native(nest)(args, {}), 0, "native code")
        return nest
    judge.nest(nest)
    if not target:
        judge.native(nest)
    return nest


def sharing(nest: Nest, map: str, total: str) -> list[Loop]:
    """The outermost loops in which a map and partial results of a total are computed."""
    out = []
    for top in nest.body:
        stages = {s.stage for s, _ in walk((top,)) if isinstance(s, Store)}
        if isinstance(top, Loop) and map in stages and any(s.startswith(total) for s in stages):
            out.append(top)
    return out


@pytest.mark.parametrize("n", [1, 5, 8, 100, 4099, 40_000, 100_003])
def test_one_loop_counts_and_maps(n: int) -> None:
    nest = scheduled(COUNTED.format(n=n))
    assert n < 9 or (sharing(nest, "y", "t") and sharing(nest, "y", "u"))
    if n >= 40_000:
        top, *_ = sharing(nest, "y", "t")  # what follows are tails
        assert top.kind == "parallel"
        lanes = {p[-1].kind for s, p in walk(top.body) if isinstance(s, Store) and s.stage == "y"}
        assert lanes == {"lane"}


@pytest.mark.parametrize("n", [100, 3000, 65_536, 70_001])
def test_what_both_read_is_computed_once_and_not_stored(n: int) -> None:
    nest = scheduled(SUMMED.format(n=n))
    assert sharing(nest, "y", "t")
    (width,) = nest.buffer("e").shape
    assert isinstance(width, int) and width <= 64, "e is stored whole"


@pytest.mark.parametrize(("n", "width"), crossed([3, 1000, 5003], [1, 3, 64], 3))
def test_rows_share_the_loop_over_their_indices(n: int, width: int) -> None:
    nest = scheduled(ROWS.format(n=n, width=width))
    assert n < 5000 or sharing(nest, "y", "t")  # of few, each has its own loop


def test_strict_sums_keep_their_order() -> None:
    nest = scheduled(SUMMED.format(n=3000).replace("group summed", "group summed strict", 1))
    assert not any("tp" in b.name or "tc" in b.name for b in nest.buffers)


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_other_targets(target: str) -> None:
    assert sharing(scheduled(COUNTED.format(n=4099), target), "y", "t")
    long = parse_group(COUNTED.format(n=40_000))
    assert sharing(default_schedule(long, get(target))[1], "y", "t")
