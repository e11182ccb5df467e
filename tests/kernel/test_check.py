"""Each named check finds what it is for, and shows the text around it."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import pytest

from tests.kernel.examples import EXAMPLES
from tilewright.ir.check import CHECKS, CheckFailed, verify
from tilewright.ir.dim import the_sym, var
from tilewright.ir.expr import const, load, make_reduce
from tilewright.ir.types import f32, f64
from tilewright.kernel.check import incomplete
from tilewright.kernel.group import Group, Stage
from tilewright.kernel.nest import Loop, Nest, Store, start
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.text import parse_group, parse_nest
from tilewright.targets import default

HEAD = "nest k\n  in x: f32[8]\n  out y: f32[8]\n  local t: f32[8]\n"

NESTS = {
    "roles-known": (
        "nest k\n  roles sums y\n" + HEAD.split("\n", 1)[1] + "  alloc t\n  y: y[0] = x[0]\n",
        "y is sums; it may be product or scan",
    ),
    "buffers-sound": (
        HEAD + "  in x: f32[8]\n  alloc t\n  y: y[0] = x[0]\n",
        "two buffers are called x",
    ),
    "loops-sound": (
        HEAD + "  alloc t\n  for i in 8:\n    for i in 2:\n      y: y[i] = x[i]\n",
        "i is inside another loop of that name",
    ),
    "accesses-agree": (
        HEAD + "  alloc t\n  for i in 8:\n    y: y[i] = x[i,0]\n",
        r"x\[i,0\] has 2 indices, x has 1 axes",
    ),
    "buffers-live": (
        HEAD + "  for i in 8:\n    t: t[i] = x[i]\n  alloc t\n",
        "t uses t, which is not allocated here",
    ),
    "parallel-outermost": (
        HEAD + "  alloc t\n  for i in 8:\n    parallel j in 2 grain 1:\n      y: y[i] = x[i]\n",
        "parallel j is inside i",
    ),
    "instructions-match": (
        HEAD + "  alloc t\n  tensor i in 8 by arm64.sdot:\n    y: y[i] = x[i]\n",
        "i is not arm64.sdot: it is not declared|accumulates by add, y overwrites",
    ),
    "lanes-simple": (
        HEAD + "  alloc t\n  lane i in 8:\n    for j in 2:\n      y: y[i] = x[i]\n",
        "serial j is inside the lanes i",
    ),
    "threads-sound": (
        HEAD + "  alloc t\n  for i in 8:\n    block.x j in 2:\n      y: y[i] = x[i]\n",
        "block.x j is inside serial i",
    ),
}


NESTS["branches-sound"] = (
    "nest k\n  out y: f32[8]\n  if y[0]:\n    y: y[0] = 0.0\n",
    "the condition of an if is f32, not bool",
)
NESTS["swizzles-fit"] = (
    "nest k\n  out y: f32[8]\n  shared t: f32[12] swizzled 1,2,1\n  alloc t\n  y: y[0] = t[0]\n",
    "t cannot be swizzled by 1,2,1: its size 12 is not known to be a multiple of 8",
)
NESTS["atomics-sound"] = (
    "nest k\n  local t: f32[8]\n  alloc t\n  a: add relaxed t[0] with 1.0\n",
    "a is an atomic on t, which is no argument",
)


@pytest.mark.parametrize("name", NESTS)
def test_nests(name: str) -> None:
    text, says = NESTS[name]
    with pytest.raises(CheckFailed, match=says) as failure:
        verify(parse_nest(text), only=[name])
    assert f"nest check {name} failed" in str(failure.value)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("  alloc t\n  alloc t\n  y: y[0] = x[0]\n", "t is allocated while it is live"),
        ("  alloc x\n  y: y[0] = x[0]\n", "x is allocated but is an argument"),
        ("  y: y[0] = x[0]\n", "t is never allocated"),
        ("  for i in 2:\n    alloc t\n    t: t[i] = 0.0\n  y: y[0] = t[0]\n", "y uses t"),
        ("  alloc t\n  y: x[0] = 0.0\n", "y writes the input x"),
        ("  alloc t\n  y: y[0] = 0.0:f64\n", "y computes f64, y holds f32"),
        ("  alloc t\n  y: y[] = 0.0\n", "y is written with 0 indices"),
        (
            "  alloc t\n  lane i in 8:\n    alloc t\n    y: y[i] = 0.0\n",
            "t is allocated inside the lanes i|while it is live",
        ),
    ],
)
def test_more_faults_of_nests(body: str, says: str) -> None:
    with pytest.raises(CheckFailed, match=says):
        verify(parse_nest(HEAD + body))


def _one_store(n: Nest) -> tuple[Loop, Store]:
    loop = n.body[0]
    assert isinstance(loop, Loop) and isinstance(loop.body[0], Store)
    return loop, loop.body[0]


def _with(n: Nest, loop: Loop, store: Store) -> Nest:
    return replace(n, body=(replace(loop, body=(store,)),))


def test_symbols_of_nests_are_bound_with_their_bounds() -> None:
    n = parse_nest("nest k\n  in x: f32[8]\n  out y: f32[8]\n  for i in 8:\n    y: y[i] = x[i]\n")
    verify(n)
    loop, s = _one_store(n)
    with pytest.raises(CheckFailed, match="j is bound by no loop around"):
        verify(_with(n, loop, replace(s, value=load("x", [var("j", 8)], f32))))
    with pytest.raises(CheckFailed, match=r"i \(with other bounds\) is bound by no loop"):
        verify(_with(n, loop, replace(s, value=load("x", [var("i", 4)], f32))))


def test_values_of_nests_have_no_reductions() -> None:
    n = parse_nest("nest k\n  in x: f32[8]\n  out y: f32[8]\n  for i in 8:\n    y: y[i] = x[i]\n")
    loop, s = _one_store(n)
    r = the_sym(var("r", 8))
    total = make_reduce("add", (r,), load("x", [var("r", 8)], f32))
    with pytest.raises(CheckFailed, match="y has a reduction inside its value"):
        verify(_with(n, loop, replace(s, value=total)))


def test_the_text_around_the_fault() -> None:
    lines = "".join(f"  y: y[{k}] = x[{k}]\n" for k in range(8))
    n = parse_nest("nest k\n  in x: f32[8]\n  out y: f32[8]\n" + lines + "  y: y[] = x[0]\n")
    with pytest.raises(CheckFailed) as failure:
        verify(n)
    shown = str(failure.value).splitlines()[1:]
    assert shown == [
        "…",
        "  y: y[4] = x[4]",
        "  y: y[5] = x[5]",
        "  y: y[6] = x[6]",
        "  y: y[7] = x[7]",
        "> y: y[] = x[0]",
    ]


GROUP = """
group k
  in x: f32[8]
  out y: f32[8]
  local t: f32[]
  t[] add= x[t.r0] for t.r0 in 8 from 0.0
  y[y.i0] = x[y.i0] + t[] for y.i0 in 8
