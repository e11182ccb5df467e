"""What LLVM calls on 32-bit Arm for integers of 64 bits, as LLVM text.

Names and registers are those of Arm's run-time ABI: these functions take and return floats in
integer registers, whatever others do. A compiler's own library has them too, which a package of
code need not find on every system.
"""

from __future__ import annotations

_UNSIGNED = """
define hidden arm_aapcscc { i64, i64 } @__aeabi_uldivmod(i64 %n, i64 %d) nounwind {
entry:
  %either = or i64 %n, %d
  %small = icmp ult i64 %either, 4294967296
  br i1 %small, label %short, label %look
short:
  %n.32 = trunc i64 %n to i32
  %d.32 = trunc i64 %d to i32
  %none = icmp eq i32 %d.32, 0
  br i1 %none, label %end, label %divide
divide:
  %q.32 = udiv i32 %n.32, %d.32
  %back.32 = mul i32 %q.32, %d.32
  %r.32 = sub i32 %n.32, %back.32
  %q.short = zext i32 %q.32 to i64
  %r.short = zext i32 %r.32 to i64
  br label %end
look:
  %less = icmp ult i64 %n, %d
  %by.none = icmp eq i64 %d, 0
  %over = or i1 %less, %by.none
  br i1 %over, label %end, label %long
long:
  ; The divisor's highest bit under the number's, then one bit of the quotient after the other.
  %zeros.n = call i64 @llvm.ctlz.i64(i64 %n, i1 false)
  %zeros.d = call i64 @llvm.ctlz.i64(i64 %d, i1 false)
  %first = sub i64 %zeros.d, %zeros.n
  br label %bit
bit:
  %k = phi i64 [ %first, %long ], [ %k.next, %bit ]
  %rest = phi i64 [ %n, %long ], [ %rest.next, %bit ]
  %q = phi i64 [ 0, %long ], [ %q.next, %bit ]
  %part = shl i64 %d, %k
  %fits = icmp uge i64 %rest, %part
  %taken = sub i64 %rest, %part
  %rest.next = select i1 %fits, i64 %taken, i64 %rest
  %one = zext i1 %fits to i64
  %twice = shl i64 %q, 1
  %q.next = or i64 %twice, %one
  %k.next = sub i64 %k, 1
  %more = icmp sge i64 %k.next, 0
  br i1 %more, label %bit, label %end
end:
  %q.end = phi i64 [ 0, %short ], [ %q.short, %divide ], [ 0, %look ], [ %q.next, %bit ]
  %r.end = phi i64 [ %n, %short ], [ %r.short, %divide ], [ %n, %look ], [ %rest.next, %bit ]
  %half = insertvalue { i64, i64 } poison, i64 %q.end, 0
  %both = insertvalue { i64, i64 } %half, i64 %r.end, 1
  ret { i64, i64 } %both
}
"""

_SIGNED = """
define hidden arm_aapcscc { i64, i64 } @__aeabi_ldivmod(i64 %n, i64 %d) nounwind {
  %n.sign = ashr i64 %n, 63
  %d.sign = ashr i64 %d, 63
  %n.flip = xor i64 %n, %n.sign
  %n.size = sub i64 %n.flip, %n.sign
  %d.flip = xor i64 %d, %d.sign
  %d.size = sub i64 %d.flip, %d.sign
  %found = call arm_aapcscc { i64, i64 } @__aeabi_uldivmod(i64 %n.size, i64 %d.size)
  %q.size = extractvalue { i64, i64 } %found, 0
  %r.size = extractvalue { i64, i64 } %found, 1
  %q.sign = xor i64 %n.sign, %d.sign
  %q.flip = xor i64 %q.size, %q.sign
  %q = sub i64 %q.flip, %q.sign
  %r.flip = xor i64 %r.size, %n.sign
  %r = sub i64 %r.flip, %n.sign
  %half = insertvalue { i64, i64 } poison, i64 %q, 0
  %both = insertvalue { i64, i64 } %half, i64 %r, 1
  ret { i64, i64 } %both
}
"""


