"""What is done without instructions of its own gives the same bits as the instruction."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from tests.kernel.native import Native
from tests.llvm.test_scalars import nest_of
from tilewright.ir.target import Target
from tilewright.ir.types import DTYPES
from tilewright.targets import default

INTERESTING = np.array(
    [0, 0.3, 0.5, 0.7, 1, 1.5, 2.5, 1e-42, 5e-310, 8388607.5, 2**23, 2**52 - 0.5, 1e300, np.inf]
)


def lacking() -> Target:
    """This machine, as if it had none of these instructions."""
    return replace(
        default(),
        converts_f16=False,
        rounds=False,
        f64_maximum=False,
        maximum=False,
        saturates=False,
        has_fma=False,
        products=(),
    )


def values(d: str) -> np.ndarray:
    draw = np.random.default_rng(1)
    mixed = draw.normal(size=500) * 2.0 ** draw.integers(-30, 60, 500)
    halves = draw.integers(-9, 9, 100) / 2
    with np.errstate(over="ignore"):
        return np.concatenate([INTERESTING, -INTERESTING, [np.nan], halves, mixed]).astype(d)


def made(value: str, d: str, out: str, lanes: bool, **arrays: np.ndarray) -> np.ndarray:
    target = lacking()
    n = len(next(iter(arrays.values())))
    nest = nest_of(value, dict.fromkeys(arrays, d), out, n, target if lanes else None)
    return Native(nest, target)(arrays)["y"]


def same(x: np.ndarray, y: np.ndarray) -> bool:
    """Bit for bit, but for the payload of NaN."""
    nan = np.isnan(x) & np.isnan(y)
    return bool(np.all((x.view(f"u{x.itemsize}") == y.view(f"u{y.itemsize}")) | nan))


@pytest.mark.parametrize("lanes", [True, False])
@pytest.mark.parametrize("d", ["f32", "f64"])
@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round"])
def test_whole_numbers(name: str, d: str, lanes: bool) -> None:
    x = values(DTYPES[d].numpy.name)
    right = {"floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint}[name](x)
    assert same(made(f"{name}(a@)", d, d, lanes, a=x), right)


@pytest.mark.parametrize("lanes", [True, False])
@pytest.mark.parametrize("name", ["max", "min"])
def test_maxima_distinguish_zeros(name: str, lanes: bool) -> None:
    x = values("float64")
    a, b = np.repeat(x[:40], 40), np.tile(x[:40], 40)
    got = made(f"{name}(a@, b@)", "f64", "f64", lanes, a=a, b=b)
    right = {"max": np.maximum, "min": np.minimum}[name](a, b)
    zeros = (a == 0) & (b == 0)
    both = np.signbit(a) & np.signbit(b) if name == "max" else np.signbit(a) | np.signbit(b)
    right = np.where(zeros, np.where(both, -0.0, 0.0), right)
    assert same(got, right)


@pytest.mark.parametrize("limit", ["0.0", "-0.0", "6.0", "inf", "-inf", "nan"])
@pytest.mark.parametrize("name", ["max", "min"])
def test_limits_are_compared(name: str, limit: str) -> None:
    """NaN stays, and zeros are distinguished."""
    x = values("float32")
    bound = np.full_like(x, np.float32(limit))
    got = made(f"{name}(a@, {limit})", "f32", "f32", True, a=x)
    right = {"max": np.maximum, "min": np.minimum}[name](x, bound)
    zeros = (x == 0) & (bound == 0)
    signs = [np.signbit(v) for v in (x, bound)]
    both = signs[0] & signs[1] if name == "max" else signs[0] | signs[1]
    assert same(got, np.where(zeros, np.where(both, -0.0, 0.0), right).astype(np.float32))


@pytest.mark.parametrize("lanes", [True, False])
def test_half_precision(lanes: bool) -> None:
    codes = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    wide = made("cast<f32>(a@)", "f16", "f32", lanes, a=codes)
    with np.errstate(invalid="ignore"):
        assert same(wide, codes.astype(np.float32))
    near = np.nextafter(wide, np.float32(np.inf))
    halfway = (wide[:-1].astype(np.float64) + wide[1:]).astype(np.float32) / 2
    x = np.concatenate([wide, near, -near, halfway, values("float32"), [65519.9, 65520, 1e6]])
    x = x.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        assert same(made("cast<f16>(a@)", "f32", "f16", lanes, a=x), x.astype(np.float16))


def nearest(exact: Fraction) -> np.float32:
    """By comparison with its neighbours: a float64 in between would round twice."""
    near = np.float32(float(exact))
    around = near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))
    return min(around, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(np.uint32)) & 1))


def test_fused_multiply_add_rounds_once() -> None:
    draw = np.random.default_rng(2)
    a, b = (draw.normal(size=4000).astype(np.float32) for _ in range(2))
    c = (-a * b * (1 + draw.normal(size=4000) * 1e-6)).astype(np.float32)
    got = made("fma(a@, b@, c@)", "f32", "f32", True, a=a, b=b, c=c)
    terms = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    exact = (Fraction(x) * Fraction(y) + Fraction(z) for x, y, z in terms)
    assert same(got, np.array([nearest(x) for x in exact], np.float32))


@pytest.mark.parametrize("lanes", [True, False])
@pytest.mark.parametrize("d", ["f32", "f64"])
def test_integers_of_floats_are_the_nearest(d: str, lanes: bool) -> None:
    far = np.array([2.0**63, -(2.0**63), 2.0**62, 1e30, -1e30, np.inf, -np.inf, np.nan, -0.9])
    x = np.concatenate([values(DTYPES[d].numpy.name), far]).astype(DTYPES[d].numpy)
    got = made("cast<i64>(a@)", d, "i64", lanes, a=x)
    nearest = [max(-(2**63), min(2**63 - 1, int(e))) if np.isfinite(e) else e for e in x.tolist()]
    ends = {np.inf: 2**63 - 1, -np.inf: -(2**63)}
    right = [0 if e != e else ends.get(e, e) for e in nearest]
    assert got.tolist() == right
