"""What is known of others' tests decides how a run of them ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.suites.checkouts import PLUGIN, ROOT

CASES = """
import pytest

@pytest.mark.parametrize("n", [4, 1, 2])
def test_case(n):
    assert n != 2
"""


# Runs of pytest in one process, which imports torch once.
RUNS = """
import json, sys, pytest

for arguments in json.loads(sys.argv[1]):
    print("ended with", int(pytest.main(arguments)))
"""

CASE = "test_theirs.py::test_case"


def test_what_is_known_and_only_the_smallest_cases(tmp_path: Path) -> None:
    wanted: list[tuple[dict[str, str], list[str], int, str]] = [
        ({}, [], 1, "1 failed, 2 passed"),
        ({f"{CASE}[2]": "why"}, [], 0, "2 passed, 1 xfailed"),
        ({f"{CASE}[*": "why"}, [], 1, "2 failed, 1 xfailed"),
        ({f"{CASE}[*": "sometimes: why"}, [], 0, "1 xfailed, 2 xpassed"),
        ({}, ["--smallest=1"], 0, "1 passed, 2 deselected"),
        ({}, ["--every=2"], 0, "1 passed, 2 deselected"),
        ({}, [f"--outcomes={tmp_path / 'ends.json'}"], 1, "1 failed, 2 passed"),
    ]
    (tmp_path / "test_theirs.py").write_text(CASES)
    arguments = []
    for k, (known, more, _, _) in enumerate(wanted):
        path = tmp_path / f"known{k}.json"
        path.write_text(json.dumps(known))
        ours = ["-q", "-p", PLUGIN, "-p", "no:cacheprovider", f"--known={path}"]
        arguments.append([*ours, *more, "test_theirs.py"])
    run = subprocess.run(
        [sys.executable, "-c", RUNS, json.dumps(arguments)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = run.stdout.splitlines()
    ends = [k for k, line in enumerate(lines) if line.startswith("ended with")]
    found = [(lines[k], lines[k - 1].rpartition(" in ")[0]) for k in ends]
    assert found == [(f"ended with {status}", said) for *_, status, said in wanted], run.stdout
    outcomes = json.loads((tmp_path / "ends.json").read_text())
    ends = {f"{CASE}[1]": "passed", f"{CASE}[2]": "failed", f"{CASE}[4]": "passed"}
    assert {name: outcome for name, (outcome, _) in outcomes.items()} == ends
    assert "assert 2 != 2" in outcomes[f"{CASE}[2]"][1]
