"""Sums and products of integers that do not fit, found while debugging.

Every addition, subtraction and multiplication of narrow integers is computed once more in 64 bits
and asserted to be in range. What is meant to wrap around says so (`sanitize_overflow=False`); the
library's own functions, whose hashes do, are left alone.
"""

from __future__ import annotations

from pathlib import Path

from tilewright.ir.types import DType, b1, i64
from tilewright.lang.tile.ir import Block, Kernel, Operation, Value, operation

_OURS = Path(__file__).parents[3]
_CHECKED = ("add", "sub", "mul")
# Blocks that run as often as their operation; those of sums and scans only combine two numbers.
_WALKED = ("for", "if", "while")


def assert_no_overflow(kernel: Kernel) -> None:
    """Adds the assertions, in place."""
    _block(kernel.body)


def _block(b: Block) -> None:
    made: list[Operation] = []
    for o in b.operations:
        if o.name in _WALKED:
            for inner in o.blocks:
                _block(inner)
        made.append(o)
        if _is_checked(o):
            made += _assertion(o)
    b.operations[:] = made


def _is_checked(o: Operation) -> bool:
    if o.name != "map" or o.attrs["fn"] not in _CHECKED or o.attrs.get("wraps"):
        return False
    e = o.result.element
    if not isinstance(e, DType) or not e.is_int or e.bits >= 64:
        return False
    return o.place is None or _OURS not in Path(o.place.file).parents


def _assertion(o: Operation) -> list[Operation]:
    e, wide = o.result.type.dtype, o.result.type.with_element(i64)
    truth = wide.with_element(b1)
    out: list[Operation] = []

    def emit(name: str, args: tuple[Value, ...], type=wide, **attrs) -> Value:
        out.append(operation(name, args, (type,), attrs, (), o.place))
        return out[-1].result

    args = tuple(emit("cast", (a,), rounding="rtne") for a in o.args)
    exact = emit("map", args, fn=o.attrs["fn"])
    low = emit("map", (exact, emit("const", (), value=e.lowest)), truth, fn="ge")
    high = emit("map", (exact, emit("const", (), value=e.highest)), truth, fn="le")
    both = emit("map", (low, high), truth, fn="and")
    message = f"int{e.bits} overflow detected for operation {o.attrs['fn']}"
    out.append(operation("assert", (both,), (), {"message": message}, (), o.place))
    return out
