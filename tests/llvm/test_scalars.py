"""Scalar functions and conversions of every dtype: native code against the numpy meaning."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.ir.narrow_values import FORMS, floats_to_round, nearest
from tests.kernel.native import Native
from tests.seeds import crossed
from tilewright.ir.types import DTYPES, DType, as_dtype, f32, from_memory, to_memory
from tilewright.kernel.interpret import run
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Nest, start
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.text import parse_group
from tilewright.llvm.emit import emit
from tilewright.llvm.objects import compile_object
from tilewright.targets import default, get

UNSIGNED = ("u16", "u32", "u64")
WHOLE = ("i8", "i16", "i32", "i64", "u8", *UNSIGNED)
FLOATS = ("f64", "f32", "f16", "bf16", *FORMS)
BINARY = "add sub mul floordiv mod rem max min and or xor shl shr sar mulhi".split()
COMPARISONS = "lt le gt ge eq ne".split()


def nest_of(value: str, inputs: dict[str, str], out: str, n: int, target=None) -> Nest:
    """One map over n elements: `value` reads `a[i]` as `a`."""
    text = value
    for name in inputs:
        text = text.replace(f"{name}@", f"{name}[y.i0]")
    lines = [f"  in {name}: {d}[{n}]" for name, d in inputs.items()]
    lines += [f"  out y: {out}[{n}]", f"  y[y.i0] = {text} for y.i0 in {n}"]
    group = parse_group("\n".join(["group k", *lines]))
    return default_schedule(group, target)[1] if target is not None else start(group)


@cache
def compiled(value: str, inputs: tuple[tuple[str, str], ...], out: str, n: int, lanes: bool):
    return Native(nest_of(value, dict(inputs), out, n, default() if lanes else None))


def both(value: str, out: str, lanes: bool = True, **arrays: tuple[np.ndarray, str]):
    """What native code and the interpreter make of the same nest."""
    n = len(next(iter(arrays.values()))[0])
    inputs = {name: d for name, (_, d) in arrays.items()}
    native = compiled(value, tuple(inputs.items()), out, n, lanes)
    given = {name: a for name, (a, _) in arrays.items()}
    return native(given)["y"], run(native.nest, given)["y"]


def raw(value: str, source: str, out: str, codes: np.ndarray, lanes: bool = True) -> np.ndarray:
    """Native code on memory as it is, to memory as it is."""
    native = compiled(value, (("a", source),), out, len(codes), lanes)
    result = np.zeros(len(codes), DTYPES[out].memory)
    codes = np.ascontiguousarray(codes)
    native.call([codes.ctypes.data, result.ctypes.data], {})
    return result


# ---- floats of 8 bits


@pytest.mark.parametrize("lanes", [True, False])
@pytest.mark.parametrize("name", FORMS)
def test_every_code_is_widened(name: str, lanes: bool) -> None:
    codes = np.arange(256, dtype=np.uint8)
    expected = from_memory(codes, DTYPES[name])
    for value, source in ((f"{name}_of_bits(a@)", "u8"), ("a@", name)):
        got = raw(f"cast<f32>({value})", source, "f32", codes, lanes)
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(expected[got == 0]))


@pytest.mark.parametrize("name", FORMS)
def test_copies_change_no_number(name: str) -> None:
    """Not even infinities, which a cast would not make."""
    d, codes = DTYPES[name], np.arange(256, dtype=np.uint8)
    for value, source in (("a@", name), (f"{name}_of_bits(a@)", "u8")):
        got = raw(value, source, name, codes)
        number = ~np.isnan(from_memory(codes, d))
        np.testing.assert_array_equal(got[number], codes[number])
        assert np.isnan(from_memory(got[~number], d)).all()


@pytest.mark.parametrize("name", FORMS)
def test_casts_round_to_nearest(name: str) -> None:
    x = floats_to_round(name)
    got, own = both(f"cast<{name}>(a@)", name, a=(x, "f32"))
    expected = nearest(name, x)
    top = 1.75 if name == "f8e4b15" else np.nanmax(np.where(np.isinf(expected), 0, expected))
    expected = np.clip(expected, -top, top)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(own, expected)
    small = got == 0
    np.testing.assert_array_equal(np.signbit(got[small]), np.signbit(own[small]))


@pytest.mark.parametrize(("name", "source"), crossed(FORMS, ["f16", "bf16", "f64"], 3))
def test_casts_from_other_floats(name: str, source: str) -> None:
    x = as_dtype(floats_to_round(name)[: 1 << 17 : 3], DTYPES[source])
    got, own = both(f"cast<{name}>(a@)", name, a=(x, source))
    np.testing.assert_array_equal(got, own)


@pytest.mark.parametrize(("name", "source"), crossed([*FORMS, "bf16", "f16"], ["f32", "f64"], 2))
def test_casts_toward_zero(name: str, source: str) -> None:
    d = DTYPES[name]
    x = floats_to_round(name if name in FORMS else "f8e5m2")
    with np.errstate(invalid="ignore"):
        x = x.astype(DTYPES[source].numpy)
    if source == "f64":
        near = as_dtype(x, f32).astype(np.float64)
        x = np.concatenate([x, near * (1 - 2.0**-40), near * (1 + 2.0**-40)])[::7]
    got, own = both(f"cast<{name}>(toward_zero_{name}(a@))", name, a=(x, source))
    np.testing.assert_array_equal(got, own)
    kept = np.isfinite(x) & ~np.isnan(own.astype(np.float64))
    held, exact = np.abs(own[kept].astype(np.float64)), np.abs(x[kept].astype(np.float64))
    assert (held <= exact).all()
    # The next number away from zero is too far, where there is one.
    codes = to_memory(own[kept], d).view(f"u{d.bytes}") + np.array(1, f"u{d.bytes}")
    more = np.abs(from_memory(codes.view(d.memory), d).astype(np.float64))
    limit = np.nanmax(held)
    assert ((more > exact) | np.isnan(more) | (held == limit))[held > 0].all()


def test_a_double_toward_zero_to_float() -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal(4000) * 10.0 ** rng.uniform(-46, 39, 4000)
    x = np.concatenate([x, [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e300]])
    got, own = both("cast<f32>(toward_zero_f32(a@))", "f32", a=(x, "f64"))
    np.testing.assert_array_equal(got, own)
    finite = np.isfinite(x)
    assert (np.abs(got[finite].astype(np.float64)) <= np.abs(x[finite])).all()
    assert got[-1] == np.finfo(np.float32).max


@pytest.mark.parametrize("name", FLOATS)
def test_bits_and_back(name: str) -> None:
    d = DTYPES[name]
    codes = np.random.default_rng(0).integers(0, 256, 1024 * d.bytes, np.uint8).view(f"u{d.bytes}")
    held = from_memory(codes.view(d.memory), d)
    number = ~np.isnan(held)
    got = raw(f"bits_of_{name}({name}_of_bits(a@))", f"u{d.bits}", f"u{d.bits}", codes)
    np.testing.assert_array_equal(got[number], codes[number])
    whole, own = both(f"bits_of_{name}(a@)", f"u{d.bits}", a=(held, name))
    np.testing.assert_array_equal(whole[number], codes[number])
    np.testing.assert_array_equal(own[number], codes[number])
    back, own = both(f"{name}_of_bits(a@)", name, a=(codes, f"u{d.bits}"))
    np.testing.assert_array_equal(back, held)
    np.testing.assert_array_equal(own, held)


# ---- integers


def integers(d: DType, seed: int, n: int = 600) -> np.ndarray:
    """Ends of the range, small numbers and numbers of every size."""
    rng = np.random.default_rng(seed)
    wide = rng.integers(0, 1 << 63, n, dtype=np.uint64) * np.uint64(2) + np.uint64(seed % 2)
    wide >>= rng.integers(64 - d.bits, 64, n).astype(np.uint64)
    low, high = int(d.lowest), int(d.highest)
    ends = [low, low + 1, high, high - 1, 0, 1, 2, 3, 7, d.bits - 1, d.bits, high // 2, high // 3]
    flip = np.where(rng.random(n) < 0.3, ~wide, wide).astype(d.numpy)
    x = np.concatenate([np.array(ends, dtype=object).astype(d.numpy), flip])
    return rng.permutation(x)


@pytest.mark.parametrize(("d", "name"), crossed(WHOLE, BINARY, 2))
def test_functions_of_integers(d: str, name: str) -> None:
    a, b = integers(DTYPES[d], 0), integers(DTYPES[d], 1)
    got, own = both(f"{name}(a@, b@)", d, a=(a, d), b=(b, d))
    np.testing.assert_array_equal(got, own)
    bits = DTYPES[d].bits
    exact = [_exact(name, int(x), int(y), bits, d[0] == "i") for x, y in zip(a, b, strict=True)]
    wrapped = [x & ((1 << bits) - 1) for x in exact]
    np.testing.assert_array_equal(got.view(f"u{bits // 8}"), np.array(wrapped, f"u{bits // 8}"))


def _exact(name: str, x: int, y: int, bits: int, signed: bool) -> int:
    """The function on Python's integers."""
    if name in ("floordiv", "mod", "rem") and y == 0:
        return 0
    if name in ("shl", "shr", "sar") and not 0 <= y < bits:
        return (-1 if x < 0 else 0) if name == "sar" else 0
    unsigned = x & ((1 << bits) - 1)
    functions = {
        "add": lambda: x + y,
        "sub": lambda: x - y,
        "mul": lambda: x * y,
        "floordiv": lambda: x // y,
        "mod": lambda: x % y,
        "rem": lambda: abs(x) % abs(y) * (-1 if x < 0 else 1),
        "max": lambda: max(x, y),
        "min": lambda: min(x, y),
        "and": lambda: x & y,
        "or": lambda: x | y,
        "xor": lambda: x ^ y,
        "shl": lambda: x << y,
        "shr": lambda: unsigned >> y,
        "sar": lambda: (x if signed else unsigned) >> y,
        "mulhi": lambda: (x * y) >> bits,
    }
    return functions[name]()


