"""What changes no result: hints to the compiler, printing and assertions; and functions that are
refused because they control the hardware of a GPU."""

from __future__ import annotations

import string
from typing import Any

from tilewright.base.errors import Invalid, Unsupported
from tilewright.lang.tile.builder import current
from tilewright.lang.tile.front.functions import function
from tilewright.lang.tile.ir import Pointer
from tilewright.lang.tile.language import promote, ptx, semantic
from tilewright.lang.tile.language.memory import atomic_cas
from tilewright.lang.tile.language.promote import described
from tilewright.lang.tile.language.tensor import builtin, member, operand, tensor, value, wrap
from tilewright.lang.tile.language.tensor import tuple as collection
from tilewright.lang.tile.language.types import constexpr, dtype_of, int64, unwrap


def _hinted(what: str, input: Any, values: Any) -> tensor:
    """The vector loads that these hints are for are found without them; they are checked only."""
    found = unwrap(values)
    items = [found] if isinstance(found, int) else [unwrap(v) for v in found]
    for v in items:
        if isinstance(v, bool) or not isinstance(v, int):
            raise Invalid(f"{what}: {v}", hint="constant integers, one for every axis")
    x = value(input)
    if len(items) != max(1, len(x.shape)):
        shown = f"{what} of {described(x)} with {len(items)} values"
        raise Invalid(shown, hint="one value for every axis")
    return input if isinstance(input, tensor) else wrap(x)


@builtin
def multiple_of(input: Any, values: Any) -> tensor:
    """A promise that elements are multiples of these numbers."""
    return _hinted("multiple_of", input, values)


@builtin
def max_contiguous(input: Any, values: Any) -> tensor:
    """A promise that so many elements follow each other."""
    return _hinted("max_contiguous", input, values)


@builtin
def max_constancy(input: Any, values: Any) -> tensor:
    """A promise that so many elements are the same."""
    return _hinted("max_constancy", input, values)


@builtin
def assume(cond: Any) -> None:
    """A promise that a condition holds."""
    operand(cond)


@builtin
def debug_barrier() -> None:
    """Does nothing: a program of this language is one thread of the CPU."""


@builtin
def static_print(
    *values: Any, sep: Any = " ", end: Any = "\n", file: Any = None, flush: Any = False
) -> None:
    """Prints while the kernel is compiled."""
    shown = [unwrap(v) for v in values]
    print(*shown, sep=unwrap(sep), end=unwrap(end), file=unwrap(file), flush=bool(unwrap(flush)))


@builtin
def static_assert(cond: Any, msg: Any = "") -> None:
    """An error while the kernel is compiled unless a constant condition holds."""
    holds = unwrap(cond)
    if isinstance(holds, tensor):
        hint = "tl.device_assert checks tensors when the kernel runs"
        shown = described(holds.handle)
        raise Invalid(f"static_assert of {shown}, which is no constant", hint=hint)
    if not holds:
        text = unwrap(msg)
        raise Invalid(f"static_assert does not hold{': ' + str(text) if text else ''}")


@builtin
def device_print(prefix: Any, *args: Any, hex: Any = False) -> None:
    """Prints elements when the kernel runs, one a line."""
    text = unwrap(prefix)
    if not isinstance(text, str):
        hint = 'the first argument is a text: tl.device_print("x", x)'
        shown = described(text.handle) if isinstance(text, tensor) else text
        raise Invalid(f"device_print: {shown}", hint=hint)
    if any(c not in string.printable for c in text):
        raise Invalid(f"device_print: {text!r}", hint="the text is plain ASCII")
    if args and text.strip() and text.rstrip()[-1] not in ":=":
        text = f"{text.rstrip()}: "  # as Triton writes it: the name, then the number
    attrs = {"prefix": text, "hex": bool(unwrap(hex))}
    current().emit("print", [value(a) for a in args], (), attrs)


