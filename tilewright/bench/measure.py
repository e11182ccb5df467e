"""Rounds, medians and intervals, on a machine that does other things too."""

from __future__ import annotations

import fcntl
import gc
import math
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from tilewright.base.medians import CONFIDENCE

MIN_ROUNDS = 7
# A round shorter than this would time the clock and the scheduler.
ROUND_SECONDS = 0.05
RESAMPLES = 2000


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
    """Seconds per call of each contender within this process, one list entry per round."""
    repeats = {name: repeats_of(call) for name, call in calls.items()}
    return take_turns(
        {name: lambda c=call, n=repeats[name]: seconds(c, n) for name, call in calls.items()},
        rounds,
        tick,
    )


def in_turn(names: Iterable[str], number: int) -> list[str]:
    """The order of a round. It is drawn: what one leaves in caches, pages and waiting threads slows
    whoever follows it, and should not be the same one each time."""
    listed = list(names)
    return random.Random(number).sample(listed, len(listed))


def take_turns(
    measures: Mapping[str, Callable[[], float]],
    rounds: int,
    tick: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """What each measure gives, one list entry per round.

    In every round all run one after the other: a machine that slows down for a while slows all.
    """
    found: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(max(rounds, MIN_ROUNDS)):
        for name in in_turn(measures, number):
            found[name].append(measures[name]())
        tick()
    return found


@contextmanager
def locked(file: Path | str | None) -> Iterator[None]:
    """Nobody else who locks this file is inside at the same time."""
    if not file:
        yield
        return
    with open(file, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def nothing() -> None:
    """Calls on a processor are done when they return."""


def repeats_of(call: Callable[[], object], settle: Callable[[], None] = nothing) -> int:
    """Calls that make up a round."""
    once = min(seconds(call, 1, settle) for _ in range(2))
    return max(1, math.ceil(ROUND_SECONDS / max(once, 1e-7)))


def seconds(
    call: Callable[[], object], repeats: int, settle: Callable[[], None] = nothing
) -> float:
    """Per call; `settle` waits until the work of all of them is done. The garbage collector waits:
    it would stop one contender for another's garbage."""
    collecting = gc.isenabled()
    gc.disable()
    settle()
    try:
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        settle()
        return (time.perf_counter() - start) / repeats
    finally:
        if collecting:
            gc.enable()


def ratio(baseline: Sequence[float], ours: Sequence[float]) -> float:
    """How many times faster than the baseline, by the medians."""
    return median(baseline) / median(ours)


def ratio_interval(
    baseline: Sequence[float], ours: Sequence[float], seed: int = 0
) -> tuple[float, float]:
    """95 % of the ratios that resampled rounds give; rounds are drawn for both alike."""
    rng, n = random.Random(seed), len(ours)
    found = []
    for _ in range(RESAMPLES):
        drawn = rng.choices(range(n), k=n)
        found.append(ratio([baseline[k] for k in drawn], [ours[k] for k in drawn]))
    found.sort()
    edge = int(RESAMPLES * (1 - CONFIDENCE) / 2)
    return found[edge], found[-1 - edge]


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
