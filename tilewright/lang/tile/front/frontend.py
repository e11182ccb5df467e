"""From the source of a kernel to its operations.

The kernel's syntax tree is walked once. Python computes what is constant, and whatever touches a
tile becomes an operation. Functions that are called become part of the kernel where they are
called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.lang.tile.builder import using
from tilewright.lang.tile.front.control import Returned
from tilewright.lang.tile.front.diagnostics import (
    CompileError,
    Mistake,
    StaticAssertionError,
    compile_error,
)
from tilewright.lang.tile.front.expressions import constant
from tilewright.lang.tile.front.functions import Argument, Parameter, TileFunction
from tilewright.lang.tile.front.state import DEEPEST, Frame, TranslatingBuilder
from tilewright.lang.tile.front.statements import Statements
from tilewright.lang.tile.front.sweep import sweep
from tilewright.lang.tile.ir import Kernel, TileType, Value
from tilewright.lang.tile.language import core
from tilewright.lang.tile.language.types import constexpr, pointer_type

__all__ = ["CompileError", "StaticAssertionError", "translate"]


def translate(
    function: TileFunction, arguments: Mapping[str, Argument], name: str | None = None
) -> Kernel:
    """The kernel for these arguments. Parameters that are left out have their default."""
    return _Translator(function).kernel(arguments, name or function.name)


class _Translator(Statements):
    def __init__(self, function: TileFunction):
        self.frame = Frame(function, {}, None, None)
        self.node = None
        self.builder = TranslatingBuilder(self)
        self.given: list[tuple[Value, Argument]] = []

    def kernel(self, arguments: Mapping[str, Argument], name: str) -> Kernel:
        f = self.frame.function
        try:
            with using(self.builder):
                tree = f.tree
                self.node = tree
                self._parameters(f, arguments)
                self.statements(tree.body)
        except CompileError:
            raise
        except Exception as error:
            at = getattr(error, "node", None) or self.node
            cause = error.__cause__ if isinstance(error, Mistake) else error
            raise compile_error(error, self.spots(at)) from cause
        values, given = zip(*self.given, strict=True) if self.given else ((), ())
        divisors, positive = [a.divisor for a in given], [a.positive for a in given]
        written = self.builder.kernel(name, values, divisors, positive)
        return sweep(written, self.builder.names)

    def _parameters(self, f: TileFunction, arguments: Mapping[str, Argument]) -> None:
        names = {p.name for p in f.parameters}
        for name in arguments:
            if name not in names:
                raise Mistake(
                    f"{f.name} has no parameter {name}",
                    f"its parameters are {', '.join(p.name for p in f.parameters)}",
                )
        for p in f.parameters:
            a = arguments.get(p.name)
            if a is None:
                if p.variadic:
                    a = Argument.group(())
                elif p.has_default:
                    a = Argument.constant(p.default)
                else:
                    raise Mistake(f"{f.name} is missing the argument {p.name}", _pass(p))
            if p.is_constexpr and any(True for _ in a.leaves()):
                raise Mistake(
                    f"{p.name} is a tl.constexpr and is given a value that a launch decides",
                    f"pass a number, or drop the annotation of {p.name}",
                )
            value = self._value(a, p.name)
            if p.is_const and isinstance(value, core.tensor) and value.dtype.is_ptr():
                value = core.tensor(value.handle, pointer_type(value.dtype.element_ty, const=True))
            self.frame.locals[p.name] = value

    def _value(self, a: Argument, name: str) -> Any:
        if a.parts is not None:
            parts = [self._value(part, f"{name}_{k}") for k, part in enumerate(a.parts)]
            return core.tuple(parts) if a.make is None else constant(a.make(tuple(parts)))
        if a.element is None:
            return constant(a.value) if not isinstance(a.value, constexpr) else a.value
        value = self.builder.fresh(TileType(a.element), name)
        self.given.append((value, a))
        return core.tensor(value)

    # ---- calls

    def inline(self, f: TileFunction, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Translate the body of a function in place of its call. On an error the frame stays: it
        has the place."""
        caller, node = self.frame, self.node
        if caller.depth >= DEEPEST:
            raise Mistake(
                f"{f.name} is called {DEEPEST} calls deep: functions over tiles cannot call "
                "themselves without end",
                "loop instead, or let a tl.constexpr parameter end the recursion",
            )
        locals = _bound(f, args, kwargs)
        if f.noinline:
            _only_scalars(f, locals)
        frame = Frame(f, locals, caller, node)
        frame.loops = 0  # a function may return, whatever loops are around its call
        tree = f.tree
        self.frame, self.node = frame, tree
        found = self.statements(tree.body)
        self.frame, self.node = caller, node
        return found.value if isinstance(found, Returned) else constexpr(None)


def _bound(f: TileFunction, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name, with defaults, as values of the language."""
    found: dict[str, Any] = {}
    rest = dict(kwargs)
    given = list(args)
    for p in f.parameters:
        if p.variadic:
            found[p.name] = core.tuple([constant(a) for a in given])
            given = []
        elif given:
            if p.name in rest:
                raise Mistake(f"{f.name} is given {p.name} twice", "by position and by name")
            found[p.name] = constant(given.pop(0))
        elif p.name in rest:
            found[p.name] = constant(rest.pop(p.name))
        elif p.has_default:
            found[p.name] = constant(p.default)
        else:
            raise Mistake(f"the call of {f.name} lacks the argument {p.name}", _takes(f))
    if given:
        raise Mistake(f"{f.name} is given {len(given)} arguments too many", _takes(f))
    if rest:
        raise Mistake(f"{f.name} has no parameter {next(iter(rest))}", _takes(f))
    return found


def _only_scalars(f: TileFunction, locals: Mapping[str, Any]) -> None:
    """As in Triton, so that a kernel that runs here runs there."""
    for name, value in locals.items():
        if isinstance(value, core.tensor) and value.handle.type.size != 1:
            raise Mistake(
                f"{f.name} is marked noinline and is given the tile {name}: {value.type}",
                "functions that are not inlined take scalars and pointers; drop noinline",
            )


def _takes(f: TileFunction) -> str:
    return f"it takes {', '.join(p.name for p in f.parameters) or 'nothing'}"


def _pass(p: Parameter) -> str:
    kind = " (a tl.constexpr: a number)" if p.is_constexpr else ""
    return f"pass {p.name}{kind}, or give it a default"
