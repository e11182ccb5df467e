"""The process in which groups are drawn and their schedules compiled and measured. Several of them
prepare groups at the same time; then each measures in its turn, while the others wait."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Union

from tilewright.base.errors import TilewrightError
from tilewright.base.messages import Receiver, send
from tilewright.driver.learning.drawn import family_of, group_of_draw, schedules
from tilewright.ir.target import Target
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import Nest
from tilewright.kernel.step import print_trace
from tilewright.kernel.text import group_text
from tilewright.runtime import pool
from tilewright.runtime.device import Host
from tilewright.runtime.nests import NestKernel
from tilewright.targets import families
from tilewright.tune.measuring.race import race
from tilewright.tune.models.samples import Sample
from tilewright.tune.space.space import Point

ROUNDS = 3  # of each of the two races


@dataclass(frozen=True)
class Prepare:
    """Draw a group and so many schedules, and compile them."""

    draw: int
    seed: int
    count: int


@dataclass(frozen=True)
class Measure:
    """Measure what was prepared under this number."""

    draw: int


Job = Union[Prepare, Measure]


@dataclass(eq=False)
class _Kept:
    """A kernel that several races use."""

    own: NestKernel

    @property
    def arguments(self) -> Sequence[Buffer]:
        return self.own.arguments

    def prepared(
        self, addresses: Sequence[int], sizes: Mapping[str, int], stream: int = 0
    ) -> Callable[[], None]:
        return self.own.prepared(addresses, sizes, stream)

    def close(self) -> None:
        """Not yet: there is another race."""


class _Ready(Host):
    """This processor with kernels that are compiled already."""

    def __init__(self) -> None:
        self.kernels: dict[int, _Kept] = {}

    def kernel(  # type: ignore[override]
        self, nest: Nest, target: Target, code: bytes = b""
    ) -> _Kept:
        return self.kernels[id(nest)]


@dataclass
class Prepared:
    """A group whose schedules are compiled."""

    sample: Sample
    points: list[Point]
    device: _Ready


def prepared(job: Prepare, target: Target, threads: int) -> Prepared:
    target = replace(target, cores=threads)
    group = group_of_draw(job.draw, job.seed, target)
    found = schedules(group, target, job.count, Random(f"{job.seed} {job.draw}"))
    ready, points = _Ready(), []
    for p in found:
        try:
            ready.kernels[id(p.nest)] = _Kept(NestKernel(p.nest, target))
            points.append(p)
        except TilewrightError:
            if not points:  # nothing can be compared with the default schedule
                raise
    traces = tuple(print_trace(p.trace) for p in points)
    place = (job.seed, job.draw, family_of(job.draw), group_text(group), target.text())
    return Prepared(Sample(*place, threads, traces), points, ready)


def measured(x: Prepared) -> Sample:
    """Two races of all schedules."""
    target = Target.parse(x.sample.target)
    pool.set_threads(x.sample.threads)
    nests = [p.nest for p in x.points]
    first, second = (race(nests, target, ROUNDS, x.device) for _ in range(2))
    seconds = tuple(
        (min(a.samples), min(b.samples)) if a.samples and b.samples else None
        for a, b in zip(first, second, strict=True)
    )
    for k in x.device.kernels.values():
        k.own.close()
    wrong = next((v.why for v in first if v.fault == "wrong"), "")
    return replace(x.sample, seconds=seconds, why=wrong)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the process that started this one
    families()  # declares their instructions
    jobs, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anything else prints is no answer
    received = Receiver(jobs)
    target, threads = received.receive()
    waiting: dict[int, Prepared] = {}
    while True:
        try:
            job = received.receive()
        except EOFError:
            os._exit(0)
        try:
            if isinstance(job, Prepare):
                waiting[job.draw] = prepared(job, target, threads)
                answer = len(waiting[job.draw].points)
            else:
                answer = measured(waiting.pop(job.draw))
        except (TilewrightError, MemoryError) as why:
            answer = why.what if isinstance(why, TilewrightError) else "memory ran out"
        send(answers, answer)
