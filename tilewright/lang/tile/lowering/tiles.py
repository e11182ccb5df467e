"""Tiles as functions of their index: what a value of a tile kernel is while it is lowered.

A tile of numbers gives an expression for every index, an integer one also with an index
function: the same number, exactly, as long as nothing overflows (positions.py). That is what
contiguity, constant masks and strides are read off later. Pointers are offsets into an argument, or
addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Value, cast, const, fn, index, load
from tilewright.ir.scalar import WORTH_KEEPING, cost_of
from tilewright.ir.types import DTYPES, DType, b1, i32, i64
from tilewright.lang.tile.lowering.positions import Positions, small

At = tuple[Dim, ...]

ASKED_AGAIN = 4  # indices at which the elements of a tile are cached


@dataclass(frozen=True)
class Tile:
    """Numbers."""

    shape: tuple[int, ...]
    dtype: DType
    at: Callable[[At], Value]
    dim: Callable[[At], Dim] | None = None  # of integers, if they are index functions
    expensive: bool = False  # worth storing where it is used more than once
    reads: frozenset[str] = frozenset()  # memory of arguments that it reads when it is evaluated
    buffer: str = ""  # the buffer that stores it, element by element

    def index(self, at: At) -> Dim:
        """An element as an index; whatever is no index function is data."""
        return self.dim(at) if self.dim is not None else cast(self.at(at), i64).as_dim()


@dataclass(frozen=True)
class Pointers:
    """Addresses: elements from the beginning of an argument, or bytes from the beginning of all."""

    shape: tuple[int, ...]
    to: DType
    buffer: str | None
    at: Callable[[At], Dim]
    reads: frozenset[str] = frozenset()  # memory of arguments that the offsets are read from

    def moved(self, by: Callable[[At], Dim], reads: frozenset[str] = frozenset()) -> Pointers:
        here, size = self.at, 1 if self.buffer is not None else self.to.bytes
        return replace(self, at=lambda i: here(i) + by(i) * size, reads=self.reads | reads)


AnyTile = Tile | Pointers


def whole(shape: tuple[int, ...], dtype: DType, dim: Callable[[At], Dim]) -> Tile:
    """Integers that are index functions."""
    return Tile(shape, dtype, lambda i: cast(index(dim(i)), dtype), dim)


def number(value: float | int | bool, dtype: DType, shape: tuple[int, ...] = ()) -> Tile:
    c = const(value, dtype)
    if dtype.is_int:
        return Tile(shape, dtype, lambda i: c, lambda i: int(c.value))
    return Tile(shape, dtype, lambda i: c)


def buffered(name: str, shape: tuple[int, ...], dtype: DType) -> Tile:
    """The content of one of the kernel's own buffers."""
    return scalar_index(Tile(shape, dtype, lambda i: load(name, i, dtype), buffer=name))


def viewed(t: AnyTile, shape: tuple[int, ...], where: Callable[[At], At]) -> AnyTile:
    """The elements of a tile at other indices."""
    if isinstance(t, Pointers):
        places = t.at
        return replace(t, shape=shape, at=lambda i: places(where(i)))
    at, dim = t.at, t.dim
    moved = None if dim is None else (lambda i: dim(where(i)))
    return replace(t, shape=shape, at=lambda i: at(where(i)), dim=moved, buffer="")


def flattened(t: AnyTile) -> AnyTile:
    """The same tile as one expression whose index is put in, not as functions that call functions:
    a long program would else be as many calls inside each other."""
    probe = _probe(t.shape)
    axes = tuple(D.the_sym(x) for x in probe)
    if isinstance(t, Pointers):
        places = t.at(probe)
        return replace(t, at=lambda i: D.substitute(places, dict(zip(axes, i, strict=True))))
    value = t.at(probe)
    at = lru_cache(ASKED_AGAIN)(lambda i: value.substitute(dict(zip(axes, i, strict=True))))
    if t.dim is None:
        return replace(t, at=at)
    dim = t.dim(probe)
    return replace(t, at=at, dim=lambda i: D.substitute(dim, dict(zip(axes, i, strict=True))))


def mapped(
    name: str, args: tuple[Tile, ...], dtype: DType, shape: tuple[int, ...], positions: Positions
) -> Tile:
    """A scalar function of every element."""
    ats = [a.at for a in args]
    reads = frozenset().union(*(a.reads for a in args))
    expensive = cost_of(name) >= WORTH_KEEPING or any(a.expensive for a in args)
    exact = _comparison(name, args) or (lambda i: fn(name, *(at(i) for at in ats)))
    # A value that is used twice would be built twice, with all its operands.
    exact = lru_cache(ASKED_AGAIN)(exact)
    dim = _index_function(name, args, dtype, positions)
    dim = None if dim is None else lru_cache(ASKED_AGAIN)(dim)
    probe = _probe(shape)
    if dim is not None and positions.fits(dim(probe), dtype):
        own = {D.the_sym(x) for x in probe if D.is_sym(x)}
        # What is the same for all elements is computed once, before their loops.
        data = D.data_values(dim(probe))
        costs = expensive and any(own & v.symbols() for v in data)
        made = whole(shape, dtype, dim)
        # Positions do not overflow, numbers out of memory do: as numbers they are wrapped.
        return replace(made, at=exact if data else made.at, expensive=costs, reads=reads)
    return scalar_index(Tile(shape, dtype, exact, None, expensive, reads))


