"""Where compile time goes: seconds by phase, in the order in which phases began."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Phases(dict[str, float]):
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
