"""Where the time of a program that is one kernel goes: each kind of its phases alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tests.gpu.timing import medians
from tilewright.kernel.tasks import ARENA, TaskGraph, Wait, check
from tilewright.llvm import tasks as layout
from tilewright.runtime.cuda.memory import Memory
from tilewright.runtime.cuda.plan import Planned
from tilewright.runtime.cuda.program import CudaProgram
from tilewright.runtime.cuda.replay import Replay
from tilewright.runtime.cuda.tasks import Table, TaskReplay, Tasks, phases_of

MANY = 48  # phases of a kind at least, so that what begins and ends a kernel counts little


@dataclass(frozen=True)
class Row:
    """A kind: how many phases of it there are; of one, its tasks, its bytes outside of the arena,
    and its seconds: as a launch of a CUDA graph, and as a phase that waits for the one before."""

    kind: str
    count: int
    tasks: int
    threads: int
    moved: int
    launch: float
    phase: float

    def __str__(self) -> str:
        rate = f", {self.moved / self.launch / 1e9:.0f} GB/s" if self.moved > 1e6 else ""
        return (
            f"{self.count} x {self.kind} ({self.tasks} of {self.threads}): "
            f"launched {self.launch * 1e6:.1f} us{rate}, in turn {self.phase * 1e6:.1f} us"
        )


def replay_of(made: CudaProgram) -> TaskReplay:
    """The launch of a program that ran before."""
    rooms = made._rooms.values()
    found = [g.replay for r in rooms for s in r.shapes.values() for g in s.graphs]
    assert found and isinstance(found[0], TaskReplay), made.not_one_kernel
    return found[0]


def in_turn(
    tasks: Tasks, launches: list[Planned], values: list[list[int]]
) -> tuple[Callable[[int], None], TaskGraph]:
    """Launches as phases of one kernel, each of which waits for the one before."""
    phases = phases_of(launches, tasks.image.kinds)
    last = len(phases) - 1
    linked = (
        replace(
            p,
            counter=k if k < last else -1,
            waits=(Wait(k - 1, phases[k - 1].tasks),) if k else (),
        )
        for k, p in enumerate(phases)
    )
    g = TaskGraph(tasks.blocks, tasks.image.threads, last, tuple(linked))
    g = check(g, tasks.resident)
    table = Memory.of(tasks.device, Table(g, launches, tasks.image, values).words)
    counters = Memory.of(tasks.device, np.zeros(layout.counter_place(g.counters), np.uint8))
    return lambda stream: tasks.launch(g, table.address, counters.address, stream), g


def whole(made: CudaProgram, rounds: int = 20) -> dict[str, float]:
    """Seconds of all phases: as one kernel, and as a CUDA graph of the same launches."""
    replay, stream = replay_of(made), made.machine.stream()
    pairs = zip(replay.launches, replay._given(), strict=True)
    graph = Replay(made.machine.device, [(p.launcher, p.blocks, v) for p, v in pairs])
    calls: dict[str, list[Callable[[], object]]] = {
        "one kernel": [lambda: replay(stream)],
        "graph": [lambda: graph(stream)],
    }
    return medians(calls, rounds)


def rows(made: CudaProgram, names: Mapping[str, str], rounds: int = 5) -> list[Row]:
    """The kinds of a program's phases; those that are alike in all but their code are one."""
    found: dict[tuple[str, int, int, int], Row] = {}
    for r in _rows(made, names, rounds):
        key = r.kind, r.tasks, r.threads, r.moved
        before = found.get(key)
        found[key] = r if before is None else replace(before, count=before.count + r.count)
    return list(found.values())


def _rows(made: CudaProgram, names: Mapping[str, str], rounds: int) -> Iterator[Row]:
    """The kinds of a program's phases. Phases of a kind are run over and over, on the memory of all
    of them, so that weights are not in the cache."""
    replay, tasks = replay_of(made), made.tasks
    assert tasks is not None
    given = replay._given()
    kinds: dict[str, list[int]] = {}
    for k, p in enumerate(replay.launches):
        kinds.setdefault(p.kind, []).append(k)
    device, stream = tasks.device, made.machine.stream()
    for kind, own in kinds.items():
        chosen = [own[k % len(own)] for k in range(max(MANY, len(own)))]
        launches, values = [replay.launches[k] for k in chosen], [given[k] for k in chosen]
        pairs = zip(launches, values, strict=True)
        graph = Replay(device, [(p.launcher, p.blocks, v) for p, v in pairs])
        kernel, g = in_turn(tasks, launches, values)
        t = medians(
            {"launch": [lambda g=graph: g(stream)], "phase": [lambda k=kernel: k(stream)]},
            rounds,
        )
        uses = launches[0].uses or ()
        moved = sum(u.size for u in uses if u.space != ARENA)
        size = len(own), g.phases[0].tasks, g.phases[0].threads
        each = t["launch"] / len(chosen), t["phase"] / len(chosen)
        symbol, _, part = kind.rpartition("_")
        title = names.get(kind) or f"{names.get(symbol, kind)}, part {part}"
        yield Row(title, *size, moved, *each)
