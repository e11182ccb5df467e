"""Where the time of a program goes: marks between the actions of its entry, and a Chrome trace."""

from __future__ import annotations

import ctypes
import json
import time
from pathlib import Path

_MARK = ctypes.CFUNCTYPE(None, ctypes.c_int64)


class Marks:
    """Collects the marks of a program compiled for profiling; calls must not overlap."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.times: list[tuple[int, int]] = []
        self._callback = _MARK(lambda k: self.times.append((k, time.perf_counter_ns())))

    def address(self) -> int:
        address = ctypes.cast(self._callback, ctypes.c_void_p).value
        assert address is not None
        return address

    def spans(self) -> list[tuple[str, int, int]]:
        """(name, start, nanoseconds) of every action of each call."""
        out = []
        for (k, start), (after, end) in zip(self.times, self.times[1:], strict=False):
            if after == k + 1:
                out.append((self.names[k] if k < len(self.names) else str(k), start, end - start))
        return out

    def totals(self) -> list[tuple[str, int, float]]:
        """(name, calls, milliseconds), the slowest first."""
        table: dict[str, list[int]] = {}
        for name, _, took in self.spans():
            table.setdefault(name, []).append(took)
        rows = [(n, len(t), sum(t) / 1e6) for n, t in table.items()]
        return sorted(rows, key=lambda r: -r[2])

    def chrome_trace(self, path: Path) -> None:
        events = [
            {"name": n, "ph": "X", "ts": start / 1e3, "dur": took / 1e3, "pid": 0, "tid": 0}
            for n, start, took in self.spans()
        ]
        path.write_text(json.dumps({"traceEvents": events}))
