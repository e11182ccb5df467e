"""What was found about a case, and what follows from it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property
from statistics import median
from typing import Any

from tilewright.base.medians import median_interval
from tilewright.bench.measure import ratio, ratio_interval

OURS = "tilewright"


@dataclass
class Timing:
    """One contender on one case: seconds per call by round, or why there are none."""

    seconds: list[float] = field(default_factory=list)
    problem: str | None = None  # missing, failed, or wrong: no times then
    remark: str | None = None  # timed, with something to be said about it
    error: float | None = None  # against float64, relative to the largest value
    fallbacks: int | None = None  # operators that ours left to eager

    @property
    def median(self) -> float:
        return median(self.seconds)


@dataclass
class FirstCall:
    """Seconds of first calls in fresh processes, with caches empty and full."""

    cold: float | None = None
    warm: float | None = None
    resident: int = 0  # bytes that the process grew by when caches were empty
    problem: str | None = None


@dataclass
class Roof:
    """What the machine needs at least, measured in the same run."""

    flops: int
    bytes: int
    peak: float  # operations per second
    traffic: float  # seconds to move as many bytes
    narrow: bool = False  # products of narrow types: instructions may exceed the float32 peak

    @property
    def compute(self) -> float:
        return 0.0 if self.narrow else self.flops / self.peak

    @property
    def limit(self) -> float:
        return max(self.compute, self.traffic)

    @property
    def bound(self) -> str:
        return "compute" if self.compute > self.traffic else "bandwidth"


@dataclass
class Result:
    """All about one case."""

    name: str
    about: str
    dtype: str
    threads: int
    timings: dict[str, Timing] = field(default_factory=dict)
    first_calls: dict[str, FirstCall] = field(default_factory=dict)
    capture: float | None = None  # seconds of torch's own within ours
    roof: Roof | None = None
    weights: int = 0  # bytes of the model's
    memory: dict[str, dict[str, int]] = field(default_factory=dict)  # by contender
    contended: float | None = None  # how many times slower ours is with one core taken
    problem: str | None = None  # nothing could be measured at all
    notes: list[str] = field(default_factory=list)  # what else could not be measured, and why

    @property
    def ours(self) -> Timing | None:
        found = self.timings.get(OURS)
        return found if found is not None and found.seconds else None

    @property
    def peers(self) -> dict[str, Timing]:
        """Those that were timed."""
        return {n: t for n, t in self.timings.items() if n != OURS and t.seconds}

    @property
    def best_peer(self) -> str | None:
        return min(self.peers, key=lambda name: self.peers[name].median, default=None)

    @cached_property
    def ratios(self) -> dict[str, tuple[float, float, float]]:
        """How many times faster ours is than each peer, with the ends of an interval."""
        if self.ours is None:
            return {}
        ours = self.ours.seconds
        return {
            name: (ratio(t.seconds, ours), *ratio_interval(t.seconds, ours))
            for name, t in self.peers.items()
        }

    @property
    def of_roof(self) -> float | None:
        """The part of the machine's limit that ours reaches."""
        if self.roof is None or self.ours is None or not self.roof.limit:
            return None
        return self.roof.limit / self.ours.median

    @property
    def failed(self) -> str | None:
        """Why ours has no valid result here, if so."""
        if self.problem:
            return self.problem
        timing = self.timings.get(OURS)
        if timing is not None and timing.problem:
            return timing.problem
        first = self.first_calls.get(OURS)
        return first.problem if first is not None else None

    def beyond_capture(self, seconds: float | None) -> float | None:
        return None if seconds is None or self.capture is None else seconds - self.capture

    def json(self) -> dict[str, Any]:
        """Everything, and what follows from it, for machines."""
        found = asdict(self)
        for name, timing in self.timings.items():
            if timing.seconds:
                found["timings"][name] |= {
                    "median": timing.median,
                    "interval": median_interval(timing.seconds),
                }
        found["ratios"] = {
            name: {"ratio": middle, "interval": [low, high]}
            for name, (middle, low, high) in self.ratios.items()
        }
        found |= {"best_peer": self.best_peer, "of_roof": self.of_roof}
        if self.roof is not None:
            found["roof"] |= {"limit": self.roof.limit, "bound": self.roof.bound}
        return found