@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize("d", UNSIGNED)
def test_comparisons_of_unsigned(d: str, name: str) -> None:
    a, b = integers(DTYPES[d], 2), integers(DTYPES[d], 3)
    a[::4] = b[::4]
    got, own = both(f"{name}(a@, b@)", "bool", a=(a, d), b=(b, d))
    expected = [getattr(int(x), f"__{name}__")(int(y)) for x, y in zip(a, b, strict=True)]
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(own, expected)


@pytest.mark.parametrize("name", ["neg", "abs", "not"])
@pytest.mark.parametrize("d", UNSIGNED)
def test_unary_functions_of_unsigned(d: str, name: str) -> None:
    a = integers(DTYPES[d], 4)
    got, own = both(f"{name}(a@)", d, a=(a, d))
    functions = {"neg": lambda x: -x, "abs": abs, "not": lambda x: ~x}
    top = (1 << DTYPES[d].bits) - 1
    expected = np.array([functions[name](int(x)) & top for x in a], DTYPES[d].numpy)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(own, expected)


@pytest.mark.parametrize(("src", "dst"), crossed([*UNSIGNED, "i64"], [*WHOLE, *FLOATS, "bool"], 2))
def test_casts_of_integers(src: str, dst: str) -> None:
    a = integers(DTYPES[src], 5)
    got, own = both(f"cast<{dst}>(a@)", dst, a=(a, src))
    np.testing.assert_array_equal(got, own)
    if DTYPES[dst].is_int:
        top = (1 << DTYPES[dst].bits) - 1
        expected = np.array([int(x) & top for x in a], f"u{DTYPES[dst].bytes}")
        np.testing.assert_array_equal(got.view(expected.dtype), expected)


