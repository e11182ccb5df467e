"""Schedules that show a mistake of the compiler: legal ones that computed something else than the
default schedule, or ended their process. Each is a file of its own beside the records, with all
that it takes to run it again; it never becomes a record that a compile would use."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from tilewright.base.errors import Invalid
from tilewright.tune.measure import SEED
from tilewright.tune.measuring.measurer import Measurer
from tilewright.tune.measuring.race import Verdict

# The faults that are the compiler's.
KEPT = ("wrong", "crashed")
FORM = 1


@dataclass(frozen=True)
class Reproducer:
    """A schedule, the one that it was compared with, and what was found."""

    group: str
    target: str
    threads: int
    usual: str  # the default schedule
    trace: str
    fault: str
    why: str
    difference: float | None = None  # the largest
    seed: int = SEED  # of the arguments
    version: str = ""
    form: int = FORM

    def write(self, records: Path) -> Path:
        """A file beside the records; the same for the same schedule."""
        what = "\n".join((self.group, self.target, str(self.threads), self.trace))
        digest = hashlib.sha256(what.encode()).hexdigest()[:12]
        path = folder(records) / f"{self.fault}-{digest}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")
        return path

    def again(self, measuring: Measurer) -> Verdict:
        """What becomes of it now."""
        usual, found = measuring.measure(self.group, [self.usual, self.trace])
        return usual if usual.fault else found


def folder(records: Path) -> Path:
    """Where the reproducers of a file of records are."""
    return records.with_name(f"{records.stem}.wrong")


def load_reproducer(path: Path) -> Reproducer:
    try:
        found = json.loads(path.read_text())
    except OSError as why:
        raise Invalid(f"{path} cannot be read: {why.strerror}") from None
    except ValueError:
        found = None
    names = {f.name for f in fields(Reproducer)}
    if not isinstance(found, dict) or found.keys() != names or found["form"] != FORM:
        hint = "`tilewright tune` says where it writes them"
        raise Invalid(f"{path} is no reproducer of this version", hint=hint)
    return Reproducer(**found)
