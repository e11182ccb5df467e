"""The parent's end of a worker: start it, send requests, and find out why it does not answer."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 1200.0  # seconds: a peer that tunes itself for minutes is slow, one that hangs is out


class Failed(Exception):
    """A worker could not do what was requested; the message says why."""


class Process:
    """A worker in a process of its own; every request also carries `common`."""

    def __init__(
        self,
        common: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self.common, self.patience = common, patience
        self.noise = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed by close)
        threads = str(common["threads"])
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {
            "TILEWRIGHT_THREADS": threads,
            "OMP_NUM_THREADS": threads,
            "PYTHONPATH": os.pathsep.join(paths),
            # Installed packages have bytecode files; a source tree should have them, too.
            "PYTHONDONTWRITEBYTECODE": "",
        }
        self.child = subprocess.Popen(
            [sys.executable, "-m", "tilewright.bench.worker"],
            env=os.environ | variables | dict(environment or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.noise,
            text=True,
        )
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.lines.put(line)
        self.lines.put("")  # no more answers

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        """The answer to a request; `Failed` with a sentence where there is none."""
        assert self.child.stdin is not None
        try:
            self.child.stdin.write(json.dumps({**self.common, **more, "do": do}) + "\n")
            self.child.stdin.flush()
            line = self.lines.get(timeout=self.patience)
        except queue.Empty:
            self.child.kill()
            raise Failed(f"it gave no answer within {self.patience:.0f} s") from None
        except BrokenPipeError:
            line = ""
        if not line:
            raise Failed(self._ending())
        answer = json.loads(line)
        if "failed" in answer:
            raise Failed(answer["failed"])
        return answer

    def _ending(self) -> str:
        code = self.child.wait()
        self.noise.seek(0)
        said = self.noise.read().strip().splitlines()
        last = f": {said[-1]}" if said else ""
        if code < 0:
            name = signal.Signals(-code).name
            # What the system does to the largest process when memory runs out.
            why = ", perhaps because memory ran out" if name == "SIGKILL" else ""
            return f"its process was ended by {name}{why}{last}"
        return f"its process ended with status {code}{last}"

    def close(self) -> None:
        if self.child.stdin is not None:
            with suppress(BrokenPipeError):
                self.child.stdin.close()  # the end of requests is the end of the worker
        try:
            self.child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        self.noise.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: object, trace: TracebackType | None
    ) -> None:
        self.close()
