"""What random kernels are made of: each operation writes a statement, or nothing where no value
at hand fits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.lang.tile.random_values import (
    BOOL,
    FLOATS,
    FP8,
    INTS,
    Shape,
    Value,
    bound,
    common,
    converted,
    dtype_of,
    finer,
    limits,
    real,
    total,
    union,
    whole,
)
from tests.lang.tile.random_writer import Statement, Writer


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


# ---- memory


@operation(7)
def load(w: Writer) -> None:
    dtype, shape = w.element(), w.shape()
    fill = w.data(dtype)
    offsets, low, high = w.strided(shape, unique=False)
    place, first, last = w.programs(w.rng.choice([1, 7, 16, high - low + 1]))
    shift = w.rng.choice([0, 0, 0, 3, 16, -5])
    kind = w.rng.random()
    if kind < 0.12 and shape:
        n = w.rng.choice([5, 16, 37])
        text = f"({place} + {offsets} + {w.number(abs(shift) - low)}) % {w.number(n)}"
        low, high = 0, n - 1
    elif kind < 0.25 and (by := indices(w, shape)) is not None:
        text = f"{by.name} * {w.number(3)} + {w.number(abs(shift))}"
        low, high = 3 * by.low + abs(shift), 3 * by.high + abs(shift)
    else:
        text = " + ".join(t for t in (place, offsets) if t != "0") or "0"
        if shift:
            text = f"{text} + {w.number(shift)}"
        low, high = low + first + shift, high + last + shift
    name = w.array(dtype, low, high, fill)
    v = w.filled(dtype, shape, fill)
    masked(w, f"{name} + {text}" if text != "0" else name, v)


def indices(w: Writer, shape: Shape) -> Value | None:
    """A tile of small integers."""
    return w.choose(
        lambda v: (
            v.dtype in ("int32", "int64", "int16", "uint8")
            and v.shape == shape
            and v.low >= -200
            and v.high <= 200
        )
    )


def masked(w: Writer, pointer: str, v: Value) -> None:
    mask = w.condition(v.shape) if w.chance(0.5) else None
    if mask is None:
        w.define(f"tl.load({pointer})", v)
        return
    kind = w.rng.random()
    if kind < 0.25 and v.dtype not in FP8:
        # Without `other` the rest may be anything: it is replaced.
        m = w.fresh("m")
        w.say(f"{m} = {mask[0]}")
        read = w.fresh()
        w.say(f"{read} = tl.load({pointer}, mask={m})")
        w.define(f"tl.where({m}, {read}, {zero(v)})", union(v, replace(v, low=0, high=0, mag=0)))
        return
    other = w.choose(lambda o: o.dtype == v.dtype and o.shape == v.shape, special=True)
    if other is not None and kind < 0.5:
        w.define(f"tl.load({pointer}, mask={mask[0]}, other={other.name})", union(v, other))
        return
    w.define(
        f"tl.load({pointer}, mask={mask[0]}, other={zero(v)})",
        union(v, replace(v, low=0, high=0, mag=0)),
    )


def zero(v: Value) -> str:
    return "0.0" if v.is_float else "False" if v.is_bool else "0"


@operation(2)
def block_pointer(w: Writer) -> None:
    rank = w.rng.choice([1, 2, 2])
    shape, dtype = w.shape(rank, 1024), w.element()
    fill = w.data(dtype)
    sizes = [w.rng.randrange(1, 2 * n + 2) for n in shape]
    steps, run = [1] * rank, 1
    order = list(range(rank))
    if w.chance(0.3):
        order.reverse()
    for k in reversed(order):
        steps[k] = run
        run *= sizes[k] + w.rng.choice([0, 0, 3])
    at = [w.rng.randrange(0, n + 1) for n in sizes]
    v = w.filled(dtype, shape, fill)
    v = union(v, replace(v, low=0, high=0, mag=0))
    if dtype == BOOL:
        return
    name = w.array(dtype, 0, run, fill)
    words = [", ".join(w.number(n) for n in part) + "," for part in (sizes, steps, at)]
    if steps[-1] == 1 and shape[-1] * v.bits >= 128 and w.chance(0.5):
        made = w.fresh("d")
        w.say(
            f"{made} = tl.make_tensor_descriptor({name}, ({words[0]}), "
            f"({', '.join(w.number(s) for s in steps[:-1])}{', ' if rank > 1 else ''}1,), "
            f"{list(shape)})"
        )
        w.define(f"{made}.load([{words[2]}])", v)
        return
    made, backwards = w.fresh("b"), tuple(reversed(range(rank)))
    text = (
        f"tl.make_block_ptr({name}, ({words[0]}), ({words[1]}), ({words[2]}), {shape}, {backwards})"
    )
    w.say(f"{made} = {text}")
    if w.chance(0.5):
        by = ", ".join(w.number(w.rng.choice([0, 1, n // 2])) for n in shape)
        w.say(f"{made} = tl.advance({made}, ({by},))")
    checked = tuple(range(rank))
    w.define(f'tl.load({made}, boundary_check={checked}, padding_option="zero")', v)


@operation(1.5)
def block_stored(w: Writer) -> None:
    """Written through a block pointer or a descriptor: what lies outside is left alone."""
    v = w.choose(lambda v: 1 <= len(v.shape) <= 2 and not v.is_bool)
    if v is None:
        return
    rank = len(v.shape)
    sizes = [w.rng.randrange(1, n + 3) for n in v.shape]
    steps = [1] if rank == 1 else [sizes[1] + w.rng.choice([0, 3]), 1]
    span = sizes[0] * steps[0]
    place, first, last = w.programs(span)
    name = w.array(v.dtype, first, last + span - 1, w.data(v.dtype), output=True)
    w.errors[name] = v.err
    at = [w.rng.randrange(0, 3) for _ in v.shape]
    words = [", ".join(w.number(n) for n in part) + "," for part in (sizes, steps, at)]
    if v.shape[-1] * v.bits >= 128 and w.chance(0.5):
        front = f"{w.number(steps[0])}, " if rank > 1 else ""
        w.say(
            f"tl.make_tensor_descriptor({name} + {place}, ({words[0]}), ({front}1,), "
            f"{list(v.shape)}).store([{words[2]}], {v.name})"
        )
        return
    made = w.fresh("b")
    w.say(
        f"{made} = tl.make_block_ptr({name} + {place}, ({words[0]}), ({words[1]}), ({words[2]}), "
        f"{v.shape}, {tuple(reversed(range(rank)))})"
    )
    w.say(f"tl.store({made}, {v.name}, boundary_check={tuple(range(rank))})")


@operation(1.5)
def chosen_pointer(w: Writer) -> None:
    """One of two arrays, by a condition."""
    dtype, shape = w.element(), w.shape()
    fill = w.data(dtype)
    offsets, low, high = w.strided(shape, unique=False)
    x, y = (w.array(dtype, low, high, fill) for _ in range(2))
    v = w.filled(dtype, shape, fill)
    c = w.choose(lambda v: v.is_bool and (v.shape in ((), shape)))
    if c is None:
        return
    p = w.fresh("p")
    if c.shape == () and w.chance(0.5):
        w.say(f"{p} = {x}")
        made = Statement(f"if {c.name}:", [Statement(f"{p} = {y}")])
        w.body.append(made)
        w.define(f"tl.load({p} + {offsets})", v)
        return
    w.say(f"{p} = tl.where({c.name}, {x} + {offsets}, {y} + {offsets})")
    w.define(f"tl.load({p})", v)


@operation(3)
def scratch(w: Writer) -> None:
    """Written, then read at other places: a later load sees what was stored."""
    v = w.choose(lambda v: v.exact and v.shape != () and not v.is_bool)
    if v is None:
        return
    n = v.size
    step, first, last = w.programs(n)
    name = w.array(v.dtype, first, last + n - 1, w.data(v.dtype), output=True)
    w.errors[name] = 0.0
    flat = f"tl.arange(0, {n})"
    to = w.rng.choice([flat, f"({n - 1} - {flat})", f"({flat} ^ {w.rng.randrange(n)})"])
    text = v.name if len(v.shape) == 1 else f"{v.name}.reshape([{n}])"
    w.say(f"tl.store({name} + {step} + {to}, {text})")
    if w.chance(0.5):
        w.say("tl.debug_barrier()")
    odd = w.rng.choice([1, 3, 5])
    read = f"({flat} * {w.number(odd)} + {w.number(w.rng.randrange(n))}) % {n}"
    got = w.define(f"tl.load({name} + {step} + {read})", v.shaped((n,)))
    if got is not None and w.chance(0.4):
        w.say(f"tl.store({name} + {step} + {flat}, {got.name})")


@operation(5)
def revisited(w: Writer) -> None:
    """Memory of the program's own, read and written again and again, at any depth: what was read
    stays what it was, and what is read later is what was written."""
    if len(w.shared) < 2 and w.chance(0.4):
        dtype = w.rng.choice(["int32", "float32", "int64", "uint8", "bfloat16"])
        n = w.rng.choice([16, 64, 256])
        place, first, last = w.programs(n)
        fill = (-4.0, 4.0, 0.5) if dtype in FLOATS else tuple(map(float, (0, 100, 1)))
        name = w.array(dtype, first, last + n - 1, (fill[0], fill[1], fill[2]), output=True)
        w.errors[name] = 0.0
        held = (
            Value("", dtype, (n,), *limits(dtype))
            if dtype in INTS
            else Value("", dtype, (n,), mag=32.0, grain=0.25)
        )
        w.shared.append((f"{name} + {place}", n, held))
    if not w.shared:
        return
    where, n, held = w.rng.choice(w.shared)
    v = w.choose(lambda v: v.dtype == held.dtype and 0 < v.size <= n and keeps(v, held))
    if v is not None and w.chance(0.6):
        at = spot(w, v.size, n, unique=True)
        text = v.name if len(v.shape) == 1 else f"{v.name}.reshape([{v.size}])"
        mask = w.condition((v.size,)) if w.chance(0.2) else None
        w.say(f"tl.store({where} + {at}, {text}{f', mask={mask[0]}' if mask else ''})")
        return
    size = 2 ** w.rng.randrange(0, n.bit_length())
    w.define(f"tl.load({where} + {spot(w, size, n, unique=False)})", held.shaped((size,)))


def keeps(v: Value, held: Value) -> bool:
    """May it be stored where this is held?"""
    if not held.is_float:
        return True
    return v.exact and v.mag <= held.mag and v.grain is not None and v.grain >= 0.25


def spot(w: Writer, size: int, n: int, unique: bool) -> str:
    """Places among n for a row of this size."""
    row = f"tl.arange(0, {size})"
    kind = w.rng.randrange(5)
    if kind == 0:
        return row
    if kind == 1:
        return f"({n - 1} - {row})"
    if kind == 2 and not unique:
        return f"({row} // {w.number(2)})"
    if kind == 3:
        return f"({row} ^ {w.rng.randrange(n)})"
    factor = w.rng.choice([1, 1, 3, 5])
    return f"(({row} * {factor} + {w.number(w.rng.randrange(n))}) % {n})"


@operation(1.5)
def atomic(w: Writer) -> None:
    """Of a kind whose result does not depend on the order."""
    kind = w.rng.choice(["add", "max", "min", "or", "and", "xor", "add"])
    if kind == "add":
        small = lambda v: v.dtype == "float32" and v.exact and v.grain and v.mag < 64  # noqa: E731
        v = w.choose(lambda v: v.dtype in ("int32", "int64", "uint32") or bool(small(v)))
    else:
        v = w.choose(lambda v: v.dtype in ("int32", "int64", "uint32", "uint64"))
    if v is None or v.size > 1024:
        return
    low, high, grain = 0.0, 4.0, 1.0
    where, first, last = "0", 0, 0
    if v.shape:
        where, first, last = w.strided(v.shape, unique=False)
        if w.chance(0.4):
            m = w.rng.choice([1, 3, 8])
            where, first, last = f"({where} + {-first}) % {m}", 0, m - 1
    name = w.array(v.dtype, first, last, (low, high, grain), output=True)
    w.errors[name] = 0.0
    mask = w.condition(v.shape) if w.chance(0.4) else None
    extra = f", mask={mask[0]}" if mask else ""
    w.say(f"tl.atomic_{kind}({name} + {where}, {v.name}{extra})")


@operation(0.7)
def atomic_old(w: Writer) -> None:
    """What was there before, at places of each program's own."""
    v = w.choose(lambda v: v.dtype in ("int32", "int64") and v.shape != ())
    if v is None or v.size > 1024:
        return
    offsets, low, high = w.strided(v.shape, unique=True)
    place, first, last = w.programs(high - low + 1)
    fill = w.data(v.dtype)
    name = w.array(v.dtype, low + first, high + last, fill, output=True)
    w.errors[name] = 0.0
    kind = w.rng.choice(["add", "max", "xchg", "xor"])
    old = f"tl.atomic_{kind}({name} + {place} + {offsets}, {v.name})"
    w.define(
        old,
        Value("", v.dtype, v.shape, *limits(v.dtype))
        if w.depth
        else w.filled(v.dtype, v.shape, fill),
    )


@operation(2)
def positions(w: Writer) -> None:
    n = w.shape(1)[0]
    start = w.rng.choice([0, 0, n, 3])
    w.define(
        f"tl.arange({start}, {start + n})",
        Value("", "int32", (n,), start, start + n - 1, index=True),
    )


@operation(1)
def filled(w: Writer) -> None:
    shape, dtype = w.shape(), w.rng.choice(["float32", "int32", "float16", "int64"])
    if not shape:
        return
    n = w.rng.randrange(-3, 4)
    v = (
        Value("", dtype, shape, mag=float(abs(n)), grain=1.0)
        if dtype in FLOATS
        else Value("", dtype, shape, n, n)
    )
    w.define(f"tl.full({list(shape)}, {n}, tl.{dtype})", v)


# ---- arithmetic


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
    dtype = common(x.dtype, y.dtype)
    if dtype == "bfloat16":
        dtype = "float32"  # as which such extremes are computed
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


__all__ = ["INTS", "OPERATIONS", "Operation", "operation", "total", "write"]
