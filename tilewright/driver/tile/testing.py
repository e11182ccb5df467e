"""Timing and comparing kernels: `tw.testing`.

`do_bench` times a function as Triton's does: some calls to get going, then calls for `rep`
milliseconds, between which a buffer larger than the caches is written.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from tilewright.base import knobs
from tilewright.base.errors import Invalid, MissingExtra, TilewrightError
from tilewright.targets import host

MODES = ("min", "max", "mean", "median", "all")
# Turns of functions that are timed beside each other.
ROUNDS = 4
# One leaves when its fastest time is longer than the leader's median by this part.
BEHIND = 0.10
_MOST_TICKS = 16
# Two times of a call are too few, more than this add nothing.
_MOST_CALLS = 100_000
_GPU_CACHES = 256 << 20  # bytes that no GPU has in its caches


def do_bench(
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Iterable[Any] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
    flush: bool = True,
) -> Any:
    """How long `fn()` takes, in milliseconds.

    `warmup` and `rep` are milliseconds spent before and while timing. `quantiles` gives those of
    the times (one number for one quantile), else `return_mode` says what: min, max, mean, median or
    all. Between calls caches are emptied, unless `flush` is False; gradients of the tensors in
    `grad_to_none` are dropped. Where a process uses a GPU, times are measured by its clock.
    """
    if return_mode not in MODES:
        raise Invalid(f"return_mode {return_mode!r}", hint=f"one of {', '.join(MODES)}")
    tensors = list(grad_to_none or ())
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return summarized(_by_events(fn, warmup, rep, tensors, flush), quantiles, return_mode)
    empty_caches = _flusher() if flush else _nothing

    def timed() -> float:
        for x in tensors:
            x.grad = None
        empty_caches()
        start = time.perf_counter_ns()
        fn()
        return (time.perf_counter_ns() - start) / 1e6

    fn()  # compiles, allocates
    # What a round takes, with emptying the caches: the budget is the user's time.
    start = time.perf_counter_ns()
    first = [timed() for _ in range(2)]
    per_round = (time.perf_counter_ns() - start) / 2e6
    if sum(first) > warmup + rep:  # calls so long need no warming up: these are the times
        return summarized(first, quantiles, return_mode)
    if sum(first) < warmup:
        per_call = max(min(first), 1e-4)
        for _ in range(min(int((warmup - sum(first)) / per_call) + 1, _MOST_CALLS)):
            fn()
    count = min(max(int(rep / max(per_round, 1e-4)), 1), _MOST_CALLS)
    return summarized([timed() for _ in range(count)], quantiles, return_mode)


def _by_events(
    fn: Callable[[], Any], warmup: float, rep: float, tensors: list[Any], flush: bool
) -> list[float]:
    """Times by the clock of a GPU: between two points of its stream. What the host does by itself
    is between them too."""
    import torch

    memory = torch.empty(_GPU_CACHES // 4, dtype=torch.int32, device="cuda") if flush else None

    def calls(count: int) -> list[float]:
        found = []
        for _ in range(count):
            for x in tensors:
                x.grad = None
            if memory is not None:
                memory.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            fn()
            end.record()
            found.append((start, end))
        torch.cuda.synchronize()
        return [a.elapsed_time(b) for a, b in found]

    fn()
    torch.cuda.synchronize()
    each = max(sum(calls(5)) / 5, 1e-3)
    calls(max(1, min(int(warmup / each), _MOST_CALLS)))
    return calls(max(1, min(int(rep / each), _MOST_CALLS)))


def in_turns(
    functions: Sequence[Callable[[], Any]],
    warmup: float,
    rep: float,
    advance: Callable[[], None] = lambda: None,
    rounds: int = ROUNDS,
) -> list[list[float] | TilewrightError]:
    """Milliseconds of several functions, by `do_bench`, in turns: what slows a machine down for a
    while slows all of them. Those that are clearly slower leave after a turn, those that were timed
    for `rep` milliseconds too. One that fails has its error."""
    found: list[list[float] | TilewrightError] = [[] for _ in functions]
    left = list(range(len(functions)))
    for k in range(rounds):
        timed: dict[int, list[float]] = {}
        for i in left:
            before = found[i]
            try:
                new = do_bench(
                    functions[i], 0 if k else warmup, rep / rounds, return_mode="all", flush=False
                )
                found[i] = timed[i] = [*before, *new] if isinstance(before, list) else new
            except TilewrightError as problem:
                found[i] = problem
        best = min(map(statistics.median, timed.values()), default=0.0)
        left = [i for i, x in timed.items() if sum(x) < rep and min(x) <= (1 + BEHIND) * best]
        advance()
    return found


def do_bench_cudagraph(fn: Callable[[], Any], rep: float = 20, **options: Any) -> Any:
    """`do_bench` with warm caches: there are no graphs of launches on a CPU."""
    return do_bench(fn, rep=rep, flush=False, **options)


def summarized(times: list[float], quantiles: Sequence[float] | None, mode: str) -> Any:
    if quantiles is not None:
        found = [quantile(times, q) for q in quantiles]
        return found[0] if len(found) == 1 else found
    if mode == "all":
        return times
    how = {"min": min, "max": max, "mean": statistics.mean, "median": statistics.median}
    return how[mode](times)


def quantile(times: Sequence[float], q: float) -> float:
    """Between the two times next to it, linearly."""
    if not 0 <= q <= 1:
        raise Invalid(f"the quantile {q}", hint="quantiles are between 0 and 1")
    ordered = sorted(times)
    at = q * (len(ordered) - 1)
    low, high = ordered[math.floor(at)], ordered[math.ceil(at)]
    return low + (high - low) * (at - math.floor(at))


@cache
def _flusher() -> Callable[[], None]:
    """Writes memory of twice the largest cache."""
    space = np.zeros(min(2 * max(host().l2, host().l3), 256 << 20) // 8, np.int64)

    def empty() -> None:
        space.fill(0)

    return empty


def _nothing() -> None:
    pass


# ---- comparing


def assert_close(x: Any, y: Any, atol: Any = None, rtol: Any = None, err_msg: str = "") -> None:
    """An AssertionError unless both are equal within `atol` (1e-2) and `rtol` (0), NaNs included.
    Tolerances may be functions of the first one's dtype."""
    atol = 1e-2 if atol is None else atol
    rtol = 0.0 if rtol is None else rtol
    dtype = getattr(x, "dtype", None)
    atol = atol(dtype) if callable(atol) else atol
    rtol = rtol(dtype) if callable(rtol) else rtol
    np.testing.assert_allclose(
        _array(x), _array(y), atol=atol, rtol=rtol, equal_nan=True, err_msg=err_msg
    )


