"""Spaces of schedules: what each rule opens, and that every point is right."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest

from tests.kernel.fuzz import Judge
from tests.kernel.random_groups import sample
from tests.seeds import drawn, every_run
from tilewright.base.errors import Invalid, Refused
from tilewright.kernel.defaults.scheduler import Applied
from tilewright.kernel.group import Group
from tilewright.kernel.intrinsic import INTRINSICS
from tilewright.kernel.legal import legalise
from tilewright.kernel.legal.interleave import is_interleaved
from tilewright.kernel.nest import Loop, Store, start, walk
from tilewright.kernel.step import Trace, apply, parse_trace, print_trace
from tilewright.kernel.steps.cache_read import CacheRead
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.compute_inline import ComputeInline
from tilewright.kernel.steps.compute_with import ComputeWith
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.join import Join
from tilewright.kernel.steps.parallel import Parallel
from tilewright.kernel.steps.permute import Permute
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.slide import Slide
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.text import parse_group
from tilewright.targets import default, get
from tilewright.tune.choose import Ranked
from tilewright.tune.space.decision import Plain
from tilewright.tune.space.draft import Draft
from tilewright.tune.space.made import space_of
from tilewright.tune.space.rows_beside import rows_beside
from tilewright.tune.space.rules.instructions import open_instructions
from tilewright.tune.space.rules.prefetches import open_prefetches
from tilewright.tune.space.scans import written_scans
from tilewright.tune.space.space import SKETCH, Point, Space, parse_space
from tilewright.tune.space.tiling import partial_results, tilings, written_out
from tilewright.tune.space.turned import turned_operands
from tilewright.tune.space.windows import shared_windows

PRODUCT = parse_group("""
group product
  in a: f32[30,40]
  in b: f32[40,50]
  out y: f32[30,50]
  local t: f32[30,50]
  t[t.i,t.j] add= a[t.i,t.k] * b[t.k,t.j] for t.i in 30, t.j in 50, t.k in 40 from 0.0
  y[y.i,y.j] = t[y.i,y.j] for y.i in 30, y.j in 50
""")
TRANSPOSED = parse_group("""
group transposed
  in a: f32[21,34]
  in b: f32[34,21]
  out y: f32[21,34]
  y[y.i,y.j] = a[y.i,y.j] + b[y.j,y.i] for y.i in 21, y.j in 34
""")
TWICE = parse_group("""
group twice
  in a: f32[20,33]
  out y: f32[20,32]
  local t: f32[20,33]
  t[t.i,t.j] = a[t.i,t.j] * a[t.i,t.j] for t.i in 20, t.j in 33
  y[y.i,y.j] = t[y.i,y.j] + t[y.i,y.j+1] for y.i in 20, y.j in 32
""")
IMAGE = parse_group("""
group image
  in a: f32[5,12,12]
  in w: f32[5,3,3]
  out y: f32[5,12,12]
  local p: f32[5,14,14]
  local t: f32[5,12,12]
  p[p.c,p.i,p.j] = select({inside}, a[p.c,p.i-1,p.j-1], 0.0) for p.c in 5, p.i in 14, p.j in 14
  t[t.c,t.i,t.j] add= p[t.c,t.i+t.r,t.j+t.s] * w[t.c,t.r,t.s] for {sums} from 0.0
  y[y.c,y.i,y.j] = t[y.c,y.i,y.j] for y.c in 5, y.i in 12, y.j in 12
""".format(
    inside="#(p.i-1) >= 0 & #(p.i-1) < 12 & #(p.j-1) >= 0 & #(p.j-1) < 12",
    sums="t.c in 5, t.i in 12, t.j in 12, t.r in 3, t.s in 3",
))  # fmt: skip
LONG = parse_group("""
group long
  in a: f32[2,40000]
  out y: f32[2]
  local t: f32[2]
  t[t.i] add= a[t.i,t.r] for t.i in 2, t.r in 40000 from 0.0
  y[y.i] = t[y.i] for y.i in 2
