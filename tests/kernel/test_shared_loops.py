"""Outputs that share loops are moved at once as one after another would be, and looked at once."""

from unittest.mock import patch

from tilewright.ir import dim as D
from tilewright.ir.expr import fn, load
from tilewright.ir.types import f32
from tilewright.kernel import dependence
from tilewright.kernel.group import Buffer, Group, Stage
from tilewright.kernel.nest import start, walk
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import apply
from tilewright.targets import default


def outputs(n: int, in_place: bool = False) -> Group:
    """Maps of one input; or each of the one before it, one row further on."""
    names = [f"y{k}" for k in range(n)]
    stages = []
    for k, name in enumerate(names):
        axes = [D.the_sym(D.var(f"{name}.i{j}", e)) for j, e in enumerate((6, 7))]
        i, j = map(D.as_int, axes)
        x = load("a", (i, j), f32)
        if in_place and k:
            x = fn("add", x, load(names[k - 1], (D.mod(i + 1, 6), j), f32))
        stages.append(Stage(name, tuple(axes), (), (i, j), fn("cos", fn("add", x, float(k)))))
    buffers = [Buffer("a", f32, (6, 7), "in"), *(Buffer(x, f32, (6, 7), "out") for x in names)]
    return Group("outputs", tuple(buffers), tuple(stages))


def test_as_one_step_after_another() -> None:
    for group in (outputs(5), outputs(4, in_place=True)):
        trace, nest = default_schedule(group, default())
        assert apply(start(group), trace) == nest
    apart = len(nest.body)
    assert apart == 4, "a row that is read before it is written keeps stages apart"


def looked_at(n: int) -> int:
    """How many statements are looked through for what they touch."""
    count = 0

    def uses(body, *rest):
        nonlocal count
        count += sum(1 for _ in walk(body))
        return original(body, *rest)

    original = dependence.uses
    with patch.object(dependence, "uses", uses):
        default_schedule(outputs(n), default())
    return count


def test_work_is_linear() -> None:
    assert 0 < looked_at(32) < 2.5 * looked_at(16)
