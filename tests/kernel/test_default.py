"""Default schedules: every prefix of the trace is a runnable nest with the same result."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kernel.examples import EXAMPLES
from tests.kernel.fuzz import Judge, plain_outputs
from tests.kernel.random_groups import sample
from tests.seeds import crossed, drawn, every_run
from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.target import Target
from tilewright.kernel.defaults.choices import Choices
from tilewright.kernel.group import Group
from tilewright.kernel.nest import Loop, start
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import apply, parse_trace, print_trace
from tilewright.kernel.steps.prefetch import Prefetch
from tilewright.kernel.text import parse_group
from tilewright.targets import default, get

# A narrow and a wide machine take different traces.
TARGETS = ("host", "x86-64-v4")


def check(judge: Judge, target: Target) -> int:
    trace, final = default_schedule(judge.group, target)
    n = start(judge.group)
    judge.nest(n)
    for k, step in enumerate(trace):
        n = step.apply(n)
        judge.nest(n, k % len(judge.dims))
    assert n == final
    for k in range(len(judge.dims)):
        judge.nest(n, k)
    if target is default():
        judge.native(n)
    return len(trace)


@pytest.mark.parametrize(("name", "machine"), crossed(EXAMPLES, TARGETS, 2))
def test_every_prefix_computes_the_same(name: str, machine: str) -> None:
    example = EXAMPLES[name]
    judge = Judge(example.group, example.dims)
    judge.exact = False
    check(judge, get(machine) if machine != "host" else default())


@every_run(0)
@pytest.mark.parametrize("first", drawn(range(0, 80, 20), quick=2))
def test_random_groups(first: int) -> None:
    """What fusion would never make runs too: prefixes in the interpreter, the end natively.

    As in the groups of clusters, no output is itself a reduction.
    """
    steps = 0
    for seed in range(first, first + 20):
        s = sample(seed)
        if not plain_outputs(s.group):
            continue
        try:
            steps += check(Judge(s.group, s.dims, seed), default())
        except Exception as why:
            raise AssertionError(f"seed {seed}: {why}") from why
    assert steps > 25, "default schedules of random groups do something"


SETTLED = """
group settled
  in a: f32[5,3]
  in b: f32[3,16]
  out y: f32[6,17]
  local t: f32[5,16]
  local u: f32[12]
  t[t.i0,t.i1] add= a[t.i0,t.r0] * b[t.r0,t.i1] for t.i0 in 5, t.i1 in 16, t.r0 in 3 from 0.0
  u[u.i0] = select(#(u.i0) < 3, t[3,u.i0], 2.0) for u.i0 in 12
  y[y.i0,y.i1] = u[y.i0+3] for y.i0 in 6, y.i1 in 17
"""


def test_a_stage_that_a_constant_condition_hides_is_not_computed() -> None:
    group = parse_group(SETTLED)
    _, nest = default_schedule(group, default())
    assert all(b.name != "t" for b in nest.buffers)
    Judge(group, [{}]).native(nest)


ONE_TILE = """
group small where n: 1..7, k: 1..
  in a: f32[k,3]
  in b: f32[k,n]
  out y: f32[3,n]
  local t: f32[3,n]
  t[t.i0,t.i1] add= a[t.r0,t.i0] * b[t.r0,t.i1] for t.i0 in 3, t.i1 in n, t.r0 in k from 0.0
  y[y.i0,y.i1] = t[y.i0,y.i1] for y.i0 in 3, y.i1 in n
"""


@pytest.mark.parametrize("machine", TARGETS)
def test_a_product_whose_unknown_columns_fit_one_tile(machine: str) -> None:
    """No loop over tiles is left for threads to share."""
    judge = Judge(parse_group(ONE_TILE), [{"n": 1, "k": 3}, {"n": 7, "k": 20}])
    judge.exact = False
    check(judge, get(machine) if machine != "host" else default())


DEEP = """
group deep
  in x: f32[64,1024]
  in w: f32[2,1024,48] laid out by k, j -> j//48, k, j%48
  out y: f32[64,96]
  local t: f32[64,96]
  t[t.i0,t.i1] add= x[t.i0,t.r0] * w[t.i1//48,t.r0,t.i1%48] for {loops} from 0.0
  y[y.i0,y.i1] = max(t[y.i0,y.i1], 0.0) for y.i0 in 64, y.i1 in 96
"""
DEEP = DEEP.format(loops="t.i0 in 64, t.i1 in 96, t.r0 in 1024")


def test_all_columns_pass_by_a_part_of_a_long_sum() -> None:
    """Where a panel does not fit the second cache, the sums of a block of rows do; where it fits,
    a tile adds up all of it."""
    judge = Judge(parse_group(DEEP), [{}])
    judge.exact = False
    small, large = (replace(get("x86-64-v4"), l2=n << 10, cores=2) for n in (256, 2048))
    trace, nest = default_schedule(judge.group, small)
    assert "ComputeAt(stage='t', at='y.i0.0')" in print_trace(trace)
    assert "Reorder(order=('t.i1.0', 't.i0.0', 't.i0.1', 't.i1.1'))" in print_trace(trace)
    judge.nest(nest)
    trace, _ = default_schedule(judge.group, large)
    assert "'t.i1.0', 't.i0.0'" not in print_trace(trace)


IMAGE = """
group image
  in x: f32[1,9,{size},{size}]
  in w: f32[2,9,1,1,12] laid out by j, c, y, x -> j//12, c, y, x, j%12
  out y: f32[1,24,24,24]
  local t: f32[1,24,24,24]
  t[t.i0,t.i1,t.i2,t.i3] add= {pixel} * w[t.i1//12,t.r0,t.r1,t.r2,t.i1%12] for {loops} from 0.0
  y[y.i0,y.i1,y.i2,y.i3] = max(t[y.i0,y.i1,y.i2,y.i3], 0.0) for {over}
"""
LOOPS = "t.i0 in 1, t.i1 in 24, t.i2 in 24, t.i3 in 24, t.r0 in 9, t.r1 in 1, t.r2 in 1"
OVER = "y.i0 in 1, y.i1 in 24, y.i2 in 24, y.i3 in 24"


@every_run(0)
@pytest.mark.parametrize("stride", [1, 2])
def test_pixels_in_far_steps_are_copied_to_be_adjacent(stride: int) -> None:
    by = "" if stride == 1 else f"{stride}*"
    pixel = f"x[t.i0,t.r0,{by}t.i2+t.r1,{by}t.i3+t.r2]"
    size = 24 * stride
    group = parse_group(IMAGE.format(size=size, pixel=pixel, loops=LOOPS, over=OVER))
    judge = Judge(group, [{}])
    judge.exact = False
    for name, by_rows in (("arm64", {"Tensorize"}), ("x86-64-v4", set[str]())):
        target = get(name)
        trace, nest = default_schedule(group, target)
        assert {"Materialise", "Parallel", *by_rows} <= {type(s).__name__ for s in trace}
        judge.nest(nest)
        if default().arch == target.arch:
            judge.native(nest)


NARROW = """
group narrow
  in x: f32[1,20,20,16]
  in w: f32[2,16,12] laid out by k, j -> j//12, k, j%12
  out y: f32[1,20,20,24]
  local t: f32[1,20,20,24]
  t[t.i0,t.i1,t.i2,t.i3] add= x[t.i0,t.i1,t.i2,t.r0] * w[t.i3//12,t.r0,t.i3%12] for {loops} from 0.0
  y[y.i0,y.i1,y.i2,y.i3] = max(t[y.i0,y.i1,y.i2,y.i3], 0.0) for {over}
"""


def narrow() -> Group:
    loops = "t.i0 in 1, t.i1 in 20, t.i2 in 20, t.i3 in 24, t.r0 in 16"
    over = "y.i0 in 1, y.i1 in 20, y.i2 in 20, y.i3 in 24"
    return parse_group(NARROW.format(loops=loops, over=over))


def test_tiles_of_one_image_are_shared_among_threads() -> None:
    """Few columns, so that tiles of rows are outside, and the last of them is ragged."""
    group = narrow()
    _, nest = default_schedule(group, get("arm64"))
    (over,) = [s for s in nest.body if isinstance(s, Loop) and s.kind == "parallel"]
    assert D.bounds(over.extent)[0] > 32
    Judge(group, [{}]).nest(nest)


PLACED = """
group placed
  in i: i64[5]
  in x: f32[3,6,20]
  in s: f32[5,6,20]
  out y: f32[3,6,20]
  y[${{max(min(i[y.i0], 2), 0)}},y.i1,y.i2] add= s[y.i0,y.i1,y.i2] {loops} {first}
"""


def test_rows_of_matrices_that_data_place_are_shared_among_threads() -> None:
    """Matrices are added in order, and a thread has its own rows of all of them."""
    loops = "for y.i0 in 5, y.i1 in 6, y.i2 in 20 in order"
    first = "from x[y.init.i0,y.init.i1,y.init.i2]"
    group = parse_group(PLACED.format(loops=loops, first=first))
    _, nest = default_schedule(group, get("x86-64-v4"))
    shared = [s for s in nest.body if isinstance(s, Loop) and s.kind == "parallel"]
    first, over = shared
    assert first.name.startswith("y.init") and over.extent == 6
    check(Judge(group, [{}]), default())


CHOICES = [
    Choices(rows=4),
    Choices(rows=7, outer="rows"),
    Choices(outer="columns", block=80),
    Choices(outer="columns", rows=8, block=80),
    Choices(block=33),  # divides nothing: as if it had not been said
    Choices(chain=8),
    Choices(lanes=4, side=2, vectors=2, copy=False),
]


@every_run(1, 2, 4, 5, 6)
@pytest.mark.parametrize(
    ("choices", "of"), crossed(CHOICES, ["narrow", "matmul", "packed-linear"], 3)
)
def test_other_choices_compute_the_same(choices: Choices, of: str) -> None:
    group = narrow() if of == "narrow" else EXAMPLES[of].group
    for name in TARGETS:
        target = default() if name == "host" else get(name)
        trace, nest = default_schedule(group, target, choices)
        assert apply(start(group), parse_trace(print_trace(trace))) == nest
        judge = Judge(group, [{}])
        judge.exact = False
        judge.nest(nest)
        if name == "host":
            judge.native(nest)


def test_choices_say_what_they_are_and_what_they_cannot_be() -> None:
    assert str(Choices()) == "rules"
    assert str(Choices(rows=8, outer="rows")) == "rows 8, outer rows"
    with pytest.raises(Invalid, match="outer is 'inside', which is none of the loops"):
        Choices(outer="inside")
    with pytest.raises(Invalid, match="rows is 0, which should be positive"):
        Choices(rows=0)


def test_choices_decide() -> None:
    group, target = narrow(), get("arm64")
    seen = {print_trace(default_schedule(group, target, c)[0]) for c in (Choices(), *CHOICES[:4])}
    assert len(seen) == 5
    assert default_schedule(group, target, CHOICES[4]) == default_schedule(group, target)


# The gradient of a convolution's weights: images with channels last, both operands with lanes.
WEIGHTS = """
group weights
  in d: f32[1,2,20,20,16] laid out by n, c, y, x -> c//16, n, y, x, c%16
  in x: f32[2,22,22,32]
  out y: f32[16,32,3,3]
  local t: f32[16,32,3,3]
  t[t.i0,t.i1,t.i2,t.i3] add= {product} for {loops}, t.r0 in 2, t.r1 in 20, t.r2 in 20 from 0.0
  y[y.i0,y.i1,y.i2,y.i3] = t[y.i0,y.i1,y.i2,y.i3] for {over}
"""


def test_of_two_operands_with_lanes_the_one_that_was_laid_out_for_them_has_them() -> None:
    """Rows of a tile are then channels and taps, where three taps would leave registers idle."""
    product = "d[0,t.r0,t.r1,t.r2,t.i0] * x[t.r0,t.i2+t.r1,t.i3+t.r2,t.i1]"
    loops, over = (
        ", ".join(f"{s}.i{k} in {n}" for k, n in enumerate((16, 32, 3, 3))) for s in "ty"
    )
    group = parse_group(WEIGHTS.format(product=product, loops=loops, over=over))
    target = replace(get("x86-64-v4"), l2=16 << 10)
    trace, nest = default_schedule(group, target)
    text = print_trace(trace)
    assert "FuseAxes(stage='t', axis=1, count=3)" in text
    assert "Vectorize(loop='t.i0" in text or "Vectorize(loop='tb.i0" in text
    judge = Judge(group, [{}])
    judge.exact = False
    judge.nest(nest)


RESULTS = """
group results
  in x: f32[512,64]
  in w: f32[16,64,48] laid out by k, j -> j//48, k, j%48
  out y: f32[512,768]
  out z: f32[512,768]
  local t: f32[512,768]
  t[t.i0,t.i1] add= x[t.i0,t.r0] * w[t.i1//48,t.r0,t.i1%48] for {loops}, t.r0 in 64 from 0.0
  y[y.i0,y.i1] = t[y.i0,y.i1] * 2.0 for y.i0 in 512, y.i1 in 768
  z[z.i0,z.i1] = y[z.i0,z.i1] + 1.0 for z.i0 in 512, z.i1 in 768
"""


def test_lines_of_results_arrive_early_where_a_tile_writes_many() -> None:
    """A store waits for its line, and a processor goes on with so many waiting only."""
    target = replace(get("x86-64-v4"), prefetch=1, l2=1 << 20)
    two = RESULTS.format(loops="t.i0 in 512, t.i1 in 768")
    one = two.replace("  out y", "  local y")
    small = two.replace("768", "96").replace("[16,", "[2,")  # the second cache has them

    def asked(text: str) -> set[str]:
        trace, _ = default_schedule(parse_group(text), target)
        return {x.buffer for x in trace if isinstance(x, Prefetch)} & {"y", "z"}

    assert asked(two) == {"y", "z"}
    assert not asked(one) and not asked(small)


EDGES = """
group kernel
  in a0: f32[6,48]
  out y0: f32[6,{size}]
  y0[y0.r,y0.k] = select(#(y0.k-2) >= 0 & #(y0.k-2) < 48, a0[y0.r,y0.k-2], 0.0) for {loops}
"""


def test_vectors_of_rows_with_edges_are_written_out() -> None:
    """What is an edge is known for each then. Of long rows there are too many."""
    target = get("x86-64-v4")
    for size, written in ((52, True), (400, False)):
        judge = Judge(
            parse_group(EDGES.format(size=size, loops=f"y0.r in 6, y0.k in {size}")), [{}]
        )
        trace, _ = default_schedule(judge.group, target)
        assert ("Unroll(loop='y0.k.0')" in print_trace(trace)) == written
        judge.nest(default_schedule(judge.group, default())[1])
