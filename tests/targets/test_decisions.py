"""Machines are data: what is decided for one depends on its target's fields, never on its name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "tilewright"
# Architectures, and features as LLVM calls them.
NAMES = re.compile(
    r"[+-]?(x86|i[36]86|arm64|aarch64|nvptx|riscv|wasm|avx|amx|sse|neon|sve|vnni|dotprod|i8mm)"
)
WORDS = ("startswith", "endswith", "removeprefix", "find", "index", "count")
SIZES = ("vector_bits", "vector_registers", "cpu", "arch", "triple")
# Files without any of these ask nothing.
MAYBE = re.compile(rf"[\"']{NAMES.pattern}|vector_|\.(has|cpu|arch|triple)\b")


def queries(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, what) of every question about the name of an architecture or of a feature, and of
    every comparison of a target's vectors with a number."""
    for n in ast.walk(tree):
        if isinstance(n, ast.Compare):
            sides = [n.left, *n.comparators]
            yield from ((n.lineno, x) for s in sides for x in _names(s))
            targets = [s for s in sides if _of_target(s)]
            if targets and any(isinstance(s, ast.Constant) for s in sides):
                yield n.lineno, ast.unparse(n)
        elif isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute):
            if n.func.attr in WORDS:
                yield from ((n.lineno, x) for s in n.args for x in _names(s))
        elif isinstance(n, ast.match_case):
            yield from ((n.pattern.lineno, x) for x in _names(n.pattern))
    # `target.has(feature)` of a feature that an instruction declares is fine, of a literal is not.
    plain = {
        id(n.func)
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and len(n.args) == 1 and isinstance(n.args[0], ast.Name)
    }
    for n in ast.walk(tree):
        if isinstance(n, ast.Attribute) and n.attr == "has" and id(n) not in plain:
            if ast.unparse(n.value).split(".")[-1] in ("target", "t", "chosen"):
                yield n.lineno, ast.unparse(n)


def _names(x: ast.AST) -> Iterator[str]:
    for n in ast.walk(x):
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and NAMES.match(n.value):
            yield n.value


def _of_target(x: ast.AST) -> bool:
    """Is it a size or a name of a target, or an argument that was one?"""
    if isinstance(x, ast.Attribute) and x.attr in SIZES:
        return "target" in ast.unparse(x.value) or x.attr.startswith("vector_")
    return isinstance(x, ast.Name) and x.id in ("vector_bits", "vector_registers")


def test_nothing_outside_targets_asks_for_a_name() -> None:
    texts = {p.relative_to(ROOT): p.read_text() for p in sorted(ROOT.rglob("*.py"))}
    wrong = [
        f"{path}:{line}: {what}"
        for path, text in texts.items()
        # Its own numbers are what a target is checked by.
        if path.parts[0] != "targets" and path.name != "target.py" and MAYBE.search(text)
        for line, what in queries(ast.parse(text))
    ]
    hint = "add a field to Target and let the families in targets/ fill it in"
    assert not wrong, f"{hint}:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("if target.arch == 'x86_64': pass", True),
        ("masks = any(map(target.has, MASKING))", True),
        ("fast = 1 if self.target.has('avx2') else 0", True),
        ("if target.triple.startswith('aarch64'): pass", True),
        ("if vector_bits <= 128 and registers >= 32: pass", True),
        ("few = s.target.vector_registers < 32", True),
        ("if name in ('+neon', '+sve'): pass", True),
        ("match arch:\n  case 'arm64': pass", True),
        ("lacking = [f for f in i.features if not self.target.has(f)]", False),
        ("if target.arch != machine.arch: pass", False),
        ("room = target.vector_registers - 4", False),
        ("tile = 'x86.avx2.fma'", False),
        ("if rows * vectors < target.vector_registers: pass", False),
    ],
)
def test_the_check_itself(code: str, found: bool) -> None:
    assert bool(list(queries(ast.parse(code)))) == found
