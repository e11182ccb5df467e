"""Control flow of random kernels: loops that carry tiles and pointers, branches, calls."""

from __future__ import annotations

from dataclasses import replace

from tests.lang.tile.random_arithmetic import of_floats
from tests.lang.tile.random_operations import operation, write
from tests.lang.tile.random_values import (
    BOOL,
    FP8,
    Value,
    converted,
    limits,
    real,
    union,
    whole,
)
from tests.lang.tile.random_writer import Statement, Writer


def decision(w: Writer) -> str:
    """A scalar that every implementation has to agree on."""
    v = w.choose(lambda v: v.shape == () and v.is_bool)
    if v is not None and w.chance(0.4):
        return v.name
    x = w.choose(lambda v: v.shape == () and v.exact and (v.is_int or v.dtype == "float32"))
    assert x is not None  # pid is one
    op = w.rng.choice(["<", ">", "==", "!=", ">="])
    if w.chance(0.1):
        return f"{w.number(2, constant=True)} {op} {w.rng.randrange(4)}"
    text = f"{x.name} {op} {w.number(w.rng.randrange(0, 4))}"
    if w.chance(0.2):
        text = f"{text} {w.rng.choice(['and', 'or'])} pid != {w.number(w.rng.randrange(3))}"
    return text


def again(w: Writer, v: Value, allowed: list[Value]) -> tuple[str, Value] | None:
    """Something of the type of a value, of what a loop does not carry."""
    found = [x for x in allowed if x.shape == v.shape]
    x = w.rng.choice(found) if found else None
    if x is None:
        return None
    if x.dtype == v.dtype:
        return x.name, x
    made = converted(x, v.dtype)
    if made is None or v.dtype in FP8 or x.dtype in FP8:
        return None
    return f"{x.name}.to(tl.{v.dtype})", made


@operation(2.5, nests=True)
def branch(w: Writer) -> None:
    v = w.choose(lambda v: v.index is False and v.dtype not in FP8)
    if v is None:
        return
    held = v.named(w.fresh())
    w.say(f"{held.name} = {v.name}")
    ends = [held]
    with w.suite(f"if {decision(w)}:", False) as made:
        write(w, w.rng.randrange(1, 4))
        found = again(w, held, list(w.values))
        if found is not None:
            w.say(f"{held.name} = {found[0]}")
            ends.append(found[1])
        leave(w)
    if w.chance(0.5):
        with w.inside([], False, made, "orelse"):
            write(w, w.rng.randrange(1, 3))
            found = again(w, held, list(w.values))
            if found is not None:
                w.say(f"{held.name} = {found[0]}")
                ends.append(found[1])
            leave(w)
    for e in ends[1:]:
        held = union(held, replace(e, name=held.name))
    w.values.append(replace(held, index=False))


def leave(w: Writer) -> None:
    """Some of what a body computed is written from inside it."""
    outside = 0
    for v in w.values[-2:]:
        if v.name not in w.stored and w.chance(0.3) and outside < 2:
            w.store(v)
            outside += 1


