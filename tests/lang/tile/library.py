"""Functions of the tile language's library, run as the interpreter runs them and as compiled."""

import itertools
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir.types import DType, as_dtype
from tilewright.lang.tile.builder import using
from tilewright.lang.tile.front.frontend import translate
from tilewright.lang.tile.front.functions import Argument, TileFunction
from tilewright.lang.tile.ir import TileType
from tilewright.lang.tile.language import core
from tilewright.lang.tile.stepping.eager import EagerBuilder, interpret
from tilewright.lang.tile.stepping.known import EagerValue, known
from tilewright.lang.tile.stepping.raw_memory import Memory, from_bits, to_bits

FLOATS = (core.float16, core.bfloat16, core.float32, core.float64)
FLOATS_8 = (
    core.float8e4nv,
    core.float8e5,
    core.float8e4b15,
    core.float8e4b8,
    core.float8e5b16,
)
SIGNED = (core.int8, core.int16, core.int32, core.int64)
UNSIGNED = (core.uint8, core.uint16, core.uint32, core.uint64)
NUMBERS = (*SIGNED, *UNSIGNED, *FLOATS)

_numbers = itertools.count()


@dataclass
class Tile:
    """An argument: elements as the interpreter holds them (bfloat16 as rounded float32)."""

    array: np.ndarray
    dtype: core.dtype


def element(d: core.dtype) -> DType:
    """The numbers of a type that is no pointer."""
    found = d.ir
    assert isinstance(found, DType)
    return found


def tile(array: Any, dtype: core.dtype = core.float32) -> Tile:
    return Tile(as_dtype(np.asarray(array), element(dtype)), dtype)


def random_tile(
    dtype: core.dtype, *shape: int, seed: int = 0, low: int = -9, high: int = 9
) -> Tile:
    """Numbers with some equal ones among them."""
    rng = np.random.default_rng((seed, *shape))
    if dtype.is_bool():
        return tile(rng.integers(0, 2, shape) != 0, dtype)
    if dtype.is_int():
        return tile(rng.integers(0 if dtype.is_int_unsigned() else low, high, shape), dtype)
    return tile(np.round(rng.normal(size=shape) * 4, 1), dtype)


def run(f: Callable[..., Any], *args: Any, **constants: Any) -> list[np.ndarray]:
    """The results of a function over tiles and numbers, by the interpreter; translated and then
    interpreted it gives the same bits."""
    results = run_eagerly(f, *args, **constants)
    for a, b in zip(results, _run_translated(f, args, constants, results), strict=True):
        np.testing.assert_array_equal(a.array, b)
    return [r.array for r in results]


def run_eagerly(f: Callable[..., Any], *args: Any, **constants: Any) -> list[Tile]:
    with using(EagerBuilder(Memory())):
        given = [
            core.tensor(EagerValue(TileType(a.dtype.ir, a.array.shape), a.array))
            if isinstance(a, Tile)
            else a
            for a in args
        ]
        found = f(*given, **constants)
        several = found if isinstance(found, tuple | core.tuple) else (found,)
        return [Tile(known(core.to_tensor(x).handle).array, x.dtype) for x in several]


def _run_translated(
    f: Callable[..., Any], args: Any, constants: dict[str, Any], like: list[Tile]
) -> list[np.ndarray]:
    tiles = [a for a in args if isinstance(a, Tile)]
    lines, calls = [], []
    for k, a in enumerate(args):
        if isinstance(a, Tile):
            at = f"x{k}" if not a.array.shape else f"x{k} + tl.arange(0, {a.array.size})"
            shape = f".reshape({a.array.shape})" if a.array.shape else ""
            lines.append(f"    a{k} = tl.load({at}){shape}")
            calls.append(f"a{k}")
        else:
            calls.append(repr(a))
    calls += [f"{name}=constants_{name}" for name in constants]
    names = ", ".join(f"r{k}" for k in range(len(like)))
    lines.append(f"    {names} = f({', '.join(calls)})")
    for k, r in enumerate(like):
        n = r.array.size
        if r.array.shape:
            lines.append(f"    tl.store(o{k} + tl.arange(0, {n}), r{k}.reshape(({n},)))")
        else:
            lines.append(f"    tl.store(o{k}, r{k})")
    given = [f"x{k}" for k, a in enumerate(args) if isinstance(a, Tile)]
    outs = [f"o{k}" for k in range(len(like))]
    head = ", ".join((*given, *outs))
    kernel = _function(f"def kernel({head}):\n" + "\n".join(lines) + "\n", f, constants)
    types = dict(zip((*given, *outs), (*tiles, *like), strict=True))
    signature = {n: Argument.pointer(element(t.dtype)) for n, t in types.items()}
    inputs = [np.ascontiguousarray(to_bits(t.array, element(t.dtype))) for t in tiles]
    outputs = [np.zeros_like(to_bits(r.array, element(r.dtype))) for r in like]
    interpret(translate(kernel, signature), (1, 1, 1), [*inputs, *outputs])
    return [
        from_bits(o, element(r.dtype)).reshape(r.array.shape)
        for o, r in zip(outputs, like, strict=True)
    ]


def _function(source: str, f: Any, constants: dict[str, Any]) -> TileFunction:
    name = f"<kernel {next(_numbers)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    names = {f"constants_{k}": core.constexpr(v) for k, v in constants.items()}
    scope: dict[str, Any] = {"tl": core, "f": f, **names}
    exec(compile(source, name, "exec"), scope)
    return TileFunction(scope["kernel"])
