"""Typed data as JSON and bytes, and back: how programs are written to files and to the cache.

What a field may hold is read from its annotation: numbers, words, dims, dtypes, tensor types,
arrays, bytes, tuples and mappings of these, and dataclasses. A field with its default value is left
out, so that fields can be added without making older records unreadable. Where several dataclasses
are possible, `is` says which. Arrays and bytes are stored outside the JSON, as blobs; the symbols
of all dims are declared once. Nothing in a record is code of Python's.
"""

from __future__ import annotations

import builtins
import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Int, Sym
from tilewright.ir.reader import Reader
from tilewright.ir.target import Target
from tilewright.ir.types import DType, TensorType, dtype_named
from tilewright.ir.value_text import Scope, declare, dim_text, parse_dim, read_sym, sym_text
from tilewright.runtime.memory import ALIGN, aligned
from tilewright.runtime.program_data import Stored

T = TypeVar("T")
Blob = bytes | memoryview
_WHICH = "is"
# Exceptions and types of numbers that a record may name.
_NAMED = {
    x.__name__: x
    for x in vars(builtins).values()
    if isinstance(x, type) and (issubclass(x, Exception) or x in (bool, int, float))
}


@dataclasses.dataclass(frozen=True)
class Written:
    """A value of some type as JSON and blobs, some of which are arrays."""

    head: dict[str, Any]
    blobs: list[Blob]
    arrays: list[int]


def write_record(kind: Any, value: Any) -> Written:
    out = _Writing()
    body = _codec(kind).write(value, out)
    symbols = [sym_text(s) for s in declare(out.symbols)]
    return Written({"symbols": symbols, "body": body}, out.blobs, out.arrays)


def read_record(kind: type[T], record: Any, blobs: Sequence[Blob]) -> T:
    """The value of a record. `Invalid` where it is not one of this type."""
    try:
        symbols: dict[str, Sym | Int] = {}
        for text in record["symbols"]:
            s = read_sym(Reader(text, "symbol"), Scope(symbols=symbols))
            symbols[s.name] = s
        return _codec(kind).read(record["body"], _Reading(blobs, Scope(symbols=symbols)))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as problem:
        what = f"{type(problem).__name__}: {problem}"
        raise Invalid(f"this is not a record of a {kind.__name__} ({what})") from None


class _Writing:
    """What a record refers to, while it is written."""

    def __init__(self) -> None:
        self.blobs: list[Blob] = []
        self.arrays: list[int] = []
        self.symbols: set[Sym] = set()

    def blob(self, data: Blob) -> int:
        self.blobs.append(data)
        return len(self.blobs) - 1


class _Reading:
    """The same, while it is read."""

    def __init__(self, blobs: Sequence[Blob], scope: Scope) -> None:
        self.blobs, self.scope = blobs, scope
        self._dims: dict[str, Dim] = {}

    def dim(self, text: str) -> Dim:
        found = self._dims.get(text)
        if found is None:
            found = self._dims[text] = parse_dim(text, self.scope)
        return found


@dataclasses.dataclass(frozen=True)
class _Codec:
    write: Callable[[Any, _Writing], Any]
    read: Callable[[Any, _Reading], Any]


@cache
def _codec(kind: Any) -> _Codec:
    """How values of an annotated type are written and read."""
    if kind in _SPECIAL:
        return _SPECIAL[kind]
    origin, of = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _either(of)
    if origin is tuple:
        return _row(of)
    if origin in (dict, Mapping):
        return _table(of[1])  # keys are words
    if origin is type or kind is type:
        return _Codec(_write_name, lambda x, _: _NAMED[x])
    if dataclasses.is_dataclass(kind):
        return _fields(kind)
    raise TypeError(f"records have no form for {kind}")


def _write_name(x: type, _: _Writing) -> str:
    if _NAMED.get(x.__name__) is not x:
        raise Invalid(f"{x.__name__} is no type of Python's own, and cannot be written to a file")
    return x.__name__


def _fields(kind: Any) -> _Codec:
    """A dataclass: an object of its fields, less those that have their default."""
    # Resolved at the first use: the fields may refer to the class itself.
    codecs = cache(lambda: {n: _codec(t) for n, t in typing.get_type_hints(kind).items()})
    own = dataclasses.fields(kind)

    def write(x: Any, out: _Writing) -> dict[str, Any]:
        known = codecs()
        made: dict[str, Any] = {}
        for f in own:
            value = getattr(x, f.name)
            if f.default is dataclasses.MISSING or not _same(value, f.default):
                made[f.name] = known[f.name].write(value, out)
        return made

    def read(x: Any, at: _Reading) -> Any:
        known = codecs()
        extra = [name for name in x if name not in known and name != _WHICH]
        if extra:
            raise ValueError(f"{kind.__name__} has no {extra[0]}")
        given = {n: known[n].read(v, at) for n, v in x.items() if n != _WHICH}
        return kind(**given)

    return _Codec(write, read)


