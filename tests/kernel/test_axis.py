"""Loops say what they run along; nobody reads it out of their names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.base.collector import garbage_waits
from tilewright.kernel.axis import Axis, axis_named, moved
from tilewright.kernel.nest import Loop, find, start, walk
from tilewright.kernel.step import apply
from tilewright.kernel.steps.cache_write import CacheWrite
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.split import Split
from tilewright.kernel.text import nest_text, parse_group, parse_nest

GROUP = """
group k
  in a: f32[8,6]
  out y: f32[8,6]
  y[y.i0,y.i1] = a[y.i0,y.i1] for y.i0 in 8, y.i1 in 6
"""
SUM = """
group k
  in a: f32[8,6]
  out y: f32[]
  y[] add= a[y.r0,y.r1] for y.r0 in 8, y.r1 in 6 from 0.0
"""


@pytest.mark.parametrize(
    ("name", "axis"),
    [
        ("t0.i1", Axis("t0", "i1")),
        ("t0.r0.0.1", Axis("t0", "r0", (0, 1))),
        ("t0.init.i2.1", Axis("t0", "i2", (1,), first=True)),
        ("y0.0.w1", Axis("y0", "0.w1")),
        ("program", Axis("", "program")),
        ("program.1", Axis("", "program", (1,))),
    ],
)
def test_names_are_printed_axes(name: str, axis: Axis) -> None:
    assert axis_named(name) == axis and str(axis) == name
    assert moved(name, "p") == str(axis.of("p"))


def test_a_fused_loop_of_any_name_knows_its_stage() -> None:
    n = apply(start(parse_group(GROUP)), (Fuse("y.i0", "y.i1", "pairs"), Split("pairs", 4)))
    loops = [s for s, _ in walk(n.body) if isinstance(s, Loop)]
    assert [p.axis for p in loops] == [Axis("y", "pairs", (k,)) for k in (0, 1)]
    assert "for pairs.0 in 12 of y.pairs.0:" in nest_text(n)
    assert parse_nest(nest_text(n)) == n


def test_what_is_made_of_a_fused_loop_is_named_after_it() -> None:
    fused = apply(start(parse_group(SUM)), (Fuse("y.r0", "y.r1", "all"), Split("all", 8)))
    n = RFactor("y", ("all.1",), "p").apply(fused)
    assert find(n, "p.all.0") and find(n, "p.all.1")
    whole = apply(start(parse_group(SUM)), (Fuse("y.r0", "y.r1", "all"), CacheWrite("y", "c")))
    assert find(whole, "c.all")


def test_reduced_axes_are_those_that_are_not_written() -> None:
    text = "group k\n  in a: f32[8,6]\n  out y: f32[8]\n"
    stage = parse_group(f"{text}  y[y.m] add= a[y.m,y.k] for y.m in 8, y.k in 6 from 0.0\n").stages
    assert [a.name for a in stage[0].axes] == ["y.m"]
    assert [a.name for a in stage[0].raxes] == ["y.k"]


# ---- who reads names

ROOT = Path(__file__).resolve().parents[2] / "tilewright"
READS = ("axis.py", "text.py")  # print and parse
WORDS = "startswith endswith removeprefix removesuffix split rsplit partition rpartition".split()
CALLED = ("name", "loop", "stage", "buffer", "top", "host", "acc", "into", "part")
# Only a file whose text has one of these is parsed: all of them would take seconds.
_CALLS = rf"\.(?:{'|'.join(WORDS)})\("
_SOUGHT = rf"['\"\d]\s+(?:not\s+)?in\b[^\n]*\n?[^\n]*\b(?:trace|{'|'.join(CALLED)})\b"
MAYBE = re.compile(f"{_CALLS}|{_SOUGHT}")


def questions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, what) of every question about a part of the name of a loop, a stage or a buffer."""
    for n in ast.walk(tree):
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in WORDS:
            dotted = any("." in ast.unparse(a) for a in n.args)
            if (_names_something(n.func.value) and dotted) or _is_stage_prefix(n):
                yield n.lineno, ast.unparse(n)
        elif isinstance(n, ast.Compare) and isinstance(n.ops[0], (ast.In, ast.NotIn)):
            if isinstance(n.left, ast.Constant) and _names_something(n.comparators[0]):
                yield n.lineno, ast.unparse(n)


def _names_something(x: ast.AST) -> bool:
    last = x.attr if isinstance(x, ast.Attribute) else x.id if isinstance(x, ast.Name) else ""
    return last in CALLED or (last == "trace" and not isinstance(x, ast.Name))


def _is_stage_prefix(n: ast.Call) -> bool:
    """`x.stage.startswith("d")`, `x.startswith(f"{stage}.r")`"""
    assert isinstance(n.func, ast.Attribute)
    of_stage = isinstance(n.func.value, ast.Attribute) and n.func.value.attr in ("stage", "var")
    return of_stage or any(isinstance(a, ast.JoinedStr) and "}." in ast.unparse(a) for a in n.args)


def _files() -> list[Path]:
    folders = ("kernel", "llvm", "tune", "driver/program", "lang/te", "lang/tile/lowering")
    found = [f for x in folders for f in (ROOT / x).rglob("*.py")]
    shown = (ROOT / "driver/looking").glob("*explain.py")
    return [f for f in (*found, *shown) if f.name not in READS]


def test_no_file_reads_names() -> None:
    with garbage_waits():  # a collection takes longer than to parse
        found = [
            f"{f.relative_to(ROOT)}:{line}: {what}"
            for f in _files()
            for text in [f.read_text()]
            if MAYBE.search(text)
            for line, what in questions(ast.parse(text))
        ]
    assert not found, "ask Loop.axis, Nest.roles or a step's fields: " + "; ".join(found)


@pytest.mark.parametrize(
    "question",
    [
        'p.name.startswith(f"{stage}.")',
        'x.stage.startswith("d")',
        '".init." not in p.name',
        'loop.endswith(".1")',
        'own.split(".", 1)[1] == loop.split(".", 1)[1]',
        '"Parallel(" in k.trace',
    ],
)
def test_the_search_sees(question: str) -> None:
    assert MAYBE.search(question) and list(questions(ast.parse(question)))
