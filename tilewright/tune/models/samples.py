"""Measured schedules in a file, one line of JSON for each group: what a model is trained on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from tilewright.base.cache import append_lines
from tilewright.base.errors import Invalid

FORM = 1  # of the lines


@dataclass(frozen=True)
class Sample:
    """Schedules of one group that raced each other, the default schedule first.

    Each has its seconds by two races, one after the other: how well the first agrees with the
    second is the best that a model could do. None: it was refused, or its results were wrong.
    """

    seed: int
    draw: int
    family: str  # of operators
    group: str
    target: str  # as it prints
    threads: int
    traces: tuple[str, ...] = ()
    seconds: tuple[tuple[float, float] | None, ...] = ()
    why: str = ""  # there is nothing
    form: int = FORM

    def line(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def best(self) -> list[float | None]:
        """The lesser seconds of each: what else ran meanwhile only makes it slower."""
        return [None if s is None else min(s) for s in self.seconds]


def parse_sample(line: str) -> Sample:
    try:
        found = json.loads(line)
    except ValueError:
        raise Invalid("it is no JSON, perhaps half a line") from None
    names = {f.name for f in fields(Sample)}
    if not isinstance(found, dict) or found.keys() != names or found["form"] != FORM:
        raise Invalid(f"it has no measured schedules of form {FORM}")
    pairs = tuple(None if s is None else (float(s[0]), float(s[1])) for s in found["seconds"])
    return Sample(**found | {"traces": tuple(found["traces"]), "seconds": pairs})


def load_samples(path: Path) -> tuple[list[Sample], list[str]]:
    """All lines that can be read, and what is wrong with others."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as why:
        raise Invalid(f"measured schedules cannot be read from {path}: {why.strerror}") from None
    out, problems = [], []
    for number, line in enumerate(lines, 1):
        try:
            out.append(parse_sample(line))
        except Invalid as why:
            problems.append(f"line {number} of {path.name}: {why.what}")
    return out, problems


def append_samples(path: Path, samples: Iterable[Sample]) -> None:
    append_lines(path, (s.line() for s in samples))


def measured(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Those that have something to compare."""
    return (s for s in samples if sum(x is not None for x in s.seconds) > 1 and s.seconds[0])
