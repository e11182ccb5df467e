"""Timing and reporting: what is measured, and what is made of it."""

import re
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.base import knobs
from tilewright.driver.tile.testing import Measured, quantile, summarized


def test_do_bench_gives_milliseconds():
    took = tw.testing.do_bench(lambda: time.sleep(0.005), warmup=1, rep=30)
    assert 4.9 < took < 100


def test_do_bench_calls_and_modes():
    calls = []
    every = tw.testing.do_bench(lambda: calls.append(1), warmup=0.1, rep=0.5, return_mode="all")
    assert isinstance(every, list) and 1 <= len(every) < len(calls)
    low, high = tw.testing.do_bench(lambda: None, warmup=0, rep=0.5, quantiles=[0.2, 0.8])
    assert 0 <= low <= high
    assert isinstance(tw.testing.do_bench(lambda: None, rep=0.1, quantiles=[0.5]), float)
    with pytest.raises(tw.Invalid, match="return_mode 'often'"):
        tw.testing.do_bench(lambda: None, return_mode="often")


def test_gradients_are_dropped_before_each_call():
    torch = pytest.importorskip("torch")
    x = torch.ones(3, requires_grad=True)
    seen = []

    def step():
        seen.append(x.grad is None)
        (x * 2).sum().backward()

    tw.testing.do_bench(step, warmup=0, rep=1, grad_to_none=[x])
    assert seen[-1] and len(seen) > 2


def test_summaries():
    times = [4.0, 1.0, 3.0, 2.0]
    assert [quantile(times, q) for q in (0, 0.5, 1)] == [1.0, 2.5, 4.0]
    for mode, value in {"min": 1.0, "max": 4.0, "mean": 2.5, "median": 2.5}.items():
        assert summarized(times, None, mode) == value
    with pytest.raises(tw.Invalid, match="quantile 2"):
        quantile(times, 2)


def test_assert_close():
    close = tw.testing.assert_close
    close([1.0, 2.0], np.array([1.005, 2.0]))
    with pytest.raises(AssertionError):
        close(1.0, 1.1)
    close(np.array([np.nan]), np.array([np.nan]))
    close(1.0, 1.1, rtol=lambda dtype: 0.2)
    torch = pytest.importorskip("torch")
    close(torch.ones(3, dtype=torch.bfloat16), torch.ones(3), atol=0)
    with pytest.raises(AssertionError, match="these differ"):
        close(torch.zeros(3), torch.ones(3), err_msg="these differ")


def benchmark(**options):
    given: dict[str, Any] = {
        "x_names": ["M", "N"],
        "x_vals": [16, (32, 64)],
        "line_arg": "provider",
        "line_vals": ["a", "b"],
        "line_names": ["A", "B"],
        "plot_name": "plot",
        "args": {"K": 2},
        "ylabel": "ms",
    }
    return tw.testing.Benchmark(**{**given, **options})


def measured_function(M, N, provider, K):
    time = M * N * K * (1.0 if provider == "a" else 0.5)
    return time if provider == "a" else (time, time - 1, time + 1)


def test_perf_report_tables_and_files(tmp_path, capsys):
    mark = tw.testing.perf_report(benchmark())(measured_function)
    assert mark.run(print_data=True, save_path=tmp_path / "new") is None
    shown = capsys.readouterr().out
    assert "A (ms)" in shown and "4096" in shown
    assert (tmp_path / "new" / "plot.csv").read_text().splitlines() == [
        "M,N,A (ms),B (ms)",
        "16,16,512.000000,256.000000",
        "32,64,4096.000000,2048.000000",
    ]


def test_perf_report_plots(tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    styles = [("blue", "-"), ("green", "--")]
    both = [benchmark(plot_name="one", styles=styles), benchmark(plot_name="two", x_log=True)]
    tw.testing.perf_report(both)(measured_function).run(save_path=tmp_path)
    for name in ("one", "two"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_report_without_matplotlib_says_so(tmp_path, monkeypatch, capsys):
    def missing(self, path, show):
        raise tw.MissingExtra("matplotlib", "a plot of measurements")

    monkeypatch.setattr(Measured, "plot", missing)
    tw.testing.perf_report(benchmark())(measured_function).run(save_path=tmp_path)
    assert "no plot" in capsys.readouterr().err
    assert (tmp_path / "plot.csv").is_file()


def test_points_that_do_not_fit_the_names():
    mark = tw.testing.perf_report(benchmark(x_vals=[(1, 2, 3)]))(measured_function)
    with pytest.raises(tw.Invalid, match="2 names"):
        mark.run()


def test_a_report_of_the_first_points_only(capsys):
    mark = tw.testing.perf_report(benchmark())(measured_function)
    with knobs.bench_points.override(1):
        mark.run(print_data=True)
    shown = capsys.readouterr().out
    assert "512" in shown and "4096" not in shown


def test_calls_that_take_long_are_few():
    calls = []

    def slow():
        calls.append(None)
        time.sleep(0.02)

    assert tw.testing.do_bench(slow, warmup=1, rep=5, flush=False) >= 20
    assert len(calls) == 3, "one to get going and two that are timed"


def test_extras_that_errors_name_can_be_installed():
    root = Path(tw.__file__).parents[1]
    known = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = "".join(p.read_text() for p in (root / "tilewright").rglob("*.py"))
    named = set(re.findall(r'MissingExtra\(\s*"(\w+)"', text))
    assert {"demo", "frames", "torch"} <= named <= set(known)