def scalar_index(t: Tile) -> Tile:
    """One integer is an index whatever it is computed from: the same for all elements."""
    at = t.at
    if prod(t.shape) > 1 or t.dim is not None or t.dtype not in (i32, i64):
        return t
    return replace(t, dim=lambda i: cast(at(i), i64).as_dim())


def _index_function(
    name: str, args: tuple[Tile, ...], dtype: DType, positions: Positions
) -> Callable[[At], Dim] | None:
    """Index arithmetic, as far as it goes: what is no index function enters sums as data."""
    known = [a.dim is not None for a in args]
    if dtype not in (i32, i64) or not any(known):
        return None
    if name == "neg":
        x = args[0].index
        return lambda i: -1 * x(i)
    if len(args) != 2:
        return None
    x, y = args[0].index, args[1].index
    if name in ("add", "sub"):
        return (lambda i: x(i) + y(i)) if name == "add" else (lambda i: x(i) - y(i))
    probe = _probe(args[0].shape)
    if name == "mul":
        strides = all(small(a.index(probe)) for a in args)
        return (lambda i: x(i) * y(i)) if strides else None
    if not all(known) or any(D.data_values(a.index(probe)) for a in args):
        return None
    if name in ("min", "max"):
        pick = D.minimum if name == "min" else D.maximum
        return lambda i: pick(x(i), y(i))
    if name in ("floordiv", "quo", "rem", "mod"):
        divide = D.mod if name in ("rem", "mod") else D.floordiv
        if D.nonneg(x(probe)) and positions.positive(y(probe)):
            # That it is positive is not said by the divisor itself where a launch has to tell.
            return lambda i: divide(x(i), D.maximum(y(i), 1))
    return None


def _probe(shape: tuple[int, ...]) -> At:
    """Any index of a tile."""
    return tuple(D.var(f"?{k}", n) for k, n in enumerate(shape))


def _comparison(name: str, args: tuple[Tile, ...]) -> Callable[[At], Value] | None:
    """Two index functions compared as such: decided by what is known of their bounds."""
    if name not in ("lt", "le", "gt", "ge", "eq", "ne"):
        return None
    x, y = args[0].dim, args[1].dim
    if x is None or y is None or args[0].dtype not in (i32, i64):
        return None
    probe = _probe(args[0].shape)
    if D.data_values(x(probe)) or D.data_values(y(probe)):
        return None
    return lambda i: fn(name, index(x(i)), index(y(i)))


def converted(t: Tile, dtype: DType, positions: Positions, rounding: str = "") -> Tile:
    if t.dtype is dtype:
        return t
    at = t.at
    dim = t.dim if dtype in (i32, i64) and t.dtype in (i32, i64) else None
    probe = _probe(t.shape)
    if dim is not None and (D.data_values(dim(probe)) or not positions.fits(dim(probe), dtype)):
        # Numbers out of memory may not fit, or may have wrapped before.
        wider = dim if dtype.bits > t.dtype.bits else None
        exact = replace(t, dtype=dtype, at=lambda i: cast(at(i), dtype), dim=wider, buffer="")
        return scalar_index(exact)
    if t.dim is not None and dim is not None:
        return replace(t, dtype=dtype, at=whole(t.shape, dtype, t.dim).at, buffer="")
    if dtype is b1:
        zero = const(0, t.dtype)
        return replace(t, dtype=b1, at=lambda i: fn("ne", at(i), zero), dim=None, buffer="")
    if rounding == "rtz":
        cut = f"toward_zero_{dtype}"
        return replace(
            t, dtype=dtype, at=lambda i: cast(fn(cut, at(i)), dtype), dim=None, buffer=""
        )
    return replace(t, dtype=dtype, at=lambda i: cast(at(i), dtype), dim=None, buffer="")


def recast(t: Tile, dtype: DType) -> Tile:
    """The same bits as another dtype of the same width."""
    if t.dtype is dtype:
        return t
    at, out = t.at, replace(t, dtype=dtype, dim=None, buffer="")
    bits = DTYPES[f"u{dtype.bits}"]
    if t.dtype.is_float and dtype.is_float:
        there, back = f"bits_of_{t.dtype}", f"{dtype}_of_bits"
        return replace(out, at=lambda i: fn(back, fn(there, at(i))))
    if t.dtype.is_float:
        return replace(out, at=lambda i: cast(fn(f"bits_of_{t.dtype}", at(i)), dtype))
    if dtype.is_float:
        return replace(out, at=lambda i: fn(f"{dtype}_of_bits", cast(at(i), bits)))
    return replace(out, at=lambda i: cast(at(i), dtype))
