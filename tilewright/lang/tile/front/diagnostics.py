"""Errors about a kernel that cannot be translated: the line, what is wrong, the calls that lead
there, and what to write instead."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from tilewright.base.errors import Invalid, TilewrightError

_LANGUAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Spot:
    """A piece of source: one line of it, and which columns are meant."""

    file: str
    line: int
    column: int  # in the file, from 0
    function: str
    text: str  # the line without its line break
    width: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    def shown(self) -> list[str]:
        number = str(self.line)
        indent = len(self.text) - len(self.text.lstrip())
        pad = " " * max(0, self.column - indent)
        caret = "^" * max(1, min(self.width, len(self.text) - self.column))
        return [f"    {number} | {self.text[indent:]}", f"    {' ' * len(number)} | {pad}{caret}"]


class CompileError(Invalid):
    """A kernel that does not follow the language. `spots` leads from the launched kernel's call to
    what is at fault, which is the last."""

    def __init__(
        self,
        what: str,
        *,
        where: object = None,
        hint: str | None = None,
        spots: Sequence[Spot] = (),
    ):
        self.spots = tuple(spots)
        super().__init__(what, where=where or (spots[-1] if spots else None), hint=hint)

    @property
    def error_message(self) -> str:
        """What is wrong, without the place (a name of Triton's)."""
        return self.what

    def __str__(self) -> str:
        lines = [self.what]
        if not self.spots and self.where:
            lines.append(f"  at {self.where}")
        for k, (spot, same) in enumerate(groupby(reversed(self.spots))):
            times = sum(1 for _ in same)
            often = f", {times} times over" if times > 1 else ""
            lines.append(f"  {'called from' if k else 'at'} {spot} in {spot.function}{often}")
            lines += spot.shown()
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    def __reduce__(self):
        return _rebuild, (type(self), self.what, self.where, self.hint, self.spots)


class StaticAssertionError(CompileError):
    """A `tl.static_assert` that does not hold."""


def _rebuild(
    kind: type[CompileError],
    what: str,
    where: str | None,
    hint: str | None,
    spots: tuple[Spot, ...],
) -> CompileError:
    return kind(what, where=where, hint=hint, spots=spots)


class Mistake(Exception):
    """An error raised while a node is translated; it becomes a `CompileError` with its place."""

    def __init__(
        self,
        what: str,
        hint: str | None = None,
        node: ast.AST | None = None,
        kind: type[CompileError] = CompileError,
    ):
        self.what, self.hint, self.node, self.kind = what, hint, node, kind
        super().__init__(what)


# Failures of Python whose text says it all.
_PLAIN = (TypeError, ValueError, NameError, AttributeError)


def compile_error(error: Exception, spots: Sequence[Spot]) -> CompileError:
    """Any failure of a translation as an error with its place, which is a line of the author's
    where it is the language's library that was called wrongly."""
    while len(spots) > 1 and Path(spots[-1].file).is_relative_to(_LANGUAGE):
        spots = spots[:-1]
    if isinstance(error, Mistake):
        return error.kind(error.what, hint=error.hint, spots=spots)
    if isinstance(error, TilewrightError):
        return CompileError(error.what, hint=error.hint, spots=spots)
    if isinstance(error, RecursionError):
        return CompileError("the kernel is nested too deeply", hint="split it", spots=spots)
    said = str(error) or repr(error)
    if not isinstance(error, _PLAIN):
        said = f"{type(error).__name__}: {said}"
    return CompileError(said, spots=spots)


def beyond(cause: BaseException | None, texts: bool = False) -> BaseException | None:
    """A cause that says more than the error made of it: a failure in Python of the author's, which
    has lines of its own, or one that this package did not expect. Others are
    left out, or (`texts`) keep their text only: programs written for Triton look for it there."""
    trace = None if cause is None else cause.__traceback__
    while trace is not None:
        if not trace.tb_frame.f_globals.get("__name__", "").startswith("tilewright."):
            return cause
        trace = trace.tb_next
    known = (Mistake, TilewrightError, RecursionError, *_PLAIN)
    if isinstance(cause, known):
        cause.__suppress_context__ = True
        cause.__traceback__ = None
        return cause if texts else None
    return cause


# Statements and expressions of Python that kernels do not have, and what to do without them.
ADVICE: dict[type[ast.AST], tuple[str, str]] = {
    ast.Break: ("break", "loop with while and a condition, or compute with masks"),
    ast.Continue: ("continue", "put the rest of the body under an if"),
    ast.FunctionDef: (
        "a function defined inside a function",
        "define it at module level and decorate it with @tw.jit",
    ),
    ast.AsyncFunctionDef: ("an async function", "define a function with def"),
    ast.ClassDef: ("a class", "define it at module level"),
    ast.Lambda: ("lambda", "define a function at module level and decorate it with @tw.jit"),
    ast.Try: ("try", "kernels raise no exceptions; test the condition with if"),
    ast.Raise: ("raise", "use tl.static_assert or tl.device_assert"),
    ast.With: ("with", "kernels have no context managers"),
    ast.Import: ("import", "import at the top of the module"),
    ast.ImportFrom: ("import", "import at the top of the module"),
    ast.Global: ("global", "globals of a kernel are constants: pass it as an argument"),
    ast.Nonlocal: ("nonlocal", "variables of enclosing functions are constants here"),
    ast.Dict: ("a dict", "use a tuple or a named tuple"),
    ast.Set: ("a set", "use a tuple"),
    ast.DictComp: ("a dict comprehension", "use a tuple"),
    ast.SetComp: ("a set comprehension", "use a tuple"),
    ast.Await: ("await", "kernels are not asynchronous"),
    ast.Yield: ("yield", "return a tuple"),
    ast.YieldFrom: ("yield from", "return a tuple"),
    ast.Starred: ("a starred expression here", "index the tuple"),
    ast.Match: ("match", "use if and elif"),
    ast.AsyncFor: ("async for", "use for"),
    ast.AsyncWith: ("async with", "kernels have no context managers"),
}


def unsupported(node: ast.AST) -> Mistake:
    name, hint = ADVICE.get(type(node), (type(node).__name__, "write it with simpler statements"))
    return Mistake(f"the tile language has no {name.removeprefix('a ')}", hint, node)
