"""What `tw.lower` adds to a schedule: first values of reductions follow their update."""

import contextlib
import random

import numpy as np
import pytest

import tilewright as tw
from tests.generators import checked
from tests.kernel.fuzz import Judge
from tests.kernel.random_groups import sample
from tests.kernel.random_steps import random_step
from tests.seeds import drawn
from tilewright import te
from tilewright.kernel.nest import Loop, Store, start, walk
from tilewright.kernel.simt import run
from tilewright.kernel.step import apply, parse_trace, print_trace
from tilewright.kernel.text import nest_text, parse_nest
from tilewright.lang.te.finish import finished as finish


def matmul(m: object = 70, n: object = 50, k: object = 40):
    r = te.reduce_axis((0, k), "k")
    a, b = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")
    return a, b, c, r, te.create_schedule(c.op)


def finished(s: te.Schedule, args: list) -> list[str]:
    """The steps that were added; the whole trace prints, parses back and replays."""
    before = s.trace, s.nest
    low = tw.lower(s, args)
    assert (s.trace, s.nest) == before
    again = parse_trace(print_trace(low.trace))
    assert again == low.trace and apply(start(low.group), again) == low.nest
    assert parse_nest(nest_text(low.nest)) == low.nest
    return [str(x) for x in low.trace if x not in s.trace]


def check(s: te.Schedule, args: list, m: int = 70, n: int = 50, k: int = 40) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k), "f4"), rng.standard_normal((k, n), "f4")
    out = np.full((m, n), np.nan, "f4")
    tw.build(s, args)(a, b, out)
    np.testing.assert_allclose(out, a.astype("f8") @ b.astype("f8"), rtol=1e-4, atol=1e-4)


def test_naive_loops_start_each_sum_where_it_is() -> None:
    a, b, c, _, s = matmul()
    assert finished(s, [a, b, c]) == ["InitAt(stage='C', at='C.i1')"]
    check(s, [a, b, c])


def test_a_block_is_started_with_lanes_and_threads_of_the_update() -> None:
    a, b, c, k, s = matmul()
    xo, yo, xi, yi = s[c].tile(c.op.axis[0], c.op.axis[1], 32, 16)
    s[c].reorder(xo, yo, k, xi, yi)
    s[c].vectorize(yi)
    s[c].parallel(xo)
    added = finished(s, [a, b, c])
    assert added[0] == "InitAt(stage='C', at='C.i1.0')" and "Vectorize" in added[-1]
    body = tw.lower(s, [a, b, c]).nest.body
    assert [x.kind for x in body if isinstance(x, Loop)] == ["parallel"]
    check(s, [a, b, c])


@pytest.mark.parametrize("sizes", [(64, 48, 40), (70, 50, 41)], ids=str)
def test_lanes_around_the_sum(sizes: tuple[int, int, int]) -> None:
    """The sum innermost, as the schedule is written for TVM: lanes go into its loop."""
    m, n, k = sizes
    a, b, c, _, s = matmul(m, n, k)
    io, jo, ii, ji = s[c].tile(c.op.axis[0], c.op.axis[1], 8, 16)
    s[c].reorder(io, jo, ii, ji)
    s[c].parallel(io)
    s[c].vectorize(ji)
    added = finished(s, [a, b, c])
    assert added[0] == "InitAt(stage='C', at='C.i0.1')"
    assert added[1].startswith("Vectorize(loop='C.init.i1'") and len(added) == 2
    low = tw.lower(s, [a, b, c])
    paths = [[q.kind for q in p] for x, p in walk(low.nest.body) if isinstance(x, Store)]
    outer = ["parallel", "serial", "serial"]
    assert paths == [[*outer, "lane"], [*outer, "serial", "lane"]]
    check(s, [a, b, c], *sizes)


def test_wide_first_values_are_split_into_lanes() -> None:
    a, b, c, k, s = matmul()
    _, j = c.op.axis
    jo, ji = s[c].split(j, factor=8)
    s[c].reorder(c.op.axis[0], k, jo, ji)
    s[c].vectorize(ji)
    added = finished(s, [a, b, c])
    assert added[:2] == ["InitAt(stage='C', at='C.i0')", "Split(loop='C.init.i1', factor=8)"]
    assert added[2].startswith("Vectorize(loop='C.init.i1.1'")
    check(s, [a, b, c])


def test_a_sum_outermost_keeps_its_first_values_before_it() -> None:
    a, b, c, k, s = matmul()
    s[c].reorder(k, *c.op.axis)
    assert finished(s, [a, b, c]) == []
    check(s, [a, b, c])


def test_before_a_tail_is_peeled() -> None:
    a, b, c, k, s = matmul()
    xo, yo, xi, yi = s[c].tile(c.op.axis[0], c.op.axis[1], 8, 16)
    s[c].reorder(xo, yo, k, xi, yi)
    s[c].peel(yo)
    s[c].peel(xo)
    s[c].vectorize(yi)
    low = tw.lower(s, [a, b, c])
    names = [type(x).__name__ for x in low.trace]
    assert names.index("InitAt") < names.index("Peel")
    assert finished(s, [a, b, c])
    check(s, [a, b, c])


