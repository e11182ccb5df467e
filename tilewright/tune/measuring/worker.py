"""The process in which candidates run. It reads jobs from its input and writes to its output what
begins and what was found: a candidate that crashes or hangs takes only this process with it."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import IO

from tilewright.base.errors import TilewrightError
from tilewright.base.messages import Receiver, send
from tilewright.ir.target import Target
from tilewright.kernel.nest import start
from tilewright.kernel.step import apply, parse_trace
from tilewright.kernel.text import parse_group
from tilewright.runtime import pool
from tilewright.targets import families
from tilewright.tune.measuring.race import Verdict, race

import_module("tilewright.kernel.steps")  # registers all of them: traces name them


@dataclass(frozen=True)
class Job:
    """A group and traces of it as text, the first of which is the reference."""

    group: str
    traces: tuple[str, ...]
    target: Target
    threads: int
    rounds: int


def found(job: Job, begins: IO[bytes]) -> list[Verdict]:
    group = parse_group(job.group)
    verdicts: list[Verdict] = [Verdict()] * len(job.traces)
    nests, numbers = [], []
    for k, text in enumerate(job.traces):
        try:
            nests.append(apply(start(group), parse_trace(text)))
            numbers.append(k)
        except TilewrightError as why:
            verdicts[k] = Verdict(fault="refused", why=why.what)
    if numbers[:1] != [0]:
        return verdicts
    pool.set_threads(job.threads)

    def told(k: int) -> None:
        send(begins, numbers[k])

    judged = race(nests, job.target, job.rounds, begins=told)
    for k, v in zip(numbers, judged, strict=True):
        verdicts[k] = v
    return verdicts


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the process that started this one
    families()  # declares their instructions
    jobs, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anything else prints is no answer
    received = Receiver(jobs)
    while True:
        try:
            job = received.receive()
        except EOFError:
            break
        send(answers, found(job, answers))
    sys.stderr.flush()
    os._exit(0)