def _halves(x: str) -> str:
    """%upper, exact, and %lower: the halves of an integer as doubles; %sum, rounded."""
    return f"""\
  %high.64 = lshr i64 {x}, 32
  %high = trunc i64 %high.64 to i32
  %low = trunc i64 {x} to i32
  %high.double = uitofp i32 %high to double
  %upper = fmul double %high.double, 0x41F0000000000000
  %lower = uitofp i32 %low to double
  %sum = fadd double %upper, %lower"""


# A double whose last bit is set where the sum was not exact: rounding it to float is right then.
_ODD = """\
  %back = fsub double %sum, %upper
  %error = fsub double %lower, %back
  %bits = bitcast double %sum to i64
  %exact = fcmp oeq double %error, 0.0
  %low.bit = and i64 %bits, 1
  %is.odd = icmp ne i64 %low.bit, 0
  %keep = or i1 %exact, %is.odd
  %too.large = fcmp olt double %error, 0.0
  %step = select i1 %too.large, i64 -1, i64 1
  %moved = add i64 %bits, %step
  %odd.bits = select i1 %keep, i64 %bits, i64 %moved
  %odd = bitcast i64 %odd.bits to double
  %size = fptrunc double %odd to float"""

_SIZE = """\
  %sign = ashr i64 %x, 63
  %flip = xor i64 %x, %sign
  %n = sub i64 %flip, %sign"""

_SIGN = """\
  %negative = icmp slt i64 %x, 0
  %minus = fneg {t} {size}
  %r = select i1 %negative, {t} %minus, {t} {size}
  ret {t} %r"""


def _to_float(name: str, t: str, signed: bool) -> str:
    lines = [f"define hidden arm_aapcscc {t} @{name}(i64 %x) nounwind {{"]
    lines += [_SIZE, _halves("%n")] if signed else [_halves("%x")]
    size = "%sum"
    if t == "float":
        lines.append(_ODD)
        size = "%size"
    lines.append(_SIGN.format(t=t, size=size) if signed else f"  ret {t} {size}")
    return "\n".join([*lines, "}"]) + "\n"


def _to_integer(name: str, t: str, signed: bool) -> str:
    """Cut toward zero. A double of either sign is its halves, each of which is exact."""
    wide = "  %d = fpext float %f to double" if t == "float" else "  %d = fadd double %f, -0.0"
    lines = [f"define hidden arm_aapcscc i64 @{name}({t} %f) nounwind {{", wide]
    lines += [
        "  %below = fcmp olt double %d, 0.0",
        "  %opposite = fneg double %d",
        "  %size = select i1 %below, double %opposite, double %d",
        "  %scaled = fmul double %size, 0x3DF0000000000000",
        "  %high = call i32 @llvm.fptoui.sat.i32.f64(double %scaled)",
        "  %high.double = uitofp i32 %high to double",
        "  %upper = fmul double %high.double, 0x41F0000000000000",
        "  %rest = fsub double %size, %upper",
        "  %low = call i32 @llvm.fptoui.sat.i32.f64(double %rest)",
        "  %high.64 = zext i32 %high to i64",
        "  %low.64 = zext i32 %low to i64",
        "  %shifted = shl i64 %high.64, 32",
        "  %n = or i64 %shifted, %low.64",
    ]
    if signed:
        lines += [
            "  %negative = sub i64 0, %n",
            "  %r = select i1 %below, i64 %negative, i64 %n",
            "  ret i64 %r",
        ]
    else:
        lines.append("  ret i64 %n")
    return "\n".join([*lines, "}"]) + "\n"


SUPPORT = "\n".join(
    [
        _UNSIGNED,
        _SIGNED,
        _to_float("__aeabi_l2f", "float", signed=True),
        _to_float("__aeabi_ul2f", "float", signed=False),
        _to_float("__aeabi_l2d", "double", signed=True),
        _to_float("__aeabi_ul2d", "double", signed=False),
        _to_integer("__aeabi_f2lz", "float", signed=True),
        _to_integer("__aeabi_f2ulz", "float", signed=False),
        _to_integer("__aeabi_d2lz", "double", signed=True),
        _to_integer("__aeabi_d2ulz", "double", signed=False),
        "declare i64 @llvm.ctlz.i64(i64, i1)",
        "declare i32 @llvm.fptoui.sat.i32.f64(double)",
    ]
)
