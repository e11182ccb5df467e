"""Drawing cases in processes that may die: which process draws what, its answers, and what is
stored of them."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.generators import ROOT, Failure
from tests.shrinking import Watch, ended, resident, too_large

# Seconds that a process stays with one generator before another has its turn: importing torch takes
# some, and in a short run each generator is to have its turns.
SLICE, SHORTEST_SLICE = 180.0, 20.0
START = 180.0  # seconds that a process may take to be ready
# A process that holds more than this part of what it may hold is replaced by a new one.
REPLACED = 0.4
SHRINK = 150.0  # seconds for making one case small
# Cases of a kind that are made small: one kind of error is one cause as a rule, wrong results are
# all of one kind.
SHRUNK, SHRUNK_WRONG = 2, 8


@dataclass(frozen=True)
class Limits:
    minutes: float | None
    seconds: float | None  # of a draw; None for the generator's own
    memory: int  # MiB of a process


@dataclass
class Tally:
    draws: int = 0
    seconds: float = 0.0
    failed: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    slowest_seed: int = 0
    # Seeds of cases that tell nothing about the compiler, by the reason.
    skipped: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    generator: str
    seed: int
    ordinal: int  # which draw of its generator it was, from 1
    failure: Failure
    about: str
    path: Path | None


class Gone(Exception):
    """A process did not answer; the failure says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.kind)
        self.failure = failure


