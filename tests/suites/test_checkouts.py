"""What is known of others' tests decides how a run of them ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from tests.suites import checkouts, tutorials
from tests.suites.checkouts import PLUGIN, ROOT, run_beside

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


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder whose tests both runs find: pytest alone, twice."""
    monkeypatch.setattr(checkouts, "BY", dict.fromkeys(("triton", "cuda"), ("pytest",)))
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:cacheprovider")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take half of the time
    return tmp_path


def test_a_part_of_no_cases_is_no_result(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (beside / "test_theirs.py").write_text(CASES)
    assert run_beside(beside, ["test_theirs.py"], 60.0) == 1.0
    assert "3 cases, Triton passes 2, of these Tilewright 2" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"triton: no case ran(.|\n)*3 deselected"):
        run_beside(beside, ["test_theirs.py", "-k", "nothing"], 60.0)
    (beside / "test_broken.py").write_text("import no_such_module\n")
    with pytest.raises(SystemExit) as ended:
        run_beside(beside, ["test_theirs.py", "test_broken.py"], 60.0)
    said = str(ended.value)
    assert "cuda: pytest could not collect 1 files" in said
    assert "test_broken.py: ModuleNotFoundError: No module named 'no_such_module'" in said


def test_tutorials_run_side_by_side(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "python" / "tutorials"
    folder.mkdir(parents=True)
    for name in ("01-first.py", "02-second.py"):
        (folder / name).write_text("")
    both = Barrier(2, timeout=10.0)

    def run(script: Path, by: str, seconds: float) -> dict[str, Any]:
        both.wait()  # for the other one
        return {"why": "" if script.name.startswith("01") else "it differs", "seconds": 1.0}

    monkeypatch.setattr(tutorials, "run", run)
    assert tutorials.main([str(tmp_path), "--by", "cuda", "--jobs", "2"]) == 1
    shown = capsys.readouterr().out
    assert "01-first | right, 1.0 s" in shown and "02-second | it differs" in shown
