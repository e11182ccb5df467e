"""The state of a translation: which function is being translated, at which node, with which
variables; and what a name stands for."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Mapping, Sequence
from math import copysign
from types import FunctionType, ModuleType
from typing import Any

from tilewright.lang.tile.builder import IRBuilder
from tilewright.lang.tile.front.diagnostics import Mistake, Spot
from tilewright.lang.tile.front.functions import (
    ConstexprFunction,
    TileFunction,
    declared_constant,
)
from tilewright.lang.tile.ir import Place
from tilewright.lang.tile.language import core
from tilewright.lang.tile.language.types import base_type, base_value, constexpr, unwrap

# A chain of inlined calls longer than this is taken for a recursion without end.
DEEPEST = 32

_MISSING: Any = object()


class Undefined:
    """Stands for a variable that has no value on some path to here."""

    def __init__(self, what: str, hint: str):
        self.what, self.hint = what, hint


class Frame:
    """One call: of the kernel, or of a function it calls."""

    def __init__(
        self,
        function: TileFunction,
        locals: dict[str, Any],
        parent: Frame | None,
        call: ast.AST | None,
    ):
        self.function = function
        self.locals = locals
        self.globals: Mapping[str, Any] = function.globals
        self.parent = parent
        self.call = call  # the node in the parent
        self.depth: int = parent.depth + 1 if parent else 0
        self.loops = 0  # how many loops that run in the kernel are open
        self.annotated: set[str] = set()  # `x: tl.constexpr` without a value yet
        self.inside: Place | None = None  # of the call, once it was needed

    def place(self, node: ast.AST | None) -> Place:
        if self.inside is None and self.parent is not None:
            self.inside = self.parent.place(self.call)
        f = self.function
        line = getattr(node, "lineno", 1) - 1 + f.line
        column = getattr(node, "col_offset", 0) + f.column
        return Place(f.file, line, column, f.name, self.inside)

    def spot(self, node: ast.AST | None) -> Spot:
        f = self.function
        row, start = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        lines = f.source.splitlines()
        text = " " * f.column + lines[row - 1] if 0 < row <= len(lines) else ""
        last_row, end = getattr(node, "end_lineno", row), getattr(node, "end_col_offset", start + 1)
        # Offsets count bytes, columns characters.
        if 0 < row <= len(lines):
            raw = lines[row - 1].encode()
            start, end = (len(raw[:k].decode(errors="replace")) for k in (start, end))
        width = end - start if last_row == row else len(text)
        if isinstance(node, (ast.For, ast.While, ast.If, ast.FunctionDef)):
            width = len(text.rstrip())
        return Spot(f.file, row - 1 + f.line, start + f.column, f.name, text, max(1, width))


class TranslatingBuilder(IRBuilder):
    """Operations carry the place of the node that is being translated."""

    def __init__(self, state: State):
        self.state = state
        self._place: tuple[Any, Any, Place] | None = None
        super().__init__()

    @property
    def place(self) -> Place | None:  # type: ignore[override]
        frame, node = self.state.frame, self.state.node
        if self._place is None or self._place[0] is not node or self._place[1] is not frame:
            self._place = (node, frame, frame.place(node))
        return self._place[2]

    @place.setter
    def place(self, value: Place | None) -> None:
        if value is not None:
            self._place = (self.state.node, self.state.frame, value)

    def call(self, f: TileFunction, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """How functions of the library call each other."""
        return self.state.inline(f, args, kwargs)


class State:
    frame: Frame
    node: ast.AST | None = None
    builder: TranslatingBuilder

    # What the parts of the translator use of each other.
    def expression(self, node: ast.expr) -> Any:
        raise NotImplementedError

    def statements(self, items: Sequence[Any]) -> Any:
        raise NotImplementedError

    def inline(self, f: TileFunction, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    def spots(self, node: ast.AST | None) -> list[Spot]:
        """From the kernel's call to the node."""
        frame: Frame | None = self.frame
        found: list[Spot] = []
        while frame is not None:
            found.append(frame.spot(node))
            frame, node = frame.parent, frame.call
        return found[::-1]

    # ---- names

    def named(self, name: str) -> Any:
        frame = self.frame
        found = frame.locals.get(name, _MISSING)
        if found is not _MISSING:
            if isinstance(found, Undefined):
                raise Mistake(found.what, found.hint)
            return found
        found = frame.globals.get(name, _MISSING)
        if found is not _MISSING:
            if name in PYTHON or visible(found):
                return found
            if declared_constant(frame.function.fn, name):
                return constexpr(found)
            if isinstance(found, FunctionType):
                raise Mistake(
                    f"{name} is a plain function of Python, which kernels cannot call",
                    "decorate it with @tw.jit, or with @tw.constexpr_function where all that it "
                    "takes is constant",
                )
            raise Mistake(
                f"the kernel cannot access global variable {name}: it may change between launches",
                f"write {name} = tl.constexpr(…) or {name}: tl.constexpr = … at module level, or "
                "pass it as an argument",
            )
        if name in PYTHON:
            return PYTHON[name]
        if hasattr(builtins, name):
            raise Mistake(
                f"{name} is a function of Python that kernels do not have",
                f"those they have on constants: {', '.join(sorted(PYTHON))}",
            )
        raise Mistake(f"{name} is not defined", "assign it before it is used")

    def assign(self, name: str, value: Any) -> None:
        if type(value) is core.tensor:
            self.builder.name(value.handle, name)
        self.frame.locals[name] = value


