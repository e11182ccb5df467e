"""`tilewright calibrate`: all measurements of a machine, one after the other, and what they say."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tilewright.base.cache import code_version
from tilewright.ir.target import Target
from tilewright.llvm.objects import LLVM_VERSION
from tilewright.targets.measured import Measured, machine_of
from tilewright.tune.calibration import check, numbers, products
from tilewright.tune.calibration.check import Ranking
from tilewright.tune.calibration.machine import Machine
from tilewright.tune.calibration.numbers import Number
from tilewright.tune.calibration.products import Racing

# Seconds of all measurements; those of single instructions and bytes end before.
SECONDS, PROBE_SECONDS = 45.0, 25.0
# Programs that want each core, above which nothing is believed.
LOADED = 0.25
# So many unsteady numbers keep their guesses; with more of them the machine was busy.
FEW = 2


@dataclass(frozen=True)
class Calibration:
    """What was found, and what speaks against believing it."""

    measured: Measured
    numbers: tuple[Number, ...]
    before: Ranking  # schedules ranked by guesses
    after: Ranking  # and by measured numbers
    doubts: tuple[str, ...]


def ticks(guess: Target) -> int:
    """How often a calibration of a machine reports progress."""
    return numbers.ROUNDS * len(numbers.probes_of(guess)) + len(check.SIZES) + 3


def calibrate(
    machine: Machine,
    guess: Target,
    load: float,
    race: Racing = products.raced,
    tick: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
    believe: bool = False,
) -> Calibration:
    """Measures everything. `load` is that of each core when it began; `believe` takes unsteady
    numbers too."""
    began = clock()
    late = lambda seconds: clock() - began > seconds  # noqa: E731
    samples = numbers.sampled(
        machine, numbers.probes_of(guess), tick=tick, late=lambda: late(PROBE_SECONDS)
    )
    found = numbers.numbers(guess, samples)
    doubts = _doubts(found, load)
    if not believe:
        said = "its repeats disagree by {:.0%}"
        found = [n if n.steady else replace(n, kept=said.format(n.spread)) for n in found]
    target = replace(guess, **numbers.as_mapping(found))
    tiles = products.tiles(target, race)
    tick()
    target = replace(target, tiles=tiles)
    ahead = products.prefetch(target, race)
    found.append(Number("prefetch", guess.prefetch, ahead))
    tick()
    target = replace(target, prefetch=ahead)
    seen = numbers.seen(guess, samples) | products.peaks(target, race)
    tick()
    before, after = check.rankings((guess, target), race, tick, lambda: late(SECONDS))
    measured = Measured(
        machine_of(guess),
        numbers.as_mapping(found),
        tiles,
        after.good,
        datetime.now(UTC).isoformat(timespec="minutes"),
        {n.name: n.kept for n in found if n.kept},
        seen | _said(before, after),
        {"tilewright": code_version(), "llvm": LLVM_VERSION},
    )
    return Calibration(measured, tuple(found), before, after, doubts)


def _doubts(found: Sequence[Number], load: float) -> tuple[str, ...]:
    out = []
    if load > LOADED:
        out.append(f"{load:.1f} programs wanted each core during the last minute")
    unsteady = [f"{n.name} by {n.spread:.0%}" for n in found if not n.steady]
    if len(unsteady) > FEW:
        out.append(f"repeats disagree: {', '.join(unsteady)}")
    return tuple(out)


def _said(before: Ranking, after: Ranking) -> dict[str, str]:
    return {
        "rank correlation of estimates, guessed": f"{before.correlation:.2f}",
        "rank correlation of estimates, measured": f"{after.correlation:.2f}",
        "speed of ranked schedules": f"{after.gain:.3f} of the rules'",
    }
