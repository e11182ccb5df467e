"""Counters of a server, as text for Prometheus."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

# Seconds, from a small network on one core to a large one behind a queue.
SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass
class Histogram:
    """How many values are at most each bound; the last count is of those beyond all."""

    bounds: Sequence[float]
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, value: float) -> None:
        self.sum += value
        for k, bound in enumerate(self.bounds):
            if value <= bound:
                self.counts[k] += 1
                return
        self.counts[-1] += 1

    def quantile(self, share: float) -> float | None:
        """The bound that this share of all values is within; None without values."""
        if not self.count:
            return None
        seen = 0
        for bound, count in zip(self.bounds, self.counts):
            seen += count
            if seen >= share * self.count:
                return bound
        return float("inf")

    def lines(self, name: str) -> Iterator[str]:
        seen = 0
        for bound, count in zip(self.bounds, self.counts):
            seen += count
            yield f'{name}_bucket{{le="{bound:g}"}} {seen}'
        yield f'{name}_bucket{{le="+Inf"}} {self.count}'
        yield f"{name}_sum {self.sum:.9g}"
        yield f"{name}_count {self.count}"


@dataclass
class Metrics:
    """Updated by the event loop's thread only."""

    started: float = field(default_factory=time.monotonic)
    responses: Counter[int] = field(default_factory=Counter)  # by status
    rows: int = 0
    connections: int = 0
    latency: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    queued: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    batches: Histogram = field(default_factory=lambda: Histogram(SIZES))
    run_seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))

    def batch(self, requests: int, rows: int, arrived: Sequence[float]) -> None:
        self.batches.add(requests)
        self.rows += rows
        now = time.monotonic()
        for moment in arrived:
            self.queued.add(now - moment)

    def text(self, waiting: int, running: int) -> str:
        lines: list[str] = []

        def say(name: str, kind: str, about: str, values: Iterator[str] | Sequence[str]) -> None:
            lines.append(f"# HELP {name} {about}")
            lines.append(f"# TYPE {name} {kind}")
            lines.extend(values)

        def number(name: str, kind: str, about: str, value: float) -> None:
            say(name, kind, about, [f"{name} {value:.9g}"])

        say(
            "tilewright_responses_total",
            "counter",
            "Responses by their status.",
            [
                f'tilewright_responses_total{{code="{code}"}} {count}'
                for code, count in sorted(self.responses.items())
            ],
        )
        number("tilewright_rows_total", "counter", "Rows of batches that ran.", self.rows)
        number("tilewright_waiting", "gauge", "Requests in the queue.", waiting)
        number("tilewright_running", "gauge", "Batches that run now.", running)
        number("tilewright_connections", "gauge", "Open connections.", self.connections)
        uptime = time.monotonic() - self.started
        number("tilewright_uptime_seconds", "gauge", "Since the server started.", uptime)
        for name, about, found in (
            ("latency_seconds", "From a whole request to its response.", self.latency),
            ("queue_seconds", "From a whole request to its run.", self.queued),
            ("run_seconds", "Runs of the package.", self.run_seconds),
            ("batch_requests", "Requests in a batch.", self.batches),
        ):
            say(f"tilewright_{name}", "histogram", about, found.lines(f"tilewright_{name}"))
        return "\n".join(lines) + "\n"
