"""Operations of random kernels on memory: loads, stores, block pointers, atomics."""

from __future__ import annotations

from dataclasses import replace

from tests.lang.tile.random_operations import operation
from tests.lang.tile.random_values import BOOL, FLOATS, FP8, INTS, Shape, Value, limits, union
from tests.lang.tile.random_writer import Statement, Writer


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
    mask = w.condition(v.shape) if w.chance(0.4) else None  # elements without one are 0
    extra = f", mask={mask[0]}" if mask else ""
    old = f"tl.atomic_{kind}({name} + {place} + {offsets}, {v.name}{extra})"
    fill = (min(0, fill[0]), max(0, fill[1]), fill[2]) if mask else fill
    made = w.define(
        old,
        Value("", v.dtype, v.shape, *limits(v.dtype))
        if w.depth
        else w.filled(v.dtype, v.shape, fill),
    )
    if made is not None and made.low >= -200 and made.high <= 200 and w.chance(0.5):
        element = w.element()
        held, step = w.data(element), w.rng.choice([1, 3])
        places = w.array(element, step * made.low, step * made.high, held)
        masked(w, f"{places} + {made.name} * {step}", w.filled(element, made.shape, held))


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
