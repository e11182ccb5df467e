"""What is known of others' tests decides how a run of them ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.suites.checkouts import PLUGIN, ROOT

CASES = """
import pytest

@pytest.mark.parametrize("n", [4, 1, 2])
def test_case(n):
    assert n != 2
"""


def summary(folder: Path, known: dict[str, str], *more: str) -> tuple[int, str]:
    (folder / "test_theirs.py").write_text(CASES)
    (folder / "known.json").write_text(json.dumps(known))
    command = [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, "-p", "no:cacheprovider"]
    command += [f"--known={folder / 'known.json'}", *more, "test_theirs.py"]
    run = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return run.returncode, run.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("known", "status", "counts"),
    [
        ({}, 1, "1 failed, 2 passed"),
        ({"test_theirs.py::test_case[2]": "why"}, 0, "2 passed, 1 xfailed"),
        ({"test_theirs.py::test_case[*": "why"}, 1, "2 failed, 1 xfailed"),
        ({"test_theirs.py::test_case[*": "sometimes: why"}, 0, "1 xfailed, 2 xpassed"),
    ],
)
def test_what_is_known(tmp_path: Path, known: dict[str, str], status: int, counts: str) -> None:
    ended, last = summary(tmp_path, known)
    assert (ended, last.rpartition(" in ")[0]) == (status, counts)


def test_only_the_smallest_cases(tmp_path: Path) -> None:
    ended, last = summary(tmp_path, {}, "--smallest=1")
    assert ended == 0 and last.startswith("1 passed, 2 deselected")
