"""Default schedules of rows, columns and scans: what of them is vectors, and side by side."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

from tests.kernel.fuzz import Judge
from tests.seeds import crossed
from tilewright.ir.expr import loads
from tilewright.kernel.group import Group
from tilewright.kernel.nest import Loop, Nest, Path, Store, start, walk
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import apply
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.split import Split
from tilewright.kernel.text import parse_group
from tilewright.targets import default, get

GROUPED = """
group grouped
  in x: f32[2,3,4,6,10]
  out y: f32[2,3,4,6,10]
  local t: f32[2,3,1,1,1]
  t[t.i0,t.i1,t.i2,t.i3,t.i4] add= x[t.i0,t.i1,t.r0,t.r1,t.r2] for {sums} from 0.0
  y[y.i0,y.i1,y.i2,y.i3,y.i4] = x[y.i0,y.i1,y.i2,y.i3,y.i4] - t[y.i0,y.i1,0,0,0] for {over}
"""
SUMS = "t.i0 in 2, t.i1 in 3, t.i2 in 1, t.i3 in 1, t.i4 in 1, t.r0 in 4, t.r1 in 6, t.r2 in 10"
OVER = "y.i0 in 2, y.i1 in 3, y.i2 in 4, y.i3 in 6, y.i4 in 10"

COLUMNS = """
group columns
  in x: f32[40,1024]
  out y: f32[1024]
  local t: f32[1024]
  t[t.i0] add= x[t.r0,t.i0] for t.i0 in 1024, t.r0 in 40 from 0.0
  y[y.i0] = t[y.i0] * 0.5 for y.i0 in 1024
"""

# Sums one after the other, each of what is left without the one before.
ONE_SUM = "  {t}[{t}.i0] add= x[{t}.r0] - {of} for {t}.i0 in 1, {t}.r0 in 100 from 0.0"
SUMS_IN_TURN = "\n".join(
    [
        "group turns",
        "  in x: f32[100]",
        "  out y: f32[100]",
        *(f"  local t{k}: f32[1]" for k in range(6)),
        *(ONE_SUM.format(t=f"t{k}", of=f"t{k - 1}[0]" if k else "x[0]") for k in range(6)),
        "  y[y.i0] = x[y.i0] - t5[0] for y.i0 in 100",
    ]
)

SCAN = """
group scan
  in a: f32[{rows},30]
  out y: f32[{rows},30]
  y[y.i0,y.i1] = {value} for y.i0 in {rows}, y.i1 in 30 in order
"""
VALUE = "select(#(y.i1) > 0, y[y.i0,y.i1-1] + a[y.i0,y.i1], a[y.i0,y.i1])"


SHORT_COLUMNS = """
group short
  in x: f32[{rows},{length},{width}]
  out y: f32[{rows},{width}]
  local t: f32[{rows},{width}]
  t[t.i0,t.i1] {combine}= {value} for t.i0 in {rows}, t.i1 in {width}, t.r0 in {length} from {first}
  y[y.i0,y.i1] = t[y.i0,y.i1] * 0.5 for y.i0 in {rows}, y.i1 in {width}
"""
CELL = "x[t.i0,t.r0,t.i1]"


def judged(group: Group, nest: Nest) -> None:
    judge = Judge(group, [{}])
    judge.exact = False
    judge.nest(nest)
    if nest == default_schedule(group, default())[1]:
        judge.native(nest)


def around(nest: Nest, stage: str) -> list[Loop]:
    """The loops around the last store of a stage."""
    stores = [(s, p) for s, p in walk(nest.body) if isinstance(s, Store) and s.stage == stage]
    return list(stores[-1][1])


@pytest.mark.parametrize("machine", ["arm64", "x86-64-v4"])
def test_a_sum_over_several_axes_that_are_one_walk_is_vectors(machine: str) -> None:
    group = parse_group(GROUPED.format(sums=SUMS, over=OVER))
    _, nest = default_schedule(group, get(machine))
    assert around(nest, "tp")[-1].kind == "lane"
    judged(group, nest)


@pytest.mark.parametrize(("machine", "lanes"), [("arm64", 64), ("x86-64-v3", 64), ("x86-64", 32)])
def test_blocks_of_columns_fill_half_of_the_registers(machine: str, lanes: int) -> None:
    group = parse_group(COLUMNS)
    _, nest = default_schedule(group, get(machine))
    last = around(nest, "t")[-1]
    assert (last.kind, last.extent) == ("lane", lanes)
    judged(group, nest)


STATISTICS = """
group statistics
  in x: f32[8,{rows},{width}]
  in w: f32[{width}]
  out y: f32[{width}]
  out z: f32[{width}]
  local t: f32[{width}]
  t[t.i0] add= x[t.r0,t.r1,t.i0] * x[t.r0,t.r1,t.i0] for {sums} from 0.0
  y[y.i0] = t[y.i0] * 0.25 for y.i0 in {width}
  z[z.i0] = y[z.i0] + w[z.i0] for z.i0 in {width}
