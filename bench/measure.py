"""Timing and memory that can be believed on a machine that does other things too."""

import math
import os
import time
from collections.abc import Callable, Mapping
from itertools import accumulate
from statistics import median
from typing import Any

import torch

MIN_ROUNDS = 7
# A round shorter than this would time the clock and the scheduler.
ROUND_SECONDS = 0.05


def busy() -> str | None:
    """What makes numbers taken now untrustworthy, if something does."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < 0.5:
        return None
    # Peers that wait for each other's threads lose tens of times their speed to one other process.
    return f"the load was {load:.1f} on {cores} cores at the start: do not trust these ratios"


def interleaved(
    calls: Mapping[str, Callable[[], object]], rounds: int, tick: Callable[[], None] = lambda: None
) -> dict[str, list[float]]:
    """Seconds per call of each contender, one list entry per round.

    In every round all contenders run one after the other, and the order turns: a machine that slows
    down for a while slows all of them.
    """
    repeats = {name: _repeats(call) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for number in range(max(rounds, MIN_ROUNDS)):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            times[name].append(_seconds(calls[name], repeats[name]))
        tick()
    return times


def _repeats(call: Callable[[], object]) -> int:
    for _ in range(2):
        once = _seconds(call, 1)
    return max(1, math.ceil(ROUND_SECONDS / max(once, 1e-7)))


def _seconds(call: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def ratio(baseline: list[float], ours: list[float]) -> float:
    """How many times faster than the baseline, by the medians."""
    return median(baseline) / median(ours)


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def peak_allocated(call: Callable[[], object]) -> int:
    """Bytes that a call has from torch's allocator at its peak: results, temporaries, scratch."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as found:
        held = call()
    del held
    profiler: Any = found.profiler
    events = [e for e in profiler.kineto_results.events() if e.name() == "[memory]"]
    changes = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]
    return max(accumulate(changes), default=0)