@operation(4, nests=True)
def loop(w: Writer) -> None:
    """A loop with carried integers, which the body may use, sums, and pointers that move."""
    carried: list[Value] = []
    before = list(w.values)
    for _ in range(w.rng.randrange(0, 3)):
        x = w.choose(lambda v: v.is_int and not v.index and v.name != "pid")
        if carried and w.chance(0.4):
            x = carried[0]
        if x is not None:
            c = Value(w.fresh(), x.dtype, x.shape, *limits(x.dtype))
            w.say(f"{c.name} = {x.name}")
            carried.append(c)
    most: Value | None = None
    narrow = (*FP8, "bfloat16")  # whose extremes are float32
    x = w.choose(lambda v: v.is_float and v.exact and v.dtype not in narrow)
    if x is not None and w.chance(0.5):
        most = x.named(w.fresh())
        w.say(f"{most.name} = {x.name}")
    trips = w.rng.randrange(0, 5)
    acc = accumulator(w, before)
    pointer = moving(w, trips)
    w.values += carried
    index = w.fresh("i")
    header, counter, after = counting(w, trips, index)
    sums: list[Value] = []
    with w.suite(header, True):
        if "static_range" in header:  # a constant, which is no tile
            counter = counter.named(w.fresh())
            w.say(f"{counter.name} = pid * 0 + {index}")
        w.values.append(counter)
        w.stored.add(counter.name)
        start = len(w.values)
        if pointer is not None:
            got, text, step, p = pointer
            w.define(text, got)
            w.say(f"{p} += {step}")
        write(w, w.rng.randrange(1, 5))
        inner = [v for v in w.values[start:] if v.name not in {c.name for c in carried}]
        if acc is not None:
            finite = (v for v in (*inner, *before) if not v.special)
            same = [v for v in finite if v.dtype == acc.dtype and v.shape == acc.shape]
            if same:
                term = w.rng.choice(same)
                w.say(f"{acc.name} += {term.name}")
                sums.append(term)
        if len(carried) == 2 and same_type(*carried) and w.chance(0.4):
            a, b = (c.name for c in carried)
            w.say(f"{a}, {b} = {b}, {a}")
        for c in carried:
            if c.shape and w.chance(0.3):
                turned = [f"tl.flip({c.name}, 0)"]
                if len(c.shape) == 2 and c.shape[0] == c.shape[1]:
                    turned.append(f"tl.trans({c.name})")
                if c.dtype in ("int32", "int64"):
                    turned.append(f"tl.cumsum({c.name}, 0)")
                    turned.append(f"tl.sum({c.name}, 0, keep_dims=True) + {c.name}")
                w.say(f"{c.name} = {w.rng.choice(turned)}")
                continue
            found = again(w, c, list(w.values))
            if found is not None and w.chance(0.8):
                w.say(f"{c.name} = {found[0]}")
            else:
                w.say(f"{c.name} = {c.name} * 3 + 1")
        if most is not None:
            same = [
                v
                for v in (*inner, *before)
                if v.dtype == most.dtype and v.shape == most.shape and v.exact
            ]
            if same:
                term = w.rng.choice(same)
                name = w.rng.choice(["maximum", "minimum"])
                w.say(f"{most.name} = tl.{name}({most.name}, {term.name})")
                most = union(most, term.named(most.name))
        leave(w)
        for line in after:
            w.say(line)
    if acc is not None:
        t = sums[0] if sums else acc
        v = real(
            acc.dtype,
            acc.shape,
            acc.mag + trips * t.mag,
            None if acc.grain is None or t.grain is None else min(acc.grain, t.grain),
            acc.err + trips * t.err,
            trips + 1,
        )
        if v is None:  # cannot be bounded: nobody looks at it
            acc = None
        else:
            w.values.append(v.named(acc.name))
    w.values += carried
    if most is not None:
        w.values.append(most)


def same_type(a: Value, b: Value) -> bool:
    return (a.dtype, a.shape) == (b.dtype, b.shape)


def accumulator(w: Writer, before: list[Value]) -> Value | None:
    x = w.choose(lambda v: v.dtype == "float32" and v.mag < 1e6)
    if x is None or w.chance(0.4):
        return None
    if w.chance(0.5) and x.shape:
        acc = Value(w.fresh(), "float32", x.shape, mag=0.0, grain=1.0)
        w.say(f"{acc.name} = tl.zeros({list(x.shape)}, dtype=tl.float32)")
    else:
        acc = x.named(w.fresh())
        w.say(f"{acc.name} = {x.name}")
    return acc


def moving(w: Writer, trips: int) -> tuple[Value, str, str, str] | None:
    """A tile of pointers that each iteration moves, and what is read there."""
    if w.chance(0.4):
        return None
    dtype, shape = w.element(), w.shape()
    fill = w.data(dtype)
    offsets, low, high = w.strided(shape, unique=False)
    step = w.rng.choice([0, 1, 5, 16, -3])
    far = step * trips
    name = w.array(dtype, low + min(0, far), high + max(0, far), fill)
    p = w.fresh("p")
    w.say(f"{p} = {name} + {offsets}" if shape else f"{p} = {name}")
    return w.filled(dtype, shape, fill), f"tl.load({p})", w.number(step), p


