"""The tour runs and shows every level on the way; what the documents say is so."""

import re
import runpy
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.base import knobs
from tilewright.driver.program.default_passes import CPU

TOUR = Path(__file__).resolve().parent.parent / "docs" / "tour.py"


def test_the_tour(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    began = time.process_time()
    runpy.run_path(str(TOUR), run_name="__main__")
    assert time.process_time() - began < 60
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


def test_the_architecture_names_what_exists() -> None:
    """Files and folders that docs/architecture.md names are there, and no folder is left out."""
    root = TOUR.parent.parent
    text = (root / "docs" / "architecture.md").read_text()
    assert text.count("\n") <= 250
    named = set(re.findall(r"`([\w/.]+(?:\.py|\.md|/))`", text))
    homes = [root, root / "tilewright", root / "tilewright_runtime"]
    homes += [p for p in (root / "tilewright").rglob("*") if p.is_dir() and p.name[0] != "_"]
    missing = [name for name in named if not any((home / name).exists() for home in homes)]
    assert not missing, f"docs/architecture.md names what is not there: {missing}"
    folders = {p.parent.name for p in (root / "tilewright").glob("*/__init__.py")}
    described = set(re.findall(r"\*\*(\w+)(?:/torch)?/\*\*", text))
    assert folders <= described, f"docs/architecture.md leaves out {folders - described}"
    for name in re.findall(r"`(TILEWRIGHT_\w+)", text):
        assert name in {knob.name for knob in knobs.every()}


def test_the_architecture_shows_the_pipeline() -> None:
    """The passes in the picture are those that a compilation runs, in order."""
    text = (TOUR.parent / "architecture.md").read_text()
    (picture,) = re.findall(r"^ Graph ── (.*?) ──► Graph$", text, re.M | re.S)
    assert re.findall(r"\w+", picture) == [p.name for p in CPU]


def test_the_tensor_expression_of_the_readme() -> None:
    text = (TOUR.parent.parent / "README.md").read_text()
    (source,) = [x for x in re.findall(r"```python\n(.*?)```", text, re.S) if "te.compute" in x]
    made: dict[str, Any] = {"tw": tw}
    exec(source, made)
    n = int(made["n"])
    a, b = np.random.default_rng(0).random((2, n, n), np.float32)
    c = np.empty((n, n), np.float32)
    made["multiply"](a, b, c)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b, rtol=1e-5)


def test_the_switches_of_the_readme_exist() -> None:
    text = (TOUR.parent.parent / "README.md").read_text()
    assert set(re.findall(r"TILEWRIGHT_\w+", text)) <= {knob.name for knob in knobs.every()}
