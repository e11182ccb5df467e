"""What calls found in their data after they returned: a GPU does the work of a call later.

The next call raises it, and so does `tw.synchronize`. Of the last calls of a process nobody would
hear: they are checked when the process ends, with a line on standard error each.
"""

from __future__ import annotations

import atexit
import sys
import weakref
from typing import Protocol


class Late(Protocol):
    """A program whose calls may have found something that nobody was told of yet."""

    def found_late(self) -> Exception | None:
        """That, once all work is done; it is told once."""
        ...


_watched: weakref.WeakSet[Late] = weakref.WeakSet()


def watch(program: Late) -> None:
    """From now on the end of the process waits for its calls."""
    if not _watched:
        atexit.unregister(report)
        atexit.register(report)
    _watched.add(program)


def report() -> None:
    """A line for each program whose calls found something."""
    for program in list(_watched):
        try:
            problem = program.found_late()
        except RuntimeError as lost:  # the GPU itself has failed, which nobody else may say
            problem = lost
        if problem is not None:
            said = str(problem).splitlines()[0] if str(problem) else ""
            print(
                f"tilewright: an earlier call found an error in its data: "
                f"{type(problem).__name__}: {said}",
                file=sys.stderr,
                flush=True,
            )
