"""Maps are inlined at once as one after another would be, in time that grows with the result."""

from itertools import pairwise
from unittest.mock import patch

import pytest

from tests.kernel.fuzz import Judge
from tests.kernel.random_groups import sample
from tests.seeds import drawn
from tilewright.ir import dim as D
from tilewright.ir import values
from tilewright.ir.expr import fn, load
from tilewright.ir.types import f32
from tilewright.kernel.defaults.inlining import inline_maps
from tilewright.kernel.defaults.scheduler import Scheduler
from tilewright.kernel.group import Buffer, Group, Stage
from tilewright.kernel.nest import start
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import apply
from tilewright.kernel.text import parse_group
from tilewright.targets import default


@pytest.mark.parametrize("seed", drawn(range(40), quick=14))
def test_as_one_step_after_another(seed: int) -> None:
    group = sample(seed).group
    s = Scheduler(group, default())
    kept = inline_maps(s)
    assert apply(start(group), s.trace) == s.nest
    assert [st.name for st in group.stages if st in kept] == [st.name for st in kept]


def chain(n: int) -> Group:
    """Maps, each of the one before it."""
    names = ["a0", *(f"t{k}" for k in range(n - 1)), "y0"]
    stages = []
    for source, name in pairwise(names):
        axis = D.the_sym(D.var(f"{name}.i0", 64))
        x = load(source, (D.as_int(axis),), f32)
        stages.append(Stage(name, (axis,), (), (D.as_int(axis),), fn("add", fn("mul", x, x), x)))
    scopes = {"a0": "in", "y0": "out"}
    buffers = [Buffer(name, f32, (64,), scopes.get(name, "local")) for name in names]
    return Group("chain", tuple(buffers), tuple(stages))


def made(n: int) -> int:
    """How many values inlining a chain asks for."""
    s = Scheduler(chain(n), default())
    with patch.object(values, "_intern", wraps=values._intern) as intern:
        inline_maps(s)
    assert len(s.trace) == n - 1
    return intern.call_count


def test_work_is_linear() -> None:
    assert made(200) < 2.5 * made(100)


@pytest.mark.parametrize("end", ["y[y.i0,y.i1] =", "y[] add="])
def test_a_costly_value_of_one_stage_is_not_stored(end: str) -> None:
    """It is used twice, once through another map, at the same element."""
    at, tail = ("y.r0,y.r1", " from 0.0") if "add" in end else ("y.i0,y.i1", "")
    shape = "" if "add" in end else "6,40"
    axes = [f"{a} in {n}" for a, n in zip(at.split(","), (6, 40))]
    group = parse_group(f"""
group costly
  in x: f32[6,40]
  out y: f32[{shape}]
  local t: f32[6,40]
  local u: f32[6,40]
  t[t.i0,t.i1] = log1p(exp(x[t.i0,t.i1])) for t.i0 in 6, t.i1 in 40
  u[u.i0,u.i1] = exp(neg(t[u.i0,u.i1])) for u.i0 in 6, u.i1 in 40
  {end} u[{at}] * u[{at}] + t[{at}] for {", ".join(axes)}{tail}
""")
    _, nest = default_schedule(group, default())
    assert not {"t", "u"} & {b.name for b in nest.buffers}
    judge = Judge(group, [{}])
    judge.exact = False
    judge.nest(nest)


def test_a_costly_value_of_two_stages_is_stored() -> None:
    group = parse_group("""
group costly
  in x: f32[6,40]
  out y: f32[6,40]
  local t: f32[6,40]
  local s: f32[6]
  t[t.i0,t.i1] = exp(x[t.i0,t.i1]) for t.i0 in 6, t.i1 in 40
  s[s.i0] add= t[s.i0,s.r0] for s.i0 in 6, s.r0 in 40 from 0.0
  y[y.i0,y.i1] = t[y.i0,y.i1] / s[y.i0] for y.i0 in 6, y.i1 in 40
""")
    _, nest = default_schedule(group, default())
    assert "t" in {b.name for b in nest.buffers}
