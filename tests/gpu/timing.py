"""Times on a GPU: contenders take turns, inputs rotate so that none is in the cache, medians.

A call is timed right after one of the same contender on other inputs, where there are some. What a
kernel has written is partly still in the cache when it ends, and whoever comes next waits for that
to go to memory: a copy leaves tens of megabytes. So each contender pays for what it leaves itself,
and not for the one before it.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping

import torch

from tilewright.bench.measure import locked

LOCK = "TILEWRIGHT_TIMING_LOCK"
Call = Callable[[], object]
# Cycles for which the GPU is busy before a call is timed: the host is ahead of it then, and what is
# timed does not wait for launches.
AHEAD = 600_000


def medians(contenders: Mapping[str, list[Call]], rounds: int = 30) -> dict[str, float]:
    """Seconds of one call each. A contender is its calls on different inputs, used in turn. Of
    several processes that have LOCK in their environment one takes times at a time."""
    for calls in contenders.values():
        for call in (*calls, calls[0]):
            call()
    torch.cuda.synchronize()
    with locked(os.environ.get(LOCK)):
        return _medians(contenders, rounds)


def _medians(contenders: Mapping[str, list[Call]], rounds: int) -> dict[str, float]:
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {k: [] for k in contenders}
    for k in range(rounds):
        for name, calls in contenders.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(AHEAD)
            if len(calls) > 1:
                calls[(k + 1) % len(calls)]()
            start.record()
            calls[k % len(calls)]()
            end.record()
            events[name].append((start, end))
        torch.cuda.synchronize()
    return {
        name: statistics.median(a.elapsed_time(b) * 1e-3 for a, b in found)
        for name, found in events.items()
    }


def host_seconds(call: Call, times: int = 200, rounds: int = 10) -> float:
    """Host time of one call while the GPU is busy with others: the median of some rounds."""
    torch.cuda.synchronize()
    torch.cuda._sleep(20_000_000)
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(times // rounds):
            call()
        found.append((time.perf_counter() - began) / (times // rounds))
    torch.cuda.synchronize()
    return statistics.median(found)
