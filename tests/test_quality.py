"""Ruff and pyright find nothing to say about the repository."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

CHECKS = {
    "ruff check": [sys.executable, "-m", "ruff", "check", "."],
    "ruff format": [sys.executable, "-m", "ruff", "format", "--check", "."],
    # The interpreter is named, or pyright would look for another environment's packages.
    "pyright": [sys.executable, "-m", "pyright", "--pythonpath", sys.executable],
}


@pytest.mark.parametrize("name", CHECKS)
def test_clean(name: str) -> None:
    run = subprocess.run(CHECKS[name], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, f"{name} is not clean:\n{run.stdout}\n{run.stderr}"
