"""`tilewright optimize`: what it prints, the page, and what it refuses."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tilewright import ops, targets
from tilewright.driver.cli import main
from tilewright.driver.looking.optimize import Searched
from tilewright.driver.looking.picture import around, picture
from tilewright.driver.program import searched
from tilewright.driver.program.searched import Measured
from tilewright.ir.node import Graph, input
from tilewright.ir.text import print_graph
from tilewright.ir.types import TensorType, f32
from tilewright.superopt.saturate import Budget
from tilewright.superopt.search import search


def low_rank() -> Graph:
    x = input("x", TensorType(f32, (32, 64)))
    shapes = {"w": (64, 64), "a": (64, 4), "b": (4, 64)}
    w, a, b = (input(name, TensorType(f32, s), "weight") for name, s in shapes.items())
    low = ops.matmul(ops.matmul(x, a), b)
    return Graph("low_rank", (x, w, a, b), (ops.add(ops.matmul(x, w), low),))


def test_what_was_found_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(searched, "medians", lambda *_: [2e-6, 1e-6])
    # Operators take clearly more than a call that computes nothing, which is the first.
    monkeypatch.setattr(searched, "interleaved", lambda calls: [1e-6] + [5e-5] * len(calls[1:]))
    file, page = tmp_path / "f.tw", tmp_path / "page.html"
    file.write_text(print_graph(low_rank()))
    for _ in range(2):  # the second time the answer is in the cache
        page.unlink(missing_ok=True)
        assert main(["optimize", str(file), "--budget", "30s", "--page", str(page)]) == 0
        said = capsys.readouterr().out
        assert "low_rank: 2.0 us, by the search 1.0: that is taken" in said
        assert "1 add, 3 matmul became 1 add, 2 matmul" in said
        assert "matmul(matmul(w1, w2), w3) == matmul(w1, matmul(w2, w3))" in said
        text = page.read_text()
        assert text.count("<svg") == 2 and "<summary>proof</summary>" in text


def test_nothing_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = input("x", TensorType(f32, (8, 8)))
    file = tmp_path / "f.tw"
    file.write_text(print_graph(Graph("plain", (x,), (ops.relu(x),))))
    assert main(["optimize", str(file)]) == 0
    said = capsys.readouterr().out
    assert "plain: nothing better was found" in said and "no rule leads to a cheaper" in said


def test_a_large_graph_is_searched_in_pieces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    x = first = input("x", TensorType(f32, (8, 8)))
    for _ in range(70):
        x = ops.sin(ops.cos(x))
    file, page = tmp_path / "f.tw", tmp_path / "page.html"
    file.write_text(print_graph(Graph("long", (first,), (x,))))
    assert main(["optimize", str(file), "--page", str(page)]) == 0
    line = "searched in 4 pieces, 2 of them different"
    assert line in capsys.readouterr().out and line in page.read_text()


def test_a_budget_that_ended_a_search_is_told() -> None:
    found = search(low_rank(), targets.default(), Budget(seconds=0))
    shown = Searched("low_rank", ((found, 1),), Measured())
    assert shown.limits == ["the budget ended 1 of 1 searches: another run may differ"]


def test_a_missing_extra_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setitem(sys.modules, "highspy", None)
    file = tmp_path / "f.tw"
    file.write_text(print_graph(low_rank()))
    assert main(["optimize", str(file)]) != 0
    said = capsys.readouterr()
    assert "pip install 'tilewright[superopt]'" in said.out + said.err


def test_a_budget_is_a_number_of_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["optimize", "f.tw", "--budget", "soon"])
    assert "--budget" in capsys.readouterr().err


def test_pictures() -> None:
    """Every operator is a box below its operands, no two boxes overlap, edges join boxes."""
    graph = low_rank()
    (root,) = graph.outputs
    shown = around(graph, {root}, 5)
    assert shown[-1] is root and set(root.inputs) <= set(shown)
    found = ElementTree.fromstring(picture(graph.nodes(), {root}))
    space = "{http://www.w3.org/2000/svg}"
    boxes = [
        tuple(float(r.attrib[k]) for k in ("x", "y", "width")) for r in found.iter(f"{space}rect")
    ]
    assert len(boxes) == len(graph.nodes())
    assert len(list(found.iter(f"{space}path"))) == sum(len(n.inputs) for n in graph.nodes())
    top = dict(zip(graph.nodes(), (y for _, y, _ in boxes), strict=True))
    assert all(top[x] < top[n] for n in graph.nodes() for x in n.inputs)
    for k, (x, y, w) in enumerate(boxes):
        assert not any(v == y and u < x + w and x < u + z for u, v, z in boxes[:k])
    assert picture([], ()) == ""
