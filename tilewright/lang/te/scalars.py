"""Scalars of tensor expressions: `ir.expr` values with the operators and promotions of TVM.

An expression of two dtypes takes the wider one, as in TVM; the shared language itself requires
casts. Index arithmetic stays index arithmetic: what is affine remains so.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Union
from weakref import WeakKeyDictionary

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir import expr as E
from tilewright.ir.dim import Dim, Int, Sym
from tilewright.ir.scalar import SCALARS
from tilewright.ir.types import LONG_NAMES, TENSOR_DTYPES, DType, b1, f32, i64


def dtype_of(name: str | DType) -> DType:
    """`float32` (or `f32`) as a dtype."""
    if isinstance(name, DType):
        return name
    found = TENSOR_DTYPES.get(LONG_NAMES.get(name, name))
    if found is None:
        known = ", ".join(long for long, short in LONG_NAMES.items() if short in TENSOR_DTYPES)
        raise Invalid(f"{name!r} is not a dtype", hint=f"the dtypes are {known}")
    return found


class Expr:
    """A scalar expression. Compare with the usual signs; `i == 0` is an expression as well."""

    __slots__ = ("value",)

    def __init__(self, value: E.Value) -> None:
        self.value = value

    @property
    def dtype(self) -> DType:
        return self.value.dtype

    def __add__(self, o: Operand) -> Expr:
        return binary("add", self, o)

    def __radd__(self, o: Operand) -> Expr:
        return binary("add", o, self)

    def __sub__(self, o: Operand) -> Expr:
        return binary("sub", self, o)

    def __rsub__(self, o: Operand) -> Expr:
        return binary("sub", o, self)

    def __mul__(self, o: Operand) -> Expr:
        return binary("mul", self, o)

    def __rmul__(self, o: Operand) -> Expr:
        return binary("mul", o, self)

    def __truediv__(self, o: Operand) -> Expr:
        return divide(self, o)

    def __rtruediv__(self, o: Operand) -> Expr:
        return divide(o, self)

    def __floordiv__(self, o: Operand) -> Expr:
        return binary("floordiv", self, o)

    def __rfloordiv__(self, o: Operand) -> Expr:
        return binary("floordiv", o, self)

    def __mod__(self, o: Operand) -> Expr:
        return binary("mod", self, o)

    def __rmod__(self, o: Operand) -> Expr:
        return binary("mod", o, self)

    def __neg__(self) -> Expr:
        return 0 - self if self.dtype is i64 else unary("neg", self)

    def __lt__(self, o: Operand) -> Expr:
        return binary("lt", self, o)

    def __le__(self, o: Operand) -> Expr:
        return binary("le", self, o)

    def __gt__(self, o: Operand) -> Expr:
        return binary("gt", self, o)

    def __ge__(self, o: Operand) -> Expr:
        return binary("ge", self, o)

    def __eq__(self, o: object) -> Expr:  # type: ignore[override]
        return binary("eq", self, o)  # type: ignore[arg-type]

    def __ne__(self, o: object) -> Expr:  # type: ignore[override]
        return binary("ne", self, o)  # type: ignore[arg-type]

    def __and__(self, o: Operand) -> Expr:
        return binary("and", self, o)

    def __rand__(self, o: Operand) -> Expr:
        return binary("and", o, self)

    def __or__(self, o: Operand) -> Expr:
        return binary("or", self, o)

    def __ror__(self, o: Operand) -> Expr:
        return binary("or", o, self)

    def __xor__(self, o: Operand) -> Expr:
        return binary("xor", self, o)

    def __lshift__(self, o: Operand) -> Expr:
        return binary("shl", self, o)

    def __rshift__(self, o: Operand) -> Expr:
        return binary("sar", self, o)

    def __invert__(self) -> Expr:
        return unary("not", self)

    def __hash__(self) -> int:
        return id(self)

    def __bool__(self) -> bool:
        if isinstance(self.value, E.Const):
            return bool(self.value.value)
        raise Invalid(
            f"whether {self!r} holds is not known while the expression is written",
            hint="use te.if_then_else, te.all and te.any instead of if, and, or",
        )

    def astype(self, dtype: str | DType) -> Expr:
        return Expr(E.cast(self.value, dtype_of(dtype)))

    def equal(self, o: Operand) -> Expr:
        return binary("eq", self, o)

    def __repr__(self) -> str:
        return repr(self.value)


Operand = Union[Expr, E.Value, Int, int, float, bool]

_fresh = count()
# The symbols that are axes, with the names that users gave them.
AXES: WeakKeyDictionary[Sym, str] = WeakKeyDictionary()


class Var(Expr):
    """A symbolic extent; its value is read off the shapes of the arguments."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__(E.index(D.sym(name, 0)))
        self.name = name


class IterVar(Expr):
    """An axis: of the data, of a reduction, or made by a schedule."""

    __slots__ = ("name", "kind", "low", "extent", "sym")

    def __init__(self, name: str, extent: Dim, kind: str = "data", low: Dim = 0) -> None:
        # Axes may share a name; their symbols must not. Stages rename them when they are made.
        x = D.var(f"{name}?{next(_fresh)}", extent)
        super().__init__(E.index(x + low))
        self.name, self.kind, self.low, self.extent = name, kind, low, extent
        self.sym: Sym = D.the_sym(x)
        AXES[self.sym] = name

    @property
    def dom(self) -> tuple[Dim, Dim]:
        """Where it begins and ends."""
        return self.low, self.low + self.extent

    def __repr__(self) -> str:
        return f"{self.name} in {self.low}..{self.low + self.extent}"


