"""Curves of the best time over trials: as text for a terminal, and as a page with pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from tilewright.tune.campaign import Task

_BLOCKS = " ▁▂▃▄▅▆▇█"
_STYLE = "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto}svg{width:100%}"


def best_so_far(t: Task) -> list[float]:
    """After each trial, the time of the best schedule relative to the default one's."""
    best, out = 1.0, [1.0]
    for x in t.tuning.trials:
        best = min(best, x.ratio if x.ratio is not None else best)
        out.append(best)
    return out


def plot(values: Sequence[float], unit: str, width: int = 60, height: int = 6) -> str:
    """Columns of characters from zero up to the largest value, one for each or for several."""
    columns = min(width, len(values))
    ends = [len(values) * (k + 1) // columns - 1 for k in range(columns)]
    most = max(values) or 1.0
    levels = [round(values[e] / most * height * 8) for e in ends]
    labels = [f"{most * (row + 1) / height:.3g} {unit}" for row in range(height)]
    margin = max(map(len, labels))
    lines = []
    for row in reversed(range(height)):
        drawn = "".join(_BLOCKS[max(0, min(8, level - 8 * row))] for level in levels)
        lines.append(f"{labels[row]:>{margin}} ┤{drawn}".rstrip())
    last = f"{len(values) - 1} trials"
    lines.append(f"{'':>{margin}} └0{last:─>{max(columns - 1, len(last) + 1)}}")
    return "\n".join(lines)


def page_of(tasks: Iterable[Task]) -> str:
    """One file that needs nothing else: the best time over trials of each kernel."""
    parts = [f"<!doctype html><meta charset=utf-8><title>tuning</title><style>{_STYLE}</style>"]
    for t in tasks:
        if t.started and t.tuning.trials:
            parts.append(f"<h3>{escape(t.names[0])}</h3>{curve(t)}")
    return "\n".join(parts) + "\n"


def curve(t: Task, width: int = 640, height: int = 160) -> str:
    """The best time so far against the number of trials, from zero up, as a picture."""
    values = best_so_far(t)
    count, left, floor = len(values) - 1, 60, height - 24
    x = [left + (width - left - 10) * k / max(1, count) for k in range(len(values))]
    y = [floor - (floor - 24) * v for v in values]
    # A trial is better from its own number on: steps, not slopes.
    at = [f"{x[0]:.1f},{y[0]:.1f}"]
    for k in range(1, len(values)):
        at += [f"{x[k]:.1f},{y[k - 1]:.1f}", f"{x[k]:.1f},{y[k]:.1f}"]
    seconds = t.tuning.seconds or 0.0
    found = f"{1 / t.won:.2f} times the default schedule's speed" if t.closed else "not decided"
    line = f'<polyline fill="none" stroke="#36c" stroke-width="2" points="{" ".join(at)}"/>'
    axes = f'<path fill="none" stroke="#999" d="M{left},20V{floor}H{width - 10}"/>'

    def text(x: float, y: float, said: str, anchor: str = "start") -> str:
        return f'<text x="{x}" y="{y}" font-size="12" text-anchor="{anchor}">{said}</text>'

    said = [
        text(left, 14, f"{count} trials, {found}"),
        text(left - 6, 28, time_text(seconds), "end"),
        text(left - 6, floor, "0", "end"),
        text(width - 10, height - 8, f"trial {count}", "end"),
    ]
    return f'<svg viewBox="0 0 {width} {height}">{axes}{line}{"".join(said)}</svg>'


def time_text(seconds: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{seconds / scale:.2f} {unit}"
    return f"{seconds * 1e6:.1f} us"
