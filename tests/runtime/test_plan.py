"""The launches of a program for given sizes."""

from __future__ import annotations

from tilewright.ir import dim as D
from tilewright.llvm.entry import Slot
from tilewright.llvm.launch import Launch
from tilewright.runtime.cuda.image import KernelImage, Scratch, Size, Steps, Work
from tilewright.runtime.cuda.plan import Described, Planned, Planner


def test_no_two_launches_of_a_plan_have_the_same_counters() -> None:
    """So that they may run at the same time: two kernels here, one of them twice."""
    counting = Launch("k", (8, 1, 1), (32, 1, 1), 0, ("x", "y", "part", "counter"))
    scratch = (Scratch("part", 64), Scratch("counter", 4 * D.sym("n", 1), counter=True))
    image = KernelImage((counting,), ("x", "y"), scratch, ("n",), (), b"")
    slots = (Slot("in", 0), Slot("out", 0))
    works = tuple(Work("k", slots, (Size(value=n),), (4, 4), 1) for n in (2, 3))
    planner = Planner(Described({"k": image}), {}, {}, arena=256)
    plan = planner.plan(Steps("entry", works, ()), 1, 1)
    assert plan.counters == 20 and plan.scratch == 256
    first, second = (p for p in plan.counting(4096).straight or () if isinstance(p, Planned))
    addresses = [1000, 2000, 8192]  # what is read, what is written, the arena
    assert first.values(addresses) == [1000, 2000, 8192 + 256, 4096]
    assert second.values(addresses) == [1000, 2000, 8192 + 256, 4096 + 8]
    used = [u for p in (first, second) for u in p.uses or () if u.space.startswith("counters")]
    assert len(used) == 2 and not used[0].conflicts(used[1])