"""


def _edited(g: Group, stage: str, **changes: object) -> Group:
    new = tuple(replace(s, **changes) if s.name == stage else s for s in g.stages)  # type: ignore[arg-type]
    return replace(g, stages=new)


def _faulty_groups() -> dict[str, tuple[Group, str]]:
    g = parse_group(GROUP)
    t, y = g.stages
    other = replace(g.buffer("y"), name="z")
    lost = load("x", [var("y.i9", 8)], f32)
    return {
        "two stages": (replace(g, stages=(t, t, y)), "t is computed by 2 stages, not 1"),
        "no stage": (replace(g, stages=(t,)), "out y is computed by 0 stages, not 1"),
        "an input": (replace(g, stages=(t, y, Stage("x", (), (), (0,), const(0, f32)))), "in x"),
        "two buffers": (replace(g, buffers=(*g.buffers, g.buffer("y"))), "two buffers are called"),
        "an unknown scope": (
            replace(g, buffers=(*g.buffers, replace(other, scope="far"))),
            "z has scope 'far'",
        ),
        "a lost symbol": (_edited(g, "y", value=lost), "stage y mentions y.i9"),
        "another dtype": (_edited(g, "y", value=const(0, f64)), "stage y computes f64"),
        "another rank": (_edited(g, "y", where=()), "y is written with 0 indices"),
        "a read of nothing": (_edited(g, "y", value=load("q", [], f32)), "reads what is no buffer"),
        "a late producer": (replace(g, stages=(y, t)), r"stage y reads t\[\] before"),
        "no init": (_edited(g, "t", init=None), "stage t reduces without a combine or an init"),
        "another place": (_edited(g, "y", where=(0,)), "stage y is not written at its own axes"),
        "too short": (
            parse_group(GROUP.replace("for y.i0 in 8", "for y.i0 in 7")),
            "the axes of stage y do not cover its buffer",
        ),
    }


@pytest.mark.parametrize("name", _faulty_groups())
def test_groups(name: str) -> None:
    verify(parse_group(GROUP))
    g, says = _faulty_groups()[name]
    with pytest.raises(CheckFailed, match=says):
        verify(g)


def test_the_checks_have_names() -> None:
    assert set(NESTS) | {"symbols-bound"} == set(CHECKS["nest"])
    assert len(CHECKS["group"]) == 6


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_prefix_of_a_default_trace_is_sound(name: str) -> None:
    g = EXAMPLES[name].group
    trace, final = default_schedule(g, default())
    for n in accumulate(trace, lambda n, step: step.apply(n), initial=start(g)):
        verify(n)
    if not g.dims():
        assert not incomplete(final), "registers of a static tile are indexed by constants"


def test_registers_that_are_indexed_by_loops() -> None:
    head = "nest k\n  out y: f32[8]\n  register t: f32[8]\n  alloc t\n"
    text = head + "  {} i in 8:\n    t: t[i] = 0.0\n"
    assert not incomplete(parse_nest(text.format("unroll")))
    (fault,) = incomplete(parse_nest(text.format("for")))
    assert fault.message == "the register buffer t is indexed by i, which is not unrolled"