"""


@pytest.mark.parametrize("width", [64, 3])
def test_several_results_of_a_sum_of_columns_share_its_lanes(width: int) -> None:
    """As a mean and a running one of a norm's batch do."""
    sums = f"t.i0 in {width}, t.r0 in 8, t.r1 in 300"
    group = parse_group(STATISTICS.format(rows=300, width=width, sums=sums))
    _, nest = default_schedule(group, get("x86-64-v4"))
    sums_in = [p[-1].kind for s, p in walk(nest.body) if isinstance(s, Store) and s.combine]
    if width == 64:
        assert set(sums_in) == {"lane"}
    assert any("lane" in [q.kind for q in p] for s, p in walk(nest.body) if isinstance(s, Store))
    judged(group, nest)


@pytest.mark.parametrize("rows", [16, 21])
def test_rows_of_a_scan_run_side_by_side(rows: int) -> None:
    group = parse_group(SCAN.format(rows=rows, value=VALUE))
    _, nest = default_schedule(group, default())
    inmost = [p[-1] for _, p in stores(nest)]
    left_over = [rows % 8] if rows % 8 else []
    assert [(x.kind, x.extent) for x in inmost] == [("unroll", n) for n in (8, *left_over)]
    judged(group, nest)


def test_few_rows_of_a_scan_stay_as_they_are() -> None:
    group = parse_group(SCAN.format(rows=3, value=VALUE))
    trace, nest = default_schedule(group, default())
    assert [type(s).__name__ for s in trace] == ["Parallel"]
    judged(group, nest)


@pytest.mark.parametrize(
    ("dtype", "function", "length"),
    [("f32", "add", 150), ("f32", "max", 33), ("i64", "add", 129), ("f64", "max", 256)],
)
def test_long_rows_of_a_scan_are_lanes(dtype: str, function: str, length: int) -> None:
    combined = "y[y.i0,y.i1-1] + a[y.i0,y.i1]"
    if function == "max":
        combined = "max(y[y.i0,y.i1-1], a[y.i0,y.i1])"
    value = f"select(#(y.i1) > 0, {combined}, a[y.i0,y.i1])"
    text = SCAN.format(rows=3, value=value).replace("30", str(length)).replace("f32", dtype)
    group = parse_group(text)
    trace, nest = default_schedule(group, default())
    assert "ScanLanes" in [type(s).__name__ for s in trace]
    judged(group, nest)


ANY_LENGTH = """
group sums where n: 1..5000
  in a: f32[5,n]
  out y: f32[5,n]
  local t: f64[5,n]
  t[t.i0,t.i1] = {value} for t.i0 in 5, t.i1 in n in order
  y[y.i0,y.i1] = cast<f32>(t[y.i0,y.i1]) for y.i0 in 5, y.i1 in n
"""
TERM = "cast<f64>(a[t.i0,t.i1])"


def test_rows_of_a_length_that_the_call_knows_are_lanes_row_by_row() -> None:
    value = f"select(#(t.i1) > 0, t[t.i0,t.i1-1] + {TERM}, {TERM})"
    group = parse_group(ANY_LENGTH.format(value=value))
    trace, nest = default_schedule(group, default())
    names = [type(s).__name__ for s in trace]
    assert "ScanLanes" in names and "ComputeAt" in names
    judge = Judge(group, [{"n": n} for n in (1, 31, 32, 75)])
    judge.exact = False
    judge.nest(nest)
    judge.native(nest)


