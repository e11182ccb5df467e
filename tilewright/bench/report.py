"""Results for people: tables on the terminal, the same as Markdown, and JSON.

Columns named `within` are 95 % intervals, `of roof` is the part of the machine's limit that ours
reaches, `in eager` how many operators ours left there, `beyond` the time beyond capture, `÷ ours`
how many times as long the peer takes.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from tilewright.base.errors import Invalid
from tilewright.base.medians import median_interval
from tilewright.bench.measure import geometric_mean
from tilewright.bench.results import OURS, FirstCall, Result, Timing
from tilewright.bench.run import Plan
from tilewright.runtime.cuda.device import device

Row = list[str]
NONE = "–"


def case_table(result: Result) -> Table:
    """One case: a row per contender."""
    table = _table(f"{result.name}: {result.about}, {result.dtype}", _CASE)
    for row in case_rows(result):
        style = "bold" if row[0] == OURS else None
        table.add_row(*row, style=style)
    if result.problem:
        table.caption = result.problem
    return table


_CASE = ("contender", "time", "within", "ours is", "within", "error", "first call, s", "remark")


def case_rows(result: Result) -> list[Row]:
    rows = []
    for name, t in result.timings.items():
        facts = [_error(t), _s(result.first_calls.get(name, FirstCall()).cold)]
        if not t.seconds:
            rows.append([name, NONE, NONE, NONE, NONE, *facts, t.problem or ""])
            continue
        low, high = median_interval(t.seconds)
        faster, within = NONE, NONE
        if name in result.ratios:
            middle, *ends = result.ratios[name]
            faster, within = f"{middle:.2f}×", f"{ends[0]:.2f}–{ends[1]:.2f}"
        span = f"{_ms(low)}–{_ms(high)}"
        remark = _remark(result, t)
        rows.append([name, f"{_ms(t.median)} ms", span, faster, within, *facts, remark])
    return rows


def _error(t: Timing | None) -> str:
    return NONE if t is None or t.error is None else f"{t.error:.1e}"


def _remark(result: Result, t: Timing) -> str:
    best = result.best_peer
    words = ["the best peer"] if best is not None and t is result.timings[best] else []
    return "; ".join([*words, *([t.remark] if t.remark else [])])


_SPEED = (
    *("case", "ours, ms", "best peer", "× best", "within", "× eager"),
    *("error", "in eager", "of roof", "bound"),
)


def speed_rows(results: Sequence[Result]) -> list[Row]:
    """All cases with their best peers, and the geometric mean."""
    rows = []
    for r in results:
        best, roof = r.best_peer, NONE if r.of_roof is None else f"{r.of_roof:.0%}"
        ratio, within = NONE, NONE
        if best in r.ratios:
            middle, low, high = r.ratios[best]
            ratio, within = f"{middle:.2f}", f"{low:.2f}–{high:.2f}"
        eager = f"{r.ratios['eager'][0]:.2f}" if "eager" in r.ratios else NONE
        bound = r.roof.bound if r.roof is not None and r.of_roof is not None else NONE
        own = r.timings.get(OURS)
        ours = NONE if r.ours is None else _ms(r.ours.median)
        left = NONE if own is None or own.fallbacks is None else f"{own.fallbacks}"
        rows.append(
            [r.name, ours, best or NONE, ratio, within, eager, _error(own), left, roof, bound]
        )
    best_ratios = [r.ratios[r.best_peer][0] for r in results if r.best_peer in r.ratios]
    eager_ratios = [r.ratios["eager"][0] for r in results if "eager" in r.ratios]
    if len(best_ratios) > 1:
        eager = f"{geometric_mean(eager_ratios):.2f}" if eager_ratios else NONE
        mean = f"{geometric_mean(best_ratios):.2f}"
        rows.append(["geometric mean", "", "", mean, "", eager, *[""] * 4])
    return rows


_COMPILE = (
    "case",
    "cold, s",
    "capture",
    "beyond",
    "warm beyond",
    "MiB",
    "Inductor cold",
    "warm",
    "MiB",
    "÷ ours",
)


def compile_rows(results: Sequence[Result]) -> list[Row]:
    """First calls in fresh processes."""
    rows = []
    for r in results:
        if OURS not in r.first_calls:
            continue
        ours, theirs = r.first_calls[OURS], r.first_calls.get("inductor", FirstCall())
        both = ours.cold and theirs.cold
        rows.append(
            [
                r.name,
                _s(ours.cold),
                _s(r.capture),
                _s(r.beyond_capture(ours.cold)),
                _s(r.beyond_capture(ours.warm)),
                _mib(ours.resident) if ours.cold else NONE,
                _s(theirs.cold),
                _s(theirs.warm),
                _mib(theirs.resident) if theirs.cold else NONE,
                f"{theirs.cold / ours.cold:.1f}" if both and ours.cold and theirs.cold else NONE,
            ]
        )
    return rows


_MEMORY = (
    "case",
    "activations, MiB",
    "eager's",
    "weights in memory, MiB",
    "of the model",
    "one core taken",
)


def memory_rows(results: Sequence[Result]) -> list[Row]:
    rows = []
    for r in results:
        if OURS not in r.memory:
            continue
        ours, eager = r.memory[OURS], r.memory.get("eager")
        rows.append(
            [
                r.name,
                _mib(ours["activations"]),
                _mib(eager["activations"]) if eager else NONE,
                _mib(ours["weights"]),
                f"{ours['weights'] / r.weights:.2f}×" if r.weights else NONE,
                NONE if r.contended is None else f"{r.contended:.2f}× slower",
            ]
        )
    return rows


TABLES: tuple[tuple[str, tuple[str, ...], Callable[[Sequence[Result]], list[Row]]], ...] = (
    ("time per call", _SPEED, speed_rows),
    ("first call in a fresh process", _COMPILE, compile_rows),
    ("memory of a hot call, and weights", _MEMORY, memory_rows),
)


def problems(results: Sequence[Result]) -> list[str]:
    """Sentences about what is missing from the tables."""
    found = []
    for r in results:
        if r.problem:
            found.append(f"{r.name}: {r.problem}")
        found += [f"{r.name}: {note}" for note in r.notes]
        for what, entries in (("", r.timings), (", first call", r.first_calls)):
            for name, entry in entries.items():
                if entry.problem:
                    found.append(f"{r.name}, {name}{what}: {entry.problem}")
    return found


def show_summary(console: Console, results: Sequence[Result]) -> None:
    for title, headings, rows_of in TABLES:
        if rows := rows_of(results):
            table = _table(title, headings)
            for row in rows:
                table.add_row(*row)
            console.print(table)
    for sentence in problems(results):
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def markdown(results: Sequence[Result], plan: Plan, warning: str | None) -> str:
    """Everything as Markdown, the summary first."""
    parts = ["# Bench", about(plan)]
    if warning:
        parts.append(f"**{warning}**")
    for title, headings, rows_of in TABLES:
        if rows := rows_of(results):
            parts += [f"## {title.capitalize()}", _markdown_table(headings, rows)]
    if plan.timing:
        parts.append("## Every contender")
        for r in results:
            parts += [f"### {r.name}: {r.about}, {r.dtype}", _markdown_table(_CASE, case_rows(r))]
    if found := problems(results):
        parts += ["## What is missing", "\n".join(f"- {sentence}" for sentence in found)]
    return "\n\n".join(parts) + "\n"


def gpu_name() -> str:
    return device(0).name


def about(plan: Plan) -> str:
    """Under which conditions the numbers were taken."""
    size = "tiny sizes" if plan.tiny else "full sizes"
    rounds = f"medians of {plan.rounds} rounds in which all take turns"
    threads = "1 thread" if plan.threads == 1 else f"{plan.threads} threads"
    where = platform.machine() if plan.device == "cpu" else f"{gpu_name()} ({platform.machine()})"
    return f"{where}, {threads} each, {size}, {rounds}; within: 95 % intervals."


def json_text(results: Sequence[Result], plan: Plan, warning: str | None) -> str:
    """Every number."""
    found: dict[str, Any] = {
        "warning": warning,
        "machine": platform.machine(),
        "device": plan.device if plan.device == "cpu" else gpu_name(),
        "threads": plan.threads,
        "tiny": plan.tiny,
        "rounds": plan.rounds,
        "results": [r.json() for r in results],
    }
    return json.dumps(found, indent=1) + "\n"


def write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as problem:
        raise Invalid(f"{path} cannot be written: {problem.strerror}") from None


def _markdown_table(headings: Sequence[str], rows: Sequence[Row]) -> str:
    lines = [headings, ["---"] + ["---:"] * (len(headings) - 1), *rows]
    return "\n".join(
        "| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in lines
    )


def _table(title: str, headings: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE)
    for k, heading in enumerate(headings):
        words = k == 0 or heading in ("best peer", "remark", "bound")
        table.add_column(heading, justify="left" if words else "right", no_wrap=heading != "remark")
    return table


def _ms(seconds: float) -> str:
    """Three digits that mean something."""
    ms = seconds * 1e3
    return f"{ms:.1f}" if ms >= 100 else f"{ms:.2f}" if ms >= 1 else f"{ms:.4f}"


def _s(seconds: float | None) -> str:
    return NONE if seconds is None else f"{seconds:.2f}"


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f}"
