"""The first lines of a report: what was compiled, what was not and what to change, and which
kernels lose most."""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.base.events import Event
from tilewright.driver.looking.roofs import Roofed
from tilewright.driver.looking.tables import count, short_place

SHOWN = 3  # problems, and kernels
# Kinds of events that are told, the worst first; a recompile costs time once.
_KINDS = {"graph-break": "graph break", "fallback": "fallback", "recompile": "recompile"}


@dataclass(frozen=True)
class Problem:
    """What kept lines of the user's program from being compiled, or made it compile again."""

    kind: str
    what: str
    remedy: str
    places: tuple[str, ...]

    @property
    def line(self) -> str:
        """The user's text at the first place."""
        if not self.places:
            return ""
        file, _, number = self.places[0].rpartition(":")
        return linecache.getline(file, int(number)).strip() if number.isdigit() else ""

    def facts(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "what": self.what,
            "remedy": self.remedy,
            "places": list(self.places),
            "line": self.line,
        }


@dataclass(frozen=True)
class Summary:
    """What a person reads first."""

    programs: int
    kernels: int
    native: int  # operators that were captured and compiled
    eager: int  # operators that were captured and run in eager
    problems: tuple[Problem, ...]
    library: int = 0  # operators that are calls of a library, by name
    worst: tuple[Roofed, ...] = ()

    @property
    def whole(self) -> bool:
        """Was all of it compiled?"""
        return all(p.kind == "recompile" for p in self.problems)

    def facts(self) -> dict[str, Any]:
        return {
            "whole": self.whole,
            "programs": self.programs,
            "kernels": self.kernels,
            "operators": {
                "native": self.native,
                "library": self.library,
                "captured": self.native + self.library + self.eager,
            },
            "problems": [p.facts() for p in self.problems],
            "worst_kernels": [
                {
                    "number": r.number,
                    "name": r.kernel.name,
                    "places": list(r.kernel.places),
                    "estimated_seconds": r.seconds,
                    "roof_seconds": r.roof,
                    "bound": r.bound,
                }
                for r in self.worst
            ],
        }

    def lines(self) -> Iterator[str]:
        """At most ten."""
        yield f"{self._compiled()}; {self._broken()}"
        for p in self.problems[:SHOWN]:
            at = short_place(p.places[0]) if p.places else "the function"
            more = f" (and {count(len(p.places) - 1, 'line')} more)" if len(p.places) > 1 else ""
            text = f" `{p.line}`" if p.line else ""
            yield f"  {at}{more}{text}: {_KINDS[p.kind]}, {p.what}"
            yield f"    change: {p.remedy}"
        for r in self.worst[:SHOWN]:
            at = f" ({short_place(r.kernel.places[0])})" if r.kernel.places else ""
            yield (
                f"  kernel {r.number} {r.kernel.name}{at}: estimated {time_text(r.seconds)}, "
                f"{r.share:.0%} of what {r.bound} allows"
            )

    def _compiled(self) -> str:
        if not self.programs and not self.library:
            return "compiled: nothing"
        made = f"compiled: {count(self.programs, 'program')}, {count(self.kernels, 'kernel')}"
        total = self.native + self.library + self.eager
        called = f" and {count(self.library, 'library call')}" if self.library else ""
        return f"{made}, {self.native}{called} of {count(total, 'captured operator')}"

    def _broken(self) -> str:
        if not self.problems:
            captured = self.programs or self.library
            return "nothing broke" if captured else "no operator of torch was captured"
        counts = [
            count(n, name)
            for kind, name in _KINDS.items()
            if (n := sum(max(1, len(p.places)) for p in self.problems if p.kind == kind))
        ]
        left = len(self.problems) - SHOWN
        return ", ".join(counts) + (f" ({left} more kinds below)" if left > 0 else "")


def problems_of(events: Sequence[Event]) -> tuple[Problem, ...]:
    """Events of one class as one, with all their places."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for kind in _KINDS:
        for e in sorted((e for e in events if e.kind == kind), key=_place):
            key = kind, str(e.data.get("what") or e.message), str(e.data.get("remedy") or "")
            places = found.setdefault(key, [])
            if e.where and e.where not in places:
                places.append(e.where)
    return tuple(
        Problem(kind, what, remedy or "see the table below", tuple(places))
        for (kind, what, remedy), places in found.items()
    )


def _place(e: Event) -> tuple[str, int]:
    """In the order of the user's lines: torch tells of cuts in another one."""
    file, _, line = (e.where or "").rpartition(":")
    return file, int(line) if line.isdigit() else 0


def eager_operators(events: Sequence[Event]) -> int:
    """Operators that were captured and run in eager."""
    found = (e.data for e in events if e.kind == "fallback")
    return sum(int(d.get("operators", d.get("operator") != "the function")) for d in found)


def time_text(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"
