"""Kernels by several choices, of which a clock picks one: all are compiled at the same time, by
this process and others, and measured when they are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tilewright.base import knobs
from tilewright.base.cache import Cache
from tilewright.base.errors import Refused
from tilewright.base.events import Log
from tilewright.driver.program.code import Code, code_kinds
from tilewright.driver.program.compilers import Compilers, Kernel
from tilewright.driver.program.kernel_process import Answer, Request
from tilewright.driver.program.kernel_server import answer
from tilewright.driver.program.options import Options
from tilewright.ir.target import Target
from tilewright.kernel.defaults.choices import Choices
from tilewright.kernel.group import Group
from tilewright.kernel.schedule import RULES
from tilewright.kernel.text import group_text
from tilewright.runtime.cuda.machine import Machine
from tilewright.tune.candidates import points
from tilewright.tune.choose import Chooser, Made, Picker
from tilewright.tune.choosers import chooser, on_gpu, progress


@dataclass(frozen=True)
class _Trial:
    """A group, its kernels as they come, and who gets the one that is picked."""

    group: Group
    choices: Sequence[Choices]
    taken: Callable[[Answer], None]
    answers: dict[int, Answer] = field(default_factory=dict)


class Trials:
    """The groups of a program that are worth more than one try."""

    def __init__(
        self, by: Picker, compilers: Compilers, code: Code, target: Target, log: Log
    ) -> None:
        self.by, self.compilers, self.code = by, compilers, code
        self.target, self.log = target, log
        self._begun: list[_Trial] = []

    def begin(self, group: Group, text: str, taken: Callable[[Answer], None]) -> bool:
        """A group's kernels wait to be compiled; False where the rules' is the only one."""
        trial = _Trial(group, self.by.choices(group), taken)
        for k, c in enumerate(trial.choices):
            request = request_for(group.name, text, c, self.target, self.code)
            take = partial(trial.answers.__setitem__, k)
            here = partial(_answer_here, request, take)
            self.compilers.add(Kernel(len(text), here, take, request))
        if trial.choices:
            self._begun.append(trial)
        return bool(trial.choices)

    def pick(self) -> None:
        """One of each group's, once the compilers are done; what computes most is timed first."""
        if not self._begun:
            return
        with progress(len(self._begun)) as advance:
            for trial in sorted(self._begun, key=lambda t: points(t.group), reverse=True):
                self._pick(trial)
                advance()
        self._begun.clear()

    def _pick(self, trial: _Trial) -> None:
        made: dict[Made, Answer] = {}
        for k, c in enumerate(trial.choices):
            found = trial.answers[k]
            if found.refused:
                said = f"{trial.group.name}: {c}: {found.refused}"
                self.log.add("schedule", said, detail=True)
            else:
                made[Made(c, found.schedule.trace, found.image)] = found
        picked = self.by.pick(trial.group, self.target, list(made))
        taken = made[picked.made]
        facts = {"considered": picked.considered, "final": picked.final}
        trial.taken(replace(taken, schedule=replace(taken.schedule, chosen=str(picked), **facts)))


def request_for(symbol: str, text: str, choices: Choices, target: Target, code: Code) -> Request:
    own = None if choices == RULES else choices
    return Request(symbol, text, "default", target, own, *code_kinds(code))


def made_here(target: Target, code: Code, group: Group, choices: Choices) -> Made:
    """One kernel, compiled now."""
    found = answer(request_for(group.name, group_text(group), choices, target, code))
    if found.refused:
        raise Refused(found.refused)
    return Made(choices, found.schedule.trace, found.image)


def _answer_here(request: Request, take: Callable[[Answer], None]) -> None:
    take(answer(request))


def chooser_for(
    options: Options, target: Target, log: Log, code: Code, machine: Machine | None
) -> Chooser:
    """What chooses the schedules of a program, as the options say."""
    if not isinstance(options.choose, str):
        return options.choose
    name = knobs.choose.get() if options.choose == "auto" else options.choose
    seconds = options.tune_seconds or knobs.tune_seconds.get()
    libraries = machine is not None and machine.libraries is not None and not options.one_kernel
    if name in ("auto", "timed") and machine is not None and libraries:
        make = partial(made_here, target, code)
        return on_gpu(machine, Cache.from_knobs(log), seconds, log, make)
    if name == "auto" and options.one_kernel:
        name = "early"
    elif name == "auto":
        name = "ranked" if target.rated else "default"
    return chooser(name, Cache.from_knobs(log), seconds)
