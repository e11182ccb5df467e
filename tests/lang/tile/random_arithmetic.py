"""Operations of random kernels on numbers, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from tests.lang.tile.random_operations import fits, numeric, operation, pair, wide
from tests.lang.tile.random_values import (
    BOOL,
    FLOATS,
    FP8,
    Shape,
    Value,
    bound,
    common,
    converted,
    dtype_of,
    finer,
    limits,
    real,
    union,
    whole,
)
from tests.lang.tile.random_writer import Writer


@operation(7)
def arithmetic(w: Writer) -> None:
    found = pair(w, numeric)
    if found is None:
        return
    x, y, shape = found
    eights = (x.dtype in FP8) + (y.dtype in FP8)
    if eights and (x.dtype not in FLOATS or y.dtype not in FLOATS or eights == 2):
        return
    dtype = common(x.dtype, y.dtype)
    op = w.rng.choice(["+", "-", "*"])
    text = f"{x.name} {op} {y.name}"
    if w.chance(0.15) and op == "+":
        text = f"tl.add({x.name}, {y.name})"
    if dtype not in FLOATS:
        a, b = (x.low, x.high), (y.low, y.high)
        ends = {
            "+": [a[0] + b[0], a[1] + b[1]],
            "-": [a[0] - b[1], a[1] - b[0]],
            "*": [p * q for p in a for q in b],
        }[op]
        index = x.index and y.index
        w.define(text, whole(dtype, shape, min(ends), max(ends), index))
        return
    w.define(text, of_floats(w, op, dtype, shape, x, y))


def of_floats(w: Writer, op: str, dtype: str, shape: Shape, x: Value, y: Value) -> Value | None:
    a, b = converted(x, dtype), converted(y, dtype)
    if a is None or b is None:
        return None
    (m, g, e), (n, h, f) = bound(a), bound(b)
    if op == "*":
        grain = None if g is None or h is None else g * h
        return real(dtype, shape, m * n, grain, m * f + n * e)
    return real(dtype, shape, m + n, finer(g, h), e + f)


@operation(3)
def with_number(w: Writer) -> None:
    x = w.choose(lambda v: numeric(v) and v.dtype not in FP8)
    if x is None:
        return
    op = w.rng.choice(["+", "-", "*"])
    if x.is_float:
        text, c = w.scalar_float()
        # A number of the launch is float32, and a tile of fewer bits becomes that.
        argument = text.startswith("f")
        dtype = common(x.dtype, "float32") if argument else x.dtype
        y = Value("", dtype, (), mag=abs(c), grain=0.25)
        w.define(f"{x.name} {op} {text}", of_floats(w, op, dtype, x.shape, x, y))
        return
    n = w.rng.choice([1, 2, 3, 5, 16, 100])
    low, high = (x.low + n, x.high + n) if op == "+" else (x.low - n, x.high - n)
    if op == "*":
        low, high = min(x.low * n, x.high * n), max(x.low * n, x.high * n)
    w.define(f"{x.name} {op} {n}", whole(x.dtype, x.shape, low, high, x.index))


@operation(1.5)
def large_step(w: Writer) -> None:
    """A position times a number of the launch, with which it may overflow."""
    x = w.choose(lambda v: v.index and v.dtype == "int32")
    if x is None:
        return
    n = w.rng.choice([1 << 20, 123456789, 2**30, 2**31 - 1, -(2**31), -987654321])
    ends = (x.low * n, x.high * n)
    w.define(f"{x.name} * {w.argument(n)}", whole("int32", x.shape, min(ends), max(ends), True))


@operation(3)
def integer_arithmetic(w: Writer) -> None:
    x = w.choose(lambda v: v.is_int)
    if x is None:
        return
    y = w.choose(lambda v: v.dtype == x.dtype and fits(x.shape, v.shape) is not None)
    assert y is not None
    shape = fits(x.shape, y.shape)
    assert shape is not None
    low, high = limits(x.dtype)
    kind = w.rng.randrange(7)
    if kind == 0:
        w.define(
            f"{x.name} // (({y.name} & 7) + 1)",
            replace(whole(x.dtype, shape, min(x.low, 0), max(x.high, 0)) or x, index=x.index),
        )
    elif kind == 1:
        least = -7 if x.low < 0 else 0
        w.define(f"{x.name} % (({y.name} & 7) + 1)", Value("", x.dtype, shape, least, 7))
    elif kind == 2:
        op = w.rng.choice("&|^")
        if op == "&" and x.low >= 0:
            low, high = 0, x.high
        w.define(f"{x.name} {op} {y.name}", Value("", x.dtype, shape, low, high))
    elif kind == 3:
        op = w.rng.choice(["<<", ">>"])
        if op == ">>":
            low, high = min(x.low, 0), max(x.high, 0)
        w.define(f"{x.name} {op} ({y.name} & 7)", Value("", x.dtype, shape, low, high))
    elif kind == 4 and x.dtype in ("int32", "uint32"):
        w.define(f"tl.umulhi({x.name}, {y.name})", Value("", x.dtype, shape, low, high))
    elif kind == 5:
        w.define(f"~{x.name}", whole(x.dtype, x.shape, ~x.high, ~x.low))
    elif low < 0 and x.low > low:
        most = max(abs(x.low), abs(x.high))
        w.define(f"tl.abs({x.name})", Value("", x.dtype, x.shape, 0, most))


@operation(3)
def extremes(w: Writer) -> None:
    found = pair(w, lambda v: numeric(v) and v.dtype not in FP8, special=True)
    if found is None:
        return
    x, y, shape = found
    # Each bfloat16 operand is made a float32 before the two are joined.
    first, second = ("float32" if v.dtype == "bfloat16" else v.dtype for v in (x, y))
    dtype = common(first, second)
    a, b = converted(x, dtype), converted(y, dtype)
    if a is None or b is None:
        return
    name = w.rng.choice(["minimum", "maximum"])
    w.define(f"tl.{name}({x.name}, {y.name})", union(a, b).shaped(shape))


@operation(3)
def choice(w: Writer) -> None:
    c = w.choose(lambda v: v.is_bool)
    if c is None:
        comparison(w)
        return
    x = w.choose(lambda v: fits(c.shape, v.shape) is not None, special=True)
    assert x is not None
    both = fits(c.shape, x.shape)
    assert both is not None
    y = w.choose(lambda v: v.dtype == x.dtype and fits(both, v.shape) is not None, special=True)
    if y is None:
        return
    shape = fits(both, y.shape)
    assert shape is not None
    w.define(f"tl.where({c.name}, {x.name}, {y.name})", union(x, y).shaped(shape))


@operation(3)
def comparison(w: Writer) -> None:
    found = pair(w, lambda v: v.exact and v.dtype not in FP8 and numeric(v), special=True)
    if found is None:
        return
    x, y, shape = found
    op = w.rng.choice(["<", "<=", ">", ">=", "==", "!="])
    if x.is_float != y.is_float or (x.is_float and x.dtype != y.dtype):
        return  # one of them would be rounded: the same everywhere, but not worth a rule
    w.define(f"{x.name} {op} {y.name}", Value("", BOOL, shape, 0, 1))


@operation(1)
def logic(w: Writer) -> None:
    found = pair(w, lambda v: v.is_bool)
    if found is None:
        return
    x, y, shape = found
    text = w.rng.choice(["{} & {}", "{} | {}", "{} ^ {}", "{} & ~{}"])
    w.define(text.format(x.name, y.name), Value("", BOOL, shape, 0, 1))


# Functions of one float: text, the largest argument, a bound of the slope, that of the result.
FUNCTIONS: list[tuple[str, float, Callable[[float], float], Callable[[float], float]]] = [
    ("tl.exp({})", 6, math.exp, math.exp),
    ("tl.exp2({})", 8, lambda m: 2**m, lambda m: 2**m),
    ("tl.sin({})", 1000, lambda m: 1, lambda m: 1),
    ("tl.cos({})", 1000, lambda m: 1, lambda m: 1),
    ("tl.log(tl.abs({}) + 0.5)", 1e9, lambda m: 2, lambda m: max(0.7, math.log(m + 0.5))),
    ("tl.log2(tl.abs({}) + 0.5)", 1e9, lambda m: 3, lambda m: max(1, math.log2(m + 0.5))),
    ("tl.sqrt(tl.abs({}) + 0.25)", 1e9, lambda m: 1, lambda m: math.sqrt(m + 0.25)),
    ("tl.rsqrt(tl.abs({}) + 0.25)", 1e9, lambda m: 4, lambda m: 2),
    ("tl.erf({})", 1e9, lambda m: 1.2, lambda m: 1),
    ("tl.sigmoid({})", 80, lambda m: 0.25, lambda m: 1),
    ("1.0 / (1.0 + tl.abs({}))", 1e9, lambda m: 1, lambda m: 1),
    ("libdevice.tanh({})", 1e9, lambda m: 1, lambda m: 1),
    ("libdevice.atan({})", 1e9, lambda m: 1, lambda m: 1.6),
    ("libdevice.log1p(tl.abs({}))", 1e9, lambda m: 1, lambda m: math.log1p(m) + 1),
    ("libdevice.expm1({})", 6, math.exp, math.exp),
    ("libdevice.cbrt(tl.abs({}) + 0.5)", 1e9, lambda m: 1, lambda m: (m + 1) ** (1 / 3) + 1),
    ("libdevice.asinh({})", 1e9, lambda m: 1, lambda m: math.asinh(m) + 1),
    ("libdevice.sinpi({})", 1000, lambda m: 3.2, lambda m: 1),
    ("libdevice.erfc({})", 5, lambda m: 1.2, lambda m: 2),
    ("libdevice.sinh({})", 6, math.cosh, math.cosh),
]


@operation(7)
def function(w: Writer) -> None:
    x = w.choose(wide)
    if x is None:
        return
    text, most, slope, largest = w.rng.choice(FUNCTIONS)
    if x.mag > most:
        return
    # Library functions are right to a few units in the last place; arguments of several
    # roundings before add theirs times the slope.
    unit = 2.0 ** -FLOATS[x.dtype][0]
    spread = slope(x.mag) * (x.err + 4 * unit * (x.mag + 1))
    w.define(text.format(x.name), real(x.dtype, x.shape, largest(x.mag), None, spread, 8))


@operation(2)
def sign_and_steps(w: Writer) -> None:
    x = w.choose(lambda v: v.is_float and v.dtype not in FP8)
    if x is None:
        return
    kind = w.rng.randrange(4)
    if kind == 0:
        w.define(f"-{x.name}", x)
    elif kind == 1:
        w.define(f"tl.abs({x.name})", x)
    elif kind == 2 and wide(x) and x.exact:
        made = real(x.dtype, x.shape, float(math.ceil(x.mag)), 1.0, 0.0)
        w.define(f"tl.{w.rng.choice(['floor', 'ceil'])}({x.name})", made)
    elif wide(x):
        y = w.choose(lambda v: v.dtype == x.dtype and v.shape == x.shape)
        z = w.choose(lambda v: v.dtype == x.dtype and v.shape == x.shape)
        assert y is not None and z is not None
        product = of_floats(w, "*", x.dtype, x.shape, x, y)
        made = product and of_floats(w, "+", x.dtype, x.shape, product, z)
        w.define(f"tl.fma({x.name}, {y.name}, {z.name})", made)


@operation(3)
def division(w: Writer) -> None:
    found = pair(w, wide)
    if found is None:
        return
    x, y, shape = found
    dtype = common(x.dtype, y.dtype)
    a, b = converted(x, dtype), converted(y, dtype)
    if a is None or b is None:
        return
    made = real(dtype, shape, a.mag, None, a.err + (a.mag + a.err) * b.err, 3)
    w.define(f"{x.name} / (tl.abs({y.name}) + 1.0)", made)


@operation(1)
def clamped(w: Writer) -> None:
    x = w.choose(wide)
    if x is not None:
        v = replace(x, mag=min(x.mag, 1.0), grain=x.grain if (x.grain or 1) <= 1 else None)
        w.define(f"tl.clamp({x.name}, -1.0, 1.0)", v)


@operation(5)
def cast(w: Writer) -> None:
    x = w.choose(lambda v: True, special=True)
    if x is None:
        return
    dtype = w.element()
    if dtype in FP8 and not x.is_float:
        return
    if x.dtype in FP8 and dtype not in FLOATS:
        return
    if x.dtype in FP8 and dtype == BOOL:
        return
    name = f"tl.{dtype}"
    if w.chance(0.15):
        name = w.fresh("D")
        w.parameters[name], w.numbers[name] = "tl.constexpr", dtype_of(dtype)
    w.define(f"{x.name}.to({name})", converted(x, dtype))


@operation(1)
def bits(w: Writer) -> None:
    loaded = {s.text.split(" = ")[0] for s in w.body if "= tl.load(" in s.text}
    x = w.choose(lambda v: v.name in loaded and v.exact and v.bits in (16, 32, 64))
    if x is None:
        return
    if x.is_float:
        dtype = f"{w.rng.choice(['', 'u'])}int{x.bits}"
        w.define(
            f"{x.name}.to(tl.{dtype}, bitcast=True)", Value("", dtype, x.shape, *limits(dtype))
        )
    elif x.is_int:
        dtype = x.dtype[1:] if x.dtype.startswith("u") else f"u{x.dtype}"
        w.define(
            f"{x.name}.to(tl.{dtype}, bitcast=True)", Value("", dtype, x.shape, *limits(dtype))
        )
