"""The tour runs, and shows every level on the way."""

import runpy
import time
from pathlib import Path

import pytest

TOUR = Path(__file__).resolve().parent.parent / "docs" / "tour.py"


def test_the_tour(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    began = time.monotonic()
    runpy.run_path(str(TOUR), run_name="__main__")
    assert time.monotonic() - began < 60
    text = capsys.readouterr().out
    for number in range(1, 10):
        assert f"=== {number}. " in text
    for level in (
        "graph inference0(",  # the graph as captured, with the user's line
        "# tour.py:",
        "amax{axes=(1,), keepdims=True}",  # decomposed
        "cluster 0: row",
        "group normalise",
        "nest normalise",
        "Vectorize(loop=",
        "there is no loop nowhere",
        "void @normalise",
        "error against float64",
        "no fallbacks",
    ):
        assert level in text, level
