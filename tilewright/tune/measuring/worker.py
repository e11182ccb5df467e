"""The process in which candidates run. It reads jobs from its input and writes to its output what
begins and what was found: a candidate that crashes or hangs takes only this process with it."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from tilewright.base.errors import TilewrightError
from tilewright.base.machine import available_memory
from tilewright.base.messages import Receiver, send
from tilewright.ir.target import Target
from tilewright.kernel.nest import start
from tilewright.kernel.step import apply, parse_trace
from tilewright.kernel.text import parse_group
from tilewright.runtime import pool
from tilewright.targets import families
from tilewright.tune.measure import Arguments
from tilewright.tune.measuring.judging import Exact, in_double, terms
from tilewright.tune.measuring.race import Verdict, race

import_module("tilewright.kernel.steps")  # registers all of them: traces name them

# Seconds between looks at whether the process that started this one is still there.
LOOKS = 1.0
# The first message: what follows is not the time of a start.
READY = "ready"


@dataclass(frozen=True)
class Job:
    """A group and traces of it as text, the first of which is the reference; `codes` are the code
    of each (measuring/built.py), where another machine made it."""

    group: str
    traces: tuple[str, ...]
    target: Target
    threads: int
    rounds: int
    codes: tuple[bytes, ...] = ()


def found(job: Job, begins: IO[bytes]) -> list[Verdict]:
    verdicts: list[Verdict] = [Verdict()] * len(job.traces)
    nests, numbers = [], []
    for k, text in enumerate(job.traces):
        try:
            nests.append(apply(start(parse_group(job.group)), parse_trace(text)))
            numbers.append(k)
        except TilewrightError as why:
            verdicts[k] = Verdict(fault="refused", why=why.what)
    if numbers[:1] != [0]:
        return verdicts
    pool.set_threads(job.threads)
    if job.target.grid is None:  # drivers of others reserve far more than they use
        _limit_memory()

    def told(k: int) -> None:
        send(begins, numbers[k])

    exact = partial(_exact, job)
    codes = [job.codes[k] for k in numbers] if job.codes else ()
    judged = race(nests, job.target, job.rounds, begins=told, codes=codes, exact=exact)
    for k, v in zip(numbers, judged, strict=True):
        verdicts[k] = v
    return verdicts


# Of the last group that was asked for: its races follow each other, with the same arguments.
_known: dict[tuple[str, str], tuple[Exact | None, int]] = {}


def _exact(job: Job, arguments: Arguments) -> tuple[Exact | None, int]:
    key = job.group, job.target.key()
    if key not in _known:
        group = parse_group(job.group)
        _known.clear()
        _known[key] = in_double(group, arguments, job.target), terms(group)
    return _known[key]


def main(do: Callable[[Any, IO[bytes]], list[Any]] = found) -> None:
    """Does one job after another, until there is nothing to read. Whole numbers that are sent
    before a job's list of results say which of its parts begins."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the process that started this one
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()
    with suppress(OSError):  # where memory runs out, this is what the system should end
        Path("/proc/self/oom_score_adj").write_text("1000")
    families()  # declares their instructions
    jobs, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anything else prints is no answer
    received = Receiver(jobs)
    send(answers, READY)
    while True:
        try:
            job = received.receive()
        except EOFError:
            break
        send(answers, do(job, answers))
    sys.stderr.flush()
    os._exit(0)


def _watch(parent: int) -> None:
    """Ends this process when the one that started it has ended, whatever is running here."""
    while os.getppid() == parent:
        time.sleep(LOOKS)
    os._exit(1)


def _limit_memory() -> None:
    """A candidate that takes more memory than there is fails, and nothing else does."""
    room = available_memory()
    with suppress(OSError, ValueError):  # a system without such limits
        if room is not None:
            hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
            resource.setrlimit(resource.RLIMIT_DATA, (room, hard))
