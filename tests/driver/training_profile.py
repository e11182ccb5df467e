"""Where the time of a training step goes: our kernels, the slowest first."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tilewright.driver.api import history_of
from tilewright.driver.program.options import Options
from tilewright.driver.torch import backend
from tilewright.runtime import profile


@contextmanager
def profiled() -> Iterator[None]:
    """Programs that are compiled meanwhile tell when each of their actions begins."""
    plain = backend.compile_graph

    def marked(graph: Any, options: Options, *rest: Any) -> Any:
        return plain(graph, dataclasses.replace(options, profile=True), *rest)

    with mock.patch.object(backend, "compile_graph", marked):
        yield


def programs_of(parts: Sequence[Any]) -> list[Any]:
    """The native programs behind compiled functions."""
    sessions = [s for part in parts for s in history_of(part)[0]]
    return [p for s in sessions for u in s.units for p in u.programs]


def shown(
    step: Callable[[], Any], parts: Sequence[Any], rounds: int, cpu_time: bool, most: int = 40
) -> None:
    """`step` makes a step of what `parts` were compiled for. `cpu_time` counts the seconds of the
    processor, which are those of one thread."""
    with profiled():
        for _ in range(3):
            step()
    took = []
    programs = programs_of(parts)
    clock = time.thread_time_ns if cpu_time else time.perf_counter_ns
    with mock.patch.object(profile, "time", SimpleNamespace(perf_counter_ns=clock)):
        for p in programs:
            p.details.marks.times.clear()
        for _ in range(rounds):
            began = time.process_time() if cpu_time else time.perf_counter()
            step()
            took.append((time.process_time() if cpu_time else time.perf_counter()) - began)
    print(f"a step: {statistics.median(took) * 1e3:.1f} ms")
    rows = []
    for p in programs:
        whole = 0.0
        for name, calls, each in actions(p, rounds):
            rows.append((calls * each, calls, name, p.details.graph.name))
            whole += calls * each
        print(f"  {p.details.graph.name}: {whole:.1f} ms, arena {p.held / 1e6:.1f} MB")
    for whole, calls, name, of in sorted(rows, reverse=True)[:most]:
        print(f"{whole:9.2f} ms {calls:4} times {of:12} {name}")


def actions(p: Any, rounds: int) -> Iterator[tuple[str, int, float]]:
    """Name, calls in a step and median milliseconds of the actions of a program."""
    found: dict[str, list[int]] = {}
    for name, _, ns in p.details.marks.spans():
        found.setdefault(name, []).append(ns)
    for name, every in found.items():
        yield name, max(1, len(every) // rounds), statistics.median(every) / 1e6
