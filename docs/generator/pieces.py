"""The few pieces of Markdown that generated pages consist of."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence


def code(text: object) -> str:
    """Inline code on one line; a bar inside it does not end a cell of a table."""
    shown = " ".join(str(text).split())
    fence = "``" if "`" in shown else "`"
    pad = " " if "`" in shown else ""
    return f"{fence}{pad}{shown}{pad}{fence}" if shown else ""


def block(text: str, language: str = "text", title: str = "") -> str:
    """A block of code, indented as it stands. The fence is longer than any inside."""
    fence = "```"
    while fence in text:
        fence += "`"
    head = f'{language} title="{title}"' if title else language
    return f"{fence}{head}\n{text.strip(chr(10))}\n{fence}\n"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [row_text(titles), row_text(["---"] * len(titles))]
    return "\n".join([*lines, *map(row_text, rows)]) + "\n"


def row_text(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(c.split()) for c in cells) + " |"


def words(text: str) -> str:
    """Prose for Markdown: brackets and stars are meant as they stand, outside of code."""
    pieces = text.split("`")
    for k in range(0, len(pieces), 2):
        for sign in "\\*_[]|":
            pieces[k] = pieces[k].replace(sign, f"\\{sign}")
        pieces[k] = pieces[k].replace("<", "&lt;").replace(">", "&gt;")
    return "`".join(pieces)


def doc_of(thing: object) -> str:
    """A class's or function's own docstring; nothing where Python made one up from its fields."""
    text = inspect.cleandoc(getattr(thing, "__doc__", None) or "")
    name = getattr(thing, "__name__", "")
    return "" if isinstance(thing, type) and text.startswith(f"{name}(") else text


def first_sentence(text: str) -> str:
    paragraph = " ".join(text.split("\n\n")[0].split())
    head, dot, _ = paragraph.partition(". ")
    return head + dot.rstrip()


def paragraphs(doc: str) -> str:
    """A docstring as Markdown: prose, and what is laid out in columns as code."""
    out = []
    for part in doc.split("\n\n"):
        lines = part.splitlines()
        laid_out = any("   " in line.strip() or line.startswith("  ") for line in lines)
        out.append(block(part) if laid_out or looks_like_loops(lines) else words(part) + "\n")
    return "\n".join(out)


def looks_like_loops(lines: Sequence[str]) -> bool:
    starts = ("for ", "alloc ", "in ", "Reorder(")
    return bool(lines) and all(line.lstrip().startswith(starts) for line in lines)


def details(title: str, body: str) -> str:
    """A part that is folded until it is opened."""
    inside = "\n".join(f"    {line}" if line else "" for line in body.splitlines())
    return f'??? note "{title}"\n\n{inside}\n'
