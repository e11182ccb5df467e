"""Sums and products of integers that do not fit, found while debugging.

Every addition, subtraction and multiplication of narrow integers is computed once more in 64 bits
and asserted to be in range. What is meant to wrap around says so (`sanitize_overflow=False`); the
library's own functions, whose hashes do, are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tilewright.ir.types import DType, b1, i64
from tilewright.lang.tile.builder import IRBuilder, OpenBlock
from tilewright.lang.tile.ir import Block, Kernel, Operation, Value, renumbered, walk

_OURS = Path(__file__).parents[3]
_CHECKED = ("add", "sub", "mul")
# Blocks that run as often as their operation; those of sums and scans only combine two numbers.
_WALKED = ("for", "if", "while")


def assert_no_overflow(kernel: Kernel) -> Kernel:
    """The kernel with the assertions."""
    builder = IRBuilder()
    defined = (v for o in walk(kernel.body) for v in (*o.results, *_parameters(o)))
    builder.count = 1 + max((v.number for v in (*kernel.arguments, *defined)), default=-1)
    builder.blocks = [_checked(builder, kernel.body)]
    made = builder.kernel(kernel.name, kernel.arguments, kernel.divisors, kernel.positive)
    return renumbered(made)


def _parameters(o: Operation) -> Iterator[Value]:
    for b in o.blocks:
        yield from b.parameters


def _checked(builder: IRBuilder, b: Block) -> OpenBlock:
    made = builder.opened()
    made.parameters += b.parameters
    made.yields += b.yields
    with builder.inside(made):
        for o in b.operations:
            if o.name in _WALKED:
                o = replace(o, blocks=tuple(_checked(builder, x).done() for x in o.blocks))
            made.operations.append(o)
            if _is_checked(o):
                _assert(builder, o)
    return made


def _is_checked(o: Operation) -> bool:
    if o.name != "map" or o.attrs["fn"] not in _CHECKED or o.attrs.get("wraps"):
        return False
    e = o.result.element
    if not isinstance(e, DType) or not e.is_int or e.bits >= 64:
        return False
    return o.place is None or _OURS not in Path(o.place.file).parents


def _assert(builder: IRBuilder, o: Operation) -> None:
    e, wide = o.result.type.dtype, o.result.type.with_element(i64)
    truth = wide.with_element(b1)
    builder.place = o.place

    def emit(name: str, args: tuple[Value, ...], type=wide, **attrs) -> Value:
        return builder.emit(name, args, (type,), attrs)[0]

    args = tuple(emit("cast", (a,), rounding="rtne") for a in o.args)
    exact = emit("map", args, fn=o.attrs["fn"])
    low = emit("map", (exact, emit("const", (), value=e.lowest)), truth, fn="ge")
    high = emit("map", (exact, emit("const", (), value=e.highest)), truth, fn="le")
    both = emit("map", (low, high), truth, fn="and")
    message = f"int{e.bits} overflow detected for operation {o.attrs['fn']}"
    builder.emit("assert", (both,), (), {"message": message})
