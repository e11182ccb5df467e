"""Arguments of any size modulo pi/2, by multiplying with the bits of 2/pi that matter.

x = m * 2**(E-52) with an integer m < 2**53. In x * 2/pi, the bits of 2/pi above weight 2**(54-E)
contribute multiples of 4 quarter turns; of the 192 bits that follow, the product with m modulo
2**192 holds two bits of quarter turns and 190 of the fraction, of which truncation spoils the last
54 or so. No float64 comes closer to a multiple of pi/2 than about 2**-61, so a remainder correct to
far more than 53 bits is left. Integer limbs of 32 bits: every target multiplies those.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from itertools import pairwise

from tilewright.llvm.vmath.builder import NAN, Builder, Value, Values, where
from tilewright.llvm.vmath.double_word import fast_two_sum, split_constant, two_product

PI_HALVES = "1.570796326794896619231321691639751442098584699687552910487472296153908203"

_TABLE = "tw.two_over_pi"
_HELPER = "tw.reduce_by_half_pi"
_LEADING_ZEROS = 64  # in front of the bits, for arguments whose first bits all matter
_LIMBS = 6
_LAST_START = 1023 - 54 + _LEADING_ZEROS
_WORDS = _LAST_START // 32 + _LIMBS + 1


def _pi(digits: int) -> Decimal:
    """pi by Machin's formula."""
    with localcontext() as context:
        context.prec = digits + 10

        def arctan_of_inverse(n: int) -> Decimal:
            total, power, k = Decimal(0), Decimal(1) / n, 0
            while abs(power) > Decimal(10) ** -(digits + 8):
                total += power / (2 * k + 1)
                power, k = -power / (n * n), k + 1
            return total

        return 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))


def _table() -> str:
    bits = 32 * _WORDS - _LEADING_ZEROS
    with localcontext() as context:
        context.prec = 420  # digits: more than the bits need
        integer = int(Decimal(2) ** (bits + 1) / _pi(400))
    words = [(integer >> 32 * k) & 0xFFFFFFFF for k in reversed(range(_WORDS))]
    listed = ", ".join(f"i32 {w}" for w in words)
    return f"@{_TABLE} = internal unnamed_addr constant [{_WORDS} x i32] [{listed}], align 4"


def _limbs(b: Builder, start: Value) -> list[Value]:
    """192 bits of the table from bit `start` on, least significant limb first."""
    first, within = start >> 5, start & 31
    words: list[Value] = []
    for k in range(_LIMBS + 1):
        address = b.name()
        index = first + k
        b.line(
            f"{address} = getelementptr inbounds [{_WORDS} x i32], ptr @{_TABLE}, "
            f"i64 0, i64 {index.text}"
        )
        word = b.emit(f"load i32, ptr {address}, align 4", "i32")
        words.append(b.cast("zext", word, "i64"))
    return [(((high << 32) | low) << within) >> 32 for high, low in pairwise(words)][::-1]


def _product(m: Value, limbs: list[Value]) -> list[Value]:
    """The low limbs of m times the number the limbs spell."""
    low, high, mask = m & 0xFFFFFFFF, m >> 32, 0xFFFFFFFF
    result: list[Value] = []
    carry = m.like(0)
    for limb in limbs:
        total = low * limb + carry
        result.append(total & mask)
        carry = total >> 32
    carry = m.like(0)
    for k, limb in enumerate(limbs[:-1], 1):
        total = high * limb + result[k] + carry
        result[k] = total & mask
        carry = total >> 32
    return result


def _funnel(high: Value, low: Value, shift: Value) -> Value:
    """The upper word of high:low shifted left."""
    return high.builder.intrinsic("fshl", high, low, shift)