""")


@cache
def made(group: Group) -> Space:
    return space_of(group, default())


def points(space: Space, group: Group, count: int, seed: int = 0) -> list[Point]:
    rng, applied = Random(seed), Applied()
    found = (space.draw(group, rng, applied=applied) for _ in range(count))
    return [p for p in found if p is not None]


def opened(space: Space, kind: type) -> set[str]:
    """Decisions that arguments or conditions of steps of a kind depend on."""
    steps = [s for s in space.steps if s.kind is kind]
    return {n for s in steps for n in s.names if n != SKETCH}


@pytest.mark.parametrize("group", [PRODUCT, TRANSPOSED, TWICE, IMAGE, LONG], ids=lambda g: g.name)
def test_the_default_is_what_a_compile_has_without_tuning(group: Group) -> None:
    space = made(group)
    assert space.replay(group, {}).trace == Ranked().choose(group, default()).trace


@pytest.mark.parametrize(
    ("group", "kind", "named"),
    [
        (PRODUCT, Split, "size"),
        (PRODUCT, Reorder, "order"),
        (PRODUCT, ComputeAt, "place"),
        (PRODUCT, Parallel, "grain"),
        (PRODUCT, Parallel, "threads"),
        (PRODUCT, Unroll, "unroll"),
        (PRODUCT, CacheRead, "copy"),
        (PRODUCT, Permute, "layout"),
        (TRANSPOSED, CacheRead, "copy"),
        (TWICE, ComputeInline, "keep"),
        (TWICE, ComputeAt, "keep"),
        (IMAGE, ComputeInline, "inline"),
        (IMAGE, Fuse, "fused"),
    ],
    ids=lambda x: getattr(x, "name", None) or getattr(x, "__name__", x),
)
def test_what_rules_open(group: Group, kind: type, named: str) -> None:
    """Some point has another value of such a decision, and other steps for it."""
    space = made(group)
    names = [n for n in opened(space, kind) if named in n]
    assert names, f"nothing opens {kind.__name__}"
    known = {space.replay(group, {}).trace}
    for name in names:
        given: dict[str, Plain] = {SKETCH: int(name[1 : name.index("_")])}
        if named == "layout":  # of a copy, where there is one
            copy = name.replace(named, "copy")
            given[copy] = space.named[copy].values[-1]
        for value in space.named[name].values:
            found = space.legal(group, {**given, name: value})
            if found is not None and found.trace not in known and kind in map(type, found.trace):
                return
    raise AssertionError(f"no value of {names} is legal and another schedule")


SCAN = """
group scan
  in a: f32[19,37]
  out y: f32[19,37]
  y[y.i,y.j] = select(#(y.{k}) > 0, y[{before}], 0.0) + a[y.i,y.j] for y.i in 19, y.j in 37 in order
"""
ALONG_ROWS = parse_group(SCAN.format(k="j", before="y.i,y.j-1"))
ALONG_COLUMNS = parse_group(SCAN.format(k="i", before="y.i-1,y.j"))


def test_loops_of_any_size_are_written_out() -> None:
    """Several iterations at a time, with a tail where sizes do not divide."""
    space = made(ALONG_ROWS)
    name = next(n for n in opened(space, Unroll) if "s0_unroll" in n)
    for value in space.named[name].values:
        found = space.replay(ALONG_ROWS, {name: value})
        assert any(isinstance(x, Unroll) for x in found.trace) == (value != 1)
        Judge(ALONG_ROWS, [{}]).nest(found.nest)


@pytest.mark.parametrize("group", [ALONG_ROWS, ALONG_COLUMNS], ids=["rows", "columns"])
def test_steps_of_scans_may_be_written_out(group: Group) -> None:
    (trace,) = written_scans(group, default(), Applied())
    nest = apply(start(group), trace)
    kinds = {x.name: x.kind for x, _ in walk(nest.body) if isinstance(x, Loop)}
    along = "y.j.1" if group is ALONG_ROWS else "y.i.1"
    assert kinds[along] == "unroll" and "parallel" in kinds.values()
    Judge(group, [{}]).native(nest)
    space = made(group)
    assert any(space.replay(group, {SKETCH: v}).trace == trace for v in space.named[SKETCH].values)


def test_loops_that_become_one_are_split_alike() -> None:
    """By one decision: a point of which the search decides two sizes apart would be refused."""
    group = parse_group("""
group both
  in a: f32[203,40]
  out y: f32[203,40]
  out z: f32[]
  local t: f32[]
  y[y.i,y.j] = exp(a[y.i,y.j]) for y.i in 203, y.j in 40
  t[] max= a[t.r,t.s] for t.r in 203, t.s in 40 from -inf
  z[] = t[] for once
""")
    space = made(group)
    first = space.replay(group, {}).trace
    assert any(isinstance(s, (ComputeWith, Join)) for s in first)
    sizes = [d for d in space.decisions if "size" in d.name]
    assert any(sum(d.name in s.names for s in space.steps) > 1 for d in sizes)
    found = points(space, group, 20)
    assert len(found) > 10
    Judge(group, [{}]).nest(found[0].nest)


PACKED = parse_group("""
group packed
  in b: f32[2,20,12] laid out by a0, a1 -> a1//12, a0, a1%12
  in a: f32[12,20]
  out y: f32[12,24]
  local p: f32[20,24]
  local t: f32[12,24]
  p[p.k,p.j] = b[(p.j//12),p.k,(p.j%12)] for p.k in 20, p.j in 24
  t[t.i,t.j] add= a[t.i,t.k] * p[t.k,t.j] for t.i in 12, t.j in 24, t.k in 20 from 0.0
  y[y.i,y.j] = t[y.i,y.j] for y.i in 12, y.j in 24
""")


BY_INSTRUCTION = """
ComputeInline('p')
Split('y.i', 6)
Split('y.j', 12)
Reorder(('y.j.0', 'y.i.0', 'y.i.1', 'y.j.1'))
ComputeAt('t', 'y.i.0')
SetScope('t', 'register')
Tensorize('t.i', 'arm64.fma')
"""


def test_all_instructions_that_fit_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    used, target = "arm64.fma", get("arm64")
    monkeypatch.setitem(INTRINSICS, f"{used}.again", INTRINSICS[used])
    draft = Draft.of(PACKED, target, parse_trace(BY_INSTRUCTION), Applied())
    open_instructions(draft)
    (d,) = draft.decisions
    assert d.default == used and set(d.values) == {used, f"{used}.again"}


def test_prefetches_may_be_left_out_or_come_earlier() -> None:
    trace = parse_trace("Prefetch(buffer='a', loop='y.i', distance=1)")
    draft = Draft.of(TRANSPOSED, default(), trace, Applied())
    open_prefetches(draft)
    space = draft.space()
    found = {space.replay(TRANSPOSED, {d.name: v}).trace for d in space.decisions for v in d.values}
    assert () in found and len(found) > 4


def test_threads_may_share_one_long_sum() -> None:
    (trace,) = partial_results(LONG, default(), Applied())
    nest = apply(start(LONG), trace)
    shared = [x for x, _ in walk(nest.body) if isinstance(x, Loop) and x.kind == "parallel"]
    assert any(isinstance(s, RFactor) for s in trace)
    assert shared and all(isinstance(x.extent, int) and x.extent > 2 for x in shared)


SHORT = parse_group("""
group short
  in a: f32[3,41,13]
  out y: f32[3,41]
  local t: f32[3,41]
  t[t.i,t.j] add= a[t.i,t.j,t.r] for t.i in 3, t.j in 41, t.r in 13 from 0.0
  y[y.i,y.j] = t[y.i,y.j] for y.i in 3, y.j in 41
""")


def test_short_sums_may_be_written_out() -> None:
    """Without lanes: those of neighbouring results would read far apart."""
    (trace,) = written_out(SHORT, default(), Applied())
    nest = apply(start(SHORT), trace)
    kinds = {x.name: x.kind for x, _ in walk(nest.body) if isinstance(x, Loop)}
    assert kinds["t.r"] == kinds["t.j"] == kinds["y.j.1"] == "unroll"
    assert "lane" not in kinds.values()
    Judge(SHORT, [{}]).native(nest)
    space = made(SHORT)
    assert any(space.replay(SHORT, {SKETCH: v}).trace == trace for v in space.named[SKETCH].values)
    assert not list(written_out(LONG, default(), Applied()))
    assert not list(written_out(IMAGE, default(), Applied()))


SPREAD = parse_group("""
group spread
  in a: f32[23,51]
  out y: f32[23]
  local t: f32[23,1]
  local u: f32[23]
  t[t.i,t.j] add= a[t.i,t.r] for t.i in 23, t.j in 1, t.r in 51 from 0.0
  u[u.i] add= (a[u.i,u.r] - t[u.i,0]) * (a[u.i,u.r] - t[u.i,0]) for u.i in 23, u.r in 51 from 0.0
  y[y.i] = u[y.i] for y.i in 23
""")


def test_sums_of_several_rows_may_be_under_way_together() -> None:
    (trace,) = rows_beside(SPREAD, default(), Applied())
    nest = apply(start(SPREAD), trace)
    parts = [p for s, p in walk(nest.body) if isinstance(s, Store) and s.combine and len(p) == 4]
    assert parts and all([q.kind for q in p[-2:]] == ["unroll", "lane"] for p in parts)
    judge = Judge(SPREAD, [{}])
    judge.exact = False
    judge.native(nest)
    space = made(SPREAD)
    found = [space.replay(SPREAD, {SKETCH: v}).trace for v in space.named[SKETCH].values]
    assert trace in found and not list(rows_beside(SHORT, get("x86-64-v4"), Applied()))


def test_an_axis_of_one_that_a_sum_keeps_is_not_its_rows() -> None:
    group = parse_group("""
group kept
  in a: f32[1,40,32]
  out y: f32[1,40,32]
  local t: f32[1,40,1]
  t[t.i0,t.i1,t.i2] add= a[t.i0,t.i1,t.r0] for t.i0 in 1, t.i1 in 40, t.i2 in 1, t.r0 in 32 from 0.0
  y[y.i0,y.i1,y.i2] = a[0,y.i1,y.i2] / t[0,y.i1,0] for y.i0 in 1, y.i1 in 40, y.i2 in 32
""")
    (trace,) = rows_beside(group, get("x86-64-v4"), Applied())
    assert any(isinstance(s, Split) and s.loop == "y.i1" for s in trace)


POOL = parse_group("""
group pool
  in a: f32[3,21,45]
  out y: f32[3,9,21]
  local t: f32[3,9,21]
  t[t.c,t.i,t.j] add= a[t.c,2*t.i+t.r,2*t.j+t.s] for {sums} from 0.0
  y[y.c,y.i,y.j] = t[y.c,y.i,y.j] for y.c in 3, y.i in 9, y.j in 21
""".format(sums="t.c in 3, t.i in 9, t.j in 21, t.r in 5, t.s in 3"))  # fmt: skip


def test_neighbouring_windows_may_share_sums_of_their_columns() -> None:
    (trace,) = shared_windows(POOL, default(), Applied())
    assert Slide("tw", 2, 3) in trace
    judge = Judge(POOL, [{}])
    judge.exact = False
    judge.native(apply(start(POOL), trace))
    space = made(POOL)
    assert any(space.replay(POOL, {SKETCH: v}).trace == trace for v in space.named[SKETCH].values)
    assert not list(shared_windows(IMAGE, default(), Applied()))  # each has weights of its own


def test_packing_has_both_its_own_schedule_and_that_of_any_map() -> None:
    group = parse_group("""
group packing
  in a: f32[20,50]
  out y: f32[5,20,12]
  y[y.i,y.j,y.k] = select(#(12*y.i+y.k) < 50, a[y.j,12*y.i+y.k], 0.0) for {axes}
""".replace("{axes}", "y.i in 5, y.j in 20, y.k in 12"))  # fmt: skip
    space = made(group)
    found = [space.replay(group, {SKETCH: v}).trace for v in space.named[SKETCH].values]
    assert not any(isinstance(s, Fuse) for s in found[0])
    assert any(isinstance(t[0], Fuse) for t in found)


def test_operands_may_be_turned_tile_by_tile() -> None:
    """In vectors along the operand, whose squares the code generator turns in registers."""
    target = default()
    (trace,) = turned_operands(TRANSPOSED, target, Applied())
    nest = apply(start(TRANSPOSED), trace)
    loops = [x for x, _ in walk(legalise(nest, target).body) if isinstance(x, Loop)]
    assert any(map(is_interleaved, loops))
    Judge(TRANSPOSED, [{}]).native(nest)
    space = made(TRANSPOSED)
    found = [space.replay(TRANSPOSED, {SKETCH: v}).trace for v in space.named[SKETCH].values]
    assert trace in found and not list(turned_operands(TWICE, target, Applied()))


def test_any_axis_may_have_the_lanes() -> None:
    found = list(tilings(TRANSPOSED, default(), Applied()))
    lanes = set()
    for trace in found:
        nest = apply(start(TRANSPOSED), trace)
        paths = [p for s, p in walk(nest.body) if isinstance(s, Store)]
        lanes |= {q.name.split(".")[1] for p in paths for q in p if q.kind == "lane"}
    assert lanes == {"i", "j"}


@pytest.mark.parametrize("group", [PRODUCT, IMAGE], ids=lambda g: g.name)
def test_most_assignments_are_legal(group: Group) -> None:
    """Values that later steps always refuse are not offered, and copies are made where they can be:
    what is illegal is left to combinations."""
    space, rng, applied = made(group), Random(0), Applied()
    legal = [space.legal(group, space.random(rng), applied) for _ in range(40)]
    assert sum(p is not None for p in legal) >= 30


def test_a_space_comes_back_from_its_text() -> None:
    for group in (PRODUCT, IMAGE):
        space = made(group)
        assert parse_space(str(space)) == space


def test_bad_assignments_are_told() -> None:
    space = made(TRANSPOSED)
    with pytest.raises(Invalid, match="is no decision"):
        space.replay(TRANSPOSED, {"nothing": 1})
    with pytest.raises(Invalid, match="none of its values"):
        space.replay(TRANSPOSED, {SKETCH: 99})


def replayed(group: Group, trace: Trace) -> Trace:
    """A trace by itself: without the space that it is from, through its text."""
    text = print_trace(trace)
    apply(start(group), parse_trace(text))
    return parse_trace(text)


@every_run(1, 2, 3)
@pytest.mark.parametrize("group", [PRODUCT, TRANSPOSED, TWICE, IMAGE], ids=lambda g: g.name)
def test_points_are_right(group: Group) -> None:
    judge = Judge(group, [{}])
    judge.exact = False
    space = made(group)
    found = points(space, group, 12)
    assert len(found) > 3
    for p in found[:2]:
        assert replayed(group, p.trace) == p.trace
        assert space.replay(group, p.given).trace == p.trace
        judge.native(p.nest)


@pytest.mark.parametrize("seed", drawn(range(120), 12))
def test_points_of_random_groups_are_right(seed: int) -> None:
    """The interpreter says whether; steps that would change the result have refused."""
    drawn_group = sample(seed)
    group = drawn_group.group
    judge = Judge(group, drawn_group.dims, seed)
    space = made(group)
    for p in points(space, group, 3, seed):
        assert replayed(group, p.trace) == p.trace
        judge.nest(p.nest)


def test_a_refused_value_is_no_point() -> None:
    space = parse_space("n = ordered(4, 0, default=4)\nSplit(loop='y.j', factor=n)")
    with pytest.raises(Refused):
        space.replay(PRODUCT, {"n": 0})
    assert space.legal(PRODUCT, {"n": 0}) is None and space.legal(PRODUCT, {"n": 4}) is not None
