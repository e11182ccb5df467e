"""Random schedules for `python -m tests.nightly`: the step fuzzer, seed by seed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.generators import Failure, Generator
from tests.kernel import fuzz
from tests.kernel.fuzz import Counts, Found, Sizes, case_text, explore, explore_threads, replay
from tests.kernel.random_steps import DRAWN
from tilewright.kernel.group import Group
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class Case:
    """A seed and, once it was explored, its group and steps: what shrinking can leave out."""

    seed: int
    favour: str | None = None
    threads: bool = False
    found: tuple[Group, list[Sizes], list[Step]] | None = None

    def explored(self) -> Found:
        counts = Counts()
        if self.threads:
            return explore_threads(self.seed, counts)
        return explore(self.seed, counts, self.favour)


def failure(case: Case) -> Failure | None:
    why = case.explored()[3] if case.found is None else replay(*case.found, case.seed)
    if why is None:
        return None
    kind = why.partition(":")[0] if why.startswith("Wrong") else re.sub(r"\d+", "#", why)[:70]
    return Failure(kind, why, "wrong" if why.startswith("Wrong") else "error")


def smaller(case: Case) -> Iterator[Case]:
    if case.found is None:
        group, dims, trace, _ = case.explored()
        yield replace(case, found=(group, dims, trace))
        return
    for found in fuzz.smaller(*case.found):
        yield replace(case, found=found)


def as_code(case: Case) -> str:
    lines = ["from tests.generators import reproduce"]
    lines += ["from tests.kernel.drawn_schedules import GENERATORS, Case"]
    lines += ["from tests.kernel.fuzz import parse_case", ""]
    if case.found is None:
        lines.append(f"CASE = Case({case.seed}, {case.favour!r}, {case.threads})")
    else:
        lines += [
            f'TEXT = """{case_text(*case.found)}"""',
            "",
            "group, dims, trace = parse_case(TEXT)",
        ]
        lines.append(f"CASE = Case({case.seed}, None, {case.threads}, (group, dims, list(trace)))")
    return "\n".join([*lines, f"reproduce(GENERATORS[{int(case.threads)}], CASE)", ""])


def about(case: Case) -> str:
    trace = case.found[2] if case.found is not None else []
    return " ".join(type(step).__name__ for step in trace)


def _favouring(seed: int) -> Case:
    """Each kind of step is drawn more often by some seeds; by half of them none is."""
    kinds = sorted(DRAWN)
    return Case(seed, kinds[seed // 2 % len(kinds)] if seed % 2 else None)


GENERATORS = [
    Generator("schedules", _favouring, failure, smaller, as_code, about),
    Generator("threads", lambda seed: Case(seed, None, True), failure, smaller, as_code, about),
]
