"""Maps are inlined at once as one after another would be, in time that grows with the result."""

from itertools import pairwise
from unittest.mock import patch

import pytest

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
from tilewright.kernel.step import apply
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
