"""Measured schedules for training: groups are prepared by all processors at once, then measured
one after the other on a machine that does nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.base.messages import Receiver, send
from tilewright.driver.learning.drawn import family_of
from tilewright.driver.learning.preparing import Job, Measure, Prepare
from tilewright.ir.target import Target
from tilewright.tune.models.samples import Sample, append_samples, load_samples

_PROCESS = "from tilewright.driver.learning.preparing import main; main()"
_ROOT = Path(__file__).resolve().parents[3]  # where the package lies
# Groups of a phase for each process: enough that none waits long for the others.
GROUPS = 4
# Seconds that a group may take to be prepared, and to be measured.
PATIENCE = 300.0


class _Process:
    """One that prepares and measures, asked one thing at a time."""

    def __init__(self, target: Target, threads: int) -> None:
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.own = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROCESS],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self.own.stdin is not None and self.own.stdout is not None
        self.answers = Receiver(self.own.stdout)
        self.asked: Job | None = None
        self.since = 0.0
        self.prepared: list[int] = []
        send(self.own.stdin, (target, threads))

    def ask(self, job: Job) -> None:
        assert self.own.stdin is not None
        self.asked, self.since = job, time.monotonic()
        send(self.own.stdin, job)

    def close(self) -> None:
        self.own.kill()
        self.own.communicate()


@dataclass
class Collecting:
    """A file that grows to `groups` groups of `schedules` schedules, whoever began it."""

    path: Path
    target: Target
    threads: int
    groups: int
    schedules: int
    seed: int = 0
    jobs: int = 1
    until: float = float("inf")  # by time.monotonic()
    problems: list[str] = field(default_factory=list)
    known: list[Sample] = field(default_factory=list)
    _processes: list[_Process] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if self.path.exists():
            self.known, self.problems = load_samples(self.path)

    def run(self, tell: Callable[[str], object] = lambda what: None) -> Iterator[Sample]:
        """Phases of preparing and measuring; each sample is on disk when it is told."""
        done = {s.draw for s in self.known if s.seed == self.seed}
        left = deque(k for k in range(self.groups) if k not in done)
        try:
            while left and time.monotonic() < self.until:
                phase = [left.popleft() for _ in range(min(len(left), GROUPS * self.jobs))]
                tell("preparing")
                lost = yield from self._prepare(phase)
                tell("measuring")
                lost += yield from self._measure()
                left.extendleft(reversed(lost))
        finally:
            for p in self._processes:
                p.close()
            self._processes.clear()

    def _found(self, sample: Sample) -> Sample:
        append_samples(self.path, [sample])
        return sample

    def _failed(self, draw: int, why: str) -> Sample:
        place = (self.seed, draw, family_of(draw), "", self.target.text(), self.threads)
        return self._found(Sample(*place, why=why))

    def _prepare(self, draws: list[int]) -> Iterator[Sample]:
        """By all processes at once; those that a lost process had prepared are to be done again."""
        left, lost = deque(draws), list[int]()
        while len(self._processes) < self.jobs:
            self._processes.append(_Process(self.target, self.threads))
        while left or any(p.asked for p in self._processes):
            for at, p in enumerate(self._processes):
                if p.asked is None and left:
                    self._ask(p, Prepare(left.popleft(), self.seed, self.schedules))
                if p.asked is None:
                    continue
                draw = p.asked.draw
                answer, ended = self._answer(p, 0.05)
                if ended:
                    self._processes[at] = _Process(self.target, self.threads)
                    lost += p.prepared
                    yield self._failed(draw, f"the process {ended} while it was prepared")
                elif isinstance(answer, str):
                    yield self._failed(draw, answer)
                elif answer is not None:
                    p.prepared.append(draw)
        return lost

    def _measure(self) -> Iterator[Sample]:
        """One process after the other, one group after the other."""
        lost: list[int] = []
        for at, p in enumerate(self._processes):
            while p.prepared:
                draw = p.prepared.pop(0)
                self._ask(p, Measure(draw))
                answer, ended = self._answer(p, PATIENCE)
                if ended:
                    self._processes[at] = _Process(self.target, self.threads)
                    lost += p.prepared
                    yield self._failed(draw, f"the process {ended} while it was measured")
                    break
                if isinstance(answer, Sample):
                    yield self._found(answer)
                else:
                    yield self._failed(draw, str(answer))
        return lost

    def _ask(self, p: _Process, job: Job) -> None:
        with suppress(OSError):  # where it has ended, `_answer` sees it
            p.ask(job)

    def _answer(self, p: _Process, within: float) -> tuple[Sample | int | str | None, str]:
        """What a process says and "", or None and how it ended; None and "" where it is not yet
        done."""
        try:
            answer = p.answers.receive(within)
        except TimeoutError:
            if time.monotonic() - p.since < PATIENCE:
                return None, ""
            p.close()
            return None, "did not come back"
        except (OSError, EOFError):
            p.close()
            return None, "ended"
        p.asked = None
        return answer, ""
