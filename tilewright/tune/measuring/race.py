"""Schedules of one group race: they take turns on the same memory, and those that are clearly
slower leave early. Each is judged by the results of the first, which is the reference."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from tilewright.base.errors import TilewrightError
from tilewright.ir.target import Target
from tilewright.kernel.nest import Nest
from tilewright.runtime.device import Device, DeviceKernel
from tilewright.tune.measure import ROUNDS, SAMPLE_SECONDS, Arguments, Launch, device_for
from tilewright.tune.measuring.judging import Exact, Judge

# After so many rounds a candidate may leave.
FEWEST = 3
# Calls of which the fastest says how many make up a sample.
TRIES = 3
# Seconds of all rounds together, after which a race that has had its usual rounds ends.
LONG = 4.0
# One leaves when its fastest sample is slower than the leader's median by this part.
BEHIND = 0.10

FAULTS = {
    "refused": "has no code",
    "wrong": "gave other results",
    "crashed": "ended its process",
    "hung": "never came back",
    "memory": "ran out of memory",
}


@dataclass(frozen=True)
class Verdict:
    """What became of one schedule: its seconds of a call, or why it has none."""

    seconds: float | None = None
    samples: tuple[float, ...] = ()
    fault: str = ""  # one of FAULTS
    why: str = ""
    difference: float | None = None  # of a wrong one: the largest

    def beside(self, first: Verdict) -> list[float]:
        """What it took of the time of the first of the same race, round by round: what slows a
        machine down for a while slows both."""
        if self.seconds is None or not first.seconds:
            return []
        pairs = zip(self.samples, first.samples, strict=False)  # it may have left earlier
        return [a / b for a, b in pairs] or [self.seconds / first.seconds]


@dataclass
class _Runner:
    number: int
    kernel: DeviceKernel
    launches: list[Launch]
    once: float = 1.0  # seconds of a call, about
    calls: int = 1  # of a sample
    samples: list[float] = field(default_factory=list)


# Results in float64 of the outputs, if there are any, and the terms of the longest sum.
InDouble = Callable[[Arguments], tuple[Exact | None, int]]


def race(
    nests: Sequence[Nest],
    target: Target,
    rounds: int = ROUNDS,
    on: Device | None = None,
    begins: Callable[[int], None] = lambda k: None,
    codes: Sequence[bytes] = (),
    exact: InDouble = lambda arguments: (None, 1),
) -> list[Verdict]:
    """Verdicts in the order of the nests, the first of which is the reference. `begins` is told
    before each has a turn: whoever watches knows which one did not come back. `codes` are the code
    of each, where it was made before."""
    on = on or device_for(target)
    verdicts: list[Verdict] = [Verdict()] * len(nests)
    runners: list[_Runner] = []
    judge: Judge | None = None
    begins(0)
    try:
        arguments = Arguments(nests[0], target, on)
    except MemoryError as why:
        return [_failed(why), *verdicts[1:]]
    outputs = [k for k, b in enumerate(arguments.buffers) if b.scope == "out"]
    for k, nest in enumerate(nests):
        begins(k)
        try:
            kernel = on.kernel(nest, target, codes[k] if codes else b"")
        except Exception as why:  # whatever a compiler may raise: the others still race
            verdicts[k] = _failed(why)
            if k == 0:
                return verdicts  # nothing to compare with
            continue
        r = _Runner(k, kernel, arguments.launches(kernel))
        arguments.clear(outputs)
        arguments.seconds(r.launches, len(r.launches))
        found = arguments.results(outputs)
        if judge is None:
            judge = Judge(found, [arguments.buffers[o].dtype for o in outputs], *exact(arguments))
            begins(k)
        off = judge.difference(found)
        if off is not None:
            verdicts[k] = Verdict(fault="wrong", why=off.words, difference=off.largest)
            kernel.close()
            continue
        r.once = min(arguments.seconds(r.launches, 1) for _ in range(TRIES))
        runners.append(r)
    _share_out(runners)
    _run(runners, arguments, rounds, begins)
    for r in runners:
        verdicts[r.number] = Verdict(median(r.samples), tuple(r.samples))
        r.launches.clear()
        r.kernel.close()
    return verdicts


def _failed(why: Exception) -> Verdict:
    if isinstance(why, MemoryError):
        return Verdict(fault="memory", why=str(why) or "there is not enough memory")
    said = why.what if isinstance(why, TilewrightError) else f"{type(why).__name__}: {why}"
    return Verdict(fault="refused", why=said)


def _share_out(runners: Sequence[_Runner]) -> None:
    """How many calls make up a sample: as many for all, since the first call of a turn finds other
    things in the caches than the next; fewer only where one is far slower than the fastest."""
    fastest = min((r.once for r in runners), default=1.0)
    for r in runners:
        most = min(SAMPLE_SECONDS / max(fastest, 1e-7), 10 * SAMPLE_SECONDS / max(r.once, 1e-7))
        r.calls = max(1, min(1000, int(most)))


class Timer(Protocol):
    """Memory on which launches are timed."""

    def seconds(self, launches: Sequence[Launch], calls: int) -> float:
        """Of one call, in the mean of so many."""
        ...


def _run(
    runners: Sequence[_Runner],
    arguments: Timer,
    rounds: int,
    begins: Callable[[int], None],
) -> None:
    """The order turns: none always follows the same one."""
    left, began = list(runners), time.monotonic()
    for k in range(rounds):
        if k >= ROUNDS and time.monotonic() - began > LONG:
            break
        shift = k % max(1, len(left))
        for r in left[shift:] + left[:shift]:
            begins(r.number)
            r.samples.append(arguments.seconds(r.launches, r.calls))
        if k + 1 >= FEWEST and left:
            best = min(median(r.samples) for r in left)
            # The reference stays: times are compared with its own of the same race.
            left = [r for r in left if r.number == 0 or min(r.samples) < (1 + BEHIND) * best]