class Process:
    """A worker, see tests/worker.py."""

    def __init__(self, arguments: list[str], scratch: Path, memory: int) -> None:
        self.memory = memory << 20
        self.complaint = (scratch / f"stderr-{time.monotonic_ns()}").open("w+b")
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            # Everything is compiled: what the cache holds was right once.
            "TILEWRIGHT_CACHE": "0",
            "TILEWRIGHT_COMPILE_JOBS": "1",
            "OMP_NUM_THREADS": "1",
            # Nothing here runs on a GPU. Where torch sees one, each compilation asks it for its
            # random numbers, which is refused in forked processes.
            "CUDA_VISIBLE_DEVICES": "",
        }
        # Two threads even where each process has one core: loops in parallel are tested too.
        environment.setdefault("TILEWRIGHT_THREADS", "2")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaint,
            cwd=ROOT,
            env=environment,
            start_new_session=True,  # an interrupt is for the one who starts them
        )
        self.pending = b""

    def ask(self, seed: int | None, seconds: float) -> dict[str, Any]:
        """Send a seed (or nothing) and wait for the answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            if seed is not None:
                self.process.stdin.write(f"{seed}\n".encode())
                self.process.stdin.flush()
        except BrokenPipeError:
            raise Gone(self.end()) from None
        watch = Watch(self.process.pid, seconds)
        while b"\n" not in self.pending:
            ready, _, _ = select.select([self.process.stdout], [], [], 0.25)
            if ready:
                part = os.read(self.process.stdout.fileno(), 1 << 16)
                if not part:
                    raise Gone(self.end())
                self.pending += part
            elif late := watch.late():
                self.close()
                raise Gone(late)
            elif resident(self.process.pid) > self.memory:
                self.close()
                raise Gone(too_large(self.memory))
        line, _, self.pending = self.pending.partition(b"\n")
        return json.loads(line)

    def end(self) -> Failure:
        """Why it ended by itself."""
        status = self.process.wait()
        self.complaint.seek(0)
        text = self.complaint.read().decode(errors="replace")
        self.close()
        return ended(status, text)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.complaint):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue  # what it had not read yet


class Campaign:
    """Draws of several generators, in several processes at a time."""

    def __init__(
        self,
        known: dict[str, str],
        counts: dict[str, int | None],
        seed: int,
        limits: Limits,
        out: Path,
        scratch: Path,
    ) -> None:
        self.known, self.counts, self.limits = known, counts, limits
        self.seed, self.out, self.scratch = seed, out, scratch
        self.tallies = {name: Tally() for name in counts}
        self.findings: list[Finding] = []
        self.faults: list[str] = []  # of the run itself: a generator that cannot be loaded
        # Draws that compiled slowly: generator, seed, and what was said of them.
        self.slow: list[tuple[str, int, Failure]] = []
        self._given = dict.fromkeys(counts, 0)
        self._kinds: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._began = time.monotonic()
        self._live: set[Process] = set()
        # One alone gives way to nobody: its process goes on until it is too large.
        self._slice = SLICE if len(counts) > 1 else float("inf")

    @contextmanager
    def _process(self, arguments: list[str], memory: int) -> Iterator[Process]:
        process = Process(arguments, self.scratch, memory)
        with self._lock:
            self._live.add(process)
        try:
            yield process
        finally:
            with self._lock:
                self._live.discard(process)
            process.close()

    # ---- from outside

    def start(self, jobs: int) -> None:
        self._began = time.monotonic()
        if self.limits.minutes is not None and len(self.counts) > 1:
            turn = 60 * self.limits.minutes * jobs / (3 * len(self.counts))
            self._slice = min(SLICE, max(SHORTEST_SLICE, turn))
        self._threads = [threading.Thread(target=self._job) for _ in range(max(1, jobs))]
        for thread in self._threads:
            thread.start()

    def running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """Now: what is being drawn or made small is given up."""
        self._stopped.set()
        with self._lock:
            for process in self._live:
                process.process.kill()
        self.wait()

    def wait(self) -> None:
        for thread in self._threads:
            thread.join()

    def measure_slow_again(self) -> int:
        """Compile what was slow once more, with nothing else running: processes that share cores
        and caches slow each other down. What is slow then is made small and written down, the rest
        is forgotten. How many are forgotten."""
        quick = 0
        for name, seed, failure in list(self.slow):
            if self._still_slow(name, seed):
                self._keep(name, seed, failure, [seed])
            else:
                self.slow.remove((name, seed, failure))
                self.tallies[name].failed["slow"] -= 1
                quick += 1
        return quick

    def _still_slow(self, name: str, seed: int) -> bool:
        with self._process([name, self.known[name]], self.limits.memory) as process:
            try:
                ready = process.ask(None, START)
                answer = process.ask(seed, self.limits.seconds or ready["seconds"])
            except Gone:
                return True
            return answer["failure"] is not None

    def fraction(self) -> float:
        """How much of the run is done."""
        parts = [0.0]
        if self.limits.minutes is not None:
            parts.append((time.monotonic() - self._began) / (60 * self.limits.minutes))
        wanted = [n for n in self.counts.values() if n is not None]
        if wanted and len(wanted) == len(self.counts):
            parts.append(sum(t.draws for t in self.tallies.values()) / max(1, sum(wanted)))
        return min(1.0, max(parts))

    # ---- who draws what

    def _over(self) -> bool:
        late = self.limits.minutes is not None
        late = late and time.monotonic() - self._began > 60 * self.limits.minutes  # type: ignore[operator]
        return late or self._stopped.is_set()

    def _next(self) -> str | None:
        """The generator that is furthest behind: in its draws, or in time."""
        with self._lock:
            left = [
                n
                for n, c in self.counts.items()
                if (c is None or self._given[n] < c) and n in self.known
            ]
            if not left or self._over():
                return None

            def progress(name: str) -> float:
                wanted = self.counts[name]
                return self.tallies[name].seconds if wanted is None else self._given[name] / wanted

            return min(left, key=progress)

    def _seed(self, name: str) -> int | None:
        with self._lock:
            wanted = self.counts[name]
            if self._over() or (wanted is not None and self._given[name] >= wanted):
                return None
            self._given[name] += 1
            return self.seed + self._given[name] - 1

    def _job(self) -> None:
        while (name := self._next()) is not None:
            self._turn(name)

    def _turn(self, name: str) -> None:
        """Draws of one generator in one process, until it is another's turn."""
        with self._process([name, self.known[name]], self.limits.memory) as process:
            try:
                ready = process.ask(None, START)
            except Gone as gone:
                with self._lock:
                    if not self._stopped.is_set():
                        self.faults.append(f"{name} cannot be loaded: {gone.failure}")
                    self.known = {n: m for n, m in self.known.items() if n != name}
                return
            self._draws(name, process, self.limits.seconds or ready["seconds"])

    def _draws(self, name: str, process: Process, most: float) -> None:
        began, history = time.monotonic(), []
        while time.monotonic() - began < self._slice and (seed := self._seed(name)) is not None:
            history.append(seed)
            started = time.monotonic()
            answer: dict[str, Any]
            try:
                answer = process.ask(seed, most)
                failure = Failure(*answer["failure"]) if answer["failure"] else None
            except Gone as gone:
                if self._stopped.is_set():
                    return
                answer = {"compile": 0.0, "bytes": None}
                failure = gone.failure
            self._note(name, seed, answer["compile"], failure, time.monotonic() - started)
            if failure is not None and not failure.skipped and failure.what != "slow":
                self._keep(name, seed, failure, history)
            used = answer["bytes"]
            if used is None or used > REPLACED * (self.limits.memory << 20):
                return

    def _note(
        self, name: str, seed: int, compile: float, failure: Failure | None, seconds: float
    ) -> None:
        with self._lock:
            tally = self.tallies[name]
            tally.draws += 1
            tally.seconds += seconds
            if compile > tally.slowest:
                tally.slowest, tally.slowest_seed = compile, seed
            if failure is not None and failure.skipped:
                tally.skipped.setdefault(failure.kind, []).append(seed)
            elif failure is not None:
                tally.failed[failure.what] += 1
                if failure.what == "slow":
                    self.slow.append((name, seed, failure))

    # ---- what is found

    def _keep(self, name: str, seed: int, failure: Failure, history: list[int]) -> None:
        """Make it small and write it down, unless there are enough of its kind."""
        with self._lock:
            self._kinds[name, failure.kind] += 1
            enough = SHRUNK_WRONG if failure.what == "wrong" else SHRUNK
            if self._kinds[name, failure.kind] > enough:
                return
        ordinal = seed - self.seed + 1
        module = self.known[name]
        arguments = [name, module, "--minimal", str(seed), "--seconds", str(SHRINK)]
        arguments += ["--most-mb", str(self.limits.memory), "--ordinal", str(ordinal)]
        with self._process(arguments, 2 * self.limits.memory) as process:
            answer: dict[str, Any]
            try:
                answer = process.ask(None, START + 3 * SHRINK)
            except Gone as gone:
                answer = {"failure": None, "why": f"making it small failed: {gone.failure.kind}"}
        about = answer.get("about", "")
        if answer["failure"] is not None:
            failure, text = Failure(*answer["failure"]), answer["file"]
        else:
            text = _after_others(name, module, history, failure, answer.get("why"))
        with self._lock:
            if any(
                (f.generator, f.failure.kind, f.about) == (name, failure.kind, about)
                for f in self.findings
            ):
                return
            self.out.mkdir(parents=True, exist_ok=True)
            path = self.out / f"finding_{name}_{seed}.py"
            path.write_text(text, encoding="utf-8")
            self.findings.append(Finding(name, seed, ordinal, failure, about, path))


def _after_others(
    name: str, module: str, history: list[int], failure: Failure, why: str | None
) -> str:
    """A file for what fails after other draws in the same process only."""
    reason = why or "Alone this seed is right: it fails after others in the same process."
    quoted = f"{name}, {failure}\n\n{reason}".replace("\\", "\\\\").replace('"""', "'''")
    return (
        f'"""{quoted}\n"""\n\nimport sys\n\nsys.path.insert(0, {str(ROOT)!r})\n'
        "from tests.generators import reproduce_seeds\n\n"
        f"reproduce_seeds({name!r}, {module!r}, {history})\n"
    )
