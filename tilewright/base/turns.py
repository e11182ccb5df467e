"""Threads of Python take turns: one that returns from a long call into C waits for the lock."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

# Seconds that a thread waits before it asks the one that runs for its turn. Python's own interval
# is ten times as long, which is as long as most calls into LLVM take.
_QUICK = 0.0005


class _Turns:
    def __init__(self) -> None:
        self.lock, self.users, self.before = Lock(), 0, _QUICK


_turns = _Turns()


@contextmanager
def quick_turns() -> Iterator[None]:
    """Threads that return from C get the lock soon. The interval is that of the whole process, and
    is restored when the last user leaves."""
    with _turns.lock:
        if _turns.users == 0:
            _turns.before = sys.getswitchinterval()
            sys.setswitchinterval(min(_QUICK, _turns.before))
        _turns.users += 1
    try:
        yield
    finally:
        with _turns.lock:
            _turns.users -= 1
            if _turns.users == 0:
                sys.setswitchinterval(_turns.before)
