"""Timing and memory that can be believed on a machine that does other things too."""

import ctypes
import gc
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

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


def peak_growth(call: Callable[[], object]) -> int | None:
    """Bytes by which a call grows the resident set at its peak; None where nothing tells."""
    status, clear = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not clear.exists():
        return None
    gc.collect()
    _give_back_free_memory()
    try:
        clear.write_text("5")  # sets the peak to what is resident now
    except OSError:
        return None
    before = _field(status, "VmRSS")
    call()
    return max(0, _field(status, "VmHWM") - before)


def _field(status: Path, name: str) -> int:
    line = next(line for line in status.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def _give_back_free_memory() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