SAME_ROWS = """
group extremes
  in a: f32[{rows},{length}]
  out y0: f32[{rows},{length}]
  out y1: i64[{rows},{length}]
  local t: i32[{rows},{length}]
  y0[y0.i0,y0.i1] = {first} for y0.i0 in {rows}, y0.i1 in {length} in order
  t[t.i0,t.i1] = {second} for t.i0 in {rows}, t.i1 in {length} in order
  y1[y1.i0,y1.i1] = cast<i64>(t[y1.i0,y1.i1]) for y1.i0 in {rows}, y1.i1 in {length}
"""
OWN = "a[y0.i0,y0.i1]"
LARGEST = f"select(#(y0.i1) > 0, max(y0[y0.i0,y0.i1-1], {OWN}), {OWN})"
AT = "select(a[t.i0,t.i1] == y0[t.i0,t.i1], cast<i32>(#(t.i1)), 0:i32)"
LAST = f"select(#(t.i1) > 0, max(t[t.i0,t.i1-1], {AT}), {AT})"


@pytest.mark.parametrize("length", [150, 64, 20, 9])
def test_scans_of_the_same_rows_take_turns(length: int) -> None:
    group = parse_group(SAME_ROWS.format(rows=5, length=length, first=LARGEST, second=LAST))
    trace, nest = default_schedule(group, default())
    assert [type(s).__name__ for s in trace].count("ScanLanes") == 2
    loops = [around(nest, name)[:-1] for name in ("y0", "t", "y1")]
    assert loops[0] == loops[1] == loops[2]  # one loop has a piece of each stage
    judged(group, nest)


def test_maps_of_scans_of_very_short_rows_are_lanes() -> None:
    group = parse_group(SAME_ROWS.format(rows=5, length=6, first=LARGEST, second=LAST))
    trace, nest = default_schedule(group, default())
    assert "ScanLanes" not in [type(s).__name__ for s in trace]
    assert around(nest, "y1")[-1].kind == "lane"
    judged(group, nest)


def test_strict_sums_are_scanned_in_their_order() -> None:
    text = SCAN.format(rows=3, value=VALUE).replace("30", "150")
    group = replace(parse_group(text), precision="strict")
    trace, nest = default_schedule(group, default())
    assert "ScanLanes" not in [type(s).__name__ for s in trace]
    judged(group, nest)


def test_a_scan_along_another_axis_has_columns_as_lanes() -> None:
    value = "select(#(y.i0) > 0, y[y.i0-1,y.i1] + a[y.i0,y.i1], a[y.i0,y.i1])"
    group = parse_group(SCAN.format(rows=16, value=value))
    _, nest = default_schedule(group, default())
    assert all(p[-1].kind == "lane" for _, p in stores(nest))
    assert any(p[0].kind == "parallel" for _, p in stores(nest))
    judged(group, nest)


@pytest.mark.parametrize("threads", [2, 3])
def test_each_thread_has_columns_of_a_scan(threads: int) -> None:
    """Also where columns are no multiple: what is left over is no thread's share."""
    value = "select(#(y.i0) > 0, y[y.i0-1,y.i1] + a[y.i0,y.i1], a[y.i0,y.i1])"
    group = parse_group(SCAN.format(rows=16, value=value).replace("30", "257"))
    _, nest = default_schedule(group, replace(get("x86-64-v4"), cores=threads))
    shared = [p[0] for _, p in stores(nest) if p[0].kind == "parallel"]
    assert shared and all(x.extent == threads for x in shared)


def stores(nest: Nest) -> list[tuple[Store, Path]]:
    return [(x, p) for x, p in walk(nest.body) if isinstance(x, Store)]


WINDOW = """
group window
  in a: f32[9,33,33]
  out y: f32[9,16,16]
  local t: f32[9,16,16]
  t[t.c,t.h,t.w] max= a[t.c,2*t.h+t.r,2*t.w+t.s] for {} from -inf
  y[y.c,y.h,y.w] = t[y.c,y.h,y.w] for y.c in 9, y.h in 16, y.w in 16
""".format("t.c in 9, t.h in 16, t.w in 16, t.r in 3, t.s in 3")
SHORT_ROWS = """
group rows
  in a: f32[129,13]
  out y: f32[129]
  local t: f32[129]
  t[t.i] add= a[t.i,t.r] for t.i in 129, t.r in 13 from 0.0
  y[y.i] = t[y.i] for y.i in 129
"""


@pytest.mark.parametrize("text", [WINDOW, SHORT_ROWS], ids=["window", "rows"])
def test_results_of_short_reductions_are_lanes(text: str) -> None:
    """No reduction of a few numbers is computed one result at a time."""
    group = parse_group(text)
    _, nest = default_schedule(group, default())
    most = max((p for s, p in stores(nest) if s.stage == "t" and s.combine), key=runs)
    assert most[-1].kind == "lane" and nest.buffer("t").scope == "register"
    judged(group, nest)