@pytest.mark.parametrize(("src", "dst"), crossed(["f32", "f64", "f16", "bf16", "f8e5m2"], WHOLE, 2))
def test_casts_to_integers(src: str, dst: str) -> None:
    d = DTYPES[dst]
    rng = np.random.default_rng(6)
    x = rng.uniform(float(d.lowest), float(d.highest), 500)
    x = np.concatenate([x, rng.uniform(-3, 100, 100), rng.standard_normal(200) * 2.0**66])
    x = np.concatenate([x, [np.nan, np.inf, -np.inf, 2.0**63, -(2.0**63), 2.0**64, 0.99, -0.99]])
    with np.errstate(over="ignore"):
        x = as_dtype(x, DTYPES[src])
    got, own = both(f"cast<{dst}>(a@)", dst, a=(x, src))
    np.testing.assert_array_equal(got, own)
    wide = x.astype(np.float64)
    inside = np.isfinite(wide) & (wide > float(d.lowest) - 1) & (wide < float(d.highest) + 1)
    inside &= np.abs(wide) < 2.0 ** (d.bits - (d.kind == "i"))
    expected = [int(v) for v in wide[inside]]
    assert [int(v) for v in got[inside]] == expected


# ---- fma, maxnum, minnum


def ternary(d: DType, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(1500) * 2.0 ** rng.integers(-3, 4, 1500)
    wide = rng.standard_normal(500) * 2.0 ** rng.integers(-70, 60, 500)
    odd = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1 + 2.0**-10]
    with np.errstate(over="ignore"):
        return as_dtype(np.concatenate([x, wide, rng.permutation(odd * 8)]), d)