def test_a_register_tile_is_started_in_registers() -> None:
    a, b, c, _, s = matmul(64, 48, 40)
    tile = s.cache_write(c, "register")
    _, yo, _, _ = s[c].tile(c.op.axis[0], c.op.axis[1], 4, 8)
    s[tile].compute_at(s[c], yo)
    (k,) = s[tile].op.reduce_axis
    i, j = s[tile].op.axis
    s[tile].reorder(k, i, j)
    _, ji = s[tile].split(j, factor=4)
    s[tile].unroll(i)
    s[tile].vectorize(ji)
    added = finished(s, [a, b, c])
    assert added == [
        "Split(loop='C_register.init.i1', factor=4)",
        "Unroll(loop='C_register.init.i0')",
        "Unroll(loop='C_register.init.i1.0')",
        "Vectorize(loop='C_register.init.i1.1')",
    ]
    check(s, [a, b, c], 64, 48, 40)


def test_symbolic_extents_and_no_axes() -> None:
    a, b, c, k, s = matmul(te.var("m"), te.var("n"), te.var("k"))
    jo, ji = s[c].split(c.op.axis[1], factor=8)
    s[c].reorder(c.op.axis[0], jo, k, ji)
    s[c].vectorize(ji)
    assert finished(s, [a, b, c])[0] == "InitAt(stage='C', at='C.i1.0')"
    for m, n, depth in ((13, 7, 5), (1, 16, 3), (4, 9, 0)):
        check(s, [a, b, c], m, n, depth)
    r = te.reduce_axis((0, 9))
    x = te.placeholder((9,), name="x")
    total = te.compute((), lambda: te.sum(x[r], axis=r), name="total")
    t = te.create_schedule(total.op)
    assert finished(t, [x, total]) == []
    out = np.full((), np.nan, "f4")
    tw.build(t, [x, total])(np.ones(9, "f4"), out)
    assert out == 9


def test_a_tuple_reduction_too() -> None:
    a = te.placeholder((6, 37), name="A")
    k = te.reduce_axis((0, 37), "k")
    place, value = te.compute((6,), lambda i: te.argmax(a[i, k], axis=k), name="T")
    s = te.create_schedule(place.op)
    s[place].parallel(place.op.axis[0])
    assert finished(s, [a, place, value]) == [
        "InitAt(stage='T', at='T.i0')",
        "ReverseComputeAt(stage='T_v0', at='T.i0')",
        "ReverseComputeAt(stage='T_v1', at='T.i0')",
    ]
    nest = tw.lower(s, [a, place, value]).nest
    assert len(nest.body) == 1 and nest.buffer("T").shape == (1,)
    x = np.random.default_rng(0).standard_normal((6, 37), "f4")
    at, top = np.empty(6, "i8"), np.empty(6, "f4")
    tw.build(s, [a, place, value])(x, at, top)
    np.testing.assert_array_equal(at, x.argmax(1))
    np.testing.assert_array_equal(top, x.max(1))


@pytest.mark.parametrize("ragged", [False, True])
def test_threads_start_their_own_sums(ragged: bool) -> None:
    n = 20 if ragged else 16
    a, b, c, k, s = matmul(n, n, n)
    xo, yo, xi, yi = s[c].tile(c.op.axis[0], c.op.axis[1], 8, 8)
    s[c].reorder(xo, yo, xi, yi, k)
    for axis, tag in ((xo, "blockIdx.y"), (yo, "blockIdx.x"), (xi, "threadIdx.y")):
        s[c].bind(axis, te.thread_axis(tag))
    s[c].bind(yi, te.thread_axis("threadIdx.x"))
    s.synchronise()
    assert "InitAt(stage='C', at='C.i1.1')" in print_trace(s.trace)
    assert tw.lower(s, [a, b, c]).trace == s.trace
    stores = [p for x, p in walk(s.nest.body) if isinstance(x, Store)]
    assert len(stores) == 2 and all(len(p) >= 4 for p in stores)
    x, y = (np.random.default_rng(q).integers(-3, 4, (n, n)).astype("f4") for q in (0, 1))
    np.testing.assert_array_equal(run(s.nest, {"A": x, "B": y})["C"], x @ y)


def check_seed(seed: int) -> None:
    s, rng = sample(seed), random.Random(seed)
    nest, trace = start(s.group), []
    while len(trace) < 6 and rng.random() < 0.95:
        step = random_step(nest, rng)
        if step is None:
            break
        with contextlib.suppress(tw.TilewrightError):
            nest = step.apply(nest)
            trace.append(step)
    full, last = finish(s.group, trace, nest)
    assert parse_trace(print_trace(full)) == full and apply(start(s.group), full) == last
    Judge(s.group, list(s.dims), seed).nest(last)


@pytest.mark.parametrize("seed", drawn(range(24), quick=8))
def test_random_schedules_are_finished_without_changing_them(seed: int) -> None:
    check_seed(seed)


GENERATOR = checked("finish", check_seed)
