"""Operations of random kernels on whole tiles: shapes, reductions, scans, sorting, products."""

from __future__ import annotations

from dataclasses import replace
from math import isinf, prod

from tests.lang.tile.random_memory import masked, zero
from tests.lang.tile.random_operations import OPERATIONS, fits, numeric, operation, wide
from tests.lang.tile.random_values import (
    BOOL,
    FLOATS,
    FP8,
    Shape,
    Value,
    converted,
    limits,
    real,
    total,
    union,
    whole,
)
from tests.lang.tile.random_writer import Writer


def tile(v: Value) -> bool:
    return v.shape != ()


# ---- shapes


@operation(3)
def reshaped(w: Writer) -> None:
    x = w.choose(tile, special=True)
    if x is None:
        return
    left, sizes = x.size, []
    for _ in range(w.rng.choice([0, 1, 1, 2])):
        n = 2 ** w.rng.randrange(0, left.bit_length())
        sizes.append(n)
        left //= n
    sizes.append(left)
    w.rng.shuffle(sizes)
    text = w.rng.choice([f"{x.name}.reshape({sizes})", f"tl.reshape({x.name}, {sizes})"])
    w.define(text, x.shaped(tuple(sizes)))


@operation(3)
def transposed(w: Writer) -> None:
    x = w.choose(lambda v: len(v.shape) >= 2, special=True)
    if x is None:
        return
    if len(x.shape) == 2 and w.chance(0.6):
        w.define(w.rng.choice([f"tl.trans({x.name})", f"{x.name}.T"]), x.shaped(x.shape[::-1]))
        return
    order = list(range(len(x.shape)))
    w.rng.shuffle(order)
    w.define(f"tl.permute({x.name}, {order})", x.shaped(tuple(x.shape[k] for k in order)))


@operation(3)
def widened(w: Writer) -> None:
    x = w.choose(lambda v: 1 <= len(v.shape) <= 2, special=True)
    if x is None:
        return
    k = w.rng.randrange(len(x.shape) + 1)
    shape = (*x.shape[:k], 1, *x.shape[k:])
    words = [":"] * len(x.shape)
    words.insert(k, "None")
    text = w.rng.choice([f"{x.name}[{', '.join(words)}]", f"tl.expand_dims({x.name}, {k})"])
    made = w.define(text, x.shaped(shape))
    if made is not None and w.chance(0.6):
        n = 2 ** w.rng.randrange(0, 5)
        full = (*shape[:k], n, *shape[k + 1 :])
        w.define(f"tl.broadcast_to({made.name}, {list(full)})", made.shaped(full))


@operation(2)
def joined(w: Writer) -> None:
    x = w.choose(lambda v: len(v.shape) <= 2, special=True)
    if x is None:
        return
    y = w.choose(lambda v: v.dtype == x.dtype and v.shape == x.shape, special=True)
    assert y is not None
    both = union(x, y)
    kind = w.rng.randrange(3)
    if kind == 1 and len(x.shape) == 1 and w.chance(0.5):
        kind = 2
    if kind == 0:
        w.define(f"tl.join({x.name}, {y.name})", both.shaped((*x.shape, 2)))
    elif not x.shape:
        return
    elif kind == 1:
        shape = (*x.shape[:-1], 2 * x.shape[-1])
        w.define(f"tl.interleave({x.name}, {y.name})", both.shaped(shape))
    elif len(x.shape) == 1:
        w.define(f"tl.cat({x.name}, {y.name}, can_reorder=False)", both.shaped((2 * x.size,)))


