"""Products whose sums are so long that no cache has a panel: all rows pass by a part of the sum.
And chains of products of few columns."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

from tests.kernel.fuzz import Judge
from tilewright.ir import dim as D
from tilewright.kernel.group import Group
from tilewright.kernel.nest import Path, Store, walk
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.prefetch import Prefetch
from tilewright.kernel.text import parse_group
from tilewright.targets import default, get

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
IMAGE = "u.i0 in 2, u.i1 in {out}, u.i2 in 7, u.i3 in 7"
OVER = "t.i0 in {out}, t.i1 in {c}, t.i2 in {k}, t.i3 in {k}, t.r0 in 2, t.r1 in {p}, t.r2 in {q}"
ROWS = "y.i0 in {out}, y.i1 in {c}, y.i2 in {k}, y.i3 in {k}"


CASES = [(32, 8, 3), (64, 112, 1)]  # output channels, input channels, taps along an axis
SMALL = replace(get("x86-64-v4"), l2=256 << 10, cores=2)


def weights(out: int, c: int, k: int) -> Group:
    sizes = {"out": out, "c": c, "k": k, "p": 40, "q": 48, "h": 39 + k, "w": 47 + k}
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


PANELS = """
group panels
  in g: f32[{panels},2,7,7,48] laid out by a0, a1, a2, a3 -> a1//48, a0, a2, a3, a1%48
  in x: f32[2,4,9,9]
  out y: f32[{out},4,3,3]
  local u: f32[2,{out},7,7]
  local t: f32[{out},4,3,3]
  u[u.i0,u.i1,u.i2,u.i3] = g[u.i1//48,u.i0,u.i2,u.i3,u.i1%48] for {image}
  t[t.i0,t.i1,t.i2,t.i3] add= u[t.r0,t.i0,t.r1,t.r2] * x[t.r0,t.i1,t.i2+t.r1,t.i3+t.r2] for {over}
  y[y.i0,y.i1,y.i2,y.i3] = t[y.i0,y.i1,y.i2,y.i3] for {rows}
"""


@pytest.mark.parametrize("out, passes", [(384, True), (192, False)])
def test_all_channels_pass_by_a_panel_where_a_cache_does_not_hold_all_panels(
    out: int, passes: bool
) -> None:
    # Each channel would bring all panels again, several times as many bytes as the sums take.
    sizes = {"out": out, "c": 4, "k": 3, "p": 7, "q": 7}
    over, rows = OVER.format(**sizes) + " from 0.0", ROWS.format(**sizes)
    parts = {"image": IMAGE.format(out=out), "over": over, "rows": rows}
    group = parse_group(PANELS.format(out=out, panels=out // 48, **parts))
    trace, nest = default_schedule(group, SMALL)
    fused = [(x.outer, x.inner) for x in trace if isinstance(x, Fuse)]
    assert (("y.i0.0", "y.i1") in fused) is passes
    assert (("y.i1", "y.i0.0") in fused) is not passes
    judge = Judge(group, [{}])
    judge.exact = False
    judge.nest(nest)


DEEP = parse_group("""
group deep
  in x: f32[2,3,3,1024]
  in w: f32[4,1024,48] laid out by a0, a1 -> a1//48, a0, a1%48
  out y: f32[2,3,3,192]
  local t: f32[2,3,3,192]
  t[t.i0,t.i1,t.i2,t.i3] add= x[t.i0,t.i1,t.i2,t.r] * w[t.i3//48,t.r,t.i3%48] for t.i0 in 2, t.i1 in 3, t.i2 in 3, t.i3 in 192, t.r in 1024 from 0.0
  y[y.i0,y.i1,y.i2,y.i3] = t[y.i0,y.i1,y.i2,y.i3] for y.i0 in 2, y.i1 in 3, y.i2 in 3, y.i3 in 192
""")  # noqa: E501


def test_all_images_pass_by_a_part_of_a_panel_that_no_cache_holds() -> None:
    nest = default_schedule(DEEP, SMALL)[1]
    stores = [p for s, p in walk(nest.body) if isinstance(s, Store) and s.combine]
    order = [q.name for q in max(stores, key=len)]
    assert order.index("y.i3.0") < order.index("t.r.0") < order.index("t.i0")
    judge = Judge(DEEP, [{}])
    judge.exact = False
    judge.nest(nest)


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
    "deep, wide, longest", [(128, 2, 32), (4096, 10, 64), (48, 3, 24), (256, 32, 128)]
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


ANY_DEPTH = """
group any where n: 1.., k: 1..
  in x: f32[n,k]
  in w: f32[k,48]
  out y: f32[n,48]
  local t: f32[n,48]
  t[t.i0,t.i1] add= x[t.i0,t.r] * w[t.r,t.i1] for t.i0 in n, t.i1 in 48, t.r in k from 0.0
  y[y.i0,y.i1] = t[y.i0,y.i1] for y.i0 in n, y.i1 in 48
"""


def test_sums_of_unknown_length_are_added_up_in_parts() -> None:
    # One chain of 2,000 terms had 2.3 times the error of a library.
    group = parse_group(ANY_DEPTH)
    _, nest = default_schedule(group, get("x86-64-v4"))
    stores = [(s, p) for s, p in walk(nest.body) if isinstance(s, Store) and s.combine == "add"]
    parts = [q for s, path in stores if s.stage == "tb" for q in path if q.name.startswith("tb.r")]
    assert parts and all(D.bounds(q.extent)[1] == 128 for q in parts)
    judge = Judge(group, [{"n": 9, "k": 140}, {"n": 1, "k": 1}])
    judge.exact = False
    judge.nest(nest)


@pytest.mark.parametrize("columns", [0, 1])
def test_sums_of_an_unknown_number_of_empty_rows(columns: int) -> None:
    group = parse_group(f"""
group k where n: 2..
  in x: f32[n,{columns}]
  out y: f32[1]
  y[y.i0] add= x[y.r0,y.r1] for y.i0 in 1, y.r0 in n, y.r1 in {columns} from 0.0
""")
    Judge(group, [{"n": 5}]).nest(default_schedule(group, SMALL)[1])


def test_a_sum_of_an_unknown_number_that_is_one_piece_is_not_cut() -> None:
    """Cut in pieces as long as itself, it would be cut again and again."""
    group = parse_group("""
group k where n: 2..512, m: 1..64
  in x: f32[m,n]
  out y: f32[m]
  y[y.i0] add= exp(x[y.i0,y.r0]) for y.i0 in m, y.r0 in n from 0.0
""")
    for name in ("x86-64-v4", "x86-64-v3", "arm64"):
        _, nest = default_schedule(group, get(name))
        assert len({s.stage for s, _ in walk(nest.body) if isinstance(s, Store)}) <= 3
    Judge(group, [{"n": 300, "m": 2}]).nest(nest)


def words(rows: int, deep: int, columns: int) -> Group:
    """A product with an operand in panels, as of the gradient of all words of a vocabulary."""
    panels = -(-columns // 48)
    return parse_group(f"""
group words
  in x: f32[{rows},{deep}]
  in w: f32[{panels},{deep},48] laid out by a0, a1 -> a1//48, a0, a1%48
  out y: f32[{rows},{columns}]
  local t: f32[{rows},{columns}]
  t[t.i0,t.i1] add= x[t.i0,t.r0] * w[(t.i1//48),t.r0,(t.i1%48)] \
for t.i0 in {rows}, t.i1 in {columns}, t.r0 in {deep} from 0.0
  y[y.i0,y.i1] = t[y.i0,y.i1] for y.i0 in {rows}, y.i1 in {columns}
""")


def lengths(g: Group) -> list[int]:
    """Terms that tiles of a product add up in registers, of each copy of its code."""
    nest = default_schedule(g, get("x86-64-v4"))[1]
    found = [p for s, p in walk(nest.body) if isinstance(s, Store) and s.stage == "tb"]
    inmost = [[q for q in p if ".r0" in q.name and q.kind == "tensor"] for p in found]
    return sorted({int(D.bounds(p[0].extent)[1]) for p in inmost if p})


@pytest.mark.parametrize(
    ("deep", "parts"),
    [(1733 * 29, [81, 512]), (10007, [279, 512]), (1536, [512]), (1576, [394])],
)
def test_sums_of_any_length_have_long_parts(deep: int, parts: list[int]) -> None:
    assert lengths(words(256, deep, 768)) == parts


@pytest.mark.parametrize("sizes", [(16, 1033, 48), (9, 1033, 96), (33, 521, 40)])
def test_a_last_part_that_is_shorter(sizes: tuple[int, int, int]) -> None:
    g = words(*sizes)
    judge = Judge(g, [{}])
    judge.exact = False
    nest = default_schedule(g, get("x86-64-v4"))[1]
    judge.nest(nest)
    judge.native(default_schedule(g, default())[1])


def test_the_next_panel_of_a_part_is_fetched_ahead() -> None:
    """Not the first panels of the next rows: these would push out what is there."""
    trace, _ = default_schedule(words(256, 3072, 768), replace(get("x86-64-v4"), cores=2))
    ahead = [x for x in trace if isinstance(x, Prefetch) and x.buffer == "w"]
    assert [x.loop for x in ahead] == ["t.i1.0"]
