"""What random kernels are made of: each operation writes a statement, or nothing where no value
at hand fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.lang.tile.random_values import Shape, Value
from tests.lang.tile.random_writer import Writer


@dataclass(frozen=True)
class Operation:
    write: Callable[[Writer], None]
    weight: float
    nests: bool = False


OPERATIONS: dict[str, Operation] = {}


def operation(weight: float, nests: bool = False):
    def add(f: Callable[[Writer], None]) -> Callable[[Writer], None]:
        OPERATIONS[f.__name__] = Operation(f, weight, nests)
        return f

    return add


def write(w: Writer, count: int) -> None:
    """So many statements; those that find no operand are drawn again."""
    weights = [o.weight for o in OPERATIONS.values()]
    left, tries = count, 0
    while left > 0 and tries < 20 * count:
        tries += 1
        (chosen,) = w.rng.choices(list(OPERATIONS.values()), weights)
        if chosen.nests and w.depth >= 2:
            continue
        before = len(w.body)
        chosen.write(w)
        left -= len(w.body) > before


def numeric(v: Value) -> bool:
    return not v.is_bool


def wide(v: Value) -> bool:
    return v.dtype in ("float32", "float64")


def fits(a: Shape, b: Shape) -> Shape | None:
    """The common shape of two tiles."""
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    if all(x == y or 1 in (x, y) for x, y in zip(a, b, strict=True)):
        return tuple(max(x, y) for x, y in zip(a, b, strict=True))
    return None


def pair(
    w: Writer, good: Callable[[Value], bool], special: bool = False
) -> tuple[Value, Value, Shape] | None:
    x = w.choose(good, special)
    if x is None:
        return None
    y = w.choose(lambda v: good(v) and fits(x.shape, v.shape) is not None, special)
    assert y is not None
    shape = fits(x.shape, y.shape)
    assert shape is not None
    return x, y, shape
