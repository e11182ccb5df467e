"""The processes that judge random tile kernels on a GPU, with a stand-in for them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.gpu import random_tiles

STAND_IN = """
import sys
for seed in range(*map(int, sys.argv[2].split(","))):
    print("begin", seed, flush=True)
    if seed == 5:
        sys.exit(3)
    print("end", seed, "cuda differs: y" if seed == 8 else "", flush=True)
"""


def test_a_process_that_dies_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "judge.py"
    path.write_text(STAND_IN)
    monkeypatch.setattr(random_tiles, "COMMAND", [sys.executable, str(path)])
    found = random_tiles.run(0, 12, 60.0, jobs=2)
    assert found.done == set(range(12))
    assert found.wrong == {5: "its process ended with 3", 8: "cuda differs: y"}
