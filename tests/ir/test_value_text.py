"""Dims and values: text and parse are inverses, and bad text gets a sentence."""

import random

import pytest

from tests.seeds import drawn
from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import (
    Tensor,
    Value,
    cast,
    const,
    fn,
    index,
    load,
    loads,
    placeholder,
    reduce,
    select,
)
from tilewright.ir.reader import Reader
from tilewright.ir.scalar import SCALARS
from tilewright.ir.types import DTYPES, b1, bf16, f16, f32, f64, i32, i64, u8
from tilewright.ir.value_text import (
    Scope,
    dim_text,
    parse_dim,
    parse_value,
    read_sym,
    sym_text,
    value_text,
)

N = D.sym("n", 1, 4096, 8)
M = D.sym("m.x", 1, None)
I0, J = D.var("i0", N), D.var("i1", 12)
SYMBOLS: dict[str, Sym] = {s.name: s for s in map(D.the_sym, (N, M, I0, J))}
BUFFERS = {"x": f32, "y": f32, "k": i64, "h": f16, "odd name": f32, "v@1": f64, "s": u8}
SCOPE = Scope(BUFFERS, SYMBOLS)


def random_dim(rng: random.Random, depth: int = 4) -> Dim:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([N, M, I0, J, rng.randint(-40, 40)])
    a = random_dim(rng, depth - 1)
    match rng.randint(0, 6):
        case 0 | 1:
            return a + random_dim(rng, depth - 1)
        case 2:
            return a - random_dim(rng, depth - 1)
        case 3:
            return a * random_dim(rng, depth - 2 if depth > 1 else 0)
        case 4:
            return D.floordiv(a, rng.choice([2, 4, 7, 12, N]))
        case 5:
            return D.mod(a, rng.choice([2, 4, 7, 12, N]))
        case _:
            pick = rng.choice([D.minimum, D.maximum])
            return pick(a, random_dim(rng, depth - 1))


@pytest.mark.parametrize("seed", drawn(range(300), quick=100))
def test_dims_round_trip(seed: int) -> None:
    x = random_dim(random.Random(seed))
    assert parse_dim(dim_text(x), SYMBOLS) is x or parse_dim(dim_text(x), SYMBOLS) == x


def random_value(rng: random.Random, depth: int, dtype_name: str = "f32") -> Value:
    dtype = DTYPES[dtype_name]
    if depth == 0 or rng.random() < 0.15:
        if dtype is f32 and rng.random() < 0.7:
            name = rng.choice(["x", "y", "odd name"])
            return load(name, [random_dim(rng, 1) for _ in range(rng.randint(0, 2))], f32)
        return const(rng.choice([0, 1, -2.5, 0.1, float("inf"), -0.0, 1e-30]), dtype)
    match rng.randint(0, 5):
        case 0:
            return fn(
                rng.choice(["add", "sub", "mul", "div", "max", "pow"]),
                random_value(rng, depth - 1, dtype_name),
                random_value(rng, depth - 1, dtype_name),
            )
        case 1:
            return fn(rng.choice(["exp", "neg", "sqrt"]), random_value(rng, depth - 1, dtype_name))
        case 2:
            c = fn(
                rng.choice(["lt", "eq", "ge"]),
                random_value(rng, depth - 1),
                random_value(rng, depth - 1),
            )
            if rng.random() < 0.5:
                c = fn(rng.choice(["and", "or", "xor"]), c, index(I0) < rng.randint(1, 5))
            a, b = (random_value(rng, depth - 1, dtype_name) for _ in range(2))
            return select(c, a, b)
        case 3:
            other = rng.choice(["f16", "bf16", "f64"])
            return cast(random_value(rng, depth - 1, other), dtype)
        case 4:
            inner = random_value(rng, depth - 1, dtype_name)
            return reduce(
                rng.choice(["add", "max"]),
                (rng.choice([N, 5]), 3),
                lambda r, s: inner * cast(load("x", (r, s + 1), f32), dtype),
            )
        case _:
            at = load("k", [I0], i64)
            return cast(load("y", [at, J], f32), dtype)


@pytest.mark.parametrize("seed", drawn(range(300), quick=100))
def test_values_round_trip(seed: int) -> None:
    v = random_value(random.Random(seed), 4)
    text = value_text(v)
    assert parse_value(text, SCOPE) is v, text


