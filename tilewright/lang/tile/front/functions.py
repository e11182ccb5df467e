"""Functions of the tile language: their source, their parameters, and what they depend on.

A `TileFunction` is never translated by itself: a kernel that calls it holds its body. Run step by
step it is the Python function it was made from.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import linecache
import re
import textwrap
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tilewright.base import knobs
from tilewright.base.errors import Invalid
from tilewright.base.source import parse_module
from tilewright.ir.types import DType
from tilewright.lang.tile.builder import building
from tilewright.lang.tile.ir import Element, Pointer
from tilewright.lang.tile.language.types import unwrap

MISSING = inspect.Parameter.empty


@dataclass(frozen=True)
class Argument:
    """What stands for one parameter while a kernel is translated: a number or an address that a
    launch gives (`element`), several of them (`parts`), or a constant (`value`)."""

    element: Element | None = None
    divisor: int = 1  # what the number, or the address in bytes, is known to be a multiple of
    value: Any = None
    parts: tuple[Argument, ...] | None = None
    positive: bool = False  # is the number known to be greater than 0?
    # Takes the values of the parts and gives what the kernel sees; None: a tuple of them.
    make: Callable[[tuple[Any, ...]], Any] | None = None

    @staticmethod
    def constant(value: Any) -> Argument:
        return Argument(value=value)

    @staticmethod
    def scalar(element: DType, divisor: int = 1, positive: bool = False) -> Argument:
        return Argument(element, divisor, positive=positive)

    @staticmethod
    def pointer(to: DType, divisor: int = 1) -> Argument:
        return Argument(Pointer(to), divisor)

    @staticmethod
    def group(
        parts: Iterable[Argument], make: Callable[[tuple[Any, ...]], Any] | None = None
    ) -> Argument:
        return Argument(parts=tuple(parts), make=make)

    def leaves(self) -> Iterator[Argument]:
        """Those that a launch gives, in order."""
        if self.parts is not None:
            for p in self.parts:
                yield from p.leaves()
        elif self.element is not None:
            yield self


@dataclass(frozen=True)
class Parameter:
    number: int
    name: str
    annotation: Any = MISSING
    default: Any = MISSING
    do_not_specialize: bool = False
    do_not_specialize_on_alignment: bool = False
    variadic: bool = False  # *args

    @property
    def num(self) -> int:
        """What Triton calls its number."""
        return self.number

    @property
    def has_default(self) -> bool:
        return self.default is not MISSING

    @functools.cached_property
    def annotation_text(self) -> str:
        """The annotation as written; with `from __future__ import annotations` there is nothing
        else."""
        a = self.annotation
        if a is MISSING or a is None:
            return ""
        return a.strip("\"' ") if isinstance(a, str) else getattr(a, "__name__", None) or str(a)

    @functools.cached_property
    def is_constexpr(self) -> bool:
        return "constexpr" in self.annotation_text

    @functools.cached_property
    def is_const(self) -> bool:
        """Is it a pointer through which nothing is stored (`tl.const`, or "*k…" in Triton)?"""
        text = self.annotation_text
        return not self.is_constexpr and ("const" in text or text.startswith("*k"))


def declared_constant(fn: Callable[..., Any], name: str) -> bool:
    """Does the module of a function say `name: tl.constexpr = …`?"""
    declared = fn.__globals__.get("__annotations__", {}).get(name)
    return "constexpr" in str(getattr(declared, "__name__", declared))


class _Cells(Mapping[str, Any]):
    """Variables of the functions around one, as they are now."""

    def __init__(self, fn: Callable[..., Any]):
        self.cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))

    def __getitem__(self, name: str) -> Any:
        try:
            return self.cells[name].cell_contents
        except ValueError:  # not assigned yet
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.cells if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Sourced:
    """A Python function whose source is read once, when it is decorated."""

    def __init__(self, fn: Callable[..., Any]):
        if not callable(fn) or not hasattr(fn, "__code__"):
            raise Invalid(
                f"{fn!r} is no Python function",
                hint="the decorator goes directly above a def",
            )
        self.fn = fn
        self.name: str = fn.__name__
        self.file: str = fn.__code__.co_filename
        try:
            lines, first = inspect.getsourcelines(fn)
        except (OSError, TypeError):
            # Step by step it can run as the Python that it is.
            if not (knobs.interpret.get() or knobs.tile_check.get()):
                raise self._without_source() from None
            self._read(f"def {fn.__name__}(): ...\n", fn.__code__.co_firstlineno)
            self.has_source = False
        else:
            self._read("".join(lines), first)
        self.__name__, self.__qualname__ = fn.__name__, fn.__qualname__
        self.__module__, self.__doc__ = fn.__module__, fn.__doc__
        self.__wrapped__, self.__globals__ = fn, fn.__globals__

    has_source = True

    def _without_source(self) -> Invalid:
        return Invalid(
            f"the source of {self.name} cannot be read",
            where=self.file,
            hint="functions of the tile language have to be defined in a file or a notebook; those "
            "made with exec need their text in linecache (or run step by step: "
            f"{knobs.interpret.name}=1)",
        )

    def _read(self, text: str, first: int) -> None:
        """The def without its decorators, and where it begins in its file."""
        source = textwrap.dedent(text)
        found = re.search(r"^(async\s+)?def\s+\w+\s*[(\[]", source, re.MULTILINE)
        if found is None:
            raise Invalid(
                f"{self.name} is no def but an expression",
                where=f"{self.file}:{first}",
                hint="write it as a function with def",
            )
        self.source = source[found.start() :]
        self.line = first + source.count("\n", 0, found.start())
        # What dedent took away, so that columns are those of the file.
        start = text.splitlines()[source.count("\n", 0, found.start())]
        self.column = len(start) - len(start.lstrip())
        self._tree: ast.FunctionDef | None = None
        self._hash: str | None = None
        self._used: list[tuple[Mapping[str, Any], str, Any]] = []

    @property
    def tree(self) -> ast.FunctionDef:
        if not self.has_source:
            raise self._without_source()
        if self._tree is None:
            (found,) = parse_module(self.source).body
            assert isinstance(found, ast.FunctionDef)
            self._tree = found
        return self._tree

    @property
    def globals(self) -> Mapping[str, Any]:
        """What names that are not local stand for: variables of enclosing functions, then those of
        the module. Read again each time, since both change."""
        if self.fn.__closure__ is None:
            return self.fn.__globals__
        return ChainMap(_Cells(self.fn), self.fn.__globals__)  # type: ignore[arg-type]

    def hash(self) -> str:
        """Of the source of this function and of every one it can reach, and of the constants they
        read."""
        if self._hash is None:
            digest = hashlib.sha256()
            used: list[tuple[Mapping[str, Any], str, Any]] = []
            for part in _parts(self, {}, used):
                digest.update(part.encode())
                digest.update(b"\0")
            self._hash = digest.hexdigest()
            self._used = used
        return self._hash

    def changed_global(self) -> tuple[str, Any, Any] | None:
        """A global that the hash depends on and that has another value by now: its name, the value
        then and the value now."""
        for names, name, value in self._used:
            now = names.get(name, MISSING)
            if now is not value and not _equal(now, value):
                return name, value, now
        return None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.fn.__module__}:{self.fn.__qualname__})"

    # Two functions are one where they are one object: as keys of caches they would otherwise
    # compare their sources.
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self) >> 4


class TileFunction(_Sourced):
    """A function over tiles, to be called from kernels (or the body of a kernel itself)."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        noinline: bool = False,
        do_not_specialize: Iterable[int | str] = (),
        do_not_specialize_on_alignment: Iterable[int | str] = (),
    ):
        super().__init__(fn)
        self.noinline = bool(noinline)
        not_special, not_aligned = set(do_not_specialize), set(do_not_specialize_on_alignment)
        self.signature = inspect.signature(fn)
        parameters = []
        for k, p in enumerate(self.signature.parameters.values()):
            if p.kind is p.VAR_KEYWORD:
                raise Invalid(
                    f"{self.name} takes **{p.name}",
                    where=f"{self.file}:{self.line}",
                    hint="name the parameters of functions over tiles one by one",
                )
            keys = {k, p.name}
            parameters.append(
                Parameter(
                    k,
                    p.name,
                    p.annotation,
                    p.default,
                    bool(keys & not_special),
                    bool(keys & not_aligned),
                    p.kind is p.VAR_POSITIONAL,
                )
            )
        self.parameters: tuple[Parameter, ...] = tuple(parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        builder = building()
        if builder is None:
            raise Invalid(
                f"{self.name} is a function over tiles and cannot be called like a Python function",
                where=f"{self.file}:{self.line}",
                hint=f"launch it over a grid: {self.name}[grid](…), or call it from a kernel",
            )
        return builder.call(self, args, kwargs)  # type: ignore[attr-defined]

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def replace_source(self, source: str) -> None:
        """Another text for the same name. Hashes of functions that call this one stay the same."""
        self._read(source, self.line)
        # So that running step by step, and tracebacks, see the new text too.
        name = f"<{self.name} {hashlib.sha256(source.encode()).hexdigest()[:12]}>"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        scope = dict(self.globals)
        exec(compile(self.source, name, "exec", dont_inherit=True), scope)
        self.fn = scope[self.name]


class ConstexprFunction(_Sourced):
    """A Python function run while a kernel is translated, on constants. What it gives is one."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = [unwrap(a) for a in args]
        return self.fn(*given, **{k: unwrap(v) for k, v in kwargs.items()})

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)


function = TileFunction
constexpr_function = ConstexprFunction


def must_use_result(x: Any, why: str | bool = True) -> Any:
    """Marks a function that is called for its result only: `@must_use_result`, or with a text that
    is added to the error: `@must_use_result("…")`."""
    if isinstance(x, str):
        return lambda f: must_use_result(f, x)
    x.must_use_result = why
    return x


def call_function(
    f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] = {}
) -> Any:
    """Call a function over tiles, or any callable, whichever builder is current."""
    return f(*args, **kwargs)


def _equal(a: Any, b: Any) -> bool:
    a, b = unwrap(a), unwrap(b)
    try:
        return type(a) is type(b) and bool(a == b)
    except Exception:  # arrays and the like: what has no truth value for == counts as different
        return False


# ---- what a function depends on

_SIMPLE = (bool, int, float, complex, str, bytes, type(None))


def _parts(
    f: _Sourced, seen: dict[_Sourced, int], used: list[tuple[Mapping[str, Any], str, Any]]
) -> Iterator[str]:
    if f in seen:  # functions of one name, made by the same code, may be several
        yield f"function {seen[f]}"
        return
    seen[f] = len(seen)
    yield f"{type(f).__name__} {f.fn.__module__}.{f.fn.__qualname__} {f.line}"
    yield f.source
    if not f.has_source:  # it is identified by its code alone
        yield repr((f.fn.__code__.co_code, f.fn.__code__.co_consts))
        return
    names, closure = f.globals, _Cells(f.fn)
    hidden = {a.arg for a in ast.walk(f.tree.args) if isinstance(a, ast.arg)}
    done: set[str] = set()
    for node in ast.walk(f.tree):
        if not isinstance(node, (ast.Name, ast.Attribute)):
            continue
        path = dotted(node)
        if path is None or path in done or path.split(".")[0] in hidden:
            continue
        done.add(path)
        value = _resolve(path, names)
        if isinstance(value, _Sourced):
            yield f"{path} is"
            yield from _parts(value, seen, used)
        else:
            constant = _constant_text(unwrap(value))
            if constant is None or value is MISSING:
                continue
            yield f"{path} = {constant}"
        if "." not in path:
            used.append((closure if path in closure else f.fn.__globals__, path, value))


def dotted(node: ast.AST) -> str | None:
    """`a.b.c` of names and attributes."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        left = dotted(node.value)
        return None if left is None else f"{left}.{node.attr}"
    return None


def _resolve(path: str, names: Mapping[str, Any]) -> Any:
    first, *rest = path.split(".")
    value = names.get(first, MISSING)
    for attribute in rest:
        if not isinstance(value, (ModuleType, type)):
            return MISSING
        value = getattr(value, attribute, MISSING)
    return value


def _constant_text(value: Any) -> str | None:
    """The text of a constant that decides what a kernel does; None for modules, functions, …"""
    if isinstance(value, _SIMPLE):
        return repr(value)
    if isinstance(value, (tuple, list)):
        inner = [_constant_text(unwrap(v)) for v in value]
        return None if None in inner else f"({', '.join(map(str, inner))})"
    if type(value).__module__.startswith("tilewright."):
        return None if callable(value) and not isinstance(value, type) else str(value)
    return None
