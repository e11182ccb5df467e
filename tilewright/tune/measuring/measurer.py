"""What measures schedules: a process of this machine, or a pool of machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tilewright.ir.target import Target
from tilewright.tune.measuring.race import Verdict


class Measurer(Protocol):
    """Measures traces of groups for a target."""

    @property
    def target(self) -> Target: ...

    @property
    def threads(self) -> int: ...

    def measure(
        self,
        group: str,
        traces: Sequence[str],
        rounds: int | None = None,
    ) -> list[Verdict]:
        """Verdicts of all traces of a group, the first of which is the reference."""
        ...

    def close(self) -> None: ...