def _reduce(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """(turns, high, low) of one float64 >= 2**10."""
    bits = x.bits()
    biased = (bits >> 52) & 2047
    start = biased - (1023 + 54 - _LEADING_ZEROS)
    # Small and infinite arguments give nonsense, but must not read outside the table.
    start = where(start < 0, 0, where(start > _LAST_START, _LAST_START, start))
    limbs = _product((bits & ((1 << 52) - 1)) | (1 << 52), _limbs(b, start))
    words = [(limbs[k + 1] << 32) | limbs[k] for k in (4, 2, 0)]
    turns = words[0] >> 62
    first = (words[0] << 2) | (words[1] >> 62)
    second = (words[1] << 2) | (words[2] >> 62)
    third = words[2] << 2
    # A fraction of a half or more counts as negative, from the next quarter turn.
    negative = first >> 63
    turns = turns + negative
    invert = 0 - negative
    first, second, third = first ^ invert, second ^ invert, third ^ invert
    zeros = b.emit(f"call i64 @llvm.ctlz.i64(i64 {first.text}, i1 false)", "i64")
    b.declarations.add("declare i64 @llvm.ctlz.i64(i64, i1 immarg)")
    first, second = _funnel(first, second, zeros), _funnel(second, third, zeros)
    scale = ((1023 - zeros) << 52).as_float()
    high = b.cast("sitofp", first >> 11, "double") * 2.0**-53 * scale
    rest = ((first & 2047) << 52) | (second >> 12)
    low = b.cast("sitofp", rest, "double") * 2.0**-116 * scale
    pi_high, pi_low = split_constant(PI_HALVES, high.format)
    product = two_product(high, high.like(pi_high))
    angle = fast_two_sum(product.high, product.low + (high * pi_low + low * pi_high))
    sign = negative << 63
    reduced = (angle.high.bits() ^ sign).as_float()
    reduced = where(biased.eq(2047), NAN, reduced)
    return turns, reduced, (angle.low.bits() ^ sign).as_float()


def helper(fma: bool) -> tuple[dict[str, str], set[str]]:
    """The table and the function that reduces an array in place, and what they declare."""
    b = Builder(1, fma)
    b.block("loop")
    b.line("%lane = phi i64 [ 0, %entry ], [ %next, %loop ]")
    places = {}
    for name in ("high", "low", "turns"):
        places[name] = f"%{name}.at"
        b.line(f"%{name}.at = getelementptr inbounds i64, ptr %{name}, i64 %lane")
    x = b.emit(f"load double, ptr {places['high']}, align 8", "double")
    turns, high, low = _reduce(b, x)
    b.line(f"store double {high.text}, ptr {places['high']}, align 8")
    b.line(f"store double {low.text}, ptr {places['low']}, align 8")
    b.line(f"store i64 {turns.text}, ptr {places['turns']}, align 8")
    b.line("%next = add i64 %lane, 1")
    b.line("%more = icmp ult i64 %next, %lanes")
    b.line("br i1 %more, label %loop, label %done")
    parameters = "ptr %high, ptr %low, ptr %turns, i64 %lanes"
    # Pointers only: vectors would be passed differently under different target features.
    head = f"define internal void @{_HELPER}({parameters}) noinline cold nounwind {{"
    text = "\n".join([head, "entry:", "  br label %loop", *b.lines, "done:", "  ret void", "}"])
    return {_TABLE: _table(), _HELPER: text}, b.declarations


def reduce_any(a: Value) -> Values:
    """(turns, high, low) of a >= 0 modulo pi/2, lane by lane; without low for float32."""
    b = a.builder
    helpers, declarations = helper(b.fma)
    b.helpers.update(helpers)
    b.declarations.update(declarations)
    single = a.format.elem == "f32"
    names = [b.stack_slot("i64") for _ in range(3)]
    wide = a.wide() if single else a
    # Aligned as elements: more would realign the stack of the caller.
    b.line(f"store {b.type('double')} {wide.text}, ptr {names[0]}, align 8")
    b.line(f"call void @{_HELPER}(ptr {names[0]}, ptr {names[1]}, ptr {names[2]}, i64 {b.lanes})")
    high, low = (b.emit(f"load {b.type('double')}, ptr {n}, align 8", "double") for n in names[:2])
    turns = b.emit(f"load {b.type('i64')}, ptr {names[2]}, align 8", "i64")
    if single:
        return b.cast("trunc", turns, "i32"), high.narrow()
    return turns, high, low
