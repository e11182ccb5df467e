"""Triton's own unit tests on Tilewright, from a checkout of theirs.

    python -m tests.suites.triton_tests CHECKOUT            # about 8,400 cases, compiled
    python -m tests.suites.triton_tests CHECKOUT -k test_dot --jobs 2

The cases are those that Triton runs on its own interpreter. What is known not to pass stands in
triton_expected.json with a reason; a case that fails without standing there fails the run, and so
does one that stands there and passes. They ask for `scipy`; `--jobs` asks for pytest-xdist.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.table import Table

FILES = ("test_core.py", "test_standard.py", "test_random.py")
PLUGIN = "tests.suites.triton_plugin"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suites.triton_tests")
    parser.add_argument("checkout", type=Path, help="sources of Triton")
    parser.add_argument("-k", metavar="WORDS", help="only the tests that pytest's -k selects")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    folder = options.checkout.resolve() / "python" / "test" / "unit" / "language"
    if not folder.is_dir():
        parser.error(f"{options.checkout} is no checkout of Triton: it has no {folder}")
    if options.jobs > 1 and find_spec("xdist") is None:
        parser.error("--jobs needs pytest-xdist: pip install pytest-xdist")
    root = Path(__file__).parent.parent.parent
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    plugins = [PLUGIN, *filter(None, [os.environ.get("PYTEST_PLUGINS")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTEST_PLUGINS": ",".join(plugins),
    }
    command = [sys.executable, "-m", "tilewright.triton", "--device", "cpu", "-m", "pytest"]
    command += ["-q", "-m", "interpreter", "-W", "ignore", "--tb=short", "-rsxX", *FILES]
    command += ["-k", options.k] if options.k else []
    command += ["-n", str(options.jobs)] if options.jobs > 1 else []
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


if __name__ == "__main__":
    sys.exit(main())