@operation(2)
def halves(w: Writer) -> None:
    x = w.choose(lambda v: tile(v) and v.size >= 2, special=True)
    if x is None:
        return
    text = x.name
    shape = x.shape
    if shape[-1] != 2:
        if shape[-1] < 2:
            return
        shape = (*shape[:-1], shape[-1] // 2, 2)
        if len(shape) > 3:
            return
        text = f"{x.name}.reshape({list(shape)})"
    a, b = x.named(w.fresh()).shaped(shape[:-1]), x.named(w.fresh()).shaped(shape[:-1])
    w.say(f"{a.name}, {b.name} = tl.split({text})")
    w.values += [a, b]


@operation(1.5)
def flipped(w: Writer) -> None:
    x = w.choose(tile, special=True)
    if x is None:
        return
    k = w.rng.randrange(len(x.shape))
    w.define(f"tl.flip({x.name}, {k})", x)


@operation(2)
def gathered(w: Writer) -> None:
    x = w.choose(tile, special=True)
    if x is None:
        return
    k = w.rng.randrange(len(x.shape))
    n = x.shape[k]
    by = w.choose(
        lambda v: (
            v.dtype in ("int32", "int64")
            and len(v.shape) == len(x.shape)
            and all(j == k or v.shape[j] == x.shape[j] for j in range(len(x.shape)))
        )
    )
    if by is not None:
        w.define(f"tl.gather({x.name}, {by.name} & {n - 1}, {k})", x.shaped(by.shape))


# ---- reductions


@operation(9)
def reduction(w: Writer) -> None:
    x = w.choose(lambda v: tile(v) and numeric(v) and v.dtype not in FP8, special=True)
    if x is None:
        return
    axis = w.rng.choice([None, *range(len(x.shape)), *range(len(x.shape))])
    keep = w.chance(0.2)
    n = x.size if axis is None else x.shape[axis]
    rest: Shape = () if axis is None else x.shape[:axis] + x.shape[axis + 1 :]
    kept = tuple(1 if axis is None or j == axis else m for j, m in enumerate(x.shape))
    shape = kept if keep else rest
    extra = ", keep_dims=True" if keep else ""
    kind = w.rng.choice(["sum", "sum", "max", "min", "argmax", "argmin", "xor_sum", "user"])
    if x.special:
        kind = w.rng.choice(["max", "min"])  # which leave out what is no number
    where = "" if axis is None and w.chance(0.5) else f", {axis}"
    if kind == "sum":
        dtype = x.dtype
        if x.is_int and x.bits < 32:
            dtype = "int32" if x.dtype.startswith("i") else "uint32"
        v = total(x, dtype, n)
        w.define(f"tl.sum({x.name}{where}{extra})", v and v.shaped(shape))
    elif kind in ("max", "min"):
        dtype = x.dtype
        if x.bits < 32:
            dtype = "float32" if x.is_float else "int32"
        v = converted(x, dtype)
        if x.dtype in ("uint8", "uint16", "int8", "int16") or x.bits >= 32 or x.is_float:
            w.define(f"tl.{kind}({x.name}{where}{extra})", v and v.shaped(shape))
    elif kind in ("argmax", "argmin") and x.exact and axis is not None:
        v = Value("", "int32", shape, 0, n - 1)
        w.define(f"tl.{kind}({x.name}{where}{extra})", v)
    elif kind == "xor_sum" and x.is_int:
        low, high = limits(x.dtype)
        w.define(f"tl.xor_sum({x.name}{where}{extra})", Value("", x.dtype, shape, low, high))
    elif kind == "user":
        user_reduction(w, x, axis, n, rest)


def user_reduction(w: Writer, x: Value, axis: int | None, n: int, rest: Shape) -> None:
    kind = w.rng.choice(["larger", "xored", "added", "branching", "best"])
    if kind in ("larger", "branching") and x.exact:
        w.define(f"tl.reduce({x.name}, {axis}, {w.helper(kind)})", x.shaped(rest))
    elif kind == "xored" and x.is_int:
        v = Value("", x.dtype, rest, *limits(x.dtype))
        w.define(f"tl.reduce({x.name}, {axis}, {w.helper(kind)})", v)
    elif kind == "added" and x.bits >= 32:
        v = total(x, x.dtype, n)
        if v is not None:
            w.define(f"tl.reduce({x.name}, {axis}, {w.helper(kind)})", v.shaped(rest))
    elif kind == "best" and x.exact and axis is not None:
        places = " + ".join(
            w.axis(m, k, len(x.shape)) + (" * 0" if k != axis else "")
            for k, m in enumerate(x.shape)
        )
        a, i = w.fresh(), w.fresh()
        w.say(f"{a}, {i} = tl.reduce(({x.name}, {places}), {axis}, {w.helper('best')})")
        w.values += [
            x.named(a).shaped(rest),
            Value(i, "int32", rest, 0, x.shape[axis] - 1),
        ]


@operation(4)
def scan(w: Writer) -> None:
    x = w.choose(lambda v: tile(v) and numeric(v) and v.dtype not in FP8)
    if x is None:
        return
    axis = w.rng.randrange(len(x.shape))
    n = x.shape[axis]
    back = w.rng.choice(["", "", ", reverse=True"])
    kind = w.rng.choice(["cumsum", "cumsum", "cumprod", "larger", "xored", "linear"])
    if kind == "cumsum":
        dtype = "float32" if x.dtype == "bfloat16" else x.dtype
        if x.is_int and x.bits < 32:
            dtype = "int32" if x.dtype.startswith("i") else "uint32"
        w.define(f"tl.cumsum({x.name}, {axis}{back})", total(x, dtype, n))
    elif kind == "cumprod" and x.is_int:
        v = Value("", x.dtype, x.shape, *limits(x.dtype))
        w.define(f"tl.cumprod({x.name}, {axis}{back})", v)
    elif kind == "cumprod" and wide(x) and n <= 64 and x.mag <= 4 and x.mag**n < 1e4:
        most = max(1.0, x.mag) ** n
        grown = n * x.err * max(1.0, x.mag + x.err) ** n
        if grown < 1:
            w.define(
                f"tl.cumprod({x.name}, {axis}{back})",
                real(x.dtype, x.shape, most, None, grown, 2 * n),
            )
    elif kind == "larger" and x.exact:
        w.define(f"tl.associative_scan({x.name}, {axis}, {w.helper(kind)}{back})", x)
    elif kind == "xored" and x.is_int:
        v = Value("", x.dtype, x.shape, *limits(x.dtype))
        w.define(f"tl.associative_scan({x.name}, {axis}, {w.helper(kind)}{back})", v)
    elif kind == "linear" and x.dtype in ("int32", "int64"):
        y = w.choose(lambda v: v.dtype == x.dtype and v.shape == x.shape)
        assert y is not None
        a, b = w.fresh(), w.fresh()
        text = f"({x.name}, {y.name}), {axis}, {w.helper('linear')}{back}"
        w.say(f"{a}, {b} = tl.associative_scan({text})")
        w.values += [Value(v, x.dtype, x.shape, *limits(x.dtype)) for v in (a, b)]


@operation(1)
def sorted_(w: Writer) -> None:
    x = w.choose(lambda v: tile(v) and v.exact and numeric(v) and v.dtype not in FP8)
    if x is None or x.size > 256:
        return
    if w.chance(0.6) or x.shape[-1] < 4:
        down = w.rng.choice(["", ", descending=True"])
        axis = len(x.shape) - 1 if w.chance(0.7) else w.rng.randrange(len(x.shape))
        w.define(f"tl.sort({x.name}, dim={axis}{down})", x)
    else:
        k = x.shape[-1] // 2
        w.define(f"tl.topk({x.name}, {k})", x.shaped((*x.shape[:-1], k)))


@operation(1)
def counted(w: Writer) -> None:
    x = w.choose(lambda v: v.dtype == "int32" and len(v.shape) == 1)
    if x is None:
        return
    bins = w.rng.choice([2, 8, 32])
    mask = w.condition(x.shape) if w.chance(0.4) else None
    by = f"{x.name} & {2 * bins - 1}" if w.chance(0.5) else x.name
    extra = f", mask={mask[0]}" if mask else ""
    w.define(f"tl.histogram({by}, {bins}{extra})", Value("", "int32", (bins,), 0, x.size))


@operation(1)
def softmax(w: Writer) -> None:
    x = w.choose(lambda v: v.dtype == "float32" and tile(v) and v.mag < 30 and v.err < 0.01)
    if x is None:
        return
    axis = w.rng.randrange(len(x.shape))
    made = real(x.dtype, x.shape, 1.0, None, 3 * x.err, 2 * x.shape[axis] + 40)
    w.define(f"tl.softmax({x.name}, {axis})", made)


# ---- products


def product(w: Writer, a: Value, b: Value, c: Value | None, precision: str) -> Value | None:
    """What a product of two tiles is; sums are exact where the numbers are."""
    k = a.shape[-1]
    shape = (*a.shape[:-1], b.shape[-1])
    if a.is_int:
        return Value("", "int32", shape, *limits("int32"))
    dtype = "float64" if a.dtype == "float64" else "float32"
    before = (c.mag, c.grain, c.err) if c is not None else (0.0, 1.0, 0.0)
    mag = k * a.mag * b.mag + before[0]
    grain = None
    if a.grain is not None and b.grain is not None and before[1] is not None:
        grain = min(a.grain * b.grain, before[1])
    err = k * ((a.mag + a.err) * b.err + b.mag * a.err) + before[2]
    if precision != "ieee" and a.dtype == "float32":
        if not (a.grain and b.grain and a.mag / a.grain <= 64 and b.mag / b.grain <= 64):
            err += k * a.mag * b.mag * 2.0**-9  # operands are rounded to ten bits
            grain = None
    return real(dtype, shape, mag, grain, err, k + 2)


@operation(3)
def dot(w: Writer) -> None:
    dtype = w.rng.choice(["float32"] * 3 + ["float16", "bfloat16", "int8", "float64", *FP8])
    m, n, k = (w.rng.choice([16, 16, 32]) for _ in range(3))
    batch: Shape = (w.rng.choice([1, 2]),) if w.chance(0.15) else ()
    a = w.choose(lambda v: v.dtype == dtype and len(v.shape) == 2 and not batch)
    if a is None or min(a.shape) < 8 or w.chance(0.6):
        a = operand(w, dtype, (*batch, m, k))
    if a is None:
        return
    b = operand(w, dtype, (*batch, a.shape[-1], n))
    if b is None:
        return
    shape = (*a.shape[:-1], n)
    if prod(shape) > 2048:
        return
    precision = w.rng.choice(["ieee", "ieee", "tf32", "tf32x3"]) if dtype == "float32" else ""
    extra = f', input_precision="{precision}"' if precision else ""
    kind = {"int8": "int32", "float64": "float64"}.get(dtype, "float32")
    c = w.choose(lambda v: v.dtype == kind and v.shape == shape)
    if c is not None and w.chance(0.6):
        extra = f", {c.name}{extra}"
    else:
        c = None
    w.define(f"tl.dot({a.name}, {b.name}{extra})", product(w, a, b, c, precision or "ieee"))


def finite(w: Writer, dtype: str) -> tuple[float, float, float | None]:
    while isinf((fill := w.data(dtype))[1]):
        pass
    return fill


def operand(w: Writer, dtype: str, shape: Shape) -> Value | None:
    """A matrix of its own, perhaps read transposed or masked."""
    fill = (-7, 7, 1.0) if dtype == "int8" else finite(w, dtype)
    offsets, low, high = w.strided(shape, unique=False)
    name = w.array(dtype, low, high, fill)
    v = w.filled(dtype, shape, fill)
    before = len(w.values)
    masked(w, f"{name} + {offsets}", v)
    return w.values[-1] if len(w.values) > before else None


@operation(2, nests=True)
def dot_loop(w: Writer) -> None:
    """The loop of a matrix product: pointers that move, a sum that is carried."""
    dtype = w.rng.choice(["float32"] * 3 + ["float16", "bfloat16", "int8", *FP8])
    m, n, k = (w.rng.choice([16, 16, 32]) for _ in range(3))
    trips, rest = w.rng.randrange(1, 4), w.rng.choice([0, 0, 5])
    inner = k * trips - rest
    kind = "int32" if dtype == "int8" else "float32"
    fill = (-7, 7, 1.0) if dtype == "int8" else finite(w, dtype)
    turned = w.chance(0.3)
    x = w.array(dtype, 0, m * inner + k, fill)
    y = w.array(dtype, 0, n * inner + k * n, fill)
    size = w.number(inner)
    rows, columns, along = f"tl.arange(0, {m})", f"tl.arange(0, {n})", f"tl.arange(0, {k})"
    p, q, acc = w.fresh("p"), w.fresh("p"), w.fresh()
    w.say(f"{p} = {x} + {rows}[:, None] * {size} + {along}[None, :]")
    if turned:
        w.say(f"{q} = {y} + {columns}[None, :] * {size} + {along}[:, None]")
    else:
        w.say(f"{q} = {y} + {along}[:, None] * {w.number(n)} + {columns}[None, :]")
    w.say(f"{acc} = tl.zeros(({m}, {n}), dtype=tl.{kind})")
    a = w.filled(dtype, (m, k * trips), fill)
    b = w.filled(dtype, (k * trips, n), fill)
    a, b = (replace(v, mag=v.mag) for v in (a, b))
    made = product(w, a, b, None, "ieee")
    if made is None:
        return
    i = w.fresh("i")
    with w.suite(f"for {i} in range(0, tl.cdiv({size}, {k})):", True):
        left = f"{size} - {i} * {k}"
        other = zero(a)
        if rest or w.chance(0.3):
            w.say(f"a{i} = tl.load({p}, mask={along}[None, :] < {left}, other={other})")
            w.say(f"b{i} = tl.load({q}, mask={along}[:, None] < {left}, other={other})")
        else:
            w.say(f"a{i} = tl.load({p})")
            w.say(f"b{i} = tl.load({q})")
        w.say(w.rng.choice([f"{acc} = tl.dot(a{i}, b{i}, {acc})", f"{acc} += tl.dot(a{i}, b{i})"]))
        w.say(f"{p} += {k}")
        w.say(f"{q} += {k if turned else f'{k} * {w.number(n)}'}")
    w.values.append(made.named(acc).shaped((m, n)))


__all__ = ["BOOL", "FLOATS", "OPERATIONS", "fits", "whole"]
