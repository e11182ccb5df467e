"""Measuring on other machines: code is made here, for the target there, and raced there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.target import Target
from tilewright.tune.fleet.pool import Pool
from tilewright.tune.fleet.shop import Shop
from tilewright.tune.measure import ROUNDS
from tilewright.tune.measuring.race import Verdict
from tilewright.tune.measuring.worker import Job


@dataclass
class FleetMeasuring:
    """As many races at a time as there are workers; callers wait for theirs."""

    pool: Pool
    shop: Shop
    rounds: int = ROUNDS

    @property
    def target(self) -> Target:
        return self.pool.target

    @property
    def threads(self) -> int:
        return self.pool.threads

    def measure(
        self,
        group: str,
        traces: Sequence[str],
        rounds: int | None = None,
    ) -> list[Verdict]:
        made = self.shop.built(group, traces, self.target)
        verdicts = [x if isinstance(x, Verdict) else Verdict() for x in made]
        ready = [(k, code) for k, code in enumerate(made) if isinstance(code, bytes)]
        if not ready or ready[0][0] != 0:
            return verdicts  # nothing to compare with
        given = tuple(traces[k] for k, _ in ready)
        codes = tuple(code for _, code in ready)
        how = (self.target, self.threads, rounds or self.rounds, codes)
        found = self.pool.race(Job(group, given, *how))
        for (k, _), v in zip(ready, found, strict=True):
            verdicts[k] = v
        return verdicts

    def close(self) -> None:
        self.shop.close()
        self.pool.close()
