"""`tilewright mine`: rules found by enumeration, each proved, written to a file."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tilewright.base.errors import Invalid
from tilewright.driver.looking.tables import new_table, rendered
from tilewright.superopt.enumerate import Level, enumerated
from tilewright.superopt.joining import joining
from tilewright.superopt.mine import Mined, Reduced, mine
from tilewright.superopt.records import write
from tilewright.superopt.search import searched_rules
from tilewright.superopt.terms import Equality
from tilewright.superopt.vocabulary import VOCABULARIES, Vocabulary


def show(
    name: str, operators: int, seed: int, out: Path | None, count: bool, console: Console
) -> int:
    """Mine a vocabulary, show what was found, write the rules. With `count` nothing is proved."""
    vocabulary = _named(name)
    began = time.perf_counter()
    table = new_table("operators", "candidates", "new values", "equalities", "seconds so far")

    def level(x: Level) -> None:
        numbers = (x.operators, x.candidates, x.new, x.equalities)
        table.add_row(*(f"{n:,}" for n in numbers), f"{time.perf_counter() - began:.1f}")

    mined = None
    if count:
        enumerated(vocabulary, operators, seed, level)
    else:
        # What ships is known: rules written by hand, and those of other vocabularies.
        known = [r for r in searched_rules() if not r.name.startswith(f"{name}-")]
        with _Bar(console) as bar:
            bar.watch("programs", operators)
            reduced = Reduced(enumerated(vocabulary, operators, seed, level), bar.watch)
            mined = mine(reduced, seed, known, bar.each)
    print(rendered(table))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    console.print(f"seed {seed}, at most {most:.2f} GiB", highlight=False)
    if mined is not None:
        _report(mined, console)
        if out is not None:
            write(out, mined.rules, vocabulary=name, operators=operators, seed=seed)
    return 0


def show_joining(name: str) -> int:
    """Every registered operator: does it join the vocabulary, or why not?"""
    vocabulary = _named(name)
    table = new_table("operator", f"in {name}", "joins", "or why not")
    for operator, why in joining(vocabulary).items():
        own = "yes" if operator in vocabulary.tried else ""
        table.add_row(operator, own, "" if why else "yes", why)
    print(rendered(table))
    return 0


class _Bar(Progress):
    """One bar: of what is done, and how much of it is left."""

    def __init__(self, console: Console) -> None:
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
        super().__init__(*columns, TimeElapsedColumn(), console=console, transient=True)
        self.task = self.add_task("")

    def watch(self, what: str, left: int) -> None:
        task = self.tasks[0]
        if what != task.description:
            self.update(self.task, description=what, total=left)
        self.update(self.task, completed=(task.total or 0) - left)

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


def _report(mined: Mined, console: Console) -> None:
    for r in mined.rules:
        console.print(f"  {r.rule}", markup=False, highlight=False, soft_wrap=True)
    for text in mined.refused:
        console.print(f"refused: {text}", markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"{mined.equalities:,} equalities: {mined.open:,} are not proved, the others follow from"
        f" {mined.proved:,} of them ({mined.tried:,} were tried), and these from"
        f" {len(mined.rules)} rules of any shapes, but for what gains nothing",
        highlight=False,
    )
