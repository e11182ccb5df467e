"""What the checking mode found: findings with their places, as a table and as an error."""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from tilewright.base.errors import TilewrightError
from tilewright.lang.tile.ir import Place

OUT_OF_BOUNDS = "out of bounds"
UNDEFINED = "undefined value"
RACE = "race"

Program = tuple[int, int, int]


@dataclass
class Finding:
    """One thing that is wrong at one place; what happens there again is counted."""

    kind: str
    what: str  # of the first time
    place: Place | None
    program: Program
    # The other side: of a race the other access, of an undefined value where it comes from.
    other: Place | None = None
    count: int = 1

    @property
    def where(self) -> str:
        return str(self.place or "unknown")

    def lines(self) -> list[str]:
        """Where it happens, innermost first, and the other place."""
        found = _source(self.place)
        if self.other is not None and str(self.other) != self.where:
            first, *rest = _source(self.other)
            found += [f"and {first}", *rest]
        return found

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        lines = "\n".join(f"    {line}" for line in self.lines())
        return f"{self.kind}: {self.what}{times}\n{lines}"


def _source(place: Place | None) -> list[str]:
    found = []
    while place is not None:
        text = linecache.getline(place.file, place.line).strip()
        found.append(f"{place}{': ' + text if text else ''}")
        place = place.inside
    return found


class Report:
    """All findings of a launch, in the order in which they were made."""

    def __init__(self, kernel: str = "") -> None:
        self.kernel = kernel
        self._findings: dict[Any, Finding] = {}

    def __iter__(self) -> Any:
        return iter(self._findings.values())

    def __len__(self) -> int:
        return len(self._findings)

    def __bool__(self) -> bool:
        return bool(self._findings)

    def add(self, key: Any, made: Finding) -> None:
        """A finding, or one more time the one that has this key."""
        key = (made.kind, made.where, str(made.other), key)
        known = self._findings.get(key)
        if known is None:
            self._findings[key] = made
        else:
            known.count += made.count

    def of(self, kind: str) -> list[Finding]:
        return [f for f in self if f.kind == kind]

    def __str__(self) -> str:
        return "\n".join(map(str, self)) if self else "nothing found"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self:
            yield f"{self.kernel or 'kernel'}: nothing found"
            return
        table = Table(
            title=f"{self.kernel or 'kernel'}: {len(self)} findings", title_justify="left"
        )
        for heading in ("finding", "where", "what", "program", "times"):
            table.add_column(heading, overflow="fold")
        for f in self:
            program = ", ".join(map(str, f.program))
            table.add_row(f.kind, "\n".join(f.lines()), f.what, program, str(f.count))
        yield table

    def print(self, console: Console | None = None) -> None:
        (console or Console(stderr=True)).print(self)

    def raise_if_any(self) -> None:
        if self:
            raise CheckFailed(self)


class CheckFailed(TilewrightError):
    """The checking mode found something; `report` has it all."""

    def __init__(self, report: Report):
        first = next(iter(report))
        n = len(report)
        self.report = report
        super().__init__(
            f"{report.kernel or 'the kernel'}: {n} finding{'s' if n > 1 else ''}\n{report}",
            where=first.where,
            hint="out of bounds: mask the access; undefined: give the load `other=`; races: give "
            "each program memory of its own, or use tl.atomic_…",
        )

    def __reduce__(self) -> Any:
        return CheckFailed, (self.report,)
