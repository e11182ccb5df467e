"""Entries of OpInfo in processes that may die or hang. No torch here: only a worker needs it."""

from __future__ import annotations

import faulthandler
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any


@dataclass
class Outcome:
    """How an entry went. `status` is one of STATUSES; only `right` counts."""

    name: str
    status: str
    detail: str = ""
    kernels: int = 0
    samples: int = 0
    libraries: list[str] = field(default_factory=list)
    fallbacks: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


STATUSES = {
    "right": "right",
    "rounding": "off by no more than rounding moves eager's own result",
    "wrong": "wrong numbers",
    "unsupported": "an operator without a definition (strict)",
    "no kernel": "right, but no native kernel ran",
    "capture": "torch cannot capture the entry as one graph",
    "alike": "torch's own capture (aot_eager) is as wrong, or refuses it too",
    "error": "the compiler raised",
    "crash": "the process died",
    "timeout": "took too long",
    "eager": "eager itself refuses the sample",
}


@dataclass(frozen=True)
class Settings:
    """One run: what is checked and how."""

    dtype: str = "float32"
    samples: int = 2
    backend: str = "tilewright"
    strict: bool = False
    jobs: int = 2
    timeout: float = 120.0
    gradients: bool = False  # of the results, for all inputs that ask for one

    @property
    def mode(self) -> str:
        mode = "strict" if self.strict else "lenient"
        return f"{mode} gradients" if self.gradients else mode


def run(
    names: Sequence[str], settings: Settings, life: Callable[..., None] | None = None
) -> Iterator[Outcome]:
    """Check entries in worker processes; outcomes come in the order they finish. `life` is what a
    worker does, for tests of this file."""
    waiting = list(reversed(names))
    workers = [Worker(settings, life or work) for _ in range(min(settings.jobs, len(names)))]
    try:
        for worker in workers:
            worker.give(waiting.pop())
        while busy := [worker for worker in workers if worker.entry]:
            ready = connection.wait([worker.pipe for worker in busy], timeout=1.0)
            for worker in busy:
                outcome = worker.outcome(worker.pipe in ready)
                if outcome is None:
                    continue
                if waiting:
                    worker.give(waiting.pop())
                yield outcome
    finally:
        for worker in workers:
            worker.stop()


class Worker:
    """A process that checks one entry at a time and gives way to another when it dies or hangs."""

    def __init__(self, settings: Settings, life: Callable[..., None]) -> None:
        self.settings, self.life = settings, life
        self.entry = ""
        self.started = 0.0
        self.alive = False

    def _start(self) -> None:
        context = get_context("spawn")
        self.folder = tempfile.TemporaryDirectory()
        self.noise = Path(self.folder.name) / "stderr"
        self.noise.touch()
        self.pipe, theirs = context.Pipe()
        arguments = (theirs, self.settings, self.noise)
        self.process = context.Process(target=self.life, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        self.alive = True

    def give(self, entry: str) -> None:
        if not self.alive:
            self._start()
        self.entry, self.started = entry, time.monotonic()
        # A worker that is dead by now shows it when its outcome is read.
        with suppress(OSError):
            self.pipe.send(entry)

    def outcome(self, ready: bool) -> Outcome | None:
        """The outcome of the entry in hand, if there is one by now."""
        spent = time.monotonic() - self.started
        if ready:
            try:
                found = self.pipe.recv()
            except (EOFError, OSError):
                found = self._replace("crash", self._last_words(), spent)
        elif spent > self.settings.timeout:
            found = self._replace("timeout", f"more than {self.settings.timeout:.0f} s", spent)
        else:
            return None
        self.entry = ""
        return found

    def _replace(self, status: str, detail: str, spent: float) -> Outcome:
        self.stop()
        return Outcome(self.entry, status, detail, seconds=spent)

    def _last_words(self) -> str:
        self.process.join(5)
        text = self.noise.read_text(errors="replace").strip()
        lines = [line for line in text.splitlines() if line.strip()]
        fatal = [line for line in lines if "Fatal" in line or "LLVM ERROR" in line]
        said = fatal[-1] if fatal else (lines[-1] if lines else "it said nothing")
        return f"exit {self.process.exitcode}: {said}"[:300]

    def stop(self) -> None:
        if not self.alive:
            return
        self.alive = False
        self.pipe.close()
        # An idle worker leaves when its pipe closes; a hanging one has to be made to.
        self.process.join(0.1 if self.entry else 10)
        self.process.kill()
        self.process.join()
        self.folder.cleanup()


def work(pipe: connection.Connection, settings: Settings, noise: Path) -> None:
    """The worker's life: entries by name in, outcomes out."""
    serve(pipe, noise, lambda: import_module("tests.suites.opinfo_entry").checker(settings))


def serve(
    pipe: connection.Connection, noise: Path, start: Callable[[], Callable[[str], Outcome]]
) -> None:
    """Checks cases by name until nobody asks any more; `start` makes what checks one."""
    # Compilers write to the terminal as they die; the parent reads it from here.
    with open(noise, "w") as log:
        os.dup2(log.fileno(), 2)
    faulthandler.enable()
    check = start()
    while True:
        try:
            name = pipe.recv()
        except EOFError:
            return
        try:
            outcome = check(name)
        except Exception as error:
            outcome = Outcome(name, "error", f"the check raised {type(error).__name__}: {error}")
        pipe.send(outcome)
