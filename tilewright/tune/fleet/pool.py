"""A pool of workers that measure, wherever they are. A race leases one of them; a worker that is
lost loses nothing but its race, which another one runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from tilewright.base.cache import code_version
from tilewright.base.errors import Invalid
from tilewright.ir.target import Target
from tilewright.tune.measuring.race import Verdict
from tilewright.tune.measuring.worker import Job

# Seconds between looks for workers that came.
LOOK = 5.0
# Seconds that a race waits for a worker where there is none.
PATIENCE = 60.0
# Seconds until a worker is asked again that measures for somebody else.
AGAIN = 1.0
# Workers that may be lost with a race before it is given up: it may be what ends them.
MOST_LOST = 3


@dataclass(frozen=True)
class Facts:
    """What a worker tells of its machine: its name, the texts of targets whose code it runs, the
    threads that it has, the version of this package."""

    machine: str
    targets: tuple[str, ...]
    threads: int
    version: str
    problem: str = ""  # why it does not work at all

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(Target.parse(t).machine_key() for t in self.targets)


class Lost(Exception):
    """A worker is gone, or has not said that it is there for too long."""


class Busy(Exception):
    """A worker runs a race of somebody else."""


class Worker(Protocol):
    """One machine that measures, one race at a time."""

    @property
    def name(self) -> str: ...

    @property
    def facts(self) -> Facts: ...

    def race(self, job: Job) -> list[Verdict]:
        """Raises Lost or Busy."""
        ...

    def end(self) -> None:
        """It is not asked again."""
        ...


# New workers, given the names of those that are known.
Find = Callable[[Collection[str]], Sequence[Worker]]


class Pool:
    """The workers for a target. Any thread may ask for a race."""

    def __init__(
        self,
        target: Target,
        find: Find,
        threads: int | None = None,
        tell: Callable[[str], object] = lambda said: None,
        patience: float = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.target, self._find, self._tell = target, find, tell
        self._patience, self._clock = patience, clock
        self._wanted = threads
        self._workers: dict[str, Worker] = {}
        self._idle: list[Worker] = []
        self._known: set[str] = set()
        self._last: dict[str, str] = {}  # the worker of a group's last race
        self._free = threading.Condition()
        self._looking = threading.Lock()
        self._looked = -LOOK
        self._others: dict[str, str] = {}  # workers that are of no use, and why
        self.look()
        if not self._workers:
            raise self._none()
        # What all of them have; those that come later need as many.
        self.threads = threads or min(w.facts.threads for w in self._workers.values())
        self._wanted = self.threads

    @property
    def count(self) -> int:
        return len(self._workers)

    def look(self) -> None:
        """Workers that came since the last time are used from now on."""
        with self._looking:
            self._looked = self._clock()
            found = self._find(self._known)
            for w in found:
                why = self._unfit(w.facts)
                with self._free:
                    self._known.add(w.name)
                    if not why:
                        self._workers[w.name] = w
                        self._idle.append(w)
                        self._free.notify()
                if why:
                    self._others[w.name] = why
                    self._tell(f"{w.name} is left out: {why}")

    def _unfit(self, facts: Facts) -> str:
        if facts.problem:
            return facts.problem
        if facts.version != code_version():
            return f"it has another version of tilewright ({facts.version}, not {code_version()})"
        if self.target.machine_key() not in facts.keys:
            names = ", ".join(t.split()[1] for t in facts.targets)
            return (
                f"it runs code for {names}, not for {self.target.name} {self.target.machine_key()}"
            )
        if self._wanted is not None and facts.threads < self._wanted:
            return f"it has {facts.threads} threads, not {self._wanted}"
        return ""

    def _none(self) -> Invalid:
        said = "".join(f"; {name}: {why}" for name, why in self._others.items())
        return Invalid(
            f"no worker of the fleet measures code for {self.target.name}{said}",
            hint="start one on such a machine with `ray start --address=…`, with the same version "
            "of tilewright; `tilewright fleet ADDRESS` lists workers",
        )

    def race(self, job: Job) -> list[Verdict]:
        """Verdicts of one race, by one worker; by another one where that is lost."""
        lost = 0
        while lost < MOST_LOST:
            worker = self._leased(job.group)
            try:
                found = worker.race(job)
            except Lost as why:
                self._lose(worker, str(why))
                lost += 1
            except Busy:
                time.sleep(AGAIN)
                self._release(worker)
            except BaseException:
                self._release(worker)
                raise
            else:
                self._release(worker)
                return found
        given_up = Verdict(fault="crashed", why=f"{lost} workers were lost that measured it")
        return [given_up] * len(job.traces)

    def _leased(self, group: str) -> Worker:
        """A worker that is free; the one of the group's last race, if possible."""
        until = self._clock() + self._patience
        while True:
            if self._clock() - self._looked > LOOK or not self._workers:
                self.look()
            with self._free:
                if not self._idle:
                    self._free.wait(min(LOOK, 0.05 * self._patience))
                if self._idle:
                    usual = self._last.get(group)
                    worker = next((w for w in self._idle if w.name == usual), self._idle[0])
                    self._idle.remove(worker)
                    self._last[group] = worker.name
                    return worker
                if self._workers:  # they are all at work
                    until = self._clock() + self._patience
            if self._clock() > until:
                raise self._none()

    def _release(self, worker: Worker) -> None:
        with self._free:
            self._idle.append(worker)
            self._free.notify()

    def _lose(self, worker: Worker, why: str) -> None:
        worker.end()
        with self._free:
            self._workers.pop(worker.name, None)
        self._others[worker.name] = f"it was lost ({why})"
        self._tell(f"{worker.name} was lost: {why}; its race is run again")

    def close(self) -> None:
        for worker in self._workers.values():
            worker.end()
