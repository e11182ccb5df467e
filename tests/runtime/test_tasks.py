"""A program as one kernel: its table, and modules put together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.gpu.assembler import assemble
from tilewright import targets
from tilewright.base.errors import Unsupported
from tilewright.kernel.tasks import ARENA, Use, ordered
from tilewright.llvm import tasks as layout
from tilewright.llvm.launch import Launch
from tilewright.llvm.objects import assembly
from tilewright.llvm.tasks import Kind, emit_tasks, merged
from tilewright.runtime.cuda import program, tasks
from tilewright.runtime.cuda.image import TasksImage
from tilewright.runtime.cuda.plan import FIXED, Plan, Planned, PlannedCall

NOBODY: Any = None  # launches are described here, not done


def launch(source: int, start: int, weight: int, blocks: int = 8) -> Planned:
    """Reads an address and a weight, writes to a place of the arena, which is address 9."""
    uses = (
        Use(f"address{source}", 0, 64),
        Use(f"address{weight}", 0, 8 * 4096),
        Use(ARENA, start, 64, True),
    )
    return Planned(
        NOBODY,
        (blocks, 1, 1),
        (0, 0, start, 5),
        (source, weight, 9, FIXED),
        "k",
        uses,
        ("x", "w", "y"),
    )


IMAGE = TasksImage(256, 0, layout.VALUES + 4, (Kind("k", 128, 3, 1),), b"")
ADDRESSES = [1000 * k for k in range(8)] + [0, 90_000]


def graph(launches: list[Planned], blocks: int = 4) -> tasks.TaskGraph:
    return ordered(tasks.phases_of(launches, IMAGE.kinds), blocks, 256)


def test_memory_that_is_read_early_is_named_and_not_written() -> None:
    early = [replace(launch(0, 256 * k, k + 1), early=("w",)) for k in range(2)]
    g = graph(early)
    assert [p.early for p in g.phases] == [("address1",), ("address2",)]
    table = tasks.Table(g, early, IMAGE, [p.values(ADDRESSES) for p in early])
    assert list(table.words[:, layout.EARLY]) == [1, 1]
    writes = Planned(NOBODY, (1, 1, 1), (0,), (2,), "k", (Use("address2", 0, 64, True),))
    assert [p.early for p in graph([writes, *early]).phases] == [(), ("address1",), ()]


def test_launches_begin_early_where_nothing_before_writes_what_they_read() -> None:
    plain = replace(launch(0, 0, 1), waits=True)
    early = replace(launch(0, 256, 2), waits=True, early=("w",))
    writes = Planned(NOBODY, (1, 1, 1), (0,), (5,), "k", (Use("address5", 0, 64, True),))
    far = [100_000 * k for k in range(10)]
    assert tasks.begins_early([launch(0, 0, 1), plain, early], far) == [False, True, True]
    # Written, though it has another name; by a launch whose memory is not known; by a library.
    same = [*far[:5], far[2] + 4096, *far[6:]]
    assert tasks.begins_early([writes, early], far) == [False, True]
    assert tasks.begins_early([writes, early], same) == [False, False]
    unknown = replace(plain, uses=None)
    assert tasks.begins_early([unknown, plain, early], far) == [True, True, False]
    library = PlannedCall(NOBODY, (), ())
    assert tasks.begins_early([library, early, plain], far) == [False, False, True]
    # A graph that has other addresses than it was made for is another one where that matters.
    plan = Plan((writes, early), 0)
    shape, graph_ = program._Shape(plan, 0), program._Graph(NOBODY, NOBODY, (), far)
    assert program._as_ordered(graph_, shape, far) and not program._as_ordered(graph_, shape, same)


def test_addresses_that_overlap_are_one_memory() -> None:
    found = [launch(0, 0, 1), launch(2, 256, 3)]
    values = [p.values(ADDRESSES) for p in found]
    names = tasks.same_memory(found, values)
    # A weight takes 32,768 bytes: what lies less than that behind address 1 is the same memory.
    assert names == {"address2": "address1", "address3": "address1"}
    far = [0, 100_000, 200_000, 300_000, 0, 0, 0, 0, 0, 400_000]
    assert not tasks.same_memory(found, [p.values(far) for p in found])


def test_a_table_follows_its_values() -> None:
    found = [launch(0, 0, 1), launch(0, 256, 2)]
    g = graph(found)
    table = tasks.Table(g, found, IMAGE, [p.values(ADDRESSES) for p in found])
    row = table.words[1]
    assert list(row[layout.VALUES : layout.VALUES + 4]) == [0, 2000, 90_256, 5]
    assert row[layout.TASKS] == 8 and row[layout.FIRST] == 0 and row[layout.COUNTER] == -1
    table.put(1, 1, 77)
    assert row[layout.VALUES + 1] == 77


def test_too_many_waits_are_refused() -> None:
    found = [launch(0, 256 * k, 1) for k in range(20)]
    whole = Use(ARENA, 0, 1 << 20, True)
    found.append(Planned(NOBODY, (1, 1, 1), (0,), (9,), "k", (whole,)))
    with pytest.raises(Unsupported, match="waits for 20 others"):
        tasks.Table(graph(found), found, IMAGE, [p.values(ADDRESSES) for p in found])


def test_modules_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    a = """declare float @llvm.fabs.f32(float)
define internal float @help(float %x) {
  ret float %x
}
define internal void @a(i32 %task.x, i32 %task.y, i32 %task.z) convergent noinline nounwind {
  br label %end, !llvm.loop !0
end:
  ret void
}
!0 = distinct !{!0, !1}
!1 = !{!"llvm.loop.unroll.disable"}
"""
    b = a.replace("@a(", "@b(").replace("ret float %x", "ret float 0.0")
    text = merged([a, b, a])
    assert text.count("@help(float") == 1 and text.count("@help.1(float") == 1
    assert text.count("declare") == 1 and text.count("void @a(") == 1
    assert "!2 = distinct !{!2, !3}" in text
    kinds = [(a, [Launch("a", (1, 1, 1), (64, 1, 1), 0, ())], 0)]
    kinds += [(b, [Launch("b", (1, 1, 1), (4, 8, 2), 96, ())], 0)]
    for name in ("cuda:75", "cuda:90"):
        target = targets.get(name)
        assert target.grid is not None
        monkeypatch.setattr(layout, "TIMED", False)
        made = emit_tasks(kinds, target.grid)
        assert made.threads == 64 and made.shared == 96
        ptx = assembly(made.text, target)
        assert "ld.acquire.gpu" in ptx and "red.release.gpu" in ptx
        assert "globaltimer" not in ptx
        monkeypatch.setattr(layout, "TIMED", True)
        timed = assembly(emit_tasks(kinds, target.grid).text, target)
        assert timed.count("%globaltimer") == timed.count("max.u64") == 1
        assemble(timed, target.cpu)
