"""Schedules that an earlier tuning run decided on, used by every compile where there are any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.base import knobs
from tilewright.base.errors import Invalid, TilewrightError
from tilewright.base.events import Log
from tilewright.ir.target import Target
from tilewright.kernel.group import Group
from tilewright.tune.choose import Chosen, Considered
from tilewright.tune.records import Record, Records


@dataclass(frozen=True)
class Recorded:
    """The best schedules for one target and number of threads, by the text of their groups."""

    best: Mapping[str, Record] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)  # of which records it was said that they are stale

    def chosen(self, text: str, group: Group, log: Log) -> Chosen | None:
        """The schedule of a group by today's steps. A record that they refuse is told once, and
        passed over."""
        found = self.best.get(text)
        if found is None:
            return None
        try:
            trace, nest = found.replayed(group)
        except TilewrightError as why:
            if text not in self.told:
                self.told.add(text)
                said = f"a record for {group.name} is passed over: {why.what}"
                log.add("schedule", f"{said} (`tilewright tune` makes a new one)")
            return None
        said = Considered(f"a record of {found.trials} trials", 0.0, found.seconds)
        return Chosen(trace, nest, (said,))


@dataclass(frozen=True)
class _File:
    """The file as it was last read, and what it knows by target and threads."""

    stamp: str
    records: Records
    known: dict[tuple[str, int], Recorded] = field(default_factory=dict)


_last: list[_File] = []


def recorded(target: Target, threads: int, log: Log) -> Recorded:
    """What the file of records knows for a target; it is read again where it has changed."""
    stamp = knobs.records_stamp()
    if not stamp:
        return Recorded()
    stamp = f"{knobs.records_file()} {stamp}"
    file = next(iter(_last), None)
    if file is None or file.stamp != stamp:
        file = _File(stamp, _loaded(log))
        _last[:] = [file]
    own = (target.machine_key(), threads)
    found = file.known.get(own)
    if found is None:
        best = file.records.best().items()
        found = Recorded({r.group: r for k, r in best if k[1:] == own and r.gains})
        file.known[own] = found
    return found


def _loaded(log: Log) -> Records:
    """What cannot be read is told, and no reason not to compile."""
    path = knobs.records_file()
    try:
        found = Records.load(path, "best")
    except Invalid as why:
        log.add("schedule", f"{why.what}: no schedule is taken from there")
        return Records(path)
    for problem in found.problems:
        log.add("schedule", f"a record is passed over: {problem}")
    return found
