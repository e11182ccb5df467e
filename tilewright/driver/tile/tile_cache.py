"""Tile kernels in the disk cache: a process that launches what another one compiled translates
nothing.

An entry has the code and what a launch needs of it. Its key is made of what determines both before
anything is translated: the source of the kernel and of every function that it can reach, the
constants that these read, what is known of the arguments, and the target. Where one of them is an
object that has no unique text, nothing is cached.
"""

from __future__ import annotations

import ast
import builtins
import enum
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial
from importlib import import_module
from itertools import chain
from types import ModuleType
from typing import Any

from tilewright.base import knobs
from tilewright.base.cache import Cache
from tilewright.base.events import Log
from tilewright.driver.tile.compiled import Binding, CompiledTile
from tilewright.driver.tile.request import Request
from tilewright.ir.target import Target
from tilewright.ir.types import DTYPES, DType
from tilewright.lang.tile.front.functions import (
    MISSING,
    Argument,
    ConstexprFunction,
    TileFunction,
    dotted,
)
from tilewright.lang.tile.ir import Place, Pointer, TileType
from tilewright.lang.tile.language.types import dtype, unwrap
from tilewright.lang.tile.lowering.state import Site
from tilewright.llvm.objects import LLVM_VERSION

KIND = "tile"  # of cache entries
_COMPILER = "tilewright.driver.tile.compile"


def cached_tile(wanted: Request, target: Target, log: Log) -> CompiledTile:
    """Native code of a kernel, out of the cache where it was made before."""
    wrapping = None
    if not wanted.wraps:
        wrapping = lru_cache(1)(partial(_wrapping, wanted, target, log))

    def made_now() -> CompiledTile:
        compiler = import_module(_COMPILER)
        given = wanted.aliasing, wanted.wraps, wrapping
        return compiler.compile_tile(wanted.kernel(), target, log, *given)

    if knobs.dump.get() is not None or knobs.resume.get() is not None:
        return made_now()
    try:
        key = key_of(wanted, target)
    except Opaque as unknown:
        log.add("cache", f"{wanted.function.name} is not cached: {unknown}", detail=True)
        return made_now()
    cache = Cache.from_knobs(log)
    found = cache.get(KIND, key)
    if found is not None:
        head, _, image = found.partition(b"\n")
        again = lru_cache(1)(partial(_forms, wanted, target))
        return CompiledTile(read_binding(head.decode()), image, again, wrapping)
    made = made_now()
    cache.put(KIND, key, binding_text(made.binding).encode() + b"\n" + made.image)
    return made


def cached_at(wanted: Request, target: Target) -> str:
    """Where the code of a kernel is on disk, for people to read."""
    try:
        found = Cache.from_knobs().where(KIND, key_of(wanted, target))
    except Opaque as unknown:
        return f"not cached on disk: {unknown}"
    return f"cached in {found}" if found is not None else "not cached on disk"


def _forms(wanted: Request, target: Target) -> Any:
    compiler = import_module(_COMPILER)
    return compiler.write_tile(wanted.kernel(), target, wanted.aliasing, wanted.wraps)


def _wrapping(wanted: Request, target: Target, log: Log) -> CompiledTile:
    """The variant for launches in which integers overflow."""
    log.add(
        "variant",
        f"{wanted.function.name} is made again for a launch in which integers of 32 bits may "
        "overflow: they wrap around",
        where=f"{wanted.function.file}:{wanted.function.line}",
    )
    return cached_tile(replace(wanted, wraps=True), target, log)


# ---- what determines a kernel


class Opaque(Exception):
    """Something that a kernel depends on and that has no unique text."""


Seen = dict[int, int]  # functions that are described, by their identity: the ordinal of each


def key_of(wanted: Request, target: Target) -> str:
    """`Opaque` says what has no text."""
    seen: Seen = {}
    parts = [
        f"llvm {LLVM_VERSION} python {sys.version}",
        f"{target.key()} {target.codegen_key()}",
        f"backend {knobs.triton_backend.get()}",  # language/target_info.py
        f"debug {wanted.debug} {wanted.sanitize} aliasing {wanted.aliasing} {wanted.wraps}",
        f"block {wanted.warps} {wanted.stages}" if target.grid is not None else "",
        *_function(wanted.function, seen),
        *(f"{name}: {_argument(a, seen)}" for name, a in wanted.arguments.items()),
    ]
    return "\0".join(parts)


def _argument(a: Argument, seen: Seen) -> str:
    if a.parts is None:
        text = _text("a constant", a.value, seen) if a.element is None else str(a.element)
        return f"{text} {a.divisor} {a.positive}"
    made = ""
    if a.make is not None:
        made = getattr(a.make, "text", None)
        if made is None:
            raise Opaque("an argument is made of parts by a function")
    return f"{made}({', '.join(_argument(p, seen) for p in a.parts)})"


