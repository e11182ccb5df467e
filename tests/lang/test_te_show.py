"""Schedules to look at: as text, and as a page that needs nothing else."""

import inspect
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

import tilewright as tw
from tests.kernel.examples import EXAMPLES
from tilewright import te
from tilewright.kernel.schedule import default_schedule
from tilewright.lang.te.handle import StageHandle
from tilewright.lang.te.schedule import Schedule
from tilewright.lang.te.show import show_trace
from tilewright.targets import get


def scheduled() -> te.Schedule:
    n, k = te.var("n"), te.reduce_axis((0, 64), "k")
    a, b = te.placeholder((n, 64), name="A"), te.placeholder((64, 96), name="B")
    c = te.compute((n, 96), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    d = te.compute((n, 96), lambda i, j: te.if_then_else(c[i, j] < 0, 0.0, c[i, j]), name="D")
    s = te.create_schedule(d.op)
    s[c].compute_at(s[d], d.op.axis[0])
    _, inner = s[d].split(d.op.axis[1], factor=8)
    s[d].vectorize(inner)
    return s


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert scheduled().show() is None
    text = capsys.readouterr().out
    for line in (
        "te_D: 3 steps",
        "for D.i0 in n:",
        "in     A  f32[n,64]   256*n bytes",
        "in     B  f32[64,96]  24576 bytes (24 KiB)",
        "local  C  f32[1,96]   384 bytes",
        "  1  ComputeAt(stage='C', at='D.i0')",
    ):
        assert line in text, line


def test_tuples_have_a_size_too(capsys: pytest.CaptureFixture[str]) -> None:
    k = te.reduce_axis((0, 6), "k")
    a = te.placeholder((4, 6), name="A")
    place, _ = te.compute((4,), lambda i: te.argmax(a[i, k], axis=k), name="T")
    te.create_schedule(place.op).show()
    assert "local  T     (i64,f32)[4]  48 bytes" in capsys.readouterr().out


def test_the_finished_schedule(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    k = te.reduce_axis((0, 6), "k")
    a = te.placeholder((4, 6), name="A")
    b = te.compute((4,), lambda i: te.sum(a[i, k], axis=k), name="B")
    s = te.create_schedule(b.op)
    low = tw.lower(s, [a, b])
    low.show()
    assert "InitAt(stage='B', at='B.i0')" in capsys.readouterr().out
    path = low.show(html=tmp_path / "low.html")
    assert path is not None and "InitAt" in path.read_text(encoding="utf-8")
    s.show()
    assert "InitAt" not in capsys.readouterr().out


STEPS = [f for n, f in vars(StageHandle).items() if inspect.isfunction(f) and n[0] != "_"]


@pytest.mark.parametrize("method", [*STEPS, Schedule.cache_read, Schedule.cache_write])
def test_every_handle_shows_its_loops(method: Callable) -> None:
    """A sentence, then a drawing: before on the left, after on the right."""
    text, _, drawing = inspect.cleandoc(method.__doc__ or "").partition("\n\n")
    assert text.rstrip().endswith((".", ":")) and drawing, method.__name__
    first = drawing.splitlines()[0].strip()
    assert len(re.split(r"\s{3,}", first)) >= 2, method.__name__


class _Page(HTMLParser):
    """Every element closed by what opened it; the text of each cell and summary."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[tuple[str, str]] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.outside += [v or "" for k, v in attrs if k in ("src", "href")]
        if tag not in ("meta",):
            self.open.append(tag)
        if tag in ("td", "summary"):
            self.cells.append((given.get("class") or tag, ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "summary"} & set(self.open):
            kind, text = self.cells[-1]
            self.cells[-1] = kind, text + data


def read(text: str) -> _Page:
    page = _Page()
    page.feed(text)
    page.close()
    assert page.open == []
    return page


def test_page(tmp_path: Path) -> None:
    path = scheduled().show(html=tmp_path / "s.html")
    assert path == tmp_path / "s.html"
    text = path.read_text(encoding="utf-8")
    page = read(text)
    assert page.outside == [] and "url(" not in text and "@import" not in text
    assert "prefers-color-scheme: dark" in text
    cells = [t for _, t in page.cells]
    assert "256*n bytes" in cells and "register" not in cells
    steps = [t for t in cells if re.match(r"\d+(ComputeAt|Split|Vectorize)\(", t)]
    assert len(steps) == 3
    old = [t.strip() for kind, t in page.cells if kind == "old"]
    new = [t.strip() for kind, t in page.cells if kind == "new"]
    assert "for D.i1.1 in 8:" in old and "lane D.i1.1 in 8:" in new
    assert any("C: f32[1,96]" in t for t in new)


def test_a_page_of_naive_loops() -> None:
    a = te.placeholder((4,), name="A")
    b = te.compute((4,), lambda i: a[i] + 1, name="B")
    assert "naive loops" in show_trace(te.create_schedule(b.op).group, ()).html()


@pytest.mark.parametrize("name", sorted(EXAMPLES)[:6])
def test_default_schedules_are_shown_too(name: str) -> None:
    group = EXAMPLES[name].group
    trace, nest = default_schedule(group, get("x86-64-v3"))
    shown = show_trace(group, trace)
    assert shown.last == nest
    page = read(shown.html())
    assert len([k for k, _ in page.cells if k == "summary"]) == len(trace) + 1
    assert all(str(s) in shown.text() for s in trace)
