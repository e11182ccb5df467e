"""Bytes of the whole process."""

from __future__ import annotations

import gc
import re
import resource
import sys
from contextlib import suppress
from pathlib import Path

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class ResidentPeak:
    """How far the memory of this process, and of the largest one it started, grew since."""

    def __init__(self) -> None:
        gc.collect()
        # The peak is reset to what is resident now; where that is refused, it is that of the
        # whole life of the process.
        with suppress(OSError):
            _RESET.write_text("5")
        self.before = self._peak()
        self.children = _largest_child()

    def grown(self) -> int:
        children = _largest_child()
        return self._peak() - self.before + (children if children > self.children else 0)

    def _peak(self) -> int:
        try:
            found = re.search(r"VmHWM:\s+(\d+) kB", _STATUS.read_text())
        except OSError:
            found = None
        if found is None:
            return _max_resident(resource.RUSAGE_SELF)
        return int(found.group(1)) * 1024


def _largest_child() -> int:
    return _max_resident(resource.RUSAGE_CHILDREN)


def _max_resident(who: int) -> int:
    size = resource.getrusage(who).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024
