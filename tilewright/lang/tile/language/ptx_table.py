"""What instructions of PTX compute, in operations of the language: a function for each name.

Modifiers that would change a result and are not supported are refused with the instruction's text.
`.approx` is a bound on an error that functions here stay below.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.lang.tile.language import semantic
from tilewright.lang.tile.language.elementwise import maximum, minimum, where
from tilewright.lang.tile.language.ptx_conversions import converted
from tilewright.lang.tile.language.ptx_machine import (
    PACKED,
    SIGNED,
    TYPES,
    UNSIGNED,
    Step,
    as_bits,
    bits,
    finished,
    flushed,
    function,
    numbers,
    packed,
)
from tilewright.lang.tile.language.ptx_text import number_of
from tilewright.lang.tile.language.semantic import PropagateNan
from tilewright.lang.tile.language.tensor import operand, tensor, value, wrap
from tilewright.lang.tile.language.types import (
    dtype,
    float32,
    float64,
    int1,
    uint8,
    uint32,
    uint64,
)

# ---- floats


def computed(to: dtype, wide: dtype, compute: Callable[..., tensor], *given: tensor) -> tensor:
    """Narrow floats are computed in a wider type and rounded once."""
    if to.primitive_bitwidth >= wide.primitive_bitwidth:
        return compute(*given)
    return compute(*(x.to(wide) for x in given)).to(to)


def arithmetic(
    compute: Callable[..., tensor],
    n: int,
    wide: dtype = float32,
    apart: Callable[..., tensor] | None = None,
):
    """Sums, products, quotients: of integers as they wrap, of floats rounded to nearest.

    A product and a sum may be rounded once, together, unless one of them says `.rn`: `apart` is
    how it is computed then.
    """

    def make(s: Step) -> None:
        known = s.allow("rn", "ftz", "sat", "approx", "full", "lo", "wide", "hi")
        integer = not is_float(s.kind())
        if integer and known - {"lo", "wide", "hi"}:
            raise s.refusal()
        if integer and known & {"hi", "wide"}:
            wide_product(s, n, known)
            return

        def each(*given: tensor) -> tensor:
            if integer:
                return compute(*given).to(given[0].dtype)
            given = tuple(flushed(x, known) for x in given)
            how = apart if apart is not None and "rn" in known else compute
            return finished(computed(given[0].dtype, wide, how, *given), known)

        s.each(n, each)

    return make


def wide_product(s: Step, n: int, modifiers: set[str]) -> None:
    """mul and mad with .hi or .wide."""
    to = TYPES[s.kind()]
    width = to.primitive_bitwidth
    table = SIGNED if to in SIGNED.values() else UNSIGNED
    if width == 64 and "wide" not in modifiers:
        if table is SIGNED:
            raise s.refusal("multiplies signed numbers of 64 bits")
        a, b = (s.machine.read(x, to) for x in s.operands(n)[:2])
        found = wrap(semantic.umulhi(value(a), value(b)))
    else:
        double = table[2 * width]
        a, b = (s.machine.read(x, to).to(double) for x in s.operands(n)[:2])
        found = a * b if "wide" in modifiers else ((a * b) >> width).to(to)
    if n == 3:
        found = found + s.machine.read(s.operands(3)[2], found.dtype)
    s.result(found)


def is_float(kind: str) -> bool:
    to = PACKED[kind][0] if kind in PACKED else TYPES[kind]
    return isinstance(to, str) or to.is_floating()


def divide(s: Step) -> None:
    if is_float(s.kind()):
        arithmetic(lambda a, b: a / b, 2)(s)
    else:
        s.allow()
        s.each(2, lambda a, b: a // b)


def elementary(name: str) -> Callable[[Step], None]:
    def make(s: Step) -> None:
        known = s.allow("approx", "rn", "ftz")
        s.each(1, lambda a: finished(function(name, flushed(a, known)), known))

    return make


def reciprocal(s: Step) -> None:
    known = s.allow("approx", "rn", "ftz")
    s.each(1, lambda a: finished(computed(a.dtype, float32, lambda x: 1.0 / x, a), known))


def extreme(choose: Callable[..., tensor]) -> Callable[[Step], None]:
    def make(s: Step) -> None:
        known = s.allow("ftz", "NaN", "xorsign", "abs")
        nan = PropagateNan.ALL if "NaN" in known else PropagateNan.NONE

        def each(a: tensor, b: tensor) -> tensor:
            if not a.dtype.is_floating():
                return choose(a, b)
            sign = as_bits(a) ^ as_bits(b)
            if "abs" in known:
                a, b = (wrap(semantic.absolute(value(x))) for x in (a, b))
            found = computed(a.dtype, float32, lambda x, y: choose(x, y, nan), a, b)
            if "xorsign" in known:
                top = 1 << (bits(a) - 1)
                kept = (as_bits(found) & (top - 1)) | (sign & top)
                found = kept.to(a.dtype, bitcast=True)
            return finished(found, known)

        s.each(2, each)

    return make


def negate(s: Step) -> None:
    s.allow("ftz")
    top = {16: 1 << 15, 32: 1 << 31, 64: 1 << 63}

    def each(a: tensor) -> tensor:
        if not a.dtype.is_floating():
            return (0 - a).to(a.dtype)
        return (as_bits(a) ^ top[bits(a)]).to(a.dtype, bitcast=True)

    s.each(1, each)


def absolute(s: Step) -> None:
    s.allow("ftz")

    def each(a: tensor) -> tensor:
        if not a.dtype.is_floating():
            return where(a < 0, 0 - a, a).to(a.dtype)
        return (as_bits(a) & ((1 << (bits(a) - 1)) - 1)).to(a.dtype, bitcast=True)

    s.each(1, each)


def copysign(s: Step) -> None:
    """The sign of the first operand, the rest of the second."""

    def each(a: tensor, b: tensor) -> tensor:
        top = 1 << (bits(a) - 1)
        found = (as_bits(a) & top) | (as_bits(b) & (top - 1))
        return found.to(a.dtype, bitcast=True)

    s.allow()
    s.each(2, each)


# ---- bits


def logic(compute: Callable[..., tensor], n: int) -> Callable[[Step], None]:
    def make(s: Step) -> None:
        s.allow()
        s.each(n, lambda *given: compute(*given))

    return make


def shifted(left: bool) -> Callable[[Step], None]:
    """Shifts by more than there are bits leave nothing, or the sign."""

    def make(s: Step) -> None:
        s.allow()
        to = TYPES[s.kind()]
        width = to.primitive_bitwidth
        given, by = s.operands(2)
        a, n = s.machine.read(given, to), s.machine.read(by, uint32)
        least = minimum(n, width - 1).to(to)
        found = a << least if left else a >> least
        if left or to not in SIGNED.values():
            found = where(n < width, found, 0).to(to)
        s.result(found)

    return make


def funnel(s: Step) -> None:
    """shf: 32 bits of two registers, the second above the first."""
    known = s.allow("l", "r", "wrap", "clamp")
    low, high, by = s.operands(3)
    whole = packed([s.machine.read(low, uint32), s.machine.read(high, uint32)])
    n = s.machine.read(by, uint32)
    n = n & 31 if "wrap" in known else minimum(n, 32)
    wide = n.to(uint64)
    s.result(((whole << wide) >> 32 if "l" in known else whole >> wide).to(uint32))


def extracted(s: Step) -> None:
    """bfe: a field of bits, by its position and length."""
    s.allow()
    to = TYPES[s.kind()]
    a, position, length = (
        s.machine.read(x, to if k == 0 else uint32) for k, x in enumerate(s.operands(3))
    )
    width = to.primitive_bitwidth
    position, length = position & 255, length & 255
    signed = to in SIGNED.values()
    # The field at the top, so that shifting it down says what stands above it.
    end = minimum(position + length, width)
    kept = where(end > position, end - position, 0).to(uint32)
    up = minimum(width - end, width - 1).to(to)
    down = minimum(width - kept, width - 1).to(to)
    field = (a << up) >> down
    if signed:
        field = where(position < width, field, where(a < 0, -1, 0).to(to))
    s.result(where((kept > 0) | (signed & (length > 0)), field, 0).to(to))


def inserted(s: Step) -> None:
    """bfi: a field of the first operand put into the second."""
    s.allow()
    to = TYPES[s.kind()]
    source, target, at, of = s.operands(4)
    a, b = s.machine.read(source, to), s.machine.read(target, to)
    position, length = (s.machine.read(x, uint32) & 255 for x in (at, of))
    width = to.primitive_bitwidth
    one = s.machine.constant(1, uint64)
    ones = where(length < 64, (one << minimum(length, 63).to(uint64)) - 1, 2**64 - 1)
    mask = where(position < width, ones.to(uint64) << minimum(position, 63).to(uint64), 0)
    mask = mask.to(uint64).to(to)
    moved = (a << minimum(position, width - 1).to(to)) & mask
    s.result(moved | (b & ~mask))


def permuted(s: Step) -> None:
    """prmt: four bytes of eight, chosen by four digits of the last operand."""
    if s.modifiers:
        raise s.refusal()
    low, high, choice = s.operands(3)
    whole = packed([s.machine.read(low, uint32), s.machine.read(high, uint32)])
    digits = s.machine.read(choice, uint32)
    found: list[tensor] = []
    for k in range(4):
        digit = (digits >> (4 * k)) & 15
        byte = (whole >> ((digit & 7) * 8).to(uint64)).to(uint8)
        sign = where((byte & 128) != 0, 255, 0).to(uint8)
        found.append(where((digit & 8) != 0, sign, byte))
    s.result(packed(found))


def looked_up(s: Step) -> None:
    """lop3: any function of three bits, by its table of truth."""
    s.allow()
    *given, table = s.operands(4)
    truth = number_of(table)
    if not isinstance(truth, int):
        raise s.refusal("has a table that is no number")
    a, b, c = (s.machine.read(x, uint32) for x in given)
    found = s.machine.constant(0, uint32)
    for k in range(8):
        if truth >> k & 1:
            x, y, z = (v if k >> n & 1 else ~v for v, n in ((a, 2), (b, 1), (c, 0)))
            found = found | (x & y & z)
    s.result(found)


def ones_in(x: tensor) -> tensor:
    """How many bits are set."""
    wide = x.to(uint64)
    wide = wide - ((wide >> 1) & 0x5555555555555555)
    wide = (wide & 0x3333333333333333) + ((wide >> 2) & 0x3333333333333333)
    wide = (wide + (wide >> 4)) & 0x0F0F0F0F0F0F0F0F
    for shift in (8, 16, 32):
        wide = wide + (wide >> shift)
    return (wide & 127).to(uint32)


def counted(leading: bool) -> Callable[[Step], None]:
    def make(s: Step) -> None:
        s.allow()
        (x,) = (s.machine.read(n, TYPES[s.kind()]) for n in s.operands(1))
        width = bits(x)
        if leading:
            for shift in (1, 2, 4, 8, 16, 32):
                if shift < width:
                    x = x | (x >> shift)
            s.result(width - ones_in(x))
        else:
            s.result(ones_in(x))

    return make


def reversed_bits(s: Step) -> None:
    s.allow()

    def each(x: tensor) -> tensor:
        mask, shift = (1 << bits(x)) - 1, bits(x) // 2
        keep = mask
        while shift:
            keep ^= (keep << shift) & mask
            x = ((x >> shift) & keep) | ((x & keep) << shift)
            shift //= 2
        return x

    s.each(1, each)


# ---- choice and comparison

COMPARE: dict[str, Callable[[tensor, tensor], tensor]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lo": lambda a, b: a < b,
    "ls": lambda a, b: a <= b,
    "hi": lambda a, b: a > b,
    "hs": lambda a, b: a >= b,
}


def compared(s: Step, a: tensor, b: tensor) -> tensor:
    """As its first modifier says; with a u before it, also where one is no number."""
    name = s.instruction.parts[0]
    no_number = (a != a) | (b != b) if a.dtype.is_floating() else None
    if name in ("num", "nan") and no_number is not None:
        return ~no_number if name == "num" else no_number
    if name in COMPARE:
        found = COMPARE[name](a, b)
        # ne of what is no number does not hold, and neu does: the other way round than in Python.
        return found & ~no_number if name == "ne" and no_number is not None else found
    if name.endswith("u") and name[:-1] in COMPARE and no_number is not None:
        return COMPARE[name[:-1]](a, b) | no_number
    raise s.refusal(f"compares by .{name}, which is unknown")


def set_predicate(s: Step) -> None:
    s.allow(s.instruction.parts[0], "ftz", "and", "or", "xor")
    target, a, b, *more = s.instruction.operands
    kind = s.kind()
    names = [n.strip() for n in target.split("|")]
    if kind in PACKED:
        found = [
            compared(s, x, y)
            for x, y in zip(numbers(s.machine, a, kind), numbers(s.machine, b, kind), strict=True)
        ]
    else:
        x, y = (s.machine.read(n, TYPES[kind]) for n in (a, b))
        found = [compared(s, x, y)]
        found += [~found[0]] if len(names) == 2 else []
    if more:
        other = s.machine.read(more[0], int1)
        join_by = {
            "and": lambda p: p & other,
            "or": lambda p: p | other,
            "xor": lambda p: p ^ other,
        }
        how = next((join_by[m] for m in s.modifiers if m in join_by), None)
        if how is None:
            raise s.refusal()
        found = [how(p) for p in found]
    for n, p in zip(names, found, strict=True):
        s.machine.write(n, p, s.guard)


def chosen(s: Step) -> None:
    """selp: the first where a predicate holds, else the second."""
    s.allow()
    a, b, p = s.operands(3)
    to = TYPES[s.kind()]
    condition = s.machine.read(p, int1)
    s.result(where(condition, s.machine.read(a, to), s.machine.read(b, to)))


def moved(s: Step) -> None:
    s.allow()
    (source,) = s.operands(1)
    kind = s.kind()
    s.result(s.machine.read(source, TYPES.get(kind, uint32)))


def waits(s: Step) -> None:
    """It changes no result."""


def fused(a: tensor, b: tensor | float, c: tensor | float) -> tensor:
    return wrap(semantic.fma(value(a), operand(b), operand(c)))


TABLE: dict[str, Callable[[Step], None]] = {
    # No operation around a fused one is joined with it: a * 1 + b is a sum, a * b - 0 a product.
    "add": arithmetic(lambda a, b: a + b, 2, apart=lambda a, b: fused(a, 1.0, b)),
    "sub": arithmetic(lambda a, b: a - b, 2, apart=lambda a, b: fused(a, 1.0, -b)),
    "mul": arithmetic(lambda a, b: a * b, 2, apart=lambda a, b: fused(a, b, -0.0)),
    "mad": arithmetic(lambda a, b, c: a * b + c, 3, float64),
    "fma": arithmetic(fused, 3, float64),
    "div": divide,
    "rem": logic(lambda a, b: a % b, 2),
    "min": extreme(minimum),
    "max": extreme(maximum),
    "neg": negate,
    "abs": absolute,
    "copysign": copysign,
    "tanh": elementary("tanh"),
    "sin": elementary("sin"),
    "cos": elementary("cos"),
    "ex2": elementary("exp2"),
    "lg2": elementary("log2"),
    "sqrt": elementary("sqrt"),
    "rsqrt": elementary("rsqrt"),
    "rcp": reciprocal,
    "and": logic(lambda a, b: a & b, 2),
    "or": logic(lambda a, b: a | b, 2),
    "xor": logic(lambda a, b: a ^ b, 2),
    "not": logic(lambda a: ~a, 1),
    "cnot": logic(lambda a: where(a == 0, 1, 0).to(a.dtype), 1),
    "shl": shifted(left=True),
    "shr": shifted(left=False),
    "shf": funnel,
    "bfe": extracted,
    "bfi": inserted,
    "prmt": permuted,
    "lop3": looked_up,
    "popc": counted(leading=False),
    "clz": counted(leading=True),
    "brev": reversed_bits,
    "setp": set_predicate,
    "selp": chosen,
    "mov": moved,
    "cvt": converted,
    "nanosleep": waits,
}
