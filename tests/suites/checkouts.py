"""Tests that others wrote for Triton, run from a checkout of theirs on Tilewright.

What is known not to pass stands in a file of patterns with reasons; a case that fails without
standing there fails the run, and so does one that stands there and passes, unless its reason
begins with "sometimes: ".
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

PLUGIN = "tests.suites.checkout_plugin"
ROOT = Path(__file__).parent.parent.parent


def run_tests(
    folder: Path, arguments: Sequence[str], known: Path, importable: Sequence[Path] = ()
) -> int:
    """Run pytest in a folder and print a table of what did not run; its exit status."""
    paths = [*map(str, (ROOT, *importable)), *filter(None, [os.environ.get("PYTHONPATH")])]
    plugins = [PLUGIN, *filter(None, [os.environ.get("PYTEST_PLUGINS")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTEST_PLUGINS": ",".join(plugins),
    }
    command = [sys.executable, "-m", "tilewright.triton", "--device", "cpu", "-m", "pytest"]
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