def test_every_scalar_function_round_trips() -> None:
    for s in SCALARS.values():
        kind = next(k for k in "fiub" if k in s.only)
        dtype = s.takes or {"f": f32, "i": i64, "u": u8, "b": b1}[kind]
        args = [load(f"a{k}", [I0], dtype) for k in range(s.arity)]
        if s.name == "select":
            args[0] = load("a0", [I0], b1)
        v = fn(s.name, *args)
        scope = Scope({f"a{k}": a.dtype for k, a in enumerate(args)}, SYMBOLS)
        assert parse_value(value_text(v), scope) is v


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_constants_round_trip(dtype) -> None:
    values = [0, 1] if dtype.is_bool else [0, 3, 100, dtype.lowest, dtype.highest]
    values += [0.1, -0.0, 1e-7, float("nan"), 3.0e38] if dtype.is_float else []
    for x in values:
        c = const(x, dtype)
        assert parse_value(value_text(c), SCOPE) is c


def test_text_reads_like_mathematics() -> None:
    x = load("x", [I0, J], f32)
    m = load("y", [], f32)
    assert value_text(fn("exp", x - m) * 0.5) == "exp(x[i0,i1] - y[]) * 0.5"
    assert value_text(x - (m - 1.0)) == "x[i0,i1] - (y[] - 1.0)"
    assert value_text((x + m) * m) == "(x[i0,i1] + y[]) * y[]"
    assert value_text(cast(x, bf16)) == "cast<bf16>(x[i0,i1])"
    v = reduce("add", (N,), lambda r: load("x", (I0, r), f32))
    assert value_text(v) == "reduce(add, r0<n)(x[i0,r0])"
    assert value_text(load("x", [load("k", [I0], i64)], f32)) == "x[${k[i0]}]"
    assert value_text(select(index(I0) < 3, x, 0)) == "select(#(i0) < 3, x[i0,i1], 0.0)"
    assert value_text(const(2, i32)) == "2:i32"


def test_shared_values_print_once() -> None:
    v = load("x", [I0], f32)
    for _ in range(60):
        v = fn("mul", v, v) + 1.0
    text = value_text(v)
    assert len(text) < 3000
    assert parse_value(text, SCOPE) is v
    total = reduce("add", (4,), lambda r: v * load("y", [r], f32))
    assert parse_value(value_text(total), SCOPE) is total


def test_values_over_tensors() -> None:
    x = placeholder((N, 12), f32, "x")
    v = x[I0, J] + 1.0
    assert parse_value(value_text(v), Scope({"x": x}, SYMBOLS)) is v
    assert all(isinstance(u.source, Tensor) for u in loads(v))


def test_symbols_round_trip() -> None:
    for s in (D.sym("a", 1, 4096, 8), D.sym("b", 0, None, 4), D.sym("c", -3, N - 1), I0, M):
        r = Reader(sym_text(D.the_sym(s)))
        assert read_sym(r, Scope(symbols={"n": D.the_sym(N)})) is D.the_sym(s)
        r.end()


@pytest.mark.parametrize(
    ("text", "line", "column", "says"),
    [
        ("x[i0", 1, 5, "',' or ']'"),
        ("x[i0,\n  i9]", 2, 3, "i9 is not a symbol here"),
        ("z[i0]", 1, 1, "z is not a buffer here"),
        ("foo(1.0)", 1, 1, "foo is not a scalar function"),
        ("x[i0] + k[i0]", 1, 7, "cast to one dtype first"),
        ("exp(1.0, 2.0)", 1, 1, "takes 1 arguments"),
        ("1.0 +", 1, 6, "expected a value, found the end"),
        ("1.0:f31", 1, 5, "f31 is not a dtype"),
        ("reduce(addd, r0<3)(1.0)", 1, 8, "addd is not a reduction"),
        ("1.0 1.0", 1, 5, "expected the end"),
        ("x[i0//0]", 1, 5, "divides by zero"),
    ],
)
def test_errors_name_the_place(text: str, line: int, column: int, says: str) -> None:
    with pytest.raises(Invalid, match=f"line {line}, column {column}") as caught:
        parse_value(text, SCOPE)
    assert says in str(caught.value)
