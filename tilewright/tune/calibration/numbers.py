"""From times of probes to the numbers of a target.

Probes take turns, and each is compared with additions of one cycle of the same round: a processor
that changes its clock meanwhile changes no count of cycles. A number is the median of its rounds.
One whose rounds disagree, or that no processor has, keeps its guess, with a word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import sqrt
from statistics import median, quantiles
from typing import Any

from tilewright.base.errors import TilewrightError
from tilewright.ir.target import Target
from tilewright.tune.calibration import code
from tilewright.tune.calibration.machine import Machine, Probe

ROUNDS, FEWEST = 9, 3
# Rounds whose middle half is wider than this part of the median were disturbed.
UNSTEADY = 0.10
# Loads of memory beyond a cache take at least so many times as long as of memory inside it.
STEP = 1.4
# Memory that no cache holds is so many times as large as the largest, within limits.
BEYOND, LEAST_BEYOND, MOST_BEYOND = 4, 64 << 20, 512 << 20
MOST_SHARED = 2 << 30  # bytes of all threads together
CYCLE = Probe("add")
LEVELS = ("l1", "l2", "l3")


@dataclass(frozen=True)
class Number:
    """One number of a target: guessed, measured as a fraction, and why it keeps its guess, if it
    does."""

    name: str
    guess: int
    measured: float | None = None
    spread: float = 0.0
    kept: str = ""

    @property
    def steady(self) -> bool:
        return self.spread <= UNSTEADY

    @property
    def value(self) -> int:
        return self.guess if self.kept or self.measured is None else round(self.measured)


@dataclass
class Samples:
    """Cycles of a unit of each probe, one entry per round, and seconds of a cycle."""

    cycles: dict[Probe, list[float]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    failed: dict[Probe, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Wanted:
    """A number by a probe: `of` makes it of a unit's cycles; it lies between `least` and `most`,
    or something else was measured."""

    name: str
    probe: Probe
    of: Callable[[float], float]
    least: float
    most: float


def beyond(target: Target) -> int:
    """Bytes that no cache of one core holds."""
    return max(LEAST_BEYOND, min(MOST_BEYOND, BEYOND * target.l3))


def beyond_all(target: Target) -> int:
    """Bytes of each thread that no cache holds if all cores read as many; some processors have
    several third caches, each for some of their cores."""
    return max(beyond(target) // target.cores, min(target.l3, MOST_SHARED // target.cores))


def inside(outer: int, inner: int) -> int:
    """Bytes that one cache holds easily, and the smaller one before it does not."""
    return int(sqrt(outer * inner))


def _per_cycle(cycles: float) -> float:
    return 1 / cycles


def wanted(target: Target) -> list[Wanted]:
    """Rates of a processor such as a guessed target describes."""
    vector, cores = target.vector_bits // 8, target.cores
    share = target.l3 // cores
    # Where a core's share of the third cache is no larger than its second one, one thread reads.
    third = (
        Probe("read", inside(share, target.l2), cores)
        if share >= 2 * target.l2
        else Probe("read", inside(max(target.l3, 2 * target.l2), target.l2))
    )
    second = Probe("read", inside(target.l2, target.l1), cores)
    memory = Probe("read", beyond_all(target), cores)
    found = [
        Wanted("fma_pipes", Probe("sum"), _per_cycle, 0.5, 8),
        Wanted("fma_latency", Probe("wait"), float, 1, 16),
        Wanted("load_ports", Probe("read", target.l1 // 4), lambda c: 1 / (c * vector), 0.5, 8),
        Wanted("issue", Probe("mix"), _per_cycle, 1, 16),
        Wanted("l2_bandwidth", second, _per_cycle, 1, 512),
        Wanted("l3_bandwidth", third, _per_cycle, 1, 512),
        Wanted("memory_bandwidth", memory, _per_cycle, 0.5, 512),
    ]
    if cores > 1:
        work = code.REGION_WORK
        # As long as a chunk: no other thread took one, since other programs had the cores.
        found.append(Wanted("region", Probe("regions"), lambda c: c - work, 50, work // 2))
    return found


@dataclass(frozen=True)
class Shown:
    """A number for people, which no target has."""

    name: str
    probe: Probe
    of: Callable[[float, float], float]  # of a unit's cycles and the seconds of a cycle


def shown(target: Target) -> list[Shown]:
    """Peaks, reads by one thread, and how long loads are waited for."""
    sizes = {
        "the first cache": target.l1 // 4,
        "the second cache": inside(target.l2, target.l1),
        "the third cache": inside(target.l3, target.l2),
        "memory": beyond(target),
    }
    flops = target.lanes(32) * (2 if target.has_fma else 1)
    found = [
        Shown(
            f"GFLOP/s of f32 at most, {n} thread{'s'[: n > 1]}",
            Probe("sum", threads=n),
            lambda c, s, n=n: 1e-9 * n * flops / (c * s),
        )
        for n in sorted({1, target.cores})
    ]
    for name, size in sizes.items():
        read = Probe("read", size)
        found.append(Shown(f"GB/s from {name}, one thread", read, lambda c, s: 1e-9 / (c * s)))
    for name, size in sizes.items():
        found.append(Shown(f"cycles of a load from {name}", Probe("chase", size), lambda c, s: c))
    return found


def seen(target: Target, s: Samples) -> dict[str, str]:
    """Numbers for people, as samples have them."""
    cycle = median(s.seconds) if s.seconds else 0.0
    known = [(x, s.cycles.get(x.probe)) for x in shown(target)]
    return {x.name: f"{x.of(median(found), cycle):.4g}" for x, found in known if found}


def around(size: int) -> tuple[Probe, ...]:
    """Loads from memory that caches of half a size, the size and twice the size hold, or not."""
    parts = (int(size * part) for part in (0.375, 0.75, 1.5, 3.0))
    return tuple(Probe("chase", min(n, MOST_BEYOND)) for n in parts)


def probes_of(target: Target) -> list[Probe]:
    """All, each once."""
    sizes = [p for level in LEVELS for p in around(getattr(target, level))]
    every = [*(w.probe for w in wanted(target)), *(x.probe for x in shown(target)), *sizes]
    return list(dict.fromkeys(every))


def sampled(
    machine: Machine,
    probes: Sequence[Probe],
    rounds: int = ROUNDS,
    tick: Callable[[], None] = lambda: None,
    late: Callable[[], bool] = lambda: False,
) -> Samples:
    """All probes in turns. One that cannot run is left out, with the reason. Where it is `late`
    some rounds are left out."""
    found = Samples({p: [] for p in probes})
    for number in range(rounds):
        if number >= FEWEST and late():
            break
        for p in probes:
            if p not in found.failed:
                try:
                    cycle, taken = machine.seconds(CYCLE), machine.seconds(p)
                except TilewrightError as why:
                    found.failed[p] = why.what
                    continue
                found.seconds.append(cycle)
                found.cycles[p].append(taken / cycle)
            tick()
    return found


def spread(values: Sequence[float]) -> float:
    """How wide the middle half of some values is, relative to their median."""
    if len(values) < 2:
        return 0.0
    low, middle, high = quantiles(values, n=4)
    return (high - low) / abs(middle) if middle else float("inf")


def numbers(target: Target, s: Samples) -> list[Number]:
    """The rates and sizes of a guessed target, as samples have them."""
    found = [_clock(target, s), *(_rate(target, s, w) for w in wanted(target))]
    if target.cores == 1:
        found.append(Number("region", target.region, kept="there is one core: nothing is shared"))
    return [*found, *(_size(target, s, level) for level in LEVELS)]


def _clock(target: Target, s: Samples) -> Number:
    rates = [1e-6 / x for x in s.seconds]
    if not rates:
        return Number("mhz", target.mhz, kept="no probe could run")
    return Number("mhz", target.mhz, median(rates), spread(rates))


def _rate(target: Target, s: Samples, w: Wanted) -> Number:
    guess, values = getattr(target, w.name), s.cycles.get(w.probe, [])
    if not values:
        why = s.failed.get(w.probe, "it was not measured")
        return Number(w.name, guess, kept=why)
    made = [w.of(x) for x in values]
    middle = median(made)
    if not w.least <= middle <= w.most:
        return Number(
            w.name, guess, middle, kept=f"it should lie between {w.least:g} and {w.most:g}"
        )
    return Number(w.name, guess, max(1.0, middle), spread(made))


def _size(target: Target, s: Samples, level: str) -> Number:
    """A cache's size by what the system says, where loads become slow right beyond it; half or
    twice as much, where they do so there."""
    guess: int = getattr(target, level)
    points = around(guess)
    times = [median(s.cycles.get(p) or [0.0]) for p in points]
    if not all(times):
        return Number(level, guess, kept=s.failed.get(points[-1], "it was not measured"))
    half, same, twice = (b / a for a, b in pairwise(times))
    # What the system says is believed unless the step is clearly elsewhere.
    if same >= STEP and same * STEP >= max(half, twice):
        return Number(level, guess, guess)
    best = max(half, twice)
    if best < STEP:
        return Number(level, guess, kept="no step in the time of loads was seen")
    return Number(level, guess, guess / 2 if half == best else guess * 2)


def as_mapping(found: Sequence[Number]) -> dict[str, Any]:
    """What replaces guesses."""
    return {n.name: n.value for n in found if n.measured is not None and not n.kept}
