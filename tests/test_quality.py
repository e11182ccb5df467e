"""Ruff and pyrefly find nothing to say about the repository.

Pyrefly takes both cores for half a minute: continuous integration calls it by itself, and
`pytest -m slow` does.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = {
    "ruff check": ["ruff", "check", "."],
    "ruff format": ["ruff", "format", "--check", "."],
    # The interpreter is named, or pyrefly would look for another environment's packages.
    "pyrefly": ["pyrefly", "check", "--python-interpreter-path", sys.executable],
}


SLOW = pytest.param("pyrefly", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", ["ruff check", "ruff format", SLOW])
def test_clean(name: str) -> None:
    command = [sys.executable, "-m", *COMMANDS[name]]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, f"{name} is not clean:\n{run.stdout}\n{run.stderr}"


def test_no_marks_of_a_merge_are_left() -> None:
    found = subprocess.run(
        ["git", "grep", "-nE", r"^(<{7}|>{7}) "], cwd=ROOT, capture_output=True, text=True
    )
    assert not found.stdout, f"lines of an unfinished merge:\n{found.stdout}"