def _array(x: Any) -> np.ndarray:
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        if "bfloat16" in str(x.dtype) or "float8" in str(x.dtype):
            x = x.float()
        return x.numpy()
    return np.asarray(x)


# ---- reports


@dataclass
class Benchmark:
    """What `perf_report` measures: `x_names` take the values `x_vals` (a tuple of them where there
    are several names), and each value of `line_arg` is a line of its own."""

    x_names: Sequence[str]
    x_vals: Sequence[Any]
    line_arg: str
    line_vals: Sequence[Any]
    line_names: Sequence[str]
    plot_name: str
    args: dict[str, Any] = field(default_factory=dict)
    xlabel: str = ""
    ylabel: str = ""
    x_log: bool = False
    y_log: bool = False
    styles: Sequence[tuple[str, str]] | None = None

    def points(self) -> Iterable[dict[str, Any]]:
        for x in self.x_vals:
            values = x if isinstance(x, (list, tuple)) else [x] * len(self.x_names)
            if len(values) != len(self.x_names):
                raise Invalid(
                    f"{self.plot_name}: {x!r} for {len(self.x_names)} names",
                    hint=f"x_vals has one value for all, or a tuple for {list(self.x_names)}",
                )
            yield dict(zip(self.x_names, values, strict=True))


@dataclass
class Measured:
    """The results of one benchmark: a row per point; a line's times are (middle, low, high)."""

    benchmark: Benchmark
    points: list[dict[str, Any]]
    lines: dict[str, list[tuple[float, float | None, float | None]]]

    def columns(self) -> dict[str, list[Any]]:
        """Columns by name: those of x, then the middle of each line."""
        b = self.benchmark
        found: dict[str, list[Any]] = {n: [p[n] for p in self.points] for n in b.x_names}
        for name, values in self.lines.items():
            found[f"{name} ({b.ylabel})" if b.ylabel else name] = [v[0] for v in values]
        return found

    def table(self) -> Table:
        table = Table(title=self.benchmark.plot_name or None)
        columns = self.columns()
        for name in columns:
            table.add_column(name, justify="right")
        for row in zip(*columns.values(), strict=True):
            table.add_row(*(f"{v:.6g}" if isinstance(v, float) else str(v) for v in row))
        return table

    def csv(self, digits: int = 6) -> str:
        columns = self.columns()
        rows = [",".join(columns)]
        for row in zip(*columns.values(), strict=True):
            shown = (f"{v:.{digits}f}" if isinstance(v, float) else str(v) for v in row)
            rows.append(",".join(shown))
        return "\n".join(rows) + "\n"

    def frame(self) -> Any:
        """A pandas DataFrame."""
        try:
            import pandas
        except ImportError:
            raise MissingExtra("frames", "a table as a DataFrame (pandas)") from None
        return pandas.DataFrame(self.columns())

    def plot(self, path: Path | None, show: bool) -> None:
        try:
            import matplotlib.pyplot as plt
        except ImportError:
            raise MissingExtra("demo", "a plot of measurements (matplotlib)") from None
        b = self.benchmark
        figure, axes = plt.subplots(layout="constrained")
        first = b.x_names[0]
        x = [p[first] for p in self.points]
        for k, (name, values) in enumerate(self.lines.items()):
            color, style = b.styles[k] if b.styles else (None, None)
            middle = [v[0] for v in values]
            style = style or "-"
            (line,) = axes.plot(x, middle, label=name, color=color, linestyle=style, marker=".")
            if all(v[1] is not None and v[2] is not None for v in values):
                low, high = [v[1] for v in values], [v[2] for v in values]
                band: Any = {"alpha": 0.15, "color": line.get_color(), "linewidth": 0}
                axes.fill_between(x, low, high, **band)  # type: ignore[arg-type]
        axes.set_xlabel(b.xlabel or first)
        axes.set_ylabel(b.ylabel)
        axes.set_xscale("log" if b.x_log else "linear")
        axes.set_yscale("log" if b.y_log else "linear")
        if b.x_log and len(x) <= _MOST_TICKS:  # the sizes themselves say more than powers of ten
            axes.set_xticks(x, [_size(v) for v in x])
            axes.minorticks_off()
        if not b.y_log:
            axes.set_ylim(bottom=0)
        axes.set_title(b.plot_name)
        axes.grid(alpha=0.3)
        axes.legend()
        if path is not None:
            figure.savefig(path, dpi=150)
        if show:
            plt.show()
        plt.close(figure)


