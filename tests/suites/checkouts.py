"""Tests that others wrote for Triton, run from a checkout of theirs on Tilewright.

What is known not to pass stands in a file of patterns with reasons; a case that fails without
standing there fails the run, and so does one that stands there and passes, unless its reason
begins with "sometimes: ".
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

PLUGIN = "tests.suites.checkout_plugin"
ROOT = Path(__file__).parent.parent.parent


# How pytest is started on Tilewright in Triton's place, by where tensors are; and on Triton.
BY = {
    "cpu": ("tilewright.triton", "--device", "cpu", "-m", "pytest"),
    "cuda": ("tilewright.triton", "-m", "pytest"),
    "triton": ("pytest",),
}


def environment_of(importable: Sequence[Path] = ()) -> dict[str, str]:
    """The variables of a process that runs others' tests with the plugin."""
    paths = [*map(str, (ROOT, *importable)), *filter(None, [os.environ.get("PYTHONPATH")])]
    plugins = [PLUGIN, *filter(None, [os.environ.get("PYTEST_PLUGINS")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTEST_PLUGINS": ",".join(plugins),
    }


def run_tests(
    folder: Path,
    arguments: Sequence[str],
    known: Path,
    importable: Sequence[Path] = (),
    by: str = "cpu",
) -> int:
    """Run pytest in a folder and print a table of what did not run; its exit status."""
    environment = environment_of(importable)
    command = [sys.executable, "-m", *BY[by]]
    # One word: pytest looks for its settings next to whatever looks like a path.
    command += ["-q", "-W", "ignore", "--tb=short", "-rsxX", f"--known={known}", *arguments]
    run = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    reasons: Counter[tuple[str, str]] = Counter()
    for line in run.stdout:
        skipped = re.match(r"SKIPPED \[(\d+)\] \S+: (.*)", line)
        expected = re.match(r"XFAIL .* - (.*)", line)
        if skipped:
            reasons["skipped by the test", skipped[2]] += int(skipped[1])
        elif expected:
            reasons["expected to fail", expected[1]] += 1
        else:
            print(line, end="", flush=True)
    table = Table(title="not run, or known not to pass")
    for column in ("what", "reason", "cases"):
        table.add_column(column, justify="right" if column == "cases" else "left")
    for (what, why), count in reasons.most_common():
        table.add_row(what, why, str(count))
    Console().print(table)
    return run.wait()


def run_beside(folder: Path, arguments: Sequence[str], seconds: float) -> float:
    """The same tests on Triton and on Tilewright, both on the GPU and at the same time; prints what
    only Triton passes and returns our part of what it passes."""
    with tempfile.TemporaryDirectory() as into:
        runs: dict[str, subprocess.Popen[bytes]] = {}
        for by in ("triton", "cuda"):
            path = Path(into) / f"{by}.json"
            command = [sys.executable, "-m", *BY[by], "-q", "-W", "ignore", "--tb=short"]
            command += [f"--outcomes={path}", *arguments]
            with path.with_suffix(".txt").open("w") as log:
                runs[by] = subprocess.Popen(
                    command, cwd=folder, env=environment_of(), stdout=log, stderr=subprocess.STDOUT
                )
        end = time.monotonic() + seconds
        found: dict[str, dict[str, list[str]]] = {}
        for by, process in runs.items():
            path = Path(into) / f"{by}.json"
            try:
                process.wait(max(1.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)  # it still writes what it has
                process.wait(30)
            tail = path.with_suffix(".txt").read_text().splitlines()[-1:]
            print(by, *tail)
            found[by] = json.loads(path.read_text()) if path.exists() else {}
    both = found["triton"].keys() & found["cuda"].keys()
    wanted = [n for n in both if found["triton"][n][0] == "passed"]
    lost = sorted(n for n in wanted if found["cuda"][n][0] != "passed")
    for name in lost:
        outcome, said = found["cuda"][name]
        print(f"{outcome} {name}: {' '.join(said.split())[:160]}")
    part = 1 - len(lost) / max(1, len(wanted))
    print(f"{len(both)} cases, Triton passes {len(wanted)}, of these Tilewright {part:.1%}")
    return part