def _same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and not isinstance(a, np.ndarray) and bool(a == b))


def _either(kinds: tuple[Any, ...]) -> _Codec:
    """One of several types: None and a dim, or dataclasses, which say which they are."""
    empty = type(None) in kinds
    rest = tuple(k for k in kinds if k is not type(None))
    if set(rest) == {int, Int}:
        one: _Codec | None = _DIM
    else:
        one = _codec(rest[0]) if len(rest) == 1 else None
    named: dict[str, Any] = {k.__name__: k for k in rest if isinstance(k, type)}

    def write(x: Any, out: _Writing) -> Any:
        if x is None and empty:
            return None
        if one is not None:
            return one.write(x, out)
        return {_WHICH: type(x).__name__, **_codec(named[type(x).__name__]).write(x, out)}

    def read(x: Any, at: _Reading) -> Any:
        if x is None and empty:
            return None
        if one is not None:
            return one.read(x, at)
        if not isinstance(x, dict):
            raise TypeError(f"{x!r} stands for one of {', '.join(named)}")
        return _codec(named[x[_WHICH]]).read(x, at)

    return _Codec(write, read)


def _row(kinds: tuple[Any, ...]) -> _Codec:
    """Tuples: any number of one type, or one of each."""
    if len(kinds) == 2 and kinds[1] is ...:
        kind = kinds[0]
        return _Codec(
            lambda x, out: [_codec(kind).write(y, out) for y in x],
            lambda x, at: tuple([_codec(kind).read(y, at) for y in _items(x)]),
        )
    return _Codec(
        lambda x, out: [_codec(k).write(y, out) for k, y in zip(kinds, x, strict=True)],
        lambda x, at: tuple([_codec(k).read(y, at) for k, y in zip(kinds, x, strict=True)]),
    )


def _items(x: Any) -> list[Any]:
    if not isinstance(x, list):
        raise TypeError(f"{x!r} should be a list")
    return x


def _table(kind: Any) -> _Codec:
    return _Codec(
        lambda x, out: {str(k): _codec(kind).write(v, out) for k, v in x.items()},
        lambda x, at: {k: _codec(kind).read(v, at) for k, v in x.items()},
    )


def _plain(*kinds: type) -> _Codec:
    """What JSON has itself."""

    def read(x: Any, _: _Reading) -> Any:
        if type(x) not in kinds:
            raise TypeError(f"{x!r} should be of type {kinds[0].__name__}")
        return x

    return _Codec(lambda x, _: x, read)


def _write_dim(x: Dim, out: _Writing) -> int | str:
    if isinstance(x, int):
        return x
    out.symbols |= D.symbols(x)
    return dim_text(x)


def _read_dim(x: Any, at: _Reading) -> Dim:
    if isinstance(x, str):
        return at.dim(x)
    return _codec(int).read(x, at)


def _dtype(x: Any) -> DType:
    found = dtype_named(x)
    if found is None:
        raise ValueError(f"there is no dtype {x!r}")
    return found


def _write_type(t: TensorType, out: _Writing) -> list[int | str]:
    return [t.dtype.name, *(_write_dim(d, out) for d in t.shape)]


def _read_type(x: Any, at: _Reading) -> TensorType:
    return TensorType(_dtype(x[0]), tuple(_read_dim(d, at) for d in x[1:]))


def _write_stored(x: Stored, out: _Writing) -> dict[str, Any]:
    # An array without elements has no memory to point at.
    data = x.array.reshape(-1).view(np.uint8).data if x.array.size else b""
    where = out.blob(data)
    out.arrays.append(where)
    return {"dtype": x.dtype.name, "shape": list(x.array.shape), "blob": where}


def _read_stored(x: Any, at: _Reading) -> Stored:
    dtype = _dtype(x["dtype"])
    raw = np.frombuffer(at.blobs[x["blob"]], np.uint8)
    if raw.size and raw.ctypes.data % ALIGN:  # kernels read whole vectors of constants
        memory, start = aligned(raw.size)
        first = start - memory.ctypes.data
        memory[first : first + raw.size] = raw
        raw = memory[first : first + raw.size]
    array = raw.view(dtype.memory).reshape(x["shape"])
    array.flags.writeable = False
    return Stored(dtype, array)


_DIM = _Codec(_write_dim, _read_dim)
_SPECIAL: dict[Any, _Codec] = {
    str: _plain(str),
    bool: _plain(bool),
    int: _plain(int),
    float: _plain(float, int),
    Any: _Codec(lambda x, _: x, lambda x, _: x),
    bytes: _Codec(lambda x, out: out.blob(x), lambda x, at: bytes(at.blobs[x])),
    Dim: _DIM,
    DType: _Codec(lambda x, _: x.name, lambda x, _: _dtype(x)),
    TensorType: _Codec(_write_type, _read_type),
    Target: _Codec(lambda x, _: x.text(), lambda x, _: Target.parse(x)),
    Stored: _Codec(_write_stored, _read_stored),
}
