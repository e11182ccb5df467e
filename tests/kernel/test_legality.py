"""Refusals: exact where extents are small constants, and explained.

The long run: python -m tests.kernel.legality --count 1000
"""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from tests.kernel.legality import Tally, forced, judge, small_case, survey
from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.kernel.dependence import Carried, carried, reordered
from tilewright.kernel.interpret import Machine, execute, run
from tilewright.kernel.nest import Loop, Nest, find, start
from tilewright.kernel.step import apply, parse_trace
from tilewright.kernel.steps import parallel
from tilewright.kernel.steps.parallel import Parallel
from tilewright.kernel.text import nest_text, parse_group, parse_nest


@pytest.mark.parametrize("illegal", [5, pytest.param(25, marks=pytest.mark.slow)])
def test_brute_force(illegal: int) -> None:
    tally = survey(first=100_000, illegal=illegal)
    assert not tally.illegal_accepted, "\n".join(tally.illegal_accepted)
    assert not tally.without_reason, "\n".join(tally.without_reason)
    # At most 5 % in the long run; a short one may be unlucky.
    refused, legal = tally.legal_refused.total(), tally.legal.total()
    assert legal > illegal and refused <= 0.1 * legal, tally.table()


def test_the_judge_sees_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Parallel that never asks is found out."""
    monkeypatch.setattr(parallel, "carried", lambda n, x: [])
    tally = Tally()
    for seed in range(12):
        case = small_case(seed)
        for s in case.nest.body:
            if isinstance(s, Loop):
                judge(case, Parallel(s.name), tally, f"seed {seed}")
        if tally.illegal_accepted:
            return
    raise AssertionError("12 cases without a finding: the judge sees nothing")


def nest(body: str, buffers: str = "in x: f32[40]\n  out y: f32[40]") -> Nest:
    return parse_nest(f"nest k\n  {buffers}\n{body}")


# what the iterations of i do, and what the loop carries
ONE_LOOP = [
    ("y: y[i] = x[i]", set()),
    ("y: y[2*i] = y[2*i+1]", set()),  # even cells, odd cells
    ("y: y[i] = y[i+9]", set()),  # nine iterations never reach
    ("y: y[i] = y[i+8]", {"order"}),
    ("y: y[-i+30] = y[i]", set()),
    ("y: y[-i+10] = y[i]", {"order"}),
    ("y: y[3*i] = y[(i//3)+30]", set()),
    ("y: y[((i+1)%9)] = x[i]", set()),  # a rotation
    ("y: y[((2*i)%9)] = x[i]", set()),  # 2 and 9 have no common divisor
    ("y: y[((3*i)%9)] = x[i]", {"order"}),
    ("y: y[i] = select(#(i) < 4, y[i+4], 0.0)", {"order"}),
    ("y: y[i] = select(#(i) > 4, y[i+4], 0.0)", set()),  # what is read is past the end
    ("y: y[0] add= x[i]", {"reduction"}),
    ("y: y[i] add= x[i]", set()),
    ("y: y[(i//2)] max= x[i]", {"reduction"}),
    ("y: y[0] add= y[i]", {"order", "reduction"}),
    ("y: y[0] add= y[i+1]", {"reduction"}),
]


@pytest.mark.parametrize(
    ("store", "kinds"), ONE_LOOP, ids=lambda x: str(x if isinstance(x, str) else sorted(x))[:40]
)
def test_what_one_loop_carries(store: str, kinds: set[str]) -> None:
    n = nest(f"  for i in 9:\n    {store}\n")
    found = carried(n, find(n, "i")[0][0])
    assert {c.kind for c in found} == kinds
    for c in found:
        assert c.loop is not None and c.loop.name == "i"
        assert c.first is not None and c.second is not None
        assert c.first.buffer == c.second.buffer == "y"
        assert str(c.first) in c.reason or str(c.second) in c.reason


@pytest.mark.parametrize(
    ("store", "apart"),
    [
        ("y: y[4*(i//w)+j,4*(i%w)+k] = 0.0", True),  # tiles of 4 x 4
        ("y: y[4*(i//w)+j,3*(i%w)+k] = 0.0", False),  # which meet the next one
        ("y: y[4*(i//w)+j,4*(i%h)+k] = 0.0", False),  # of other digits
        ("y: y[4*((i//w)%2)+j,4*(i%w)+k] = 0.0", False),  # the upper digit is not whole
    ],
)
def test_tiles_whose_number_a_call_decides_are_apart(store: str, apart: bool) -> None:
    text = "nest k where h: 1..99, w: 1..99\n  out y: f32[4*h,4*w]\n"
    n = parse_nest(f"{text}  for i in h*w:\n    for j in 4:\n      for k in 4:\n        {store}\n")
    assert bool(carried(n, find(n, "i")[0][0])) != apart


def test_a_loop_of_one_iteration_carries_nothing() -> None:
    """A batch of one image: what reads the first result at index 0 may share its loops."""
    n = nest("  for i in 1:\n    for j in 9:\n      y: y[9*i+j] = y[j]\n")
    assert not carried(n, find(n, "i")[0][0])
    apply(n, parse_trace("Reorder(('j', 'i'))"))


# the store in `for i in 5: for j in 6`, and whether the loops may trade places
TWO_LOOPS = [
    ("y: y[6*i+j] = x[i]", True),
    ("y: y[i+j] = x[6*i+j]", False),
    ("y: y[i+j] add= x[6*i+j]", True),
    ("y: y[6*i+j] = select(#(i) > 0, y[6*i+j-6], 0.0)", True),  # straight up
    ("y: y[6*i+j] = select(#(j) > 0, y[6*i+j-1], 0.0)", True),  # to the left
    ("y: y[6*i+j] = select(#(i) > 0, y[6*i+j-7], 0.0)", False),  # up and left, or two rows up
    ("y: y[6*i+j] = select(#(i) > 0, y[6*i+j-5], 0.0)", False),  # up and right
    ("y: y[j] = x[6*i+j]", True),  # the last one is the last one
    ("y: y[j] = y[i+20]", True),
    ("y: y[j] = y[i]", False),
]


@pytest.mark.parametrize(("store", "legal"), TWO_LOOPS, ids=lambda x: str(x)[:40])
def test_two_loops_that_trade_places(store: str, legal: bool) -> None:
    n = nest(f"  for i in 5:\n    for j in 6:\n      {store}\n")
    i, j = (find(n, name)[0][0] for name in "ij")
    assert (not reordered(n, [i, j], [j, i])) == legal
    (step,) = parse_trace("Reorder(('j', 'i'))")
    if legal:
        step.apply(n)
        return
    with pytest.raises(Refused, match="carries an order"):
        step.apply(n)


def test_extents_that_are_symbols() -> None:
    text = "nest k where n: 1..\n  out y: f32[n,n]\n  for i in n:\n    for j in n:\n"
    up = parse_nest(text + "      y: y[i,j] = select(#(i) > 0, y[i-1,j], 0.0)\n")
    apply(up, parse_trace("Reorder(('j', 'i'))\nParallel('j')"))
    with pytest.raises(Refused, match=r"reads y.*which another one writes as y"):
        apply(up, parse_trace("Parallel('i')"))
    right = parse_nest(text + "      y: y[i,j] = select(#(i) > 0, y[i-1,j+1], 0.0)\n")
    with pytest.raises(Refused, match="i carries an order"):
        apply(right, parse_trace("Reorder(('j', 'i'))"))


def test_lanes_read_before_they_write() -> None:
    ahead = nest("  for i in 8:\n    y: y[i] = y[i+1]\n")
    apply(ahead, parse_trace("Vectorize('i')"))
    behind = nest("  for i in 8:\n    y: y[i+1] = y[i]\n")
    with pytest.raises(Refused, match="i carries a dependence: an iteration of i reads"):
        apply(behind, parse_trace("Vectorize('i')"))
    # The first statement is done in all lanes before the second begins.
    after = nest("  for i in 8:\n    y: y[i+1] = x[i]\n    z: y[i+20] = y[i]\n")
    apply(after, parse_trace("Vectorize('i')"))
    before = nest("  for i in 8:\n    z: y[i+20] = y[i]\n    y: y[i+1] = x[i]\n")
    with pytest.raises(Refused):
        apply(before, parse_trace("Vectorize('i')"))


# Bodies of a loop i over 4 with a loop j over 3 inside, and whether i may become lanes.
LANES_AROUND = [
    ("for j in 3:\n      y: y[3*i+j] = x[3*i+j]", True),
    ("for j in 3:\n      y: y[i] add= x[3*i+j]", True),
    ("for j in 3:\n      y: y[3*i+j+1] = y[3*i+j]", False),  # the next one begins with the last
    ("for j in 3:\n      y: y[3*i+j+3] = y[3*i+j]", False),
    ("for j in 3:\n      y: y[i+10*j] = y[i+10*j+1]", True),  # read before it is written, as before
    ("for j in 3:\n      y: y[i+j] = x[3*i+j]", False),  # the last i writes last
    ("y: y[i] = 0.0\n    for j in 3:\n      y: y[i] add= x[3*i+j]\n    z: y[i+20] = y[i]", True),
    ("y: y[0] = x[i]\n    for j in 3:\n      y: y[3*i+j+9] = y[0]", False),
    ("for j in 3:\n      y: y[i+20] add= x[j]\n    z: y[i] = y[i+21]", False),
]


@pytest.mark.parametrize(("body", "legal"), LANES_AROUND, ids=lambda x: str(x)[:60])
def test_lanes_around_a_loop(body: str, legal: bool) -> None:
    n = nest(f"  for i in 4:\n    {body}\n")
    (step,) = parse_trace("Vectorize('i')")
    given = {name: np.arange(40, dtype="f4") * k for k, name in ((1, "x"), (7, "y"))}
    with forced():
        after = step.apply(n)
    lanes = [s for s, _ in find(after, "i")]
    assert lanes and all(not isinstance(x, Loop) for s in lanes for x in s.body), "innermost"
    ours, want = (execute(Machine(m, {}, 0), given)["y"] for m in (after, n))
    assert np.array_equal(ours, want) == legal
    if legal:
        assert step.apply(n) == after
        return
    with pytest.raises(Refused, match="i carries a dependence: ") as refusal:
        step.apply(n)
    assert "<- carries it" in str(refusal.value) and str(refusal.value).count("<- ") > 1


def test_lanes_go_into_no_loop_with_pointers() -> None:
    """Two pointers may be into one memory: what runs in which order then matters."""
    body = "  for i in 4:\n    for j in 3:\n      y: y[3*i+j] = x[3*i+j]\n"
    n = nest(body, "in x: *f32\n  out y: *f32")
    apply(n, parse_trace("Vectorize('j')"))
    with pytest.raises(Refused, match="j is inside i, and with branches or pointers"):
        apply(n, parse_trace("Vectorize('i')"))


def test_lanes_wait_at_no_barrier() -> None:
    n = nest("  for i in 4:\n    y: y[i] = x[i]\n    barrier\n    z: y[i+20] = y[i]\n")
    with pytest.raises(Refused, match="there is a barrier in i"):
        apply(n, parse_trace("Vectorize('i')"))


def test_nests_of_one_stage_that_take_turns() -> None:
    """One touches all cells in every iteration: the other comes too late."""
    n = nest(
        "  for h in 4:\n    z: z[h] = x[h]\n"
        "  for i in 4:\n    y: y[i] add= x[i]\n"
        "  for r in 4:\n    for j in 4:\n      y: y[j] max= x[4*r+j]\n",
        "in x: f32[40]\n  out y: f32[40]\n  out z: f32[40]",
    )
    with pytest.raises(Refused, match="different iterations of h write"):
        apply(n, parse_trace("ComputeWith('y', 'h')"))


def test_first_values_stand_before_a_shared_loop() -> None:
    """The loop of a sum has no first values to share: they are set before it."""
    n = nest(
        "  for h in 4:\n    z: z[h] = x[h]\n"
        "  for i in 4:\n    y: y[i] = 0.0\n"
        "  for r in 4:\n    for j in 4:\n      y: y[j] add= x[4*r+j]\n",
        "in x: f32[40]\n  out y: f32[40]\n  out z: f32[40]",
    )
    made = apply(n, parse_trace("ComputeWith('y', 'h')"))
    assert [getattr(s, "name", "") for s in made.body] == ["i", "h"]
    given = {"x": np.arange(40, dtype=np.float32)}
    for name, want in run(n, given).items():
        np.testing.assert_array_equal(run(made, given)[name][:4], want[:4])
    # What is read in between is not passed.
    between = nest(
        "  for h in 4:\n    z: z[h] = y[h]\n"
        "  for i in 4:\n    y: y[i] = 0.0\n"
        "  for r in 4:\n    for j in 4:\n      y: y[j] add= x[4*r+j]\n",
        "in x: f32[40]\n  out y: f32[40]\n  out z: f32[40]",
    )
    with pytest.raises(Refused):
        apply(between, parse_trace("ComputeWith('y', 'h')"))


def test_indices_from_memory_are_taken_to_meet() -> None:
    buffers = "in k: i64[9]\n  out y: f32[9,9]\n  out z: i64[9]"
    n = nest("  for i in 9:\n    for j in 9:\n      y: y[${k[i]},j] = 1.0\n", buffers)
    apply(n, parse_trace("Vectorize('j')"))
    with pytest.raises(Refused, match="different iterations of i write"):
        apply(n, parse_trace("Parallel('i')"))
    # One that is written meanwhile says nothing, not even that it is what it was.
    moving = "  for i in 9:\n    y: y[0,${z[0]}] = 1.0\n    z: z[0] = k[i]\n"
    with pytest.raises(Refused):
        apply(nest(moving, buffers), parse_trace("Parallel('i')"))


SUM = """
group sum
  in x: f32[5,4,8]
  out y: f32[5]
  local s: f32[5]
  s[s.i0] add= x[s.i0,s.r0,s.r1] for s.i0 in 5, s.r0 in 4, s.r1 in 8 from 0.0
  y[y.i0] = s[y.i0] for y.i0 in 5
