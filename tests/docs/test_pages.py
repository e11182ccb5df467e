"""The code of the documentation's pages runs, from top to bottom, and prints what they show."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tilewright.kernel.steps
import tilewright.ops  # noqa: F401  (both fill registries)
from tilewright.ir.operator import OPERATORS
from tilewright.ir.passes import PASSES
from tilewright.kernel.step import STEPS

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("getting-started.md", *(f"{f}/*.md" for f in ("howto", "extend")))
FOUND = sorted(p for pattern in PAGES for p in DOCS.glob(pattern))


def blocks(text: str) -> Iterator[tuple[str, str, int]]:
    """(language, text, line) of every block of code."""
    for m in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S):
        yield m.group(1), m.group(2), text[: m.start(2)].count("\n")


def agrees(shown: str, printed: str) -> bool:
    """`…` on a page stands for anything."""
    parts = (re.escape(part) for part in shown.strip().split("…"))
    return re.fullmatch(".*".join(parts), printed.strip(), re.S) is not None


def as_file(text: str, path: Path) -> Path:
    """The page's Python in a file, every line where it stands on the page: tools read sources."""
    lines = [""] * text.count("\n")
    for language, source, line in blocks(text):
        if language == "python":
            lines[line : line + source.count("\n")] = source.splitlines()
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def registries() -> Iterator[None]:
    """What a page registers is forgotten: other tests go through all that there is."""
    tables: list[Any] = [OPERATORS, PASSES, STEPS]
    before = [dict(t) for t in tables]
    yield
    for table, known in zip(tables, before, strict=True):
        table.clear()
        table.update(known)


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("path", FOUND, ids=lambda p: p.stem)
def test_the_code_of_a_page(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    text = path.read_text()
    name = f"page_{path.stem.replace('-', '_')}"
    file = as_file(text, tmp_path / f"{name}.py")
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)  # dataclasses look their module up
    printed = ""
    for language, source, line in blocks(text):
        if language == "python":
            assert not printed, f"{path.name}: this is printed and not shown:\n{printed}"
            exec(compile("\n" * line + source, str(file), "exec"), vars(module))
            printed = capsys.readouterr().out.strip()
        elif language == "text":
            assert agrees(source, printed), f"{path.name}:{line} shows\n{source}\nnot\n{printed}"
            printed = ""
    assert not printed, f"{path.name}: this is printed and not shown:\n{printed}"


def test_the_check_itself() -> None:
    assert agrees("a\n…\nc\n", "a\nb\nb\nc\n") and not agrees("a\n…\nc\n", "a\nb\n")
    assert list(blocks("x\n```python\na\n```\n")) == [("python", "a\n", 2)]
