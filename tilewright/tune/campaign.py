"""Tuning many kernels: trials go where the next one is expected to save most time of a call, and
everything that is measured is on disk before the next race begins."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from tilewright.base.cache import code_version
from tilewright.base.collector import garbage_waits
from tilewright.base.errors import TilewrightError, require
from tilewright.ir.target import Target
from tilewright.kernel.cost import cost, together
from tilewright.kernel.group import Group
from tilewright.kernel.step import Trace, parse_trace, print_trace
from tilewright.kernel.text import group_text, parse_group
from tilewright.tune.measuring.measurer import Measurer
from tilewright.tune.measuring.race import Verdict
from tilewright.tune.proposing import HERE, Proposed, Proposing
from tilewright.tune.records import Record, Records
from tilewright.tune.reproducers import KEPT, Reproducer
from tilewright.tune.search.state import Measured, Model, Search
from tilewright.tune.space.decision import Plain
from tilewright.tune.space.space import Point, Space
from tilewright.tune.tuner import BATCH, FINAL_ROUNDS, Trial, Tuning

T = TypeVar("T")
Work = Callable[[], T]

# Of what a kernel still loses by the model, the next race is expected to save this part at first.
HOPE = 0.25
# Races without a gain after which a kernel waits until all others have had theirs.
PATIENCE = 4


@dataclass
class Task:
    """One kernel of a program: its group, how often a call of the program runs it, its tuning."""

    text: str
    calls: int
    names: tuple[str, ...]
    target: Target
    measuring: Measurer
    search: Callable[[], Search]
    model: Model
    seed: int
    space: Space | None = None  # where it is not the one that rules derive
    fruitless: int = 0
    races: int = 0
    winner: Trial | None = None
    closed: bool = False  # its last race is over
    problem: str = ""  # why it cannot be tuned, or ended early

    @cached_property
    def group(self) -> Group:
        return parse_group(self.text)

    @cached_property
    def tuning(self) -> Tuning:
        made = (self.target, self.measuring, self.search(), self.model, self.seed)
        return Tuning(self.group, *made, self.space)

    @property
    def ratio(self) -> float:
        """Of the best so far to the default schedule."""
        best = self.tuning.state.best() if self.started else []
        return best[0].ratio or 1.0 if best else 1.0

    @property
    def won(self) -> float:
        """The ratio that a compile has from now on."""
        return (self.winner.ratio or 1.0) if self.winner is not None else 1.0

    @property
    def started(self) -> bool:
        return "tuning" in self.__dict__

    def start(self) -> bool:
        """Can it be tuned? Its space is made; what is wrong with it is kept."""
        if not self.problem and not self.started:
            try:
                with garbage_waits():
                    self.tuning.state.best()
            except TilewrightError as why:
                self.problem = why.what
        return self.started and not self.problem and not self.tuning.ended

    @property
    def key(self) -> tuple[str, str, int]:
        return self.text, self.target.machine_key(), self.measuring.threads

    @cached_property
    def _estimate(self) -> tuple[float, float]:
        """Seconds by the model: of the default schedule, and of nothing but products and bytes."""
        c = cost(self.tuning.default.nest, self.target)
        cores = max(1.0, c.threads)
        least = together(c.products, (c.once, c.once, c.once), self.target) / cores
        return c.seconds(self.target), min(least, c.cycles) / (self.target.mhz * 1e6)

    @property
    def expected(self) -> float:
        """Seconds of a call of the program that the next race should save."""
        whole, roof = self._estimate
        now = (self.tuning.seconds or whole) * self.ratio
        distance = max(0.05, 1 - roof / max(whole * self.ratio, 1e-12))
        return self.calls * now * distance * HOPE * 0.5**self.fruitless / (1 + self.races) ** 0.5


@dataclass
class Campaign:
    """All kernels of a program."""

    tasks: list[Task]
    records: Records
    trials: int  # for each kernel, at most
    until: float = float("inf")  # by time.monotonic()
    lanes: int = 1  # kernels that are worked on at the same time
    proposing: Proposing = HERE
    known: int = field(default=0, init=False)  # trials of earlier runs
    reproducers: list[Path] = field(default_factory=list, init=False)
    decided: int = field(default=0, init=False)  # last races of this run

    def resume(self) -> None:
        """What earlier runs measured is known and not measured again."""
        decided = self.records.best()
        for t in self.tasks:
            found = self.records.trials(t.key)
            if not found or not t.start():
                continue
            self.known += sum(_restored(t.tuning, r) for r in found)
            t.model.learn(t.group, t.tuning.state.measured, t.target)
            best = decided.get(t.key)
            if best is not None and best.trials >= len(t.tuning.trials):
                t.closed = _decided(t, best)

    def run(self) -> Iterator[tuple[Task, list[Trial]]]:
        """Race after race, until trials or time are used up or nothing is left to try. A kernel
        that cannot be tuned is left out, and says why."""
        for t, raced in self._in_order(self._next, self._raced):
            if isinstance(raced, TilewrightError):  # such as of a search that refuses the space
                t.problem = raced.what
                continue
            before = t.ratio
            made = t.tuning.absorbed(*raced)
            t.problem = t.tuning.problem
            t.races += 1
            t.fruitless = 0 if t.ratio < 0.99 * before else t.fruitless + 1
            t.closed = t.closed and not made
            self._keep(t, made)
            if made:
                yield t, made

    def _keep(self, t: Task, made: Sequence[Trial]) -> None:
        """On disk, before anything else is measured."""
        new = t.tuning.state.measured[len(t.tuning.state.measured) - len(made) :]
        for x in made:
            if x.verdict.fault in KEPT:
                self.reproducers.append(_reproducer(t, x).write(self.records.path))
        self.records.add(_trial(t, x, m.point) for x, m in zip(made, new, strict=True))

    def finish(self) -> Iterator[Task]:
        """The last race of each kernel with new trials; what wins is a record."""
        open_ = [t for t in self.tasks if not t.closed and t.started and t.tuning.trials]
        left = iter([t for t in open_ if not t.tuning.problem])
        for t, (points, verdicts) in self._in_order(lambda busy: next(left, None), _last):
            t.winner = t.tuning.decided(points, verdicts)
            if t.tuning.problem:
                t.problem = t.tuning.problem
                continue
            t.closed = True
            self.decided += 1
            self.records.add([_best(t)])
            yield t

    def record(self, t: Task) -> Record:
        """What was decided about a kernel."""
        return _best(t)

    def take_back(self, t: Task) -> None:
        """The default schedule wins after all, whatever the last race said."""
        t.winner = None
        self.records.add([_best(t)])

    def _in_order(
        self, following: Callable[[Sequence[Task]], Task | None], begun: Callable[[Task], Work[T]]
    ) -> Iterator[tuple[Task, T]]:
        """Work on several tasks at a time, `lanes` of them. Results come in the order in which work
        began, not in which it ended: what follows is decided by the same results then, whichever
        machine was faster, and a run with the same measurements can be repeated."""
        flying: deque[tuple[Task, Future[T]]] = deque()
        while True:
            while len(flying) < self.lanes:
                t = following([t for t, _ in flying])
                if t is None:
                    break
                work = begun(t)
                flying.append((t, _result(work) if self.lanes == 1 else _beside(work)))
            if not flying:
                return
            t, result = flying.popleft()
            yield t, result.result()

    def _next(self, busy: Sequence[Task]) -> Task | None:
        """Where the next race should save most, among those that none is under way for."""
        if time.monotonic() >= self.until:
            return None
        free = [t for t in self.tasks if not any(t is b for b in busy)]
        open_ = [t for t in free if t.start() and self._left(t) > 0]
        fresh = [t for t in open_ if t.fruitless < PATIENCE] or open_
        return max(fresh, key=lambda t: t.expected, default=None)

    def _raced(self, t: Task) -> Work[tuple[Proposed, list[Verdict]] | TilewrightError]:
        try:
            answer = self.proposing.asked(t.tuning, min(BATCH, self._left(t)))
        except TilewrightError as why:
            refused = why
            return lambda: refused

        def work() -> tuple[Proposed, list[Verdict]] | TilewrightError:
            try:
                proposed = answer()
            except TilewrightError as why:
                return why
            return proposed, t.tuning.measured(proposed.traces)

        return work

    def _left(self, t: Task) -> int:
        return self.trials - (len(t.tuning.trials) if t.started else 0)


def _last(t: Task) -> Work[tuple[list[Point], list[Verdict]]]:
    points = t.tuning.finalists()
    traces = [print_trace(p.trace) for p in points]
    return lambda: (points, t.tuning.measured(traces, FINAL_ROUNDS))


def _result(work: Work[T]) -> Future[T]:
    made: Future[T] = Future()
    made.set_result(work())
    return made


def _beside(work: Work[T]) -> Future[T]:
    """Done by a thread that nothing waits for where a run is stopped."""
    made: Future[T] = Future()

    def do() -> None:
        try:
            made.set_result(work())
        except BaseException as problem:
            made.set_exception(problem)

    threading.Thread(target=do, daemon=True).start()
    return made


def _record(t: Task, kind: str, trace: Trace, verdict: Verdict | None, **others: Any) -> Record:
    seconds = verdict.seconds if verdict else t.tuning.seconds
    made = Record(kind, *t.key, print_trace(trace), seconds, t.tuning.seconds)
    when = {"version": code_version(), "cpu": t.target.cpu, "at": round(time.time(), 3)}
    return replace(made, **when, **others)


def _trial(t: Task, x: Trial, point: Point) -> Record:
    given = dict(t.tuning.state.space.relevant(point.given))
    said = {"fault": x.verdict.fault, "why": x.verdict.why}
    return _record(t, "trial", x.trace, x.verdict, given=given, **said)


def _best(t: Task) -> Record:
    trials = len(t.tuning.trials)
    if t.winner is None:
        return _record(t, "best", t.tuning.default.trace, None, trials=trials)
    return _record(t, "best", t.winner.trace, t.winner.verdict, trials=trials)


def _reproducer(t: Task, x: Trial) -> Reproducer:
    usual, trace = print_trace(t.tuning.default.trace), print_trace(x.trace)
    v = x.verdict
    found = (v.fault, v.why, v.difference)
    return Reproducer(*t.key, usual, trace, *found, version=code_version())


def _restored(tuning: Tuning, r: Record) -> bool:
    """A trial of an earlier run, if its decisions still lead to its steps; it is not tried again
    in any case."""
    try:
        trace = parse_trace(r.trace)
        new = trace not in tuning.state.seen
        tuning.state.seen.add(trace)
        given = {name: _plain(v) for name, v in r.given.items()}
        point = tuning.state.space.replay(tuning.group, given)
    except TilewrightError:
        return False
    if not new or point.trace != trace:
        return False
    tuning.seconds = r.usual or tuning.seconds
    tuning.state.measured.append(Measured(point, r.ratio))
    verdict = Verdict(r.seconds, fault=r.fault, why=r.why)
    tuning.trials.append(Trial(len(tuning.trials), trace, verdict, r.ratio))
    return True


def _decided(t: Task, best: Record) -> bool:
    """What an earlier run decided, if it is still legal."""
    try:
        trace, _ = best.replayed(t.group)
    except TilewrightError:
        return False
    t.tuning.seconds = best.usual
    if best.gains:
        t.winner = Trial(best.trials, trace, Verdict(best.seconds), best.ratio)
    return True


def _plain(x: object) -> Plain:
    """JSON has no tuples."""
    if isinstance(x, list):
        return tuple(map(_plain, x))
    require(isinstance(x, bool | int | str), f"{x!r} is no value of a decision")
    return x  # type: ignore[return-value]


def tasks_of(
    kernels: Sequence[tuple[str, int, str]],
    target: Target,
    measuring: Measurer,
    search: Callable[[], Search],
    model: Model,
    seed: int,
) -> list[Task]:
    """Distinct kernels of a program from (the text of a group, calls, a name)."""
    found: dict[str, tuple[int, list[str]]] = {}
    for text, calls, name in kernels:
        text = group_text(parse_group(text))
        before, names = found.get(text, (0, []))
        found[text] = before + calls, [*names, name]
    made = (target, measuring, search, model, seed)
    return [Task(text, n, tuple(names), *made) for text, (n, names) in found.items()]
