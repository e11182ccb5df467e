"""Pictures of results: bars per case, and a roofline. Matplotlib is optional."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tilewright.base.errors import MissingExtra
from tilewright.bench.results import OURS, Result


def require_matplotlib() -> None:
    """Before anything is measured: finding out afterwards would be late."""
    if find_spec("matplotlib") is None:
        raise MissingExtra("bench", "drawing plots (matplotlib)")


def draw(results: Sequence[Result], folder: Path) -> list[Path]:
    """`speed.png` and `roofline.png`, as far as there is something to show."""
    require_matplotlib()
    import matplotlib

    matplotlib.use("Agg")  # files only: no display is needed
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, draw_one, shown in (
        ("speed.png", _bars, [r for r in results if r.ours is not None]),
        ("roofline.png", _roofline, [r for r in results if r.of_roof is not None]),
    ):
        if shown:
            figure, axes = pyplot.subplots(figsize=(max(7.0, 1.4 * len(shown)), 5.0))
            draw_one(axes, shown)
            figure.tight_layout()
            figure.savefig(folder / name, dpi=150)
            pyplot.close(figure)
            drawn.append(folder / name)
    return drawn


def _bars(axes: Any, results: Sequence[Result]) -> None:
    """Speed of every contender, where that of each case's best peer is 1."""
    names = list(dict.fromkeys(n for r in results for n, t in r.timings.items() if t.seconds))
    width = 0.8 / len(names)
    for k, name in enumerate(names):
        at, heights = [], []
        for x, r in enumerate(results):
            timing = r.timings.get(name)
            if timing is not None and timing.seconds and r.ours is not None:
                base = r.peers[r.best_peer].median if r.best_peer else r.ours.median
                at.append(x + (k - (len(names) - 1) / 2) * width)
                heights.append(base / timing.median)
        style = {"edgecolor": "black", "zorder": 3} if name == OURS else {"zorder": 2}
        axes.bar(at, heights, width, label=name, **style)
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle="--")
    axes.set_xticks(range(len(results)), [r.name for r in results], rotation=30, ha="right")
    axes.set_ylabel("speed (the best peer is 1)")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize="small", ncols=2)


def _roofline(axes: Any, results: Sequence[Result]) -> None:
    """Operations per second over operations per byte, under what the machine can do.

    Bandwidth depends on how much moves: the slowest and the fastest one measured are both drawn.
    Cases without products have no operations that count; they stand at one per eight bytes, which
    is a multiply-add on a number that is read and written.
    """
    roofs = [r.roof for r in results if r.roof is not None]
    peak = max(roof.peak for roof in roofs)
    bandwidths = sorted(roof.bytes / roof.traffic for roof in roofs)
    points = []
    for r in results:
        assert r.roof is not None and r.ours is not None
        flops = max(r.roof.flops, r.roof.bytes / 8)
        points.append((r.name, flops / r.roof.bytes, flops, r))
    left = min(x for _, x, _, _ in points) / 4
    right = max(max(x for _, x, _, _ in points) * 4, 4 * peak / bandwidths[0])
    for bandwidth in sorted({bandwidths[0], bandwidths[-1]}):
        ridge = peak / bandwidth
        label = f"{bandwidth / 1e9:.0f} GB/s, {peak / 1e9:.0f} GFLOP/s"
        xs = [left, ridge, right]
        axes.plot(xs, [left * bandwidth / 1e9, peak / 1e9, peak / 1e9], label=label)
    for name, x, flops, r in points:
        assert r.ours is not None
        ours = flops / r.ours.median / 1e9
        axes.plot([x], [ours], "o", color="black", markersize=5)
        axes.annotate(
            name, (x, ours), fontsize="x-small", xytext=(4, 4), textcoords="offset points"
        )
        if r.best_peer is not None:
            theirs = flops / r.peers[r.best_peer].median / 1e9
            axes.plot([x], [theirs], "x", color="tab:red", markersize=5)
    axes.plot([], [], "o", color="black", label=OURS)
    axes.plot([], [], "x", color="tab:red", label="the best peer")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations per byte")
    axes.set_ylabel("GFLOP/s")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize="small")
