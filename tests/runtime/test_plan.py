"""The launches of a program for given sizes, and what they fetch for each other."""

from __future__ import annotations

from typing import Any

from tilewright.ir import dim as D
from tilewright.kernel.tasks import ARENA, Use
from tilewright.llvm.entry import Slot
from tilewright.llvm.launch import Launch
from tilewright.runtime.cuda.fetching import fetching
from tilewright.runtime.cuda.image import KernelImage, Scratch, Size, Steps, Work
from tilewright.runtime.cuda.plan import FIXED, Described, Planned, Planner

NOBODY: Any = None  # launches are described here, not done


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


# ---- what launches fetch

MIB = 1 << 20


def planned(blocks: int, weights: int = 1, ranges: int = 2) -> Planned:
    """A launch that reads a row of the arena, which is address 9, and matrices of 32 MiB early."""
    names = tuple(f"w{k}" for k in range(weights))
    uses = Use(ARENA, 64, 64), *(Use(f"address{k}", 0, 32 * MIB) for k in range(weights))
    given = (64, *(0 for _ in names), 7, *(0 for _ in range(2 * ranges)))
    source = (9, *range(weights), FIXED, *(FIXED for _ in range(2 * ranges)))
    own = "k", uses, ("x", *names), names, True, ranges
    return Planned(NOBODY, (blocks, 1, 1), given, source, *own)


def ranges_of(p: object) -> list[tuple[int, int]]:
    """The numbers of addresses that a launch fetches, and the bytes of a block."""
    assert isinstance(p, Planned)
    first = len(p.base) - 2 * p.ranges
    found = range(first, len(p.base), 2)
    return [(p.source[k], p.base[k + 1]) for k in found if p.base[k + 1]]


def test_a_launch_fetches_for_the_next_one() -> None:
    """Much of it while few blocks run."""
    launches = [planned(128), planned(32), planned(128), planned(128, weights=2), planned(128)]
    made = fetching(launches, 132, 24 * MIB, 8 * MIB)
    few = [(0, 8 * MIB // 128)]
    assert ranges_of(made[0]) == few, "for the one after few blocks"
    assert ranges_of(made[2]) == [(0, 12 * MIB // 128), (1, 12 * MIB // 128)]
    assert ranges_of(made[3]) == few
    assert made[1] is launches[1] and made[4] is launches[4]
    own, addresses = made[2], [1000 * k for k in range(10)]
    assert isinstance(own, Planned)
    assert own.values(addresses) == [9064, 0, 7, 0, 12 * MIB // 128, 1000, 12 * MIB // 128]
    assert fetching(made, 132, 0, 0) == tuple(launches), "it can be decided anew"


def test_what_fetches_nothing() -> None:
    few, many = planned(32), planned(128)
    for launches in (
        [many],
        [planned(128, ranges=0), many],
        [many, few, few],  # blocks of which wait for other things than memory
        [many, planned(128, weights=0)],
    ):
        assert fetching(launches, 132, 24 * MIB, 8 * MIB) == tuple(launches)
    assert fetching([many, many], 132, 24 * MIB, 8 * MIB, 33 * MIB) == (many, many)
    ((_, size),) = ranges_of(fetching([few, many, many], 132, 2 << 40)[1])
    assert size * 128 == 32 * MIB, "no more than there is"


def test_launches_have_values_for_what_they_fetch() -> None:
    image = KernelImage(
        (Launch("k", (8, 1, 1), (32, 1, 1), 0, ("x", "y"), ranges=2),), ("x", "y"), (), (), (), b""
    )
    planner = Planner(Described({"k": image}), {}, {}, arena=256)
    work = Work("k", (Slot("in", 0), Slot("out", 0)), (), (4, 4), 1)
    (p,) = planner.plan(Steps("entry", (work,), ()), 1, 1).actions
    assert isinstance(p, Planned) and p.values([10, 20, 30]) == [10, 20, 0, 0, 0, 0]
