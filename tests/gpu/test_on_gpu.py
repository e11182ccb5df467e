"""The checks of `python -m tests.gpu`, where there is a GPU; skipped, each by name, elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.checks import LARGE, RAGGED, SHORT_ROWS, Check, checks
from tilewright.runtime.cuda.driver import available

ROOT = Path(__file__).resolve().parents[2]
LONG = [f"{rows}x{columns}" for rows, columns in (LARGE, RAGGED, *SHORT_ROWS)]
ALL = [
    pytest.param(c, id=c.name, marks=[pytest.mark.slow] if c.name.split()[-1] in LONG else [])
    for c in checks(False)
]


@pytest.mark.skipif(not available(), reason="there is no NVIDIA GPU here")
@pytest.mark.parametrize("check", ALL)
def test_check(check: Check) -> None:
    if check.last:  # it loses the context
        command = [sys.executable, "-m", "tests.gpu", "--no-inductor", "--only", check.name]
        assert subprocess.run(command, cwd=ROOT, timeout=180).returncode == 0
    else:
        check.run()
