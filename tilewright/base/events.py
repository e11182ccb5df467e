"""Events: what the compiler decided, refused or had to do, with the user's place.

A `Log` is passed as an argument to whatever may have something to say. Each event also goes through
Python logging as `tilewright.<kind>`, shown when TILEWRIGHT_LOGS names the kind.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from . import knobs

_ROOT = "tilewright"


@dataclass(frozen=True)
class Event:
    """One decision, refusal or fact; `detail` marks what is shown only with `+kind`."""

    kind: str
    message: str
    where: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict, hash=False)
    detail: bool = False

    def __str__(self) -> str:
        place = f"  ({self.where})" if self.where else ""
        return f"{self.kind}: {self.message}{place}"


class Log:
    """Collects events, oldest first; the count per kind survives when old events are dropped."""

    def __init__(self, limit: int = 10_000):
        self._events: deque[Event] = deque(maxlen=limit)
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def emit(self, event: Event) -> Event:
        self.hear(event)
        for listener in _listeners:
            if listener is not self:
                listener.hear(event)
        _publish(event)
        return event

    def hear(self, event: Event) -> None:
        """Add an event of another log, which has already passed it on to everyone else."""
        with self._lock:
            self._events.append(event)
            self.counts[event.kind] += 1

    def add(
        self,
        kind: str,
        message: str,
        *,
        where: object = None,
        detail: bool = False,
        **data: Any,
    ) -> Event:
        place = None if where is None else str(where)
        return self.emit(Event(kind, message, place, data, detail))

    @property
    def events(self) -> list[Event]:
        return list(self)

    def of(self, kind: str) -> list[Event]:
        return [event for event in self if event.kind == kind]

    def __iter__(self) -> Iterator[Event]:
        with self._lock:
            return iter(tuple(self._events))

    def __len__(self) -> int:
        return len(self._events)


class HeldLog(Log):
    """Keeps events to itself until it is known that they are wanted."""

    def emit(self, event: Event) -> Event:
        self.hear(event)
        return event

    def release(self, to: Log) -> None:
        for event in self:
            to.emit(event)


# Logs that receive the events of all logs of the process; a tuple: emitting needs no lock.
_listeners: tuple[Log, ...] = ()


@contextmanager
def recording() -> Iterator[Log]:
    """A log that receives the events of all logs of the process, from any thread, inside a
    `with`."""
    global _listeners
    log = Log()
    _listeners = (*_listeners, log)
    try:
        yield log
    finally:
        _listeners = tuple(x for x in _listeners if x is not log)


def _publish(event: Event) -> None:
    logger = logging.getLogger(f"{_ROOT}.{event.kind}")
    level = logging.DEBUG if event.detail else logging.INFO
    shown = knobs.logs.get().shows(event.kind, detail=event.detail)
    if not shown and not logger.isEnabledFor(level):
        return
    if shown:
        _show_on_terminal()
    place = f"  ({event.where})" if event.where else ""
    # Handled directly: the switch shows a kind without changing the application's logging levels.
    logger.handle(
        logger.makeRecord(
            logger.name, level, "", 0, "%s%s", (event.message, place), None, extra={"event": event}
        )
    )


def _show_on_terminal() -> None:
    """Give the root logger a handler unless the application set one up."""
    logger = logging.getLogger(_ROOT)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
        logger.addHandler(handler)
