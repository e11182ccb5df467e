"""Schedules that an earlier tuning run decided on, used by every compile where there are any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.base import knobs
from tilewright.base.errors import TilewrightError
from tilewright.base.events import Log
from tilewright.ir.target import Target
from tilewright.kernel.group import Group
from tilewright.tune.choose import Chosen, Considered
from tilewright.tune.records import Record, Records


@dataclass(frozen=True)
class Recorded:
    """The best schedules for one target and number of threads, by the text of their groups."""

    best: Mapping[str, Record] = field(default_factory=dict)

    def chosen(self, text: str, group: Group, log: Log) -> Chosen | None:
        """The schedule of a group by today's steps; a record that they refuse is told and passed
        over."""
        found = self.best.get(text)
        if found is None:
            return None
        try:
            trace, nest = found.replayed(group)
        except TilewrightError as why:
            log.add("schedule", f"a record for {group.name} is passed over: {why.what}")
            return None
        said = Considered(f"a record of {found.trials} trials", 0.0, found.seconds)
        return Chosen(trace, nest, (said,))


_loaded: dict[tuple[Path, int, int], Records] = {}


def recorded(target: Target, threads: int, log: Log) -> Recorded:
    """What the file of records knows for a target; it is read again where it has changed."""
    path = knobs.records_file()
    try:
        stat = path.stat()
    except OSError:
        return Recorded()
    key = (path, stat.st_mtime_ns, stat.st_size)
    found = _loaded.get(key)
    if found is None:
        found = Records.load(path)
        _loaded.clear()
        _loaded[key] = found
        for problem in found.problems:
            log.add("schedule", f"a record is passed over: {problem}")
    own = (target.key(), threads)
    best = found.best().items()
    return Recorded({r.group: r for k, r in best if k[1:] == own and r.gains})
