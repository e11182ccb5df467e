"""What proofs of float rules rest on: each law of ieee.py, on every value of the floats of 16 bits,
and exact casts on every value of each narrow dtype."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from tests.seeds import drawn
from tilewright.ir.expr import Const, Fn, Load, Value, cast, const, fn, load
from tilewright.ir.scalar import SCALARS, applied
from tilewright.ir.types import DTYPES, DType, as_dtype, bf16, f16, f32, f64
from tilewright.rewrites.facts import holds_exactly
from tilewright.rewrites.proofs.ieee import ROUNDINGS, Floats
from tilewright.rewrites.proofs.prove import all_values, difference

ROUNDED = sorted(name for name, s in SCALARS.items() if s.rounded)
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 3.0, -2.75, 1e-7, -6e-8, 6e4, -3e38, 1e-40]
SPECIAL += [float("inf"), float("-inf"), float("nan")]


def computed(v: Value, given: dict[str, np.ndarray]) -> np.ndarray:
    """A value by the scalar functions of the interpreter."""
    if isinstance(v, Const):
        return as_dtype(np.array(v.value), v.dtype)
    if isinstance(v, Load):
        return given[str(v.source)]
    assert isinstance(v, Fn)
    args = [computed(a, given) for a in v.args]
    with np.errstate(all="ignore"):
        return as_dtype(args[0], v.dtype) if v.name == "cast" else applied(v.name, args, v.dtype)


def variable(name: str, dtype: DType) -> Value:
    return load(name, (), dtype)


Law = Callable[[Value, Value], tuple[Value, Value]]
BITS: dict[str, Law] = {
    "x - y = x + (-y)": lambda x, y: (x - y, x + (-y)),
    "-(-x) = x": lambda x, y: (fn("neg", -x), x),
    "x + (-0) = x": lambda x, y: (x + -0.0, x),
    "x - 0 = x": lambda x, y: (x - 0.0, x),
    "x * 1 = x": lambda x, y: (x * 1.0, x),
    "x * -1 = -x": lambda x, y: (x * -1.0, -x),
    "x / 1 = x": lambda x, y: (x / 1.0, x),
    "(-x) * y = -(x * y)": lambda x, y: ((-x) * y, -(x * y)),
    "(-x) / y = -(x / y)": lambda x, y: ((-x) / y, -(x / y)),
    "x / (-y) = -(x / y)": lambda x, y: (x / (-y), -(x / y)),
    "x / 8 = x * 0.125": lambda x, y: (x / 8.0, x * 0.125),
    "x / 2^-9 = x * 2^9": lambda x, y: (x / 2.0**-9, x * 2.0**9),
    "|-x| = |x|": lambda x, y: (fn("abs", -x), fn("abs", x)),
    "||x|| = |x|": lambda x, y: (fn("abs", fn("abs", x)), fn("abs", x)),
    "|x| * |y| = |x * y|": lambda x, y: (fn("abs", x) * fn("abs", y), fn("abs", x * y)),
    "|x * x| = x * x": lambda x, y: (fn("abs", x * x), x * x),
    **{
        f"{a}({b}(x)) = {b}(x)": lambda x, y, a=a, b=b: (fn(a, fn(b, x)), fn(b, x))
        for a in ROUNDINGS
        for b in ROUNDINGS
    },
}
NUMBERS: dict[str, Law] = {
    "x + 0 = x": lambda x, y: (x + 0.0, x),
    "-(x + y) = -x - y": lambda x, y: (-(x + y), -x - y),
}
# By text and by `Forms.opaque`, not by `Floats`.
ORDER: dict[str, Law] = {
    "x + y = y + x": lambda x, y: (x + y, y + x),
    "x * y = y * x": lambda x, y: (x * y, y * x),
    "max(x, -inf) = x": lambda x, y: (fn("max", x, float("-inf")), x),
    "min(x, inf) = x": lambda x, y: (fn("min", x, float("inf")), x),
    **{f"{f}(x, x) = x": lambda x, y, f=f: (fn(f, x, x), x) for f in ("max", "min")},
    **{f"{f} commutes": lambda x, y, f=f: (fn(f, x, y), fn(f, y, x)) for f in ("max", "min")},
    **{
        f"{f} associates": lambda x, y, f=f: (fn(f, fn(f, x, y), -x), fn(f, x, fn(f, y, -x)))
        for f in ("max", "min")
    },
}


def grids(dtype: DType) -> dict[str, np.ndarray]:
    """Every value against some that are special."""
    x = all_values(dtype).reshape(-1, 1)
    return {"x": x, "y": special(dtype, (1, -1))}


def special(dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    with np.errstate(over="ignore"):
        return as_dtype(np.array(SPECIAL).reshape(shape), dtype)


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_laws_hold_for_every_value(dtype: DType) -> None:
    x, y = variable("x", dtype), variable("y", dtype)
    given = grids(dtype)
    for changes, laws in (("nothing", BITS | ORDER), ("sign of zero", NUMBERS)):
        for name, law in laws.items():
            left, right = law(x, y)
            a, b = np.broadcast_arrays(computed(left, given), computed(right, given))
            assert difference(a, b, changes) is None, name


def test_each_law_is_one_of_the_canonical_form() -> None:
    x, y = variable("x", f32), variable("y", f32)
    for numbers, laws in ((False, BITS), (True, BITS | NUMBERS)):
        floats = Floats(numbers)
        for name, law in laws.items():
            left, right = law(x, y)
            assert floats.canonical(left) is floats.canonical(right), name
    for name, law in NUMBERS.items():
        left, right = law(x, y)
        assert Floats().canonical(left) is not Floats().canonical(right), name


def random_value(rng: random.Random, dtype: DType, depth: int) -> Value:
    if depth == 0 or rng.random() < 0.1:
        leaf = rng.choice(["x", "y", "y", *SPECIAL[:6]])
        return variable(leaf, dtype) if isinstance(leaf, str) else const(leaf, dtype)
    name = rng.choice(["neg", "add", "sub", "mul", "div", "cast", *ROUNDED])
    if name == "cast":
        between = rng.choice([f16, bf16, f32, f64])
        return cast(cast(random_value(rng, dtype, depth - 1), between), dtype)
    args = {"add": 2, "sub": 2, "mul": 2, "div": 2, "max": 2, "min": 2}.get(name, 1)
    return fn(name, *(random_value(rng, dtype, depth - 1) for _ in range(args)))


@pytest.mark.parametrize("seed", drawn(range(40), 4))
def test_canonical_values_are_the_same(seed: int) -> None:
    rng = random.Random(seed)
    for k in range(40):
        dtype = rng.choice([f16, bf16, f32, f64])
        v = random_value(rng, dtype, rng.randint(1, 4))
        given = {"x": special(dtype, (-1, 1)), "y": special(dtype, (1, -1))}
        for numbers, changes in ((False, "nothing"), (True, "sign of zero")):
            made = Floats(numbers).canonical(v)
            a, b = np.broadcast_arrays(computed(v, given), computed(made, given))
            assert difference(a, b, changes) is None, f"seed {seed}, value {k}: {v!r} as {made!r}"


@pytest.mark.filterwarnings("ignore:invalid value")
def test_what_holds_every_value_does() -> None:
    for narrow in DTYPES.values():
        if narrow.bits > 16:
            continue
        values = all_values(narrow)
        for wide in DTYPES.values():
            if wide.is_bool or not holds_exactly(narrow, wide):
                continue
            there = as_dtype(values, wide)
            assert difference(as_dtype(there, narrow), values, "nothing") is None, (narrow, wide)
            if narrow.is_float and wide.is_float:
                a, b = (v.astype(np.float64) for v in (there, values))
                assert difference(a, b, "nothing") is None, (narrow, wide)
