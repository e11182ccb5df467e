"""Which launches of a CUDA graph wait for which."""

from __future__ import annotations

import random
from typing import Any

from tilewright.ir import dim as D
from tilewright.kernel.tasks import ARENA, Use
from tilewright.llvm.entry import Slot
from tilewright.llvm.grid import Launch
from tilewright.runtime.cuda.branches import waits_of
from tilewright.runtime.cuda.image import KernelImage, Scratch, Size, Steps, Work
from tilewright.runtime.cuda.plan import Described, Planned, Planner

LAUNCHER: Any = None


def launch(*uses: Use) -> Planned:
    return Planned(LAUNCHER, (1, 1, 1), (), (), uses=uses)


def test_all_that_use_memory_after_each_other_are_ordered() -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    draw = random.Random(seed)

    def use() -> Use:
        writes = draw.random() < 0.5
        if draw.random() < 0.5:
            return Use(f"address{draw.randrange(4)}", 0, 8, writes)
        return Use(ARENA, 8 * draw.randrange(6), 8 * draw.randrange(1, 3), writes)

    launches = [launch(*(use() for _ in range(draw.randrange(1, 4)))) for _ in range(24)]
    waits = waits_of(launches, 9)
    before: list[set[int]] = []
    for own in waits:
        before.append({*own, *(j for w in own for j in before[w])})
    for k, p in enumerate(launches):
        direct = {
            j
            for j in range(k)
            if any(a.conflicts(b) for a in p.uses or () for b in launches[j].uses or ())
        }
        assert direct <= before[k]
        assert set(waits[k]) <= direct, "it waits for what it has nothing to do with"
        implied = {j for w in waits[k] for j in before[w]}
        assert not implied & set(waits[k]), "another one implies it"


def test_a_launch_that_may_use_anything() -> None:
    apart = [launch(Use(f"address{k}", 0, 8, True)) for k in range(3)]
    anything = Planned(LAUNCHER, (1, 1, 1), (), ())
    assert waits_of([*apart, anything, *apart], 9) == [(), (), (), (2, 1, 0), (3,), (3,), (3,)]


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