def _size(n: Any) -> str:
    """A number for reading: 4096, 64K, 16M."""
    for unit, letter in ((1 << 20, "M"), (1 << 10, "K")):
        if isinstance(n, int) and n >= 16 * 1024 and n % unit == 0:
            return f"{n // unit}{letter}"
    return str(n)


class Mark:
    """A function that is measured over benchmarks by `run`."""

    def __init__(self, fn: Callable[..., Any], benchmarks: Benchmark | Sequence[Benchmark]):
        self.fn = fn
        self.benchmarks = benchmarks

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def measure(self, b: Benchmark, **kwargs: Any) -> Measured:
        lines: dict[str, list[Any]] = {name: [] for name in b.line_names}
        points = list(b.points())[: knobs.bench_points.get()]
        for point in points:
            for value, name in zip(b.line_vals, b.line_names, strict=True):
                got = self.fn(**point, **{b.line_arg: value}, **b.args, **kwargs)
                lines[name].append(
                    tuple(got) if isinstance(got, (list, tuple)) else (got, None, None)
                )
        return Measured(b, points, lines)

    def run(
        self,
        show_plots: bool = False,
        print_data: bool = False,
        save_path: str | Path = "",
        return_df: bool = False,
        save_precision: int = 6,
        **kwargs: Any,
    ) -> Any:
        """Measure; print tables, save `<name>.csv` and `<name>.png`, show plots, as the arguments
        say. Plots need matplotlib, DataFrames need pandas; tables need neither."""
        single = isinstance(self.benchmarks, Benchmark)
        todo = [self.benchmarks] if isinstance(self.benchmarks, Benchmark) else self.benchmarks
        folder = Path(save_path) if save_path else None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        found = []
        for b in todo:
            measured = self.measure(b, **kwargs)
            found.append(measured)
            if print_data:
                Console().print(measured.table())
            if folder is not None:
                (folder / f"{b.plot_name}.csv").write_text(measured.csv(save_precision))
            if b.plot_name and (show_plots or folder is not None):
                image = None if folder is None else folder / f"{b.plot_name}.png"
                _plotted(measured, image, show_plots)
        if not return_df:
            return None
        frames = [m.frame() for m in found]
        return frames[0] if single else frames


def _plotted(measured: Measured, image: Path | None, show: bool) -> None:
    """A plot, or a printed reason where there can be none: the table does not need it."""
    try:
        measured.plot(image, show)
    except MissingExtra as problem:
        Console(stderr=True).print(f"{measured.benchmark.plot_name}: no plot: {problem.what}")


def perf_report(
    benchmarks: Benchmark | Sequence[Benchmark],
) -> Callable[[Callable[..., Any]], Mark]:
    """Measures the decorated function over these benchmarks: `.run(print_data=True)`."""
    return lambda fn: Mark(fn, benchmarks)