def _function(f: TileFunction | ConstexprFunction, seen: Seen) -> Iterator[str]:
    if id(f) in seen:  # functions of one name, made by the same code, may be several
        yield f"function {seen[id(f)]}"
        return
    seen[id(f)] = len(seen)
    name = f"{f.fn.__module__}.{f.fn.__qualname__}"
    if _is_ours(f.fn.__module__):  # entries of another version of this package are others
        yield name
        return
    yield f"{type(f).__name__} {name} {f.file}:{f.line}:{f.column}"
    yield f.source
    if not f.has_source:
        raise Opaque(f"{name} has no source")
    if isinstance(f, TileFunction):
        yield f"noinline {f.noinline}"
        for p in f.parameters:
            if p.has_default:
                yield f"{p.name} = {_text(p.name, p.default, seen)}"
    else:
        defaults = {**dict(enumerate(f.fn.__defaults__ or ())), **(f.fn.__kwdefaults__ or {})}
        for which, value in defaults.items():
            yield f"default {which} = {_text(name, value, seen)}"
    hidden = {a.arg for a in ast.walk(f.tree.args) if isinstance(a, ast.arg)}
    names, done = f.globals, set[str]()
    # Annotations and defaults of parameters are in the arguments and above.
    for path in chain.from_iterable(map(_paths, f.tree.body)):
        first, *rest = path.split(".")
        if path in done or first in hidden:
            continue
        done.add(path)
        value = names.get(first, MISSING)
        if value is MISSING:  # local, or Python's own
            continue
        for k, attribute in enumerate(rest):
            if not isinstance(value, (ModuleType, type)) or isinstance(value, enum.EnumMeta):
                if isinstance(value, enum.EnumMeta):
                    value = getattr(value, attribute, MISSING)
                path = ".".join((first, *rest[: k + 1]))
                break
            value = getattr(value, attribute, MISSING)
        if not isinstance(value, ModuleType):
            yield f"{path} = {_text(path, value, seen)}"


def _paths(node: ast.AST) -> Iterator[str]:
    """The names that are read, each as far as attributes go: a.b.c, not also a.b and a."""
    path = dotted(node)
    if path is not None:
        yield path
        return
    for child in ast.iter_child_nodes(node):
        yield from _paths(child)


_SIMPLE = (bool, int, float, complex, str, bytes, type(None))


def _text(name: str, value: Any, seen: Seen) -> str:
    """A text that no other value has."""
    value = unwrap(value)
    if isinstance(value, enum.Enum):
        return f"{type(value).__module__}.{type(value).__qualname__} {value!r}"
    if type(value) in _SIMPLE:
        return repr(value)
    if type(value) in (tuple, list):
        return f"{type(value).__name__}({', '.join(_text(name, v, seen) for v in value)})"
    if isinstance(value, (dtype, DType)):
        return f"dtype {value}"
    if isinstance(value, (TileFunction, ConstexprFunction)):
        text = "\0".join(_function(value, seen))
        return f"{value.fn.__module__}.{value.fn.__qualname__} {text}"
    module = getattr(value, "__module__", None)
    if callable(value) and hasattr(value, "__qualname__"):
        known = module == "math" or module == "builtins" or _is_ours(module)
        own = getattr(builtins, getattr(value, "__name__", ""), None) is value
        if known or own:
            return f"{module}.{value.__qualname__}"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.dtype):
        return str(value)
    raise Opaque(f"{name} is a {type(value).__module__}.{type(value).__qualname__}")


def _is_ours(module: str | None) -> bool:
    return module is not None and module.split(".")[0] == "tilewright"


# ---- bindings as text


def binding_text(b: Binding) -> str:
    """One line of JSON."""
    sites = [
        [s.kind, s.message, [[str(t.element), t.shape] for t in s.types], _place_row(s.place)]
        for s in b.sites
    ]
    row = [b.name, b.entry, b.slots, b.dims, b.pairs, b.stored, sites, b.waits, b.overflows]
    return json.dumps(row, ensure_ascii=True)


def read_binding(text: str) -> Binding:
    name, entry, slots, dims, pairs, stored, sites, waits, overflows = json.loads(text)
    made = Binding(name, entry, _rows(slots), _rows(dims), _rows(pairs), tuple(stored))
    return replace(
        made,
        sites=tuple(
            Site(
                kind,
                message,
                tuple(TileType(_element(e), tuple(shape)) for e, shape in types),
                _read_place(place),
            )
            for kind, message, types, place in sites
        ),
        waits=waits,
        overflows=overflows,
    )


def _rows(rows: list[list[Any]]) -> tuple[Any, ...]:
    return tuple(map(tuple, rows))


def _element(text: str):
    return Pointer(DTYPES[text[1:]]) if text.startswith("*") else DTYPES[text]


def _place_row(p: Place | None) -> list[Any] | None:
    if p is None:
        return None
    return [p.file, p.line, p.column, p.function, _place_row(p.inside)]


def _read_place(row: list[Any] | None) -> Place | None:
    if row is None:
        return None
    file, line, column, function, inside = row
    return Place(file, line, column, function, _read_place(inside))
