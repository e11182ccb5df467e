"""Records: what was measured, as lines of JSON in one file that may be copied, joined and read by
people. A line is a `trial` (one candidate) or a `best` (what a tuning run decided).

Lines name a group by its text, a target by its key, and steps as they print: nothing of a machine's
folders. A line is trusted only once its steps, as they are today, have been replayed on the group.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from tilewright.base.errors import Invalid, TilewrightError
from tilewright.kernel.group import Group
from tilewright.kernel.nest import Nest, start
from tilewright.kernel.step import Trace, apply, parse_trace
from tilewright.kernel.text import parse_group

FORM = 1  # of the lines


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
    form: int = FORM

    @property
    def key(self) -> tuple[str, str, int]:
        """What a schedule is for."""
        return self.group, self.target, self.threads

    @property
    def ratio(self) -> float | None:
        return self.seconds / self.usual if self.seconds and self.usual else None

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
    def load(cls, path: Path) -> Records:
        out = cls(path)
        try:
            text = path.read_text(errors="replace")
        except FileNotFoundError:
            return out
        except OSError as why:
            raise Invalid(f"records cannot be read from {path}: {why.strerror}") from None
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                try:
                    out.records.append(parse_record(line))
                except Invalid as why:
                    out.problems.append(f"line {number} of {path.name}: {why.what}")
        return out

    def add(self, records: Iterable[Record]) -> None:
        """Appended at once and on disk when this returns."""
        new = list(records)
        self.records += new
        append(self.path, new)

    def best(self) -> dict[tuple[str, str, int], Record]:
        """The fastest of each group, by what runs decided; trials decide nothing by themselves."""
        out: dict[tuple[str, str, int], Record] = {}
        for r in self.records:
            known = out.get(r.key)
            if r.kind == "best" and (known is None or _faster(r, known)):
                out[r.key] = r
        return out

    def trials(self, key: tuple[str, str, int]) -> list[Record]:
        return [r for r in self.records if r.kind == "trial" and r.key == key]


def _faster(a: Record, b: Record) -> bool:
    return (a.ratio or 1.0) <= (b.ratio or 1.0)


def append(path: Path, records: Iterable[Record]) -> None:
    """One write: another process that appends at the same time has its lines before or after. A
    line that was left half-written is ended first."""
    data = "".join(r.line() + "\n" for r in records).encode()
    if not data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as file:
        end = file.seek(0, os.SEEK_END)
        if end:
            file.seek(end - 1)
            data = data if file.read(1) == b"\n" else b"\n" + data
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


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
    unknown = found.keys() - _TYPES.keys()
    missing = {"kind", "group", "target", "threads", "trace", "seconds", "usual"} - found.keys()
    if unknown or missing:
        raise Invalid(f"it has {'no ' if missing else ''}{', '.join(sorted(missing or unknown))}")
    if found["kind"] not in ("trial", "best"):
        raise Invalid(f"there are no records of kind {found['kind']!r}")
    return Record(**found)


def merged(files: Iterable[Records]) -> list[Record]:
    """All lines of several files, each once, the best of each group last."""
    seen: dict[str, Record] = {}
    for f in files:
        for r in f.records:
            seen.setdefault(r.line(), r)
    return sorted(seen.values(), key=lambda r: r.kind == "best")


def checked(records: Iterable[Record]) -> Iterator[tuple[Record, str]]:
    """Each record with what is wrong with it by today's steps; nothing where all is well."""
    for r in records:
        try:
            r.replayed()
        except TilewrightError as why:
            yield r, why.what
        else:
            yield r, ""
