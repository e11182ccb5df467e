"""One case from beginning to end: right results, first calls, rounds in turn, memory."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from tilewright.bench.catalog import Case
from tilewright.bench.measure import MIN_ROUNDS, locked, take_turns
from tilewright.bench.process import PATIENCE, Failed, Process
from tilewright.bench.results import OURS, FirstCall, Result, Roof, Timing

# Threads of the one whose turn it was spin for a while before they sleep.
SETTLE_SECONDS = 0.02
_LIMITS = ("machine peak", "machine traffic")
_EPSILON = {"float64": 2**-52, "float32": 2**-23, "float16": 2**-10, "bfloat16": 2**-7}


@dataclass(frozen=True)
class Plan:
    """The settings of a run, for every case."""

    peers: tuple[str, ...]
    threads: int
    rounds: int = MIN_ROUNDS
    dtype: str = "float32"
    tiny: bool = False
    strict: bool = True
    inputs: tuple[str, ...] = ()  # types of a program's inputs, where its file names none
    timing: bool = True
    compiling: bool = True
    compile_rounds: int = 3
    contended: bool = False
    own_weights: bool = False
    device: str = "cpu"
    patience: float = PATIENCE
    # So many cases get ready at the same time, each contender with an empty cache; first calls are
    # those, beside others of the same contender. Where seconds of a machine are dear.
    together: int = 0
    within: float = math.inf  # seconds for that: who is not ready then is out
    lock: Path | None = None  # of rounds, which another run may be taking

    @property
    def compiled_peers(self) -> list[str]:
        """Peers whose compile time is compared with ours."""
        return ["inductor"] if "inductor" in self.peers else []

    def steps(self) -> int:
        """Of progress, per case."""
        compiling = self.compiling and not self.together
        first = 3 * self.compile_rounds + 2 * len(self.compiled_peers) if compiling else 0
        rounds = max(self.rounds, MIN_ROUNDS) + len(self.peers) + 3 if self.timing else 0
        return first + rounds


def measure(case: Case, plan: Plan, folder: Path, tell: Callable[[str], None]) -> Result:
    """All about a case. `folder` holds caches and files of this case while it is measured;
    `tell` is called with every step. Whatever fails becomes a sentence in the result."""
    return _Measurement(case, plan, folder, tell).run()


def measure_together(
    cases: Sequence[Case], plan: Plan, folder: Path, tell: Callable[[str], None]
) -> Iterator[Result]:
    """The same of several cases: of each contender in turn, all cases get ready at the same time.
    When all are, case after case is timed, and nothing else runs then."""
    end = time.monotonic() + plan.within
    made = [_Measurement(c, plan, folder / str(k), tell) for k, c in enumerate(cases)]

    def ready(name: str, m: _Measurement) -> None:
        m.ready(name, min(plan.patience, max(1.0, end - time.monotonic())))

    with ExitStack() as alive, ThreadPoolExecutor(len(made)) as pool:
        for m in made:
            m.folder.mkdir()
            alive.enter_context(m.alive)
        judged = list(pool.map(_Measurement.judged, made))
        able = [m for m, fine in zip(made, judged, strict=True) if fine]
        for name in (OURS, *plan.peers):
            tell(f"{name} gets ready, {len(able)} cases at the same time")
            list(pool.map(partial(ready, name), able))
        for m in made:
            if m in able and plan.timing:
                m.rounds()
            m.alive.close()
            yield m.result


class _Measurement:
    def __init__(self, case: Case, plan: Plan, folder: Path, tell: Callable[[str], None]) -> None:
        self.case, self.plan, self.folder, self.tell = case, plan, folder, tell
        self.dtype = case.dtype or plan.dtype
        self.file = folder / "right.pt"
        self.caches = {name: folder / f"cache-{k}" for k, name in enumerate((OURS, *plan.peers))}
        about = f"{case.about} (a tiny stand-in)" if plan.tiny else case.about
        self.result = Result(case.name, about, self.dtype, plan.threads)
        self.facts: dict[str, Any] = {}
        self.racers: dict[str, Process] = {}  # who is ready
        self.alive = ExitStack()

    def run(self) -> Result:
        # First calls come first: what they leave in the caches, the timed ones find there. Before
        # them float64, which takes longer than the first calls of a large model.
        if self.plan.timing and not self.judged():
            return self.result
        if self.plan.compiling:
            self.first_calls()
        if self.plan.timing:
            with self.alive:
                for name in (OURS, *self.plan.peers):
                    self.tell(f"{name} gets ready")
                    self.ready(name)
                self.rounds()
        return self.result

    def judged(self) -> bool:
        """Are there right results to compare others with?"""
        try:
            self.tell("eager and float64")
            with self.process() as judge:
                self.facts = judge.ask("judge", file=str(self.file))
        except Failed as problem:
            self.result.problem = f"eager itself does not run: {problem}"
            return False
        self.result.weights = self.facts["weights"]
        return True

    def process(self, cache: Path | None = None) -> Process:
        common = {
            "case": self.case.request(),
            "tiny": self.plan.tiny,
            "dtype": self.dtype,
            "threads": self.plan.threads,
            "strict": self.plan.strict,
            "own_weights": self.plan.own_weights,
            "device": self.plan.device,
            "inputs": list(self.plan.inputs),
            "folder": str(self.folder),
        }
        environment = {}
        if cache is not None:
            cache.mkdir(exist_ok=True)
            names = ("TILEWRIGHT_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
            environment = {name: str(cache) for name in names}
        return Process(common, environment, self.plan.patience)

    # ---- first calls

    def first_calls(self) -> None:
        """Ours with caches empty and full, capture alone, and the compiling peers in the same run.

        Several rounds of ours: capture varies by more than what is left beyond it. One of a peer's,
        which takes many times as long.
        """
        captures: list[float] = []
        found = self.result.first_calls
        found[OURS] = self._cold_and_warm(OURS, self.plan.compile_rounds)
        try:
            for number in range(self.plan.compile_rounds):
                self.tell("capture alone")
                captures.append(self._first_call("capture", self.folder / f"capture-{number}")[0])
            self.result.capture = median(captures)
        except Failed as problem:
            found["capture"] = FirstCall(problem=str(problem))
        for name in self.plan.compiled_peers:
            found[name] = self._cold_and_warm(name, 1)

    def _cold_and_warm(self, name: str, rounds: int) -> FirstCall:
        colds, warms, sizes = list[float](), list[float](), list[int]()
        try:
            for number in range(rounds):
                last = number == rounds - 1
                cache = self.caches[name] if last else self.folder / f"empty-{number}"
                self.tell(f"{name}, first call with an empty cache")
                seconds, resident = self._first_call(name, cache)
                colds.append(seconds)
                sizes.append(resident)
                self.tell(f"{name}, first call with a full cache")
                warms.append(self._first_call(name, cache)[0])
        except Failed as problem:
            return FirstCall(problem=str(problem))
        return FirstCall(median(colds), median(warms), int(median(sizes)))

    def _first_call(self, name: str, cache: Path) -> tuple[float, int]:
        with self.process(cache) as child:
            answer = child.ask("prepare", contender=name)
        return answer["first"], answer["resident"]

    # ---- times

    def ready(self, name: str, patience: float | None = None) -> None:
        """Prepares a contender, in a process that waits for its rounds then. One that fails or has
        wrong results is out, with the reason."""
        child = self.alive.enter_context(self.process(self.caches[name]))
        timing = self.result.timings[name] = Timing()
        child.patience = patience or child.patience
        try:
            answer = child.ask("prepare", contender=name, file=str(self.file))
            if self.plan.together:
                first = FirstCall(answer["first"], resident=answer["resident"])
                self.result.first_calls[name] = first
            timing.error, timing.fallbacks = answer["error"], answer["fallbacks"]
            if answer["problem"]:
                self._judge(name, timing, answer["problem"])
        except Failed as problem:
            timing.problem = str(problem)
        child.patience = self.plan.patience
        if timing.problem is None:
            self.racers[name] = child
        else:
            child.close()

    def rounds(self) -> None:
        """Contenders that are ready take turns, the machine's own limits among them."""
        with locked(self.plan.lock):
            for name, child in list(self.racers.items()):
                try:
                    child.ask("warm_up")
                except Failed as problem:
                    self.result.timings[name].problem = str(problem)
                    del self.racers[name]
            self._take_turns(self._machine())

    def _take_turns(self, machine: Process | None) -> None:
        racers = self.racers
        measures: dict[str, Callable[[], float]] = {
            name: lambda n=name, c=child: self._round(n, c) for name, child in racers.items()
        }
        if machine is not None:
            limits = partial(self._limit, machine)
            measures |= {what: partial(limits, what) for what in _LIMITS}
        if not measures:
            return
        found = take_turns(measures, self.plan.rounds, lambda: self.tell("rounds"))
        for name in racers:
            timing = self.result.timings[name]
            timing.seconds = [] if timing.problem else found[name]
        if machine is not None:
            self._roof(*(median(found[what]) for what in _LIMITS))
        self._memory(racers)
        if self.plan.contended and self.result.ours is not None:
            self._contend(racers[OURS], self.result.ours)

    def _judge(self, name: str, timing: Timing, problem: str) -> None:
        """Ours has to satisfy the oracle's rule. A peer that is merely less exact is timed all the
        same: leaving it out would flatter ours."""
        allowed = math.sqrt(_EPSILON.get(self.dtype, 0.0))
        if name == OURS or timing.error is None or timing.error > allowed:
            timing.problem = f"wrong: {problem}"
        else:
            timing.remark = f"less exact than the rule requires: {problem}"

    def _round(self, name: str, child: Process) -> float:
        timing = self.result.timings[name]
        if timing.problem:
            return math.nan
        try:
            return _ask_round(child)
        except Failed as problem:
            timing.problem = str(problem)
            return math.nan

    def _machine(self) -> Process | None:
        """A process whose rounds measure what the machine can do: of processors."""
        if self.plan.device != "cpu":
            return None
        self.tell("the machine's own limits")
        child = self.alive.enter_context(self.process())
        try:
            child.ask("machine", read=self.facts["read"], written=self.facts["written"])
        except Failed as problem:
            self.result.notes.append(f"the machine's limits are not known: {problem}")
            return None
        return child

    def _limit(self, machine: Process, what: str) -> float:
        try:
            return _ask_round(machine, what)
        except Failed as problem:
            if not self.result.notes:
                self.result.notes.append(f"the machine's limits are not known: {problem}")
            return math.nan

    def _roof(self, peak: float, traffic: float) -> None:
        if math.isnan(peak + traffic):
            return
        facts = self.facts
        flops, moved = facts["flops"], facts["read"] + facts["written"]
        narrow = self.dtype not in ("float32", "float64") or "int8" in self.case.name
        if self.dtype == "float64":
            peak /= 2
        self.result.roof = Roof(flops, moved, peak, traffic, narrow)

    def _memory(self, racers: dict[str, Process]) -> None:
        for name in (OURS, "eager"):
            if name in racers and not self.result.timings[name].problem:
                try:
                    self.result.memory[name] = racers[name].ask("memory")
                except Failed as problem:
                    self.result.notes.append(f"the memory of {name} is not known: {problem}")

    def _contend(self, child: Process, quiet: Timing) -> None:
        self.tell("one core taken")
        try:
            with busy_core():
                rounds = take_turns({OURS: lambda: _ask_round(child)}, MIN_ROUNDS)[OURS]
        except Failed as problem:
            self.result.notes.append(f"with one core taken: {problem}")
        else:
            self.result.contended = median(rounds) / quiet.median


def _ask_round(child: Process, what: str = "call") -> float:
    time.sleep(SETTLE_SECONDS)
    return child.ask("round", what=what)["found"]


@contextmanager
def busy_core() -> Iterator[None]:
    """One core is taken by a loop that does nothing."""
    program = "while True: pass"
    if hasattr(os, "sched_setaffinity"):
        core = min(os.sched_getaffinity(0))
        program = f"import os\nos.sched_setaffinity(0, {{{core}}})\n{program}"
    with subprocess.Popen([sys.executable, "-c", program]) as loop:
        try:
            time.sleep(0.2)
            yield
        finally:
            loop.kill()
