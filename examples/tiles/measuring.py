"""What the examples share: checking results, and timing ours against torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import sleep
from typing import Any, Protocol

import torch

import tilewright as tw
from tilewright.base.medians import median_interval
from tilewright.bench.measure import (
    ROUND_SECONDS,
    ratio,
    ratio_interval,
    repeats_of,
    seconds,
)

OURS, PEER = "tilewright", "torch"
TRIAL = 3  # rounds
MOST_SECONDS = 30.0  # for the rounds of one case
SETTLING = (
    0.05  # seconds until threads of the one that ran last no longer spin, on the other's cores
)

# ---- being right


@dataclass(frozen=True)
class Verdict:
    """How far a result is from float64, and how far it may be."""

    name: str
    error: float
    allowed: float

    @property
    def right(self) -> bool:
        return self.error <= self.allowed

    def __str__(self) -> str:
        word = "right" if self.right else "WRONG"
        return f"{self.name}: {word}, error {self.error:.2e} of {self.allowed:.2e} allowed"


def judge(name: str, ours: torch.Tensor, peer: torch.Tensor, exact: torch.Tensor) -> Verdict:
    """Ours may be twice as far from the float64 result as torch's is, and four units in the last
    place of the largest value: sums in another order are not errors, lost digits are."""
    largest = exact.abs().max().item()
    last_place = largest * torch.finfo(ours.dtype).eps
    error, theirs = ((x.double() - exact).abs().max().item() for x in (ours, peer))
    # A NaN would pass every test whether something is too large.
    return Verdict(name, error if error == error else float("inf"), 2 * theirs + 4 * last_place)


def equal(name: str, holds: bool) -> Verdict:
    """Something that is so or is not."""
    return Verdict(name, 0.0 if holds else 1.0, 0.0)


# ---- being fast


@dataclass(frozen=True)
class Case:
    """One line of the table: the same work, done by us and by torch."""

    name: str
    ours: Callable[[], Any]
    peer: Callable[[], Any]
    work: float  # bytes or operations of one call
    unit: str  # of work per second: GB/s, GFLOP/s
    goal: float | None = None  # times torch's speed that it ought to reach

    def rate(self, time: float) -> float:
        return self.work / time / 1e9

    def ought(self, goal: float) -> Case:
        return replace(self, goal=goal)


def moved(name: str, ours: Callable[[], Any], peer: Callable[[], Any], *read_or_written: Any):
    """A case that is as fast as memory is: its work is the bytes that have to be moved."""
    return Case(
        name, ours, peer, sum(t.numel() * t.element_size() for t in read_or_written), "GB/s"
    )


def computed(name: str, ours: Callable[[], Any], peer: Callable[[], Any], operations: float):
    """A case that is as fast as multipliers are."""
    return Case(name, ours, peer, operations, "GFLOP/s")


@dataclass(frozen=True)
class Timed:
    """Seconds per call, one entry per round for both."""

    case: Case
    ours: list[float]
    peer: list[float]

    @property
    def times_faster(self) -> float:
        return ratio(self.peer, self.ours)

    @property
    def interval(self) -> tuple[float, float]:
        return ratio_interval(self.peer, self.ours)

    def rates(self, who: str) -> tuple[float, float, float]:
        """Work per second: in the middle, and between what 95 % is sure to lie."""
        times = self.ours if who == OURS else self.peer
        fast, slow = median_interval(times)
        return self.case.rate(median(times)), self.case.rate(slow), self.case.rate(fast)


def timed(case: Case, rounds: int) -> Timed:
    """Both take turns, and who begins changes: what disturbs the machine disturbs both. Few rounds
    are a trial, of one call each; calls that take seconds are not made often."""
    calls = (case.ours, case.peer)
    for call in calls:
        call()  # compiles
    if rounds <= TRIAL:
        repeats = (1, 1)
    else:
        once = [seconds(call, 1) for call in calls]
        repeats = tuple(1 if t > ROUND_SECONDS else repeats_of(c) for c, t in zip(calls, once))
        rounds = max(1, min(rounds, int(MOST_SECONDS / sum(once))))
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for k in (0, 1) if number % 2 == 0 else (1, 0):
            if rounds > TRIAL:
                sleep(SETTLING)
            found[k].append(seconds(calls[k], repeats[k]))
    return Timed(case, *found)


def curve(
    name: str,
    x: str,
    values: Sequence[int],
    label: str,
    case_of: Callable[[int], Case],
    rounds: int,
) -> tw.testing.Mark:
    """A plot of both over a size. A report measures one line after the other; here both are
    measured together, with the first."""
    done: dict[int, Timed] = {}
    unit = case_of(values[0]).unit

    def rates(who: str, **point: int) -> tuple[float, float, float]:
        size = point[x]
        if size not in done:
            done[size] = timed(case_of(size), rounds)
        return done[size].rates(who)

    lines = tw.testing.Benchmark(
        x_names=[x],
        x_vals=list(values),
        line_arg="who",
        line_vals=[OURS, PEER],
        line_names=[OURS, PEER],
        plot_name=name,
        xlabel=label,
        ylabel=unit,
        x_log=True,
    )
    return tw.testing.perf_report(lines)(rates)


class Example(Protocol):
    """What a file of this folder offers. `quick` means small sizes."""

    def check(self, quick: bool) -> list[Verdict]: ...

    def cases(self, quick: bool) -> list[Case]: ...

    def plot(self, quick: bool, rounds: int) -> tw.testing.Mark: ...
