"""Formulas to LLVM text: values with overloaded operators that append instructions.

A `Value` is a vector (or, with one lane, a scalar) named in the function being built. Arithmetic
follows the element type; a Python number takes the type of the value it meets. Everything chosen
here is cheap on plain SSE2 too: no vector conversions between i64 and float64, no arithmetic shift
of i64, no rounding instructions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Values = tuple["Value", ...]


@dataclass(frozen=True)
class Format:
    """A binary floating-point format and the constants that bit tricks need."""

    elem: str
    llvm: str
    integer: str
    digits: int  # of the significand, the hidden one included
    bias: int

    @property
    def mantissa(self) -> int:
        """Stored bits of the significand."""
        return self.digits - 1

    @property
    def magic(self) -> float:
        """Adding it rounds to an integer, which then stands in the low bits."""
        return 1.5 * 2.0**self.mantissa

    @property
    def min_normal(self) -> float:
        return 2.0 ** (1 - self.bias)

    @property
    def one_bits(self) -> int:
        return self.bias << self.mantissa

    @property
    def sign_bit(self) -> int:
        return 1 << (32 if self.elem == "f32" else 64) - 1

    def round(self, value: float) -> float:
        """The nearest number of the format."""
        return struct.unpack("<f", struct.pack("<f", value))[0] if self.elem == "f32" else value

    def bits(self, value: float) -> int:
        code, integer = ("<f", "<I") if self.elem == "f32" else ("<d", "<Q")
        return struct.unpack(integer, struct.pack(code, value))[0]


F32 = Format("f32", "float", "i32", 24, 127)
F64 = Format("f64", "double", "i64", 53, 1023)
FORMATS = {"f32": F32, "f64": F64}
_BY_LLVM = {f.llvm: f for f in FORMATS.values()}
_BY_INTEGER = {f.integer: f for f in FORMATS.values()}

INF = float("inf")
NAN = float("nan")


@dataclass(frozen=True, eq=False)
class Value:
    """An SSA value: `text` names it or spells a constant; `kind` is its scalar LLVM type."""

    builder: Builder
    text: str
    kind: str

    @property
    def format(self) -> Format:
        """The format of a float, or of the float of an integer's width."""
        return _BY_LLVM[self.kind] if self.kind in _BY_LLVM else _BY_INTEGER[self.kind]

    @property
    def is_float(self) -> bool:
        return self.kind in _BY_LLVM

    def like(self, other: Operand) -> Value:
        """`other` as a value of this value's type."""
        return other if isinstance(other, Value) else self.builder.constant(other, self.kind)

    def _binary(self, opcode: str, other: Operand, swap: bool = False) -> Value:
        a, b = self, self.like(other)
        assert a.kind == b.kind, f"{opcode} of {a.kind} and {b.kind}"
        if swap:
            a, b = b, a
        typed = self.builder.type(self.kind)
        return self.builder.emit(f"{opcode} {typed} {a.text}, {b.text}", self.kind)

    def _arithmetic(self, name: str, other: Operand, swap: bool = False) -> Value:
        return self._binary(f"f{name}" if self.is_float else name, other, swap)

    def __add__(self, other: Operand) -> Value:
        return self._arithmetic("add", other)

    def __radd__(self, other: Operand) -> Value:
        return self._arithmetic("add", other, swap=True)

    def __sub__(self, other: Operand) -> Value:
        return self._arithmetic("sub", other)

    def __rsub__(self, other: Operand) -> Value:
        return self._arithmetic("sub", other, swap=True)

    def __mul__(self, other: Operand) -> Value:
        return self._arithmetic("mul", other)

    def __rmul__(self, other: Operand) -> Value:
        return self._arithmetic("mul", other, swap=True)

    def __truediv__(self, other: Operand) -> Value:
        return self._binary("fdiv", other)

    def __rtruediv__(self, other: Operand) -> Value:
        return self._binary("fdiv", other, swap=True)

    def __neg__(self) -> Value:
        typed = self.builder.type(self.kind)
        return self.builder.emit(f"fneg {typed} {self.text}", self.kind)

    def __and__(self, other: Operand) -> Value:
        return self._binary("and", other)

    def __or__(self, other: Operand) -> Value:
        return self._binary("or", other)

    def __xor__(self, other: Operand) -> Value:
        return self._binary("xor", other)

    def __invert__(self) -> Value:
        return self._binary("xor", -1)

    def __lshift__(self, other: Operand) -> Value:
        return self._binary("shl", other)

    def __rshift__(self, other: Operand) -> Value:
        """Logical: zeros come in from the left."""
        return self._binary("lshr", other)

    def _compare(self, ordered: str, other: Operand) -> Value:
        b = self.like(other)
        opcode = f"fcmp {ordered}" if self.is_float else f"icmp {_INTEGER_COMPARES[ordered]}"
        typed = self.builder.type(self.kind)
        return self.builder.emit(f"{opcode} {typed} {self.text}, {b.text}", "i1")

    def __lt__(self, other: Operand) -> Value:
        return self._compare("olt", other)

    def __gt__(self, other: Operand) -> Value:
        return self._compare("ogt", other)

    def __le__(self, other: Operand) -> Value:
        return self._compare("ole", other)

    def __ge__(self, other: Operand) -> Value:
        return self._compare("oge", other)

    def eq(self, other: Operand) -> Value:
        return self._compare("oeq", other)

    def is_nan(self) -> Value:
        return self._compare("uno", self)

    def bits(self) -> Value:
        return self.builder.cast("bitcast", self, self.format.integer)

    def as_float(self) -> Value:
        """The float with these bits."""
        return self.builder.cast("bitcast", self, self.format.llvm)

    def wide(self) -> Value:
        return self.builder.cast("fpext", self, "double")

    def narrow(self) -> Value:
        return self.builder.cast("fptrunc", self, "float")

    def abs(self) -> Value:
        return self.builder.intrinsic("fabs", self)

    def sqrt(self) -> Value:
        return self.builder.intrinsic("sqrt", self)

    def with_sign_of(self, other: Value) -> Value:
        return self.builder.intrinsic("copysign", self, other)