def runs(path: Path) -> int:
    return prod(p.extent for p in path if isinstance(p.extent, int))


NARROW = """
group columns
  in a: f32[1024,37]
  out y: f32[1,37]
  local t: f32[1,37]
  t[t.u,t.i] add= a[t.r,t.i] for t.u in 1, t.i in 37, t.r in 1024 from 0.0
  y[y.u,y.i] = t[y.u,y.i] for y.u in 1, y.i in 37
"""


def test_sums_of_columns_that_fill_no_vectors_have_lanes_and_threads() -> None:
    group = parse_group(NARROW)
    _, nest = default_schedule(group, default())
    assert all(p[-1].kind == "lane" for s, p in stores(nest) if s.combine)
    assert any(p[0].kind == "parallel" for _, p in stores(nest))
    judged(group, nest)


def short(
    rows: int, length: int, width: int, *, squares: bool = False, most: bool = False
) -> Group:
    value = f"{CELL} * {CELL}" if squares else CELL
    combine, first = ("max", "-inf") if most else ("add", "0.0")
    sizes = {"rows": rows, "length": length, "width": width}
    return parse_group(SHORT_COLUMNS.format(value=value, combine=combine, first=first, **sizes))


@pytest.mark.parametrize(
    ("machine", "width"), [("arm64", 2), ("arm64", 17), ("x86-64-v3", 3), ("x86-64-v4", 3)]
)
@pytest.mark.parametrize("squares", [False, True])
def test_lanes_run_along_the_reduced_axis_and_a_short_one(
    machine: str, width: int, squares: bool
) -> None:
    group = short(20, 261, width, squares=squares)
    target = replace(get(machine), cores=2)
    _, nest = default_schedule(group, target)
    partial = {b.name for b in nest.buffers if b.name.endswith("p")}
    stores = [(s, p) for s, p in walk(nest.body) if isinstance(s, Store) and s.combine]
    paths = [p for s, p in stores if s.stage in partial]
    over, several, lanes = paths[0][-3:]
    assert (over.kind, several.kind, lanes.kind) == ("serial", "unroll", "lane")
    assert isinstance(lanes.extent, int) and lanes.extent % (target.vector_bits // 32) == 0
    judged(group, nest)


@pytest.mark.parametrize(("length", "most"), crossed([8192, 8195], [False, True], 2))
def test_threads_share_a_long_reduction_of_few_rows(length: int, most: bool) -> None:
    group = short(2, length, 3 if not most else 17, most=most)
    _, nest = default_schedule(group, replace(get("arm64"), cores=8))
    shared = [x for x, _ in walk(nest.body) if isinstance(x, Loop) and x.kind == "parallel"]
    assert isinstance(shared[0].extent, int) and shared[0].extent >= 8
    judged(group, nest)


@pytest.mark.parametrize("length", [4096, 4099])
def test_two_threads_share_the_sums_of_one_vector_of_columns(length: int) -> None:
    """As of 16 channels of an image: otherwise one thread would have all of the work."""
    group = short(1, length, 16)
    for cores in (1, 2):
        _, nest = default_schedule(group, replace(get("x86-64-v4"), cores=cores))
        shared = [x for x, _ in walk(nest.body) if isinstance(x, Loop) and x.kind == "parallel"]
        pieces = max((x.extent for x in shared if isinstance(x.extent, int)), default=1)
        assert (pieces > 1) == (cores > 1)
        judged(group, nest)


# The gradient of words: most of a result is what it is before anything is added.
UPDATED = """
group updated
  in a: f32[40,24]
  in b: i64[40]
  out y: f32[{words},24]
  y[${{max(min(b[y.i0], 9), 0)}},y.i1] add= a[y.i0,y.i1] for y.i0 in 40, y.i1 in 24 \
in order from 0.0
"""


@pytest.mark.parametrize("words", [10, 4000])
def test_threads_share_the_first_values_of_what_data_updates(words: int) -> None:
    group = parse_group(UPDATED.format(words=words))
    _, nest = default_schedule(group, default())
    first = [p for s, p in stores(nest) if s.combine is None]
    assert all(p[0].kind == "parallel" and p[-1].kind == "lane" for p in first)
    updates = [p for s, p in stores(nest) if s.combine is not None]
    assert all(q.kind != "parallel" for p in updates for q in p)
    judged(group, nest)


def test_each_of_many_sums_is_scheduled_without_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the time of each step would grow with their number."""
    seen: list[int] = []
    split = Split.apply

    def counted(self: Split, n: Nest) -> Nest:
        if self.loop.startswith("t"):
            seen.append(len(n.body))
        return split(self, n)

    group = parse_group(SUMS_IN_TURN)
    monkeypatch.setattr(Split, "apply", counted)
    trace, nest = default_schedule(group, get("arm64"))
    assert len(seen) >= 6 and max(seen) <= 3
    assert apply(start(group), trace) == nest  # as if each step had seen all of it


def test_a_long_sum_of_repeated_elements_is_cut_along_every_loop() -> None:
    group = parse_group("""
group repeated
  in x: f32[2,64,2048]
  out y: f32[]
  local t: f32[]
  t[] add= x[t.r0,t.r1,(t.r2//2)] for t.r0 in 2, t.r1 in 64, t.r2 in 4096 from 0.0
  y[] = t[] for once
""")
    trace, _ = default_schedule(group, get("x86-64-v4"))
    cuts = [step for step in trace if isinstance(step, RFactor)]
    assert len(cuts) >= 3  # one along each loop: no chain of additions is long


POOL = """
group pool where b: 0.., h: 0.., w: 0..
  in x: f32[b,h,w,32]
  out y: f32[b,(h+1)//2,(w+1)//2,32]
  local t: f32[b,(h+1)//2,(w+1)//2,32]
  t[t.i0,t.i1,t.i2,t.i3] max= select(#(2*t.i1+t.r0-1) >= 0 & #(2*t.i1+t.r0-1) < #(h) \
& #(2*t.i2+t.r1-1) >= 0 & #(2*t.i2+t.r1-1) < #(w), x[t.i0,2*t.i1+t.r0-1,2*t.i2+t.r1-1,t.i3], -inf) \
for t.i0 in b, t.i1 in (h+1)//2, t.i2 in (w+1)//2, t.i3 in 32, t.r0 in 3, t.r1 in 3 from -inf
  y[y.i0,y.i1,y.i2,y.i3] = t[y.i0,y.i1,y.i2,y.i3] \
for y.i0 in b, y.i1 in (h+1)//2, y.i2 in (w+1)//2, y.i3 in 32
"""


def test_pixels_of_images_of_any_size() -> None:
    """Threads share rows of all images; no pixel divides by the width. Images may be empty."""
    group = parse_group(POOL)
    nest = default_schedule(group, get("x86-64-v4"))[1]
    (top,) = nest.body
    assert isinstance(top, Loop) and top.kind == "parallel"
    inside = [x for x, _ in walk(top.body) if isinstance(x, Loop) and not isinstance(x.extent, int)]
    assert len(inside) == 1
    sizes = [{"b": 2, "h": 5, "w": 4}, {"b": 1, "h": 1, "w": 7}, {"b": 1, "h": 0, "w": 3}]
    judge = Judge(group, [*sizes, {"b": 3, "h": 4, "w": 0}])
    judge.nest(nest)
    judge.native(nest)


WINDOWS = """
group windows where h: 2.., w: 2..
  in x: f32[2,2*h,2*w]
  out y: f32[2,h,w]
  local t: f32[2,h,w]
  t[t.i0,t.i1,t.i2] add= x[t.i0,2*t.i1+t.r0,2*t.i2+t.r1] for {sums} from 0.0
  y[y.i0,y.i1,y.i2] = t[y.i0,y.i1,y.i2] * 0.25 for y.i0 in 2, y.i1 in h, y.i2 in w
"""


def test_windows_of_an_image_of_any_size_are_lanes() -> None:
    # Pixel by pixel a pooling took twenty times as long as one for a known size.
    sums = "t.i0 in 2, t.i1 in h, t.i2 in w, t.r0 in 2, t.r1 in 2"
    group = parse_group(WINDOWS.format(sums=sums))
    _, nest = default_schedule(group, get("x86-64-v4"))
    stores = [p for x, p in walk(nest.body) if isinstance(x, Store)]
    assert stores and all(p[-1].kind == "lane" for p in stores)
    judge = Judge(group, [{"h": 5, "w": 3}, {"h": 2, "w": 35}])
    judge.exact = False
    judge.nest(nest)


RAGGED = """
group ragged
  in x: f32[9,{n}]
  out y: i32[9,{n}]
  local t: i32[9,{n}]
  t[t.i0,t.i1] add= cast<i32>(x[t.i0,t.r0] < x[t.i0,t.i1]) for {sums}
  y[y.i0,y.i1] = t[y.i0,y.i1] for y.i0 in 9, y.i1 in {n}
"""


@pytest.mark.parametrize("n", [48, 49, 50, 56])
def test_a_short_rest_of_columns_leaves_the_others_lanes(n: int) -> None:
    group = parse_group(RAGGED.format(n=n, sums=f"t.i0 in 9, t.i1 in {n}, t.r0 in {n} from 0"))
    _, nest = default_schedule(group, get("x86-64-v4"))
    inside = [
        any(p.kind == "lane" for p in path)
        for s, path in walk(nest.body)
        if isinstance(s, Store) and s.stage == "t" and s.combine is not None
    ]
    assert inside and inside[0], nest


ACROSS = """
group across
  in x: f32[9,64]
  in z: f32[64,9]
  out y: f32[9]
  local t: f32[9]
  t[t.i0] max= x[t.i0,t.r0] + z[t.r0,t.i0] for t.i0 in 9, t.r0 in 64 from -inf
  y[y.i0] = t[y.i0] for y.i0 in 9
"""


def test_lanes_gather_what_does_not_lie_along_a_row() -> None:
    _, nest = default_schedule(parse_group(ACROSS), get("x86-64-v4"))
    sums = [(s, path) for s, path in walk(nest.body) if isinstance(s, Store) and s.combine]
    reads = [path[-1].kind for s, path in sums if any(v.source == "z" for v in loads(s.value))]
    assert reads and set(reads) == {"lane"}, nest
    judged(parse_group(ACROSS), default_schedule(parse_group(ACROSS), default())[1])


FEW_COLUMNS = """
group short
  in x: f32[9,{n},{width}]
  out y: f32[9,{width}]
  local t: f32[9,{width}]
  t[t.i0,t.i1] max= x[t.i0,t.r0,t.i1] for {over} from -inf
  y[y.i0,y.i1] = t[y.i0,y.i1] for y.i0 in 9, y.i1 in {width}
"""


@pytest.mark.parametrize(("n", "width"), [(40, 3), (50, 2), (33, 1)])
def test_sums_of_some_short_rows_are_vectors(n: int, width: int) -> None:
    """Along the reduced axis and the short one at once, however few partial results there are."""
    over = f"t.i0 in 9, t.i1 in {width}, t.r0 in {n}"
    group = parse_group(FEW_COLUMNS.format(n=n, width=width, over=over))
    _, nest = default_schedule(group, get("x86-64-v4"))
    reads = [
        (s, path)
        for s, path in walk(nest.body)
        if isinstance(s, Store) and any(v.source == "x" for v in loads(s.value))
    ]
    assert reads and any(p.kind == "lane" for p in reads[0][1]), nest
    judged(group, default_schedule(group, default())[1])


RANKS = """
group ranks where n: 0..
  in x: i64[3,n]
  out y: i64[3,n]
  local t: i64[3,n]
  t[t.i0,t.i1] add= {value} for t.i0 in 3, t.i1 in n, t.r0 in n from 0
  y[y.i0,y.i1] = t[y.i0,y.i1] for y.i0 in 3, y.i1 in n
"""


def test_what_is_left_of_columns_of_any_number_is_a_vector_in_their_sums_too() -> None:
    group = parse_group(RANKS.format(value="cast<i64>(x[t.i0,t.r0] < x[t.i0,t.i1])"))
    _, nest = default_schedule(group, default())
    sums = [p for s, p in walk(nest.body) if isinstance(s, Store) and s.stage == "t"]
    assert len(sums) > 2 and all(p[-1].kind == "lane" for p in sums)
    judge = Judge(group, [{"n": k} for k in (0, 1, 5, 16, 37, 64)])
    judge.nest(nest)
    judge.native(nest)


ADDED_ROWS = """
group added
  in at: i64[12]
  in x: f32[12,{width}]
  out y: f32[5,{width}]
  y[${{{row}}},y.i1] add= x[y.i0,y.i1] for y.i0 in 12, y.i1 in {width} in order from 0.0
"""
ROW = "cast<i64>(min(cast<u32>(at[y.i0]), 4:u32))"


@pytest.mark.parametrize(("width", "out"), [(64, True), (40, True), (2048, False)])
def test_few_vectors_of_a_row_that_data_place_are_written_out(width: int, out: bool) -> None:
    group = parse_group(ADDED_ROWS.format(width=width, row=ROW))
    trace, nest = default_schedule(group, default())
    assert ("Unroll" in [type(s).__name__ for s in trace]) == out
    judged(group, nest)
