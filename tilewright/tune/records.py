"""Records: what was measured, as lines of JSON in one file that may be copied, joined and read by
people. A line is a `trial` (one candidate) or a `best` (what a tuning run decided). A trial that
was refused, wrong, or did not come back has a fault and no seconds: it only keeps a later run from
trying it again.

Lines name a group by its text, a machine by its key, and steps as they print: nothing of folders.
A line is trusted only once its steps, as they are today, have been replayed on the group.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from math import inf
from pathlib import Path
from sys import intern
from typing import Any

from tilewright.base.cache import append_lines
from tilewright.base.errors import Invalid, TilewrightError
from tilewright.kernel.group import Group
from tilewright.kernel.nest import Nest, start
from tilewright.kernel.step import Trace, apply, parse_trace
from tilewright.kernel.text import parse_group
from tilewright.targets import families

import_module("tilewright.kernel.steps")  # registers all of them: traces name them

FORM = 1  # of the lines
_OTHER = {"best": "trial", "trial": "best"}


@dataclass(frozen=True)
class Record:
    """One line. Seconds are of a call; `usual` are the default schedule's in the same race."""

    kind: str  # "trial" or "best"
    group: str
    target: str
    threads: int
    trace: str
    seconds: float | None
    usual: float | None
    given: dict[str, Any] = field(default_factory=dict)  # the decisions that led to the trace
    fault: str = ""
    why: str = ""
    trials: int = 0  # of a best one: how many were measured
    version: str = ""
    cpu: str = ""  # of the target, for people
    at: float = 0.0  # when it was measured, in seconds since 1970
    form: int = FORM

    @property
    def key(self) -> tuple[str, str, int]:
        """What a schedule is for."""
        return self.group, self.target, self.threads

    @property
    def ratio(self) -> float | None:
        return self.seconds / self.usual if self.seconds and self.usual else None

    @property
    def _rank(self) -> tuple[float, float, float, str]:
        """The least is trusted most: of most trials, then the last, then the fastest."""
        return -self.trials, -self.at, self.ratio or 1.0, self.trace

    @property
    def gains(self) -> bool:
        """Is it faster than the default schedule? Otherwise it only says that tuning is done."""
        return self.ratio is not None and self.ratio < 1

    def line(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    def replayed(self, group: Group | None = None) -> tuple[Trace, Nest]:
        """The schedule by today's steps; raises what the first that is refused says."""
        trace = parse_trace(self.trace)
        return trace, apply(start(group or parse_group(self.group)), trace)


@dataclass
class Records:
    """The lines of a file. What cannot be read is counted and told, never an error: a line may be
    half-written where a process was killed."""

    path: Path
    records: list[Record] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path, kind: str = "") -> Records:
        """All lines, or those of one kind; the others are not even read as JSON then."""
        out = cls(path)
        other = f'"kind": "{_OTHER.get(kind)}"'
        try:
            with open(path, errors="replace") as file:
                for number, line in enumerate(file, 1):
                    if line.strip() and other not in line:
                        out._read(number, line, kind)
        except FileNotFoundError:
            return out
        except OSError as why:
            hint = "name a file that `tilewright tune` wrote (--records, TILEWRIGHT_RECORDS)"
            what = f"records cannot be read from {path}: {why.strerror}"
            raise Invalid(what, hint=hint) from None
        return out

    def _read(self, number: int, line: str, kind: str) -> None:
        try:
            found = parse_record(line)
        except Invalid as why:
            self.problems.append(f"line {number} of {self.path.name}: {why.what}")
            return
        if kind in ("", found.kind):
            self.records.append(found)

    def add(self, records: Iterable[Record]) -> None:
        """Appended at once and on disk when this returns."""
        new = list(records)
        self.records += new
        append(self.path, new)

    def best(self) -> dict[tuple[str, str, int], Record]:
        """What holds for each group, by what runs decided; trials decide nothing by themselves. A
        run with more trials knows those of the runs before it: it may take their word back."""
        out: dict[tuple[str, str, int], Record] = {}
        for r in self.records:
            known = out.get(r.key)
            if r.kind == "best" and (known is None or r._rank < known._rank):
                out[r.key] = r
        return out

    def trials(self, key: tuple[str, str, int]) -> list[Record]:
        return [r for r in self.records if r.kind == "trial" and r.key == key]


def append(path: Path, records: Iterable[Record]) -> None:
    append_lines(path, (r.line() for r in records))


_TYPES: Mapping[str, tuple[type, ...]] = {
    "kind": (str,),
    "group": (str,),
    "target": (str,),
    "threads": (int,),
    "trace": (str,),
    "seconds": (float, int, type(None)),
    "usual": (float, int, type(None)),
    "given": (dict,),
    "fault": (str,),
    "why": (str,),
    "trials": (int,),
    "version": (str,),
    "cpu": (str,),
    "at": (float, int),
    "form": (int,),
}


def parse_record(line: str) -> Record:
    try:
        found = json.loads(line)
    except ValueError:
        raise Invalid("it is no JSON, perhaps half a line") from None
    if not isinstance(found, dict):
        raise Invalid("it is no record")
    if found.get("form") != FORM:
        said = f"it is of form {found.get('form')!r}, and this version reads form {FORM}"
        raise Invalid(said, hint="tune again with this version")
    for f in fields(Record):
        if f.name in found and not isinstance(found[f.name], _TYPES[f.name]):
            raise Invalid(f"{f.name} is {found[f.name]!r}")
    for name in ("seconds", "usual"):
        if found.get(name) is not None and not 0 < found[name] < inf:
            raise Invalid(f"{name} is {found[name]!r}, which is no time")
    unknown = found.keys() - _TYPES.keys()
    missing = {"kind", "group", "target", "threads", "trace", "seconds", "usual"} - found.keys()
    if unknown or missing:
        raise Invalid(f"it has {'no ' if missing else ''}{', '.join(sorted(missing or unknown))}")
    if found["kind"] not in ("trial", "best"):
        raise Invalid(f"there are no records of kind {found['kind']!r}")
    # Many lines are about few groups.
    return Record(**found | {name: intern(found[name]) for name in ("group", "target")})


def merged(files: Iterable[Records]) -> list[Record]:
    """All lines of several files, each once, as they were measured in time, decisions last: the
    same whatever the order of the files, and however often they are merged."""
    distinct = {r.line(): r for f in files for r in f.records}
    return sorted(distinct.values(), key=lambda r: (r.kind == "best", r.at, r.line()))


def rewrite(path: Path, records: Iterable[Record]) -> None:
    """A file of these lines alone; an older one stays as it is until all are written."""
    made = path.with_name(f"{path.name}.new")
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_text("")
    append(made, records)
    made.replace(path)


def checked(records: Iterable[Record]) -> Iterator[tuple[Record, str]]:
    """Each record with what is wrong with it by today's steps; nothing where all is well."""
    families()  # declares their instructions
    for r in records:
        try:
            r.replayed()
        except TilewrightError as why:
            yield r, why.what
        else:
            yield r, ""