Operand = Value | float | int
_INTEGER_COMPARES = {"olt": "slt", "ogt": "sgt", "ole": "sle", "oge": "sge", "oeq": "eq"}


class Builder:
    """Collects the instructions of one function, and the declarations and helpers it calls for."""

    def __init__(self, lanes: int, fma: bool, maximum: bool = True) -> None:
        self.lanes = lanes
        self.fma = fma
        self.maximum = maximum
        self.lines: list[str] = []
        self.declarations: set[str] = set()
        self.helpers: dict[str, str] = {}
        self._count = 0
        self._block = "entry"
        self._slots: list[str] = []

    def type(self, kind: str) -> str:
        return kind if self.lanes == 1 else f"<{self.lanes} x {kind}>"

    def line(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def name(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def emit(self, expression: str, kind: str) -> Value:
        name = self.name()
        self.line(f"{name} = {expression}")
        return Value(self, name, kind)

    def constant(self, value: float | int, kind: str) -> Value:
        if kind in _BY_LLVM:
            scalar = f"0x{F64.bits(_BY_LLVM[kind].round(float(value))):016X}"
        elif kind == "i1":
            scalar = "true" if value else "false"
        else:
            # Bit patterns are unsigned here; LLVM's text has them signed.
            width = int(kind[1:])
            scalar = str((int(value) + (1 << width - 1)) % (1 << width) - (1 << width - 1))
        return Value(self, scalar if self.lanes == 1 else f"splat ({kind} {scalar})", kind)

    def cast(self, opcode: str, value: Value, kind: str) -> Value:
        expression = f"{opcode} {self.type(value.kind)} {value.text} to {self.type(kind)}"
        return self.emit(expression, kind)

    def intrinsic(self, name: str, *arguments: Value) -> Value:
        kind = arguments[0].kind
        scalar = arguments[0].format.elem
        typed = self.type(kind)
        mangled = f"llvm.{name}.{scalar if self.lanes == 1 else f'v{self.lanes}{scalar}'}"
        self.declarations.add(f"declare {typed} @{mangled}({', '.join([typed] * len(arguments))})")
        passed = ", ".join(f"{typed} {a.text}" for a in arguments)
        return self.emit(f"call {typed} @{mangled}({passed})", kind)

    def stack_slot(self, kind: str) -> str:
        """Memory for one value, allocated on entry so that inlining does not repeat it."""
        name = self.name()
        self._slots.append(f"  {name} = alloca [{self.lanes} x {kind}], align 8")
        return name

    def any(self, mask: Value) -> str:
        """An i1: is some lane of the mask true?"""
        if self.lanes == 1:
            return mask.text
        typed, mangled = self.type("i1"), f"llvm.vector.reduce.or.v{self.lanes}i1"
        self.declarations.add(f"declare i1 @{mangled}({typed})")
        name = self.name()
        self.line(f"{name} = call i1 @{mangled}({typed} {mask.text})")
        return name

    def label(self, hint: str) -> str:
        self._count += 1
        return f"{hint}{self._count}"

    def block(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self._block = label

    def body(self) -> list[str]:
        """The function's lines so far, from its entry block on."""
        return ["entry:", *self._slots, *self.lines]

    def if_any(self, mask: Value, usual: Values, rare: Callable[[], Values]) -> Values:
        """`usual`, but where some lane of the mask is true what `rare` computes for all lanes."""
        rare_label, join = self.label("rare"), self.label("join")
        before = self._block
        self.line(f"br i1 {self.any(mask)}, label %{rare_label}, label %{join}")
        self.block(rare_label)
        computed = rare()
        after = self._block
        self.line(f"br label %{join}")
        self.block(join)
        return tuple(
            self.emit(
                f"phi {self.type(u.kind)} [ {u.text}, %{before} ], [ {r.text}, %{after} ]", u.kind
            )
            for u, r in zip(usual, computed, strict=True)
        )

    def repeat(self, start: Values, step: Callable[[Values], tuple[Values, Value]]) -> Values:
        """The state after running `step` until no lane of the mask that it returns is true."""
        head, done = self.label("loop"), self.label("done")
        before = self._block
        self.line(f"br label %{head}")
        self.block(head)
        state = tuple(Value(self, self.name(), s.kind) for s in start)
        first = len(self.lines)
        after, more = step(state)
        phis = [
            f"  {v.text} = phi {self.type(v.kind)} "
            f"[ {s.text}, %{before} ], [ {a.text}, %{self._block} ]"
            for v, s, a in zip(state, start, after, strict=True)
        ]
        self.lines[first:first] = phis
        self.line(f"br i1 {self.any(more)}, label %{head}, label %{done}")
        self.block(done)
        return after


def where(mask: Value, yes: Operand, no: Operand) -> Value:
    """Lane by lane: `yes` where the mask is true, else `no`."""
    typed = yes if isinstance(yes, Value) else no
    assert isinstance(typed, Value), "where() needs at least one value"
    a, b, builder = typed.like(yes), typed.like(no), mask.builder
    kind = builder.type(typed.kind)
    expression = f"select {builder.type('i1')} {mask.text}, {kind} {a.text}, {kind} {b.text}"
    return builder.emit(expression, typed.kind)


def at_most(x: Value, limit: float) -> Value:
    """min(x, limit); NaN stays. One instruction wherever the limit is a number other than zero."""
    if x.builder.maximum or limit == 0:
        return x.builder.intrinsic("minimum", x, x.like(limit))
    return where(x > limit, limit, x)


def at_least(x: Value, limit: float) -> Value:
    """max(x, limit); NaN stays. One instruction wherever the limit is a number other than zero."""
    if x.builder.maximum or limit == 0:
        return x.builder.intrinsic("maximum", x, x.like(limit))
    return where(x < limit, limit, x)


def fma(a: Value, b: Operand, c: Operand) -> Value:
    """a*b + c, fused where the target can."""
    if a.builder.fma:
        return a.builder.intrinsic("fma", a, a.like(b), a.like(c))
    return a * b + c


def polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """Sum of coefficients[k] * x**k.

    The constant term comes last, so that it absorbs the rounding errors of the others.
    """
    constant, *rest = coefficients
    if len(rest) < 3:
        return _horner(x, coefficients)
    return fma(corrective(x, rest, x * x), x, constant)


def corrective(x: Value, coefficients: Sequence[float], square: Value) -> Value:
    """The same sum where its own rounding hardly counts, as in a small correction.

    In pairs, joined by powers of x*x: the chain of dependent operations is half as long as term
    after term, and a machine whose multiply-add overwrites what it adds to copies half as many
    constants.
    """
    pairs = [coefficients[k : k + 2] for k in range(0, len(coefficients), 2)]
    result: Value | None = None
    for pair in reversed(pairs):
        terms = _horner(x, pair)
        result = terms if result is None else fma(result, square, terms)
    assert result is not None, "a polynomial without coefficients"
    return result


def _horner(x: Value, coefficients: Sequence[float]) -> Value:
    result = x.like(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = fma(result, x, c)
    return result


def round_to_integer(x: Value, factor: float = 1.0, bias: int = 0) -> tuple[Value, Value]:
    """(n, t): n = x*factor rounded to the nearest integer, and t, whose low bits hold n + bias.

    Only for results well below 2**(digits - 2).
    """
    magic = x.format.magic + bias
    shifted = x + magic if factor == 1.0 else fma(x, factor, magic)
    return shifted - magic, shifted.bits()


def power_of_two(t: Value) -> Value:
    """2**n where the low bits of t hold n + the format's bias; the rest of t is shifted out."""
    return (t << t.format.mantissa).as_float()
