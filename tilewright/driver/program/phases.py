"""Where compile time goes: seconds by phase, in the order in which phases began."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # loaded only where something is compiled
    from tilewright.ir.passes import PassRun


class Phases(dict[str, float]):
    """Seconds by the name of a phase; `passes` says the same of each pass, and what it changed."""

    def __init__(self, *given: Mapping[str, float]) -> None:
        super().__init__(*given)
        self.passes: list[PassRun] = []

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self.setdefault(name, 0.0)
        began = time.perf_counter()
        try:
            yield
        finally:
            self[name] += time.perf_counter() - began

    @property
    def total(self) -> float:
        return sum(self.values())
