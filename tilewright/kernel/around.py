"""The loops around a fault as text, with the uses of memory that are at fault marked."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.kernel.nest import Loop, Nest, Stmt, bodies, walk
from tilewright.kernel.overlap import Use
from tilewright.kernel.text import line_text

# The most lines of one place; what is not at fault is left out first.
MOST = 24
WIDEST = 72


def around(n: Nest, faulty: Sequence[Use | None], loop: Loop | None) -> str:
    """The outermost statements that hold the faulty uses: loops, the stores at fault, and dots for
    whatever else is there."""
    marks: dict[int, list[str]] = {}
    for use in faulty:
        if use is not None:
            verb = "reads" if not use.writes else "accumulates into" if use.combine else "writes"
            said = marks.setdefault(id(use.store), [])
            if f"{verb} {use}" not in said:
                said.append(f"{verb} {use}")
    if loop is not None:
        marks.setdefault(id(loop), []).append("carries it")
    lines: list[tuple[str, str]] = []
    _lines(n.body, 0, marks, lines)
    width = max((len(text) for text, mark in lines if mark), default=0)
    shown = [f"{text:{width}}  <- {mark}" if mark else text for text, mark in lines]
    return "\n".join(shown[:MOST] + ["…"] * (len(shown) > MOST))


def _lines(
    body: tuple[Stmt, ...], depth: int, marks: dict[int, list[str]], out: list[tuple[str, str]]
) -> None:
    skipped = False
    for s in body:
        statements = tuple(x for x, _ in walk((s,)))
        if not any(id(x) in marks for x in statements):
            skipped = True
            continue
        if skipped and depth:
            out.append(("  " * depth + "…", ""))
        skipped = False
        text = "  " * depth + line_text(s)
        if len(text) > WIDEST:
            text = text[: WIDEST - 1] + "…"
        out.append((text, ", ".join(marks.get(id(s), ()))))
        for inside in bodies(s):
            _lines(inside, depth + 1, marks, out)
    if skipped and depth:
        out.append(("  " * depth + "…", ""))