def lifted(x: Operand, like: DType | None = None) -> E.Value:
    """An operand as a value; plain numbers take the dtype of their neighbour."""
    if isinstance(x, Expr):
        return x.value
    if isinstance(x, E.Value):
        return x
    if isinstance(x, Int):
        return E.index(x)
    if isinstance(x, bool):
        return E.const(x, like or b1)
    if isinstance(x, int):
        return E.const(x, like or i64)
    if isinstance(x, float):
        return E.const(x, like if like is not None and like.is_float else f32)
    raise Invalid(
        f"{x!r} ({type(x).__name__}) is not a scalar expression",
        hint="index a tensor, as in A[i, j], and use numbers and expressions",
    )


def _wider(a: DType, b: DType) -> DType:
    if a is b:
        return a
    for x, y in ((a, b), (b, a)):
        if x.is_bool or (x.is_float < y.is_float):
            return y
    if a.bits != b.bits:
        return a if a.bits > b.bits else b
    raise Invalid(f"{a} and {b} have no wider one of the two", hint="say which with .astype")


def matched(a: Operand, b: Operand) -> tuple[E.Value, E.Value]:
    """Two operands in one dtype."""
    plain_a, plain_b = (isinstance(x, (bool, int, float)) for x in (a, b))
    x = lifted(a, None if plain_a == plain_b else lifted(b).dtype)
    y = lifted(b, None if plain_a == plain_b else x.dtype)
    to = _wider(x.dtype, y.dtype)
    return E.cast(x, to), E.cast(y, to)


def applied(name: str, *args: E.Value) -> Expr:
    try:
        return Expr(E.fn(name, *args))
    except TypeError as problem:
        raise Invalid(str(problem), hint="convert with .astype first") from None


def unary(name: str, x: Operand) -> Expr:
    v = lifted(x)
    if v.dtype.is_int and SCALARS[name].only == "f" and not isinstance(x, Expr):
        v = E.cast(v, f32)  # a plain number
    return applied(name, v)


def binary(name: str, a: Operand, b: Operand) -> Expr:
    return applied(name, *matched(a, b))


def divide(a: Operand, b: Operand) -> Expr:
    x, y = matched(a, b)
    if not x.dtype.is_float:
        hint = "use // for integers, or .astype('float32') first"
        raise Invalid(f"/ divides floats, not {x.dtype}", hint=hint)
    return applied("div", x, y)


def as_index(x: object, what: str) -> Dim:
    """An operand as an index function."""
    if isinstance(x, bool) or not isinstance(x, (int, Int, E.Value, Expr)):
        raise Invalid(f"{what} is {x!r}, which is not an integer")
    if isinstance(x, (int, Int)):
        return x
    v = lifted(x)
    if not v.dtype.is_int:
        hint = "convert with .astype('int64')"
        raise Invalid(f"{what} is of {v.dtype}, an index is an integer", hint=hint)
    return E.cast(v, i64).as_dim()


def as_extent(x: object, what: str) -> Dim:
    """An operand as a number of elements: a constant, or a function of te.var."""
    if isinstance(x, float) and x.is_integer():  # n / 32 of plain numbers
        x = int(x)
    d = as_index(x, what)
    if any(True for _ in D.data_values(d)) or any(s in AXES for s in D.symbols(d)):
        raise Invalid(f"{what} is {d}, which is known only while the kernel runs")
    if D.bounds(d)[1] < 0:
        raise Invalid(f"{what} is {d}, which is negative")
    return d


# ---- functions

Unary = Callable[[Operand], Expr]
Binary = Callable[[Operand, Operand], Expr]


def _unary(name: str) -> Unary:
    def apply(x: Operand) -> Expr:
        return unary(name, x)

    apply.__name__, apply.__doc__ = name, f"{name} of one scalar."
    return apply


def _binary(name: str) -> Binary:
    def apply(a: Operand, b: Operand) -> Expr:
        return binary(name, a, b)

    apply.__name__, apply.__doc__ = name, f"{name} of two scalars."
    return apply


exp, exp2, log, log2, log10, log1p = map(_unary, ("exp", "exp2", "log", "log2", "log10", "log1p"))
sqrt, rsqrt, sigmoid, erf = map(_unary, ("sqrt", "rsqrt", "sigmoid", "erf"))
sin, cos, tan, sinh, cosh, tanh = map(_unary, ("sin", "cos", "tan", "sinh", "cosh", "tanh"))
asin, acos, atan = map(_unary, ("asin", "acos", "atan"))
asinh, acosh, atanh = map(_unary, ("asinh", "acosh", "atanh"))
floor, ceil, trunc, round = map(_unary, ("floor", "ceil", "trunc", "round"))
abs = _unary("abs")
atan2, copysign, nextafter = map(_binary, ("atan2", "copysign", "nextafter"))
floordiv, floormod, fmod = map(_binary, ("floordiv", "mod", "rem"))
indexdiv, indexmod = floordiv, floormod
power = pow = _binary("pow")


def isnan(x: Operand) -> Expr:
    v = lifted(x)
    return applied("ne", v, v)


def cast(x: Operand, dtype: str | DType) -> Expr:
    return Expr(lifted(x)).astype(dtype)


def if_then_else(condition: Operand, then: Operand, otherwise: Operand) -> Expr:
    """`then` where the condition holds, else `otherwise`: what is not taken is not read."""
    c = lifted(condition)
    if not c.dtype.is_bool:
        raise Invalid(f"a condition is bool, not {c.dtype}", hint="compare, as in x > 0")
    return applied("select", c, *matched(then, otherwise))


select = if_then_else