@builtin
def device_assert(cond: Any, msg: Any = "", mask: Any = None) -> None:
    """An error, with the place, when the kernel runs and the condition does not hold (where the
    mask does). Kernels compiled without `debug` leave it out."""
    found = operand(cond)
    holds = semantic.truth(found)
    if not getattr(current(), "debug", True):
        return
    if unwrap(mask) is not None:
        masked_off = semantic.logical_not(operand(mask))
        holds = semantic.logical_or(holds, masked_off)
    current().emit("assert", (holds,), (), {"message": str(unwrap(msg))})


@builtin
def expect_zero(x: Any, mask: Any) -> Any:
    """Says that x is zero where the mask holds; debugging kernels check it."""
    if getattr(current(), "debug", False):
        zero = semantic.compare("eq", value(x), 0)
        device_assert(wrap(zero), "expect_zero: x is not zero where the mask holds", mask)
    return x


@member
@builtin
def atomic_poll(
    pointer: Any,
    expected_value: Any,
    sem: Any = None,
    scope: Any = None,
    timeout_ns: Any = None,
) -> tensor:
    """Waits until memory has a value, for about `timeout_ns` if that is given; returns whether it
    came. Without a limit it is an error when no program is left that could write it."""
    order = unwrap(sem) or "acquire"
    if order not in ("acquire", "relaxed"):
        raise Invalid(f"atomic_poll: sem={order!r}", hint='"acquire" or "relaxed"')
    p = value(pointer)
    if p.shape:
        raise Invalid(f"atomic_poll of {described(p)}", hint="it is for a single pointer")
    if isinstance(p.element, Pointer) and not p.element.to.is_int:
        raise Invalid(f"atomic_poll of {described(p)}", hint="it waits for integers")
    assert isinstance(p.element, Pointer)
    wanted = wrap(promote.cast(value(expected_value), dtype_of(p.element.to)))
    limit = unwrap(timeout_ns)
    if limit is None:
        return _awaited(pointer, wanted, order, unwrap(scope))
    looks = _TURNS if current().eager else wrap(value(limit)) // _LOOK_NS
    looks = wrap(promote.cast(value(looks), int64))
    return _awaited_for(pointer, wanted, looks, order, unwrap(scope))


_LOOK_NS = 8  # the least time that one poll of memory takes
_TURNS = 150  # polls when run step by step, where there is no time: enough for others to run


@function
def _awaited(pointer, wanted, SEM: constexpr, SCOPE: constexpr):
    # Replaces the wanted value by itself: a read of memory in the order of atomics.
    while atomic_cas(pointer, wanted, wanted, sem=SEM, scope=SCOPE) != wanted:
        pass
    return wanted == wanted


@function
def _awaited_for(pointer, wanted, looks, SEM: constexpr, SCOPE: constexpr):
    seen = atomic_cas(pointer, wanted, wanted, sem=SEM, scope=SCOPE)
    while (seen != wanted) & (looks > 0):
        seen = atomic_cas(pointer, wanted, wanted, sem=SEM, scope=SCOPE)
        looks -= 1
    return seen == wanted


@builtin
def inline_asm_elementwise(
    asm: Any, constraints: Any, args: Any, dtype: Any, is_pure: Any, pack: Any
) -> Any:
    """Assembly for a GPU, element by element: the instructions of PTX that `ptx.py` knows are
    operations of the language here. `dtype` may be several, for as many results."""
    kinds = unwrap(dtype)
    several = isinstance(kinds, (list, tuple, collection))
    wanted = [unwrap(t) for t in kinds] if several else [kinds]
    given = [a if isinstance(a, tensor) else wrap(value(a)) for a in unwrap(args)]
    found = ptx.run(unwrap(asm), unwrap(constraints), given, wanted, unwrap(pack))
    return collection(found) if several else found[0]


@builtin
def extern_elementwise(
    lib_name: Any, lib_path: Any, args: Any, arg_type_symbol_dict: Any, is_pure: Any
) -> Any:
    raise Unsupported(
        f"extern_elementwise: {unwrap(lib_name)} is a library for a GPU",
        hint="tl.extra.libdevice has its functions for the CPU",
    )