@pytest.mark.parametrize("d", ["f32", "f64", "f16", "bf16"])
def test_fma_rounds_once(d: str) -> None:
    a, b, c = (ternary(DTYPES[d], k) for k in range(3))
    with np.errstate(all="ignore"):  # sums that cancel need every bit of the product
        c[::2] = as_dtype(-(a[::2].astype(np.float64) * b[::2]), DTYPES[d])
    got, own = both("fma(a@, b@, c@)", d, a=(a, d), b=(b, d), c=(c, d))
    np.testing.assert_array_equal(got, own)
    if d in ("f32", "f64"):
        with np.errstate(all="ignore"):
            twice = a * b + c
        assert (got != twice)[np.isfinite(twice)].any()


def test_fma_of_floats_that_rounding_twice_gets_wrong() -> None:
    """In double the sum would be a tie of two floats; it is a little less."""
    a = np.array([2.0**-24 * (1 + 2.0**-23), -(2.0**-24) * (1 + 2.0**-23)], np.float32)
    b = np.array([1 - 2.0**-23] * 2, np.float32)
    c = np.array([1 + 2.0**-23, -1 - 2.0**-23], np.float32)
    got, own = both("fma(a@, b@, c@)", "f32", a=(a, "f32"), b=(b, "f32"), c=(c, "f32"))
    twice = (a.astype(np.float64) * b + c).astype(np.float32)
    np.testing.assert_array_equal(got, c)
    np.testing.assert_array_equal(own, c)
    assert (twice != c).all()


@pytest.mark.parametrize("name", ["maxnum", "minnum"])
@pytest.mark.parametrize("d", FLOATS)
def test_the_number_wins_over_nan(d: str, name: str) -> None:
    values = as_dtype(np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -1.5]), DTYPES[d])
    a, b = (x.reshape(-1) for x in np.meshgrid(values, values))
    got, own = both(f"{name}(a@, b@)", d, a=(a, d), b=(b, d))
    np.testing.assert_array_equal(got, own)
    np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(own[got == 0]))
    expected = (np.fmax if name == "maxnum" else np.fmin)(a, b)
    np.testing.assert_array_equal(got, expected)


# ---- other machines


@pytest.mark.parametrize(
    ("name", "machine"), crossed([*FORMS, "u64"], ["x86-64", "x86-64-v3", "x86-64-v4"], 3)
)
def test_objects_for_other_machines(name: str, machine: str) -> None:
    target = get(machine)
    values = [f"cast<{name}>(a@)", f"cast<{name}>(fma(a@, a@, maxnum(a@, a@)))"]
    if name in FORMS:
        values.append(f"cast<{name}>(toward_zero_{name}(a@))")
    else:
        values.append("mulhi(cast<u64>(a@), cast<u64>(a@))")
    for value in values:
        text = emit(legalise(nest_of(value, {"a": "f32"}, name, 64, target), target), target)
        assert compile_object(text, target)[:4] == b"\x7fELF"
