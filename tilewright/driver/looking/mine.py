"""`tilewright mine`: rules found by enumeration, each proved, written to a file."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tilewright.base.errors import Invalid
from tilewright.driver.looking.shown import Column, Shown
from tilewright.superopt.enumerate import Level, enumerated
from tilewright.superopt.joining import joining
from tilewright.superopt.mine import Mined, Mining, Reduced
from tilewright.superopt.records import Record, equality, header, records, write
from tilewright.superopt.search import searched_rules
from tilewright.superopt.terms import Equality
from tilewright.superopt.vocabulary import VOCABULARIES, Vocabulary

PROGRAMS, OPERATORS = "programs", " operators"  # stages as a bar calls them
UNFINISHED = "unfinished"  # a file that a command wrote which was ended says where
LONG = 60.0  # seconds of a stage of which an estimate is told
MANY = 100  # equalities of a stage from which the next one's seconds are estimated


@dataclass(frozen=True)
class Asked:
    """What to mine, with what seed, for how many seconds, and where the rules are written."""

    vocabulary: str
    operators: int
    seed: int = 0
    out: Path | None = None
    budget: float | None = None

    @property
    def header(self) -> dict[str, Any]:
        """What a file says of its rules as a whole."""
        return {"vocabulary": self.vocabulary, "operators": self.operators, "seed": self.seed}


_LEVEL = ("operators", "candidates", "new", "equalities", "seconds")
_COLUMNS: dict[str, Column] = {
    "operators": "operators",
    "candidates": lambda r: f"{r['candidates']:,}",
    "new values": lambda r: f"{r['new']:,}",
    "equalities": lambda r: f"{r['equalities']:,}",
    "seconds so far": lambda r: f"{r['seconds']:.1f}",
}


class _Ended(Exception):
    """The budget is used up."""


def show(asked: Asked, count: bool, out: Shown) -> int:
    """Mine a vocabulary, show what was found, write the rules. With `count` nothing is proved."""
    vocabulary = _named(asked.vocabulary)
    if asked.out is not None and not asked.out.resolve().parent.is_dir():
        raise Invalid(f"there is no folder for {asked.out}", hint="make it, or name another file")
    before = _before(asked)
    levels: list[dict[str, Any]] = []
    mined, mining, ended = None, None, None
    with _Bar(out.progress, asked) as bar:

        def level(x: Level) -> None:
            numbers = (x.operators, x.candidates, x.new, x.equalities, bar.seconds)
            levels.append(dict(zip(_LEVEL, numbers, strict=True)))
            bar.level(x)

        bar.watch(PROGRAMS, asked.operators)
        try:
            space = enumerated(vocabulary, asked.operators, asked.seed, level)
            if not count:
                # What ships is known: rules written by hand, and those of other vocabularies.
                own = f"{asked.vocabulary}-"
                known = [r for r in searched_rules() if not r.name.startswith(own)]
                signed = {e: r for e, r in before.items() if r.digest == r.signed()}
                reduced = Reduced(space, bar.watch, list(before))
                mining = Mining(reduced, asked.seed, known, bar.each, signed)
                mined = mining.run()
        except _Ended as why:
            ended = f"the budget of {asked.budget:g} s ended: {why}"
        finally:
            bar.stop()
            if mining is not None and mined is None:
                _keep(mining, asked, bar.where, out)
    out.table("levels", levels, _COLUMNS)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    out.put(seed=asked.seed, gibibytes=most, ended=ended)
    out.say(f"seed {asked.seed}, at most {most:.2f} GiB")
    if ended is not None:
        out.say(ended)
    if mined is not None:
        _report(mined, out)
        if asked.out is not None:
            write(asked.out, mined.rules, **asked.header)
    return 0


def _before(asked: Asked) -> dict[Equality, Record]:
    """What the same command had found where it was ended too soon."""
    if asked.out is None or not asked.out.exists():
        return {}
    said = header(asked.out)
    if UNFINISHED not in said or any(said.get(k) != v for k, v in asked.header.items()):
        return {}
    all_ = enumerate(records(asked.out))
    return {equality(asked.out, k, r): r for k, r in all_}


def _keep(mining: Mining, asked: Asked, where: str, out: Shown) -> None:
    """What was found by a command that was ended, or failed."""
    rules = mining.so_far
    if asked.out is None:
        for r in rules:
            out.say(f"  {r.rule}")
        return
    write(asked.out, rules, **asked.header, **{UNFINISHED: where})
    out.say(
        f"{len(rules)} equalities are in {asked.out}, proved once, and not yet without those that"
        " follow from others; the same command goes on from there"
    )


def show_joining(name: str, out: Shown) -> int:
    """Every registered operator: does it join the vocabulary, or why not?"""
    vocabulary = _named(name)
    rows = [
        {"operator": operator, "own": operator in vocabulary.tried, "joins": not why, "why": why}
        for operator, why in joining(vocabulary).items()
    ]
    columns: dict[str, Column] = {
        "operator": "operator",
        f"in {name}": lambda r: "yes" if r["own"] else "",
        "joins": lambda r: "yes" if r["joins"] else "",
        "or why not": "why",
    }
    out.table("operators", rows, columns)
    return 0


class _Bar(Progress):
    """One bar: of what is done, and how much of it is left. It raises where a budget ends."""

    def __init__(self, console: Console, asked: Asked) -> None:
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
        super().__init__(*columns, TimeElapsedColumn(), console=console, transient=True)
        self.task = self.add_task("")
        self.asked, self.began = asked, time.perf_counter()
        self.since, self.levels = 0.0, [Level(0)]  # when a stage began; levels that are done

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    @property
    def where(self) -> str:
        """What is being done, and how far it is."""
        task = self.tasks[0]
        return f"{task.description}: {int(task.completed):,} of {int(task.total or 0):,}"

    def watch(self, what: str, left: int) -> None:
        task = self.tasks[0]
        if what != task.description:
            done = int(task.completed)
            if done >= MANY and what.endswith(OPERATORS) and task.description.endswith(OPERATORS):
                self._expect(f"{left:,} equalities of {what}", left * self._stage() / done)
            self.since = self.seconds
            self.update(self.task, description=what, total=left)
        self.update(self.task, completed=(task.total or 0) - left)
        self._check()

    def level(self, x: Level) -> None:
        """Tells what the next one will take at most: as many times as much as it has candidates.
        It is less where most of the time is spent on each kind of tensors."""
        times = x.candidates / max(1, self.levels[-1].candidates)
        if x.operators < self.asked.operators and x.operators > 1:
            more = int(x.candidates * times)
            what = f"some {more:,} programs of {x.operators + 1} operators"
            self._expect(what, times * self._stage(), "at most ")
        self.levels.append(x)
        self.since = self.seconds
        self.update(self.task, completed=x.operators)
        self._check()

    def _stage(self) -> float:
        return self.seconds - self.since

    def _expect(self, what: str, seconds: float, bound: str = "") -> None:
        left = None if self.asked.budget is None else self.asked.budget - self.seconds
        short = left is not None and seconds > left
        if seconds > LONG or short:
            text = f"{what} will take {bound}about {seconds:.0f} s"
            text += f", and {max(0.0, left or 0.0):.0f} s of the budget are left" if short else ""
            self.console.print(text, markup=False, highlight=False)

    def _check(self) -> None:
        if self.asked.budget is not None and self.seconds > self.asked.budget:
            raise _Ended(self.where)

    def each(self, found: Iterable[Equality], what: str) -> Iterator[Equality]:
        all_ = list(found)
        for k, e in enumerate(all_):
            self.watch(what, len(all_) - k)
            yield e


def _named(name: str) -> Vocabulary:
    if name not in VOCABULARIES:
        known = ", ".join(sorted(VOCABULARIES))
        raise Invalid(f"no vocabulary is called {name}", hint=f"there are {known}")
    return VOCABULARIES[name]


def _report(mined: Mined, out: Shown) -> None:
    for text in mined.left_out:
        out.say(f"left out: {text}")
    for r in mined.rules:
        out.say(f"  {r.rule}")
    for text in mined.refused:
        out.say(f"refused: {text}")
    out.put(
        rules=[str(r.rule) for r in mined.rules],
        equalities=mined.equalities,
        open=mined.open,
        proved=mined.proved,
        tried=mined.tried,
        left_out=list(mined.left_out),
        refused=list(mined.refused),
    )
    out.say(
        f"{mined.equalities:,} equalities: {mined.open:,} are not proved, the others follow from"
        f" {mined.proved:,} of them ({mined.tried:,} were tried), and these from"
        f" {len(mined.rules)} rules of any shapes, but for what gains nothing;"
        f" {len(mined.left_out)} could not be treated and were left out"
    )