def counting(w: Writer, trips: int, index: str) -> tuple[str, Value, list[str]]:
    """A header that runs its body so often, the counter, and lines for the end of the body."""
    counter = Value(index, "int32", (), 0, 8, index=True)
    kind = w.rng.randrange(5)
    if kind == 0:
        return f"for {index} in tl.static_range({trips}):", counter, []
    if kind == 1:
        step = w.rng.choice([2, 3])
        end = w.number(step * trips - (trips > 0))
        return (
            f"for {index} in range(0, {end}, {step}):",
            replace(counter, high=3 * trips),
            [],
        )
    if kind == 2:
        return f"for {index} in range({w.number(trips)}, 0, -1):", counter, []
    if kind == 3:
        w.say(f"{index} = 0")
        return f"while {index} < {w.number(trips)}:", counter, [f"{index} += 1"]
    if w.chance(0.3):
        return f"for {index} in tl.range({w.number(trips)}, num_stages=2):", counter, []
    return f"for {index} in range({w.number(trips)}):", counter, []


@operation(0.6)
def returned(w: Writer) -> None:
    """Some programs stop early."""
    if w.depth == 0 and len(w.body) > 4 and w.chance(0.5):
        w.body.append(Statement(f"if {decision(w)}:", [Statement("return")]))


@operation(0.7, nests=True)
def searching(w: Writer) -> None:
    """A loop whose end depends on what it reads."""
    x = w.array("int32", 0, 20, (-2, 6, 1.0))
    k, total = w.fresh(), w.fresh()
    w.say(f"{k} = 0")
    w.say(f"{total} = {w.number(0)}")
    with w.suite(f"while ({total} < {w.number(9)}) & ({k} < 20):", True):
        w.say(f"{total} += tl.load({x} + {k})")
        w.say(f"{k} += 1")
        if w.chance(0.5):
            write(w, 1)
    w.values += [Value(k, "int32", (), 0, 20), Value(total, "int32", (), -40, 20)]


@operation(0.7)
def each(w: Writer) -> None:
    """A function of scalars that branches, for every element."""
    x = w.choose(lambda v: v.dtype in ("int32", "int64") and 0 < len(v.shape) and v.size <= 64)
    if x is None:
        return
    y = w.choose(lambda v: v.dtype == x.dtype and v.shape == x.shape)
    assert y is not None
    made = Value("", x.dtype, x.shape, *limits(x.dtype))
    w.define(f"tl.map_elementwise({w.helper('mixed')}, {x.name}, {y.name})", made)


@operation(2)
def call(w: Writer) -> None:
    x = w.choose(lambda v: v.dtype not in (*FP8, BOOL))
    if x is None:
        return
    y = w.choose(lambda v: v.dtype == x.dtype and v.shape == x.shape)
    assert y is not None
    kind = w.rng.randrange(4)
    if kind == 0 and x.is_float:
        first = of_floats(w, "+", x.dtype, x.shape, x, y)
        made = first and of_floats(w, "+", x.dtype, x.shape, first, x)
        w.define(f"{w.helper('twice_plus')}({x.name}, y={y.name})", made)
    elif kind == 0:
        made = whole(x.dtype, x.shape, 2 * x.low + y.low, 2 * x.high + y.high, x.index or y.index)
        w.define(f"{w.helper('twice_plus')}({x.name}, {y.name})", made)
    elif kind == 1:
        first = w.chance(0.5)
        extra = "" if first and w.chance(0.5) else f", FIRST={first}"
        w.define(f"{w.helper('either')}({x.name}, {y.name}{extra})", x if first else y)
    elif kind == 2:
        a, b = w.fresh(), w.fresh()
        w.say(f"{a}, {b} = {w.helper('swapped')}({x.name}, {y.name})")
        w.values += [y.named(a), x.named(b)]
    else:
        t = w.fresh("t")
        w.say(f"{t} = ({x.name}, {y.name})")
        w.define(f"{t}[{w.rng.randrange(2)}]", union(x, y))