"""


def test_a_refusal_shows_the_loops_and_both_accesses() -> None:
    n = nest("  for i in 8:\n    for j in 3:\n      y: y[3*i+j+1] = y[3*i+j]\n")
    with pytest.raises(Refused) as refusal:
        apply(n, parse_trace("Parallel('i')"))
    assert str(refusal.value).splitlines() == [
        "Parallel(loop='i'): an iteration of i reads y[3*i+j], which another one writes "
        "as y[3*i+j+1]",
        "    for i in 8:                   <- carries it",
        "      for j in 3:",
        "        y: y[3*i+j+1] = y[3*i+j]  <- reads y[3*i+j], writes y[3*i+j+1]",
    ]
    again = pickle.loads(pickle.dumps(refusal.value))
    assert str(again) == str(refusal.value)


HINTS = [
    ("", "Parallel('s.i0')", None),
    ("Reorder(('s.r0', 's.i0'))", "Parallel('s.r0')", "RFactor first"),
    ("Reorder(('s.r0', 's.i0'))", "Bind('s.r0', 'block.x')", "RFactor first"),
    ("Split('s.r1', 3)", "Vectorize('s.r1.1', masked=True)", "Split and Peel first"),
]


@pytest.mark.parametrize(("before", "step", "hint"), HINTS)
def test_the_step_that_makes_it_legal_is_named(before: str, step: str, hint: str | None) -> None:
    n = apply(start(parse_group(SUM)), parse_trace(before))
    if hint is None:
        apply(n, parse_trace(step))
        return
    with pytest.raises(Refused) as refusal:
        apply(n, parse_trace(step))
    assert refusal.value.hint == hint


STRICT = [
    "Vectorize('s.r1')",
    "Reorder(('s.r1', 's.r0'))",
    "RFactor('s', ('s.r1',), 'p')",
]


@pytest.mark.parametrize("step", STRICT)
def test_strict_precision(step: str) -> None:
    apply(start(parse_group(SUM)), parse_trace(step))
    strict = SUM.replace("group sum", "group sum strict")
    n = start(parse_group(strict))
    assert n.precision == "strict" and parse_nest(nest_text(n)) == n
    with pytest.raises(Refused, match=r"accumulates into s.*which the strict precision keeps"):
        apply(n, parse_trace(step))
    # Nothing rounds: any order will do.
    for exact in (strict.replace("add=", "max="), strict.replace("f32", "i32").replace("0.0", "0")):
        apply(start(parse_group(exact)), parse_trace(step))
    # The order within each sum stays.
    for kept in ("Reorder(('s.r0', 's.i0'))", "Split('s.r1', 3)", "ComputeAt('s', 'y.i0')"):
        assert apply(n, parse_trace(kept)).precision == "strict"


def test_symbols_of_one_name_have_an_order() -> None:
    a, b = D.var("i", 5), D.var("i", 7)
    assert a + b is b + a and a * b is b * a


def test_a_barrier_is_an_order() -> None:
    n = nest("  for i in 8:\n    barrier\n    y: y[i] = x[i]\n")
    (found,) = carried(n, find(n, "i")[0][0])
    assert isinstance(found, Carried) and "barrier" in found.reason