def visible(x: Any) -> bool:
    """May a kernel read this global? Constants, modules, types and functions of the language."""
    if x is None or isinstance(
        x, (ModuleType, TileFunction, ConstexprFunction, constexpr, base_type)
    ):
        return True
    if getattr(x, "__tile_builtin__", False) or getattr(x, "__tile_aggregate__", False):
        return True
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return True
    if isinstance(x, type) and (
        hasattr(x, "_fields") or issubclass(x, (base_value, base_type, BaseException))
    ):
        return True
    module = getattr(x, "__module__", None) or ""
    return isinstance(module, str) and module.startswith(
        ("tilewright.lang.tile", "tilewright.language")
    )


def _smallest(*args: Any, **options: Any) -> Any:
    return _extreme(min, core.minimum, args, options)


def _largest(*args: Any, **options: Any) -> Any:
    return _extreme(max, core.maximum, args, options)


def _extreme(
    of: Callable[..., Any],
    pair: Callable[[Any, Any], Any],
    args: Sequence[Any],
    options: Mapping[str, Any],
) -> Any:
    """The least or greatest of the arguments; of one sequence, if all in it are constants."""
    name, two = of.__name__, f"tl.{pair.__name__}(x, y) takes two tensors, element by element"
    if options:
        raise Mistake(f"{name}() of a kernel has no {', '.join(options)}", two)
    given = list(args)
    if len(given) == 1:
        if isinstance(given[0], core.tensor):
            raise Mistake(
                f"{name}() of one tensor", f"write tl.{name}(x, axis) for that of its elements"
            )
        given = list(unwrap(given[0]))
        if any(isinstance(a, core.tensor) for a in given):
            raise Mistake(f"{name}() of a list or tuple with a tensor in it", two)
    if not any(isinstance(a, core.tensor) for a in given):
        numbers = [unwrap(a) for a in given]
        if any(x != x or (x == 0 and copysign(1, x) < 0) for x in numbers):
            what = f"{of.__name__} of {', '.join(map(str, numbers))}"
            # Python's answer would depend on which comes first.
            raise Mistake(
                what, "NaN and -0.0 have no order: tl.minimum and tl.maximum take tensors"
            )
        return of(numbers)
    found = given[0]
    for a in given[1:]:
        found = pair(found, a)
    return found


def _abs(x: Any) -> Any:
    return core.abs(x) if isinstance(x, core.tensor) else abs(unwrap(x))


def _print(*args: Any, **kwargs: Any) -> Any:
    return core.device_print(*args, **kwargs)


# Python's own functions; what they are given is constant, tensors are for those that take them.
PYTHON: dict[str, Any] = {
    f.__name__: f
    for f in (
        *(bool, divmod, enumerate, float, getattr, hasattr, int, isinstance, len, list, pow),
        *(range, reversed, round, slice, sorted, str, sum, tuple, type, zip, all, any, repr),
    )
} | {"abs": _abs, "min": _smallest, "max": _largest, "print": _print}
