"""The catalogue of options of a compilation, from the classes that declare them."""

from __future__ import annotations

import ast
import inspect
from dataclasses import MISSING, Field, fields

from docs.generator.pieces import block, code, doc_of, table, words
from tilewright.driver.program.options import Options
from tilewright.driver.torch.options import TorchOptions

INTRODUCTION = """# Options

Generated from the classes that hold them; the text is that of their comments.

## Of `tw.compile` and `torch.compile`

Keywords of `tw.compile(function, *examples, …)`, and what `options={…}` of
`torch.compile(function, backend="tilewright", options={…})` may hold. Another name, or a value of
another type, is refused with a sentence.
"""
GRAPHS = """## Of `tw.compile_graph`

Fields of `tw.Options`, for programs that are graphs already.
"""


def comments(cls: type) -> dict[str, str]:
    """What stands about each field: a comment on its own line, or on the lines before it."""
    source = inspect.getsource(cls)
    lines = source.splitlines()
    found: dict[str, str] = {}
    (made,) = ast.parse(source).body
    assert isinstance(made, ast.ClassDef)
    for statement in made.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        said: list[str] = []
        above = statement.lineno - 2
        while lines[above].strip().startswith("#"):
            said.insert(0, lines[above].strip().removeprefix("#").strip())
            above -= 1
        last = statement.end_lineno or statement.lineno
        _, _, after = lines[last - 1][statement.end_col_offset or 0 :].partition("#")
        said.append(after.strip())
        found[statement.target.id] = " ".join(filter(None, said))
    return found


def default_text(f: Field) -> str:
    value = f.default_factory() if f.default_factory is not MISSING else f.default
    return "" if value is MISSING else code(repr(value))


def option_table(cls: type) -> str:
    about = comments(cls)
    rows = (
        [code(f.name), code(f.type), default_text(f), words(about[f.name])] for f in fields(cls)
    )
    return table(["option", "type", "default", "what it says"], rows)


def page() -> str:
    example = block("fast = tw.compile(model, x, strict=True, precision='strict')", "python")
    parts = [INTRODUCTION, example, option_table(TorchOptions), GRAPHS, doc_of(Options)]
    return "\n".join([*parts, option_table(Options)])
