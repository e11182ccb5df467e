"""Objects sent through pipes between processes of this package, received within a time."""

from __future__ import annotations

import os
import pickle
import selectors
import struct
import time
from typing import IO, Any

_LENGTH = struct.Struct("<Q")


def send(pipe: IO[bytes], what: object) -> None:
    data = pickle.dumps(what)
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


class Receiver:
    """Reads what `send` wrote. It keeps what it has read of the next message, so that several may
    be on their way."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._read = b""

    def receive(self, within: float | None = None) -> Any:
        """The next object. Raises EOFError where the other side has closed the pipe, TimeoutError
        where nothing came in so many seconds."""
        until = None if within is None else time.monotonic() + within
        head = self._take(_LENGTH.size, until)
        return pickle.loads(self._take(_LENGTH.unpack(head)[0], until))

    def _take(self, count: int, until: float | None) -> bytes:
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._pipe, selectors.EVENT_READ)
            while len(self._read) < count:
                left = None if until is None else max(0.0, until - time.monotonic())
                if not waiting.select(left):
                    raise TimeoutError("no answer came in time")
                more = os.read(self._pipe.fileno(), 1 << 16)
                if not more:
                    raise EOFError("the other process has ended")
                self._read += more
        taken, self._read = self._read[:count], self._read[count:]
        return taken
