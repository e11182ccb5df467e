"""Processes of this machine that propose schedules and compile them while other machines measure.

To rank some hundreds of schedules and to compile a few takes longer than to measure these, so there
are several processes for each machine that measures. They keep nothing that this process does not
know: one that ends is started again, and told what it has to know.
"""

from __future__ import annotations

import pickle
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import IO, Any

from tilewright.base.collector import garbage_waits
from tilewright.base.errors import TilewrightError
from tilewright.base.messages import send
from tilewright.ir.target import Target
from tilewright.kernel.nest import start
from tilewright.kernel.step import apply, parse_trace, print_trace
from tilewright.kernel.text import parse_group
from tilewright.tune.measuring import worker
from tilewright.tune.measuring.built import built
from tilewright.tune.measuring.process import Process
from tilewright.tune.measuring.race import Verdict
from tilewright.tune.proposing import HERE, Proposed
from tilewright.tune.search.state import Measured, Model, Search, State
from tilewright.tune.space.decision import Assignment
from tilewright.tune.space.space import parse_space
from tilewright.tune.tuner import Tuning

_PROGRAM = "from tilewright.tune.fleet.shop import main; main()"
# Seconds that a proposal, or the compilation of one schedule, may take.
PATIENCE = 300.0
# Groups whose searches a process remembers.
REMEMBERED = 8


@dataclass(frozen=True)
class Build:
    """Traces of a group, to be compiled for a target."""

    group: str
    traces: tuple[str, ...]
    target: Target


@dataclass(frozen=True)
class Question:
    """What is known of a group, to propose `count` points of its space by."""

    group: str
    target: Target
    space: str
    measured: tuple[tuple[Assignment, float | None], ...]
    search: Search
    rng: Any
    model: Model
    count: int


class Shop:
    """Processes that do such jobs, one job at a time each."""

    def __init__(self, count: int, program: str = _PROGRAM) -> None:
        self._idle = [Process(program, PATIENCE) for _ in range(count)]
        self._all = list(self._idle)
        self._last: dict[str, Process] = {}  # which knows a group already
        self._free = threading.Condition()

    def asked(self, tuning: Tuning, most: int) -> Callable[[], Proposed]:
        """Proposals of a search, by what is known now."""
        if tuning.state.fresh(tuning.first):  # nothing to search for yet
            return HERE.asked(tuning, most)
        measured = tuple((m.point.given, m.ratio) for m in tuning.state.measured)
        rng, space = tuning.state.rng.getstate(), str(tuning.state.space)
        known = (tuning.text, tuning.target, space, measured, tuning.search, rng, tuning.model)
        # A copy: what is learned from now on does not change it.
        data = pickle.dumps(Question(*known, most))
        return partial(self._proposed, tuning.text, data)

    def _proposed(self, group: str, data: bytes) -> Proposed:
        found = self._do(group, data)
        if not isinstance(found, list):  # once more, in a fresh process
            found = self._do(group, data)
        if not isinstance(found, list):
            raise TilewrightError(f"proposing schedules failed twice: {found[1].why}")
        if isinstance(found[0], TilewrightError):
            raise found[0]
        return found[0]

    def built(self, group: str, traces: Sequence[str], target: Target) -> list[bytes | Verdict]:
        """The code of each trace, or why it has none."""
        out: list[bytes | Verdict] = [b""] * len(traces)
        left = list(range(len(traces)))
        while left:
            job = Build(group, tuple(traces[k] for k in left), target)
            found = self._do(group, pickle.dumps(job))
            if isinstance(found, list):
                for k, code in zip(left, found, strict=True):
                    out[k] = code
                break
            at, verdict = found
            out[left[at]] = verdict
            del left[at]
        return out

    def _do(self, group: str, data: bytes) -> list[Any] | tuple[int, Verdict]:
        with self._taken(group) as process:
            return process.ask(data)

    @contextmanager
    def _taken(self, group: str) -> Iterator[Process]:
        """A process that has nothing to do, if possible the one that knows the group."""
        with self._free:
            self._free.wait_for(lambda: self._idle)
            known = self._last.get(group)
            process = known if known in self._idle and known is not None else self._idle[0]
            self._idle.remove(process)
            self._last[group] = process
        try:
            yield process
        finally:
            with self._free:
                self._idle.append(process)
                self._free.notify()

    def close(self) -> None:
        for process in self._all:
            process.close()


# ---- in the process

_states: OrderedDict[str, State] = OrderedDict()


def main() -> None:
    worker.main(done)


def done(data: bytes, begins: IO[bytes]) -> list[Any]:
    job = pickle.loads(data)
    return [answer(job)] if isinstance(job, Question) else objects(job, begins)


def answer(q: Question) -> Proposed | TilewrightError:
    try:
        with garbage_waits():
            state = _state(q)
            points = q.search.propose(state, q.count)
    except TilewrightError as why:
        return why
    given = tuple(p.given for p in points)
    traces = tuple(print_trace(p.trace) for p in points)
    return Proposed(given, traces, q.search, state.rng.getstate())


def _state(q: Question) -> State:
    """As it is in the process that asks."""
    key = f"{q.target.key()}\n{q.group}\n{q.space}"
    state = _states.get(key)
    if state is None:
        group = parse_group(q.group)
        state = _states[key] = State(group, q.target, parse_space(q.space), q.model, Random())
    _states.move_to_end(key)
    while len(_states) > REMEMBERED:
        _states.popitem(last=False)
    known = [m.point.given for m in state.measured]
    if known != [given for given, _ in q.measured[: len(known)]]:
        state.measured.clear()
    for given, ratio in q.measured[len(state.measured) :]:
        point = state.space.replay(state.group, given, state.applied)
        state.measured.append(Measured(point, ratio))
    state.seen = {m.point.key for m in state.measured}
    state.model = q.model
    state.rng.setstate(q.rng)
    return state


def objects(job: Build, begins: IO[bytes]) -> list[bytes | Verdict]:
    out: list[bytes | Verdict] = []
    for k, text in enumerate(job.traces):
        send(begins, k)
        try:
            nest = apply(start(parse_group(job.group)), parse_trace(text))
            out.append(built(nest, job.target))
        except TilewrightError as why:
            out.append(Verdict(fault="refused", why=why.what))
    return out
